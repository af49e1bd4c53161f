//! Tests of sessions, tasks and event streams on SQLite: restarts, poisoned rows, other programs on
//! the file, limits.

use std::{fs, time::Duration};

use protocol::ids::{KeyId, PrincipalId, TaskId, TenantId};
use records::{
    LogEntry, LoggedEvent, NodeName, SessionClaimOutcome, SessionIdentity, SessionKey,
    SessionRecord, StreamRecord, SubscriptionRecord, TaskAudience, TaskClaimScope, TaskLimits,
    TaskRecord, TaskStatus, WriteOp, WriteOutcome,
};
use sqlx::{AssertSqlSafe, Connection, sqlite::SqliteConnection};

use super::{in_file, options};
use crate::{
    ConfigStore, DurableStore, EventStore, NodeStore, SessionStore, SqliteStore, StoreError,
    TaskStore, conformance,
    sqlite::{DEADLINE, schema},
};

const LONG: Duration = Duration::from_secs(3_600);

fn tenant() -> TenantId {
    TenantId::parse("acme").unwrap()
}

fn identity() -> SessionIdentity {
    SessionIdentity { tenant: tenant(), principal: PrincipalId::new("ada"), endpoint: None }
}

pub(super) fn open(number: u8) -> WriteOp {
    let record = SessionRecord {
        key: SessionKey::new([number; 32]),
        identity: identity(),
        api_key: Some(KeyId::new("k1")),
        transport: "streamable_http".into(),
        version: "2025-11-25".into(),
        agreement: vec![number; 300],
        state: vec![number; 300],
        links: vec![number; 300],
    };
    WriteOp::OpenSession { record: Box::new(record), owner: NodeName::new("a") }
}

pub(super) fn create(name: &str) -> WriteOp {
    let record = TaskRecord {
        task: TaskId::new(name),
        tenant: tenant(),
        principal: PrincipalId::new("ada"),
        session: SessionKey::new([1; 32]),
        private: false,
        backend: protocol::ids::BackendId::parse("one").unwrap(),
        request: b"request".to_vec(),
        details: b"details".to_vec(),
        idempotency: None,
        ttl: Some(LONG),
    };
    let limits = TaskLimits { running: 1_000, stored: 1_000_000, bytes: u64::MAX };
    WriteOp::CreateTask { record: Box::new(record), owner: NodeName::new("a"), limits }
}

/// Stores a session with a subscription and two streams, a task with an open input, and a finished
/// task.
pub(super) async fn fill(store: &SqliteStore) {
    store.join(&NodeName::new("a"), None, LONG).await.unwrap();
    let key = SessionKey::new([1; 32]);
    let backend = protocol::ids::BackendId::parse("one").unwrap();
    let subscription = SubscriptionRecord {
        exposed_uri: "one+file:///x".into(),
        backend,
        uri: "file:///x".into(),
    };
    store.write(&[open(1), create("t1"), create("t2")]).await.unwrap();
    let end = WriteOp::EndTask {
        task: TaskId::new("t2"),
        epoch: Some(1),
        status: TaskStatus::Failed,
        message: Some("why".into()),
        outcome: Some(b"no".to_vec()),
    };
    let input = WriteOp::RequestInput {
        task: TaskId::new("t1"),
        epoch: 1,
        number: 1,
        request: b"what?".to_vec(),
        bytes_max: u64::MAX,
    };
    let outcomes = store
        .write(&[WriteOp::Subscribe { key, epoch: 1, subscription }, input, end])
        .await
        .unwrap();
    assert_eq!(outcomes, vec![WriteOutcome::Done; 3]);
    let record = |number| StreamRecord {
        number,
        standalone: true,
        pending_answers: b"due".to_vec(),
        was_read: false,
    };
    let event = LoggedEvent { sequence: 1, kind: 2, frame: "frame".into() };
    let entries = [
        LogEntry::Stream { session: key, record: record(1) },
        LogEntry::Stream { session: key, record: record(2) },
        LogEntry::Event { session: key, stream: 1, event },
    ];
    store.append(&entries).await.unwrap();
}

/// Returns all rows of [`fill`] as text.
pub(super) async fn everything(store: &SqliteStore) -> String {
    let key = SessionKey::new([1; 32]);
    let audience =
        TaskAudience { tenant: tenant(), principal: PrincipalId::new("ada"), session: key };
    let mut contents = Vec::new();
    for mut session in store.list_sessions(None, None, 100).await.unwrap() {
        // Leases end with the process.
        let owner = session.owner.as_mut().unwrap();
        owner.remaining_lease = Duration::ZERO;
        contents.push(format!("{session:?}"));
    }
    contents.push(format!("{:?}", store.subscription_counts(None).await.unwrap()));
    for task in store.tasks_visible_to(&audience, None, 100).await.unwrap() {
        let id = &task.record.task;
        let (outcome, inputs) =
            (store.task_outcome(id).await.unwrap(), store.open_task_inputs(id).await.unwrap());
        contents.push(format!(
            "{task:?} {outcome:?} {inputs:?} {:?}",
            store.task_transitions(id).await.unwrap()
        ));
    }
    contents.push(format!("{:?}", store.task_counts().await.unwrap()));
    for stream in store.streams(&key).await.unwrap() {
        contents.push(format!("{:?}", store.stream(&key, stream.number, 0).await.unwrap()));
    }
    assert_eq!(contents.len(), 1 + 1 + 2 + 1 + 2, "{contents:#?}");
    contents.join("\n")
}

#[tokio::test]
async fn state_survives_a_restart() {
    let (folder, store) = in_file().await;
    fill(&store).await;
    let before = everything(&store).await;
    store.close().await;
    drop(store);
    let store = SqliteStore::open(&options(&folder)).await.unwrap();
    assert_eq!(everything(&store).await, before);
}

#[tokio::test]
async fn state_survives_without_a_close() {
    let (folder, store) = in_file().await;
    fill(&store).await;
    let before = everything(&store).await;
    // The copy has the files as a killed process leaves them: the state in the operating system at
    // this moment.
    let copy = tempfile::tempdir().unwrap();
    fs::create_dir(copy.path().join("data")).unwrap();
    for name in ["broker.db", "broker.db-wal"] {
        fs::copy(folder.path().join("data").join(name), copy.path().join("data").join(name))
            .unwrap();
    }
    let copied = SqliteStore::open(&options(&copy)).await.unwrap();
    assert_eq!(everything(&copied).await, before);
}

#[tokio::test]
async fn leases_end_with_the_process() {
    let (folder, store) = in_file().await;
    fill(&store).await;
    drop(store);
    let store = SqliteStore::open(&options(&folder)).await.unwrap();
    assert_eq!(store.live_nodes().await.unwrap(), []);
    let b = NodeName::new("b");
    store.join(&b, None, LONG).await.unwrap();
    let claim =
        store.claim_session(&SessionKey::new([1; 32]), &identity(), &b, LONG).await.unwrap();
    assert!(
        matches!(claim, SessionClaimOutcome::Acquired { epoch: 2, .. }),
        "nothing waits for a lease: {claim:?}"
    );
    assert_eq!(store.claim_tasks(&b, TaskClaimScope::Unowned, 10, &[]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_database_of_the_previous_version_is_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let path = options(&folder).path;
    fs::create_dir(path.parent().unwrap()).unwrap();
    schema::make_older(&path, 1).await;
    let store = SqliteStore::open(&options(&folder)).await.unwrap();
    assert_eq!((store.migration().from, store.migration().to), (1, schema::latest_version()));
    assert_eq!(store.tenants().await.unwrap()[0].tenant, tenant(), "what was there stays");
    let version = store.config_version().await.unwrap();
    conformance::fill(&store).await.unwrap();
    assert!(store.config_version().await.unwrap() > version);
    fill(&store).await;
    everything(&store).await;
}

#[tokio::test]
async fn streams_end_with_their_session() {
    let (_folder, store) = in_file().await;
    conformance::events::streams_end_with_their_session(&store).await.unwrap();
    let remaining: i64 = sqlx::query_scalar("SELECT count(*) FROM stream_events")
        .fetch_one(&store.readers)
        .await
        .unwrap();
    assert_eq!(remaining, 0, "and their events");
}

#[tokio::test]
async fn f_10_an_unreadable_row_is_skipped_and_counted() {
    let (_folder, store) = in_file().await;
    store.write(&[open(1), open(2), create("t1"), create("t2")]).await.unwrap();
    for poison in [
        "UPDATE sessions SET tenant = 'NO TENANT' WHERE number = 1",
        "UPDATE tasks SET backend = '' WHERE task = 't1'",
        "UPDATE tasks SET owner = NULL",
    ] {
        sqlx::query(poison).execute(&store.writer).await.unwrap();
    }
    let b = NodeName::new("b");
    store.join(&b, None, LONG).await.unwrap();
    assert_eq!(store.list_sessions(None, None, 10).await.unwrap().len(), 1);
    assert_eq!(store.unreadable_rows(), 1);
    assert_eq!(
        store.claim_session(&SessionKey::new([1; 32]), &identity(), &b, LONG).await.unwrap(),
        SessionClaimOutcome::NotFound
    );
    assert!(matches!(
        store.claim_session(&SessionKey::new([2; 32]), &identity(), &b, LONG).await.unwrap(),
        SessionClaimOutcome::Acquired { .. }
    ));
    assert_eq!(store.task(&TaskId::new("t1")).await.unwrap(), None);
    let claimed = store.claim_tasks(&b, TaskClaimScope::Unowned, 10, &[]).await.unwrap();
    assert_eq!(
        claimed.iter().map(|task| task.stored.record.task.as_str()).collect::<Vec<_>>(),
        ["t2"]
    );
    assert_eq!(store.unreadable_rows(), 4);
    assert_eq!(
        store.claim_tasks(&b, TaskClaimScope::Unowned, 10, &[]).await.unwrap(),
        [],
        "it is not tried again and again"
    );
}

#[tokio::test]
async fn f_50_a_hundred_thousand_expired_tasks_are_removed_in_small_steps() {
    let (_folder, store) = in_file().await;
    store.write(&[create("kept")]).await.unwrap();
    sqlx::query(
        "WITH RECURSIVE counter (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counter WHERE n < 100000)
         INSERT INTO tasks (task, tenant, principal, session, private, backend, owner, epoch, status, step, revision,
                            created_at_us, updated_at_us, ttl_us, expires_at_us, bytes, details, request)
         SELECT 'x' || n, 'acme', 'ada', zeroblob(32), 0, 'one', 'a', 1, 'completed', 'sent', 2, n, n, 1, n, 14, x'00', x'01' FROM counter",
    )
    .execute(&store.writer)
    .await
    .unwrap();
    assert_eq!(store.task_counts().await.unwrap()[2], (TaskStatus::Completed, 100_000));
    let mut gone = 0;
    loop {
        let step = store.expire_tasks(1_000).await.unwrap();
        assert!(step.len() <= 1_000, "{} at once", step.len());
        if gone == 0 {
            assert_eq!(
                step.iter().filter(|task| task.as_str() == "x1").count(),
                1,
                "the oldest first"
            );
        }
        if step.is_empty() {
            break;
        }
        gone += step.len();
    }
    assert_eq!(gone, 100_000);
    assert_eq!(
        store.task_counts().await.unwrap()[..3],
        [(TaskStatus::Working, 1), (TaskStatus::InputRequired, 0), (TaskStatus::Completed, 0)]
    );
    assert!(store.task(&TaskId::new("kept")).await.unwrap().is_some());
}

#[tokio::test]
async fn f_41_while_another_program_writes_calls_time_out_and_reads_continue() {
    let (folder, store) = in_file().await;
    store.write(&[open(1)]).await.unwrap();
    let path = options(&folder).path;
    let mut other = SqliteConnection::connect(&format!("sqlite:{}", path.display())).await.unwrap();
    let held = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let error = store.write(&[open(2)]).await.unwrap_err();
    assert!(matches!(error, StoreError::Busy { .. }), "{error}");
    assert_eq!(store.list_sessions(None, None, 10).await.unwrap().len(), 1);
    held.rollback().await.unwrap();
    assert_eq!(store.write(&[open(2)]).await.unwrap(), [WriteOutcome::Done]);
    assert_eq!(store.list_sessions(None, None, 10).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_call_that_waits_for_its_turn_times_out() {
    let (_folder, store) = in_file().await;
    store.write(&[create("t1")]).await.unwrap();
    let turn = store.turn.lock().await;
    let late = |what: &str| StoreError::Busy { detail: format!("{what} took longer than 2s") };
    let (batch, key, b) = ([open(1)], SessionKey::new([1; 32]), NodeName::new("b"));
    let claim =
        tokio::time::timeout(DEADLINE * 3, store.claim_tasks(&b, TaskClaimScope::Unowned, 10, &[]));
    let (written, logged, claimed) =
        tokio::join!(store.write(&batch), store.forget_session(&key), claim);
    assert_eq!(written.unwrap_err(), late("a write"));
    assert!(matches!(logged.unwrap_err(), StoreError::Busy { .. }));
    assert_eq!(claimed.expect("it ends in time").unwrap_err(), late("claiming tasks"));
    drop(turn);
    assert_eq!(store.write(&[open(1)]).await.unwrap(), [WriteOutcome::Done]);
    assert_eq!(
        store.claim_tasks(&b, TaskClaimScope::Unowned, 10, &[]).await.unwrap().len(),
        1,
        "the first claim took none"
    );
}

#[tokio::test]
async fn a_batch_is_refused_as_a_whole_if_the_disk_is_full() {
    let (_folder, store) = in_file().await;
    fill(&store).await;
    let before = everything(&store).await;
    let pages: i64 =
        sqlx::query_scalar("PRAGMA page_count").fetch_one(&store.writer).await.unwrap();
    for (pool, limit) in [(&store.writer, pages), (&store.log, pages)] {
        let limit = AssertSqlSafe(format!("PRAGMA max_page_count = {limit}"));
        sqlx::query_scalar::<_, i64>(limit).fetch_one(pool).await.unwrap();
    }
    let key = SessionKey::new([1; 32]);
    let state = Some(vec![0; 1 << 20]);
    let big = WriteOp::UpdateSession { key, epoch: 1, idle: Duration::ZERO, state, links: None };
    assert_eq!(store.write(&[open(2), big]).await.unwrap_err(), StoreError::Full);
    let event = LoggedEvent { sequence: 2, kind: 2, frame: vec![0; 1 << 20].into() };
    let entries = [
        LogEntry::Trim { session: key, stream: 1, through: 1 },
        LogEntry::Event { session: key, stream: 1, event },
    ];
    assert_eq!(store.append(&entries).await.unwrap_err(), StoreError::Full);
    assert_eq!(everything(&store).await, before);
}

#[tokio::test]
async fn events_do_not_wait_for_the_disk() {
    let (_folder, store) = in_file().await;
    let synchronous: i64 =
        sqlx::query_scalar("PRAGMA synchronous").fetch_one(&store.log).await.unwrap();
    assert_eq!(synchronous, 1, "1 is NORMAL");
}

#[tokio::test]
async fn task_transitions_cannot_be_updated() {
    let (_folder, store) = in_file().await;
    fill(&store).await;
    let error = sqlx::query("UPDATE task_transitions SET status = 'completed'")
        .execute(&store.writer)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("not rewritten"), "{error}");
}

#[tokio::test]
async fn a_failed_statement_fails_only_its_batch() {
    let (_folder, store) = in_file().await;
    sqlx::query("CREATE TRIGGER refusing BEFORE INSERT ON tasks WHEN NEW.task = 'bad' BEGIN SELECT RAISE(ABORT, 'no'); END")
        .execute(&store.writer)
        .await
        .unwrap();
    let error = store.write(&[open(1), create("bad"), open(2)]).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    assert_eq!(store.list_sessions(None, None, 10).await.unwrap(), [], "all of a batch or nothing");
    assert_eq!(store.write(&[open(1)]).await.unwrap(), [WriteOutcome::Done]);
}

#[tokio::test]
async fn an_abandoned_call_is_executed_or_not_at_all() {
    let (_folder, store) = in_file().await;
    let mut finished = 0;
    for number in 0..200_u8 {
        let batch = [open(number), create(&format!("t{number}"))];
        let patience = Duration::from_micros(u64::from(number) * 20);
        finished += usize::from(tokio::time::timeout(patience, store.write(&batch)).await.is_ok());
        let key = SessionKey::new([number; 32]);
        let record = StreamRecord {
            number: 1,
            standalone: true,
            pending_answers: Vec::new(),
            was_read: false,
        };
        let event = LoggedEvent { sequence: 1, kind: 0, frame: "x".into() };
        let entries = [
            LogEntry::Stream { session: key, record },
            LogEntry::Event { session: key, stream: 1, event },
        ];
        let _given_up = tokio::time::timeout(patience, store.append(&entries)).await;
        if let Some(stream) = store.stream(&key, 1, 0).await.unwrap() {
            assert_eq!(stream.events.len(), 1, "no half of an append");
        }
    }
    assert_eq!(store.write(&[open(250), create("last")]).await.unwrap().len(), 2, "it goes on");
    let (sessions, tasks) = (
        store.list_sessions(None, None, 1_000).await.unwrap(),
        store.list_tasks(None, None, None, 1_000).await.unwrap(),
    );
    assert_eq!(sessions.len(), tasks.len(), "no half of a batch");
    assert!(sessions.len() > finished, "{finished} of {}", sessions.len());
}

#[tokio::test]
async fn f_10_an_unreadable_event_is_a_gap() {
    let (_folder, store) = in_file().await;
    let session = SessionKey::new([1; 32]);
    let record =
        StreamRecord { number: 1, standalone: true, pending_answers: Vec::new(), was_read: true };
    let event = |sequence| {
        let event = LoggedEvent { sequence, kind: 2, frame: "frame".into() };
        LogEntry::Event { session, stream: 1, event }
    };
    let begin = LogEntry::Stream { session, record };
    store.append(&[begin, event(1), event(2), event(3)]).await.unwrap();
    let poison = "UPDATE stream_events SET kind = 1000 WHERE sequence = 2";
    sqlx::query(poison).execute(&store.writer).await.unwrap();
    for (position, expected) in [(0, (vec![3], 2)), (1, (vec![3], 2)), (2, (vec![3], 0))] {
        let found = store.stream(&session, 1, position).await.unwrap().unwrap();
        let sequences: Vec<_> = found.events.iter().map(|event| event.sequence).collect();
        assert_eq!((sequences, found.trimmed_through), expected, "after {position}");
        assert_eq!(found.last_sequence, 3);
    }
    assert_eq!(store.unreadable_rows(), 2);
    let poison = "UPDATE stream_events SET kind = 1000 WHERE sequence = 3";
    sqlx::query(poison).execute(&store.writer).await.unwrap();
    let found = store.stream(&session, 1, 2).await.unwrap().unwrap();
    assert_eq!((found.events, found.trimmed_through), (Vec::new(), 3));
}

#[tokio::test]
async fn f_10_an_unreadable_row_does_not_shorten_a_page() {
    let (_folder, store) = in_file().await;
    store.write(&[open(1), create("t1"), create("t2"), create("t3")]).await.unwrap();
    let poison = sqlx::query("UPDATE tasks SET backend = '' WHERE task = 't1'");
    poison.execute(&store.writer).await.unwrap();
    let page = store.list_tasks(None, None, None, 2).await.unwrap();
    let record = &page[0].record;
    let audience = TaskAudience {
        tenant: record.tenant.clone(),
        principal: record.principal.clone(),
        session: record.session,
    };
    let visible = store.tasks_visible_to(&audience, None, 2).await.unwrap();
    for page in [page, visible] {
        let names: Vec<_> = page.iter().map(|task| task.record.task.as_str()).collect();
        assert_eq!(names, ["t2", "t3"]);
    }
}
