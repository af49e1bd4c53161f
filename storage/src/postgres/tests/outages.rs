//! Tests of a server that stops, freezes, is slow, is full or accepts no writes. Calls end in time,
//! name the reason, and succeed again soon after.

use std::{str::FromStr, time::Duration};

use records::{NodeName, TaskClaimScope, WriteOp, WriteOutcome};
use sqlx::{ConnectOptions as _, Executor as _, postgres::PgConnectOptions};
use testkit::{Direction, PostgresServer};
use tokio::time::Instant;

use super::{
    AT_MOST, PostgresOptions, PostgresStore, RECOVERS_WITHIN, behind_proxy, create, end, identity,
    key, on_server, open, open_session, options, update,
};
use crate::{ConfigStore, DurableStore, NodeStore, SessionStore, StoreError, TaskStore};

/// Checks that calls of every kind end soon with a reason, and have no effect.
pub(super) async fn nothing_works(store: &PostgresStore) {
    let node = NodeName::new("a");
    let started = Instant::now();
    let (batch, wanted, from) = ([open_session(99)], key(1), identity());
    let (write, tenants, renewal, claim, tasks) = tokio::join!(
        store.write(&batch),
        store.tenants(),
        store.renew_lease(&node, AT_MOST, false),
        store.claim_session(&wanted, &from, &node, Duration::from_secs(3_600)),
        store.claim_tasks(&node, TaskClaimScope::Unowned, 10, &[])
    );
    assert!(started.elapsed() < AT_MOST, "{:?}", started.elapsed());
    for refusal in
        [write.map(drop), tenants.map(drop), renewal.map(drop), claim.map(drop), tasks.map(drop)]
    {
        assert!(matches!(refusal, Err(StoreError::Unavailable { .. })), "{refusal:?}");
    }
}

pub(super) async fn everything_works_soon(store: &PostgresStore) {
    let started = Instant::now();
    while let Err(error) = store.write(&[update(1)]).await {
        assert!(started.elapsed() < RECOVERS_WITHIN, "{error} after {:?}", started.elapsed());
    }
    // The check covers every connection of the pool.
    let queries: Vec<_> = (0..40).map(|_| store.tenants()).collect();
    for answer in futures_of(queries).await {
        answer.expect("the server is back");
    }
    assert!(started.elapsed() < RECOVERS_WITHIN * 2, "{:?}", started.elapsed());
}

async fn futures_of<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut running: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<T>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, slot) in running.iter_mut().zip(&mut done).filter(|(_, slot)| slot.is_none()) {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(context) {
                *slot = Some(value);
            }
        }
        if done.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// Fills the pool: this many calls at once open all its connections.
pub(super) async fn warm(store: &PostgresStore) {
    store.write(&[open_session(1)]).await.unwrap();
    for answer in futures_of((0..40).map(|_| store.tenants()).collect()).await {
        answer.unwrap();
    }
}

#[tokio::test]
async fn f_31_a_stopped_server_is_reported_and_used_again() {
    let (mut server, store) = on_server().await;
    warm(&store).await;
    for round in 0..3 {
        match round {
            0 => server.stop_fast().await,
            1 => server.stop_immediate().await,
            _ => server.kill().await,
        }
        nothing_works(&store).await;
        server.start_again().await;
        everything_works_soon(&store).await;
        assert_eq!(
            store.list_sessions(None, None, 10).await.unwrap().len(),
            1,
            "nothing of what was refused was done"
        );
    }
}

#[tokio::test]
async fn a_restart_between_two_calls_fails_no_call() {
    let (mut server, store) = on_server().await;
    for number in 1..=3 {
        warm(&store).await;
        server.stop_immediate().await;
        server.start_again().await;
        assert_eq!(store.write(&[open_session(number)]).await.unwrap(), [WriteOutcome::Done]);
        store.tenants().await.unwrap();
    }
}

#[tokio::test]
async fn f_32_a_frozen_server_does_not_block_callers() {
    let (server, store) = on_server().await;
    warm(&store).await;
    for _ in 0..2 {
        server.freeze();
        nothing_works(&store).await;
        nothing_works(&store).await;
        server.thaw();
        everything_works_soon(&store).await;
    }
}

#[tokio::test]
async fn f_12_a_network_black_hole_does_not_block_callers() {
    let (_server, proxy, store) = behind_proxy().await;
    warm(&store).await;
    for way in [Direction::Upstream, Direction::Downstream] {
        proxy.hole(way, true);
        nothing_works(&store).await;
        proxy.heal();
        // Swallowed bytes stay lost, so the old connections never answer.
        everything_works_soon(&store).await;
    }
}

#[tokio::test]
async fn f_33_a_slow_network_is_not_an_outage() {
    let (_server, proxy, store) = behind_proxy().await;
    store.write(&[open_session(1), create(1)]).await.unwrap();
    for way in [Direction::Upstream, Direction::Downstream] {
        proxy.latency(way, Duration::from_millis(100));
    }
    let started = Instant::now();
    let batch: Vec<WriteOp> = (2..60)
        .flat_map(|number| [open_session(number), create(number)])
        .chain([update(1), end(1)])
        .collect();
    store.write(&batch).await.unwrap();
    assert!(
        started.elapsed() < Duration::from_millis(1_200),
        "a batch is a handful of round trips: {:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn f_36_a_server_without_free_connections_is_busy() {
    let server = PostgresServer::start_with(&[
        ("max_connections", "6"),
        ("superuser_reserved_connections", "0"),
        ("fsync", "off"),
    ])
    .await;
    let store = open(&server).await;
    let answers = futures_of((0..60).map(|_| store.tenants()).collect()).await;
    assert!(
        answers.iter().all(Result::is_ok),
        "calls share what connections there are: {answers:?}"
    );
    drop(store);
    let mut taken = Vec::new();
    while let Ok(connection) = PgConnectOptions::from_str(&server.url()).unwrap().connect().await {
        taken.push(connection);
    }
    let store = PostgresStore::open(&PostgresOptions {
        connect_timeout: Duration::from_millis(300),
        ..options(&server)
    })
    .await;
    assert!(matches!(store, Err(StoreError::Busy { .. })), "{store:?}");
}

#[tokio::test]
async fn f_39_a_foreign_lock_only_makes_calls_busy() {
    let (server, store) = on_server().await;
    store.write(&[open_session(1), create(1)]).await.unwrap();
    let mut stranger = PgConnectOptions::from_str(&server.url()).unwrap().connect().await.unwrap();
    stranger.execute("BEGIN; LOCK TABLE sessions, tasks IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let started = Instant::now();
    for batch in [update(1), end(1)] {
        let refusal = store.write(&[batch]).await;
        assert!(matches!(refusal, Err(StoreError::Busy { .. })), "{refusal:?}");
    }
    assert!(started.elapsed() < AT_MOST * 2, "{:?}", started.elapsed());
    assert_eq!(store.tenants().await.unwrap(), [], "what needs no lock goes on");
    stranger.execute("ROLLBACK").await.unwrap();
    assert_eq!(
        store.write(&[update(1), end(1)]).await.unwrap(),
        [WriteOutcome::Done, WriteOutcome::Done]
    );
}

#[tokio::test]
async fn f_38_a_read_only_server_is_unavailable_until_it_accepts_writes() {
    let (server, store) = on_server().await;
    warm(&store).await;
    for (read_only, wanted) in [("on", Err(())), ("off", Ok(()))] {
        server
            .sql(
                &server.url(),
                &format!("ALTER SYSTEM SET default_transaction_read_only = {read_only}"),
            )
            .await;
        server.sql(&server.url(), "SELECT pg_reload_conf()").await;
        let outcome = testkit::eventually("the setting to take effect", async || {
            let outcome = store.write(&[update(1)]).await;
            if outcome.is_ok() == wanted.is_ok() { Ok(outcome) } else { Err(outcome) }
        })
        .await;
        match outcome {
            Ok(written) => assert_eq!(written, [WriteOutcome::Done]),
            Err(refusal) => {
                assert!(matches!(refusal, StoreError::Unavailable { .. }), "{refusal:?}")
            }
        }
        assert_eq!(store.list_sessions(None, None, 10).await.unwrap().len(), 1, "reading goes on");
    }
}

#[tokio::test]
async fn a_primary_that_became_read_only_is_disconnected() {
    let (old, proxy, store) = behind_proxy().await;
    let new = PostgresServer::fast().await;
    let direct = open(&new).await;
    crate::conformance::fill(&direct).await.unwrap();
    direct.write(&[open_session(2)]).await.unwrap();
    warm(&store).await;
    old.sql(&old.url(), "ALTER SYSTEM SET default_transaction_read_only = on").await;
    old.sql(&old.url(), "SELECT pg_reload_conf()").await;
    // The name now leads to the new primary, and the old one still answers.
    proxy.set_target(([127, 0, 0, 1], new.port()).into());
    testkit::eventually("the new primary to be used", async || {
        match store.write(&[update(2)]).await {
            Ok(outcomes) if outcomes == [WriteOutcome::Done] => Ok(()),
            other => Err(other),
        }
    })
    .await;
    let tenants = direct.tenants().await.unwrap();
    for answer in futures_of((0..40).map(|_| store.tenants()).collect()).await {
        assert_eq!(answer.unwrap(), tenants, "no connection to the old one is left");
    }
}

#[tokio::test]
async fn a_refused_statement_is_not_an_outage() {
    let (server, store) = on_server().await;
    warm(&store).await;
    server.sql(&server.url(), "ALTER TABLE task_inputs RENAME TO elsewhere").await;
    let refused = store.open_task_inputs(&protocol::ids::TaskId::new("t1")).await;
    assert!(
        matches!(&refused, Err(StoreError::Refused { detail }) if detail.contains("task_inputs")),
        "{refused:?}"
    );
    assert_eq!(store.write(&[update(1)]).await.unwrap(), [WriteOutcome::Done]);
    // A database that does not exist is unavailable instead.
    let unknown = PostgresOptions { url: format!("{}_", server.url()), ..options(&server) };
    let absent = PostgresStore::open(&unknown).await;
    assert!(matches!(absent, Err(StoreError::Unavailable { .. })), "{absent:?}");
}

#[tokio::test]
async fn f_38_connections_ended_by_an_operator_are_replaced_without_errors() {
    let (server, store) = on_server().await;
    for _ in 0..3 {
        warm(&store).await;
        let ended = "SELECT count(pg_terminate_backend(pid)) > 1 FROM pg_stat_activity WHERE application_name = 'mcp-broker'";
        assert_eq!(server.sql(&server.url(), ended).await, "t");
        assert_eq!(store.write(&[update(1)]).await.unwrap(), [WriteOutcome::Done]);
        for answer in futures_of((0..40).map(|_| store.tenants()).collect()).await {
            answer.unwrap();
        }
    }
}

#[tokio::test]
async fn f_38_prepared_statements_are_prepared_again_after_a_table_change() {
    let (server, store) = on_server().await;
    crate::conformance::fill(&store).await.unwrap();
    warm(&store).await;
    let tenants = store.tenants().await.unwrap();
    // Each change makes the server refuse statements that were prepared before: a cached plan must
    // not change its result type (0A000).
    for changed in ["VARCHAR(100000)", "TEXT"] {
        server
            .sql(
                &server.url(),
                &format!("ALTER TABLE tenants ALTER COLUMN settings TYPE {changed}"),
            )
            .await;
        // One call alone, while every idle connection has the old statement.
        assert_eq!(store.tenants().await.unwrap(), tenants, "{changed}");
        for answer in futures_of((0..40).map(|_| store.tenants()).collect()).await {
            assert_eq!(answer.unwrap(), tenants, "{changed}");
        }
        assert_eq!(store.write(&[update(1)]).await.unwrap(), [WriteOutcome::Done]);
    }
}

#[tokio::test]
async fn the_start_waits_for_an_absent_server_and_then_fails() {
    let mut server = PostgresServer::fast().await;
    server.stop_fast().await;
    let options =
        PostgresOptions { connect_timeout: Duration::from_millis(300), ..options(&server) };
    let started = Instant::now();
    let refusal = PostgresStore::open(&options).await;
    assert!(matches!(refusal, Err(StoreError::Unavailable { .. })), "{refusal:?}");
    assert!(started.elapsed() < AT_MOST);
    let patient = PostgresOptions { connect_timeout: Duration::from_secs(20), ..options };
    let (opened, ()) = tokio::join!(PostgresStore::open(&patient), server.start_again());
    opened.expect("it waited");
}
