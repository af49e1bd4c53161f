//! Changes that other replicas made: read from the store and brought into force as if they had been asked for here.
//!
//! A word of another replica, or a renewal that tells a new version, is the reason to look; what is in the store decides.
//! Invariants: reading and applying is one turn among this replica's own changes, so whoever writes last wins on every
//! replica; a row that cannot be read leaves what is in force for it.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    sync::{Arc, Weak, atomic::Ordering},
};

use protocol::ids::TenantId;
use storage::{AdminChange, BackendRecord, SessionKey, StoreError, TenantRecord, Wakeup};
use tokio::{sync::broadcast::error::RecvError, time::sleep};

use super::{
    Control, LoadError,
    load::{stored_tenant, tenant_record},
    now_us,
    registry::{DECLARED, EntryOrigin, Registry, RegistryEntry},
};
use crate::{
    limits::CONFIG_READ_INTERVAL_MIN,
    persistence::node::{LeaseObserver, OwnedRecords, ReclaimedRecords},
};

impl Control {
    /// Follows what other replicas do, for as long as the process lives. Must be called inside the runtime.
    pub fn follow(self: &Arc<Self>) {
        tokio::spawn(listen(Arc::downgrade(self)));
        tokio::spawn(read_changes(Arc::downgrade(self)));
    }

    /// Brings into force what the store holds by now.
    pub async fn refresh(&self) -> Result<(), StoreError> {
        if !self.loaded.load(Ordering::Acquire) {
            return Ok(()); // it will be loaded
        }
        let _turn = self.changing.lock().await;
        self.take_over_changes().await
    }

    /// Called with the turn taken.
    pub(super) async fn take_over_changes(&self) -> Result<(), StoreError> {
        // First, so that a change that comes between is seen next time.
        let version = self.ask("config_version", self.store().config_version()).await?;
        if version == self.applied.load(Ordering::Acquire) {
            return Ok(());
        }
        let tenants = self.ask("tenants", self.store().tenants()).await?;
        let keys = self.ask("keys", self.store().keys()).await?;
        let backends = self.ask("backends", self.store().backends()).await?;
        let held = self.read_breakers().await?;
        let old = self.registry.load_full();
        self.restore_declared(&old, &tenants).await?;
        let next = self.as_stored(&old, tenants, backends);
        let changed = self.apply_difference(&old, next);
        self.take_over_breakers(held);
        let revoked = self.replace_keys(&self.registry.load(), keys);
        for key in &revoked {
            self.broker.end_sessions_of_key(key);
        }
        self.applied.store(version, Ordering::Release);
        let (tenants, backends, revoked) = (changed.tenants, changed.backends, revoked.len());
        tracing::info!(
            version,
            tenants,
            backends,
            revoked,
            "took over what was changed on other replicas"
        );
        Ok(())
    }

    /// The rows that keys of declared tenants belong to: a replica that does not declare them may have removed one.
    async fn restore_declared(
        &self,
        old: &Registry,
        records: &[TenantRecord],
    ) -> Result<(), StoreError> {
        let known: BTreeSet<&TenantId> = records.iter().map(|record| &record.tenant).collect();
        let declared = old.tenants.iter().filter(|(tenant, entry)| {
            entry.origin == EntryOrigin::Declared && !known.contains(tenant)
        });
        for (tenant, _) in declared {
            let record = tenant_record(tenant, DECLARED.to_owned(), now_us());
            self.ask("add_tenant", self.store().change(AdminChange::AddTenant(&record), None))
                .await?;
        }
        Ok(())
    }

    /// What is declared here, and beside it what the store holds.
    fn as_stored(
        &self,
        old: &Registry,
        tenants: Vec<TenantRecord>,
        backends: Vec<BackendRecord>,
    ) -> Registry {
        let mut next = old.clone();
        next.tenants.retain(|_, entry| entry.origin == EntryOrigin::Declared);
        next.backends.retain(|_, entry| entry.origin == EntryOrigin::Declared);
        for record in tenants {
            if next.tenants.contains_key(&record.tenant) {
                if record.settings != DECLARED {
                    tracing::warn!(tenant = %record.tenant, "stored by another replica and declared here: the configuration file decides");
                }
                continue;
            }
            let entry = readable(stored_tenant(&record), old.tenants.get(&record.tenant));
            next.tenants.extend(entry.map(|entry| (record.tenant, entry)));
        }
        for record in backends {
            let name = (record.tenant.clone(), record.backend.clone());
            if next.backends.contains_key(&name) {
                tracing::warn!(tenant = %name.0, backend = %name.1, "stored by another replica and declared here: the configuration file decides");
                continue;
            }
            // Its tenant may have been made after the tenants were read: then the next reading shows both.
            if !next.tenants.contains_key(&name.0) {
                continue;
            }
            let entry = readable(self.stored_backend(&record), old.backends.get(&name));
            next.backends.extend(entry.map(|entry| (name, entry)));
        }
        next.backends.retain(|(tenant, _), _| next.tenants.contains_key(tenant));
        next
    }
}

/// What was read; the same value as before if nothing differs; and what is in force if it cannot be read.
fn readable<Spec: PartialEq>(
    read: Result<RegistryEntry<Spec>, LoadError>,
    before: Option<&Arc<RegistryEntry<Spec>>>,
) -> Option<Arc<RegistryEntry<Spec>>> {
    match read {
        Ok(entry) => Some(
            before.filter(|before| ***before == entry).map_or_else(|| Arc::new(entry), Arc::clone),
        ),
        Err(error) => {
            tracing::error!(%error, "what another replica stored can not be used: what was in force stays");
            before.cloned()
        }
    }
}

/// Hears what is told to all replicas.
async fn listen(control: Weak<Control>) {
    let Some(mut words) = control.upgrade().map(|control| control.durable().hot.wakes()) else {
        return;
    };
    loop {
        let word = words.recv().await;
        let Some(control) = control.upgrade() else { return };
        match word {
            Ok(Wakeup::Config) if control.durable().is_shared() => control.changed.notify_one(),
            Ok(Wakeup::SessionEnd(session)) => control.asked_to_end(vec![session]),
            Ok(_) => {}
            // What was missed may have been about us. Sessions that are to end are told by the next renewal too.
            Err(RecvError::Lagged(_)) => control.changed.notify_one(),
            Err(RecvError::Closed) => return,
        }
    }
}

async fn read_changes(control: Weak<Control>) {
    let Some(changed) = control.upgrade().map(|control| control.changed.clone()) else { return };
    loop {
        changed.notified().await;
        let Some(control) = control.upgrade() else { return };
        if control.refresh().await.is_err() {
            changed.notify_one(); // tried again after the pause
        }
        drop(control);
        sleep(CONFIG_READ_INTERVAL_MIN).await;
    }
}

impl LeaseObserver for Control {
    fn owned(&self) -> OwnedRecords {
        OwnedRecords { sessions: self.broker.session_keys(), tasks: self.broker.tasks.owned() }
    }

    fn reclaimed(&self, reclaimed: ReclaimedRecords) {
        self.broker.reclaimed_sessions(&reclaimed.sessions);
        self.broker.tasks.resume_reclaimed(reclaimed.tasks);
    }

    fn lost(&self, lost: OwnedRecords) {
        self.broker.lost_sessions(&lost.sessions);
        self.broker.tasks.stop_lost(&lost.tasks);
    }

    fn asked_to_end(&self, sessions: Vec<SessionKey>) {
        self.broker.end_asked(&sessions);
    }

    fn config_version(&self, version: i64) {
        if version != self.applied.load(Ordering::Acquire) {
            self.changed.notify_one();
        }
    }
}
