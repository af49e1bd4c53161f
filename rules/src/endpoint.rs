//! Endpoints of the broker: for all backends of a tenant, for one, or for a toolset.

use std::borrow::Cow;

use protocol::ids::{BackendId, EndpointName, ToolsetId};

/// An endpoint, whatever the transport.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `/mcp`: all backends of the tenant, with exposed names.
    Aggregated,
    /// `/mcp/{backend}`: one backend, with its own names.
    Single(BackendId),
    /// `/mcp/t/{toolset}`: what a toolset holds, with the names that it gives.
    Toolset(ToolsetId),
}

impl Endpoint {
    /// Parses the path of an endpoint below `root`: `/mcp`, `/mcp/{backend}` and
    /// `/mcp/t/{toolset}` for the root `/mcp`.
    pub fn at(root: &str, path: &str) -> Option<Self> {
        match path.strip_prefix(root)? {
            "" | "/" => Some(Self::Aggregated),
            rest => {
                let name = rest.strip_prefix('/')?;
                let name = EndpointName::parse(name.strip_suffix('/').unwrap_or(name)).ok()?;
                Some(Self::named(Some(&name)))
            }
        }
    }

    /// Returns the endpoint with this name. No name is that of the aggregated endpoint.
    pub fn named(name: Option<&EndpointName>) -> Self {
        let Some(name) = name else { return Self::Aggregated };
        let single = || name.backend().map(Self::Single);
        name.toolset().map(Self::Toolset).or_else(single).unwrap_or(Self::Aggregated)
    }

    /// Returns the name under which the endpoint is stored. `None`: the aggregated endpoint.
    pub fn stored_name(&self) -> Option<EndpointName> {
        match self {
            Self::Aggregated => None,
            Self::Single(backend) => Some(EndpointName::of_backend(backend)),
            Self::Toolset(toolset) => Some(EndpointName::of_toolset(toolset)),
        }
    }

    /// Returns the path of this endpoint below `root`.
    pub fn path(&self, root: &str) -> String {
        match self {
            Self::Aggregated => root.to_owned(),
            Self::Single(_) | Self::Toolset(_) => format!("{root}/{}", self.name()),
        }
    }

    /// Returns the backend's name, `t/` and the toolset's name, or an empty string.
    pub fn name(&self) -> Cow<'_, str> {
        match self {
            Self::Aggregated => Cow::Borrowed(""),
            Self::Single(backend) => Cow::Borrowed(backend.as_str()),
            Self::Toolset(toolset) => Cow::Owned(EndpointName::of_toolset(toolset).to_string()),
        }
    }

    /// Returns whether clients see names and URIs of the broker's making, not those of one backend.
    pub fn is_merged(&self) -> bool {
        !matches!(self, Self::Single(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_maps_to_one_endpoint_and_back() {
        let backend = |name| Endpoint::Single(BackendId::parse(name).unwrap());
        let toolset = |name| Endpoint::Toolset(ToolsetId::parse(name).unwrap());
        for (path, endpoint) in [
            ("/mcp", Endpoint::Aggregated),
            ("/mcp/files", backend("files")),
            ("/mcp/t", backend("t")),
            ("/mcp/t/files", toolset("files")),
            ("/mcp/t/t", toolset("t")),
        ] {
            assert_eq!(Endpoint::at("/mcp", path), Some(endpoint.clone()), "{path}");
            assert_eq!(Endpoint::at("/mcp", &format!("{path}/")), Some(endpoint.clone()), "{path}");
            assert_eq!(endpoint.path("/mcp"), path);
            assert_eq!(Endpoint::named(endpoint.stored_name().as_ref()), endpoint);
        }
        for path in ["/mcp/t//", "/mcp/t/a/b", "/mcp/T/a", "/mcp/t/A", "/mcp/x/a", "/mcp//t/a"] {
            assert_eq!(Endpoint::at("/mcp", path), None, "{path}");
        }
    }
}
