//! Seals again, with the newest seal key, what an earlier key sealed and what has no end: settings
//! of backends and issuers, grants, and secrets of the broker as an OAuth client.
//!
//! Runs once after each start. After a change of the root secret it replaces everything that the
//! earlier key sealed; otherwise it finds nothing. A value that another process writes meanwhile
//! stays as that process wrote it.

use std::sync::Arc;

use records::SealedPlace;
use rules::limits::oauth::{RESEAL_RETRY, RESEALED_AT_ONCE};
use storage::StoreError;

use super::{Control, issuers::issuer_place, registry::backend_place};
use crate::oauth::{grant_place, secret_place};

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
                            "credentials are sealed with the newest key"
                        );
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "credentials could not be sealed again yet");
                    }
                }
                drop(control);
                tokio::time::sleep(RESEAL_RETRY).await;
            }
        });
    }

    async fn reseal(&self) -> Result<Resealed, StoreError> {
        let (durable, mut resealed) = (self.durable(), Resealed::default());
        let (seal, store) = (&durable.seal, &durable.store);
        loop {
            let found = store.sealed_before(seal.active(), resealed.unreadable, RESEALED_AT_ONCE);
            let found = durable.ask("sealed_before", found).await?;
            if found.is_empty() {
                return Ok(resealed);
            }
            for value in found {
                let place = place(&value.place);
                let opened = seal.open(&place, &value.sealed);
                let Ok(sealed) = opened.and_then(|text| seal.seal(&place, &text)) else {
                    tracing::warn!(place = ?value.place, "a stored credential opens with no key");
                    resealed.unreadable += 1;
                    continue;
                };
                durable.ask("reseal", store.reseal(&value, &sealed)).await?;
                resealed.done += 1;
            }
        }
    }
}

/// Returns the name of a row, without which its value does not open.
fn place(place: &SealedPlace) -> String {
    match place {
        SealedPlace::Backend { tenant, backend } => backend_place(tenant, backend),
        SealedPlace::Issuer { tenant, issuer } => issuer_place(tenant, issuer),
        SealedPlace::Grant { key, issuer } => grant_place(key, issuer),
        SealedPlace::Secret(key) => secret_place(key),
    }
}
