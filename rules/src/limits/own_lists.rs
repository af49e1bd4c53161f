//! Limits of the lists that backends show to single links or principals.

/// Lists that backends show to single links or principals, of all tenants of a process together.
/// Above it, the clients of a link see the shared lists, and a principal sees none of the backend.
pub const OWN_LISTS_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Those of one tenant, so that they leave capacity for other tenants.
pub const OWN_LISTS_BYTES_PER_TENANT_MAX: usize = 64 * 1024 * 1024;
/// Links of one backend whose lists are read at the same time. All may hear of one change at once, and
/// each read needs memory for a whole list.
pub const LINK_LISTS_READ_MAX: usize = 16;
/// Catalogs with own lists that are kept ready, for each tenant. Above it, they are built again.
pub const SESSION_CATALOGS_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Bytes that count for one of them at most, so that a few are kept ready whatever their size.
pub const SESSION_CATALOG_COUNTED_BYTES_MAX: u64 = 4 * 1024 * 1024;

const _: () = assert!(2 * SESSION_CATALOG_COUNTED_BYTES_MAX <= SESSION_CATALOGS_BYTES_MAX); // a cache refuses what nearly fills it
const _: () = assert!(2 * OWN_LISTS_BYTES_PER_TENANT_MAX <= OWN_LISTS_BYTES_MAX); // one tenant cannot use all
