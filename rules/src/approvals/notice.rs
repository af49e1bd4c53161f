//! The message to the client of a call about its approval: a tool result with `isError`, so that
//! every revision and every model can read it.

use protocol::{ids::ApprovalId, json::quote};
use records::{ApprovalState, StoredApproval, TaskStatus};

use crate::{
    limits::STATUS_MESSAGE_CHARS_MAX,
    tasks::{TaskOutcome, iso},
};

/// Member of `_meta` with the approval of a call.
pub const APPROVAL_META: &str = "dev.mcp-broker/approval";

/// Where a call stands that its policy lets pass after an approval only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalStanding {
    /// No person has decided so far.
    Waits,
    Denied,
    Expired,
    /// Another equal call used the approval.
    UsedElsewhere,
    /// The tool's definition is not the one that was approved.
    ToolChanged,
}

/// The state of one approval, for its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalNotice {
    pub id: ApprovalId,
    pub standing: ApprovalStanding,
    expires_at_us: i64,
    /// The operator's reason for a denial.
    reason: Option<String>,
}

impl ApprovalNotice {
    pub fn new(approval: &StoredApproval, standing: ApprovalStanding) -> Self {
        let is_denied = standing == ApprovalStanding::Denied;
        Self {
            id: approval.record.id.clone(),
            standing,
            expires_at_us: approval.expires_at_us,
            reason: approval.decision_reason.clone().filter(|_| is_denied),
        }
    }

    /// Returns whether the call can still be approved.
    pub fn is_waiting(&self) -> bool {
        self.standing == ApprovalStanding::Waits
    }

    /// Returns the text for people and models.
    pub fn text(&self) -> String {
        let id = &self.id;
        match self.standing {
            ApprovalStanding::Waits => format!(
                "This call waits for the approval of a person (approval {id}, until {}). It was not executed. Make exactly the same call again later: it is executed once the approval is given.",
                iso(self.expires_at_us)
            ),
            ApprovalStanding::Denied => {
                let reason = self.reason.as_ref().map(|reason| format!(": {reason}"));
                format!(
                    "A person denied this call (approval {id}){}. It was not executed.",
                    reason.unwrap_or_default()
                )
            }
            ApprovalStanding::Expired => format!(
                "The approval {id} of this call expired. The call was not executed. Make the same call again to ask for another approval."
            ),
            ApprovalStanding::UsedElsewhere => format!(
                "Another equal call used the approval {id}. This call was not executed. Make it again to ask for another approval."
            ),
            ApprovalStanding::ToolChanged => format!(
                "The definition of the tool changed after approval {id} was asked for. The call was not executed. Make it again to ask for another approval."
            ),
        }
    }

    /// Returns the value of [`APPROVAL_META`].
    pub fn meta(&self) -> String {
        let state = match self.standing {
            ApprovalStanding::Waits => ApprovalState::Pending,
            ApprovalStanding::Denied => ApprovalState::Denied,
            ApprovalStanding::Expired | ApprovalStanding::ToolChanged => ApprovalState::Expired,
            ApprovalStanding::UsedElsewhere => ApprovalState::Used,
        };
        format!(
            "{{\"id\":{},\"state\":\"{}\",\"expiresAt\":\"{}\"}}",
            quote(self.id.as_str()),
            state.name(),
            iso(self.expires_at_us)
        )
    }

    /// Returns the end of a task whose call was not approved.
    pub fn task_outcome(&self) -> TaskOutcome {
        let text = self.text();
        let message = text.chars().filter(|char| !char.is_control());
        TaskOutcome {
            status: TaskStatus::Failed,
            message: Some(message.take(STATUS_MESSAGE_CHARS_MAX).collect()),
            outcome: [b"{\"result\":", self.result().as_bytes(), b"}"].concat(),
        }
    }

    /// Returns the result of the tool call.
    pub fn result(&self) -> String {
        format!(
            "{{\"content\":[{{\"type\":\"text\",\"text\":{}}}],\"isError\":true,\"_meta\":{{\"{APPROVAL_META}\":{}}}}}",
            quote(&self.text()),
            self.meta()
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use protocol::ids::{BackendId, PrincipalId, TenantId};
    use records::{ApprovalBinding, ApprovalRecord};

    use super::*;

    #[test]
    fn a_notice_is_a_tool_result_with_the_id_and_the_reason() {
        let approval = StoredApproval {
            record: ApprovalRecord {
                id: ApprovalId::new("apr_1"),
                binding: ApprovalBinding {
                    tenant: TenantId::parse("acme").unwrap(),
                    principal: PrincipalId::new("ann"),
                    backend: BackendId::parse("pay").unwrap(),
                    tool: "send".to_owned(),
                    definition: [0; 32],
                    pin: None,
                    arguments_hash: [0; 32],
                },
                arguments: b"{}".to_vec(),
                terms: String::new(),
                ttl: Duration::ZERO,
            },
            state: ApprovalState::Denied,
            decided_by: Some("olga".to_owned()),
            decision_reason: Some("too \"much\"".to_owned()),
            decided_at_us: None,
            is_void: false,
            window_until_us: None,
            created_at_us: 0,
            expires_at_us: 1_000_000,
            remaining_time: Duration::ZERO,
        };
        let read = |standing| -> serde_json::Value {
            serde_json::from_str(&ApprovalNotice::new(&approval, standing).result()).unwrap()
        };
        let denied = read(ApprovalStanding::Denied);
        let text = denied["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("apr_1") && text.contains(": too \"much\"."), "{text}");
        assert_eq!(denied["isError"], true);
        let meta = &denied["_meta"][APPROVAL_META];
        assert_eq!(
            *meta,
            serde_json::json!({"id": "apr_1", "state": "denied", "expiresAt": "1970-01-01T00:00:01Z"})
        );
        let waits = read(ApprovalStanding::Waits);
        assert_eq!(waits["_meta"][APPROVAL_META]["state"], "pending");
        assert!(!waits.to_string().contains("much"), "no reason but that of a denial");
    }
}
