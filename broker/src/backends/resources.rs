//! What the backends of one process share, above the context of the process. It is made once, and each backend holds it.

use super::{
    children::Children, link::TlsClients, schema_cache::SchemaCache,
    validation_pool::ValidationPool,
};

#[derive(Debug, Default)]
pub struct BackendResources {
    /// Whom links trust, and what they present.
    pub tls_clients: TlsClients,
    /// Child processes, counted.
    pub children: Children,
    /// Holds arguments to schemas.
    pub validation_pool: ValidationPool,
    /// Compiled schemas of tools.
    pub schema_cache: SchemaCache,
}
