//! The arguments that the tools of one backend want repeated in headers (MCP 2026-07-28, Streamable
//! HTTP).

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwap;
use protocol::stateless::tool_headers::ParamHeader;
use rules::limits::LIST_ENTRIES_MAX;

/// The arguments that tools want repeated in headers, by the backend's own name of the tool.
#[derive(Debug, Default)]
pub(super) struct ParamHeaders(ArcSwap<HashMap<String, Vec<ParamHeader>>>);

impl ParamHeaders {
    pub(super) fn of(&self, tool: &str) -> Vec<ParamHeader> {
        self.0.load().get(tool).cloned().unwrap_or_default()
    }

    /// Stores the arguments of all tools. Other tools want none.
    pub(super) fn replace(&self, by_tool: HashMap<String, Vec<ParamHeader>>) {
        self.0.store(Arc::new(by_tool));
    }

    /// Adds the arguments of some tools.
    pub(super) fn add(&self, by_tool: &HashMap<String, Vec<ParamHeader>>) {
        self.0.rcu(|known| {
            let mut next = match known.len() > LIST_ENTRIES_MAX {
                true => HashMap::new(),
                false => HashMap::clone(known),
            };
            next.extend(by_tool.clone());
            next
        });
    }
}
