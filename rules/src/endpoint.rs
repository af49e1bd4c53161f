//! Endpoints of the broker: for all backends of a tenant, or for one.

use protocol::ids::BackendId;

/// An endpoint, whatever the transport.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `/mcp`: all backends of the tenant, with exposed names.
    Aggregated,
    /// `/mcp/{backend}`: one backend, with its own names.
    Single(BackendId),
}

impl Endpoint {
    /// Parses the path of an endpoint below `root`: `/mcp` and `/mcp/{backend}` for the root
    /// `/mcp`.
    pub fn at(root: &str, path: &str) -> Option<Self> {
        match path.strip_prefix(root)? {
            "" | "/" => Some(Self::Aggregated),
            rest => {
                let name = rest.strip_prefix('/')?;
                let backend = BackendId::parse(name.strip_suffix('/').unwrap_or(name)).ok()?;
                Some(Self::Single(backend))
            }
        }
    }

    /// Returns the path of this endpoint below `root`.
    pub fn path(&self, root: &str) -> String {
        match self {
            Self::Aggregated => root.to_owned(),
            Self::Single(backend) => format!("{root}/{backend}"),
        }
    }

    /// Returns the backend's name, or an empty string.
    pub fn name(&self) -> &str {
        match self {
            Endpoint::Aggregated => "",
            Endpoint::Single(backend) => backend.as_str(),
        }
    }
}
