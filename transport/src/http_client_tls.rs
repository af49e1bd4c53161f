//! The TLS configuration of the HTTP client. It always verifies certificates, against the authorities
//! of the system and the extra ones.
//!
//! A read error may leave out authorities of the system, for example if no descriptor is free. A
//! later connect then reads them again, so that the client does not lack them for life.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use rustls::{ClientConfig, pki_types::CertificateDer};
use tokio::{task::spawn_blocking, time::Instant};
use tokio_rustls::TlsConnector;

use crate::{
    peer::PeerIdentityError,
    tls::{
        ClientIdentity,
        trust::{self, SystemRoots, without_resumption},
    },
};

/// Minimum time between two reads of the authorities.
const READ_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum TlsSetupError {
    #[error("extra root certificate {position} is not usable: {source}")]
    Root { position: usize, source: rustls::Error },
    #[error("the tls library refused its configuration: {0}")]
    Provider(rustls::Error),
    #[error(transparent)]
    Peer(#[from] PeerIdentityError),
}

pub(crate) struct HttpClientTls {
    read: Box<dyn Fn() -> SystemRoots + Send + Sync>,
    extra_roots: Vec<CertificateDer<'static>>,
    identity: Option<Arc<ClientIdentity>>,
    current: Mutex<CurrentTls>,
}

struct CurrentTls {
    connector: TlsConnector,
    /// Number of authorities.
    authorities: usize,
    /// Time from which the authorities are read again. `None`: no read error left any out.
    read_again_at: Option<Instant>,
}

impl HttpClientTls {
    pub(crate) fn new(
        extra_roots: Vec<CertificateDer<'static>>,
        identity: Option<Arc<ClientIdentity>>,
    ) -> Result<Self, TlsSetupError> {
        Self::reading(Box::new(trust::system_roots), extra_roots, identity)
    }

    /// Creates a configuration with the authorities of the system that `read` returns.
    fn reading(
        read: Box<dyn Fn() -> SystemRoots + Send + Sync>,
        extra_roots: Vec<CertificateDer<'static>>,
        identity: Option<Arc<ClientIdentity>>,
    ) -> Result<Self, TlsSetupError> {
        let current = built(read(), &extra_roots, identity.clone())?;
        Ok(Self { read, extra_roots, identity, current: Mutex::new(current) })
    }

    /// Returns the connector for a new connection.
    pub(crate) async fn connector(self: &Arc<Self>) -> TlsConnector {
        let connector = {
            let mut current = self.current.lock();
            let now = Instant::now();
            if current.read_again_at.is_none_or(|at| now < at) {
                return current.connector.clone();
            }
            current.read_again_at = Some(now + READ_INTERVAL);
            current.connector.clone()
        };
        let tls = Arc::clone(self);
        let reading =
            spawn_blocking(move || built((tls.read)(), &tls.extra_roots, tls.identity.clone()));
        let Ok(Ok(renewed)) = reading.await else { return connector };
        let mut current = self.current.lock();
        // Another read error may leave out more than the one before.
        if renewed.read_again_at.is_none() || renewed.authorities > current.authorities {
            *current = renewed;
        }
        current.connector.clone()
    }
}

fn built(
    SystemRoots { store: mut roots, may_lack_some }: SystemRoots,
    extra_roots: &[CertificateDer<'static>],
    identity: Option<Arc<ClientIdentity>>,
) -> Result<CurrentTls, TlsSetupError> {
    for (index, root) in extra_roots.iter().enumerate() {
        roots
            .add(root.clone())
            .map_err(|source| TlsSetupError::Root { position: index + 1, source })?;
    }
    let authorities = roots.len();
    let builder = ClientConfig::builder_with_provider(trust::provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsSetupError::Provider)?
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => without_resumption(builder.with_client_cert_resolver(identity)),
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let read_again_at = may_lack_some.then(|| Instant::now() + READ_INTERVAL);
    Ok(CurrentTls { connector: TlsConnector::from(Arc::new(config)), authorities, read_again_at })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rustls::RootCertStore;
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn authorities_are_read_again_until_no_read_error_leaves_any_out() {
        let reads = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reads);
        let read = move || {
            let may_lack_some = counted.fetch_add(1, Ordering::Relaxed) < 2;
            SystemRoots { store: RootCertStore::empty(), may_lack_some }
        };
        let tls = HttpClientTls::reading(Box::new(read), Vec::new(), None).unwrap();
        let tls = Arc::new(tls);
        let connected = async || {
            let config = Arc::clone(tls.connector().await.config());
            (config, reads.load(Ordering::Relaxed))
        };
        let (first, _) = connected().await;
        let (same, count) = connected().await;
        assert!(Arc::ptr_eq(&first, &same) && count == 1, "the interval is not over");
        advance(READ_INTERVAL).await;
        assert_eq!(connected().await.1, 2);
        advance(READ_INTERVAL).await;
        let (last, count) = connected().await;
        assert!(!Arc::ptr_eq(&first, &last) && count == 3, "the new authorities are in force");
        advance(READ_INTERVAL).await;
        let (same, count) = connected().await;
        assert!(Arc::ptr_eq(&last, &same) && count == 3, "none is left out");
    }
}
