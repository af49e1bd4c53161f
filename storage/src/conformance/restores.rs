//! Behaviours of every [`DurableStore`] that was restored from an older copy.

use std::time::Duration;

use records::{
    AdminChange, ApprovalDecision, ApprovalState, RestoreSummary, SessionClaimOutcome,
    TaskClaimScope, TaskStatus, TaskStep, WriteOp,
};

use super::{
    LONG, Outcome,
    approvals::{self, decision},
    create, done, identity, node, open, session, session_record, subscription, task_id,
    task_record,
};
use crate::DurableStore;

/// After each restore of one copy, the epochs begin at the time in seconds. This is a time in 2001.
const EPOCH_MIN: i64 = 1_000_000_000;

pub async fn a_restored_copy_continues_no_session_and_no_approval(
    store: &dyn DurableStore,
) -> Outcome {
    done(store, open(session_record(1), "a")).await?;
    let subscription = subscription("file:///x");
    done(store, WriteOp::Subscribe { key: session(1), epoch: 1, subscription }).await?;
    for (name, arguments) in [("pending", 1), ("approved", 2), ("denied", 3), ("window", 4)] {
        approvals::open(store, &approvals::record(name, arguments)).await?;
    }
    let window = ApprovalDecision { window: Some(LONG), ..decision("window", true) };
    for made in [decision("approved", true), decision("denied", false), window] {
        assert!(store.apply(AdminChange::DecideApproval(&made), None).await?);
    }
    assert!(store.use_approval(&approvals::id("window"), "a call").await?);

    let ended = RestoreSummary { sessions: 1, tasks: 0, approvals: 3 };
    assert_eq!(store.end_restored_state().await?, ended);
    let claim = store.claim_session(&session(1), &identity("acme"), &node("b"), LONG).await?;
    assert!(matches!(claim, SessionClaimOutcome::NotFound), "{claim:?}");
    assert_eq!(store.subscription_counts(None).await?, []);
    for (name, state) in [
        ("pending", ApprovalState::Expired),
        ("approved", ApprovalState::Expired),
        ("denied", ApprovalState::Denied),
        ("window", ApprovalState::Used),
    ] {
        assert_eq!(approvals::state(store, name).await?, Some(state), "{name}");
    }
    assert!(!store.use_approval(&approvals::id("approved"), "a later call").await?);
    let next = approvals::open(store, &approvals::record("next", 5)).await?;
    assert_eq!(next.record.id, approvals::id("next"), "the window is closed");
    Ok(())
}

pub async fn a_restored_copy_sends_no_queued_task(store: &dyn DurableStore) -> Outcome {
    for name in ["queued", "released", "delegated", "finished"] {
        done(store, create(task_record(name), "gone")).await?;
    }
    done(store, WriteOp::ReleaseTask { task: task_id("released"), epoch: 1 }).await?;
    let delegated = TaskStep::Delegated { backend_task: "theirs".into(), link: b"sealed".to_vec() };
    let (task, step) = (task_id("delegated"), delegated.clone());
    done(store, WriteOp::AdvanceTask { task, epoch: 1, step }).await?;
    let end = WriteOp::EndTask {
        task: task_id("finished"),
        epoch: Some(1),
        status: TaskStatus::Completed,
        message: None,
        outcome: Some(b"{}".to_vec()),
    };
    done(store, end).await?;

    let ended = RestoreSummary { sessions: 0, tasks: 3, approvals: 0 };
    let mut epochs = vec![1];
    for _restore in 0..3 {
        // A copy of the state after a restore may be restored too.
        assert_eq!(store.end_restored_state().await?, ended);
        let queued = store.task(&task_id("queued")).await?;
        epochs.extend(queued.map(|task| task.epoch));
    }
    assert!(epochs.len() == 4 && epochs.is_sorted_by(|one, next| one < next), "{epochs:?}");
    store.join(&node("b"), None, LONG).await?;
    let mut claimed = store.claim_tasks(&node("b"), TaskClaimScope::Unowned, 10, &[]).await?;
    claimed.sort_by(|one, other| one.stored.record.task.cmp(&other.stored.record.task));
    let steps: Vec<_> = claimed
        .iter()
        .map(|task| (task.stored.record.task.as_str(), task.stored.step.clone()))
        .collect();
    assert_eq!(
        steps,
        [("delegated", delegated), ("queued", TaskStep::Sent), ("released", TaskStep::Sent)]
    );
    assert!(claimed.iter().all(|task| task.stored.epoch > EPOCH_MIN), "{claimed:?}");
    assert!(claimed.iter().all(|task| task.remaining_ttl > Some(Duration::ZERO)), "{claimed:?}");
    Ok(())
}
