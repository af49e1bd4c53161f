//! Tests of a process that dies at each step of writing. Acknowledged writes exist afterwards, and
//! no write exists in part.
//!
//! The process is this test binary again, with an armed fault point.

use std::{
    collections::BTreeSet,
    path::Path,
    process::{Command, ExitStatus},
    time::Duration,
};

use records::{
    LogEntry, LoggedEvent, NodeName, SessionKey, StreamRecord, TaskClaimScope, WriteOp,
    WriteOutcome,
};

use super::state::{create, open};
use crate::{
    DurableStore, EventStore, NodeStore, SessionStore, SqliteOptions, SqliteStore, TaskStore,
    sqlite::schema,
};

const DATABASE: &str = "STORAGE_TEST_DATABASE";
const DONE: &str = "STORAGE_TEST_DONE";
const BATCHES: u8 = 5;

/// Body of the dying process. It logs each acknowledged write, and runs only when [`died_at`]
/// starts it.
#[tokio::test]
async fn child() {
    let (Some(path), Some(done)) = (std::env::var_os(DATABASE), std::env::var_os(DONE)) else {
        return;
    };
    let acknowledge = |what: String| {
        use std::io::Write as _;
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&done).unwrap();
        writeln!(file, "{what}").unwrap();
    };
    let store =
        SqliteStore::open(&SqliteOptions { path: path.into(), migrate: true }).await.unwrap();
    acknowledge("opened".into());
    for number in 1..=BATCHES {
        store
            .write(&[open(number), create(&format!("t{number}")), open(100 + number)])
            .await
            .unwrap();
        acknowledge(format!("batch {number}"));
    }
    let b = NodeName::new("b");
    store.join(&b, None, Duration::from_secs(3_600)).await.unwrap();
    assert_eq!(store.claim_tasks(&b, TaskClaimScope::Unowned, 2, &[]).await.unwrap().len(), 2);
    acknowledge("claimed 2".into());
    assert_eq!(store.claim_tasks(&b, TaskClaimScope::Unowned, 3, &[]).await.unwrap().len(), 3);
    acknowledge("claimed 5".into());
    for sequence in 1..=3 {
        let session = SessionKey::new([1; 32]);
        let record = StreamRecord {
            number: 1,
            standalone: true,
            pending_answers: Vec::new(),
            was_read: false,
        };
        let event = LoggedEvent { sequence, kind: 0, frame: "x".into() };
        store
            .append(&[
                LogEntry::Stream { session, record },
                LogEntry::Event { session, stream: 1, event },
            ])
            .await
            .unwrap();
        acknowledge(format!("event {sequence}"));
    }
}

/// Runs a process that writes to `path` until it dies at a step. Returns the acknowledged writes.
fn died_at(path: &Path, step: &str) -> (ExitStatus, Vec<String>) {
    let done = path.with_extension("done");
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sqlite::tests::crash::child", "--nocapture"])
        .env(DATABASE, path)
        .env(DONE, &done)
        .env("MCP_BROKER_FAULT", step)
        .output()
        .unwrap();
    (
        ran.status,
        std::fs::read_to_string(done).unwrap_or_default().lines().map(str::to_owned).collect(),
    )
}

#[tokio::test]
async fn no_acknowledged_write_is_lost_and_no_write_is_partial() {
    let mut steps: Vec<String> =
        vec!["claim.executed:1".into(), "claim.committed:2".into(), "join.committed:1".into()];
    steps.extend(
        ["write.begun", "write.executed", "write.committed"]
            .iter()
            .flat_map(|step| [1, 4].map(|nth| format!("{step}:{nth}"))),
    );
    steps.extend(
        ["events.executed:1", "events.executed:2", "events.committed:3"].map(str::to_owned),
    );
    for step in steps {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broker.db");
        let (status, done) = died_at(&path, &step);
        assert!(!status.success(), "{step} was never passed");
        let store = SqliteStore::open(&SqliteOptions { path, migrate: true }).await.unwrap();
        let sessions = store.list_sessions(None, None, 100).await.unwrap().len();
        let tasks = store.list_tasks(None, None, None, 100).await.unwrap();
        assert_eq!(sessions, 2 * tasks.len(), "{step}: no half of a batch");
        let acknowledged = |what: &str| done.iter().filter(|line| line.starts_with(what)).count();
        let batches = acknowledged("batch");
        assert!(
            tasks.len() == batches || tasks.len() == batches + 1,
            "{step}: {batches} {}",
            tasks.len()
        );
        let running = store.task_counts().await.unwrap()[0].1;
        assert_eq!(running, tasks.len() as u64, "{step}: usage is what it should be");
        for task in &tasks {
            assert_eq!(
                store.task_transitions(&task.record.task).await.unwrap().len(),
                1,
                "{step}: its history is there"
            );
        }
        let claimed = tasks.iter().filter(|task| task.epoch == 2).count();
        let expected = [0, 2, 5][acknowledged("claimed")];
        assert!(
            claimed == expected || Some(&claimed) == [0, 2, 5].get(acknowledged("claimed") + 1),
            "{step}: {claimed} {expected}"
        );
        let events = store
            .stream(&SessionKey::new([1; 32]), 1, 0)
            .await
            .unwrap()
            .map_or(0, |stream| stream.events.len());
        let expected = acknowledged("event");
        assert!(events == expected || events == expected + 1, "{step}: {events} {expected}");
        let open_again = open(1);
        assert!(
            matches!(store.write(&[open_again]).await.unwrap()[..], [WriteOutcome::Done]),
            "{step}: it goes on"
        );
    }
}

#[tokio::test]
async fn an_interrupted_migration_leaves_the_schema_as_it_was() {
    for from in 0..schema::latest_version() {
        for step in ["migration.begun", "migration.applied"] {
            for nth in BTreeSet::from([1, schema::latest_version() - from]) {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("broker.db");
                schema::make_older(&path, from).await;
                let (status, done) = died_at(&path, &format!("{step}:{nth}"));
                assert!(
                    !status.success() && done.is_empty(),
                    "{from} {step}:{nth} {status} {done:?}"
                );
                let store =
                    SqliteStore::open(&SqliteOptions { path, migrate: true }).await.unwrap();
                assert_eq!(store.migration().from, from, "{step}:{nth}");
                let end = WriteOp::EndSession { key: SessionKey::new([1; 32]), epoch: 1 };
                assert_eq!(
                    store.write(&[open(1), end]).await.unwrap(),
                    [WriteOutcome::Done, WriteOutcome::Done]
                );
            }
        }
    }
}
