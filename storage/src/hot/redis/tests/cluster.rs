//! Redis Cluster: the suites, a killed master under use, and slots that move.

use records::{LogEntry, LoggedEvent, SessionKey};
use testkit::{
    eventually,
    servers::{RedisCluster, RedisReply, RedisServer},
};

use super::{HOUR, hint, options, record, replicas_of_their_own, works};
use crate::{
    EventStore, HotStore, StoreError,
    conformance::hot::Replicas,
    hot::{
        BudgetRequest, PermitsLifetime, PermitsRequest,
        redis::{RedisStore, codec, slots::slot},
    },
};

async fn open(redis: &RedisCluster) -> RedisStore {
    RedisStore::open(&options(redis.url())).await.unwrap()
}

async fn empty_log(redis: &RedisCluster) -> RedisStore {
    redis.flush_all().await;
    open(redis).await
}

async fn empty_replicas(redis: &RedisCluster) -> Replicas {
    redis.flush_all().await;
    replicas_of_their_own(redis.url()).await
}

crate::event_conformance!(log_suite, in turn on super::RedisCluster::start().await => super::empty_log, expires_by_itself);
crate::hot_conformance!(hot_suite, in turn on super::RedisCluster::start().await => super::empty_replicas);

/// Returns one session for each third of the slots.
fn sessions() -> [SessionKey; 3] {
    let of = |third: u16| {
        let mut sessions = (0..=255).map(|first| SessionKey::new([first; 32]));
        sessions.find(|session| slot(&codec::owner_key(session)) / 5_462 == third).unwrap()
    };
    [of(0), of(1), of(2)]
}

fn begun(session: SessionKey) -> LogEntry {
    LogEntry::Stream { session, record: record() }
}

fn event_of(session: SessionKey, sequence: u64) -> LogEntry {
    let event = LoggedEvent { sequence, kind: 1, frame: "event".into() };
    LogEntry::Event { session, stream: 1, event }
}

async fn last_of(log: &RedisStore, session: SessionKey) -> (u64, u64) {
    let stream =
        eventually("the log to be read", async || log.stream(&session, 1, 0).await).await.unwrap();
    (stream.events.last().map_or(0, |event| event.sequence), stream.trimmed_through)
}

async fn take(hot: &RedisStore) -> Result<u32, &'static str> {
    let request =
        BudgetRequest { name: "acme".into(), per_second: 1, burst: 9, used: 0, wanted: 1 };
    Ok(hot.take_from_budgets(&[request]).await.ok_or("no answer")?[0].granted)
}

async fn settle(hot: &RedisStore) -> Result<u32, &'static str> {
    let request = PermitsRequest { name: "acme".into(), max: 9, in_use: 1, wanted: 1 };
    let lifetime = PermitsLifetime { lease: HOUR, kept: HOUR };
    let answer = hot.settle_permits(lifetime, &[request]).await.ok_or("no answer")?;
    Ok(answer.grants[0].held + answer.grants[0].others)
}

#[tokio::test]
async fn a_killed_master_affects_only_its_slots_until_its_replica_takes_over() {
    let redis = RedisCluster::start().await;
    let (hot, other) = (open(&redis).await, open(&redis).await);
    works(&hot, &other).await;
    let [first, second, third] = sessions();
    let entries = |sequence| [first, second, third].map(|session| event_of(session, sequence));
    hot.append(&[first, second, third].map(begun)).await.unwrap();
    hot.append(&entries(1)).await.unwrap();
    for node in &redis.nodes()[..3] {
        assert!(node.command(&["DBSIZE"]).await.number() >= 2, "every master has some keys");
    }
    redis.nodes()[0].command(&["WAIT", "1", "5000"]).await;
    // A dead node is not known to be dead at first, and the others work on.
    redis.nodes()[0].kill().await;
    let (error, lost) = hot.append_each(&entries(2)).await.unwrap_err();
    assert!(matches!(error, StoreError::Busy { .. }), "{error:?}");
    assert_eq!(lost, [0], "what the other masters got is not lost");
    redis.fail_over().await;
    eventually("the new master to be used", async || hot.append(&[event_of(first, 3)]).await).await;
    hot.append(&[second, third].map(|session| event_of(session, 3))).await.unwrap();
    assert_eq!(last_of(&other, second).await, (3, 0));
    assert_eq!(last_of(&other, third).await, (3, 0));
    assert_eq!(last_of(&other, first).await.0, 3);
    works(&hot, &other).await;
    assert_eq!(eventually("a budget to be shared", async || take(&other).await).await, 1);
    assert_eq!(eventually("permits to be shared", async || settle(&hot).await).await, 1);
    assert_eq!(eventually("permits to be shared", async || settle(&other).await).await, 2);
}

#[tokio::test]
async fn unreplicated_events_of_a_killed_master_are_reported_as_lost() {
    let redis = RedisCluster::start().await;
    let (hot, [session, ..]) = (open(&redis).await, sessions());
    hot.append(&[begun(session), event_of(session, 1), event_of(session, 2)]).await.unwrap();
    redis.nodes()[0].command(&["WAIT", "1", "5000"]).await;
    redis.stop_replication().await;
    hot.append(&[event_of(session, 3)]).await.unwrap();
    redis.fail_over().await;
    eventually("the new master to be used", async || hot.append(&[event_of(session, 4)]).await)
        .await;
    assert_eq!(last_of(&hot, session).await, (4, 3));
}

async fn subscribers(node: &RedisServer) -> i64 {
    let subscribed = node.command(&["PUBSUB", "NUMSUB", codec::WAKES_CHANNEL]).await;
    let RedisReply::List(parts) = &subscribed else { panic!("{subscribed:?}") };
    parts[1].number()
}

#[tokio::test]
async fn a_subscription_moves_to_another_node() {
    let redis = RedisCluster::start().await;
    let (hot, other) = (open(&redis).await, open(&redis).await);
    works(&hot, &other).await;
    // Only the first master has a replica: without any other one, the cluster serves nothing.
    let [first, others @ ..] = redis.nodes() else { unreachable!("four nodes") };
    eventually("a subscription at the first master", async || {
        if subscribers(first).await > 0 {
            return Ok(());
        }
        for node in others {
            node.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        }
        Err(())
    })
    .await;
    first.freeze();
    works(&hot, &other).await;
    first.thaw();
}

#[tokio::test]
async fn a_refused_login_is_reported_without_the_password() {
    let redis = RedisCluster::start().await;
    let url = redis.url().replace("redis+cluster://:", "redis+cluster://:wrong-");
    let hot = RedisStore::open(&options(url)).await.unwrap();
    let Err(refused) = hot.append(&[begun(sessions()[0])]).await else { panic!("it is refused") };
    let refused = refused.to_string();
    assert!(refused.contains("authentication failed") && !refused.contains("wrong-"), "{refused}");
}

#[tokio::test]
async fn a_slot_that_moves_is_followed() {
    let redis = RedisCluster::start().await;
    let (hot, [session, ..]) = (open(&redis).await, sessions());
    let (owner, streams) = (codec::owner_key(&session), codec::streams_key(&session));
    hot.append(&[begun(session), event_of(session, 1)]).await.unwrap();
    hot.put_owner_hint(&session, &hint(), HOUR).await;
    let errors = hot.errors();
    redis.begin_move(slot(&owner)).await;
    hot.append(&[event_of(session, 2)]).await.unwrap();
    redis.migrate(&[&owner]).await;
    assert_eq!(hot.owner_hint(&session).await, Some(hint()));
    assert_eq!(last_of(&hot, session).await, (2, 0));
    redis.migrate(&[&streams, &codec::events_key(&session, 1)]).await;
    hot.append(&[event_of(session, 3)]).await.unwrap();
    assert_eq!(last_of(&hot, session).await, (3, 0));
    redis.end_move(slot(&owner)).await;
    assert_eq!(hot.owner_hint(&session).await, Some(hint()));
    hot.append(&[event_of(session, 4)]).await.unwrap();
    assert_eq!(last_of(&hot, session).await, (4, 0));
    assert_eq!(hot.errors(), errors, "no call failed");
    let last = redis.nodes()[1].command(&["EXISTS", &owner, &streams]).await;
    assert_eq!(last.number(), 2);
}
