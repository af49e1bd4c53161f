//! Lists of a backend, for tests.

use protocol::ids::BackendId;
use rules::catalog::{BackendLists, ListKind, TaskHost, read_page};

/// Returns the lists of a backend with one tool.
pub(crate) fn lists_with_tool(backend: &BackendId, tool: &str) -> BackendLists {
    let page = format!(r#"{{"tools":[{tool}]}}"#);
    let page = read_page(ListKind::Tools, backend, TaskHost::Backend, page.as_bytes());
    BackendLists {
        tools: page.unwrap().entries,
        ..BackendLists::declaring(br#"{"tools":{}}"#).unwrap()
    }
}
