//! Information of an endpoint for a new client: capabilities, server, instructions (MCP 2025-11-25,
//! Lifecycle).

use bytes::Bytes;
use protocol::{
    capabilities::ServerCapabilities,
    error::{ErrorKind, Refusal},
    stateless::EXTENSION_TASKS,
    version::Version,
};

use super::catalog::{BackendLists, Catalog, ListKind};
use crate::limits::INSTRUCTIONS_BYTES_MAX;

/// `serverInfo` and `clientInfo` of the broker itself.
pub const BROKER_INFO: &str =
    concat!(r#"{"name":"mcp-broker","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

/// Information of an endpoint for a new client.
#[derive(Debug)]
pub struct EndpointInfo {
    pub capabilities: ServerCapabilities,
    pub server_info: Bytes,
    pub instructions: Option<String>,
}

impl EndpointInfo {
    /// Removes the capabilities that the negotiated version does not have.
    pub fn restricted_to(mut self, version: Version) -> Self {
        self.capabilities = limited_to(version, self.capabilities);
        self
    }

    /// Returns an error if the list does not exist. Clients may request the list of tools even if
    /// it was not declared, as in earlier revisions.
    pub fn permits_list(&self, kind: ListKind) -> Result<(), Refusal> {
        let (offered, name) = match kind {
            ListKind::Tools => (true, "tools"),
            ListKind::Prompts => (self.capabilities.prompts, "prompts"),
            ListKind::Resources | ListKind::ResourceTemplates => {
                (self.capabilities.resources, "resources")
            }
        };
        if offered {
            Ok(())
        } else {
            Err(Refusal::new(
                ErrorKind::CapabilityMissing,
                format!("the server did not declare {name}"),
            ))
        }
    }

    /// Returns the information of one backend, unchanged. `tasks`: the broker hosts tasks.
    pub fn single(lists: &BackendLists, tasks: bool) -> Self {
        let server = &lists.server;
        Self {
            capabilities: advertised(&server.capabilities, false, tasks),
            server_info: server.server_info.clone(),
            instructions: lists.instructions().map(cut),
        }
    }

    /// Returns the information of the broker, with the instructions of its backends. `description`:
    /// the operator's description of the endpoint.
    pub fn aggregated(catalog: &Catalog, description: Option<&str>, tasks: bool) -> Self {
        let of_backends = catalog.backends.iter().filter_map(|(backend, lists)| {
            Some(format!("# {backend}\n{}", cut(lists.instructions()?)))
        });
        let parts: Vec<String> =
            description.map(str::to_owned).into_iter().chain(of_backends).collect();
        let instructions = (!parts.is_empty()).then(|| parts.join("\n\n"));
        Self {
            capabilities: advertised(&catalog.capabilities, true, tasks),
            server_info: Bytes::from_static(BROKER_INFO.as_bytes()),
            instructions,
        }
    }
}

/// Returns the capabilities that the broker declares. It stores the lists, so it always announces
/// their changes. The aggregated endpoint always has a tool list, because a backend may be added
/// during a session. With tools there are tasks: the broker runs those of a backend without tasks.
fn advertised(
    capabilities: &ServerCapabilities,
    aggregated: bool,
    tasks: bool,
) -> ServerCapabilities {
    let mut raw: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(capabilities.raw()).unwrap_or_default();
    if aggregated {
        raw.entry("tools").or_insert_with(|| serde_json::json!({}));
    }
    for list in ["tools", "prompts", "resources"] {
        if let Some(serde_json::Value::Object(members)) = raw.get_mut(list) {
            members.insert("listChanged".to_owned(), true.into());
        }
    }
    raw.remove("tasks");
    if let Some(serde_json::Value::Object(extensions)) = raw.get_mut("extensions") {
        extensions.remove(EXTENSION_TASKS); // an extension of stateless revisions
    }
    if tasks && raw.contains_key("tools") {
        raw.insert(
            "tasks".to_owned(),
            serde_json::json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}),
        );
    }
    parsed(raw, capabilities)
}

/// Returns the capabilities that exist in the negotiated version (MCP 2025-11-25, Lifecycle: only
/// what was negotiated).
fn limited_to(version: Version, capabilities: ServerCapabilities) -> ServerCapabilities {
    if version.tasks() || !capabilities.tasks {
        return capabilities;
    }
    let mut raw: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(capabilities.raw()).unwrap_or_default();
    raw.remove("tasks");
    parsed(raw, &capabilities)
}

fn parsed(
    raw: serde_json::Map<String, serde_json::Value>,
    before: &ServerCapabilities,
) -> ServerCapabilities {
    let text = serde_json::Value::Object(raw).to_string();
    ServerCapabilities::parse(text.as_bytes()).unwrap_or_else(|_| before.clone())
}

/// Returns the instructions of a backend, cut to [`INSTRUCTIONS_BYTES_MAX`].
fn cut(instructions: &str) -> String {
    let end = instructions.floor_char_boundary(INSTRUCTIONS_BYTES_MAX);
    instructions[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capabilities(text: &str) -> ServerCapabilities {
        ServerCapabilities::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn life_07_capabilities_of_no_backend_are_not_advertised() {
        let offered = advertised(&capabilities(r#"{"tools":{},"logging":{}}"#), true, false);
        assert!(offered.tools && offered.tools_list_changed && offered.logging);
        assert!(!offered.prompts && !offered.resources && !offered.completions && !offered.tasks);
    }

    #[test]
    fn the_aggregated_endpoint_always_has_a_tool_list() {
        assert!(advertised(&capabilities("{}"), true, true).tools);
        assert!(!advertised(&capabilities("{}"), false, true).tools);
    }

    #[test]
    fn task_01_tasks_are_offered_where_there_are_tools() {
        let (plain, with) = (r#"{"tools":{}}"#, r#"{"tools":{},"tasks":{"list":{}}}"#);
        for text in [plain, with] {
            let offered = advertised(&capabilities(text), false, true);
            assert!(offered.tasks_list && offered.tasks_cancel && offered.tasks_tools_call);
            assert!(!advertised(&capabilities(text), false, false).tasks, "switched off");
        }
        assert!(!advertised(&capabilities(r#"{"prompts":{}}"#), false, true).tasks);
    }

    #[test]
    fn life_05_tasks_are_not_offered_to_clients_of_earlier_revisions() {
        let tasks = r#"{"tools":{},"tasks":{"list":{}}}"#;
        assert!(limited_to(Version::V2025_11_25, capabilities(tasks)).tasks);
        assert!(!limited_to(Version::V2025_06_18, capabilities(tasks)).tasks);
    }

    #[test]
    fn long_instructions_are_cut_between_characters() {
        let long = "ä".repeat(INSTRUCTIONS_BYTES_MAX);
        assert!(cut(&long).len() <= INSTRUCTIONS_BYTES_MAX);
        assert_eq!(cut("short"), "short");
    }
}
