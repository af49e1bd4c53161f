//! Breakers that operators hold open: stored, so that every replica keeps to it, those that start later too.
//!
//! Everything else of a breaker is each replica's own. Invariant: who is in `held` is held here, whatever became of the backend
//! meanwhile; whoever brings backends into force calls [`Control::keep_breakers`] after it.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::MutexGuard;
use protocol::ids::{BackendId, TenantId};
use storage::{AdminChange, StoreError};

use super::{Author, BackendView, Control, ControlError, validation::no_backend};

/// Backends by tenant and name.
pub(super) type HeldBreakers = BTreeSet<(TenantId, BackendId)>;

impl Control {
    /// Holds the breaker of a backend open on every replica, or lets go of it and closes that of this replica.
    pub async fn set_breaker(
        self: &Arc<Self>,
        tenant: TenantId,
        backend: BackendId,
        open: bool,
        author: Author,
    ) -> Result<BackendView, ControlError> {
        self.change(|control| async move {
            control.backend(&tenant, &backend)?;
            if control.broker.backend(&tenant, &backend).is_none() {
                return Err(no_backend(&backend)); // its tenant is disabled: nothing runs
            }
            let change = if open {
                AdminChange::HoldBreaker(&tenant, &backend)
            } else {
                AdminChange::ReleaseBreaker(&tenant, &backend)
            };
            control.commit(change, &author).await?;
            let name = (tenant.clone(), backend.clone());
            if open {
                control.held().insert(name);
            } else {
                control.held().remove(&name);
            }
            control.broker.set_breaker(&tenant, &backend, open);
            Ok(control.backend(&tenant, &backend)?.view)
        })
        .await
    }

    /// What the store holds by now.
    pub(super) async fn read_breakers(&self) -> Result<HeldBreakers, StoreError> {
        Ok(self.ask("held_breakers", self.store().held_breakers()).await?.into_iter().collect())
    }

    /// Brings what was read into force: who is held no longer goes by the rules again.
    pub(super) fn take_over_breakers(&self, held: HeldBreakers) {
        let before = std::mem::replace(&mut *self.held(), held.clone());
        for (tenant, backend) in before.difference(&held) {
            self.broker.set_breaker(tenant, backend, false);
        }
        self.keep_breakers();
    }

    /// Backends that were made anew are held as those before them were.
    pub(super) fn keep_breakers(&self) {
        let held = self.held().clone();
        for (tenant, backend) in &held {
            self.broker.set_breaker(tenant, backend, true);
        }
    }

    /// Of a backend that is removed, or of all of a tenant. The store forgets them with it.
    pub(super) fn forget_breakers(&self, tenant: &TenantId, backend: Option<&BackendId>) {
        self.held().retain(|(owner, name)| {
            owner != tenant || backend.is_some_and(|backend| backend != name)
        });
    }

    fn held(&self) -> MutexGuard<'_, HeldBreakers> {
        self.held.lock()
    }
}
