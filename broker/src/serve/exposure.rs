//! Reports about listeners for operators: certificates that expire soon, and listeners without
//! protection.

use std::net::SocketAddr;

use config::{Certificate, Config};
use rules::limits::CERTIFICATE_ENDS_SOON;

use crate::{listeners::tls_acceptor::TlsAcceptor, metrics::Metrics};

/// Users of the TLS acceptors, as metrics name them.
pub(super) const ACCEPTORS: [&str; 2] = ["clients", "operators"];

/// Reports the expiry of each certificate to metrics, and to the log when it is near.
pub(super) fn report_certificates(acceptors: &[TlsAcceptor; 2], metrics: &Metrics) {
    for (tls_acceptor, listener) in acceptors.iter().zip(ACCEPTORS) {
        let Some(ends_at) = tls_acceptor.certificate_ends_at() else { continue };
        metrics.observability.certificate(listener, ends_at);
        let remaining = ends_at.saturating_sub(jiff::Timestamp::now().as_second());
        if remaining < i64::try_from(CERTIFICATE_ENDS_SOON.as_secs()).unwrap_or(i64::MAX) {
            tracing::error!(
                listener,
                days_left = remaining / 86_400,
                "the certificate that listeners present ends soon, or has ended"
            );
        }
    }
}

/// Warns of certificates that no client can verify, and of listeners without TLS or without
/// authentication. `data`: addresses of the listeners for clients. The admin listener warns itself.
pub(super) fn warn_of_open_listeners(config: &Config, data: impl Iterator<Item = SocketAddr>) {
    if config.tls.certificate == Some(Certificate::SelfSigned) {
        tracing::warn!(
            "the listeners present a certificate that clients cannot verify: tls.self_signed is for development"
        );
    }
    if config.tls.certificate.is_some() && !config.tls.require_https {
        tracing::warn!(
            "the listeners also accept connections without TLS: tls.require_https is false"
        );
    }
    for listen in data.filter(|address| !config.auth.required && !address.ip().is_loopback()) {
        tracing::warn!(%listen, "every client that reaches the broker acts as tenant default: auth.required is false");
    }
}
