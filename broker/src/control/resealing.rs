//! Replaces the seals of an earlier key by seals of the newest one. It does so for stored values
//! that do not expire: settings of backends and issuers, grants, and secrets of the broker as an
//! OAuth client.
//!
//! Runs once after each start. After a change of the root secret it replaces everything that the
//! earlier key sealed; otherwise it finds nothing. A value that another process writes meanwhile
//! stays as that process wrote it.

use std::sync::Arc;

use records::SealedLocation;
use rules::limits::oauth::{RESEAL_PAUSE, RESEAL_RETRY, RESEALED_AT_ONCE};
use storage::StoreError;

use super::{Control, issuers::issuer_seal_context, registry::backend_seal_context};
use crate::oauth::{grant_seal_context, secret_seal_context};

/// Numbers of values that were sealed again, and that no key opens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Resealed {
    done: u64,
    unreadable: u32,
}

impl Control {
    /// Starts to seal again. Must be called inside the runtime, after [`Control::load`].
    pub fn start_resealing(self: &Arc<Self>) {
        let control = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(control) = control.upgrade() {
                match control.reseal().await {
                    Ok(Resealed { done: 0, unreadable: 0 }) => return,
                    Ok(Resealed { done, unreadable }) => {
                        tracing::info!(
                            done,
                            unreadable,
                            "the broker encrypted stored credentials with the newest key"
                        );
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the broker could not encrypt stored credentials with the newest key yet");
                    }
                }
                drop(control);
                tokio::time::sleep(RESEAL_RETRY).await;
            }
        });
    }

    async fn reseal(&self) -> Result<Resealed, StoreError> {
        let (persistence, mut resealed) = (self.persistence(), Resealed::default());
        let (seal, store) = (&persistence.seal, &persistence.store);
        loop {
            let found = store.sealed_before(seal.active(), resealed.unreadable, RESEALED_AT_ONCE);
            let found = persistence.run("list_sealed_values", found).await?;
            if found.is_empty() {
                return Ok(resealed);
            }
            for value in found {
                let context = seal_context(&value.location);
                let opened = seal.open(&context, &value.sealed);
                let Ok(sealed) = opened.and_then(|text| seal.seal(&context, &text)) else {
                    tracing::warn!(location = ?value.location, "no key decrypts a stored credential");
                    resealed.unreadable += 1;
                    continue;
                };
                persistence.run("reseal_value", store.reseal(&value, &sealed)).await?;
                resealed.done += 1;
            }
            // Each new value counts as a change, which changes by operators must overtake.
            tokio::time::sleep(RESEAL_PAUSE).await;
        }
    }
}

/// Returns the name of a row, without which its value does not open.
fn seal_context(location: &SealedLocation) -> String {
    match location {
        SealedLocation::Backend { tenant, backend } => backend_seal_context(tenant, backend),
        SealedLocation::Issuer { tenant, issuer } => issuer_seal_context(tenant, issuer),
        SealedLocation::Grant { key, issuer } => grant_seal_context(key, issuer),
        SealedLocation::Secret(key) => secret_seal_context(key),
    }
}
