//! What an endpoint tells a new client about itself: capabilities, server, instructions (MCP 2025-11-25, Lifecycle).

use bytes::Bytes;
use protocol::{
    capabilities::ServerCapabilities,
    error::{ErrorKind, Refusal},
    version::Version,
};

use super::catalog::{BackendLists, Catalog, ListKind};
use crate::{BROKER_INFO, limits::INSTRUCTIONS_BYTES_MAX};

/// What an endpoint tells a new client.
#[derive(Debug)]
pub struct EndpointInfo {
    pub capabilities: ServerCapabilities,
    pub server_info: Bytes,
    pub instructions: Option<String>,
}

impl EndpointInfo {
    /// Without what the version agreed on does not know.
    pub fn known_in(mut self, version: Version) -> Self {
        self.capabilities = known_in(version, self.capabilities);
        self
    }

    /// Whether there is such a list. Only that of tools may be asked for unseen, as in earlier revisions.
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

    /// One backend, as itself. `tasks`: the broker hosts tasks.
    pub fn single(lists: &BackendLists, tasks: bool) -> Self {
        let server = &lists.server;
        Self {
            capabilities: advertised(&server.capabilities, false, tasks),
            server_info: server.server_info.clone(),
            instructions: server.instructions.as_deref().map(cut),
        }
    }

    /// The broker, with what its backends say about themselves.
    pub fn aggregated(catalog: &Catalog, tasks: bool) -> Self {
        let told: Vec<String> = catalog
            .backends
            .iter()
            .filter_map(|(backend, lists)| {
                Some(format!("# {backend}\n{}", cut(lists.server.instructions.as_deref()?)))
            })
            .collect();
        let instructions = (!told.is_empty()).then(|| told.join("\n\n"));
        Self {
            capabilities: advertised(&catalog.capabilities, true, tasks),
            server_info: Bytes::from_static(BROKER_INFO.as_bytes()),
            instructions,
        }
    }
}

/// The backends' capabilities as the broker serves them: it keeps the lists, so it always says when one changes. The
/// aggregated endpoint has a tool list whatever its backends have, because others may be added while a session lives. Where
/// there are tools there are tasks: for a backend that has none the broker keeps them.
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
    if tasks && raw.contains_key("tools") {
        raw.insert(
            "tasks".to_owned(),
            serde_json::json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}),
        );
    }
    parsed(raw, capabilities)
}

/// What of it exists in the version that was agreed on (MCP 2025-11-25, Lifecycle: only what was negotiated).
fn known_in(version: Version, capabilities: ServerCapabilities) -> ServerCapabilities {
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

/// A backend's instructions, as far as they are worth a client's while.
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
    fn life_07_what_no_backend_has_is_not_offered() {
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
    fn life_05_tasks_are_not_offered_to_clients_that_can_not_know_them() {
        let tasks = r#"{"tools":{},"tasks":{"list":{}}}"#;
        assert!(known_in(Version::V2025_11_25, capabilities(tasks)).tasks);
        assert!(!known_in(Version::V2025_06_18, capabilities(tasks)).tasks);
    }

    #[test]
    fn long_instructions_are_cut_between_characters() {
        let long = "ä".repeat(INSTRUCTIONS_BYTES_MAX);
        assert!(cut(&long).len() <= INSTRUCTIONS_BYTES_MAX);
        assert_eq!(cut("short"), "short");
    }
}
