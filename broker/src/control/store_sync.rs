//! Applies the changes of other replicas, as if they had been requested here.
//!
//! A message of another replica, or a renewal with a new version, triggers a read of the store. So
//! does a change by this replica with an unknown outcome.
//! Only the store's contents decide. Invariants:
//! - Reading and applying take one turn among this replica's own changes, so the last write wins on
//!   every replica.
//! - For an unreadable row, the entry in force stays. Only a policy does not stay: the tenant is
//!   closed, as at a start.
//! - A tenant that was removed and created again between two reads inherits nothing.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak, atomic::Ordering},
};

use protocol::ids::{BackendId, TenantId};
use records::{
    AdminChange, BackendRecord, CatalogDocumentRecord, PolicyRecord, SessionKey, TenantRecord,
    TokenIssuerRecord,
};
use rules::limits::CONFIG_READ_INTERVAL_MIN;
use storage::{StoreError, Wakeup};
use tokio::{sync::broadcast::error::RecvError, time::sleep};

use super::{
    Control, LoadError,
    catalog_documents::synced_documents,
    load::{stored_tenant, tenant_record},
    registry::{DECLARED, EntryOrigin, Registry, RegistryEntry, UnreadableBackends},
    validation::now_us,
};
use crate::persistence::node::{LeaseObserver, OwnedRecords, ReclaimedRecords};

impl Control {
    /// Follows the changes of other replicas, for the life of the process. Must be called inside
    /// the runtime.
    pub fn start_store_sync(self: &Arc<Self>) {
        if self.persistence().is_shared() {
            self.keyring.refresh().enable(self.changed.clone());
        }
        tokio::spawn(listen(Arc::downgrade(self)));
        tokio::spawn(read_changes(Arc::downgrade(self)));
    }

    /// Applies the current contents of the store.
    pub async fn refresh(&self) -> Result<(), StoreError> {
        if !self.loaded.load(Ordering::Acquire) {
            return Ok(()); // it will be loaded
        }
        let _turn = self.changing.lock().await;
        self.apply_store_changes().await
    }

    /// Applies the changes in the store. The caller holds the lock `changing`.
    pub(super) async fn apply_store_changes(&self) -> Result<(), StoreError> {
        // Read first, so that a change in between is read next time.
        let version = self.query_store("get_config_version", self.store().config_version()).await?;
        if version == self.applied.load(Ordering::Acquire) {
            self.in_doubt.store(false, Ordering::Release);
            return Ok(());
        }
        let tenants = self.query_store("list_tenants", self.store().tenants()).await?;
        let keys = self.query_store("list_keys", self.store().keys()).await?;
        let backends = self.query_store("list_backends", self.store().backends()).await?;
        let policies = self.query_store("list_policies", self.store().policies()).await?;
        let documents =
            self.query_store("list_catalog_documents", self.store().catalog_documents()).await?;
        let issuers = self.query_store("list_token_issuers", self.store().token_issuers()).await?;
        let revocations = self.query_store("list_revocations", self.store().revocations()).await?;
        let operators = self.query_store("list_operators", self.store().operators()).await?;
        let held = self.read_breakers().await?;
        let later = self.query_store("list_tenants", self.store().tenants()).await?;
        let tenants = kept_tenants(tenants, &later);
        let old = self.registry.load_full();
        self.restore_declared(&old, &tenants).await?;
        let records = StoredRecords { tenants, backends, policies, documents, issuers };
        let next = self.as_stored(&old, records);
        let changed = self.apply_difference(&old, next);
        self.apply_operators(operators);
        self.apply_breakers(held);
        let revoked = self.replace_keys(&self.registry.load(), keys);
        for key in &revoked {
            self.broker.end_sessions_of_key(key);
        }
        let revocations = self.apply_revocations(revocations);
        self.apply_pin_decisions().await?;
        self.applied.store(version, Ordering::Release);
        self.in_doubt.store(false, Ordering::Release);
        let (tenants, backends, revoked) = (changed.tenants, changed.backends, revoked.len());
        tracing::info!(
            version,
            tenants,
            backends,
            revoked,
            revocations,
            "the broker applied changes from the database"
        );
        Ok(())
    }

    /// Returns whether the store may have a change that is not applied, because its outcome was
    /// unknown.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::Acquire)
    }

    /// Notes that the outcome of a change is unknown.
    pub(super) fn note_doubt(&self) {
        self.in_doubt.store(true, Ordering::Release);
    }

    /// Applies the store's entries after a change with an unknown outcome. If the store does not
    /// answer, this is tried again until it does. The caller holds the lock `changing`.
    pub(super) async fn settle_doubt(&self) {
        if self.is_in_doubt() && self.apply_store_changes().await.is_err() {
            self.changed.notify_one();
        }
    }

    /// Stores the rows again that keys of declared tenants belong to. A replica that does not
    /// declare the tenants may have removed one.
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
            self.query_store(
                "add_tenant",
                self.store().apply(AdminChange::AddTenant(&record), None),
            )
            .await?;
        }
        Ok(())
    }

    /// Returns a registry of the locally declared entries and the stored ones.
    fn as_stored(
        &self,
        old: &Registry,
        StoredRecords { tenants, backends, policies, documents, issuers }: StoredRecords,
    ) -> Registry {
        let mut next = old.clone();
        sync_tenants(&mut next, old, tenants);
        self.sync_backends(&mut next, old, backends);
        self.sync_policies(&mut next, old, policies);
        let known = next.tenants.clone();
        let is_tenant = |tenant: &TenantId| known.contains_key(tenant);
        next.toolsets = synced_documents(&documents, old, is_tenant);
        next.prompts = synced_documents(&documents, old, is_tenant);
        self.sync_issuers(&mut next, old, issuers);
        next
    }

    /// Replaces the stored backends. The tenants are those of the store by now.
    fn sync_backends(&self, next: &mut Registry, old: &Registry, backends: Vec<BackendRecord>) {
        next.backends.retain(|_, entry| entry.origin != EntryOrigin::Stored);
        let mut unreadable = UnreadableBackends::new();
        for record in backends {
            let name = (record.tenant.clone(), record.backend.clone());
            if next.backends.contains_key(&name) {
                tracing::warn!(tenant = %name.0, backend = %name.1, "another replica stored an entry that the configuration file declares: the configuration file has precedence");
                continue;
            }
            // Its tenant may have been created after the tenants were read. The next read shows
            // both.
            if !next.tenants.contains_key(&name.0) {
                continue;
            }
            let read = self.stored_backend(&record);
            if read.is_err() {
                unreadable.insert(name.clone(), record.created_at_us);
            }
            let entry = entry_or_previous(read, record.created_at_us, old.backends.get(&name));
            next.backends.extend(entry.map(|entry| (name, entry)));
        }
        *self.unreadable_backends.lock() = unreadable;
        next.backends.retain(|(tenant, _), _| next.tenants.contains_key(tenant));
    }

    /// Replaces the stored policies.
    fn sync_policies(&self, next: &mut Registry, old: &Registry, policies: Vec<PolicyRecord>) {
        next.policies.retain(|_, entry| entry.origin == EntryOrigin::Declared);
        for record in policies {
            if next.policies.contains_key(&record.tenant)
                || !next.tenants.contains_key(&record.tenant)
            {
                continue;
            }
            // The row may deny what the policy in force allows, so that policy does not stay.
            let entry = self.stored_policy(&record);
            let entry = entry_or_equal(entry, old.policies.get(&record.tenant));
            next.policies.insert(record.tenant, entry);
        }
    }

    fn sync_issuers(&self, next: &mut Registry, old: &Registry, issuers: Vec<TokenIssuerRecord>) {
        next.issuers.clear();
        for record in issuers {
            let Ok(name) = BackendId::parse(&record.issuer) else { continue };
            let key = (record.tenant.clone(), name);
            if !next.tenants.contains_key(&key.0) {
                continue;
            }
            let (read, before) = (self.stored_issuer(&record), old.issuers.get(&key));
            let entry = entry_or_previous(read, record.created_at_us, before);
            next.issuers.extend(entry.map(|entry| (key, entry)));
        }
    }
}

/// Replaces the stored tenants.
fn sync_tenants(next: &mut Registry, old: &Registry, tenants: Vec<TenantRecord>) {
    next.tenants.retain(|_, entry| entry.origin == EntryOrigin::Declared);
    for record in tenants {
        if next.tenants.contains_key(&record.tenant) {
            if record.settings != DECLARED {
                tracing::warn!(tenant = %record.tenant, "another replica stored an entry that the configuration file declares: the configuration file has precedence");
            }
            continue;
        }
        let before = old.tenants.get(&record.tenant);
        let entry = entry_or_previous(stored_tenant(&record), record.created_at_us, before);
        next.tenants.extend(entry.map(|entry| (record.tenant, entry)));
    }
}

/// Rows of the store, as one read found them.
struct StoredRecords {
    tenants: Vec<TenantRecord>,
    backends: Vec<BackendRecord>,
    policies: Vec<PolicyRecord>,
    documents: Vec<CatalogDocumentRecord>,
    issuers: Vec<TokenIssuerRecord>,
}

/// Returns the tenants that existed during the whole read. A tenant loses its policy and its
/// revocations with its row, so one that was removed during the read would permit everything.
fn kept_tenants(mut read: Vec<TenantRecord>, later: &[TenantRecord]) -> Vec<TenantRecord> {
    let created_at: BTreeMap<&TenantId, i64> =
        later.iter().map(|record| (&record.tenant, record.created_at_us)).collect();
    read.retain(|record| created_at.get(&record.tenant) == Some(&record.created_at_us));
    read
}

/// Returns the entry that was read, or the entry in force if it is equal. For an unreadable row,
/// returns the entry in force if it is an earlier state of this row. An entry of a removed row does
/// not stay: the row may belong to others.
pub(super) fn entry_or_previous<Spec: PartialEq>(
    read: Result<RegistryEntry<Spec>, LoadError>,
    created_at_us: i64,
    before: Option<&Arc<RegistryEntry<Spec>>>,
) -> Option<Arc<RegistryEntry<Spec>>> {
    match read {
        Ok(entry) => Some(entry_or_equal(entry, before)),
        Err(error) => {
            tracing::error!(%error, "the broker cannot use an entry that another replica stored: the previous state stays in force");
            before.filter(|before| before.created_at_us == created_at_us).cloned()
        }
    }
}

/// Returns the entry that was read, or the entry in force if it is equal.
fn entry_or_equal<Spec: PartialEq>(
    read: RegistryEntry<Spec>,
    before: Option<&Arc<RegistryEntry<Spec>>>,
) -> Arc<RegistryEntry<Spec>> {
    before.filter(|before| ***before == read).map_or_else(|| Arc::new(read), Arc::clone)
}

/// Receives the wake-ups that the hot store sends to all replicas.
async fn listen(control: Weak<Control>) {
    let Some(mut wakeups) = control.upgrade().map(|control| control.persistence().hot.subscribe())
    else {
        return;
    };
    loop {
        let wakeup = wakeups.recv().await;
        let Some(control) = control.upgrade() else { return };
        match wakeup {
            Ok(Wakeup::Config) if control.persistence().is_shared() => control.changed.notify_one(),
            Ok(Wakeup::SessionEnd(session)) => control.end_sessions(vec![session]),
            Ok(Wakeup::Verdict(verdict)) => control.broker.receive_verdict(&verdict),
            Ok(_) => {}
            // The missed messages may have concerned this replica. Sessions to end are also
            // reported by the next renewal.
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
        let read = control.keyring.refresh().start();
        match control.refresh().await {
            Ok(()) => control.keyring.refresh().end(read),
            Err(_) => changed.notify_one(), // tried again after the pause
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
        self.broker.apply_reclaimed(&reclaimed.sessions);
        self.broker.tasks.resume_reclaimed(reclaimed.tasks);
    }

    fn lost(&self, lost: OwnedRecords) {
        self.broker.drop_lost_sessions(&lost.sessions);
        self.broker.tasks.stop_lost(&lost.tasks);
    }

    fn end_sessions(&self, sessions: Vec<SessionKey>) {
        self.broker.end_requested(&sessions);
    }

    fn config_version(&self, version: i64) {
        if version != self.applied.load(Ordering::Acquire) {
            self.changed.notify_one();
        }
    }
}
