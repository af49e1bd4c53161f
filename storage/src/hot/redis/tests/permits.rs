//! Permits of two replicas on one Redis: the limit, the leases, and values of other programs.

use std::time::Duration;

use testkit::eventually;
use tokio::time::Instant;

use super::{HOUR, codec, open};
use crate::{
    HotStore,
    hot::{PermitsAnswer, PermitsGrant, PermitsLifetime, PermitsRequest, RedisStore},
};
use testkit::servers::{RedisReply, RedisServer};

const LIFETIME: PermitsLifetime = PermitsLifetime { lease: HOUR, kept: HOUR };
const LEASE: Duration = Duration::from_millis(400);

fn request(name: &str, in_use: u32, wanted: u32) -> PermitsRequest {
    PermitsRequest { name: name.into(), max: 5, in_use, wanted }
}

async fn settled(store: &RedisStore, requests: &[PermitsRequest]) -> PermitsAnswer {
    store.settle_permits(LIFETIME, requests).await.expect("an answer")
}

/// Returns how many of five permits a replica holds after it wanted some, and those of the others.
async fn holds(store: &RedisStore, in_use: u32, wanted: u32) -> (u32, u32) {
    let PermitsGrant { held, others } =
        settled(store, &[request("acme", in_use, wanted)]).await.grants[0];
    (held, others)
}

#[tokio::test]
async fn replicas_share_the_limit_and_permits_in_use_count_beyond_it() {
    let server = RedisServer::start().await;
    let (one, two) = (open(&server).await, open(&server).await);
    assert_eq!(holds(&one, 0, 3).await, (3, 0));
    assert_eq!(holds(&two, 0, 9).await, (2, 3));
    assert_eq!(holds(&one, 3, 4).await, (3, 2));
    assert_eq!(holds(&one, 1, 1).await, (1, 2), "a report replaces the former one");
    assert_eq!(holds(&two, 2, 9).await, (4, 1));
    assert_eq!(holds(&one, 6, 6).await, (6, 4), "admitted elsewhere");
    assert_eq!(holds(&two, 0, 9).await, (0, 6));
    let requests: Vec<_> =
        (0..300).map(|number| request(&format!("scope {number} ü"), 0, number % 7)).collect();
    let held: Vec<u32> =
        settled(&one, &requests).await.grants.iter().map(|grant| grant.held).collect();
    assert_eq!(held, (0..300).map(|number| (number % 7).min(5)).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_permits_of_a_replica_expire_with_its_lease() {
    let server = RedisServer::start().await;
    let (one, two) = (open(&server).await, open(&server).await);
    let short = PermitsLifetime { lease: LEASE, kept: HOUR };
    assert!(!one.settle_permits(short, &[request("acme", 5, 5)]).await.unwrap().renewed);
    assert!(one.settle_permits(short, &[]).await.unwrap().renewed);
    assert_eq!(holds(&two, 0, 5).await, (0, 5));
    let begun = Instant::now();
    eventually("the lease to end", async || match holds(&two, 0, 5).await {
        (5, 0) => Ok(()),
        other => Err(other),
    })
    .await;
    assert!(begun.elapsed() < LEASE + Duration::from_secs(2), "{:?}", begun.elapsed());
    let back = settled(&one, &[request("acme", 5, 5)]).await;
    assert!(!back.renewed, "it learns that others may have its permits");
    assert_eq!(back.grants, [PermitsGrant { held: 5, others: 5 }]);
}

#[tokio::test]
async fn a_redis_data_loss_is_detected_and_foreign_values_are_ignored() {
    let server = RedisServer::start().await;
    let (one, two) = (open(&server).await, open(&server).await);
    settled(&two, &[]).await;
    assert_eq!(holds(&one, 2, 2).await, (2, 0));
    server.flush_all().await;
    let lost = settled(&one, &[]).await;
    assert!(!lost.renewed && settled(&one, &[]).await.renewed);
    assert_eq!(holds(&one, 2, 2).await, (2, 0));
    let key = one.codec.permits_key("acme");
    let node = two.codec.node_name();
    settled(&two, &[]).await;
    for value in ["nan", "-7", "1e300", "text", ""] {
        server.command(&["HSET", &key, &node, value]).await;
        assert_eq!(holds(&one, 2, 9).await, (5, 0), "{value:?}");
    }
    let leases = codec::permits_leases_key();
    for end in ["nan", "", "text", "1e300", "99999999999999999"] {
        server.command(&["HSET", &key, &node, "3"]).await;
        server.command(&["HSET", &leases, &node, end]).await;
        assert_eq!(holds(&one, 2, 9).await, (5, 0), "a lease that ends at {end:?}");
    }
    server.command(&["SET", &leases, "foreign"]).await;
    assert!(!settled(&one, &[]).await.renewed && settled(&one, &[]).await.renewed);
    server.command(&["DEL", &key]).await;
    assert_eq!(server.command(&["SET", &key, "foreign"]).await, RedisReply::Text("OK".into()));
    assert_eq!(holds(&one, 2, 2).await, (2, 0));
}
