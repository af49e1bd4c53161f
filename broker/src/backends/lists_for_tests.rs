//! Lists of a backend, for tests.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    capabilities::ServerCapabilities, handshake::InitializeResult, ids::BackendId, version::Version,
};
use rules::catalog::{BackendLists, CatalogMarks, HeldParts, ListKind, TaskHost, read_page};

/// Returns the lists of a backend with one tool.
pub(crate) fn lists_with_tool(backend: &BackendId, tool: &str) -> BackendLists {
    let server = InitializeResult {
        version: Version::LATEST_WITH_SESSIONS,
        capabilities: ServerCapabilities::parse(br#"{"tools":{}}"#).unwrap(),
        server_info: Bytes::from_static(b"{}"),
        server_name: backend.to_string(),
        server_version: String::new(),
        instructions: None,
    };
    let page = format!(r#"{{"tools":[{tool}]}}"#);
    let page = read_page(ListKind::Tools, backend, TaskHost::Backend, page.as_bytes());
    BackendLists {
        server: Arc::new(server),
        tools: page.unwrap().entries,
        prompts: vec![],
        resources: vec![],
        resource_templates: vec![],
        stale: false,
        held: HeldParts::default(),
        marks: CatalogMarks::default(),
    }
}
