//! A call that its policy lets pass after an approval only, and its request for one.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::{ApprovalId, BackendId},
};
use records::{
    ApprovalBinding, ApprovalLimit, ApprovalLimits, ApprovalOpening, ApprovalRecord, StoredApproval,
};
use rules::{
    access::ApprovalTerms,
    approvals::arguments_hash,
    limits::approvals::{
        APPROVAL_ARGUMENTS_BYTES_MAX, APPROVAL_ID_BYTES, APPROVALS_PENDING_PER_PRINCIPAL_MAX,
        APPROVALS_PENDING_PER_TENANT_MAX,
    },
    routing::Plan,
};

use crate::sessions::{access_checks, session::Session};

const LIMITS: ApprovalLimits = ApprovalLimits {
    per_principal: APPROVALS_PENDING_PER_PRINCIPAL_MAX,
    per_tenant: APPROVALS_PENDING_PER_TENANT_MAX,
};

/// A call, and the approval that it needs.
#[derive(Debug)]
pub(in crate::sessions) struct HeldCall {
    record: ApprovalRecord,
    rule: String,
}

/// What lets a call pass, now or later.
#[derive(Debug)]
pub(in crate::sessions) enum OpenedApproval {
    Approval(Box<StoredApproval>),
    /// A window lets the call pass at once, by this approval.
    Window(ApprovalId),
}

impl HeldCall {
    /// Returns the call of a plan as one that waits, if the plan requires an approval.
    pub(in crate::sessions) fn of_plan(
        session: &Session,
        message: &Message,
        plan: &Plan,
    ) -> Result<Option<Self>, Refusal> {
        let (Some(terms), Some(tool)) = (&plan.approval, plan.target.tool()) else {
            return Ok(None);
        };
        if access_checks::is_disabled("approvals") {
            return Ok(None);
        }
        // What the backend gets, where an operator fixed arguments.
        let fixed = plan.arguments.as_deref();
        let arguments = fixed.or_else(|| message.bytes(message.fields.arguments));
        Self::new(session, arguments, &plan.backend, &tool.name, terms).map(Some)
    }

    /// Reads what the approval is bound to from the call and from the catalog of its session.
    fn new(
        session: &Session,
        arguments: Option<&[u8]>,
        backend: &BackendId,
        tool: &str,
        terms: &ApprovalTerms,
    ) -> Result<Self, Refusal> {
        let size = arguments.map_or(0, <[u8]>::len);
        if size > APPROVAL_ARGUMENTS_BYTES_MAX {
            let text = format!(
                "the arguments of a call that needs an approval must have at most {APPROVAL_ARGUMENTS_BYTES_MAX} bytes"
            );
            return Err(Refusal::new(ErrorKind::MessageTooLarge, text)
                .with("size", size)
                .with("maxSize", APPROVAL_ARGUMENTS_BYTES_MAX));
        }
        let unreadable = || Refusal::new(ErrorKind::InvalidParams, "params.arguments is not JSON");
        let unlisted = || {
            let text = "the tool is not listed at present, so its calls cannot be approved";
            Refusal::new(ErrorKind::BackendUnavailable, text)
        };
        let identity = session.catalog().full.tool_identity(backend, tool).ok_or_else(unlisted)?;
        let binding = ApprovalBinding {
            tenant: session.tenant.id.clone(),
            principal: session.caller.principal.clone(),
            backend: backend.clone(),
            tool: tool.to_owned(),
            definition: identity.definition,
            pin: identity.pin.map(|pin| pin.to_string()),
            arguments_hash: arguments_hash(arguments).ok_or_else(unreadable)?,
        };
        let id = URL_SAFE_NO_PAD.encode(rand::random::<[u8; APPROVAL_ID_BYTES]>());
        let record = ApprovalRecord {
            id: ApprovalId::new(format!("apr_{id}")),
            binding,
            arguments: arguments.unwrap_or(b"{}").to_vec(),
            terms: terms.encode(),
            ttl: terms.ttl,
        };
        Ok(Self { record, rule: terms.rule.clone() })
    }

    /// Requests the approval. An equal call that waits already has the same one.
    pub(in crate::sessions) async fn open(
        &self,
        session: &Session,
    ) -> Result<OpenedApproval, Refusal> {
        let shared = &session.shared;
        let persistence = &shared.persistence;
        let opening = persistence.store.open_approval(&self.record, LIMITS);
        let ApprovalBinding { tenant, principal, backend, tool, .. } = &self.record.binding;
        match persistence.timed("open_approval", opening).await? {
            ApprovalOpening::Open(approval) => {
                let is_new = approval.record.id == self.record.id;
                if is_new {
                    shared.metrics.approvals.opened();
                }
                tracing::info!(%tenant, %principal, %backend, tool, rule = self.rule, approval = %approval.record.id, is_new, state = approval.state.name(), "a call needs an approval");
                Ok(OpenedApproval::Approval(approval))
            }
            ApprovalOpening::Window(approval) => {
                tracing::info!(%tenant, %principal, %backend, tool, rule = self.rule, %approval, "the time window of an approval allows a call");
                Ok(OpenedApproval::Window(approval))
            }
            ApprovalOpening::LimitReached(limit) => {
                session.tenant.counts.rate_limited("approvals");
                Err(full(limit))
            }
        }
    }

    pub(in crate::sessions) fn binding(&self) -> &ApprovalBinding {
        &self.record.binding
    }
}

fn full(limit: ApprovalLimit) -> Refusal {
    let text = match limit {
        ApprovalLimit::Principal => format!(
            "{APPROVALS_PENDING_PER_PRINCIPAL_MAX} calls of this principal wait for an approval, which is the limit"
        ),
        ApprovalLimit::Tenant => format!(
            "{APPROVALS_PENDING_PER_TENANT_MAX} calls of this tenant wait for an approval, which is the limit"
        ),
    };
    Refusal::new(ErrorKind::ApprovalLimit, text)
}
