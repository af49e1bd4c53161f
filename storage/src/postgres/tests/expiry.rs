//! Tests of very many rows that expired, are kept, or whose tenant is removed. Expired rows are
//! found without the others and removed in small steps, and other calls do not wait.

use std::time::{Duration, Instant};

use protocol::ids::TenantId;
use records::{AdminChange, TenantRecord, WriteOutcome};

use super::{
    super::{PostgresStore, approvals, grants, results},
    claims::{pages_after, pages_of},
    create, on_server, open_session, update,
};
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
    let acme = stored_tenant(&store).await;
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

async fn stored_tenant(store: &PostgresStore) -> TenantId {
    let tenant = TenantId::parse("acme").unwrap();
    let record = TenantRecord {
        tenant: tenant.clone(),
        settings: "{}".into(),
        created_at_us: 1,
        updated_at_us: 1,
    };
    store.apply(AdminChange::PutTenant(&record), None).await.unwrap();
    tenant
}

#[tokio::test]
async fn a_tenant_with_many_keys_and_revocations_is_removed_by_one_statement() {
    let (server, store) = on_server().await;
    let acme = stored_tenant(&store).await;
    let rows = "INSERT INTO api_keys (key_id, tenant, principal, name, hash, created_at_us)
         SELECT 'k' || n, 'acme', 'ada', '', sha256(n::text::bytea), 1 FROM generate_series(1, 20000) AS n;
         INSERT INTO revocations (tenant, kind, subject, issued_before_us, created_at_us)
         SELECT 'acme', 'jti', 's' || n, 1, 1 FROM generate_series(1, 20000) AS n;
         CREATE TABLE versions (version BIGINT);
         CREATE FUNCTION note_version() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN INSERT INTO versions VALUES (NEW.version); RETURN NULL; END $$;
         CREATE TRIGGER notes_versions AFTER UPDATE ON config_version FOR EACH ROW EXECUTE FUNCTION note_version()";
    server.sql(&server.url(), rows).await;
    assert!(store.apply(AdminChange::DeleteTenant(&acme), None).await.unwrap());
    let versions = server.sql(&server.url(), "SELECT count(*) FROM versions").await;
    assert!((1..10).contains(&versions.parse::<u32>().unwrap()), "{versions} versions");
    assert_eq!(store.keys().await.unwrap(), []);
}

/// Number of pages below which a search reads a few entries of an index.
const FEW_PAGES: u32 = 100;

#[tokio::test]
async fn a_search_for_expired_rows_does_not_read_the_others() {
    let (server, _store) = on_server().await;
    // The order of the times differs from that of the rows. Neighbours in the index are therefore on
    // different pages of the table.
    let rows = "
        INSERT INTO tasks (task, tenant, principal, session, private, backend, request, details, ttl_us, expires_at_us, status, bytes,
                           step, owner, epoch, revision, created_at_us, updated_at_us)
        SELECT 'x' || n, 'acme', 'ada', decode(repeat('01', 32), 'hex'), FALSE, 'one', 'call', '', 1,
               now_us() + 3600000000 + n * 7919 % 50000, 'completed', 4, 1, 'a', 1, 2, n, n
        FROM generate_series(1, 50000) AS n;
        INSERT INTO results (result, tenant, principal, backend, tool, mime_type, page_bytes, body, created_at_us, expires_at_us)
        SELECT 'r' || n, 'acme', 'ada', 'one', 'tool', 'text/plain', 4096, decode(repeat('ab', 200), 'hex'), n,
               now_us() + 3600000000 + n * 7919 % 50000
        FROM generate_series(1, 50000) AS n;
        INSERT INTO upstream_secrets (kind, tenant, name, sealed, expires_at_us)
        SELECT 'link', 'acme', 'n' || n, decode(repeat('ab', 200), 'hex'), now_us() + 3600000000 + n * 7919 % 50000
        FROM generate_series(1, 50000) AS n;
        INSERT INTO approvals (approval, tenant, principal, backend, tool, definition, arguments_hash, arguments, binding, window_key,
                               terms, ttl_us, state, created_at_us, expires_at_us, changed_at_us)
        SELECT 'a' || n, 'acme', 'ada', 'one', 'tool', '', '', '', '', '', '{}', 1,
               (ARRAY['denied', 'used', 'expired'])[n % 3 + 1], n, n, now_us() - n * 7919 % 50000
        FROM generate_series(1, 50000) AS n";
    server.sql(&server.url(), rows).await;
    server.sql(&server.url(), "VACUUM ANALYZE").await;
    let expiry = "SELECT expire_tasks(200)";
    // The first call in a session reads the catalog, too.
    let read = pages_after(&server, expiry, expiry).await;
    assert!(read > 0 && read < FEW_PAGES, "{read} pages: {expiry}");
    let searches = [
        ("bigint", results::REMOVE, "200"),
        ("bigint, bigint, bigint", approvals::REMOVE, "3600000000, 3600000000, 200"),
        (
            "text, text, text, bytea, bigint",
            grants::PUT_SECRET,
            "'link', 'acme', 'new', '', 3600000000",
        ),
    ];
    for (types, statement, parameters) in searches {
        let read = pages_of(&server, types, statement, parameters).await;
        assert!(read > 0 && read < FEW_PAGES, "{read} pages: {statement}");
    }
}
