//! Tests of very many expired tasks. They are removed in small steps, and other calls do not wait.

use std::time::{Duration, Instant};

use records::WriteOutcome;

use super::{create, on_server, open_session, update};
use crate::{DurableStore, TaskStore};

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
