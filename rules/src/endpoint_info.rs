//! Information of an endpoint for a new client: capabilities, server, instructions (MCP 2025-11-25,
//! Lifecycle).

use bytes::Bytes;
use protocol::{
    capabilities::ServerCapabilities,
    error::{ErrorKind, Refusal},
    stateless::EXTENSION_TASKS,
    version::Version,
};
use serde_json::{Map, Value, json};

use super::catalog::{BackendLists, Catalog, ListKind};
use crate::limits::INSTRUCTIONS_BYTES_MAX;

/// `serverInfo` and `clientInfo` of the broker itself.
pub const BROKER_INFO: &str =
    concat!(r#"{"name":"mcp-broker","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

/// Capabilities of a server. Each is an object in every revision that has it.
const CAPABILITIES: [&str; 8] = [
    "completions",
    "experimental",
    "extensions",
    "logging",
    "prompts",
    "resources",
    "tasks",
    "tools",
];

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

    /// Returns the information of one backend. `tasks`: the broker hosts tasks.
    pub fn single(lists: &BackendLists, tasks: bool) -> Self {
        let server = &lists.server;
        Self {
            capabilities: advertised(&server.capabilities, false, tasks),
            server_info: without_nulls(&server.server_info),
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
    let mut raw: Map<String, Value> =
        serde_json::from_slice(capabilities.raw()).unwrap_or_default();
    make_objects(&mut raw);
    if aggregated {
        raw.entry("tools").or_insert_with(|| json!({}));
    }
    for list in ["tools", "prompts", "resources"] {
        if let Some(Value::Object(members)) = raw.get_mut(list) {
            members.insert("listChanged".to_owned(), true.into());
        }
    }
    raw.remove("tasks");
    if let Some(Value::Object(extensions)) = raw.get_mut("extensions") {
        extensions.remove(EXTENSION_TASKS); // an extension of stateless revisions
    }
    if tasks && raw.contains_key("tools") {
        raw.insert(
            "tasks".to_owned(),
            json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}),
        );
    }
    parsed(raw, capabilities)
}

/// Makes objects of declared capabilities and features, and removes withdrawn ones. Clients refuse
/// the answer to their `initialize` for one of another type. On the aggregated endpoint, one backend
/// would shut out the clients of all others.
fn make_objects(capabilities: &mut Map<String, Value>) {
    let is_known = |name: &str| CAPABILITIES.contains(&name);
    capabilities.retain(|name, value| !is_known(name) || becomes_object(value));
    for (name, value) in capabilities.iter_mut() {
        let Value::Object(members) = value else { continue };
        match name.as_str() {
            "experimental" | "extensions" => members.retain(|_, feature| becomes_object(feature)),
            name if is_known(name) => members.retain(|_, member| !member.is_null()),
            _ => {}
        }
    }
}

/// Makes an object of a value that declares something. False: the value withdraws it.
fn becomes_object(value: &mut Value) -> bool {
    match value {
        Value::Object(_) => true,
        Value::Null | Value::Bool(false) => false,
        _ => {
            *value = json!({});
            true
        }
    }
}

/// Returns an object without the members that are `null`. Many servers write it for a member that
/// they do not have.
fn without_nulls(object: &Bytes) -> Bytes {
    match serde_json::from_slice::<Map<String, Value>>(object) {
        Ok(mut members) if members.values().any(Value::is_null) => {
            members.retain(|_, member| !member.is_null());
            Value::Object(members).to_string().into()
        }
        _ => object.clone(),
    }
}

/// Returns the capabilities that exist in the negotiated version (MCP 2025-11-25, Lifecycle: only
/// what was negotiated).
fn limited_to(version: Version, capabilities: ServerCapabilities) -> ServerCapabilities {
    if version.tasks() || !capabilities.tasks {
        return capabilities;
    }
    let mut raw: Map<String, Value> =
        serde_json::from_slice(capabilities.raw()).unwrap_or_default();
    raw.remove("tasks");
    parsed(raw, &capabilities)
}

fn parsed(raw: Map<String, Value>, before: &ServerCapabilities) -> ServerCapabilities {
    let text = Value::Object(raw).to_string();
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
    fn capabilities_are_objects_whatever_the_backend_sent() {
        let sent = r#"{"tools":true,"prompts":null,"logging":false,"resources":{"subscribe":null},"completions":[],
            "experimental":{"streaming":true,"old":null,"x":{"y":null}},"extensions":{"e":"1"},"own":null}"#;
        let merged = ServerCapabilities::merge([capabilities(sent)].iter());
        let changing = json!({"listChanged": true});
        let mut expected = json!({
            "tools": changing, "resources": changing, "completions": {}, "own": null,
            "experimental": {"streaming": {}, "x": {"y": null}}, "extensions": {"e": {}}
        });
        let raw = |offered: ServerCapabilities| -> Value {
            serde_json::from_slice(offered.raw()).unwrap()
        };
        assert_eq!(raw(advertised(&capabilities(sent), false, false)), expected);
        expected.as_object_mut().unwrap().remove("own"); // what cannot be merged
        assert_eq!(raw(advertised(&merged, true, false)), expected);
        assert!(!advertised(&capabilities(r#"{"tools":null}"#), false, true).tasks);
        let info = Bytes::from_static(br#"{"name":"n","title":null,"version":"1","icons":null}"#);
        assert_eq!(without_nulls(&info), r#"{"name":"n","version":"1"}"#);
        let good = Bytes::from_static(br#"{ "version":"1", "name":"n" }"#);
        assert_eq!(without_nulls(&good), good);
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
