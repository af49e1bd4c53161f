//! The address of the broker for browsers: `auth.resource`, or the listener on this machine.

use std::{net::SocketAddr, sync::OnceLock};

/// Base of the addresses of `/connect` and `/oauth`.
#[derive(Debug, Default)]
pub struct PublicAddress(OnceLock<String>);

impl PublicAddress {
    pub fn of(resource: Option<&str>) -> Self {
        let address = Self::default();
        if let Some(resource) = resource {
            let _set_once = address.0.set(resource.trim_end_matches('/').to_owned());
        }
        address
    }

    /// Sets the address of the listener, unless the operator configured one. Only browsers on this
    /// machine can use it.
    pub fn record_listener(&self, listener: SocketAddr, has_tls: bool) {
        if listener.ip().is_loopback() && !has_tls {
            let _configured_one_stays = self.0.set(format!("http://{listener}"));
        }
    }

    /// Returns the base without a slash at its end, or `None` if browsers cannot reach the broker.
    pub fn base(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}
