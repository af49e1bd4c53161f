//! Operations on approvals: the list of calls that wait for a person, and the person's decision.
//!
//! The decision and its audit record are one transaction, and the first decision counts. The audit
//! log has digests of the call, not its arguments.

use std::time::Duration;

use config::{FieldError, units::format_duration};
use protocol::ids::{ApprovalId, TenantId};
use records::{
    AdminChange, ApprovalDecision, ApprovalFilter, ApprovalListPosition, ApprovalState,
    StoredApproval,
};
use rules::{
    access::{ApprovalTerms, Approvers},
    approvals::is_for,
    limits::approvals::{APPROVAL_REASON_BYTES_MAX, APPROVAL_WINDOW_MAX},
    operators::{Operator, Permission},
};
use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};
use utoipa::ToSchema;

use super::{Author, Control, ControlError, resource_views::moment, validation::now_us};
use crate::auth::is_printable;

/// A call that waits, or waited, for the approval of a person.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ApprovalView {
    pub id: String,
    /// Principal of the caller, as sessions show it.
    pub principal: String,
    pub backend: String,
    /// The backend's name of the tool.
    pub tool: String,
    /// The arguments exactly as the client sent them. Only for operators who may decide; absent
    /// once the approval has expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub arguments: Option<Box<RawValue>>,
    /// The same as a text, because many readers of JSON round large numbers. Absent in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments_text: Option<String>,
    /// Hash of the arguments with sorted members and without white space.
    pub arguments_hash: String,
    /// Hash of the tool's definition.
    pub definition: String,
    /// Hash of the tool's pin, to which the approval is bound. Absent: the tool is not pinned, and
    /// the approval is bound to the definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<String>,
    /// True if the tool is not the one that the call was made for: its definition changed, or it
    /// is not listed or held by now. Such a call is not executed.
    pub tool_changed: bool,
    /// `pending`, `approved`, `denied`, `expired` or `used`.
    pub state: String,
    /// Id of the policy's rule.
    pub rule: String,
    /// Text of the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule_reason: Option<String>,
    /// Operators whom the rule lets decide; absent: all with the permission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Approvers>,
    /// Whether another person than the caller must decide.
    pub four_eyes: bool,
    pub created_at: String,
    /// End of the time for the decision, or for the use of an approval.
    pub expires_at: String,
    /// Operator who decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Until then, calls of the tool by the principal need no other approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_until: Option<String>,
}

/// A decision, as an operator asks for it.
#[derive(Debug)]
pub struct NewDecision {
    pub approves: bool,
    pub reason: Option<String>,
    /// Time for which calls of the tool by the principal need no other approval.
    pub window: Option<Duration>,
}

impl Control {
    /// Returns a page of the approvals of a tenant that an operator sees, newest first, and the
    /// position at which the next page begins.
    pub async fn approvals(
        &self,
        operator: &Operator,
        tenant: &TenantId,
        state: Option<ApprovalState>,
        after: Option<&ApprovalListPosition>,
        limit: u32,
    ) -> Result<(Vec<ApprovalView>, Option<ApprovalListPosition>), ControlError> {
        self.check_tenant(tenant)?;
        let filter = ApprovalFilter { state, backends: operator.backends_of(tenant.as_str()) };
        let listing = self.store().approvals_of(tenant, &filter, after, limit);
        let found = self.query_store("list_approvals", listing).await?;
        // A page omits rows that cannot be read, so a short page is not the last one.
        let next = found.last().map(|last| ApprovalListPosition {
            created_at_us: last.created_at_us,
            id: last.record.id.clone(),
        });
        let views = found.iter().map(|approval| self.approval_view(operator, approval)).collect();
        Ok((views, next))
    }

    pub async fn approval(
        &self,
        operator: &Operator,
        tenant: &TenantId,
        id: &ApprovalId,
    ) -> Result<ApprovalView, ControlError> {
        let found = self.seen_approval(operator, tenant, id).await?;
        Ok(self.approval_view(operator, &found).with_text())
    }

    /// Decides about a call. The calls that wait for it continue here at once, and on other
    /// replicas within a moment.
    pub async fn decide_approval(
        &self,
        operator: &Operator,
        tenant: &TenantId,
        id: &ApprovalId,
        wanted: NewDecision,
        author: &Author,
    ) -> Result<ApprovalView, ControlError> {
        wanted.check()?;
        let pending = self.seen_approval(operator, tenant, id).await?;
        let unreadable = || ControlError::Internal;
        let terms = ApprovalTerms::decode(&pending.record.terms).ok_or_else(unreadable)?;
        let requester = &pending.record.binding.principal;
        terms.check_operator(requester, operator).map_err(ControlError::NotApprover)?;
        if pending.state != ApprovalState::Pending {
            return Err(decided(&pending));
        }
        let decision = ApprovalDecision {
            tenant: tenant.clone(),
            id: id.clone(),
            approves: wanted.approves,
            by: operator.name.clone(),
            reason: wanted.reason.clone(),
            window: wanted.window,
        };
        let [before, after] = audited(&pending, &decision);
        author.record_values(Some(&before), Some(&after));
        let is_made = self.commit(None, AdminChange::DecideApproval(&decision), author).await?;
        self.broker.shared.approval_waits.wake(id);
        let now = self.seen_approval(operator, tenant, id).await?;
        if !is_made {
            return Err(decided(&now));
        }
        let waited = now_us().saturating_sub(pending.created_at_us);
        let waited = Duration::from_micros(u64::try_from(waited).unwrap_or(0));
        self.metrics.approvals.decided(decision.state(), waited);
        let binding = &pending.record.binding;
        tracing::info!(%tenant, principal = %requester, backend = %binding.backend, tool = binding.tool, approval = %id, by = operator.name, state = decision.state().name(), window = decision.window.map(format_duration), "an approval was decided");
        Ok(self.approval_view(operator, &now).with_text())
    }

    fn approval_view(&self, operator: &Operator, approval: &StoredApproval) -> ApprovalView {
        let tool_changed = approval.is_void || self.has_other_tool(approval);
        ApprovalView { tool_changed, ..view(operator, approval) }
    }

    /// Returns whether the tool of a call that can still be executed has changed. This replica may
    /// not have read the lists of its backend yet.
    fn has_other_tool(&self, approval: &StoredApproval) -> bool {
        let binding = &approval.record.binding;
        let is_open = matches!(approval.state, ApprovalState::Pending | ApprovalState::Approved);
        let catalog = self.broker.full_catalog(&binding.tenant).filter(|_| is_open);
        catalog.is_some_and(|catalog| {
            catalog.backends.contains_key(&binding.backend)
                && !is_for(binding, catalog.tool_identity(&binding.backend, &binding.tool))
        })
    }

    /// Loads an approval that an operator sees.
    async fn seen_approval(
        &self,
        operator: &Operator,
        tenant: &TenantId,
        id: &ApprovalId,
    ) -> Result<StoredApproval, ControlError> {
        self.check_tenant(tenant)?;
        let found = self.query_store("get_approval", self.store().approval(id)).await?;
        let is_of_tenant = |found: &StoredApproval| found.record.binding.tenant == *tenant;
        found
            .filter(|found| is_of_tenant(found) && is_seen(operator, found))
            .ok_or_else(|| ControlError::NotFound { what: "approval", name: id.to_string() })
    }
}

impl ApprovalView {
    fn with_text(self) -> Self {
        let arguments_text = self.arguments.as_ref().map(|arguments| arguments.get().to_owned());
        Self { arguments_text, ..self }
    }
}

impl NewDecision {
    fn check(&self) -> Result<(), ControlError> {
        let fault = |path: &str, wrong: &str, allowed: String| {
            Err(ControlError::Invalid(FieldError::new(path, wrong, allowed)))
        };
        if let Some(reason) = &self.reason
            && (reason.len() > APPROVAL_REASON_BYTES_MAX || !is_printable(reason))
        {
            let allowed =
                format!("at most {APPROVAL_REASON_BYTES_MAX} bytes of visible text on one line");
            return fault("reason", "is too long or has invisible characters", allowed);
        }
        match self.window {
            Some(_) if !self.approves => {
                fault("for", "is not allowed for a denial", "the decision approve".to_owned())
            }
            Some(window) if window.is_zero() || window > APPROVAL_WINDOW_MAX => {
                let allowed = format!("1ms to {}", format_duration(APPROVAL_WINDOW_MAX));
                fault("for", "is out of range", allowed)
            }
            _ => Ok(()),
        }
    }
}

fn is_seen(operator: &Operator, approval: &StoredApproval) -> bool {
    let binding = &approval.record.binding;
    operator.covers_backend(binding.tenant.as_str(), binding.backend.as_str())
}

fn decided(approval: &StoredApproval) -> ControlError {
    ControlError::Decided {
        id: approval.record.id.to_string(),
        state: approval.state.name(),
        by: approval.decided_by.clone(),
    }
}

/// Returns the approval before and after a decision, as the audit log has it.
fn audited(approval: &StoredApproval, decision: &ApprovalDecision) -> [String; 2] {
    let binding = &approval.record.binding;
    let value = |state: &str| {
        json!({
            "state": state,
            "principal": binding.principal.as_str(),
            "backend": binding.backend.as_str(),
            "tool": binding.tool,
            "definition": digest(&binding.definition),
            "pin": binding.pin,
            "arguments_hash": digest(&binding.arguments_hash),
        })
    };
    let mut after = value(decision.state().name());
    after["reason"] = json!(decision.reason);
    after["for"] = json!(decision.window.map(format_duration));
    [value(approval.state.name()).to_string(), after.to_string()]
}

fn view(operator: &Operator, approval: &StoredApproval) -> ApprovalView {
    let StoredApproval { record, state, .. } = approval;
    let binding = &record.binding;
    let terms = ApprovalTerms::decode(&record.terms);
    let arguments = || {
        let text = std::str::from_utf8(&record.arguments).ok()?;
        RawValue::from_string(text.to_owned()).ok()
    };
    ApprovalView {
        id: record.id.to_string(),
        principal: binding.principal.to_string(),
        backend: binding.backend.to_string(),
        tool: binding.tool.clone(),
        arguments: operator.permits(Permission::ApprovalsDecide).then(arguments).flatten(),
        arguments_text: None,
        arguments_hash: digest(&binding.arguments_hash),
        definition: digest(&binding.definition),
        pin: binding.pin.clone(),
        tool_changed: false,
        state: state.name().to_owned(),
        rule: terms.as_ref().map_or_else(String::new, |terms| terms.rule.clone()),
        rule_reason: terms.as_ref().and_then(|terms| terms.reason.clone()),
        four_eyes: terms.as_ref().is_none_or(|terms| terms.four_eyes),
        by: terms.and_then(|terms| terms.by),
        created_at: moment(approval.created_at_us),
        expires_at: moment(approval.expires_at_us),
        decided_by: approval.decided_by.clone(),
        decided_at: approval.decided_at_us.map(moment),
        reason: approval.decision_reason.clone(),
        window_until: approval.window_until_us.map(moment),
    }
}

fn digest(bytes: &[u8]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}
