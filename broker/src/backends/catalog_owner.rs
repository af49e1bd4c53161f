//! The tenant of a backend, as the refresh of the backend's lists needs it.

use std::sync::Arc;

use protocol::ids::BackendId;
use rules::catalog::BackendLists;

/// Takes the lists of backends. A tenant implements it.
pub trait CatalogOwner: Send + Sync {
    /// Puts the lists of the tenant's backends into its catalog, at least those that were stored
    /// before the call.
    fn publish(&self) -> impl Future<Output = ()> + Send;

    /// Reads the lists again that a backend shows to single sessions. They may have changed while
    /// the shared ones stayed the same.
    fn read_own_lists(&self, backend: &BackendId);

    /// Returns the lists of the other backends.
    fn others(&self, than: &BackendId) -> Vec<(BackendId, Arc<BackendLists>)>;

    /// Reads the lists again that a backend shows to each principal with a session here.
    fn read_principal_lists(&self, backend: &BackendId);
}
