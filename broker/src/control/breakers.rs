//! Breakers that operators hold open. They are stored, so that every replica holds them open,
//! including replicas that start later.
//!
//! All other state of a breaker belongs to one replica. Invariant: the breakers of all backends in
//! `held` are open here, even after a backend changes. Code that activates backends calls
//! [`Control::reapply_breakers`] afterwards.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::MutexGuard;
use protocol::ids::{BackendId, TenantId};
use records::AdminChange;
use storage::StoreError;

use super::{Author, BackendView, Control, ControlError, validation::no_backend};

/// Backends by tenant and name.
pub(super) type HeldBreakers = BTreeSet<(TenantId, BackendId)>;

impl Control {
    /// Holds the breaker of a backend open on every replica. Or releases it, and closes the breaker
    /// of this replica.
    pub async fn set_breaker(
        self: &Arc<Self>,
        tenant: TenantId,
        backend: BackendId,
        open: bool,
        author: Author,
    ) -> Result<BackendView, ControlError> {
        self.change(
            (tenant, backend, open, author),
            |attempt, (tenant, backend, open, author)| async move {
                attempt.backend(&tenant, &backend)?;
                if attempt.broker.backend(&tenant, &backend).is_none() {
                    return Err(no_backend(&backend)); // its tenant is disabled: nothing runs
                }
                let change = if open {
                    AdminChange::HoldBreaker(&tenant, &backend)
                } else {
                    AdminChange::ReleaseBreaker(&tenant, &backend)
                };
                attempt.commit(change, &author).await?;
                let name = (tenant.clone(), backend.clone());
                if open {
                    attempt.held().insert(name);
                } else {
                    attempt.held().remove(&name);
                }
                attempt.broker.set_breaker(&tenant, &backend, open);
                Ok(attempt.backend(&tenant, &backend)?.view)
            },
        )
        .await
    }

    /// Returns the breakers that the store holds open.
    pub(super) async fn read_breakers(&self) -> Result<HeldBreakers, StoreError> {
        Ok(self
            .query_store("list_held_breakers", self.store().held_breakers())
            .await?
            .into_iter()
            .collect())
    }

    /// Applies the stored state. A breaker that is no longer held follows its rules again.
    pub(super) fn apply_breakers(&self, held: HeldBreakers) {
        let before = std::mem::replace(&mut *self.held(), held.clone());
        for (tenant, backend) in before.difference(&held) {
            self.broker.set_breaker(tenant, backend, false);
        }
        self.reapply_breakers();
    }

    /// Opens the held breakers again, because new backend objects start with closed ones.
    pub(super) fn reapply_breakers(&self) {
        let held = self.held().clone();
        for (tenant, backend) in &held {
            self.broker.set_breaker(tenant, backend, true);
        }
    }

    /// Forgets the breaker of a removed backend, or all breakers of a removed tenant. The store
    /// removes them in the same change.
    pub(super) fn forget_breakers(&self, tenant: &TenantId, backend: Option<&BackendId>) {
        self.held().retain(|(owner, name)| {
            owner != tenant || backend.is_some_and(|backend| backend != name)
        });
    }

    fn held(&self) -> MutexGuard<'_, HeldBreakers> {
        self.held.lock()
    }
}
