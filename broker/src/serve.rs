//! The life of one broker process: configuration, log, store, broker, listeners, `ready`, signals,
//! drain, exit code. Called by the command line. It stops everything that it starts.
//!
//! Invariants:
//! - The broker serves nothing before all stored and declared entries are in force. It prints the
//!   `ready` line after that.
//! - Every error at start ends the process before `ready`, with an exit code and a message.

mod blocking_thread;
mod check_config;
mod config_files;
mod config_folder;
mod database_wait;
mod demo;
mod descriptor_limit;
mod embedded;
mod error;
mod exposure;
mod inherited_sockets;
mod isolation;
mod listener_certificates;
mod listener_set;
mod listener_task;
mod memory_return;
mod reload;
mod signals;
mod stores;

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use config::{Config, ConfigSource, sandbox::SandboxMode};
use records::RestoreSummary;
use rules::limits::{ADMIN_LIST_MAX, CLOSE_WAIT, shutdown::FORWARDED_ANSWERED_WITHIN};
use tokio::time::timeout;

pub use self::{check_config::check_config, embedded::EmbeddedBroker, error::ServeError};
use self::{
    config_files::ConfigFiles,
    database_wait::DatabaseWait,
    exposure::{report_certificates, warn_of_open_listeners},
    inherited_sockets::InheritedSockets,
    listener_certificates::ListenerCertificates,
    listener_set::{BoundListeners, Listeners},
    signals::{Signal, Signals},
    stores::{OpenDatabase, open_root},
};
use crate::{
    auth::{Keyring, Keys, OpenRoot},
    broker::{Broker, BrokerParts},
    control::{Control, ControlParts},
    metrics::Metrics,
    persistence::{
        self, Stores,
        node::{LeaseObserver, Node, NodeSettings},
    },
    telemetry::{self, LogFilterHandle},
};

/// Options from the command line.
#[derive(Debug, Clone, Default)]
pub struct ServeOptions {
    /// Path of the configuration file. `None`: the defaults.
    pub config: Option<PathBuf>,
    /// True to register the bundled demo backend and print how to call it.
    pub demo: bool,
}

/// Runs the broker until a signal or a drain stops it.
pub fn run(options: ServeOptions) -> ExitCode {
    exit(start_and_stop(options))
}

/// Updates the database schema and exits.
pub fn migrate(file: Option<&Path>) -> ExitCode {
    let migrated = || {
        let config = config_of_command(file)?;
        runtime()?.block_on(async {
            let database = stores::migrate(&config).await?;
            print_line(&format!("the schema of {database} is up to date"));
            Ok(())
        })
    };
    exit(migrated())
}

/// Ends the state of a restored database that must not continue, and exits.
pub fn after_restore(file: Option<&Path>) -> ExitCode {
    let ended = || {
        let config = config_of_command(file)?;
        let RestoreSummary { sessions, tasks, approvals } =
            runtime()?.block_on(stores::end_restored_state(&config))?;
        print_line(&format!(
            "ended sessions: {sessions}, approvals: {approvals}; unfinished tasks that count as sent: {tasks}"
        ));
        Ok(())
    };
    exit(ended())
}

/// Reads the configuration of a command that uses the database itself.
fn config_of_command(file: Option<&Path>) -> Result<Config, ServeError> {
    let source = ConfigSource::read(file)?;
    let warnings = source.ignored_variables();
    let warnings: String =
        warnings.iter().map(|warning| format!("mcp-broker: {warning}\n")).collect();
    let _unread = io::stderr().write_all(warnings.as_bytes());
    Ok(source.load([])?)
}

/// Prints the outcome of a command. A closed pipe is not an error.
fn print_line(text: &str) {
    let _unread = writeln!(io::stdout(), "{text}");
}

fn exit(ended: Result<(), ServeError>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Not through the log, which may not be set up, and must not hide the error from the
            // user. A closed standard error must not change the exit code.
            let lines: String =
                error.to_string().lines().map(|line| format!("mcp-broker: {line}\n")).collect();
            let _unread = io::stderr().write_all(lines.as_bytes());
            error.exit_code().into()
        }
    }
}

fn start_and_stop(options: ServeOptions) -> Result<(), ServeError> {
    let (files, config) = ConfigFiles::read(&options)?;
    let inherited = InheritedSockets::take()?;
    // Dropped at the end in any case.
    let (logging, _unwritten) = telemetry::init(&config.telemetry)?;
    files.warn_of_ignored_variables();
    isolation::disable_process_inspection();
    descriptor_limit::raise(config.limits.connections);
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        tokio::spawn(blocking_thread::keep_alive());
        let mut signals = Signals::install()
            .map_err(|source| ServeError::System { what: "signal handlers", source })?;
        let mut running = tokio::select! {
            started = RunningBroker::start(files, config, Some(logging), inherited, None) => started?,
            name = signals.stop() => {
                tracing::info!(signal = name, "stopped before it was ready");
                return Ok(());
            }
        };
        running.announce();
        running.run_until_stopped(&mut signals).await?;
        running.drain(&mut signals).await;
        Ok(())
    });
    // Drops every remaining task, and with it every child process, before the process ends.
    runtime.shutdown_timeout(CLOSE_WAIT);
    ended
}

fn runtime() -> Result<tokio::runtime::Runtime, ServeError> {
    let built =
        tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("broker").build();
    built.map_err(|source| ServeError::System { what: "threads", source })
}

/// A started broker.
struct RunningBroker {
    files: ConfigFiles,
    /// Configuration at start. Changed sections of a reload that need a restart are compared with
    /// it.
    config: Arc<Config>,
    broker: Arc<Broker>,
    control: Arc<Control>,
    node: Arc<Node>,
    certificates: ListenerCertificates,
    listeners: Listeners,
}

impl RunningBroker {
    /// Starts on these stores, or opens those of the configuration.
    async fn start(
        mut files: ConfigFiles,
        config: Config,
        logging: Option<LogFilterHandle>,
        inherited: InheritedSockets,
        stores: Option<Stores>,
    ) -> Result<Self, ServeError> {
        let config = Arc::new(config);
        tracing::info!(node = %config.node.id, version = env!("CARGO_PKG_VERSION"), "starting");
        let certificates = ListenerCertificates::load(&config)?;
        let acceptors = certificates.acceptors();
        let wait = DatabaseWait::new(&config);
        let (stores, root) = open_stores(&config, stores, &wait).await?;
        let control = assemble(&config, &root.keys, stores, logging)?;
        let (broker, metrics) = (Arc::clone(&control.broker), Arc::clone(&control.metrics));
        let bound = BoundListeners::bind(&config, &acceptors[0], &root.keys.quic, inherited)?;
        bound.close_to_children(&broker);
        let node = join(&control, &metrics, bound.address_for_replicas.clone(), &wait).await?;
        load(&control, &root, &mut files, &wait).await?;
        broker.start_tasks();
        if config.stdio.sandbox == SandboxMode::Off {
            tracing::warn!(
                "stdio.sandbox is off: every child process can read the secrets of the broker and of all tenants"
            );
        }
        let listeners = bound.serve(&broker, &control, acceptors)?;
        warn_of_open_listeners(&config, listeners.data());
        report_certificates(acceptors, &metrics);
        start_maintenance(&control);
        broker
            .shared
            .oauth
            .address
            .record_listener(listeners.http.address, config.tls.certificate.is_some());
        Ok(Self { files, config, broker, control, node, certificates, listeners })
    }

    /// Prints the first line on standard output, which the starting process waits for.
    fn announce(&self) {
        let line = format!("ready {}\n", self.listeners.addresses());
        let mut out = io::stdout().lock();
        if let Err(error) = out.write_all(line.as_bytes()).and_then(|()| out.flush()) {
            tracing::warn!(%error, "the ready line could not be written");
        }
        let Listeners { http, admin, .. } = &self.listeners;
        tracing::info!(http = %http.address, admin = %admin.address, "ready");
        if self.files.has_demo() {
            let _unread = io::stderr().write_all(demo::instructions(http.address).as_bytes());
        }
    }

    async fn run_until_stopped(&mut self, signals: &mut Signals) -> Result<(), ServeError> {
        let is_following = self.files.has_folder() || self.certificates.are_files();
        loop {
            // Every branch is cancel-safe: the source keeps signals, a requested drain stays
            // requested, and the end of a task is kept.
            let stopped_by = tokio::select! { biased;
                signal = signals.next() => match signal {
                    Signal::Stop(name) => Some(name),
                    Signal::Reload => self.reload(signals).await,
                },
                () = follow_due(is_following, self.config.include.interval) => {
                    self.follow_changed_files(signals).await
                }
                () = self.broker.drain_requested() => {
                    tracing::info!("the admin API requested a drain");
                    return Ok(());
                }
                ended = self.listeners.ended() => return Err(ended),
            };
            if let Some(name) = stopped_by {
                tracing::info!(signal = name, "the process received a stop signal");
                return Ok(());
            }
        }
    }

    async fn follow_changed_files(&mut self, signals: &mut Signals) -> Option<&'static str> {
        let stopped_by = self.follow_folder(signals).await;
        if stopped_by.is_none() {
            self.certificates.follow(&self.control).await;
        }
        stopped_by
    }

    /// Applies what changed in the folder of the configuration. Returns the name of a stop signal
    /// that ended the checks of its files. These may be many, or wait for a file. A change that has
    /// begun is applied to its end.
    async fn follow_folder(&mut self, signals: &mut Signals) -> Option<&'static str> {
        let change = tokio::select! { biased;
            name = signals.stop() => return Some(name),
            () = self.broker.drain_requested() => return None,
            change = self.files.changes(&self.control) => change,
        };
        if let Some(change) = change {
            self.files.apply(change, &self.control).await;
        }
        None
    }

    /// Drains the broker: turns readiness off, accepts no new sessions and calls, closes streams,
    /// and waits for calls in flight. Then closes the listeners and the store. Until then listeners
    /// accept connections, because a call in flight may need its client's answer to a question.
    async fn drain(mut self, signals: &mut Signals) {
        let grace = self.config.shutdown.grace;
        tracing::info!(grace = %config::units::format_duration(grace), "draining");
        self.broker.drain();
        self.node.drain();
        let open_for = self.config.shutdown.readiness_delay.max(self.listeners.hand_off_ports());
        let grace_ends = tokio::time::Instant::now() + grace;
        let broker = Arc::clone(&self.broker);
        let giving_up = async {
            let from = grace_ends.max(tokio::time::Instant::now());
            tokio::time::sleep_until(from + FORWARDED_ANSWERED_WITHIN).await;
            broker.give_up_forwarded();
            std::future::pending::<()>().await;
        };
        let closing = async {
            let (finished, ()) =
                tokio::join!(self.broker.finish_drain(grace), tokio::time::sleep(open_for));
            if !finished {
                tracing::warn!(
                    "the grace period has ended: the broker gives up the remaining requests"
                );
            }
            self.broker.close_streams();
            tokio::select! {
                () = self.listeners.close(&broker.shared, grace_ends) => {}
                () = giving_up => {}
            }
            self.broker.give_up_forwarded();
            self.node.leave().await;
            if timeout(CLOSE_WAIT, self.control.close()).await.is_err() {
                tracing::warn!("the store did not close in time");
            }
        };
        tokio::select! {
            () = closing => tracing::info!("stopped"),
            name = signals.stop() => tracing::warn!(signal = name, "the process received a second stop signal and ends at once"),
        }
    }
}

/// Waits until the files that the broker follows are due. Without any, waits forever. Cancel-safe: a
/// dropped wait only delays the next look.
async fn follow_due(is_following: bool, interval: Duration) {
    if is_following {
        tokio::time::sleep(interval).await;
    } else {
        std::future::pending().await
    }
}

/// Opens the root key in these stores, or opens the configured stores. The store locks an SQLite
/// database. Only then may the secret next to it be created.
async fn open_stores(
    config: &Config,
    stores: Option<Stores>,
    wait: &DatabaseWait,
) -> Result<(Stores, OpenRoot), ServeError> {
    if let Some(stores) = stores {
        let root = open_root(config, stores.durable.as_ref(), wait).await?;
        return Ok((stores, root));
    }
    let database = OpenDatabase::open(config, config.storage.migrate_on_start).await?;
    let root = open_root(config, database.durable(), wait).await?;
    Ok((database.into_stores(config, &root.keys).await?, root))
}

/// Creates the broker, and the access of operators to it.
fn assemble(
    config: &Arc<Config>,
    keys: &Keys,
    stores: Stores,
    logging: Option<LogFilterHandle>,
) -> Result<Arc<Control>, ServeError> {
    let keyring = Arc::new(Keyring::new(keys.api_key.clone()));
    let metrics = Arc::new(Metrics::new(config.telemetry.tenant_labels));
    let parts = BrokerParts {
        config: Arc::clone(config),
        metrics: Arc::clone(&metrics),
        keys: keys.clone(),
        keyring: Arc::clone(&keyring),
        stores,
    };
    let parts = ControlParts {
        broker: Broker::new(parts)?,
        keyring,
        keys: keys.clone(),
        config: Arc::clone(config),
        metrics,
        log: logging,
        list_max: ADMIN_LIST_MAX,
    };
    Ok(Control::new(parts))
}

/// Joins the replicas. This process owns what it commits from now on, as long as it renews its
/// lease.
async fn join(
    control: &Arc<Control>,
    metrics: &Arc<Metrics>,
    address: Option<String>,
    wait: &DatabaseWait,
) -> Result<Arc<Node>, ServeError> {
    let config = &control.config;
    let settings =
        NodeSettings { id: config.node.id.clone(), lease: config.session.lease, address };
    let persistence = &control.broker.shared.persistence;
    let join =
        async || Node::join(settings.clone(), Arc::clone(persistence), Arc::clone(metrics)).await;
    let node = wait.repeat(join).await?;
    let replica: Arc<dyn LeaseObserver> = Arc::clone(control) as _;
    tokio::spawn(Arc::clone(&node).keep(Arc::downgrade(&replica)));
    Ok(node)
}

/// Loads the stored and declared entries, and stores the root key if the database lacks it.
async fn load(
    control: &Control,
    root: &OpenRoot,
    files: &mut ConfigFiles,
    wait: &DatabaseWait,
) -> Result<(), ServeError> {
    let loaded = wait.repeat(async || control.load().await).await?;
    let store = control.broker.shared.persistence.store.as_ref();
    wait.repeat(async || root.record(store).await).await?;
    files.follow(control).await;
    control.warn_of_unused_settings().await;
    tracing::info!(
        tenants = loaded.tenants,
        keys = loaded.keys,
        backends = loaded.backends,
        "loaded"
    );
    Ok(())
}

/// Starts the work that no request waits for.
fn start_maintenance(control: &Arc<Control>) {
    control.start_store_sync();
    control.start_audit_maintenance();
    control.start_resealing();
    tokio::spawn(memory_return::run());
    tokio::spawn(persistence::sweep(
        Arc::clone(&control.broker.shared.persistence),
        Arc::clone(&control.config),
        Arc::clone(&control.metrics),
    ));
}
