//! Where a client has come in: to all backends of its tenant, or to one.

use protocol::ids::BackendId;

/// An endpoint, whatever its wire calls it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `/mcp`: every backend of the tenant, exposed names.
    Aggregated,
    /// `/mcp/{backend}`: one backend, its own names.
    Single(BackendId),
}

impl Endpoint {
    /// The backend's name, or empty.
    pub fn name(&self) -> &str {
        match self {
            Endpoint::Aggregated => "",
            Endpoint::Single(backend) => backend.as_str(),
        }
    }
}
