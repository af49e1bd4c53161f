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
    /// Parses the path of an endpoint below `root`: `/mcp` and `/mcp/{backend}` for the root `/mcp`.
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

    /// The path of this endpoint below `root`.
    pub fn path(&self, root: &str) -> String {
        match self {
            Self::Aggregated => root.to_owned(),
            Self::Single(backend) => format!("{root}/{backend}"),
        }
    }

    /// The backend's name, or empty.
    pub fn name(&self) -> &str {
        match self {
            Endpoint::Aggregated => "",
            Endpoint::Single(backend) => backend.as_str(),
        }
    }
}
