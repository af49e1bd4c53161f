//! The lists of a tenant as its sessions and principals see them: announcements of changes, and the
//! lists that backends show to each principal alone.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use protocol::ids::{BackendId, PrincipalId};
use rules::{catalog::BackendLists, endpoint::Endpoint};
use tokio::task::JoinHandle;

use super::{tenant::Tenant, tenant_access::TenantCatalog};
use crate::backends::{backend::Backend, principal_lists::ReadLists, principal_reads};

impl Tenant {
    /// Notifies every session whose lists differ now.
    pub(super) fn announce_changes(&self, before: &Arc<TenantCatalog>, next: &Arc<TenantCatalog>) {
        // Sessions with equal rights share their catalogs, so each pair is compared once. Views may
        // be dropped meanwhile: the weak references keep their addresses from later ones.
        let mut compared = HashMap::new();
        let is_replaced = |(id, lists): &(&BackendId, &Arc<BackendLists>)| {
            before.full.backends.get(*id).is_none_or(|known| !Arc::ptr_eq(known, lists))
        };
        let replaced: HashSet<BackendId> =
            next.full.backends.iter().filter(is_replaced).map(|(id, _)| id.clone()).collect();
        for session in self.sessions() {
            if session.on_catalog_published(&replaced) {
                continue;
            }
            let subject = session.subject();
            let kinds = session.question_kinds;
            let [old, new] = [before, next].map(|catalog| {
                let catalog = catalog.of(&session.caller.principal).at(&session.endpoint);
                catalog.visible(&subject).offered_to(kinds)
            });
            let pair = [&old, &new];
            let key = (session.endpoint.clone(), pair.map(Arc::as_ptr));
            let (changed, _addresses) = compared.entry(key).or_insert_with(|| {
                (new.changed_lists(&old, &session.endpoint), pair.map(Arc::downgrade))
            });
            if !changed.is_empty() {
                session.on_lists_changed(changed);
            }
        }
    }

    /// Reads the lists of a principal where they are due. Waits for those that were never read, for
    /// a limited time.
    pub async fn wait_for_lists_of(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        principal: &PrincipalId,
        within: Duration,
    ) {
        // A user has come who can show them.
        for backend in self.catalog().without_user() {
            let is_elsewhere = matches!(endpoint, Endpoint::Single(id) if *id != backend.id);
            if !is_elsewhere {
                backend.wait_first_attempt(within).await;
            }
        }
        let first = self.read_lists_of(endpoint, principal);
        if first.is_empty() {
            return;
        }
        let _in_time = tokio::time::timeout(within, join_all(first)).await;
    }

    /// Begins to read the lists of a principal where they are due. Returns the reads of those that
    /// were never read.
    pub fn read_lists_of(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        principal: &PrincipalId,
    ) -> Vec<JoinHandle<()>> {
        if !self.published.snapshot().varies_by_principal() {
            return Vec::new();
        }
        let backends = self.backends_at(endpoint).into_iter();
        let due = backends.filter(|backend| principal_reads::is_due(backend, principal));
        due.filter_map(|backend| {
            let is_first = backend.principal_lists.is_unread(principal);
            // A client that does not wait needs no second read behind the one that runs.
            if !is_first && backend.principal_lists.is_reading(principal) {
                return None;
            }
            let (tenant, principal) = (self.clone(), principal.clone());
            let read = self.shared.running.spawn(async move {
                let store = |read| tenant.store_lists_of(&backend, &principal, read);
                let others = || tenant.lists_beside(&backend.id);
                principal_reads::read(&backend, &principal, others, store).await;
            });
            is_first.then_some(read)
        })
        .collect()
    }

    /// Reads the lists of all principals that have sessions here, where they are due.
    pub(super) fn read_lists_of_all(self: &Arc<Self>, backend: &BackendId) {
        for principal in self.principals_here() {
            self.read_lists_of(&Endpoint::Single(backend.clone()), &principal);
        }
    }

    /// Returns the lists of the other backends.
    pub(super) fn lists_beside(&self, than: &BackendId) -> Vec<(BackendId, Arc<BackendLists>)> {
        let backends = self.backends().into_iter().filter(|backend| backend.id != *than);
        backends.filter_map(|other| Some((other.id.clone(), other.lists.load_full()?))).collect()
    }

    fn store_lists_of(&self, backend: &Backend, principal: &PrincipalId, read: ReadLists) {
        self.published.changes.run(|| {
            let before = self.catalog().of(principal);
            if principal_reads::store(backend, principal, read) {
                self.announce_to(principal, &before);
            }
        });
    }

    /// Marks what pins hold by now in the lists of all principals at a backend.
    pub fn remark_principal_lists(&self, backend: &Backend) {
        self.published.changes.run(|| {
            let catalog = self.catalog();
            let here = self.principals_here().into_iter();
            let before: Vec<_> = here.map(|one| (catalog.of(&one), one)).collect();
            principal_reads::remark(backend);
            before.iter().for_each(|(before, principal)| self.announce_to(principal, before));
        });
    }

    /// Notifies the sessions of a principal whose lists differ now.
    fn announce_to(&self, principal: &PrincipalId, before: &Arc<TenantCatalog>) {
        let next = self.catalog().of(principal);
        if Arc::ptr_eq(before, &next) {
            return;
        }
        for session in self.sessions_of(principal) {
            if session.on_catalog_published(&HashSet::new()) {
                continue;
            }
            let subject = session.subject();
            let [old, new] = [before, &next].map(|catalog| {
                catalog.at(&session.endpoint).visible(&subject).offered_to(session.question_kinds)
            });
            let lists = new.changed_lists(&old, &session.endpoint);
            if !lists.is_empty() {
                session.on_lists_changed(&lists);
            }
        }
    }
}
