//! Resources that all backends of the process share. They are created once, and each backend holds
//! them.

use super::{
    children::Children, fault_lines::RepeatedFaultLimiter, link::tls_clients::TlsClients,
    link_lists::OwnListBudgets, schema_cache::SchemaCache, validation_pool::ValidationPool,
};

#[derive(Debug, Default)]
pub struct BackendResources {
    /// TLS clients with authorities and client certificates.
    pub tls_clients: TlsClients,
    /// Child processes with their limits.
    pub children: Children,
    /// Threads that validate arguments.
    pub validation_pool: ValidationPool,
    /// Log lines about faults of backends.
    pub fault_lines: RepeatedFaultLimiter,
    /// Bytes of the lists that backends show to single links or principals.
    pub own_list_budgets: OwnListBudgets,
    /// Compiled schemas of tools.
    pub schema_cache: SchemaCache,
}
