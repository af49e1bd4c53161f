//! The settings of sign-in in force. Listeners read them for each request, and a reload or an
//! operator replaces them.
//!
//! Invariant: a reader that sees the new edition sees the new settings.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::{ArcSwap, Guard};
use config::AuthConfig;

/// The settings of sign-in in force. Clones share them.
#[derive(Debug, Clone)]
pub struct AuthSettings(Arc<SettingsInForce>);

#[derive(Debug)]
struct SettingsInForce {
    config: ArcSwap<AuthConfig>,
    /// Number of replacements so far.
    edition: AtomicU64,
}

impl AuthSettings {
    pub fn new(config: AuthConfig) -> Self {
        Self(Arc::new(SettingsInForce {
            config: ArcSwap::from_pointee(config),
            edition: AtomicU64::new(0),
        }))
    }

    /// Returns the settings in force.
    pub fn load(&self) -> Guard<Arc<AuthConfig>> {
        self.0.config.load()
    }

    /// Returns the number of replacements. A check that was made under an edition stays valid while
    /// the edition is the same. The caller reads it before the check.
    pub fn edition(&self) -> u64 {
        self.0.edition.load(Ordering::Acquire)
    }

    pub(crate) fn replace(&self, config: AuthConfig) {
        self.0.config.store(Arc::new(config));
        self.0.edition.fetch_add(1, Ordering::Release);
    }
}
