//! The suites over a real Redis, and tests of faults that no suite can cause: in Redis and in the
//! network.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use records::{LogEntry, LoggedEvent, SessionKey, StoredStream, StreamRecord};
use testkit::{
    Direction, FaultProxy, eventually,
    servers::{RedisReply, RedisServer},
};
use tokio::time::Instant;

use super::{RedisOptions, RedisStore, codec};
use crate::{EventStore, HotStore, OwnerHint, StoreError, Wakeup, conformance::hot::Replicas};

mod cluster;
mod logins;
mod permits;
mod sentinel;

const SESSION: SessionKey = SessionKey::new([5; 32]);
const HOUR: Duration = Duration::from_secs(3_600);
/// Time limit of a call in any fault, a little above the call's own limit of one second.
const CALL_MAX: Duration = Duration::from_millis(1_300);

fn options(url: String) -> RedisOptions {
    RedisOptions { url, url_file: None, key: [9; 32], event_retention: HOUR }
}

async fn open(server: &RedisServer) -> RedisStore {
    RedisStore::open(&options(server.url())).await.unwrap()
}

async fn log() -> (RedisServer, RedisStore) {
    let server = RedisServer::start().await;
    let log = open(&server).await;
    (server, log)
}

async fn replicas() -> (RedisServer, Replicas) {
    let server = RedisServer::start().await;
    let replicas: Replicas = [Arc::new(open(&server).await), Arc::new(open(&server).await)];
    (server, replicas)
}

/// Returns two replicas of an installation that hear nothing of earlier ones on the same servers.
async fn replicas_of_their_own(url: String) -> Replicas {
    static INSTALLATIONS: AtomicU8 = AtomicU8::new(0);
    let key = [INSTALLATIONS.fetch_add(1, Ordering::Relaxed); 32];
    let open = async || RedisStore::open(&RedisOptions { key, ..options(url.clone()) }).await;
    [Arc::new(open().await.unwrap()), Arc::new(open().await.unwrap())]
}

crate::event_conformance!(log_suite, super::super::log().await, expires_by_itself);
crate::hot_conformance!(hot_suite, super::super::replicas().await);

fn hint() -> OwnerHint {
    OwnerHint { node: "a/1".into(), address: "127.0.0.1:7400".into() }
}

fn record() -> StreamRecord {
    StreamRecord { number: 1, standalone: true, pending_answers: b"due".to_vec(), was_read: true }
}

fn begin() -> LogEntry {
    LogEntry::Stream { session: SESSION, record: record() }
}

fn event(sequence: u64) -> LogEntry {
    let event = LoggedEvent { sequence, kind: 1, frame: Bytes::from(format!("event {sequence}")) };
    LogEntry::Event { session: SESSION, stream: 1, event }
}

async fn stream(log: &RedisStore, position: u64) -> StoredStream {
    log.stream(&SESSION, 1, position).await.unwrap().expect("the stream is known")
}

/// Returns the sequence numbers after a position, and the number up to which events are gone.
async fn held(log: &RedisStore, position: u64) -> (Vec<u64>, u64) {
    let stream = stream(log, position).await;
    assert_eq!(stream.record, record());
    (stream.events.iter().map(|event| event.sequence).collect(), stream.trimmed_through)
}

async fn in_time<F: Future>(what: &str, call: F) -> F::Output {
    let begun = Instant::now();
    let answer = call.await;
    assert!(begun.elapsed() < CALL_MAX, "{what} took {:?}", begun.elapsed());
    answer
}

/// Checks that every call of both traits returns, without a result.
async fn finds_nothing_and_returns(hot: &RedisStore) {
    assert_eq!(in_time("owner", hot.owner_hint(&SESSION)).await, None);
    in_time("note_owner", hot.put_owner_hint(&SESSION, &hint(), HOUR)).await;
    in_time("forget_owner", hot.remove_owner_hint(&SESSION)).await;
    let refused = |answer: Result<(), StoreError>| {
        assert!(matches!(answer, Err(StoreError::Unavailable { .. })), "{answer:?}")
    };
    refused(in_time("append", hot.append(&[begin(), event(1)])).await);
    refused(in_time("streams", hot.streams(&SESSION)).await.map(drop));
    refused(in_time("stream", hot.stream(&SESSION, 1, 0)).await.map(drop));
    refused(in_time("forget_session", hot.forget_session(&SESSION)).await);
    assert!(hot.errors() > 0);
}

/// Checks that hints, events and wakeups work, at the latest after a short time.
async fn works(hot: &RedisStore, other: &RedisStore) {
    eventually("a hint to be kept", async || {
        hot.put_owner_hint(&SESSION, &hint(), HOUR).await;
        hot.owner_hint(&SESSION).await.ok_or(())
    })
    .await;
    eventually("an event to be logged", async || hot.append(&[begin(), event(1)]).await).await;
    for (from, to) in [(hot, other), (other, hot)] {
        let mut wakeups = to.subscribe();
        eventually("a word to arrive", || {
            from.publish(Wakeup::Config);
            let heard = wakeups.try_recv();
            async move { heard }
        })
        .await;
    }
    for replica in [hot, other] {
        eventually(
            "the subscription",
            async || if replica.is_connected() { Ok(()) } else { Err(()) },
        )
        .await;
    }
}

async fn disconnected(hot: &RedisStore) {
    eventually("the loss of the connection to be noticed", async || {
        if hot.is_connected() { Err(()) } else { Ok(()) }
    })
    .await;
}

#[tokio::test]
async fn flushed_events_are_reported_as_lost() {
    let (server, log) = log().await;
    log.append(&[begin(), event(1), event(2), event(3)]).await.unwrap();
    server.flush_all().await;
    assert_eq!(log.stream(&SESSION, 1, 0).await.unwrap(), None);
    log.append(&[event(4), event(5)]).await.unwrap();
    assert_eq!(held(&log, 0).await, (vec![4, 5], 3));
    assert_eq!(held(&log, 3).await, (vec![4, 5], 3), "nothing is missing after 3");
    assert_eq!(log.streams(&SESSION).await.unwrap(), [record()]);
    // A flush before the first event loses no event of the stream.
    log.forget_session(&SESSION).await.unwrap();
    log.append(&[begin()]).await.unwrap();
    server.flush_all().await;
    log.append(&[event(2)]).await.unwrap();
    assert_eq!(held(&log, 0).await, (vec![2], 1));
    // A process that did not see the earlier events cannot know, and reports the more cautious
    // value.
    server.flush_all().await;
    let adopter = open(&server).await;
    adopter.append(&[event(6)]).await.unwrap();
    assert_eq!(adopter.stream(&SESSION, 1, 0).await.unwrap(), None, "of a stream nobody told of");
    adopter.append(&[begin(), event(7)]).await.unwrap();
    assert_eq!(held(&adopter, 0).await, (vec![7], 6));
}

/// A quiet stream logs no event after the loss, but its record from time to time.
#[tokio::test]
async fn a_record_after_a_data_loss_marks_the_lost_events() {
    let (server, log) = log().await;
    let (streams, events) = (codec::streams_key(&SESSION), codec::events_key(&SESSION, 1));
    log.append(&[begin(), event(1), event(2)]).await.unwrap();
    server.command(&["COPY", &streams, "streams"]).await;
    server.command(&["COPY", &events, "events"]).await;
    server.command(&["DEL", &streams, &events]).await;
    log.append(&[begin()]).await.unwrap();
    assert_eq!((held(&log, 0).await, held(&log, 2).await), ((vec![], 2), (vec![], 2)));
    assert_eq!(stream(&log, 2).await.last_sequence, 2);
    // The events alone are left, or the server has not replicated the last one.
    server.command(&["DEL", &streams]).await;
    server.command(&["RENAME", "events", &events]).await;
    log.append(&[begin()]).await.unwrap();
    assert_eq!(held(&log, 0).await, (vec![], 2));
    server.command(&["RENAME", "streams", &streams]).await;
    log.append(&[event(3), begin()]).await.unwrap();
    assert_eq!((held(&log, 0).await, held(&log, 2).await), ((vec![1, 2, 3], 0), (vec![3], 0)));
    server.command(&["HSET", &streams, "1.l", "2"]).await;
    log.append(&[begin()]).await.unwrap();
    assert_eq!(held(&log, 0).await, (vec![], 3));
    log.append(&[event(4)]).await.unwrap();
    assert_eq!(held(&log, 0).await, (vec![4], 3));
}

#[tokio::test]
async fn a_batch_after_a_data_loss_keeps_its_own_record_and_its_drop() {
    let (server, log) = log().await;
    log.append(&[begin(), event(1)]).await.unwrap();
    server.flush_all().await;
    let later = StreamRecord { pending_answers: b"paid".to_vec(), ..record() };
    let renewed = LogEntry::Stream { session: SESSION, record: later.clone() };
    log.append(&[event(2), renewed]).await.unwrap();
    let found = stream(&log, 0).await;
    let sequences: Vec<_> = found.events.iter().map(|event| event.sequence).collect();
    assert_eq!((found.record, sequences, found.trimmed_through), (later, vec![2], 1));
    server.flush_all().await;
    let ended = LogEntry::Drop { session: SESSION, stream: 1 };
    log.append(&[event(3), ended]).await.unwrap();
    assert_eq!(log.streams(&SESSION).await.unwrap(), [], "the stream stays dropped");
}

#[tokio::test]
async fn events_evicted_or_lost_in_a_failover_are_reported_as_lost() {
    let (server, log) = log().await;
    let (streams, events) = (codec::streams_key(&SESSION), codec::events_key(&SESSION, 1));
    log.append(&[begin(), event(1), event(2)]).await.unwrap();
    server.command(&["DEL", &events]).await;
    assert_eq!(held(&log, 0).await, (vec![], 2), "of the events alone");
    log.append(&[event(3)]).await.unwrap();
    assert_eq!((held(&log, 0).await, held(&log, 2).await), ((vec![3], 2), (vec![3], 2)));
    // A server takes over that has not replicated the events 4 and 5.
    server.command(&["COPY", &streams, "streams"]).await;
    server.command(&["COPY", &events, "events"]).await;
    log.append(&[event(4), event(5)]).await.unwrap();
    server.command(&["RENAME", "streams", &streams]).await;
    server.command(&["RENAME", "events", &events]).await;
    assert_eq!((held(&log, 0).await, stream(&log, 0).await.last_sequence), ((vec![3], 2), 3));
    log.append(&[event(6)]).await.unwrap();
    assert_eq!((held(&log, 3).await, held(&log, 5).await), ((vec![6], 5), (vec![6], 5)));
}

#[tokio::test]
async fn every_redis_key_expires() {
    let (server, log) = log().await;
    log.append(&[begin(), event(1), LogEntry::Trim { session: SESSION, stream: 1, through: 1 }])
        .await
        .unwrap();
    log.put_owner_hint(&SESSION, &hint(), HOUR).await;
    let keys = server.command(&["KEYS", "*"]).await;
    assert_eq!(keys.texts().len(), 3);
    for key in keys.texts() {
        assert!(key.starts_with("mcpb:1:"), "{key}");
        let remaining = server.command(&["PTTL", key]).await.number();
        assert!((1..=3_600_000).contains(&remaining), "{key} stays for {remaining}");
    }
    log.forget_session(&SESSION).await.unwrap();
    log.remove_owner_hint(&SESSION).await;
    assert_eq!(server.command(&["DBSIZE"]).await.number(), 0);
}

#[tokio::test]
async fn a_stopped_redis_is_treated_as_absent_and_used_again_later() {
    let server = RedisServer::start().await;
    let (hot, other) = (open(&server).await, open(&server).await);
    works(&hot, &other).await;
    server.kill().await;
    disconnected(&hot).await;
    finds_nothing_and_returns(&hot).await;
    server.start_again().await;
    works(&hot, &other).await;
    // A connection that was lost while idle costs no call.
    server.stop().await;
    server.start_again().await;
    hot.put_owner_hint(&SESSION, &hint(), HOUR).await;
    assert_eq!(hot.owner_hint(&SESSION).await, Some(hint()));
}

#[tokio::test]
async fn a_redis_that_starts_later_is_found() {
    let server = RedisServer::start().await;
    server.stop().await;
    let (hot, other) = (in_time("open", open(&server)).await, open(&server).await);
    assert!(!hot.is_connected());
    finds_nothing_and_returns(&hot).await;
    let mut wakeups = hot.subscribe();
    hot.publish(Wakeup::Config);
    assert_eq!(
        wakeups.try_recv(),
        Ok(Wakeup::Config),
        "listeners of this process hear it all the same"
    );
    server.start_again().await;
    works(&hot, &other).await;
}

#[tokio::test]
async fn a_frozen_redis_does_not_delay_callers() {
    let server = RedisServer::start().await;
    let (hot, other) = (open(&server).await, open(&server).await);
    works(&hot, &other).await;
    server.freeze();
    finds_nothing_and_returns(&hot).await;
    in_time(
        "many calls",
        futures_util::future::join_all((0..100).map(|_| hot.owner_hint(&SESSION))),
    )
    .await;
    in_time("opening another", open(&server)).await;
    disconnected(&hot).await;
    server.thaw();
    works(&hot, &other).await;
}

#[tokio::test]
async fn a_network_that_drops_packets_does_not_delay_callers() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.address()).await;
    let hot = RedisStore::open(&options(format!("redis://{}/", proxy.address()))).await.unwrap();
    let other = open(&server).await;
    works(&hot, &other).await;
    for way in [Direction::Upstream, Direction::Downstream] {
        proxy.hole(way, true);
        finds_nothing_and_returns(&hot).await;
        disconnected(&hot).await;
        // The old connections stay silent, because they cannot resynchronise after lost bytes.
        proxy.hole(way, false);
        works(&hot, &other).await;
    }
    proxy.cut_after(Direction::Downstream, 3);
    works(&hot, &other).await;
    proxy.slice(Direction::Upstream, true);
    proxy.slice(Direction::Downstream, true);
    works(&hot, &other).await;
}

#[tokio::test]
async fn keys_of_another_type_are_treated_as_absent() {
    let (server, hot) = log().await;
    let (streams, events) = (codec::streams_key(&SESSION), codec::events_key(&SESSION, 1));
    for key in [&codec::owner_key(&SESSION), &streams, &events] {
        server.command(&["RPUSH", key, "not", "ours"]).await;
    }
    assert_eq!(hot.owner_hint(&SESSION).await, None);
    assert_eq!(
        (hot.streams(&SESSION).await.unwrap(), hot.stream(&SESSION, 1, 0).await.unwrap()),
        (vec![], None)
    );
    let errors = hot.errors();
    assert!(errors >= 3, "{errors}");
    hot.put_owner_hint(&SESSION, &hint(), HOUR).await;
    assert_eq!(hot.owner_hint(&SESSION).await, Some(hint()));
    hot.append(&[begin(), event(1)]).await.unwrap();
    assert_eq!(held(&hot, 0).await, (vec![1], 0));
    server.command(&["SET", &events, "not ours"]).await;
    assert_eq!(held(&hot, 0).await, (vec![], 1));
    hot.append(&[event(2)]).await.unwrap();
    assert_eq!(held(&hot, 0).await, (vec![2], 1));
    assert!(hot.errors() > errors);
}

#[tokio::test]
async fn values_of_another_installation_are_treated_as_absent() {
    let (server, hot) = log().await;
    let foreign =
        RedisStore::open(&RedisOptions { key: [8; 32], ..options(server.url()) }).await.unwrap();
    foreign.put_owner_hint(&SESSION, &hint(), HOUR).await;
    foreign.append(&[begin(), event(1)]).await.unwrap();
    let mut wakeups = hot.subscribe();
    let errors = hot.errors();
    assert_eq!(hot.owner_hint(&SESSION).await, None);
    assert_eq!(
        (hot.streams(&SESSION).await.unwrap(), hot.stream(&SESSION, 1, 0).await.unwrap()),
        (vec![], None)
    );
    foreign.publish(Wakeup::Config);
    server.command(&["PUBLISH", codec::WAKES_CHANNEL, "\u{2}of a later version"]).await;
    server.command(&["PUBLISH", codec::WAKES_CHANNEL, ""]).await;
    let other = open(&server).await;
    other.publish(Wakeup::SessionEnd(SESSION));
    other.close().await;
    let next = testkit::within("a word", wakeups.recv()).await;
    assert_eq!((next, hot.errors()), (Ok(Wakeup::SessionEnd(SESSION)), errors + 5));
    // A foreign event in the middle hides the events before it.
    hot.append(&[begin(), event(2)]).await.unwrap();
    foreign.append(&[event(3)]).await.unwrap();
    hot.append(&[event(4)]).await.unwrap();
    assert_eq!(held(&hot, 0).await, (vec![4], 3));
}

#[tokio::test]
async fn a_lost_subscription_is_restored() {
    let server = RedisServer::start().await;
    let (hot, other) = (open(&server).await, open(&server).await);
    for _ in 0..3 {
        let killed = server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await.number();
        assert!(killed > 0);
        works(&hot, &other).await;
    }
}

#[tokio::test]
async fn a_full_redis_is_reported_as_full() {
    let (server, hot) = log().await;
    hot.append(&[begin(), event(1)]).await.unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_eq!(hot.append(&[event(2)]).await, Err(StoreError::Full));
    in_time("note_owner", hot.put_owner_hint(&SESSION, &hint(), HOUR)).await;
    assert_eq!((hot.owner_hint(&SESSION).await, hot.errors()), (None, 2));
    assert_eq!(held(&hot, 0).await, (vec![1], 0), "reading goes on");
    hot.append(&[LogEntry::Drop { session: SESSION, stream: 1 }]).await.unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    hot.append(&[begin(), event(2)]).await.unwrap();
}

#[tokio::test]
async fn a_read_only_server_is_disconnected() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.address()).await;
    let hot = RedisStore::open(&options(format!("redis://{}/", proxy.address()))).await.unwrap();
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let refused = hot.append(&[begin(), event(1)]).await;
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
    // The name now points to the new primary. The store must drop the connection to the old one.
    let primary = RedisServer::start().await;
    proxy.set_target(primary.address());
    eventually("the new primary to be used", async || hot.append(&[begin(), event(1)]).await).await;
    assert_eq!(primary.command(&["DBSIZE"]).await, RedisReply::Number(2));
}

#[tokio::test]
async fn a_server_without_tls_is_treated_as_absent() {
    let server = RedisServer::start().await;
    let url = server.url().replace("redis://", "rediss://");
    let hot = in_time("open", RedisStore::open(&options(url))).await.unwrap();
    assert!(!hot.is_connected());
    finds_nothing_and_returns(&hot).await;
}

#[tokio::test]
async fn a_unix_socket_can_be_used_and_a_bad_url_shows_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis.sock");
    let server = RedisServer::start_with(&["--unixsocket", socket.to_str().unwrap()]).await;
    let hot =
        RedisStore::open(&options(format!("redis+unix://{}", socket.display()))).await.unwrap();
    works(&hot, &open(&server).await).await;
    for url in [
        "redis://:secret@127.0.0.1:port/",
        "redis+sentinel://:secret@127.0.0.1:1",
        "redis+cluster://:secret@127.0.0.1:1/1",
    ] {
        let refused = RedisStore::open(&options(url.into())).await.err().unwrap().to_string();
        assert!(!refused.contains("secret"), "{refused}");
        assert!(refused.contains("redis+sentinel://HOST,HOST/SERVICE"), "{refused}");
    }
    assert!(!format!("{:?}", options("redis://:secret@h/".into())).contains("secret"));
}
