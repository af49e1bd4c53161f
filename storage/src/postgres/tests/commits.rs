//! Tests of connections lost in the middle of a write or a claim. The store finds out whether the
//! call was done, and reports it once.

use std::{str::FromStr, time::Duration};

use futures_util::StreamExt as _;
use protocol::ids::{BackendId, KeyId, TaskId, TenantId};
use records::{
    AdminChange, AuditKind, AuditRecord, LogEntry, LoggedEvent, NodeName, StreamRecord,
    SubscriptionRecord, TaskClaimScope, TaskStatus, TaskStep, TenantRecord, WriteOp, WriteOutcome,
};
use sqlx::{
    ConnectOptions as _, Executor as _,
    postgres::{PgConnectOptions, PgConnection},
};
use testkit::{Direction, FaultProxy, PostgresServer};

use super::{
    PostgresStore, behind_proxy, create, end, end_as, key, on_server, open, open_session, update,
};
use crate::{
    ConfigStore, DurableStore, EventStore, NodeStore, SessionStore, StoreError, TaskStore,
};

/// Returns the writes that prepare the rows for `one_of_each`.
fn prepare() -> Vec<WriteOp> {
    (1..=8).map(open_session).chain((1..=8).map(create)).collect()
}

/// Returns one write of each kind, with its expected outcome.
fn one_of_each() -> Vec<(WriteOp, WriteOutcome)> {
    let task = |number: u8| TaskId::new(format!("t{number}"));
    let subscription = SubscriptionRecord {
        exposed_uri: "one+file:///\0x".into(),
        backend: BackendId::parse("one").unwrap(),
        uri: "file:///\0x".into(),
    };
    vec![
        (open_session(20), WriteOutcome::Done),
        (update(1), WriteOutcome::Done),
        (
            WriteOp::ReleaseSession {
                key: key(2),
                epoch: 1,
                idle: Duration::ZERO,
                state: vec![1],
                links: vec![2],
            },
            WriteOutcome::Done,
        ),
        (WriteOp::EndSession { key: key(3), epoch: 1 }, WriteOutcome::Done),
        (WriteOp::Subscribe { key: key(4), epoch: 1, subscription }, WriteOutcome::Done),
        (
            WriteOp::Unsubscribe { key: key(5), epoch: 1, exposed_uri: "one+file:///y".into() },
            WriteOutcome::Done,
        ),
        (WriteOp::EndSession { key: key(6), epoch: 7 }, WriteOutcome::Fenced),
        (create(20), WriteOutcome::Created { at_us: 0 }),
        (
            WriteOp::AdvanceTask { task: task(1), epoch: 1, step: TaskStep::Sent },
            WriteOutcome::Done,
        ),
        (end(2), WriteOutcome::Done),
        (WriteOp::ReleaseTask { task: task(3), epoch: 1 }, WriteOutcome::Done),
        (
            WriteOp::RequestInput {
                task: task(4),
                epoch: 1,
                number: 2,
                request: vec![3],
                bytes_max: u64::MAX,
            },
            WriteOutcome::Done,
        ),
        (
            WriteOp::AnswerInput {
                task: task(5),
                number: 1,
                answer: b"yes".to_vec(),
                bytes_max: u64::MAX,
            },
            WriteOutcome::Done,
        ),
        (WriteOp::CloseInput { task: task(6), epoch: 1, number: 1 }, WriteOutcome::Done),
        (end_as(7, None, TaskStatus::Cancelled), WriteOutcome::AlreadyFinished),
    ]
}

/// Cuts the connection at many steps of the exchange, in each direction. The cuts are close
/// together at its end, the commit.
pub(super) async fn cut_anywhere(
    server: &PostgresServer,
    proxy: &FaultProxy,
    store: &PostgresStore,
) {
    // This connection bypasses the proxy and stays open. Starting a program for each query would
    // take most of the time.
    let mut witness = PgConnectOptions::from_str(&server.url()).unwrap().connect().await.unwrap();
    for (way, step) in [(Direction::Upstream, 101), (Direction::Downstream, 31)] {
        let mut bytes = 1;
        while survives_a_cut(&mut witness, proxy, store, way, bytes).await {
            bytes += step;
        }
        let mut at_the_end = 0;
        for last in (bytes.saturating_sub(step + 15)..bytes).step_by(3) {
            at_the_end += usize::from(survives_a_cut(&mut witness, proxy, store, way, last).await);
        }
        assert!(
            bytes > step * 8 && at_the_end > 4,
            "{bytes} bytes, {at_the_end} cuts at the end {way:?}"
        );
    }
}

#[tokio::test]
async fn a_batch_interrupted_anywhere_is_executed_once_and_reported_correctly() {
    let (server, proxy, store) = behind_proxy().await;
    cut_anywhere(&server, &proxy, &store).await;
}

/// Returns whether the batch was long enough to be cut.
async fn survives_a_cut(
    witness: &mut PgConnection,
    proxy: &FaultProxy,
    store: &PostgresStore,
    way: Direction,
    bytes: u64,
) -> bool {
    witness.execute("TRUNCATE sessions, tasks, task_usage CASCADE").await.unwrap();
    store.write(&prepare()).await.unwrap();
    store.write(&questions()).await.unwrap();
    let (batch, expected): (Vec<_>, Vec<_>) = one_of_each().into_iter().unzip();
    let cuts = proxy.cuts();
    proxy.cut_after(way, bytes);
    let mut outcomes = store
        .write(&batch)
        .await
        .unwrap_or_else(|error| panic!("cut after {bytes} {way:?}: {error}"));
    let was_cut = proxy.cuts() > cuts;
    proxy.heal();
    for outcome in &mut outcomes {
        if let WriteOutcome::Created { at_us } = outcome {
            *at_us = 0;
        }
    }
    assert_eq!(outcomes, expected, "cut after {bytes} {way:?}");
    let (sessions, tasks) =
        (store.list_sessions(None, None, 100).await.unwrap(), store.task_counts().await.unwrap());
    assert_eq!((sessions.len(), tasks.iter().map(|(_, count)| count).sum::<u64>()), (8, 9));
    assert_eq!(store.task_transitions(&TaskId::new("t2")).await.unwrap().len(), 2);
    let usage = "SELECT concat_ws('|', running, stored, bytes) FROM task_usage";
    let usage: String = sqlx::query_scalar(usage).fetch_one(witness).await.unwrap();
    assert_eq!(usage, "7|9|63", "cut after {bytes} {way:?}");
    was_cut
}

#[tokio::test]
async fn a_batch_without_an_answer_is_resolved_in_the_remaining_time() {
    let (server, proxy, store) = behind_proxy().await;
    store.write(&[open_session(1), create(1)]).await.unwrap();
    let mut holding = PgConnectOptions::from_str(&server.url()).unwrap().connect().await.unwrap();
    holding.execute("BEGIN; SELECT 1 FROM sessions FOR UPDATE").await.unwrap();
    let batch = [end(1), update(1)];
    let (outcomes, ()) = tokio::join!(store.write(&batch), async {
        super::claims::somebody_waits(&server).await;
        proxy.hole(Direction::Downstream, true);
        holding.execute("COMMIT").await.unwrap();
        testkit::eventually("the commit", async || {
            match server.sql(&server.url(), "SELECT status FROM tasks").await {
                status if status == "completed" => Ok(()),
                status => Err(status),
            }
        })
        .await;
        proxy.heal();
    });
    assert_eq!(outcomes.unwrap(), [WriteOutcome::Done, WriteOutcome::Done]);
}

/// Runs a change of `table` and ends all connections after its commit, before its answer. The
/// commit waits for a lock until answers are held up. `committed` is a query with its result after
/// the commit. `then` runs before the connections end.
async fn lose_answer<T>(
    server: &PostgresServer,
    proxy: &FaultProxy,
    table: &str,
    (query, result): (&str, &str),
    change: impl Future<Output = T>,
    then: impl Future<Output = ()>,
) -> T {
    let delay = format!(
        "CREATE FUNCTION delay_commit() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER delay_commit AFTER UPDATE OR DELETE ON {table}
         DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION delay_commit()"
    );
    server.sql(&server.url(), &delay).await;
    let mut holding = PgConnectOptions::from_str(&server.url()).unwrap().connect().await.unwrap();
    holding.execute("SELECT pg_advisory_lock(1)").await.unwrap();
    let (outcome, ()) = tokio::join!(change, async {
        super::claims::somebody_waits(server).await;
        proxy.hole(Direction::Downstream, true);
        holding.execute("SELECT pg_advisory_unlock(1)").await.unwrap();
        testkit::eventually("the commit", async || match server.sql(&server.url(), query).await {
            found if found == result => Ok(()),
            found => Err(found),
        })
        .await;
        then.await;
        proxy.reset();
    });
    outcome
}

#[tokio::test]
async fn a_batch_repeated_after_an_outage_returns_its_first_outcome() {
    let (server, proxy, store) = behind_proxy().await;
    store.write(&[open_session(1), open_session(2), create(1), create(2)]).await.unwrap();
    let batch = [end(1), WriteOp::EndSession { key: key(1), epoch: 1 }];
    let committed = ("SELECT status FROM tasks WHERE task = 't1'", "completed");
    let lost =
        lose_answer(&server, &proxy, "tasks", committed, store.write(&batch), proxy.refuse()).await;
    assert!(matches!(lost, Err(StoreError::OutcomeUnknown(_))), "{lost:?}");
    proxy.accept_again().await;
    proxy.heal();
    assert_eq!(store.write(&batch).await.unwrap(), [WriteOutcome::Done, WriteOutcome::Done]);
    assert_eq!(
        store.write(&[end_as(1, Some(1), TaskStatus::Failed)]).await.unwrap(),
        [WriteOutcome::AlreadyFinished]
    );
}

#[tokio::test]
async fn a_change_whose_answer_is_lost_has_an_unknown_outcome() {
    let (server, proxy, store) = behind_proxy().await;
    crate::conformance::fill(&store).await.unwrap();
    let (acme, key) = (TenantId::parse("acme").unwrap(), KeyId::new("k1"));
    let remove = AdminChange::DeleteKey(&acme, &key);
    let committed = ("SELECT count(*) FROM api_keys WHERE key_id = 'k1'", "0");
    let lost = lose_answer(
        &server,
        &proxy,
        "api_keys",
        committed,
        store.apply(remove, None),
        proxy.refuse(),
    )
    .await;
    assert!(matches!(lost, Err(StoreError::OutcomeUnknown(_))), "{lost:?}");
    let not_sent = store.apply(remove, None).await;
    assert!(matches!(not_sent, Err(StoreError::Unavailable { .. })), "{not_sent:?}");
    proxy.accept_again().await;
    proxy.heal();
    assert_eq!(store.apply(remove, None).await, Ok(false));
}

#[tokio::test]
async fn a_change_repeated_after_a_lost_answer_leaves_a_later_one_in_place() {
    let (server, proxy, store) = behind_proxy().await;
    crate::conformance::fill(&store).await.unwrap();
    let other = super::open(&server).await;
    let record = |settings: &str| TenantRecord {
        tenant: TenantId::parse("acme").unwrap(),
        settings: settings.to_owned(),
        created_at_us: 1,
        updated_at_us: 1,
    };
    let (first, later) = (record("first"), record("later"));
    let audit = AuditRecord {
        id: [1; 16],
        at_us: 1,
        kind: AuditKind::Admin,
        tenant: None,
        body: "{}".into(),
    };
    let version = Some(store.config_version().await.unwrap());
    let change = store.apply_at(version, AdminChange::PutTenant(&first), Some(&audit));
    let committed = ("SELECT settings FROM tenants WHERE tenant = 'acme'", "first");
    let made = lose_answer(&server, &proxy, "tenants", committed, change, async {
        other.apply(AdminChange::PutTenant(&later), None).await.unwrap();
        proxy.heal();
    });
    assert_eq!(made.await, Ok(true), "the first attempt made it");
    let stored = other.tenants().await.unwrap();
    let acme = stored.into_iter().find(|stored| stored.tenant == later.tenant).unwrap();
    assert_eq!(acme.settings, "later");
}

#[tokio::test]
async fn a_version_that_a_failover_lost_is_not_used_again() {
    let (server, store) = on_server().await;
    let record = |name: &str| TenantRecord {
        tenant: TenantId::parse(name).unwrap(),
        settings: "{}".to_owned(),
        created_at_us: 1,
        updated_at_us: 1,
    };
    store.apply(AdminChange::PutTenant(&record("acme")), None).await.unwrap();
    let shipped = store.config_version().await.unwrap();
    store.apply(AdminChange::PutTenant(&record("lost")), None).await.unwrap();
    let lost = store.config_version().await.unwrap();
    // The standby that takes over did not get the second change.
    let back = format!(
        "DELETE FROM tenants WHERE tenant = 'lost'; UPDATE config_version SET version = {shipped}"
    );
    server.sql(&server.url(), &back).await;
    store.apply(AdminChange::PutTenant(&record("later")), None).await.unwrap();
    let later = store.config_version().await.unwrap();
    assert!(later > lost, "{later} after {lost}: a replica at {lost} would not read the change");
}

#[tokio::test]
async fn a_claim_with_a_lost_answer_is_returned_again() {
    let (server, proxy, store) = behind_proxy().await;
    let node = NodeName::new("b");
    store.join(&node, None, Duration::from_secs(3_600)).await.unwrap();
    store.write(&[create(1), create(2)]).await.unwrap();
    assert_eq!(
        store.claim_tasks(&node, TaskClaimScope::Unowned, 1, &[]).await.unwrap().len(),
        1,
        "and the statement is prepared"
    );
    proxy.hole(Direction::Downstream, true);
    let lost = store.claim_tasks(&node, TaskClaimScope::Unowned, 10, &[]).await;
    assert!(matches!(lost, Err(StoreError::Unavailable { .. })), "{lost:?}");
    proxy.heal();
    let owners = server.sql(&server.url(), "SELECT count(*) FROM tasks WHERE owner = 'b'").await;
    assert_eq!(owners, "2", "it was carried out");
    let claimed = store.claim_tasks(&node, TaskClaimScope::Unowned, 10, &[]).await.unwrap();
    assert_eq!(claimed.len(), 1, "what it took is told, what was told before is not");
    assert_eq!(claimed[0].stored.record.task, TaskId::new("t2"));
    assert_eq!(store.claim_tasks(&node, TaskClaimScope::Unowned, 10, &[]).await.unwrap(), []);
}

/// Each write has two seconds, in which it waits for the locks of the others. A slow machine does
/// not commit many of them in that time, so only these are in flight together.
const CONFLICTING_AT_ONCE: usize = 6;

#[tokio::test]
async fn conflicting_batches_of_replicas_all_succeed() {
    let server = PostgresServer::fast().await;
    let stores = [open(&server).await, open(&server).await];
    stores[0]
        .write(
            &(1..=40).flat_map(|number| [open_session(number), create(number)]).collect::<Vec<_>>(),
        )
        .await
        .unwrap();
    let writes = (0..40_u8).map(|round| {
        let store = &stores[usize::from(round % 2)];
        async move { store.write(&conflicting_batch(round)).await }
    });
    let mut written = futures_util::stream::iter(writes).buffer_unordered(CONFLICTING_AT_ONCE);
    while let Some(outcomes) = written.next().await {
        let outcomes = outcomes.unwrap();
        assert!(
            outcomes.iter().all(|outcome| matches!(
                outcome,
                WriteOutcome::Done | WriteOutcome::Created { .. }
            )),
            "{outcomes:?}"
        );
    }
}

/// Returns changes of the same 80 rows, in another order for each round, and two new rows.
fn conflicting_batch(round: u8) -> Vec<WriteOp> {
    let mut batch: Vec<WriteOp> = (1..=40).map(update).collect();
    batch.extend((1..=40).map(|number| WriteOp::AdvanceTask {
        task: TaskId::new(format!("t{number}")),
        epoch: 1,
        step: TaskStep::Sent,
    }));
    batch.extend([create(100 + round), open_session(100 + round)]);
    let middle = usize::from(round) % batch.len();
    batch.rotate_left(middle);
    if round.is_multiple_of(3) {
        batch.reverse();
    }
    batch
}

#[tokio::test]
async fn an_append_that_is_repeated_adds_nothing() {
    let (_server, proxy, store) = behind_proxy().await;
    let stream =
        StreamRecord { number: 1, standalone: false, pending_answers: vec![], was_read: false };
    store.append(&[LogEntry::Stream { session: key(1), record: stream }]).await.unwrap();
    for sequence in 1..=30 {
        proxy.cut_after(Direction::Downstream, 1 + sequence * 2);
        let event = LoggedEvent { sequence, kind: 1, frame: vec![b'x'; 10].into() };
        store.append(&[LogEntry::Event { session: key(1), stream: 1, event }]).await.unwrap();
    }
    proxy.heal();
    assert_eq!(store.stream(&key(1), 1, 0).await.unwrap().unwrap().events.len(), 30);
}

/// Returns writes for open inputs and a finished task.
fn questions() -> Vec<WriteOp> {
    let input = |number: u8| WriteOp::RequestInput {
        task: TaskId::new(format!("t{number}")),
        epoch: 1,
        number: 1,
        request: vec![3],
        bytes_max: u64::MAX,
    };
    vec![
        input(4),
        input(5),
        input(6),
        WriteOp::EndTask {
            task: TaskId::new("t7"),
            epoch: Some(1),
            status: TaskStatus::Completed,
            message: None,
            outcome: Some(b"by itself".to_vec()),
        },
    ]
}
