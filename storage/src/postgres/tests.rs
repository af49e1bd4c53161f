//! The conformance suites over PostgreSQL, and what is particular to a server that may go away.

mod claims;

use std::{sync::Arc, time::Duration};

use protocol::ids::{BackendId, PrincipalId, TaskId, TenantId};
use sqlx::Executor as _;
use testkit::{FaultProxy, PostgresServer, Way};

use super::*;
use crate::{
    Claim, ConfigStore, DurableStore, EventStore, LogEntry, LoggedEvent, NodeName, SessionKey, SessionRecord, SessionSeat, Step,
    StreamRecord, SubscriptionRecord, TaskLimits, TaskRecord, TaskStatus, Write, Written,
};

/// No call may take longer, whatever happens.
const AT_MOST: Duration = Duration::from_secs(3);
/// How soon calls succeed again after the server's return.
const RECOVERS_WITHIN: Duration = Duration::from_secs(1);

/// A store on a server of its own, which goes with the test.
async fn on_server() -> (PostgresServer, PostgresStore) {
    let server = PostgresServer::fast().await;
    let store = open(&server).await;
    (server, store)
}

async fn open(server: &PostgresServer) -> PostgresStore {
    PostgresStore::open(&options(server)).await.expect("the server runs")
}

fn options(server: &PostgresServer) -> PostgresOptions {
    PostgresOptions { url: server.url(), migrate: true, connect_timeout: Duration::from_secs(5) }
}

crate::store_conformance!(configuration, super::super::on_server().await);
crate::durable_conformance!(durable, super::super::on_server().await);
crate::event_conformance!(events, super::super::on_server().await);

#[tokio::test]
async fn streams_end_with_their_session() {
    let (_server, store) = on_server().await;
    crate::conformance::events::streams_end_with_their_session(&store).await.expect("the store answers");
}

#[tokio::test]
async fn records_survive_a_restart_and_a_crash() {
    let mut server = PostgresServer::start().await;
    let store = open(&server).await;
    crate::conformance::fill(&store).await.unwrap();
    store.write(&[open_session(1)]).await.unwrap();
    let before = (store.tenants().await.unwrap(), store.keys().await.unwrap(), store.backends().await.unwrap());
    assert!(!before.0.is_empty() && !before.1.is_empty() && !before.2.is_empty());
    store.close().await;
    server.kill().await;
    server.start_again().await;
    let store = open(&server).await;
    assert_eq!(store.migrated().from, store.migrated().to, "nothing left to migrate");
    assert_eq!(before, (store.tenants().await.unwrap(), store.keys().await.unwrap(), store.backends().await.unwrap()));
    assert_eq!(store.sessions(None, None, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn settings_reach_the_disk_before_a_write_returns() {
    let (_server, store) = on_server().await;
    let rows = store.rows(|_| sqlx::query("SELECT current_setting('synchronous_commit') || ' ' || current_setting('lock_timeout') || ' ' || current_setting('transaction_isolation') AS all"));
    assert_eq!(rows::get::<String>(&rows.await.unwrap()[0], "all").unwrap(), "on 1500ms read committed");
}

// The schema.

#[tokio::test]
async fn an_old_schema_is_refused_unless_migrating_is_allowed() {
    let server = PostgresServer::fast().await;
    let only_open = PostgresOptions { migrate: false, ..options(&server) };
    let error = PostgresStore::open(&only_open).await.unwrap_err();
    assert_eq!(error, StoreError::SchemaOlder { found: 0, known: schema::known() });
    let store = open(&server).await;
    assert_eq!(store.migrated(), Migrated { from: 0, to: schema::known() });
    PostgresStore::open(&only_open).await.expect("up to date now");
}

#[tokio::test]
async fn a_newer_schema_and_an_edited_migration_are_refused() {
    let (server, store) = on_server().await;
    store.close().await;
    server.sql(&server.url(), "UPDATE _sqlx_migrations SET checksum = '\\x00' WHERE version = 1").await;
    let error = PostgresStore::open(&options(&server)).await.unwrap_err();
    assert!(matches!(&error, StoreError::Corrupt { detail } if detail.contains("migration 1")), "{error}");
    server.sql(&server.url(), "UPDATE _sqlx_migrations SET version = 999 WHERE version = 1").await;
    let error = PostgresStore::open(&options(&server)).await.unwrap_err();
    assert_eq!(error, StoreError::SchemaNewer { found: 999, known: schema::known() });
}

#[tokio::test]
async fn replicas_that_start_at_once_take_turns_to_migrate() {
    let server = PostgresServer::fast().await;
    let opened: Vec<_> = (0..6)
        .map(|_| {
            let options = options(&server);
            tokio::spawn(async move { PostgresStore::open(&options).await })
        })
        .collect();
    let mut migrated = 0;
    for store in opened {
        let store = store.await.unwrap().expect("it is up to date, by itself or by another");
        migrated += usize::from(store.migrated().from == 0);
        assert_eq!(store.tenants().await.unwrap(), []);
    }
    assert_eq!(migrated, 1);
}

#[tokio::test]
async fn a_migration_cut_anywhere_is_resumed() {
    let server = PostgresServer::fast().await;
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let mut refused = 0;
    for bytes in (0..24).map(|step: u64| 60 + step * step * 70) {
        let url = server.database().await;
        let through = PostgresOptions { url: behind(&proxy, &url), ..options(&server) };
        proxy.cut_after(Way::Up, bytes);
        let first = PostgresStore::open(&through).await;
        proxy.heal();
        refused += usize::from(first.is_err());
        drop(first);
        let store = PostgresStore::open(&through).await.unwrap_or_else(|error| panic!("cut after {bytes}: {error}"));
        assert_eq!(store.tenants().await.unwrap(), []);
        store.close().await;
    }
    assert!(refused > 12, "{refused} of the cuts were felt");
}

// A server that goes away.

/// Calls of every sort end soon and say why; nothing of them is done.
async fn nothing_works(store: &PostgresStore) {
    let node = NodeName::new("a");
    let started = Instant::now();
    let (batch, wanted, from) = ([open_session(99)], key(1), seat());
    let (write, tenants, renewal, claim, tasks) = tokio::join!(
        store.write(&batch),
        store.tenants(),
        store.renew(&node, AT_MOST, false),
        store.claim_session(&wanted, &from, &node, Duration::from_secs(3_600)),
        store.claim_tasks(&node, 10, &[])
    );
    assert!(started.elapsed() < AT_MOST, "{:?}", started.elapsed());
    for refusal in [write.map(drop), tenants.map(drop), renewal.map(drop), claim.map(drop), tasks.map(drop)] {
        assert!(matches!(refusal, Err(StoreError::Unavailable { .. })), "{refusal:?}");
    }
}

async fn everything_works_soon(store: &PostgresStore) {
    let started = Instant::now();
    while let Err(error) = store.write(&[update(1)]).await {
        assert!(started.elapsed() < RECOVERS_WITHIN, "{error} after {:?}", started.elapsed());
    }
    // Every connection of the pool, not just one.
    let asked: Vec<_> = (0..40).map(|_| store.tenants()).collect();
    for answer in futures_of(asked).await {
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
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// Fills the pool: so many calls at once open all its connections.
async fn warm(store: &PostgresStore) {
    store.write(&[open_session(1)]).await.unwrap();
    for answer in futures_of((0..40).map(|_| store.tenants()).collect()).await {
        answer.unwrap();
    }
}

#[tokio::test]
async fn a_stopped_server_is_told_and_used_again() {
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
        assert_eq!(store.sessions(None, None, 10).await.unwrap().len(), 1, "nothing of what was refused was done");
    }
}

#[tokio::test]
async fn a_restart_between_two_calls_is_not_felt() {
    let (mut server, store) = on_server().await;
    for number in 1..=3 {
        warm(&store).await;
        server.stop_immediate().await;
        server.start_again().await;
        assert_eq!(store.write(&[open_session(number)]).await.unwrap(), [Written::Done]);
        store.tenants().await.unwrap();
    }
}

#[tokio::test]
async fn a_frozen_server_holds_nobody_up() {
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
async fn a_black_hole_holds_nobody_up() {
    let server = PostgresServer::fast().await;
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let store = PostgresStore::open(&PostgresOptions { url: behind(&proxy, &server.url()), ..options(&server) }).await.unwrap();
    warm(&store).await;
    for way in [Way::Up, Way::Down] {
        proxy.hole(way, true);
        nothing_works(&store).await;
        proxy.heal();
        // What was swallowed stays lost: the old connections never answer.
        everything_works_soon(&store).await;
    }
}

#[tokio::test]
async fn a_slow_network_is_no_absent_server() {
    let server = PostgresServer::fast().await;
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let store = PostgresStore::open(&PostgresOptions { url: behind(&proxy, &server.url()), ..options(&server) }).await.unwrap();
    store.write(&[open_session(1), create(1)]).await.unwrap();
    for way in [Way::Up, Way::Down] {
        proxy.latency(way, Duration::from_millis(100));
    }
    let started = Instant::now();
    let batch: Vec<Write> = (2..60).flat_map(|number| [open_session(number), create(number)]).chain([update(1), end(1)]).collect();
    store.write(&batch).await.unwrap();
    assert!(started.elapsed() < Duration::from_millis(1_200), "a batch is a handful of round trips: {:?}", started.elapsed());
}

#[tokio::test]
async fn a_server_without_room_is_busy() {
    let server = PostgresServer::start_with(&[("max_connections", "6"), ("superuser_reserved_connections", "0"), ("fsync", "off")]).await;
    let store = open(&server).await;
    let answers = futures_of((0..60).map(|_| store.tenants()).collect()).await;
    assert!(answers.iter().all(Result::is_ok), "calls share what connections there are: {answers:?}");
    drop(store);
    let mut taken = Vec::new();
    while let Ok(connection) = PgConnectOptions::from_str(&server.url()).unwrap().connect().await {
        taken.push(connection);
    }
    let store = PostgresStore::open(&PostgresOptions { connect_timeout: Duration::from_millis(300), ..options(&server) }).await;
    assert!(matches!(store, Err(StoreError::Busy { .. })), "{store:?}");
}

#[tokio::test]
async fn a_strangers_lock_makes_calls_busy_and_no_more() {
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
    assert_eq!(store.write(&[update(1), end(1)]).await.unwrap(), [Written::Done, Written::Done]);
}

#[tokio::test]
async fn a_read_only_server_is_unavailable() {
    let (server, store) = on_server().await;
    server.sql(&server.url(), "ALTER SYSTEM SET default_transaction_read_only = on; ").await;
    server.sql(&server.url(), "SELECT pg_reload_conf()").await;
    store.pool.distrust();
    let refusal = testkit::eventually("the setting to take effect", async || match store.write(&[open_session(1)]).await {
        Ok(done) => Err(done),
        Err(refusal) => Ok(refusal),
    })
    .await;
    assert!(matches!(refusal, StoreError::Unavailable { .. }), "{refusal:?}");
    store.tenants().await.unwrap();
}

// Commits of which nobody knows.

/// What `one_of_each` is about.
fn prepare() -> Vec<Write> {
    (1..=8).map(open_session).chain((1..=8).map(create)).collect()
}

/// A write of each kind, and what is to become of it.
fn one_of_each() -> Vec<(Write, Written)> {
    let task = |number: u8| TaskId::new(format!("t{number}"));
    let subscription =
        SubscriptionRecord { exposed_uri: "one+file:///\0x".into(), backend: BackendId::parse("one").unwrap(), uri: "file:///\0x".into() };
    vec![
        (open_session(20), Written::Done),
        (update(1), Written::Done),
        (Write::ReleaseSession { key: key(2), epoch: 1, idle: Duration::ZERO, state: vec![1], links: vec![2] }, Written::Done),
        (Write::EndSession { key: key(3), epoch: 1 }, Written::Done),
        (Write::Subscribe { key: key(4), epoch: 1, subscription }, Written::Done),
        (Write::Unsubscribe { key: key(5), epoch: 1, exposed_uri: "one+file:///y".into() }, Written::Done),
        (Write::EndSession { key: key(6), epoch: 7 }, Written::Fenced),
        (create(20), Written::Created { at_us: 0 }),
        (Write::StepTask { task: task(1), epoch: 1, step: Step::Sent }, Written::Done),
        (end(2), Written::Done),
        (Write::ReleaseTask { task: task(3), epoch: 1 }, Written::Done),
        (Write::AskInput { task: task(4), epoch: 1, number: 2, request: vec![3] }, Written::Done),
        (Write::AnswerInput { task: task(5), number: 1, answer: b"yes".to_vec() }, Written::Done),
        (Write::CloseInput { task: task(6), epoch: 1, number: 1 }, Written::Done),
        (end_as(7, None, TaskStatus::Cancelled), Written::Over),
    ]
}

/// Cuts the connection at many places of the exchange, in each direction, and closely at its end: the commit.
#[tokio::test]
async fn a_batch_cut_anywhere_is_carried_out_once_and_told_right() {
    let server = PostgresServer::fast().await;
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let store = PostgresStore::open(&PostgresOptions { url: behind(&proxy, &server.url()), ..options(&server) }).await.unwrap();
    for (way, step) in [(Way::Up, 101), (Way::Down, 31)] {
        let mut bytes = 1;
        while survives_a_cut(&server, &proxy, &store, way, bytes).await {
            bytes += step;
        }
        let mut at_the_end = 0;
        for last in (bytes.saturating_sub(step + 15)..bytes).step_by(3) {
            at_the_end += usize::from(survives_a_cut(&server, &proxy, &store, way, last).await);
        }
        assert!(bytes > step * 8 && at_the_end > 4, "{bytes} bytes, {at_the_end} cuts at the end {way:?}");
    }
}

/// Whether the batch was so long that it was cut.
async fn survives_a_cut(server: &PostgresServer, proxy: &FaultProxy, store: &PostgresStore, way: Way, bytes: u64) -> bool {
    server.sql(&server.url(), "TRUNCATE sessions, tasks, task_usage CASCADE").await;
    store.write(&prepare()).await.unwrap();
    store.write(&questions()).await.unwrap();
    let (batch, expected): (Vec<_>, Vec<_>) = one_of_each().into_iter().unzip();
    let cuts = proxy.cuts();
    proxy.cut_after(way, bytes);
    let mut outcomes = store.write(&batch).await.unwrap_or_else(|error| panic!("cut after {bytes} {way:?}: {error}"));
    let was_cut = proxy.cuts() > cuts;
    proxy.heal();
    for outcome in &mut outcomes {
        if let Written::Created { at_us } = outcome {
            *at_us = 0;
        }
    }
    assert_eq!(outcomes, expected, "cut after {bytes} {way:?}");
    let (sessions, tasks) = (store.sessions(None, None, 100).await.unwrap(), store.task_counts().await.unwrap());
    assert_eq!((sessions.len(), tasks.iter().map(|(_, count)| count).sum::<u64>()), (8, 9));
    assert_eq!(store.transitions(&TaskId::new("t2")).await.unwrap().len(), 2);
    let usage = server.sql(&server.url(), "SELECT running, stored, bytes FROM task_usage").await;
    assert_eq!(usage, "7|9|57", "cut after {bytes} {way:?}");
    was_cut
}

#[tokio::test]
async fn a_batch_whose_answer_never_comes_is_settled_in_the_time_that_is_left() {
    let server = PostgresServer::fast().await;
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let store = PostgresStore::open(&PostgresOptions { url: behind(&proxy, &server.url()), ..options(&server) }).await.unwrap();
    store.write(&[open_session(1), create(1)]).await.unwrap();
    let mut holding = PgConnectOptions::from_str(&server.url()).unwrap().connect().await.unwrap();
    holding.execute("BEGIN; SELECT 1 FROM sessions FOR UPDATE").await.unwrap();
    let batch = [end(1), update(1)];
    let (outcomes, ()) = tokio::join!(store.write(&batch), async {
        claims::somebody_waits(&server).await;
        proxy.hole(Way::Down, true);
        holding.execute("COMMIT").await.unwrap();
        testkit::eventually("the commit", async || match server.sql(&server.url(), "SELECT status FROM tasks").await {
            status if status == "completed" => Ok(()),
            status => Err(status),
        })
        .await;
        proxy.heal();
    });
    assert_eq!(outcomes.unwrap(), [Written::Done, Written::Done]);
}

#[tokio::test]
async fn a_batch_sent_again_after_an_outage_finds_what_it_did() {
    let server = PostgresServer::fast().await;
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let store = PostgresStore::open(&PostgresOptions { url: behind(&proxy, &server.url()), ..options(&server) }).await.unwrap();
    store.write(&[open_session(1), open_session(2), create(1), create(2)]).await.unwrap();
    proxy.latency(Way::Down, Duration::from_millis(200));
    let batch = [end(1), Write::EndSession { key: key(1), epoch: 1 }];
    let (lost, ()) = tokio::join!(store.write(&batch), async {
        testkit::eventually("the commit", async || match server.sql(&server.url(), "SELECT status FROM tasks WHERE task = 't1'").await {
            status if status == "completed" => Ok(()),
            status => Err(status),
        })
        .await;
        proxy.refuse().await;
        proxy.reset();
    });
    assert!(matches!(lost, Err(StoreError::Unsettled(_))), "{lost:?}");
    proxy.accept_again().await;
    proxy.heal();
    assert_eq!(store.write(&batch).await.unwrap(), [Written::Done, Written::Done]);
    assert_eq!(store.write(&[end_as(1, Some(1), TaskStatus::Failed)]).await.unwrap(), [Written::Over]);
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_told_again() {
    let server = PostgresServer::fast().await;
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let store = PostgresStore::open(&PostgresOptions { url: behind(&proxy, &server.url()), ..options(&server) }).await.unwrap();
    let node = NodeName::new("b");
    store.join(&node, None, Duration::from_secs(3_600)).await.unwrap();
    store.write(&[create(1), create(2)]).await.unwrap();
    assert_eq!(store.claim_tasks(&node, 1, &[]).await.unwrap().len(), 1, "and the statement is prepared");
    proxy.hole(Way::Down, true);
    let lost = store.claim_tasks(&node, 10, &[]).await;
    assert!(matches!(lost, Err(StoreError::Unavailable { .. })), "{lost:?}");
    proxy.heal();
    let owners = server.sql(&server.url(), "SELECT count(*) FROM tasks WHERE owner = 'b'").await;
    assert_eq!(owners, "2", "it was carried out");
    let claimed = store.claim_tasks(&node, 10, &[]).await.unwrap();
    assert_eq!(claimed.len(), 1, "what it took is told, what was told before is not");
    assert_eq!(claimed[0].stored.record.task, TaskId::new("t2"));
    assert_eq!(store.claim_tasks(&node, 10, &[]).await.unwrap(), []);
}

#[tokio::test]
async fn batches_of_replicas_in_each_others_way_all_go_through() {
    let server = PostgresServer::fast().await;
    let (one, other) = (Arc::new(open(&server).await), Arc::new(open(&server).await));
    one.write(&(1..=40).flat_map(|number| [open_session(number), create(number)]).collect::<Vec<_>>()).await.unwrap();
    let mut running = Vec::new();
    for round in 0..40_u8 {
        let store = if round % 2 == 0 { one.clone() } else { other.clone() };
        running.push(tokio::spawn(async move {
            let mut batch: Vec<Write> = (1..=40).map(update).collect();
            batch.extend((1..=40).map(|number| Write::StepTask { task: TaskId::new(format!("t{number}")), epoch: 1, step: Step::Sent }));
            batch.extend([create(100 + round), open_session(100 + round)]);
            let middle = usize::from(round) % batch.len();
            batch.rotate_left(middle);
            if round % 3 == 0 {
                batch.reverse();
            }
            store.write(&batch).await
        }));
    }
    for write in running {
        let outcomes = write.await.unwrap().unwrap();
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Written::Done | Written::Created { .. })), "{outcomes:?}");
    }
}

// What may not happen.

#[tokio::test]
async fn a_lease_and_a_claim_agree() {
    let (server, store) = on_server().await;
    let (a, b) = (NodeName::new("a"), NodeName::new("b"));
    store.join(&b, None, AT_MOST).await.unwrap();
    store.join(&a, None, AT_MOST).await.unwrap();
    store.write(&[open_session(1)]).await.unwrap();
    // A renewal is on its way, and has not committed.
    let mut renewing = PgConnectOptions::from_str(&server.url()).unwrap().connect().await.unwrap();
    server.sql(&server.url(), "UPDATE nodes SET lease_until_us = now_us() - 1 WHERE node = 'a'").await;
    renewing.execute("BEGIN; UPDATE nodes SET lease_until_us = now_us() + 10000000 WHERE node = 'a'").await.unwrap();
    let (key, seat) = (key(1), seat());
    let claim = store.claim_session(&key, &seat, &b, Duration::from_secs(3_600));
    let (claim, ()) = tokio::join!(claim, async {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        testkit::eventually("the claim to wait", async || match server.sql(&server.url(), waiting).await.as_str() {
            "0" => Err(()),
            _ => Ok(()),
        })
        .await;
        renewing.execute("COMMIT").await.unwrap();
    });
    assert!(matches!(claim.unwrap(), Claim::Elsewhere(owner) if owner.node == a), "the renewal came first");
}

#[tokio::test]
async fn a_row_that_can_not_be_read_does_not_hide_the_others() {
    let (server, store) = on_server().await;
    store.write(&[open_session(1), open_session(2), create(1), create(2)]).await.unwrap();
    server.sql(&server.url(), "UPDATE sessions SET tenant = 'Not A Name' WHERE key = (SELECT key FROM sessions LIMIT 1)").await;
    server.sql(&server.url(), "UPDATE tasks SET status = 'lost' WHERE task = 't1'").await;
    assert_eq!(store.sessions(None, None, 10).await.unwrap().len(), 1);
    assert_eq!(store.tasks(None, None, None, 10).await.unwrap().len(), 1);
    assert_eq!(store.task(&TaskId::new("t1")).await.unwrap(), None);
    assert_eq!(store.unreadable_rows(), 3);
}

#[tokio::test]
async fn long_and_strange_texts_are_kept() {
    let (_server, store) = on_server().await;
    let long = format!("one+file:///{}\0\u{1f600}", "x".repeat(100_000));
    store.write(&[open_session(1), create(1)]).await.unwrap();
    let subscription = SubscriptionRecord { exposed_uri: long.clone(), backend: BackendId::parse("one").unwrap(), uri: long.clone() };
    let step = Step::Mirrored { backend_task: "\0".into(), link: vec![0] };
    let task = TaskId::new("t1");
    let batch = [
        Write::Subscribe { key: key(1), epoch: 1, subscription: subscription.clone() },
        Write::StepTask { task: task.clone(), epoch: 1, step: step.clone() },
    ];
    store.write(&batch).await.unwrap();
    let message = Some("a\0b".to_owned());
    let (status, outcome) = (TaskStatus::Failed, None);
    store.write(&[Write::EndTask { task: task.clone(), epoch: Some(1), status, message: message.clone(), outcome }]).await.unwrap();
    assert_eq!(store.subscription_counts(None).await.unwrap()[0].uri, long);
    let stored = store.whole_task(&task).await.unwrap().unwrap().stored;
    assert_eq!((stored.message, stored.step), (message, step));
}

#[tokio::test]
async fn no_secret_is_told() {
    let (server, store) = on_server().await;
    let url = server.url().replace("postgres@", "postgres:hunter2@");
    let options = PostgresOptions { url: url.clone(), ..options(&server) };
    let secretive = PostgresStore::open(&options).await.unwrap();
    for shown in [format!("{options:?}"), format!("{secretive:?}")] {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    drop(store);
    for url in [
        url.replace("127.0.0.1", "127.0.0.1:port"),
        format!("{url}?sslmode=hunter2"),
        format!("{url}?sslrootcert=/hunter2&sslmode=verify-full"),
        url.replace(&server.port().to_string(), "1"),
        url.replace("postgres:", "stranger:").replacen("stranger:", "postgres:", 1),
        url.replace("/postgres", "/absent"),
    ] {
        let refusal = PostgresStore::open(&PostgresOptions { url: url.clone(), connect_timeout: RECOVERS_WITHIN, ..options.clone() }).await;
        if let Err(refusal) = refusal {
            assert!(!refusal.to_string().contains("hunter2"), "{refusal}");
        }
    }
}

#[tokio::test]
async fn an_absent_server_is_waited_for_and_then_told() {
    let mut server = PostgresServer::fast().await;
    server.stop_fast().await;
    let options = PostgresOptions { connect_timeout: Duration::from_millis(300), ..options(&server) };
    let started = Instant::now();
    let refusal = PostgresStore::open(&options).await;
    assert!(matches!(refusal, Err(StoreError::Unavailable { .. })), "{refusal:?}");
    assert!(started.elapsed() < AT_MOST);
    let patient = PostgresOptions { connect_timeout: Duration::from_secs(20), ..options };
    let (opened, ()) = tokio::join!(PostgresStore::open(&patient), server.start_again());
    opened.expect("it waited");
}

#[tokio::test]
async fn an_append_that_is_repeated_adds_nothing() {
    let server = PostgresServer::fast().await;
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let store = PostgresStore::open(&PostgresOptions { url: behind(&proxy, &server.url()), ..options(&server) }).await.unwrap();
    let stream = StreamRecord { number: 1, general: false, due: vec![], was_read: false };
    store.append(&[LogEntry::Stream { session: key(1), record: stream }]).await.unwrap();
    for sequence in 1..=30 {
        proxy.cut_after(Way::Down, 1 + sequence * 2);
        let event = LoggedEvent { sequence, kind: 1, frame: vec![b'x'; 10].into() };
        store.append(&[LogEntry::Event { session: key(1), stream: 1, event }]).await.unwrap();
    }
    proxy.heal();
    assert_eq!(store.stream(&key(1), 1, 0).await.unwrap().unwrap().events.len(), 30);
}

fn behind(proxy: &FaultProxy, url: &str) -> String {
    let (_, database) = url.rsplit_once('/').unwrap();
    format!("postgres://postgres@{}/{database}", proxy.address())
}

fn key(number: u8) -> SessionKey {
    SessionKey::new([number; crate::SESSION_KEY_BYTES])
}

fn seat() -> SessionSeat {
    SessionSeat { tenant: TenantId::parse("acme").unwrap(), principal: PrincipalId::new("ada"), endpoint: None }
}

fn open_session(number: u8) -> Write {
    let record = SessionRecord {
        key: key(number),
        seat: seat(),
        api_key: None,
        transport: "streamable_http".into(),
        version: "2025-11-25".into(),
        agreement: vec![1],
        state: vec![2],
        links: vec![3],
    };
    Write::OpenSession { record: Box::new(record), owner: NodeName::new("a") }
}

fn update(number: u8) -> Write {
    Write::UpdateSession { key: key(number), epoch: 1, idle: Duration::ZERO, state: Some(vec![4]), links: None }
}

fn create(number: u8) -> Write {
    let record = TaskRecord {
        task: TaskId::new(format!("t{number}")),
        tenant: TenantId::parse("acme").unwrap(),
        principal: PrincipalId::new("ada"),
        session: key(1),
        private: false,
        backend: BackendId::parse("one").unwrap(),
        request: b"call".to_vec(),
        details: b"".to_vec(),
        idempotency: Some(vec![number]),
        ttl: None,
    };
    let limits = TaskLimits { running: 1_000, stored: 1_000, bytes: 1 << 40 };
    Write::CreateTask { record: Box::new(record), owner: NodeName::new("a"), limits }
}

fn end(number: u8) -> Write {
    end_as(number, Some(1), TaskStatus::Completed)
}

fn end_as(number: u8, epoch: Option<i64>, status: TaskStatus) -> Write {
    Write::EndTask { task: TaskId::new(format!("t{number}")), epoch, status, message: None, outcome: Some(b"how it ended".to_vec()) }
}

/// Inputs that are open, and a task that is over.
fn questions() -> Vec<Write> {
    let ask = |number: u8| Write::AskInput { task: TaskId::new(format!("t{number}")), epoch: 1, number: 1, request: vec![3] };
    vec![
        ask(4),
        ask(5),
        ask(6),
        Write::EndTask {
            task: TaskId::new("t7"),
            epoch: Some(1),
            status: TaskStatus::Completed,
            message: None,
            outcome: Some(b"by itself".to_vec()),
        },
    ]
}
