//! Redis Sentinel: the suites, and changes of the master under use.

use testkit::{eventually, servers::RedisWithSentinels};

use super::{begin, event, held, in_time, options, replicas_of_their_own, works};
use crate::{
    EventStore, HotStore, conformance::hot::Replicas, hot::BudgetRequest, hot::redis::RedisStore,
};

async fn open(redis: &RedisWithSentinels) -> RedisStore {
    RedisStore::open(&options(redis.url())).await.unwrap()
}

async fn empty_log(redis: &RedisWithSentinels) -> RedisStore {
    redis.master().await.flush_all().await;
    open(redis).await
}

async fn empty_replicas(redis: &RedisWithSentinels) -> Replicas {
    redis.master().await.flush_all().await;
    replicas_of_their_own(redis.url()).await
}

crate::event_conformance!(log_suite, in turn on super::RedisWithSentinels::start().await => super::empty_log, expires_by_itself);
crate::hot_conformance!(hot_suite, in turn on super::RedisWithSentinels::start().await => super::empty_replicas);

/// Takes one unit of a budget of five that hardly refills.
async fn take(hot: &RedisStore) -> Result<(u32, u32), &'static str> {
    let request =
        BudgetRequest { name: "acme".into(), per_second: 1, burst: 5, used: 0, wanted: 1 };
    let grants = hot.take_from_budgets(&[request]).await.ok_or("no answer")?;
    Ok((grants[0].granted, grants[0].remaining))
}

#[tokio::test]
async fn a_killed_master_is_replaced_and_unreplicated_events_are_reported_lost() {
    let redis = RedisWithSentinels::start().await;
    let (hot, other) = (open(&redis).await, open(&redis).await);
    works(&hot, &other).await;
    hot.append(&[begin(), event(2), event(3)]).await.unwrap();
    assert_eq!(take(&hot).await, Ok((1, 4)));
    redis.master().await.command(&["WAIT", "1", "5000"]).await;
    redis.stop_replication().await;
    hot.append(&[event(4), event(5)]).await.unwrap();
    redis.fail_over().await;
    eventually("the new master to be used", async || hot.append(&[event(6)]).await).await;
    assert_eq!(held(&hot, 0).await, (vec![6], 5));
    assert_eq!(held(&other, 5).await, (vec![6], 5));
    works(&hot, &other).await;
    assert!(hot.errors() > 0);
    let (granted, remaining) =
        eventually("a budget to be shared", async || take(&other).await).await;
    assert!(
        granted == 1 && remaining >= 3,
        "{granted} and {remaining}: the budget was copied or is full"
    );
}

#[tokio::test]
async fn a_master_that_becomes_a_replica_is_disconnected() {
    let redis = RedisWithSentinels::start().await;
    let (hot, other) = (open(&redis).await, open(&redis).await);
    works(&hot, &other).await;
    redis.change_roles().await;
    works(&hot, &other).await;
    // The sentinels name a further master, while the old one works on.
    let (old, new) = (redis.master().await, redis.stranger().await);
    redis.name(&new).await;
    eventually("the master that the sentinels name to be used", async || {
        hot.append(&[begin(), event(1)]).await.map_err(|error| error.to_string())?;
        match new.command(&["DBSIZE"]).await.number() {
            2 => Ok(()),
            keys => Err(format!("{keys} keys")),
        }
    })
    .await;
    works(&hot, &other).await;
    let channels = old.command(&["PUBSUB", "CHANNELS", "mcpb:*"]).await;
    assert!(channels.texts().is_empty(), "{channels:?}");
}

#[tokio::test]
async fn dead_sentinels_are_skipped() {
    let redis = RedisWithSentinels::start().await;
    let [first, second, _] = redis.sentinels() else { panic!("three sentinels") };
    first.kill().await;
    second.freeze();
    let (hot, other) = (in_time("open", open(&redis)).await, open(&redis).await);
    works(&hot, &other).await;
    assert_eq!(hot.errors(), 0);
    second.thaw();
}
