//! Tests of very many tasks that expired or whose tenant is removed. They are removed in small
//! steps, and other calls do not wait.

use std::time::{Duration, Instant};

use protocol::ids::TenantId;
use records::{AdminChange, TenantRecord, WriteOutcome};

use super::{create, on_server, open_session, update};
use crate::{ConfigStore, DurableStore, TaskStore};

/// Number of tasks that the broker removes with one statement.
const STEP: u32 = 200;
/// Time limit of one step. It is an ordinary statement, even on a busy machine.
const STEP_WITHIN: Duration = Duration::from_secs(1);
/// Number of calls measured before and during the removal.
const MEASURED: usize = 100;

/// Returns the time below which 9 of 10 calls are. The slowest ones depend on the machine.
fn p90(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() * 9 / 10]
}

#[tokio::test]
async fn f_50_twenty_thousand_expired_tasks_are_removed_in_small_steps() {
    expire(20_000).await;
}

#[tokio::test]
#[ignore = "run by `make chaos`"]
async fn f_50_a_million_expired_tasks_are_removed_in_small_steps() {
    expire(1_000_000).await;
}

async fn expire(expired: usize) {
    let (server, store) = on_server().await;
    store.write(&[open_session(1), create(1)]).await.unwrap();
    let rows = format!(
        "INSERT INTO tasks (task, tenant, principal, session, private, backend, request, details, ttl_us, expires_at_us, status, bytes,
                            step, owner, epoch, revision, created_at_us, updated_at_us)
         SELECT 'x' || n, 'acme', 'ada', decode(repeat('01', 32), 'hex'), false, 'one', 'call', '', 1, n, 'completed', 4,
                1, 'a', 1, 2, n, n FROM generate_series(1, {expired}) AS n;
         INSERT INTO task_transitions SELECT task, 1, 'working', created_at_us, 1 FROM tasks WHERE task LIKE 'x%';
         UPDATE task_usage SET stored = stored + {expired}, bytes = bytes + {expired} * 4"
    );
    server.sql(&server.url(), &rows).await;
    let quiet = measured(&store).await;
    let sweeping = async {
        let (mut gone, mut slowest) = (0, Duration::ZERO);
        loop {
            let begun = Instant::now();
            let step = store.expire_tasks(STEP).await.unwrap();
            slowest = slowest.max(begun.elapsed());
            assert!(step.len() <= STEP as usize, "{} at once", step.len());
            if step.is_empty() {
                return (gone, slowest);
            }
            gone += step.len();
        }
    };
    let ((gone, slowest), meanwhile) = tokio::join!(sweeping, measured(&store));
    assert_eq!((gone, slowest < STEP_WITHIN), (expired, true), "slowest step: {slowest:?}");
    // The limit is a ratio. Tests that run at the same time may add one scheduling delay.
    assert!(
        meanwhile < quiet * 2 + Duration::from_millis(250),
        "quiet {quiet:?}, meanwhile {meanwhile:?}"
    );
    assert_eq!(
        server.sql(&server.url(), "SELECT running, stored, bytes FROM task_usage").await,
        "1|1|4",
        "usage is what it should be"
    );
    assert_eq!(server.sql(&server.url(), "SELECT task FROM task_transitions").await, "t1");
}

/// Measures the time of a write by another caller.
async fn measured(store: &impl DurableStore) -> Duration {
    let mut times = Vec::new();
    for _ in 0..MEASURED {
        let begun = Instant::now();
        assert_eq!(store.write(&[update(1)]).await.unwrap(), [WriteOutcome::Done]);
        times.push(begun.elapsed());
    }
    p90(times)
}

#[tokio::test]
async fn a_tenant_whose_removal_exceeds_the_time_of_a_statement_is_removed() {
    let (server, store) = on_server().await;
    let acme = TenantId::parse("acme").unwrap();
    let record = TenantRecord {
        tenant: acme.clone(),
        settings: "{}".into(),
        created_at_us: 1,
        updated_at_us: 1,
    };
    store.apply(AdminChange::PutTenant(&record), None).await.unwrap();
    store.write(&[open_session(1), create(1)]).await.unwrap();
    // The server needs a millisecond for each task, and ends a statement after two seconds.
    let rows = "INSERT INTO tasks (task, tenant, principal, session, private, backend, request, details, status, bytes,
                            step, owner, epoch, revision, created_at_us, updated_at_us)
         SELECT 'x' || n, 'acme', 'ada', decode(repeat('01', 32), 'hex'), false, 'one', 'call', '', 'failed', 4,
                1, 'a', 1, 2, n, n FROM generate_series(1, 3000) AS n;
         UPDATE task_usage SET stored = stored + 3000, failed = failed + 3000, bytes = bytes + 3000 * 4;
         CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.001); RETURN OLD; END $$;
         CREATE TRIGGER slow BEFORE DELETE ON tasks FOR EACH ROW EXECUTE FUNCTION slow()";
    server.sql(&server.url(), rows).await;
    assert_eq!(server.sql(&server.url(), "SELECT remove_tasks_of('acme', 100)").await, "100");
    let is_exact = "SELECT (u.running, u.stored, u.failed, u.cancelled, u.bytes) = (
            SELECT count(*) FILTER (WHERE status = 'working'), count(*), count(*) FILTER (WHERE status = 'failed'), 0::bigint, sum(bytes)::bigint
            FROM tasks) FROM task_usage AS u";
    assert_eq!(server.sql(&server.url(), is_exact).await, "t", "what is left is counted");
    assert!(store.apply(AdminChange::DeleteTenant(&acme), None).await.unwrap());
    assert!(store.task_counts().await.unwrap().iter().all(|(_, count)| *count == 0));
    assert!(!store.apply(AdminChange::DeleteTenant(&acme), None).await.unwrap());
}
