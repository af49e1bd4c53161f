//! A call in flight that waits for the approval of a person, up to its deadline.
//!
//! Invariants:
//! - The call uses its approval directly before its first request to the backend. A call that is
//!   not sent leaves its approval for the next call.
//! - At that moment the tool is the approved one, also if a window lets the call pass.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use protocol::{error::Refusal, ids::ApprovalId};
use rules::{
    approvals::{ApprovalNotice, ApprovalStanding},
    retries::AttemptOutcome,
};

use super::Call;
use crate::{
    backends::link::connection::requester::Requester as _,
    sessions::approvals::{
        DrainMode, HeldCall, OpenedApproval, await_decision, ended_unused, unusable, use_approval,
        use_window,
    },
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
    /// What lets the call pass: an approval of it, once a person has decided, or a window.
    passage: OnceLock<OpenedApproval>,
    is_used: AtomicBool,
    notice: OnceLock<ApprovalNotice>,
}

/// End of an attempt without an answer.
pub(super) enum AttemptEnd {
    Failed(AttemptOutcome, Refusal),
    /// The call lost its approval before it was sent.
    NotApproved(ApprovalNotice),
}

impl Call {
    /// Returns whether a person has to approve the call.
    pub fn is_held(&self) -> bool {
        self.approval.is_some()
    }

    /// Makes a held call end at once if it has to wait. Called before the call runs.
    pub fn answer_at_once(&self) {
        if let Some(approval) = &self.approval {
            approval.answers_at_once.store(true, Ordering::Relaxed);
        }
    }

    /// Notes the approval for which the client of a held call comes back. Called before the call
    /// runs.
    pub fn return_for(&self, id: ApprovalId) {
        if let Some(approval) = &self.approval {
            let _set_once = approval.returned_for.set(id);
        }
    }

    /// Returns why the call ended without being sent, if it lacked its approval.
    pub fn approval_notice(&self) -> Option<&ApprovalNotice> {
        self.approval.as_ref()?.notice.get()
    }

    /// Waits for the approval of the call. Returns why the call may not leave, if it may not.
    pub(super) async fn await_approval(&self) -> Result<Option<ApprovalNotice>, Refusal> {
        let Some(approval) = &self.approval else { return Ok(None) };
        let notice = self.request_approval(approval).await?;
        // The wait is not silence of the backend.
        self.touch();
        Ok(notice.map(|notice| approval.end_with(notice)))
    }

    async fn request_approval(
        &self,
        approval: &CallApproval,
    ) -> Result<Option<ApprovalNotice>, Refusal> {
        let CallApproval { held, answers_at_once, returned_for, .. } = approval;
        let shared = &self.session.shared;
        // The client learns how its approval ended, before it requests another one.
        if let Some(id) = returned_for.get()
            && let Some(notice) = ended_unused(shared, id, held.binding()).await?
        {
            let _outside = request::with_current(|request| request.record_approval(id));
            return Ok(Some(notice));
        }
        let opened = match held.open(&self.session).await? {
            OpenedApproval::Approval(opened) => opened,
            OpenedApproval::Window(id) => {
                let _outside = request::with_current(|request| request.record_approval(&id));
                let _set_once = approval.passage.set(OpenedApproval::Window(id));
                return Ok(None);
            }
        };
        let id = &opened.record.id;
        let _outside = request::with_current(|request| request.record_approval(id));
        let until = match answers_at_once.load(Ordering::Relaxed) {
            true => Instant::now(),
            false => self.clock.approval_deadline(),
        };
        let decided = await_decision(shared, id, until, DrainMode::EndWait).await?;
        let Some(decided) = decided else {
            return Ok(Some(ApprovalNotice::new(&opened, ApprovalStanding::Expired)));
        };
        if let Some(standing) = unusable(&decided) {
            return Ok(Some(ApprovalNotice::new(&decided, standing)));
        }
        // What the caller may do can have changed during the wait.
        if let Some(admitted) = self.admitted.as_ref().filter(|_| decided.is_approved()) {
            let subject = self.session.subject();
            self.session.recheck_access(&subject, admitted, "approved calls")?;
        }
        let decided = OpenedApproval::Approval(Box::new(decided));
        let _set_once = approval.passage.set(decided);
        Ok(None)
    }

    /// Uses the approval of a held call, once. Called before each attempt to send it.
    pub(super) async fn use_approval(&self) -> Result<(), AttemptEnd> {
        let Some(approval) = &self.approval else { return Ok(()) };
        let Some(passage) = approval.passage.get() else { return Ok(()) };
        if approval.is_used.load(Ordering::Relaxed) {
            return Ok(());
        }
        let binding = approval.held.binding();
        let catalog = self.session.catalog();
        let tool = catalog.full.tool_identity(&binding.backend, &binding.tool);
        let shared = &self.session.shared;
        let used = match passage {
            OpenedApproval::Approval(decided) => {
                let user = format!("call {:032x}", rand::random::<u128>());
                use_approval(shared, decided, &user, tool).await
            }
            OpenedApproval::Window(id) => use_window(shared, id, binding, tool).await,
        };
        match used {
            Ok(Ok(())) => {
                approval.is_used.store(true, Ordering::Relaxed);
                Ok(())
            }
            Ok(Err(notice)) => Err(AttemptEnd::NotApproved(approval.end_with(notice))),
            Err(refusal) => Err(AttemptEnd::Failed(AttemptOutcome::Final, refusal)),
        }
    }

    /// Returns the time until which the call waits for a permit. The wait for an approval is not
    /// part of it.
    pub(super) fn permit_due(&self) -> Instant {
        let held = if self.is_held() { self.clock.elapsed() } else { Duration::ZERO };
        self.clock.permit_deadline(held)
    }
}

impl CallApproval {
    pub(super) fn new(held: HeldCall) -> Self {
        Self {
            held,
            answers_at_once: AtomicBool::new(false),
            returned_for: OnceLock::new(),
            passage: OnceLock::new(),
            is_used: AtomicBool::new(false),
            notice: OnceLock::new(),
        }
    }

    /// Notes why the call was not sent.
    fn end_with(&self, notice: ApprovalNotice) -> ApprovalNotice {
        self.notice.get_or_init(|| notice).clone()
    }
}
