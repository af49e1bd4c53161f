//! A call in flight that waits for the approval of a person, up to its deadline.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use protocol::{error::Refusal, ids::ApprovalId};
use rules::approvals::{ApprovalNotice, ApprovalStanding};

use super::Call;
use crate::{
    backends::requester::Requester as _,
    sessions::approvals::{HeldCall, OpenedApproval, await_decision, ended_unused, use_approval},
    telemetry::request,
};

/// The approval of a call, and whether the call waits for it.
#[derive(Debug)]
pub(super) struct CallApproval {
    held: HeldCall,
    /// Set if the client gets a notice at once that the call waits.
    answers_at_once: AtomicBool,
    /// The approval for which the client comes back.
    returned_for: OnceLock<ApprovalId>,
    notice: OnceLock<ApprovalNotice>,
}

impl Call {
    /// Holds the call until a person has approved it. Called before the call runs.
    pub(in crate::sessions) fn hold(&self, held: HeldCall) {
        let approval = CallApproval {
            held,
            answers_at_once: AtomicBool::new(false),
            returned_for: OnceLock::new(),
            notice: OnceLock::new(),
        };
        let _set_once = self.approval.set(Box::new(approval));
    }

    pub fn is_held(&self) -> bool {
        self.approval.get().is_some()
    }

    /// Makes a held call end at once if it has to wait. Called before the call runs.
    pub fn answer_at_once(&self) {
        if let Some(approval) = self.approval.get() {
            approval.answers_at_once.store(true, Ordering::Relaxed);
        }
    }

    /// Notes the approval for which the client of a held call comes back. Called before the call
    /// runs.
    pub fn return_for(&self, id: ApprovalId) {
        if let Some(approval) = self.approval.get() {
            let _set_once = approval.returned_for.set(id);
        }
    }

    /// Returns why the call ended without being sent, if it lacked its approval.
    pub fn approval_notice(&self) -> Option<&ApprovalNotice> {
        self.approval.get()?.notice.get()
    }

    /// Waits for the approval of the call and uses it. Returns why the call may not leave, if it
    /// may not.
    pub(super) async fn pass_approval(&self) -> Result<Option<ApprovalNotice>, Refusal> {
        let Some(approval) = self.approval.get() else { return Ok(None) };
        let passed = self.request_approval(approval).await?;
        // The wait is not silence of the backend.
        self.touch();
        Ok(passed.err().map(|notice| approval.notice.get_or_init(|| notice).clone()))
    }

    async fn request_approval(
        &self,
        CallApproval { held, answers_at_once, returned_for, .. }: &CallApproval,
    ) -> Result<Result<(), ApprovalNotice>, Refusal> {
        let shared = &self.session.shared;
        // The client learns how its approval ended, before it requests another one.
        if let Some(id) = returned_for.get()
            && let Some(notice) = ended_unused(shared, id, held.binding()).await?
        {
            let _outside = request::with_current(|request| request.record_approval(id));
            return Ok(Err(notice));
        }
        let opened = match held.open(shared).await? {
            OpenedApproval::Approval(opened) => opened,
            OpenedApproval::Window(id) => {
                let _outside = request::with_current(|request| request.record_approval(&id));
                return Ok(Ok(()));
            }
        };
        let id = &opened.record.id;
        let _outside = request::with_current(|request| request.record_approval(id));
        let until = match answers_at_once.load(Ordering::Relaxed) {
            true => Instant::now(),
            false => self.clock.approval_deadline(),
        };
        let decided = await_decision(shared, id, until, true).await?;
        let Some(decided) = decided else {
            return Ok(Err(ApprovalNotice::new(&opened, ApprovalStanding::Expired)));
        };
        // What the caller may do can have changed during the wait.
        if let Some(admitted) = self.admitted.as_ref().filter(|_| decided.is_approved()) {
            let subject = self.session.subject();
            self.session.recheck_access(&subject, admitted, "approved calls")?;
        }
        let binding = held.binding();
        let catalog = self.session.catalog();
        let tool = catalog.full.tool_identity(&binding.backend, &binding.tool);
        let user = format!("call {:032x}", rand::random::<u128>());
        use_approval(shared, &decided, &user, tool).await
    }

    /// Returns the time until which the call waits for a permit. The wait for an approval is not
    /// part of it.
    pub(super) fn permit_due(&self) -> Instant {
        let held = if self.is_held() { self.clock.elapsed() } else { Duration::ZERO };
        self.clock.permit_deadline(held)
    }
}
