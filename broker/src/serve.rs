//! The life of one broker process, top to bottom: configuration, log, store, broker, listeners, `ready`, signals, drain,
//! exit code. Called by the command line; everything it starts, it stops.
//!
//! Invariants: nothing is served before everything stored and declared is in force, and the `ready` line is printed after
//! that; whatever can be refused at start is refused with an exit code and a sentence, before `ready`.

mod demo;
mod error;
mod exposure;
mod inherited_sockets;
mod listener_task;
mod signals;
mod stores;

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use tokio::{net::TcpListener, time::timeout};

pub use self::error::ServeError;
use self::{
    error::EXIT_USAGE,
    exposure::{ACCEPTORS, report_certificates, warn_of_open_listeners},
    inherited_sockets::InheritedSockets,
    listener_task::{BoundSocket, ListenerTask, bind, bind_quic, ended, obtain},
    signals::{Signal, Signals},
    stores::OpenDatabase,
};
use crate::{
    auth::{Keyring, Keys},
    broker::{Broker, BrokerParts},
    config::{self, Config, sandbox::SandboxMode},
    control::{Control, ControlParts, ReloadSummary},
    limits::{CLOSE_WAIT, HANDSHAKES_END_WITHIN},
    listeners::{
        self,
        tls_acceptor::{self, TlsAcceptor},
    },
    metrics::Metrics,
    persistence::{
        self,
        node::{LeaseObserver, Node, NodeSettings},
    },
    telemetry::{self, LogFilterHandle},
};

/// What the command line says about the start.
#[derive(Debug, Clone, Default)]
pub struct ServeOptions {
    /// The configuration file; the defaults without one.
    pub config: Option<PathBuf>,
    /// Register the bundled demo backend and tell how to call it.
    pub demo: bool,
}

/// Runs the broker until it is asked to stop.
pub fn run(options: ServeOptions) -> ExitCode {
    exit(start_and_stop(options))
}

/// Brings the database schema up to date and ends.
pub fn migrate(file: Option<&Path>) -> ExitCode {
    let migrated = || {
        let config = config::load(file)?;
        runtime()?.block_on(async {
            let database = stores::migrate(&config).await?;
            say(&format!("the schema of {database} is up to date"));
            Ok(())
        })
    };
    exit(migrated())
}

/// Names every fault of a configuration file, one per line.
pub fn check_config(file: &Path) -> ExitCode {
    match config::load(Some(file)) {
        Ok(_) => {
            say(&format!("{} is a good configuration", file.display()));
            ExitCode::SUCCESS
        }
        Err(faults) => {
            say(&faults.to_string());
            EXIT_USAGE.into()
        }
    }
}

/// The outcome of a command; whoever closed the pipe has seen enough.
fn say(text: &str) {
    let _unread = writeln!(io::stdout(), "{text}");
}

fn exit(ended: Result<(), ServeError>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Not by the log, which may not be set up, and must not hide it from whoever typed the command.
            // Nobody may be reading, which must not change the exit code.
            let lines: String =
                error.to_string().lines().map(|line| format!("mcp-broker: {line}\n")).collect();
            let _unread = io::stderr().write_all(lines.as_bytes());
            error.exit_code().into()
        }
    }
}

fn start_and_stop(options: ServeOptions) -> Result<(), ServeError> {
    let config = read_config(&options)?;
    let inherited = InheritedSockets::take()?;
    // Dropped when all is over, however it ends.
    let (logging, _unwritten) = telemetry::init(&config.telemetry)?;
    hide_from_others();
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        let mut signals = Signals::install()
            .map_err(|source| ServeError::System { what: "signal handlers", source })?;
        let mut running = tokio::select! {
            started = RunningBroker::start(options, config, logging, inherited) => started?,
            name = signals.stop() => {
                tracing::info!(signal = name, "stopped before it was ready");
                return Ok(());
            }
        };
        running.announce();
        running.until_asked_to_stop(&mut signals).await?;
        running.drain(&mut signals).await;
        Ok(())
    });
    // Drops every task that is left, and with it every child process, before the process ends.
    runtime.shutdown_timeout(CLOSE_WAIT);
    ended
}

/// No child connects to the listeners of operators and replicas.
fn close_ports_to_children(broker: &Broker, admin: &BoundSocket, internal: Option<&TcpListener>) {
    let internal = internal.and_then(|listener| listener.local_addr().ok());
    let ports = admin.address().into_iter().chain(internal).map(|address| address.port());
    broker.shared.confinement.close_ports(ports.collect());
}

/// Memory, environment and descriptors of this process are nobody's but its own and root's: child processes have the same
/// user. There is no core dump either.
fn hide_from_others() {
    if let Err(error) =
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
    {
        tracing::warn!(%error, "other processes of this user can read this one's memory");
    }
}

fn read_config(options: &ServeOptions) -> Result<Config, ServeError> {
    let mut config = config::load(options.config.as_deref())?;
    if options.demo {
        let program = std::env::current_exe()
            .map_err(|source| ServeError::System { what: "the path of this program", source })?;
        config.backends.push(demo::backend(program.to_string_lossy().into_owned()));
    }
    Ok(config)
}

fn runtime() -> Result<tokio::runtime::Runtime, ServeError> {
    let built =
        tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("broker").build();
    built.map_err(|source| ServeError::System { what: "threads", source })
}

/// A started broker.
struct RunningBroker {
    options: ServeOptions,
    /// As read at start: what needs a restart is what differs from it.
    config: Arc<Config>,
    logging: LogFilterHandle,
    broker: Arc<Broker>,
    control: Arc<Control>,
    node: Arc<Node>,
    doors: [TlsAcceptor; 2],
    http: ListenerTask,
    tcp: Option<ListenerTask>,
    quic: Option<ListenerTask>,
    admin: ListenerTask,
    internal: Option<ListenerTask>,
}

impl RunningBroker {
    async fn start(
        options: ServeOptions,
        config: Config,
        logging: LogFilterHandle,
        mut inherited: InheritedSockets,
    ) -> Result<Self, ServeError> {
        let config = Arc::new(config);
        tracing::info!(node = %config.node.id, version = env!("CARGO_PKG_VERSION"), "starting");
        let doors = tls_acceptor::doors(&config)?;
        // The store locks an SQLite database; only then may the secret beside it be made.
        let database = OpenDatabase::open(&config, config.storage.migrate_on_start).await?;
        let keys = Keys::load(&config)?;
        let quic_secret = keys.quic;
        let stores = database.with_the_rest(&config, &keys).await?;
        let keyring = Arc::new(Keyring::new(keys.api_key.clone()));
        let metrics = Arc::new(Metrics::new(config.telemetry.tenant_labels));
        let parts = BrokerParts {
            config: Arc::clone(&config),
            metrics: Arc::clone(&metrics),
            keys: keys.clone(),
            keyring: Arc::clone(&keyring),
            stores,
        };
        let broker = Broker::new(parts)?;
        let parts = ControlParts {
            broker: Arc::clone(&broker),
            keyring,
            keys,
            config: Arc::clone(&config),
            metrics: Arc::clone(&metrics),
        };
        let control = Control::new(parts);
        let reuse_port = config.listen.reuse_port;
        let http = obtain("listen.http", config.listen.http, reuse_port, &mut inherited)?;
        let admin = obtain("listen.admin", config.listen.admin, reuse_port, &mut inherited)?;
        let tcp = config
            .listen
            .tcp
            .map(|address| obtain("listen.tcp", address, reuse_port, &mut inherited))
            .transpose()?;
        inherited.nothing_left()?;
        let quic = bind_quic(&config, &doors[0], &quic_secret)?;
        let internal = config
            .listen
            .internal
            .map(|address| bind("listen.internal", address, false))
            .transpose()?;
        close_ports_to_children(&broker, &admin, internal.as_ref());
        let node = join(&control, &metrics, internal.as_ref()).await?;
        let loaded = control.load().await?;
        tracing::info!(
            tenants = loaded.tenants,
            keys = loaded.keys,
            backends = loaded.backends,
            "loaded"
        );
        broker.begin_tasks();
        warn_of_open_listeners(&config);
        if config.stdio.sandbox == SandboxMode::Off {
            tracing::warn!(
                "stdio.sandbox is off: every child process can read the secrets of the broker and of all tenants"
            );
        }
        let [clients, operators] = &doors;
        let http = ListenerTask::start(http, |listener, stop| {
            listeners::http::serve(Arc::clone(&broker), listener, clients.clone(), stop)
        })?;
        let admin = ListenerTask::start(admin, |listener, stop| {
            listeners::admin::serve(Arc::clone(&control), listener, operators.clone(), stop)
        })?;
        let tcp = tcp.map(|bound| {
            ListenerTask::start(bound, |listener, stop| {
                listeners::duplex::tcp::serve(Arc::clone(&broker), listener, clients.clone(), stop)
            })
        });
        let tcp = tcp.transpose()?;
        let quic = quic.map(|bound| {
            let address = bound.local_addr().map_err(|source| ServeError::System {
                what: "the address of a listener",
                source,
            })?;
            Ok::<_, ServeError>(ListenerTask::begin(address, |stop| {
                listeners::duplex::quic::serve(Arc::clone(&broker), bound, stop)
            }))
        });
        let quic = quic.transpose()?;
        let internal = internal.map(|bound| {
            let address = bound.local_addr().map_err(|source| ServeError::System {
                what: "the address of a listener",
                source,
            })?;
            Ok::<_, ServeError>(ListenerTask::begin(address, |stop| {
                listeners::replicas::serve(Arc::clone(&broker), bound, stop)
            }))
        });
        let internal = internal.transpose()?;
        control.follow();
        control.keep_audit();
        report_certificates(&doors, &metrics);
        tokio::spawn(persistence::sweep(
            Arc::clone(&broker.shared.durable),
            Arc::clone(&config),
            metrics,
        ));
        Ok(Self {
            options,
            config,
            logging,
            broker,
            control,
            node,
            doors,
            http,
            tcp,
            quic,
            admin,
            internal,
        })
    }

    /// The first line on standard output, which whoever started the broker waits for.
    fn announce(&self) {
        let named = |name: &str, listener: &Option<ListenerTask>| {
            listener
                .as_ref()
                .map(|listener| format!(" {name}={}", listener.address))
                .unwrap_or_default()
        };
        let others =
            [named("tcp", &self.tcp), named("quic", &self.quic), named("internal", &self.internal)]
                .concat();
        let line =
            format!("ready http={} admin={}{others}\n", self.http.address, self.admin.address);
        let mut out = io::stdout().lock();
        if let Err(error) = out.write_all(line.as_bytes()).and_then(|()| out.flush()) {
            tracing::warn!(%error, "the ready line could not be written");
        }
        tracing::info!(http = %self.http.address, admin = %self.admin.address, "ready");
        if self.options.demo {
            let _unread = io::stderr().write_all(demo::instructions(self.http.address).as_bytes());
        }
    }

    async fn until_asked_to_stop(&mut self, signals: &mut Signals) -> Result<(), ServeError> {
        loop {
            // Every branch is cancel-safe: signals are kept by their source, a drain stays requested, a task's end is kept.
            tokio::select! { biased;
                signal = signals.next() => match signal {
                    Signal::Stop(name) => {
                        tracing::info!(signal = name, "asked to stop");
                        return Ok(());
                    }
                    Signal::Reload => self.reload().await,
                },
                () = self.broker.drain_requested() => {
                    tracing::info!("asked to drain by the admin API");
                    return Ok(());
                }
                ended = &mut self.http.task => return Err(listener_ended("http", ended)),
                ended = &mut self.admin.task => return Err(listener_ended("admin", ended)),
                ended = ended(&mut self.tcp) => return Err(listener_ended("tcp", ended)),
                ended = ended(&mut self.quic) => return Err(listener_ended("quic", ended)),
                ended = ended(&mut self.internal) => return Err(listener_ended("internal", ended)),
            }
        }
    }

    /// Unready, no new sessions and calls, goodbye to streams, calls in flight finish; then the listeners and the store
    /// close. Connections are taken until then: a call in flight may need its client's answer to a question.
    async fn drain(mut self, signals: &mut Signals) {
        let grace = self.config.shutdown.grace;
        tracing::info!(grace = %config::units::format_duration(grace), "draining");
        self.broker.drain();
        self.node.drain();
        let open_for = self.config.shutdown.readiness_delay.max(self.leave_ports_to_others());
        let closing = async {
            let (finished, ()) =
                tokio::join!(self.broker.finish_drain(grace), tokio::time::sleep(open_for));
            if !finished {
                tracing::warn!("the grace period is over: what is still in flight is given up");
            }
            self.http.close(CLOSE_WAIT).await;
            for listener in [&mut self.tcp, &mut self.quic].into_iter().flatten() {
                listener.close(CLOSE_WAIT).await;
            }
            if let Some(internal) = &mut self.internal {
                internal.close(CLOSE_WAIT).await;
            }
            self.admin.close(CLOSE_WAIT).await;
            self.node.leave().await;
            if timeout(CLOSE_WAIT, self.control.close()).await.is_err() {
                tracing::warn!("the store did not close in time");
            }
        };
        tokio::select! {
            () = closing => tracing::info!("stopped"),
            name = signals.stop() => tracing::warn!(signal = name, "asked to stop again: ending at once"),
        }
    }

    /// Where another process listens at the same addresses, or gets the sockets next, new connections are its own from now on; tells how long those
    /// take to come in that were on their way.
    fn leave_ports_to_others(&mut self) -> Duration {
        // Whoever asks how this process is has to hear it of this one.
        let passed_on = [Some(&self.http), self.tcp.as_ref()]
            .into_iter()
            .flatten()
            .filter_map(ListenerTask::leave_to_the_next)
            .count();
        let listeners = [Some(&mut self.http), Some(&mut self.admin), self.tcp.as_mut()];
        let left = passed_on
            + listeners.into_iter().flatten().filter_map(ListenerTask::ask_for_no_more).count();
        if left > 0 { HANDSHAKES_END_WITHIN } else { Duration::ZERO }
    }

    /// Follows a changed configuration file, or keeps everything as it is.
    async fn reload(&self) {
        match self.follow_file().await {
            Ok(changed) => {
                let generation =
                    self.control.generation.taken(&changed.needs_restart, &self.control.metrics);
                for section in changed.needs_restart {
                    tracing::warn!(
                        section,
                        "the configuration changed here too, which a restart will follow"
                    );
                }
                let ReloadSummary { tenants, backends } = changed.reloaded;
                tracing::info!(tenants, backends, generation, "configuration reloaded");
            }
            Err(error) => {
                let text = error.to_string();
                for fault in text.lines() {
                    tracing::error!(fault, "the configuration is not reloaded");
                }
                self.control.generation.refused(&text, &self.control.metrics);
            }
        }
    }

    /// All of it or nothing: what can be refused is refused before anything changes.
    async fn follow_file(&self) -> Result<ReloadOutcome, ServeError> {
        let next = read_config(&self.options)?;
        let mut certificates = Vec::with_capacity(self.doors.len());
        for (tls_acceptor, listener) in self.doors.iter().zip(ACCEPTORS) {
            let read = tls_acceptor.read_certificates();
            if tls_acceptor.tls().is_some() {
                self.control.metrics.observed.certificate_reload(listener, read.is_ok());
            }
            certificates.push(read?);
        }
        let reloaded = self.control.reload(&next).await?;
        // All of it is in force before anything is waited for.
        self.doors.iter().zip(certificates).for_each(|(door, read)| door.present(read));
        self.control.broker.backend_resources.tls_clients.reload().await;
        self.control.record_reload(reloaded.tenants, reloaded.backends).await;
        report_certificates(&self.doors, &self.control.metrics);
        // The filter was parsed with the file, so it is one.
        if let Err(error) = self.logging.set_filter(&next.telemetry.log) {
            tracing::error!(%error, "the log's filter stays as it is");
        }
        Ok(ReloadOutcome { reloaded, needs_restart: config::needs_restart(&self.config, &next) })
    }
}

/// What a reload brought into force.
struct ReloadOutcome {
    reloaded: ReloadSummary,
    needs_restart: Vec<&'static str>,
}

/// From here on what this process commits is its own, for as long as it says that it lives.
async fn join(
    control: &Arc<Control>,
    metrics: &Arc<Metrics>,
    internal: Option<&TcpListener>,
) -> Result<Arc<Node>, ServeError> {
    let config = &control.config;
    let bound = internal.map(TcpListener::local_addr).transpose();
    let bound =
        bound.map_err(|source| ServeError::System { what: "the address of a listener", source })?;
    let address = config.node.advertise.clone().or(bound.map(|address| address.to_string()));
    let settings =
        NodeSettings { id: config.node.id.clone(), lease: config.session.lease, address };
    let node =
        Node::join(settings, Arc::clone(&control.broker.shared.durable), Arc::clone(metrics))
            .await?;
    let replica: Arc<dyn LeaseObserver> = Arc::clone(control) as _;
    tokio::spawn(Arc::clone(&node).keep(Arc::downgrade(&replica)));
    Ok(node)
}

fn listener_ended(what: &'static str, ended: Result<(), tokio::task::JoinError>) -> ServeError {
    let detail = ended.map_or_else(|fault| fault.to_string(), |()| "without a word".to_owned());
    ServeError::ListenerEnded { what, detail }
}

#[cfg(test)]
mod tests {
    #[test]
    fn nobody_of_the_same_user_looks_into_the_process() {
        use rustix::process::{DumpableBehavior, dumpable_behavior};
        super::hide_from_others();
        assert!(matches!(dumpable_behavior(), Ok(DumpableBehavior::NotDumpable)));
    }
}
