//! The guard against a catalog that contains itself: a backend leads back to its own tenant, directly
//! or through other brokers. `rules/src/catalog/marks.rs` describes the marks.

use bytes::Bytes;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
};
use rules::catalog::CatalogMarks;

use super::tenant::Tenant;

/// Refuses a request that opens a connection, if the tenant sent it to one of its own backends.
pub fn refuse_own_request(tenant: &Tenant, message: &Message) -> Result<(), Refusal> {
    let Some(marks) = CatalogMarks::of(message) else { return Ok(()) };
    let backends = tenant.backends();
    let Some(backend) = backends.iter().find(|backend| marks.contains(&backend.mark)) else {
        return Ok(());
    };
    let text = format!(
        "the catalog of tenant {} contains itself through backend {}, which leads back to this broker",
        tenant.id, backend.id
    );
    Err(Refusal::new(ErrorKind::CatalogLoop, text))
}

/// Returns a list as the sender of this request gets it. Another broker gets the marks of the
/// catalogs in the list: that of the tenant, and those `behind` it.
pub fn with_marks(
    tenant: &Tenant,
    request: &Message,
    list: Bytes,
    behind: impl FnOnce() -> CatalogMarks,
) -> Bytes {
    if CatalogMarks::of(request).is_none() {
        return list;
    }
    let mut marks = behind();
    marks.add(tenant.shared.catalog_marks.of_catalog(&tenant.id));
    marks.added_to(&list).unwrap_or(list)
}
