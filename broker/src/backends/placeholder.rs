//! The one tool that stands for the lists of a backend which no user has shown yet. A call of it tells
//! its user what to do.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use protocol::{
    envelope::Message,
    handshake::InitializeResult,
    ids::BackendId,
    json::{self, quote},
};
use rules::catalog::{BackendLists, ListAllowance, ListKind, TaskHost, read_page_pinned};
use serde_json::{Map, Value, json};

use super::pins::PinKeeper;

/// Whether the tool stands for the lists now.
#[derive(Debug, Default)]
pub struct Placeholder(AtomicBool);

impl Placeholder {
    /// Returns whether the lists of the backend are unknown for want of a user.
    pub fn is_shown(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Shows the tool instead of the backend's lists.
    pub(super) fn show(
        &self,
        id: &BackendId,
        has_accounts: bool,
        pins: &PinKeeper,
        published: &ArcSwapOption<BackendLists>,
    ) {
        let Some(mut lists) = lists(id, has_accounts, pins) else { return };
        self.0.store(true, Ordering::Relaxed);
        pins.mark(&mut lists);
        published.store(Some(Arc::new(lists)));
    }

    /// Notes that the lists are those of the backend.
    pub(super) fn hide(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Returns the tool as lists. `has_accounts`: users connect accounts at the backend.
pub(super) fn lists(id: &BackendId, has_accounts: bool, pins: &PinKeeper) -> Option<BackendLists> {
    let description = match has_accounts {
        true => {
            "Returns the address at which you connect your account. The tools of this server appear after that."
        }
        false => {
            "Explains that this server needs an access token that the broker may exchange. The tools of this server appear after you authenticate with one."
        }
    };
    let capabilities: Map<String, Value> = ["tools", "prompts", "resources"]
        .map(|list| (list.to_owned(), json!({"listChanged": true})))
        .into_iter()
        .collect();
    let tools = format!(
        r#"{{"tools":[{{"name":"connect","description":{},"inputSchema":{{"type":"object"}}}}]}}"#,
        quote(description)
    );
    let (kind, host) = (ListKind::Tools, TaskHost::Backend);
    let mut lists = empty(&capabilities, true)?;
    lists.tools =
        read_page_pinned(kind, id, host, tools.as_bytes(), pins.ignored(), ListAllowance::WHOLE)
            .ok()?
            .entries;
    lists.tools.iter_mut().for_each(|tool| tool.pin.is_own = true);
    Some(lists)
}

/// Returns lists without entries, of a server that received no request.
pub(super) fn empty(capabilities: &Map<String, Value>, stale: bool) -> Option<BackendLists> {
    let text = json!({"jsonrpc": "2.0", "id": 0, "result": {
        "protocolVersion": "2025-11-25", "capabilities": capabilities,
        "serverInfo": {"name": "unknown", "version": "0"},
    }});
    let answer = Message::decode(Bytes::from(text.to_string()), &json::Limits::default()).ok()?;
    let server = Arc::new(InitializeResult::parse(&answer).ok()?);
    Some(BackendLists { stale, ..BackendLists::empty(server) })
}
