//! Listens for QUIC connections.
//!
//! A client proves that it owns its address before its handshake begins. The proof is the answer to
//! a Retry packet, or a token of an earlier connection (RFC 9000, 8.1). An unvalidated address gets
//! a Retry packet, which is smaller than the client's packet and costs no memory here.
//!
//! The library alone would exceed the amplification limit of three times: it starts one more full
//! datagram while one byte of the limit is left.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use aws_lc_rs::{hkdf, hmac};
use parking_lot::Mutex;
use quinn::{
    ConnectionError, Endpoint, EndpointConfig, Incoming, VarInt, crypto::rustls::QuicServerConfig,
};
use rustls::ServerConfig;
use tokio::time::timeout;

use super::{
    Limits, QuicConnection, QuicSink, QuicSource, connection_id::TaggedConnectionIds,
    gso::GsoLimitRuntime,
};
use crate::{frame::CloseReason, tls::ServerTls};

/// Reason for a failed bind.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("cannot listen on {address}: {source}")]
    Bind { address: SocketAddr, source: io::Error },
    #[error("the tls configuration cannot be used for quic: {reason}")]
    Tls { reason: String },
}

/// Reason why a client did not become a connection.
#[derive(Debug, thiserror::Error)]
pub enum EstablishError {
    #[error("no handshake and control stream within {limit:?}")]
    Timeout { limit: Duration },
    #[error("the handshake failed: {0}")]
    Failed(#[from] ConnectionError),
}

/// Secret of a listener, of which it derives its keys.
#[derive(Clone, Copy)]
pub struct ListenerSecret<'a> {
    /// Secret of all listeners of a cluster. It must be derived for this purpose alone.
    pub shared: &'a [u8; 32],
    /// Name of this listener in the cluster. It should be the same after a restart.
    pub name: &'a str,
}

#[derive(Debug)]
pub struct QuicListener {
    endpoint: Endpoint,
    tls: Arc<ServerTls>,
    limits: Arc<Limits>,
    /// Configuration for new clients and the TLS configuration it was made from. A reload of the
    /// certificates makes a new pair.
    current: Mutex<(Arc<ServerConfig>, Arc<quinn::ServerConfig>)>,
    token_key: Arc<hkdf::Prk>,
    /// Number of handshakes in progress.
    handshakes: Arc<AtomicUsize>,
}

impl QuicListener {
    /// Binds the listener.
    ///
    /// With the same secret after a restart, clients learn at once that the new process does not
    /// have their connections. Without a secret they detect it only by silence.
    pub fn bind(
        address: SocketAddr,
        tls: Arc<ServerTls>,
        limits: Limits,
        secret: Option<ListenerSecret<'_>>,
    ) -> Result<Self, ListenError> {
        let mut random = [0; 32];
        aws_lc_rs::rand::fill(&mut random).expect("the system's random generator works");
        let secret = secret.unwrap_or(ListenerSecret { shared: &random, name: "" });
        let keys = DerivedKeys::derive(secret);
        let limits = Arc::new(limits);
        let quic = tls.quic();
        let config = server_config(&quic, &limits, &keys.tokens)?;
        let failed = |source| ListenError::Bind { address, source };
        let socket = std::net::UdpSocket::bind(address).map_err(failed)?;
        let endpoint = Endpoint::new(
            keys.endpoint_config(),
            Some(config.clone()),
            socket,
            Arc::new(GsoLimitRuntime),
        )
        .map_err(failed)?;
        Ok(Self {
            endpoint,
            tls,
            limits,
            current: Mutex::new((quic, Arc::new(config))),
            token_key: keys.tokens,
            handshakes: Arc::default(),
        })
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// Returns the TLS configuration: certificates presented and authorities trusted.
    pub fn tls(&self) -> &Arc<ServerTls> {
        &self.tls
    }

    /// Returns the next client, whose address is validated and whose handshake has not started.
    /// Returns `None` once the listener is closed.
    pub async fn accept(&self) -> Option<QuicIncoming> {
        loop {
            let incoming = self.endpoint.accept().await?;
            if !incoming.remote_address_validated() {
                // An error means that the client has already received a Retry. It returns with a
                // proof, or not at all.
                if let Err(error) = incoming.retry() {
                    error.into_incoming().ignore();
                }
            } else if self.handshakes.load(Ordering::Relaxed) >= self.limits.handshakes_max {
                incoming.refuse();
            } else {
                let slot = HandshakeSlot::take(&self.handshakes);
                return Some(QuicIncoming {
                    incoming,
                    config: self.config(),
                    limits: Arc::clone(&self.limits),
                    slot,
                });
            }
        }
    }

    /// Closes all connections at once.
    pub fn close(&self, close_reason: CloseReason) {
        self.endpoint
            .close(VarInt::from_u32(close_reason.quic_code()), close_reason.reason().as_bytes());
    }

    /// Accepts no new clients. Existing connections stay open.
    pub fn stop_accepting(&self) {
        self.endpoint.set_server_config(None);
    }

    /// Waits until the close packets of all connections are sent.
    pub async fn wait_idle(&self) {
        self.endpoint.wait_idle().await;
    }

    /// Returns the configuration with the current certificates. Keeps the old configuration if the
    /// new one is not usable.
    fn config(&self) -> Arc<quinn::ServerConfig> {
        let mut current = self.current.lock();
        let quic = self.tls.quic();
        if !Arc::ptr_eq(&current.0, &quic) {
            match server_config(&quic, &self.limits, &self.token_key) {
                Ok(config) => *current = (quic, Arc::new(config)),
                Err(error) => {
                    tracing::error!(%error, "the quic listener cannot use the new certificates and keeps the old ones")
                }
            }
        }
        Arc::clone(&current.1)
    }
}

fn server_config(
    tls: &Arc<ServerConfig>,
    limits: &Limits,
    token_key: &Arc<hkdf::Prk>,
) -> Result<quinn::ServerConfig, ListenError> {
    let crypto = QuicServerConfig::try_from(Arc::clone(tls))
        .map_err(|error| ListenError::Tls { reason: error.to_string() })?;
    let mut config = quinn::ServerConfig::new(Arc::new(crypto), Arc::clone(token_key) as _);
    config
        .transport_config(limits.server_transport())
        .migration(true)
        .max_incoming(limits.handshakes_max);
    Ok(config)
}

/// Keys derived from the listener's secret.
struct DerivedKeys {
    /// Of this listener alone. With a shared key, each listener would tell an observer the reset
    /// tokens of the connections of the others (RFC 9000, 21.11).
    reset: Arc<hmac::Key>,
    /// Shared: a client may return to another listener with its token.
    tokens: Arc<hkdf::Prk>,
    /// Of this listener alone, so that it sends no reset for the connections of the others.
    connection_ids: hmac::Key,
}

impl DerivedKeys {
    fn derive(secret: ListenerSecret<'_>) -> Self {
        let root = hmac::Key::new(hmac::HMAC_SHA256, secret.shared);
        let derived = |purpose: &[u8]| hmac::sign(&root, purpose);
        let key_for = |purpose: &[u8]| {
            let shared = hmac::Key::new(hmac::HMAC_SHA256, derived(purpose).as_ref());
            let own = hmac::sign(&shared, secret.name.as_bytes());
            hmac::Key::new(hmac::HMAC_SHA256, own.as_ref())
        };
        let tokens = derived(b"quic address tokens");
        Self {
            reset: Arc::new(key_for(b"quic stateless reset")),
            tokens: Arc::new(hkdf::Salt::new(hkdf::HKDF_SHA256, b"").extract(tokens.as_ref())),
            connection_ids: key_for(b"quic connection ids"),
        }
    }

    fn endpoint_config(&self) -> EndpointConfig {
        let mut config = EndpointConfig::new(Arc::clone(&self.reset) as _);
        // The endpoint must recognise the connection ids of an earlier process, or it sends no
        // stateless reset for them.
        let key = self.connection_ids.clone();
        config.cid_generator(move || Box::new(TaggedConnectionIds::new(key.clone())));
        config
    }
}

/// A client whose first packet has arrived.
#[derive(Debug)]
pub struct QuicIncoming {
    incoming: Incoming,
    config: Arc<quinn::ServerConfig>,
    limits: Arc<Limits>,
    slot: HandshakeSlot,
}

impl QuicIncoming {
    pub fn remote(&self) -> SocketAddr {
        self.incoming.remote_address()
    }

    /// Refuses the client before any work is done for it.
    pub fn refuse(self) {
        self.incoming.refuse();
    }

    /// Makes the handshake and accepts the control stream. The client has `limit` for both.
    pub async fn establish(
        self,
        limit: Duration,
    ) -> Result<(QuicConnection, QuicSource, QuicSink), EstablishError> {
        let Self { incoming, config, limits, slot } = self;
        let establishing = async {
            let connection = QuicConnection::new(incoming.accept_with(config)?.await?, &limits);
            drop(slot);
            let (source, sink) = connection.accept_control().await?;
            Ok((connection, source, sink))
        };
        timeout(limit, establishing).await.unwrap_or(Err(EstablishError::Timeout { limit }))
    }
}

/// Counts one handshake for as long as it lasts.
#[derive(Debug)]
struct HandshakeSlot(Arc<AtomicUsize>);

impl HandshakeSlot {
    fn take(handshakes: &Arc<AtomicUsize>) -> Self {
        handshakes.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(handshakes))
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what the keys for resets, connection ids and address tokens make of a text.
    fn made(shared: u8, name: &str) -> [Vec<u8>; 3] {
        let keys = DerivedKeys::derive(ListenerSecret { shared: &[shared; 32], name });
        let mut token = [0; 32];
        let okm = keys.tokens.expand(&[b"text"], hkdf::HKDF_SHA256).unwrap();
        okm.fill(&mut token).unwrap();
        let sign = |key: &hmac::Key| hmac::sign(key, b"text").as_ref().to_vec();
        [sign(&keys.reset), sign(&keys.connection_ids), token.to_vec()]
    }

    #[test]
    fn listeners_with_one_secret_share_only_the_key_of_address_tokens() {
        let (one, other) = (made(1, "10.0.0.1:7400"), made(1, "10.0.0.2:7400"));
        assert_eq!(one, made(1, "10.0.0.1:7400"), "the same after a restart");
        assert_ne!(one[0], other[0], "stateless resets");
        assert_ne!(one[1], other[1], "connection ids");
        assert_eq!(one[2], other[2], "address tokens");
        assert_ne!(one[2], made(2, "10.0.0.1:7400")[2]);
    }
}
