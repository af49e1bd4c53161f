//! The backend of a call, as it was when the call began.

use std::sync::Arc;

use protocol::{ids::BackendId, method::Method};
use rules::routing::Plan;

use crate::backends::{backend::Backend, backend_admission::call_kind};

/// The destination of a call.
#[derive(Debug)]
pub(super) struct CallTarget {
    pub(super) backend: BackendId,
    /// The backend of that name, if it was registered when the call began.
    pub(super) registered: Option<Arc<Backend>>,
    /// Number of the kind of the call at its backend. All calls of one tool have the same kind.
    pub(super) kind: u64,
    /// True if a repetition of the call has no further effect.
    pub(super) is_repeatable: bool,
}

impl CallTarget {
    pub(super) fn new(method: Method, plan: &Plan, registered: Option<Arc<Backend>>) -> Self {
        let tool = plan.target.tool();
        let tool_name = tool.map(|tool| tool.name.as_str());
        let kind = registered.as_ref().map(|backend| call_kind(backend, method, tool_name));
        Self {
            backend: plan.backend.clone(),
            registered,
            kind: kind.unwrap_or_default(),
            is_repeatable: tool.map_or(method.is_idempotent(), |tool| tool.is_repeatable),
        }
    }
}
