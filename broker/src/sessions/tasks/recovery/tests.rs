//! Tests of recovery: tasks that are taken over, tasks that are left alone, and errors of the
//! store.

use std::{collections::HashSet, time::Duration};

use bytes::Bytes;
use config::{AuditLevel, Config, spec::TenantSpec};
use protocol::ids::{BackendId, TenantId};
use records::{AuditFilter, TaskRecord, TaskStep};
use rules::{
    catalog::ToolTraits, endpoint::Endpoint, limits::TASKS_DEFERRED_MAX, tasks::TaskDetails,
};
use serde_json::{Value, json};
use storage::{AuditStore, StoreError, TaskStore, hot::MemoryHotStore};

use super::{
    super::{handoff, orphans, outcome::RunOutcome, run::TrackedBackendTask, runner},
    *,
};
use crate::{
    auth::{Keyring, Keys},
    broker::{Broker, BrokerParts},
    metrics::Metrics,
    persistence::{
        Stores,
        tests::{Meddled, Verdict, task_creation, task_record},
    },
    telemetry::request::RequestName,
};

struct Alone {
    store: Arc<Meddled>,
    broker: Arc<Broker>,
}

impl Alone {
    /// Starts a broker with a tenant `default` that has no backends.
    async fn start() -> Self {
        Self::start_with(Config::default()).await
    }

    /// Starts the same broker, which records calls in the audit log.
    async fn start_audited() -> Self {
        let mut config = Config::default();
        config.audit.calls = AuditLevel::Metadata;
        Self::start_with(config).await
    }

    async fn start_with(config: Config) -> Self {
        let store = Meddled::start("sqlite").await;
        let keys = Keys::from_root(b"root");
        let keyring = Arc::new(Keyring::new(keys.api_key.clone()));
        let stores =
            Stores { durable: store.clone(), events: None, hot: Arc::new(MemoryHotStore::new()) };
        let (config, metrics) = (Arc::new(config), Arc::new(Metrics::new(false)));
        let broker = Broker::new(BrokerParts { config, metrics, keys, keyring, stores }).unwrap();
        broker.put_tenant(&TenantId::parse("default").unwrap(), TenantSpec::default(), 0);
        Self { store, broker }
    }

    fn tasks(&self) -> &Arc<TaskManager> {
        &self.broker.tasks
    }

    /// Adds the backend `b`, which does not answer.
    fn add_backend(&self) {
        let transport = json!({"type": "http", "url": "http://127.0.0.1:9/mcp"});
        let spec = serde_json::from_value(json!({"transport": transport})).unwrap();
        self.broker.put_backend(
            &TenantId::parse("default").unwrap(),
            &BackendId::parse("b").unwrap(),
            spec,
        );
    }

    /// Stores a task with this owner.
    async fn stored(&self, record: TaskRecord, owner: &NodeName) -> FullTask {
        let task = record.task.clone();
        let create = task_creation(record, owner.clone());
        assert!(matches!(
            self.tasks().shared.persistence.write(create).await.unwrap(),
            WriteOutcome::Created { .. }
        ));
        self.store.full_task(&task).await.unwrap().unwrap()
    }

    /// Stores a task that this process owns.
    async fn owned(&self, record: TaskRecord) -> FullTask {
        self.stored(record, &self.tasks().shared.persistence.node()).await
    }
}

fn record(name: &str) -> TaskRecord {
    let details = TaskDetails::new(
        "2025-11-25",
        &Endpoint::Aggregated,
        b"{}",
        ToolTraits::default(),
        "b__tool".into(),
    );
    TaskRecord { details: details.encode(), ..task_record(name) }
}

fn away() -> StoreError {
    StoreError::Busy { detail: "test".into() }
}

#[tokio::test]
async fn a_claim_that_fails_changes_no_epoch() {
    let alone = Alone::start().await;
    let own = alone.owned(record("t1")).await;
    alone.store.on_claim(|| Verdict::LoseAnswer(away()));
    let looking = tokio::spawn(claim_unowned(alone.tasks().clone()));
    testkit::eventually("several looks", async || {
        if alone.store.count("claim_tasks") >= 3 { Ok(()) } else { Err(()) }
    })
    .await;
    assert_eq!(alone.store.count("reclaim_tasks"), 0);
    let now = alone.store.task(&own.stored.record.task).await.unwrap().unwrap();
    assert_eq!((now.epoch, now.owner), (1, own.stored.owner));
    // Not earlier: a statement that is cut off would take the connection, and with it the database
    // in memory.
    looking.abort();
}

#[tokio::test]
async fn tasks_claimed_under_an_outdated_node_name_are_dropped() {
    let alone = Alone::start().await;
    let (tasks, gone) = (alone.tasks().clone(), NodeName::new("gone"));
    alone.stored(record("t1"), &gone).await;
    let persistence = tasks.shared.persistence.clone();
    alone.store.on_claim(move || {
        persistence.rename(NodeName::new("another"));
        Verdict::Pass
    });
    let before = tasks.shared.persistence.node();
    assert_eq!(claim(&tasks, &before, TaskClaimScope::Unowned, 10).await, []);
    let owner = alone.store.task(&TaskId::new("t1")).await.unwrap().unwrap().owner;
    assert_eq!(owner, Some(before), "it is to be reclaimed with the rest of that name");
    alone.store.on_claim(|| Verdict::Pass);
    alone.stored(record("t2"), &gone).await;
    let claimed = claim(&tasks, &tasks.shared.persistence.node(), TaskClaimScope::Unowned, 1).await;
    assert_eq!(claimed.len(), 1, "under a name that stays");
}

#[tokio::test]
async fn a_task_that_cannot_run_here_is_released_and_not_claimed_again() {
    let alone = Alone::start().await;
    let node = alone.tasks().shared.persistence.node();
    let later = String::from_utf8(record("t1").details)
        .unwrap()
        .replace("\"format\":1", "\"format\":99")
        .into_bytes();
    let not_for_us = [
        TaskRecord { details: later, ..record("later") },
        TaskRecord { tenant: TenantId::parse("umbrella").unwrap(), ..record("tenant") },
        record("backend"),
    ];
    for record in not_for_us {
        let name = record.task.clone();
        let before = alone.stored(record, &node).await;
        recover(alone.tasks().clone(), before.clone()).await;
        let after = alone.store.full_task(&name).await.unwrap().unwrap();
        assert_eq!(
            (after.stored.owner, after.stored.status, after.stored.epoch),
            (None, TaskStatus::Working, 2),
            "{name}"
        );
        assert_eq!(
            (&after.stored.record, &after.stored.step),
            (&before.stored.record, &TaskStep::Queued),
            "{name}"
        );
    }
    assert_eq!(
        claim(alone.tasks(), &node, TaskClaimScope::Unowned, 10).await,
        [],
        "not again and again"
    );
    let another = alone
        .store
        .claim_tasks(&NodeName::new("another"), TaskClaimScope::Unowned, 10, &[])
        .await
        .unwrap();
    assert_eq!(another.len(), 3, "another process has them at once");
    let tasks = alone.tasks();
    assert!(tasks.deferred().is_some() && !tasks.defer(&TaskId::new("later")), "that is not new");
    for number in 0..TASKS_DEFERRED_MAX {
        tasks.defer(&TaskId::new(format!("more {number}")));
    }
    assert_eq!(tasks.deferred(), None, "or they would be taken and given back without an end");
}

#[tokio::test]
async fn a_reclaimed_task_whose_write_is_refused_does_not_block_others() {
    let alone = Alone::start().await;
    let (names, mut reclaimed) = (["t1", "t2", "t3"], Vec::new());
    for name in names {
        let stored = alone.owned(record(name)).await.stored;
        reclaimed.push((stored.record.task, stored.epoch));
    }
    // Each release of the task that comes first is refused.
    let mut refused = None;
    alone.store.on_write(move |writes| {
        for write in writes {
            let WriteOp::ReleaseTask { task, .. } = write else { continue };
            if *refused.get_or_insert_with(|| task.clone()) == *task {
                return Verdict::Fail(away());
            }
        }
        Verdict::Pass
    });
    alone.tasks().resume_reclaimed(reclaimed);
    testkit::eventually("the others to be released", async || {
        let mut released = 0;
        for name in names {
            let task = alone.store.inner.task(&TaskId::new(name)).await.unwrap().unwrap();
            released += usize::from(task.owner.is_none());
        }
        if released == 2 { Ok(()) } else { Err(released) }
    })
    .await;
}

#[tokio::test]
async fn reclaimed_tasks_that_cannot_be_read_do_not_block_others() {
    let alone = Alone::start().await;
    let mut reclaimed = Vec::new();
    for number in 0..TASK_CLAIM_BATCH {
        let task = alone.owned(record(&format!("unreadable-{number}"))).await.stored.record.task;
        alone.store.make_unreadable(task.clone());
        reclaimed.push((task, 1));
    }
    let stored = alone.owned(record("t1")).await.stored;
    reclaimed.push((stored.record.task, stored.epoch));
    alone.tasks().resume_reclaimed(reclaimed);
    // This process does not have the backend, so it releases the task.
    testkit::eventually("the last task to be released", async || {
        let task = alone.store.inner.task(&TaskId::new("t1")).await.unwrap().unwrap();
        if task.owner.is_none() { Ok(()) } else { Err(()) }
    })
    .await;
}

impl Alone {
    /// Returns a run of a task whose call is in the record as sent.
    async fn sent(&self) -> Arc<TaskRun> {
        let whole = self.owned(record("t1")).await;
        let sent = WriteOp::AdvanceTask {
            task: TaskId::new("t1"),
            epoch: whole.stored.epoch,
            step: TaskStep::Sent,
        };
        assert_eq!(self.tasks().shared.persistence.write(sent).await.unwrap(), WriteOutcome::Done);
        let tenant = self.broker.tenant(&whole.stored.record.tenant).unwrap();
        let plan = RunPlan::read(&whole.stored.record).unwrap();
        TaskRun::new(whole, plan, tenant, self.tasks())
    }

    /// Makes the store refuse the next `times` steps of tasks as busy.
    fn busy_with_steps(&self, mut times: u32) {
        self.store.on_write(move |writes| {
            let is_step = writes.iter().any(|write| matches!(write, WriteOp::AdvanceTask { .. }));
            if is_step && times > 0 {
                times -= 1;
                return Verdict::Fail(away());
            }
            Verdict::Pass
        });
    }

    async fn stored_state(&self) -> (Option<NodeName>, TaskStep) {
        let stored = self.store.full_task(&TaskId::new("t1")).await.unwrap().unwrap().stored;
        (stored.owner, stored.step)
    }
}

#[tokio::test]
async fn a_task_is_released_only_with_the_recorded_state_of_its_call() {
    let alone = Alone::start().await;
    let run = alone.sent().await;
    alone.busy_with_steps(u32::MAX);
    handoff::release(&run).await;
    assert_eq!(
        alone.stored_state().await,
        (Some(alone.tasks().shared.persistence.node()), TaskStep::Sent)
    );
    alone.busy_with_steps(2);
    handoff::release(&run).await;
    assert_eq!(alone.stored_state().await, (None, TaskStep::Queued), "it was certainly not sent");
}

#[tokio::test]
async fn a_new_backend_task_is_recorded_before_its_task_is_released() {
    let alone = Alone::start().await;
    alone.add_backend();
    let run = alone.sent().await;
    let made = TaskStep::Delegated { backend_task: "theirs".into(), link: b"way".to_vec() };
    let link = run.link().unwrap();
    run.lock().maybe_sent = true;
    run.lock().backend_task =
        Some(TrackedBackendTask { id: "theirs".into(), link, unstored: Some(made.clone()) });
    alone.busy_with_steps(1);
    handoff::release(&run).await;
    assert_eq!(alone.stored_state().await, (None, made));
}

/// The run waits for its backend, which is being replaced, when the process drains.
#[tokio::test]
async fn a_task_of_a_backend_that_is_away_keeps_its_step_when_it_is_released() {
    let alone = Alone::start().await;
    let stored = alone.owned(record("t1")).await;
    let made = TaskStep::Delegated { backend_task: "theirs".into(), link: b"way".to_vec() };
    let (task, epoch) = (TaskId::new("t1"), stored.stored.epoch);
    let delegated = WriteOp::AdvanceTask { task: task.clone(), epoch, step: made.clone() };
    assert_eq!(
        alone.tasks().shared.persistence.write(delegated).await.unwrap(),
        WriteOutcome::Done
    );
    let whole = alone.store.full_task(&task).await.unwrap().unwrap();
    let tenant = alone.broker.tenant(&whole.stored.record.tenant).unwrap();
    let plan = RunPlan::read(&whole.stored.record).unwrap();
    alone.tasks().start(TaskRun::new(whole, plan, tenant, alone.tasks()), made.clone());
    alone.tasks().drain();
    testkit::eventually("the release of the task", async || {
        let state = alone.stored_state().await;
        if state.0.is_none() { Ok(()) } else { Err(state) }
    })
    .await;
    let step = alone.stored_state().await.1;
    assert_eq!(step, made, "the backend may carry out its task");
}

#[tokio::test]
async fn an_answer_that_has_arrived_wins_over_a_stop_of_the_run() {
    let alone = Alone::start().await;
    let run = alone.sent().await;
    run.stop(StopReason::Released);
    let ending =
        runner::first_end(&run, std::pin::pin!(std::future::ready(RunOutcome::CancelledByBackend)))
            .await;
    assert!(matches!(ending, RunOutcome::CancelledByBackend), "{ending:?}");
    let never = std::pin::pin!(std::future::pending());
    assert!(matches!(
        runner::first_end(&run, never).await,
        RunOutcome::Stopped(StopReason::Released)
    ));
}

#[tokio::test]
async fn an_owned_task_without_a_run_is_found_at_the_second_sweep() {
    let alone = Alone::start().await;
    let (tasks, node) = (alone.tasks(), alone.tasks().shared.persistence.node());
    let [stray, attended] =
        [alone.stored(record("stray"), &node).await, alone.stored(record("attended"), &node).await];
    alone.stored(record("anothers"), &NodeName::new("another")).await;
    let recovering = tasks.start_recovery(&attended.stored.record.task).unwrap();
    // The tasks have the name of before.
    tasks.shared.persistence.rename(NodeName::new("renamed"));
    let reads = alone.store.count("full_task");
    let missing = orphans::sweep_once(tasks, HashSet::new()).await;
    assert_eq!(missing, HashSet::from([stray.stored.record.task.clone()]));
    assert_eq!(alone.store.count("full_task"), reads, "it may be just about to begin");
    assert_eq!(orphans::sweep_once(tasks, missing).await, HashSet::new());
    // This process does not have the backend, so it releases the task.
    let owner =
        async |task: &str| alone.store.inner.task(&TaskId::new(task)).await.unwrap().unwrap().owner;
    testkit::eventually("it to be taken up", async || {
        if owner("stray").await.is_none() { Ok(()) } else { Err(()) }
    })
    .await;
    assert_eq!(
        (owner("attended").await, owner("anothers").await),
        (Some(node), Some(NodeName::new("another")))
    );
    drop(recovering);
}

/// A run that stops as lost leaves its task to the next comparison.
#[tokio::test]
async fn a_task_reclaimed_while_its_run_stops_is_not_lost() {
    let alone = Alone::start().await;
    let tasks = alone.tasks();
    let whole = alone.owned(record("t1")).await;
    let tenant = alone.broker.tenant(&whole.stored.record.tenant).unwrap();
    let run =
        TaskRun::new(whole.clone(), RunPlan::read(&whole.stored.record).unwrap(), tenant, tasks);
    assert!(tasks.register(&run));
    run.stop(StopReason::Lost);
    recover(tasks.clone(), whole).await;
    assert_eq!(orphans::sweep_once(tasks, HashSet::new()).await, HashSet::new(), "it stops");
    tasks.unregister(&run);
    let missing = orphans::sweep_once(tasks, HashSet::new()).await;
    orphans::sweep_once(tasks, missing).await;
    let released =
        async || match alone.store.inner.task(&TaskId::new("t1")).await.unwrap().unwrap().owner {
            None => Ok(()),
            owner => Err(owner),
        };
    testkit::eventually("it to be taken up", released).await;
}

#[tokio::test]
async fn the_remaining_time_of_a_task_comes_from_the_store() {
    let alone = Alone::start().await;
    let whole = alone.owned(record("t1")).await;
    let tenant = alone.broker.tenant(&whole.stored.record.tenant).unwrap();
    let (minute, hour) = (Duration::from_secs(60), 3_600_000_000);
    for (created_at_us, remaining) in
        [(whole.stored.created_at_us - hour, minute), (whole.stored.created_at_us + hour, minute)]
    {
        let mut task = whole.clone();
        (task.stored.created_at_us, task.remaining_ttl) = (created_at_us, Some(remaining));
        let run = TaskRun::new(
            task,
            RunPlan::read(&whole.stored.record).unwrap(),
            tenant.clone(),
            alone.tasks(),
        );
        assert!(
            run.remaining_time() <= remaining && run.remaining_time() > remaining / 2,
            "{:?}",
            run.remaining_time()
        );
    }
}

/// The request that made the task of [`record_with_origin`].
const ORIGIN: RequestName = RequestName(7);

fn record_with_origin() -> TaskRecord {
    let record = record("t1");
    let mut details = TaskDetails::decode(&record.details).unwrap();
    details.request = Some(ORIGIN.to_string());
    TaskRecord { details: details.encode(), ..record }
}

impl Alone {
    /// Loses the store's answer to the first end of a task.
    fn lose_an_answer(&self) {
        let mut is_first = true;
        self.store.on_write(move |writes| {
            let is_end = writes.iter().any(|write| matches!(write, WriteOp::EndTask { .. }));
            if is_end && std::mem::take(&mut is_first) {
                return Verdict::LoseAnswer(away());
            }
            Verdict::Pass
        });
    }

    /// Waits for the record of the task's end, and checks that it is the only one.
    async fn recorded_end(&self) -> Value {
        let look = async || {
            let found = self.store.inner.audit_records(&AuditFilter::default(), None, 10).await;
            let found = found.unwrap();
            if found.is_empty() { Err(()) } else { Ok(found) }
        };
        let found = testkit::eventually("the record of the end", look).await;
        assert_eq!(found.len(), 1);
        let record: Value = serde_json::from_str(&found[0].record.body).unwrap();
        let expected = json!(["task", "b__tool", "ada", "b"]);
        let members = ["transport", "target", "principal", "backend"].map(|name| &record[name]);
        assert_eq!(json!(members), expected, "{record}");
        record
    }

    fn transitions(&self, to: &str) -> bool {
        let line = format!("mcp_task_transitions_total{{to=\"{to}\"}} 1");
        self.tasks().shared.metrics.render().contains(&line)
    }
}

#[tokio::test]
async fn an_end_whose_commit_lost_its_answer_is_recorded_counted_and_announced() {
    let alone = Alone::start_audited().await;
    let run = alone.sent().await;
    let mut wakeups = alone.tasks().shared.persistence.hot.subscribe();
    alone.lose_an_answer();
    let answer = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    let answer = rules::tasks::decoded(answer).unwrap();
    alone.tasks().start_with(run, |_| std::future::ready(RunOutcome::Translated(answer)));
    let record = alone.recorded_end().await;
    assert_eq!((&record["outcome"], record.get("error")), (&json!("completed"), None), "{record}");
    let announced = testkit::within("the wake-up", wakeups.recv()).await.unwrap();
    assert!(matches!(announced, Wakeup::Task { task, .. } if task == TaskId::new("t1")));
    assert!(alone.transitions("completed"));
}

#[tokio::test]
async fn the_end_of_a_task_with_an_unknown_outcome_is_recorded() {
    for loses_answer in [false, true] {
        let alone = Alone::start_audited().await;
        alone.add_backend();
        let (tasks, node) = (alone.tasks(), alone.tasks().shared.persistence.node());
        let mut left = alone.stored(record_with_origin(), &node).await;
        left.stored.step = TaskStep::Sent;
        if loses_answer {
            alone.lose_an_answer();
        }
        recover(tasks.clone(), left).await;
        let record = alone.recorded_end().await;
        assert_eq!(
            json!([record["outcome"], record["error"], record["request_id"]]),
            json!(["failed", "outcome_unknown", ORIGIN.to_string()]),
            "{record}"
        );
        assert!(alone.transitions("failed"), "an answer was lost: {loses_answer}");
        let outcome = alone.store.inner.task_outcome(&TaskId::new("t1")).await.unwrap().unwrap();
        let outcome: Value = serde_json::from_slice(&outcome).unwrap();
        assert_eq!(outcome["error"]["data"]["requestId"], ORIGIN.to_string());
    }
}

#[tokio::test]
async fn the_process_that_cancels_a_task_of_another_records_the_end() {
    let alone = Alone::start_audited().await;
    let other = alone.stored(record_with_origin(), &NodeName::new("another")).await;
    assert!(alone.tasks().cancel_stored(&other.stored).await.unwrap());
    let record = alone.recorded_end().await;
    assert_eq!(
        json!([record["outcome"], record["request_id"]]),
        json!(["cancelled", ORIGIN.to_string()]),
        "{record}"
    );
    assert!(!alone.tasks().cancel_stored(&other.stored).await.unwrap(), "it is over");
    alone.tasks().shared.persistence.audit.flush().await;
    alone.recorded_end().await;
}
