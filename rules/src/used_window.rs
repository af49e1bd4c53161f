//! The approval window by which a call passes, as the record of a task stores it.

use protocol::ids::ApprovalId;
use records::ApprovalBinding;
use serde::{Deserialize, Serialize};

use crate::catalog::{DefinitionDigest, ToolIdentity};

/// An approval window, and the definition of the tool for which it was open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedWindow {
    /// Id of the approval that opened the window.
    approval: String,
    definition: DefinitionDigest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pin: Option<String>,
}

impl UsedWindow {
    pub fn new(approval: &ApprovalId, binding: &ApprovalBinding) -> Self {
        Self {
            approval: approval.as_str().to_owned(),
            definition: binding.definition,
            pin: binding.pin.clone(),
        }
    }

    pub fn approval(&self) -> ApprovalId {
        ApprovalId::new(&*self.approval)
    }

    /// Returns whether a tool is the one for which the window was open. `None`: the tool is not
    /// listed.
    pub fn is_for(&self, tool: Option<ToolIdentity>) -> bool {
        tool.is_some_and(|tool| tool.is_as(&self.definition, self.pin.as_deref()))
    }
}
