//! Behaviours of every [`DurableStore`] for tasks: their states, their owners, and their
//! visibility.

use std::time::Duration;

use protocol::ids::{PrincipalId, TaskId};
use records::{
    FullTask, StoredTask, TaskAudience, TaskClaimScope, TaskListPosition, TaskRecord, TaskStatus,
    TaskStep, TaskTransition, WriteOp, WriteOutcome,
};

use super::{LONG, Outcome, create, done, node, session, task_id, task_record, tenant, write};
use crate::{DurableStore, StoreError};

pub async fn a_new_task_is_kept_as_given(store: &dyn DurableStore) -> Outcome {
    let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    let whole = TaskRecord {
        private: true,
        request: bytes.clone(),
        details: bytes,
        idempotency: Some(b"again\0".to_vec()),
        ttl: Some(Duration::from_millis(86_400_001)),
        ..task_record("t1")
    };
    let sparse =
        TaskRecord { request: Vec::new(), details: Vec::new(), ttl: None, ..task_record("t2") };
    for record in [whole, sparse] {
        let outcome = write(store, create(record.clone(), "a")).await?;
        let WriteOutcome::Created { at_us } = outcome else { panic!("{outcome:?}") };
        let expected = StoredTask {
            status: TaskStatus::Working,
            message: None,
            step: TaskStep::Queued,
            owner: Some(node("a")),
            created_at_us: at_us,
            updated_at_us: at_us,
            epoch: 1,
            revision: 1,
            record,
        };
        assert_eq!(store.task(&expected.record.task).await?, Some(outline(expected.clone())));
        let FullTask { stored, remaining_ttl: remaining } =
            store.full_task(&expected.record.task).await?.expect("it is there");
        assert_eq!(stored, expected);
        assert!(
            remaining <= expected.record.ttl
                && remaining.is_some() == expected.record.ttl.is_some(),
            "{remaining:?}"
        );
        assert_eq!(store.task_outcome(&expected.record.task).await?, None);
        let first = TaskTransition { revision: 1, to: TaskStatus::Working, at_us, epoch: Some(1) };
        assert_eq!(store.task_transitions(&expected.record.task).await?, [first]);
    }
    assert_eq!(store.task(&task_id("t3")).await?, None);
    assert_eq!(store.task_outcome(&task_id("t3")).await?, None);
    assert_eq!(store.task_transitions(&task_id("t3")).await?, []);
    Ok(())
}

pub async fn steps_are_kept(store: &dyn DurableStore) -> Outcome {
    done(store, create(task_record("t1"), "a")).await?;
    let mirrored =
        TaskStep::Delegated { backend_task: "theirs".into(), link: b"sealed\0".to_vec() };
    for step in [TaskStep::Sent, mirrored, TaskStep::Sent, TaskStep::Queued] {
        done(store, WriteOp::AdvanceTask { task: task_id("t1"), epoch: 1, step: step.clone() })
            .await?;
        assert_eq!(whole(store, "t1").await?.step, step);
    }
    assert_eq!(store.task_transitions(&task_id("t1")).await?.len(), 1, "a step is no transition");
    Ok(())
}

/// Clients choose the ids that they ask for.
pub async fn an_id_with_nul_names_no_task(store: &dyn DurableStore) -> Outcome {
    done(store, create(task_record("t1"), "a")).await?;
    let wrong = task_id("t1\0");
    assert_eq!(store.task(&wrong).await?, None);
    assert!(store.full_task(&wrong).await?.is_none());
    assert_eq!(store.task_outcome(&wrong).await?, None);
    let found = store.task_snapshots(&[wrong, task_id("t1")]).await?;
    let found: Vec<_> = found.into_iter().map(|one| one.stored.record.task).collect();
    assert_eq!(found, [task_id("t1")], "the others are read");
    Ok(())
}

pub async fn an_ended_task_has_its_outcome(store: &dyn DurableStore) -> Outcome {
    let outcome: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    for (name, status, message, outcome) in [
        ("t1", TaskStatus::Completed, None, Some(outcome)),
        ("t2", TaskStatus::Failed, Some("the backend refused".to_owned()), Some(Vec::new())),
        ("t3", TaskStatus::Cancelled, Some("é 漢 😀".to_owned()), None),
    ] {
        done(store, create(task_record(name), "a")).await?;
        let before = task(store, name).await?;
        let (task_id, epoch) = (task_id(name), Some(1));
        let change = WriteOp::EndTask {
            task: task_id.clone(),
            epoch,
            status,
            message: message.clone(),
            outcome: outcome.clone(),
        };
        done(store, change).await?;
        let after = task(store, name).await?;
        assert_eq!((after.status, &after.message, after.revision), (status, &message, 2));
        assert!(
            after.updated_at_us >= before.updated_at_us
                && after.created_at_us == before.created_at_us
        );
        assert_eq!(after.record, before.record);
        assert_eq!(store.task_outcome(&task_id).await?, outcome);
        let last =
            TaskTransition { revision: 2, to: status, at_us: after.updated_at_us, epoch: Some(1) };
        assert_eq!(store.task_transitions(&task_id).await?[1..], [last]);
    }
    Ok(())
}

pub async fn an_ended_task_never_changes(store: &dyn DurableStore) -> Outcome {
    for (name, status) in
        [("t1", TaskStatus::Completed), ("t2", TaskStatus::Failed), ("t3", TaskStatus::Cancelled)]
    {
        done(store, create(task_record(name), "a")).await?;
        done(store, end(name, Some(1), status)).await?;
        let (before, history) =
            (task(store, name).await?, store.task_transitions(&task_id(name)).await?);
        for attempt in
            owners_writes(name, 1).into_iter().chain([end(name, None, TaskStatus::Cancelled)])
        {
            let shown = format!("{attempt:?}");
            assert_eq!(write(store, attempt).await?, WriteOutcome::AlreadyFinished, "{shown}");
        }
        let answer = WriteOp::AnswerInput {
            task: task_id(name),
            number: 1,
            answer: Vec::new(),
            bytes_max: u64::MAX,
        };
        assert!(matches!(
            write(store, answer).await?,
            WriteOutcome::AlreadyFinished | WriteOutcome::NotFound
        ));
        assert_eq!(task(store, name).await?, before);
        assert_eq!(store.task_transitions(&task_id(name)).await?, history);
        assert_eq!(store.task_outcome(&task_id(name)).await?, Some(b"outcome".to_vec()));
    }
    Ok(())
}

pub async fn anybody_may_cancel(store: &dyn DurableStore) -> Outcome {
    done(store, create(task_record("t1"), "a")).await?;
    done(store, end("t1", None, TaskStatus::Cancelled)).await?;
    let cancelled = task(store, "t1").await?;
    assert_eq!(cancelled.status, TaskStatus::Cancelled);
    assert_eq!(store.task_transitions(&task_id("t1")).await?[1].epoch, None, "not by its owner");
    assert_eq!(
        write(store, end("t1", Some(1), TaskStatus::Completed)).await?,
        WriteOutcome::AlreadyFinished
    );
    assert_eq!(write(store, end("t9", None, TaskStatus::Cancelled)).await?, WriteOutcome::NotFound);
    Ok(())
}

pub async fn only_one_of_two_outcomes_is_stored(store: &dyn DurableStore) -> Outcome {
    for round in 0..5 {
        let name = format!("t{round}");
        done(store, create(task_record(&name), "a")).await?;
        let (finished, cancelled) = tokio::join!(
            write(store, end(&name, Some(1), TaskStatus::Completed)),
            write(store, end(&name, None, TaskStatus::Cancelled))
        );
        let expected = match (finished?, cancelled?) {
            (WriteOutcome::Done, WriteOutcome::AlreadyFinished) => TaskStatus::Completed,
            (WriteOutcome::AlreadyFinished, WriteOutcome::Done) => TaskStatus::Cancelled,
            both => panic!("{both:?}"),
        };
        assert_eq!(task(store, &name).await?.status, expected);
        assert_eq!(store.task_transitions(&task_id(&name)).await?.len(), 2);
    }
    Ok(())
}

pub async fn writes_without_the_right_epoch_change_nothing(store: &dyn DurableStore) -> Outcome {
    done(store, create(task_record("t1"), "a")).await?;
    let before = task(store, "t1").await?;
    for (name, epoch) in [("t1", 0), ("t1", 2), ("t9", 1)] {
        for attempt in owners_writes(name, epoch) {
            let shown = format!("{attempt:?}");
            assert_eq!(write(store, attempt).await?, WriteOutcome::Fenced, "{shown}");
        }
    }
    assert_eq!(task(store, "t1").await?, before);
    assert_eq!(store.open_task_inputs(&task_id("t1")).await?, []);
    let batch = [
        end("t1", Some(9), TaskStatus::Failed),
        create(task_record("t2"), "a"),
        end("t8", None, TaskStatus::Cancelled),
    ];
    let outcomes = store.write(&batch).await?;
    assert_eq!((&outcomes[0], &outcomes[2]), (&WriteOutcome::Fenced, &WriteOutcome::NotFound));
    assert_eq!(
        task(store, "t2").await?.status,
        TaskStatus::Working,
        "they do not spoil their batch"
    );
    Ok(())
}

pub async fn tasks_of_dead_owners_are_claimed(store: &dyn DurableStore) -> Outcome {
    for name in ["lapsed", "left", "alive", "b"] {
        store.join(&node(name), None, LONG).await?;
    }
    for (name, owner) in [
        ("t1", "lapsed"),
        ("t2", "left"),
        ("t3", "never-joined"),
        ("t4", "alive"),
        ("t5", "b"),
        ("t6", "left"),
    ] {
        done(store, create(task_record(name), owner)).await?;
    }
    done(store, end("t6", Some(1), TaskStatus::Completed)).await?;
    done(store, WriteOp::AdvanceTask { task: task_id("t2"), epoch: 1, step: TaskStep::Sent })
        .await?;
    store.renew_lease(&node("lapsed"), Duration::ZERO, false).await?;
    store.leave(&node("left")).await?;
    let mut claimed = claim(store, &node("b"), 2).await?;
    assert_eq!(names(&claimed), ["t1", "t2"], "the oldest first, no more than the limit");
    claimed.extend(claim(store, &node("b"), 2).await?);
    assert_eq!(
        names(&claimed),
        ["t1", "t2", "t3"],
        "neither those of live owners nor what is over"
    );
    assert_eq!(claim(store, &node("b"), 2).await?, []);
    assert_eq!(claimed[1].step, TaskStep::Sent);
    for stored in claimed {
        assert_eq!(stored.epoch, 2);
        assert_eq!(
            store.full_task(&stored.record.task).await?.map(|whole| whole.stored),
            Some(stored.clone())
        );
        let name = stored.record.task.as_str();
        assert_eq!(
            write(store, end(name, Some(1), TaskStatus::Failed)).await?,
            WriteOutcome::Fenced,
            "the owner before is fenced off"
        );
        done(store, end(name, Some(2), TaskStatus::Completed)).await?;
    }
    Ok(())
}

pub async fn two_nodes_never_claim_the_same_task(store: &dyn DurableStore) -> Outcome {
    let batch: Vec<WriteOp> =
        (0..40).map(|number| create(task_record(&format!("t{number:02}")), "gone")).collect();
    store.write(&batch).await?;
    let (b, c) = (node("b"), node("c"));
    store.join(&b, None, LONG).await?;
    store.join(&c, None, LONG).await?;
    let (first, second, third) =
        tokio::join!(claim(store, &b, 15), claim(store, &c, 15), claim(store, &b, 15));
    let mut claimed: Vec<StoredTask> = [first?, second?, third?].concat();
    for _rest in 0..3 {
        claimed.extend(claim(store, &c, 15).await?);
    }
    assert!(claimed.iter().all(|stored| stored.epoch == 2));
    claimed.sort_by(|one, other| one.record.task.cmp(&other.record.task));
    claimed.dedup_by(|one, other| one.record.task == other.record.task);
    assert_eq!(claimed.len(), 40);
    Ok(())
}

pub async fn a_node_does_not_claim_its_own_tasks(store: &dyn DurableStore) -> Outcome {
    store.join(&node("a"), None, LONG).await?;
    done(store, create(task_record("t1"), "a")).await?;
    store.renew_lease(&node("a"), Duration::ZERO, false).await?;
    assert_eq!(
        claim(store, &node("a"), 10).await?,
        [],
        "it runs there, though the lease has lapsed"
    );
    done(store, end("t1", Some(1), TaskStatus::Completed)).await
}

pub async fn a_released_task_can_be_claimed_by_any_node(store: &dyn DurableStore) -> Outcome {
    store.join(&node("a"), None, LONG).await?;
    store.join(&node("b"), None, LONG).await?;
    done(store, create(task_record("t1"), "a")).await?;
    done(store, WriteOp::ReleaseTask { task: task_id("t1"), epoch: 1 }).await?;
    for attempt in owners_writes("t1", 1) {
        assert_eq!(
            write(store, attempt).await?,
            WriteOutcome::Fenced,
            "who gave it away has no say any more"
        );
    }
    let claimed = claim(store, &node("b"), 10).await?;
    assert_eq!(names(&claimed), ["t1"]);
    assert!(claimed[0].epoch > 1);
    done(store, end("t1", Some(claimed[0].epoch), TaskStatus::Completed)).await
}

pub async fn rows_of_an_earlier_node_name_can_be_reclaimed(store: &dyn DurableStore) -> Outcome {
    for name in ["old", "new", "other"] {
        store.join(&node(name), None, LONG).await?;
    }
    for (name, owner) in [("t1", "old"), ("t2", "old"), ("t3", "other"), ("t4", "old")] {
        done(store, create(task_record(name), owner)).await?;
    }
    done(store, end("t4", Some(1), TaskStatus::Failed)).await?;
    store.renew_lease(&node("old"), Duration::ZERO, false).await?;
    assert_eq!(names(&claim(store, &node("other"), 1).await?), ["t1"]);
    for _repeated in 0..2 {
        assert_eq!(
            store.reclaim_tasks(&node("old"), &node("new")).await?,
            [(task_id("t2"), 2)],
            "the answer may have been lost"
        );
    }
    assert_eq!(write(store, end("t2", Some(1), TaskStatus::Failed)).await?, WriteOutcome::Fenced);
    done(store, end("t2", Some(2), TaskStatus::Completed)).await?;
    assert_eq!(store.reclaim_tasks(&node("old"), &node("new")).await?, [], "over");
    Ok(())
}

pub async fn the_store_returns_the_remaining_time_of_a_task(store: &dyn DurableStore) -> Outcome {
    store.join(&node("b"), None, LONG).await?;
    let tasks = [("t1", None), ("t2", Some(LONG)), ("t3", Some(Duration::ZERO))];
    for (name, ttl) in tasks {
        done(store, create(TaskRecord { ttl, ..task_record(name) }, "gone")).await?;
    }
    let is_right = |remaining: Option<Duration>, ttl| match (remaining, ttl) {
        (Some(remaining), Some(ttl)) => {
            remaining <= ttl && remaining + Duration::from_secs(60) >= ttl
        }
        (remaining, ttl) => remaining == ttl,
    };
    for (name, ttl) in tasks {
        let remaining = store.full_task(&task_id(name)).await?.expect("it is there").remaining_ttl;
        assert!(is_right(remaining, ttl), "{name}: {remaining:?}");
    }
    for (claimed, (name, ttl)) in
        store.claim_tasks(&node("b"), TaskClaimScope::Unowned, 3, &[]).await?.iter().zip(tasks)
    {
        assert!(is_right(claimed.remaining_ttl, ttl), "{name}: {claimed:?}");
    }
    Ok(())
}

pub async fn an_audience_sees_its_own_tasks_only(store: &dyn DurableStore) -> Outcome {
    let base = task_record("t1");
    let records = [
        base.clone(),
        TaskRecord { session: session(2), ..task_record("t2") },
        TaskRecord { private: true, ..task_record("t3") },
        TaskRecord { private: true, session: session(2), ..task_record("t4") },
        TaskRecord { principal: PrincipalId::new("bob"), ..task_record("t5") },
        TaskRecord { tenant: tenant("umbrella"), ..task_record("t6") },
    ];
    for record in records.clone() {
        done(store, create(record, "a")).await?;
    }
    let audience = |number: u8| TaskAudience {
        tenant: base.tenant.clone(),
        principal: base.principal.clone(),
        session: session(number),
    };
    for (number, expected) in
        [(1, vec!["t1", "t2", "t3"]), (2, vec!["t1", "t2", "t4"]), (3, vec!["t1", "t2"])]
    {
        let found = store.tasks_visible_to(&audience(number), None, 100).await?;
        assert_eq!(names(&found), expected, "session {number}");
        let may_see: Vec<&str> = records
            .iter()
            .filter(|record| audience(number).may_see(record))
            .map(|record| record.task.as_str())
            .collect();
        assert_eq!(may_see, expected);
        assert_eq!(
            in_pages(2, async |after| store
                .tasks_visible_to(&audience(number), after.as_ref(), 2)
                .await)
            .await?,
            expected
        );
    }
    Ok(())
}

pub async fn operators_see_tasks_by_tenant_and_status(store: &dyn DurableStore) -> Outcome {
    for name in ["t1", "t2", "t3", "t4"] {
        done(store, create(task_record(name), "a")).await?;
    }
    done(
        store,
        create(TaskRecord { tenant: tenant("umbrella"), private: true, ..task_record("t5") }, "a"),
    )
    .await?;
    done(store, end("t2", Some(1), TaskStatus::Completed)).await?;
    done(store, end("t5", Some(1), TaskStatus::Completed)).await?;
    done(store, request_input(task_id("t3"), 1, 1)).await?;
    let (acme, done_status) = (tenant("acme"), Some(TaskStatus::Completed));
    for (of, status, expected) in [
        (None, None, vec!["t1", "t2", "t3", "t4", "t5"]),
        (Some(&acme), None, vec!["t1", "t2", "t3", "t4"]),
        (None, done_status, vec!["t2", "t5"]),
        (Some(&acme), done_status, vec!["t2"]),
        (None, Some(TaskStatus::InputRequired), vec!["t3"]),
        (None, Some(TaskStatus::Cancelled), vec![]),
        (Some(&tenant("nobody")), None, vec![]),
    ] {
        assert_eq!(
            names(&store.list_tasks(of, status, None, 100).await?),
            expected,
            "{of:?} {status:?}"
        );
        assert_eq!(
            in_pages(2, async |after| store.list_tasks(of, status, after.as_ref(), 2).await)
                .await?,
            expected
        );
    }
    assert_eq!(counts(store).await?, [2, 1, 2, 0, 0]);
    Ok(())
}

pub async fn a_page_can_start_after_a_removed_task(store: &dyn DurableStore) -> Outcome {
    done(store, create(TaskRecord { ttl: Some(Duration::ZERO), ..task_record("t1") }, "a")).await?;
    done(store, create(task_record("t2"), "a")).await?;
    let position = position_of(&task(store, "t1").await?);
    assert_eq!(store.expire_tasks(10).await?, [task_id("t1")]);
    assert_eq!(names(&store.list_tasks(None, None, Some(&position), 10).await?), ["t2"]);
    Ok(())
}

/// Removes the fields that the short reads leave empty.
fn outline(mut task: StoredTask) -> StoredTask {
    task.record.request = Vec::new();
    task
}

pub(super) async fn claim(
    store: &dyn DurableStore,
    by: &records::NodeName,
    limit: u32,
) -> Result<Vec<StoredTask>, StoreError> {
    Ok(store
        .claim_tasks(by, TaskClaimScope::Unowned, limit, &[])
        .await?
        .into_iter()
        .map(|whole| whole.stored)
        .collect())
}

async fn whole(store: &dyn DurableStore, name: &str) -> Result<StoredTask, StoreError> {
    Ok(store.full_task(&task_id(name)).await?.expect("the task is there").stored)
}

pub async fn a_task_that_a_node_excludes_is_claimed_by_others(store: &dyn DurableStore) -> Outcome {
    store.join(&node("b"), None, LONG).await?;
    store.join(&node("c"), None, LONG).await?;
    for name in ["t1", "t2"] {
        done(store, create(task_record(name), "gone")).await?;
    }
    let claimed =
        store.claim_tasks(&node("b"), TaskClaimScope::Unowned, 10, &[task_id("t1")]).await?;
    assert_eq!(
        claimed.iter().map(|task| task.stored.record.task.as_str()).collect::<Vec<_>>(),
        ["t2"]
    );
    assert_eq!(claimed[0].stored.owner, Some(node("b")));
    assert_eq!(
        store.claim_tasks(&node("b"), TaskClaimScope::Unowned, 10, &[task_id("t1")]).await?,
        []
    );
    assert_eq!(names(&claim(store, &node("c"), 10).await?), ["t1"]);
    assert_eq!(counts(store).await?, [2, 0, 0, 0, 0]);
    Ok(())
}

/// Returns the task of this name, which must exist.
pub(super) async fn task(store: &dyn DurableStore, name: &str) -> Result<StoredTask, StoreError> {
    Ok(store.task(&task_id(name)).await?.expect("the task is there"))
}

/// Ends a task in this status with the outcome `outcome`.
pub(super) fn end(name: &str, epoch: Option<i64>, status: TaskStatus) -> WriteOp {
    WriteOp::EndTask {
        task: task_id(name),
        epoch,
        status,
        message: None,
        outcome: Some(b"outcome".to_vec()),
    }
}

/// Counts the tasks, in the order of [`TaskStatus::ALL`].
pub(super) async fn counts(store: &dyn DurableStore) -> Result<[u64; 5], StoreError> {
    let counted = store.task_counts().await?;
    assert_eq!(
        counted.iter().map(|(status, _)| *status).collect::<Vec<_>>(),
        TaskStatus::ALL,
        "each status, with none too"
    );
    Ok(<[u64; 5]>::try_from(counted.into_iter().map(|(_, count)| count).collect::<Vec<_>>())
        .expect("five"))
}

pub(super) fn names(tasks: &[StoredTask]) -> Vec<&str> {
    tasks.iter().map(|stored| stored.record.task.as_str()).collect()
}

fn position_of(stored: &StoredTask) -> TaskListPosition {
    TaskListPosition { created_at_us: stored.created_at_us, task: stored.record.task.clone() }
}

/// Reads a list page by page and returns the names in it.
async fn in_pages(
    limit: usize,
    list_page: impl AsyncFn(Option<TaskListPosition>) -> Result<Vec<StoredTask>, StoreError>,
) -> Result<Vec<String>, StoreError> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = list_page(after).await?;
        assert!(page.len() <= limit);
        let Some(last) = page.last() else { return Ok(found) };
        after = Some(position_of(last));
        found.extend(names(&page).into_iter().map(str::to_owned));
    }
}

/// Returns one of each write that only an owner may make.
fn owners_writes(name: &str, epoch: i64) -> [WriteOp; 5] {
    let task = task_id(name);
    [
        WriteOp::AdvanceTask { task: task.clone(), epoch, step: TaskStep::Sent },
        end(name, Some(epoch), TaskStatus::Failed),
        WriteOp::ReleaseTask { task: task.clone(), epoch },
        request_input(task.clone(), epoch, 77),
        WriteOp::CloseInput { task, epoch, number: 77 },
    ]
}

fn request_input(task: TaskId, epoch: i64, number: i64) -> WriteOp {
    WriteOp::RequestInput { task, epoch, number, request: Vec::new(), bytes_max: u64::MAX }
}

pub async fn a_node_can_claim_released_tasks_only(store: &dyn DurableStore) -> Outcome {
    store.join(&node("a"), None, LONG).await?;
    store.join(&node("b"), None, LONG).await?;
    done(store, create(task_record("lapsed"), "gone")).await?;
    done(store, create(task_record("released"), "a")).await?;
    done(store, create(task_record("owned"), "a")).await?;
    let released = TaskClaimScope::Released;
    assert_eq!(store.claim_tasks(&node("b"), released, 10, &[]).await?, []);
    done(store, WriteOp::ReleaseTask { task: task_id("released"), epoch: 1 }).await?;
    let except = [task_id("released")];
    assert_eq!(store.claim_tasks(&node("b"), released, 10, &except).await?, []);
    let claimed = store.claim_tasks(&node("b"), released, 10, &[]).await?;
    let claimed: Vec<StoredTask> = claimed.into_iter().map(|whole| whole.stored).collect();
    assert_eq!(names(&claimed), ["released"]);
    assert_eq!((claimed[0].owner.clone(), claimed[0].epoch), (Some(node("b")), 3));
    assert_eq!(names(&claim(store, &node("b"), 10).await?), ["lapsed"]);
    Ok(())
}
