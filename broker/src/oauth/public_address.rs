//! The address of the broker for browsers: `auth.resource`, or the listener on this machine.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use arc_swap::ArcSwapOption;

/// Base of the addresses of `/connect` and `/oauth`.
#[derive(Debug, Default)]
pub struct PublicAddress {
    /// `auth.resource`, which a reload can change.
    resource: ArcSwapOption<String>,
    listener: OnceLock<String>,
}

impl PublicAddress {
    pub fn of(resource: Option<&str>) -> Self {
        let address = Self::default();
        address.set_resource(resource);
        address
    }

    pub fn set_resource(&self, resource: Option<&str>) {
        let base = resource.map(|resource| Arc::new(resource.trim_end_matches('/').to_owned()));
        self.resource.store(base);
    }

    /// Sets the address of the listener, which counts if the operator configured none. Only browsers
    /// on this machine can use it.
    pub fn record_listener(&self, listener: SocketAddr, has_tls: bool) {
        if listener.ip().is_loopback() && !has_tls {
            let _set_once = self.listener.set(format!("http://{listener}"));
        }
    }

    /// Returns the base without a slash at its end, or `None` if browsers cannot reach the broker.
    pub fn base(&self) -> Option<String> {
        let resource = self.resource.load();
        resource.as_deref().or(self.listener.get()).cloned()
    }
}
