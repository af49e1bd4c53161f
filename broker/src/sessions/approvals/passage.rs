//! The wait of a call for the decision about its approval, and the single use of the approval.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use protocol::{
    error::{ErrorKind, Refusal},
    ids::ApprovalId,
};
use records::{ApprovalBinding, ApprovalState, StoredApproval};
use rules::{
    approvals::{ApprovalNotice, ApprovalStanding, is_for},
    catalog::ToolIdentity,
    limits::STORE_RETRY_MAX,
};
use tokio::time::sleep_until;

use crate::{persistence::fault_point, sessions::shared::Shared};

/// What a drain does to the wait for a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sessions) enum DrainMode {
    /// The drain ends the wait.
    EndWait,
    /// The wait continues. Its caller ends it in another way.
    KeepWaiting,
}

/// Waits until an approval is decided or expires, and until `until` at most. Returns its last
/// state, or `None` if it was removed.
pub(in crate::sessions) async fn await_decision(
    shared: &Arc<Shared>,
    id: &ApprovalId,
    until: Instant,
    drain_mode: DrainMode,
) -> Result<Option<StoredApproval>, Refusal> {
    let ends_on_drain = drain_mode == DrainMode::EndWait;
    let wait = shared.approval_waits.wait_for(&shared.persistence, id);
    loop {
        let decided = wait.decided();
        tokio::pin!(decided);
        // A decision between the query and the wait is not missed.
        decided.as_mut().enable();
        let found = match approval(shared, id).await {
            Ok(found) => found,
            // The database is away. The call waits for it as for the decision.
            Err(refusal) if Instant::now() + STORE_RETRY_MAX >= until => return Err(refusal),
            Err(_) => {
                tokio::time::sleep(STORE_RETRY_MAX).await;
                continue;
            }
        };
        let Some(pending) = found.as_ref().filter(|one| one.state == ApprovalState::Pending) else {
            return Ok(found);
        };
        let now = Instant::now();
        if now >= until || (ends_on_drain && shared.shutdown.is_draining()) {
            return Ok(found);
        }
        let expires = now + pending.remaining_time + Duration::from_millis(1);
        tokio::select! {
            () = &mut decided => {}
            () = sleep_until(until.min(expires).into()) => {}
            () = shared.shutdown.draining.cancelled(), if ends_on_drain => {}
        }
    }
}

/// Returns why no call may use an approval in this state, if none may.
pub(in crate::sessions) fn unusable(approval: &StoredApproval) -> Option<ApprovalStanding> {
    match approval.state {
        ApprovalState::Pending => Some(ApprovalStanding::Waits),
        ApprovalState::Denied => Some(ApprovalStanding::Denied),
        ApprovalState::Expired => Some(ApprovalStanding::Expired),
        ApprovalState::Approved | ApprovalState::Used => None,
    }
}

/// Uses a decided approval for the call `user`. `tool` is what the tool is now. Returns why the call
/// may not leave, if it may not.
pub(in crate::sessions) async fn use_approval(
    shared: &Shared,
    approval: &StoredApproval,
    user: &str,
    tool: Option<ToolIdentity>,
) -> Result<Result<(), ApprovalNotice>, Refusal> {
    let notice = |standing| Ok(Err(ApprovalNotice::new(approval, standing)));
    if let Some(standing) = unusable(approval) {
        return notice(standing);
    }
    let (persistence, id) = (&shared.persistence, &approval.record.id);
    if !is_for(&approval.record.binding, tool) {
        // The approver sees that the call was not executed, and why.
        let is_ended =
            persistence.timed("void_approval", persistence.store.void_approval(id)).await?;
        if is_ended {
            shared.metrics.approvals.expired(1);
        }
        let ApprovalBinding { tenant, principal, backend, tool, .. } = &approval.record.binding;
        tracing::warn!(%tenant, %principal, %backend, tool, approval = %id, by = approval.decided_by, "an approved call was not executed, because its tool changed");
        return notice(ApprovalStanding::ToolChanged);
    }
    let is_used =
        persistence.timed("use_approval", persistence.store.use_approval(id, user)).await?;
    if !is_used {
        // The call may have waited long after the decision.
        let now = self::approval(shared, id).await?;
        let is_expired = now.is_none_or(|now| now.state == ApprovalState::Expired);
        return notice(match is_expired {
            true => ApprovalStanding::Expired,
            false => ApprovalStanding::UsedElsewhere,
        });
    }
    shared.metrics.approvals.used();
    fault_point::hit("approval.used");
    let binding = &approval.record.binding;
    tracing::info!(tenant = %binding.tenant, principal = %binding.principal, backend = %binding.backend, tool = binding.tool, approval = %id, by = approval.decided_by, "a call uses its approval");
    Ok(Ok(()))
}

/// Lets a call pass by a window, which is for one definition of the tool. `tool` is what the tool is
/// now. Returns why the call may not leave, if it may not.
pub(in crate::sessions) async fn use_window(
    shared: &Shared,
    id: &ApprovalId,
    binding: &ApprovalBinding,
    tool: Option<ToolIdentity>,
) -> Result<Result<(), ApprovalNotice>, Refusal> {
    match is_for(binding, tool) {
        true => Ok(Ok(())),
        false => tool_changed(shared, id).await.map(Err),
    }
}

/// Returns the notice for a call whose tool is not the one for which the window was open.
pub(in crate::sessions) async fn tool_changed(
    shared: &Shared,
    id: &ApprovalId,
) -> Result<ApprovalNotice, Refusal> {
    let found = approval(shared, id).await?.ok_or_else(removed)?;
    let ApprovalBinding { tenant, principal, backend, tool, .. } = &found.record.binding;
    tracing::warn!(%tenant, %principal, %backend, tool, approval = %id, "a call was not executed, because its tool changed after a window let it pass");
    Ok(ApprovalNotice::new(&found, ApprovalStanding::ToolChanged))
}

/// Returns whether the store has an approval. It has none of a removed backend.
pub(in crate::sessions) async fn is_kept(
    shared: &Shared,
    id: &ApprovalId,
) -> Result<bool, Refusal> {
    Ok(approval(shared, id).await?.is_some())
}

/// Returns the refusal of a call whose approval an operator removed.
pub(in crate::sessions) fn removed() -> Refusal {
    let text = "the approval that the call needs was removed";
    Refusal::new(ErrorKind::PermissionDenied, text)
}

/// Returns how an approval of this call ended without a use. `None`: it did not end so, it is for
/// another call, or it was removed.
pub(in crate::sessions) async fn ended_unused(
    shared: &Shared,
    id: &ApprovalId,
    binding: &ApprovalBinding,
) -> Result<Option<ApprovalNotice>, Refusal> {
    let found = approval(shared, id).await?;
    let Some(found) = found.filter(|found| found.record.binding.key() == binding.key()) else {
        return Ok(None);
    };
    let standing = match found.state {
        ApprovalState::Denied => ApprovalStanding::Denied,
        ApprovalState::Expired if found.is_void => ApprovalStanding::ToolChanged,
        ApprovalState::Expired => ApprovalStanding::Expired,
        ApprovalState::Pending | ApprovalState::Approved | ApprovalState::Used => return Ok(None),
    };
    Ok(Some(ApprovalNotice::new(&found, standing)))
}

async fn approval(shared: &Shared, id: &ApprovalId) -> Result<Option<StoredApproval>, Refusal> {
    let persistence = &shared.persistence;
    persistence.timed("get_approval", persistence.store.approval(id)).await
}
