//! Settings of the HTTP client: time limits, connections kept, trust and egress.

use std::{sync::Arc, time::Duration};

use rustls::pki_types::CertificateDer;

use crate::{egress::EgressPolicy, resolver::Resolver};

#[derive(Debug, Clone)]
pub struct HttpClientConfig {
    /// Time limit for name resolution, connect and TLS handshake together.
    pub connect_timeout: Duration,
    /// Time an unused connection is kept. It should be shorter than the idle timeout of servers,
    /// often 5 s: a request sent while the server closes the connection has an unknown result.
    pub idle_timeout: Duration,
    /// Unused connections kept for one scheme, host and port.
    pub idle_per_host: usize,
    /// Maximum time between two lookups for a connection. A connection gets no new request if its
    /// name has other addresses for a third of this time.
    pub address_check_interval: Duration,
    /// Resolver of names. The default is shared by all clients of the process.
    pub resolver: Resolver,
    /// Certificate authorities trusted in addition to those of the system.
    pub extra_roots: Vec<CertificateDer<'static>>,
    pub egress: Arc<EgressPolicy>,
    /// Largest response head, in bytes. At least 8 KiB are always accepted.
    pub head_bytes_max: usize,
}

impl Default for HttpClientConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(4),
            idle_per_host: 64,
            address_check_interval: Duration::from_secs(45 * 60),
            resolver: Resolver::shared().clone(),
            extra_roots: Vec::new(),
            egress: Arc::new(EgressPolicy::default()),
            head_bytes_max: 64 * 1024,
        }
    }
}
