//! The catalog of a session's tenant, with the lists that backends show to this session alone.

use std::sync::{Arc, atomic::Ordering};

use protocol::ids::BackendId;
use rules::catalog::BackendLists;

use super::Session;
use crate::sessions::tenant_access::TenantCatalog;

/// Returns the catalog of all endpoints.
pub(super) fn of_tenant(session: &Session) -> Arc<TenantCatalog> {
    let shared = session.tenant.catalog().of(&session.caller.principal);
    if !session.has_own_lists.load(Ordering::Acquire) {
        return shared;
    }
    let own = session.lock().links.own_lists();
    shared.with_own_lists(&own)
}

/// Returns the whole lists that a backend shows to a session, for what no client sees.
pub(in crate::sessions) fn lists_of(
    session: &Session,
    backend: &BackendId,
) -> Option<Arc<BackendLists>> {
    of_tenant(session).full.backends.get(backend).cloned()
}
