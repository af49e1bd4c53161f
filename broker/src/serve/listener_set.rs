//! All listeners of a process: bound together, started together, and closed in the order of a drain.

use std::{fmt::Write as _, net::SocketAddr, sync::Arc, time::Duration};

use config::Config;
use futures_util::future::join_all;
use rules::limits::{CLOSE_WAIT, shutdown::HANDSHAKES_END_WITHIN};
use tokio::{
    net::TcpListener,
    task::JoinError,
    time::{Instant, sleep, sleep_until},
};
use transport::quic::QuicListener;

use super::{
    error::ServeError,
    inherited_sockets::InheritedSockets,
    isolation,
    listener_task::{BoundSocket, ListenerTask, bind, bind_or_inherit, bind_quic, ended},
};
use crate::{
    broker::Broker,
    control::Control,
    listeners::{self, tls_acceptor::TlsAcceptor},
    sessions::shared::Shared,
};

/// Sockets of all listeners, of which none serves yet.
pub(super) struct BoundListeners {
    http: BoundSocket,
    admin: BoundSocket,
    tcp: Option<BoundSocket>,
    quic: Option<QuicListener>,
    internal: Option<TcpListener>,
    /// Address at which other replicas reach this process, if they can.
    pub(super) address_for_replicas: Option<String>,
}

impl BoundListeners {
    /// Binds the configured addresses. Sockets of the starting process are used first.
    pub(super) fn bind(
        config: &Config,
        clients: &TlsAcceptor,
        quic_secret: &[u8; 32],
        mut inherited: InheritedSockets,
    ) -> Result<Self, ServeError> {
        let listen = &config.listen;
        let mut bind_tcp =
            |key, address| bind_or_inherit(key, address, listen.reuse_port, &mut inherited);
        let http = bind_tcp("listen.http", listen.http)?;
        let admin = bind_tcp("listen.admin", listen.admin)?;
        let tcp = listen.tcp.map(|address| bind_tcp("listen.tcp", address)).transpose()?;
        inherited.check_all_used()?;
        let internal =
            listen.internal.map(|address| bind("listen.internal", address, false)).transpose()?;
        let own = internal.as_ref().map(internal_address).transpose()?;
        let address_for_replicas =
            config.node.advertise.clone().or(own.map(|address| address.to_string()));
        let quic = bind_quic(config, clients, quic_secret, address_for_replicas.as_deref())?;
        Ok(Self { http, admin, tcp, quic, internal, address_for_replicas })
    }

    /// Forbids children to connect to the listeners for operators and replicas.
    pub(super) fn close_to_children(&self, broker: &Broker) {
        isolation::close_ports_to_children(broker, &self.admin, self.internal.as_ref());
    }

    /// Starts to serve on every socket.
    pub(super) fn serve(
        self,
        broker: &Arc<Broker>,
        control: &Arc<Control>,
        [clients, operators]: &[TlsAcceptor; 2],
    ) -> Result<Listeners, ServeError> {
        let http = ListenerTask::start(self.http, |socket, stop| {
            listeners::http::serve(Arc::clone(broker), socket, clients.clone(), stop)
        })?;
        let admin = ListenerTask::start(self.admin, |socket, stop| {
            listeners::admin::serve(Arc::clone(control), socket, operators.clone(), stop)
        })?;
        let tcp = self.tcp.map(|bound| {
            ListenerTask::start(bound, |socket, stop| {
                listeners::duplex::tcp::serve(Arc::clone(broker), socket, clients.clone(), stop)
            })
        });
        let quic = self.quic.map(|bound| {
            let address = bound.local_addr().map_err(no_address)?;
            Ok::<_, ServeError>(ListenerTask::spawn(address, |stop| {
                listeners::duplex::quic::serve(Arc::clone(broker), bound, stop)
            }))
        });
        let internal = self.internal.map(|bound| {
            let address = internal_address(&bound)?;
            Ok::<_, ServeError>(ListenerTask::spawn(address, |stop| {
                listeners::replicas::serve(Arc::clone(broker), bound, stop)
            }))
        });
        Ok(Listeners {
            http,
            admin,
            tcp: tcp.transpose()?,
            quic: quic.transpose()?,
            internal: internal.transpose()?,
        })
    }
}

/// The serving listeners.
pub(super) struct Listeners {
    pub(super) http: ListenerTask,
    pub(super) admin: ListenerTask,
    tcp: Option<ListenerTask>,
    quic: Option<ListenerTask>,
    internal: Option<ListenerTask>,
}

impl Listeners {
    /// Returns the addresses, as the `ready` line has them.
    pub(super) fn addresses(&self) -> String {
        let mut text = format!("http={} admin={}", self.http.address, self.admin.address);
        let others = [("tcp", &self.tcp), ("quic", &self.quic), ("internal", &self.internal)];
        for (name, listener) in others {
            if let Some(listener) = listener {
                let _infallible = write!(text, " {name}={}", listener.address);
            }
        }
        text
    }

    /// Returns the addresses for clients.
    pub(super) fn data(&self) -> impl Iterator<Item = SocketAddr> {
        let others = [&self.tcp, &self.quic].into_iter().flatten();
        [&self.http].into_iter().chain(others).map(|listener| listener.address)
    }

    /// Resolves when a listener ends by itself. Cancel-safe.
    pub(super) async fn ended(&mut self) -> ServeError {
        let Self { http, admin, tcp, quic, internal } = self;
        let (what, ended) = tokio::select! { biased;
            ended = &mut http.task => ("http", ended),
            ended = &mut admin.task => ("admin", ended),
            ended = ended(tcp) => ("tcp", ended),
            ended = ended(quic) => ("quic", ended),
            ended = ended(internal) => ("internal", ended),
        };
        listener_ended(what, ended)
    }

    /// Leaves new connections to another process that shares the ports, or that gets the sockets
    /// next. Returns the time until the handshakes in progress are over.
    pub(super) fn hand_off_ports(&mut self) -> Duration {
        // An inherited admin socket is not left to the next process: a probe of this process must
        // reach this process.
        let passed_on = [Some(&self.http), self.tcp.as_ref()]
            .into_iter()
            .flatten()
            .filter_map(ListenerTask::hand_off)
            .count();
        let listeners = [Some(&mut self.http), Some(&mut self.admin), self.tcp.as_mut()];
        let released = passed_on
            + listeners.into_iter().flatten().filter_map(ListenerTask::release_shared_port).count();
        if released > 0 { HANDSHAKES_END_WITHIN } else { Duration::ZERO }
    }

    /// Closes all listeners, first those of clients. That of operators is the last one. Requests that
    /// other replicas run for clients have until `end`.
    pub(super) async fn close(&mut self, shared: &Shared, end: Instant) {
        let others = [&mut self.tcp, &mut self.quic].into_iter().flatten();
        let of_clients = [&mut self.http].into_iter().chain(others);
        join_all(of_clients.map(|listener| listener.close(clients_over(shared, end)))).await;
        for listener in self.internal.iter_mut().chain([&mut self.admin]) {
            listener.close(sleep(CLOSE_WAIT)).await;
        }
    }
}

/// Resolves when the connections of clients have had their time: once no request waits for another
/// replica, or at `end`, they have a moment to close. The answer of another replica for a client that
/// takes nothing of it is cut after such a moment.
async fn clients_over(shared: &Shared, end: Instant) {
    let forwarded = &shared.forwarded;
    let closed_by = end.max(Instant::now()) + CLOSE_WAIT;
    forwarded.close(); // so that `wait` resolves
    let none_forwarded = async {
        loop {
            forwarded.wait().await;
            sleep(CLOSE_WAIT).await;
            // A last request may have come meanwhile.
            if forwarded.is_empty() {
                return;
            }
        }
    };
    tokio::select! {
        () = none_forwarded => {}
        () = sleep_until(closed_by) => {}
        never = shared.relayed_streams.cut_resting(CLOSE_WAIT) => match never {},
    }
}

fn internal_address(listener: &TcpListener) -> Result<SocketAddr, ServeError> {
    listener.local_addr().map_err(no_address)
}

fn no_address(source: std::io::Error) -> ServeError {
    ServeError::System { what: "the address of a listener", source }
}

fn listener_ended(what: &'static str, ended: Result<(), JoinError>) -> ServeError {
    let detail = ended.map_or_else(|fault| fault.to_string(), |()| "without an error".to_owned());
    ServeError::ListenerEnded { what, detail }
}
