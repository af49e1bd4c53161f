//! Limits of the lists that backends show to single links.

/// Lists that backends show to single links, of all links of a process together. Above it, the
/// clients of a link see the shared lists.
pub const OWN_LISTS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Catalogs with own lists that are kept ready, for each tenant. Above it, they are built again.
pub const SESSION_CATALOGS_BYTES_MAX: u64 = 16 * 1024 * 1024;
