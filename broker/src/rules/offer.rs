//! What an endpoint tells a new client about itself: capabilities, server, instructions (MCP 2025-11-25, Lifecycle).

use bytes::Bytes;
use protocol::{capabilities::ServerCapabilities, version::Version};

use super::catalog::{BackendLists, Catalog};
use crate::{BROKER_INFO, limits::INSTRUCTIONS_BYTES_MAX};

/// What an endpoint tells a new client.
#[derive(Debug)]
pub struct Offer {
    pub capabilities: ServerCapabilities,
    pub server_info: Bytes,
    pub instructions: Option<String>,
}

impl Offer {
    /// Without what the version agreed on does not know.
    pub fn known_in(mut self, version: Version) -> Self {
        self.capabilities = known_in(version, self.capabilities);
        self
    }

    /// One backend, as itself.
    pub fn single(lists: &BackendLists) -> Self {
        let server_info = lists.server_info.clone();
        Self { capabilities: advertised(&lists.capabilities, false), server_info, instructions: lists.instructions.as_deref().map(cut) }
    }

    /// The broker, with what its backends say about themselves.
    pub fn aggregated(catalog: &Catalog) -> Self {
        let told: Vec<String> = catalog
            .backends
            .iter()
            .filter_map(|(backend, lists)| Some(format!("# {backend}\n{}", cut(lists.instructions.as_deref()?))))
            .collect();
        let instructions = (!told.is_empty()).then(|| told.join("\n\n"));
        Self {
            capabilities: advertised(&catalog.capabilities, true),
            server_info: Bytes::from_static(BROKER_INFO.as_bytes()),
            instructions,
        }
    }
}

/// The backends' capabilities as the broker serves them: it keeps the lists, so it always says when one changes. The
/// aggregated endpoint has a tool list whatever its backends have, because others may be added while a session lives.
fn advertised(capabilities: &ServerCapabilities, aggregated: bool) -> ServerCapabilities {
    let mut raw: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(capabilities.raw()).unwrap_or_default();
    if aggregated {
        raw.entry("tools").or_insert_with(|| serde_json::json!({}));
    }
    for list in ["tools", "prompts", "resources"] {
        if let Some(serde_json::Value::Object(members)) = raw.get_mut(list) {
            members.insert("listChanged".to_owned(), true.into());
        }
    }
    parsed(raw, capabilities)
}

/// What of it exists in the version that was agreed on (MCP 2025-11-25, Lifecycle: only what was negotiated).
fn known_in(version: Version, capabilities: ServerCapabilities) -> ServerCapabilities {
    if version.tasks() || !capabilities.tasks {
        return capabilities;
    }
    let mut raw: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(capabilities.raw()).unwrap_or_default();
    raw.remove("tasks");
    parsed(raw, &capabilities)
}

fn parsed(raw: serde_json::Map<String, serde_json::Value>, before: &ServerCapabilities) -> ServerCapabilities {
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
        let offered = advertised(&capabilities(r#"{"tools":{},"logging":{}}"#), true);
        assert!(offered.tools && offered.tools_list_changed && offered.logging);
        assert!(!offered.prompts && !offered.resources && !offered.completions && !offered.tasks);
    }

    #[test]
    fn the_aggregated_endpoint_always_has_a_tool_list() {
        assert!(advertised(&capabilities("{}"), true).tools);
        assert!(!advertised(&capabilities("{}"), false).tools);
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
