//! Changes of backends: registered, replaced and removed ones. A tenant publishes its catalog once
//! after all changes of a batch.

use std::{collections::BTreeMap, sync::Arc};

use config::spec::BackendSpec;
use protocol::{
    handshake,
    ids::{BackendId, TenantId},
    method::Method,
};
use rules::{catalog::BackendLists, endpoint::Endpoint};

use super::Broker;
use crate::{
    backends::{backend::Backend, capability_probe, catalog_refresh, fixed_lists},
    sessions::{session::subscriptions, tenant::Tenant},
};

/// A batch of changes. They are in force at once, except for the catalogs of their tenants.
#[must_use = "`finish` publishes the catalogs"]
pub struct BackendChanges<'a> {
    broker: &'a Arc<Broker>,
    /// Tenants whose catalog differs now.
    changed: BTreeMap<TenantId, Arc<Tenant>>,
}

impl<'a> BackendChanges<'a> {
    pub fn new(broker: &'a Arc<Broker>) -> Self {
        Self { broker, changed: BTreeMap::new() }
    }

    /// Registers or replaces a backend. The same settings again change nothing, and another list of
    /// roots changes the running backend.
    pub fn put(&mut self, tenant: &TenantId, id: &BackendId, spec: BackendSpec) {
        let shared = &self.broker.shared;
        let Some(tenant) = self.broker.tenant(tenant) else { return };
        if let Some(known) = tenant.backend(id)
            && known.spec.differs_in_roots_alone(&spec)
        {
            if known.roots.replace(&spec.roots.list) {
                announce_roots(&known);
            }
            return;
        }
        let backend = Backend::new(
            tenant.id.clone(),
            id.clone(),
            spec,
            shared.context.clone(),
            self.broker.backend_resources.clone(),
        );
        if let Some(replaced) = tenant.insert_backend(backend.clone()) {
            replaced.close();
            // The old lists serve, marked stale, until the new ones are read.
            backend.pins.inherit(&replaced.pins);
            if let Some(lists) = replaced.lists.load_full() {
                let stale = BackendLists { stale: true, ..(*lists).clone() };
                backend.pins.publish(&backend.lists, stale);
            }
            for session in tenant.sessions() {
                shared.running.spawn(subscriptions::resubscribe(session, id.clone()));
            }
            self.changed.insert(tenant.id.clone(), tenant.clone());
        }
        let owner = Arc::downgrade(&tenant);
        if fixed_lists::is_for(&backend) {
            shared.running.spawn(fixed_lists::run(backend, owner));
        } else {
            shared.running.spawn(catalog_refresh::run(backend, capability_probe::complete, owner));
        }
    }

    /// Closes a backend, its subscriptions, and the sessions at its own endpoint.
    pub fn remove(&mut self, tenant: &TenantId, id: &BackendId) {
        let Some(tenant) = self.broker.tenant(tenant) else { return };
        let Some(backend) = tenant.remove_backend(id) else { return };
        backend.close();
        self.changed.insert(tenant.id.clone(), tenant.clone());
        self.broker.stateless.end_at(&tenant.id, &Endpoint::Single(id.clone()));
        for session in tenant.sessions() {
            subscriptions::forget_subscriptions_of(&session, id);
            if session.endpoint == Endpoint::Single(id.clone()) {
                self.broker.close_session(&session, "its backend was removed");
            }
        }
    }

    /// Publishes the catalog of each tenant whose backends changed.
    pub fn finish(self) {
        for tenant in self.changed.into_values() {
            tenant.publish_catalog();
        }
    }
}

impl Broker {
    /// Registers or replaces one backend.
    pub fn put_backend(self: &Arc<Self>, tenant: &TenantId, id: &BackendId, spec: BackendSpec) {
        let mut changes = BackendChanges::new(self);
        changes.put(tenant, id, spec);
        changes.finish();
    }

    /// Removes one backend.
    pub fn remove_backend(self: &Arc<Self>, tenant: &TenantId, id: &BackendId) {
        let mut changes = BackendChanges::new(self);
        changes.remove(tenant, id);
        changes.finish();
    }
}

/// Notifies every open connection of a backend that can ask for the roots of its operator.
fn announce_roots(backend: &Backend) {
    let reader = backend.links.reader();
    for connection in backend.links.all().iter().chain(&reader).filter_map(|link| link.live()) {
        connection.roots_changed(handshake::notification(Method::RootsListChanged, None));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{auth::Caller, persistence::Stores};

    fn spec(port: u16) -> BackendSpec {
        let transport = json!({"type": "http", "url": format!("http://127.0.0.1:{port}/mcp")});
        serde_json::from_value(json!({ "transport": transport })).unwrap()
    }

    #[tokio::test]
    async fn a_batch_of_changes_publishes_one_catalog() {
        let broker = Broker::over(Stores::in_memory().await);
        let tenant = Caller::anonymous().tenant;
        let ids = ["a", "b", "c"].map(|id| BackendId::parse(id).unwrap());
        ids.iter().for_each(|id| broker.put_backend(&tenant, id, spec(9)));
        let running = broker.tenant(&tenant).unwrap();
        let before = running.catalog();

        let mut changes = BackendChanges::new(&broker);
        changes.put(&tenant, &ids[0], spec(10));
        changes.put(&tenant, &ids[1], spec(10));
        changes.remove(&tenant, &ids[2]);
        assert_eq!(running.backends().len(), 2, "the changes are in force");
        assert!(Arc::ptr_eq(&running.catalog(), &before), "no change alone publishes a catalog");
        changes.finish();
        assert!(!Arc::ptr_eq(&running.catalog(), &before));
    }
}
