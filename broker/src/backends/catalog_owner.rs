//! The tenant of a backend, as the refresh of the backend's lists needs it.

use std::sync::Arc;

use protocol::ids::BackendId;
use rules::catalog::BackendLists;

/// Takes the lists of backends. A tenant implements it.
pub trait CatalogOwner: Send + Sync {
    /// Puts the lists of the tenant's backends into its catalog.
    fn publish(&self);

    /// Returns the lists of the other backends.
    fn others(&self, than: &BackendId) -> Vec<(BackendId, Arc<BackendLists>)>;

    /// Reads the lists again that a backend shows to each principal with a session here.
    fn read_principal_lists(&self, backend: &BackendId);
}
