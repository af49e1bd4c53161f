//! Tests with two brokers on one database: what moves between them, and what the former owner of a
//! session may still do.

use protocol::{envelope::Message, handshake, json, method::Method};
use records::{LogEntry, LoggedEvent, StreamRecord, WriteOutcome};
use rules::{
    catalog::ListKind, client_transport::Transport, event_log::EventKind, log_level::LogLevel,
};
use storage::{EventStore, NodeStore, SessionStore, SqliteStore, hot::MemoryHotStore};

use super::*;
use crate::{
    broker::sessions::EndingSession,
    persistence::Stores,
    sessions::{
        session::{ReleaseMode, ReleaseOutcome, SessionPersister, StreamResumption, outbox},
        submit,
    },
};

struct Replicas {
    store: Arc<SqliteStore>,
    one: Arc<Broker>,
    other: Arc<Broker>,
}

impl Replicas {
    async fn start() -> Self {
        let store = Arc::new(SqliteStore::in_memory().await.unwrap());
        Self { one: broker(&store), other: broker(&store), store }
    }

    async fn opened(&self) -> Arc<Session> {
        let params = br#"{"protocolVersion":"2025-11-25","capabilities":{"roots":{}},"clientInfo":{"name":"c","version":"1"}}"#;
        let frame = handshake::request(
            &protocol::ids::RequestId::from_u64(1),
            Method::Initialize,
            Some(params),
        );
        let message = Message::decode(frame, &json::Limits::default()).unwrap();
        self.one
            .open_session(Caller::anonymous(), Endpoint::Aggregated, Transport::Http, &message)
            .await
            .unwrap()
            .0
    }

    async fn adopted(&self, id: &SessionId) -> AdoptionOutcome {
        self.other.adopt(id, &Caller::anonymous(), &Endpoint::Aggregated).await.unwrap()
    }
}

/// Makes a broker that has not joined, so that the other has no lease to wait for.
fn broker(store: &Arc<SqliteStore>) -> Arc<Broker> {
    Broker::over(Stores {
        durable: store.clone(),
        events: Some(store.clone()),
        hot: Arc::new(MemoryHotStore::new()),
    })
}

#[tokio::test]
async fn an_adopted_session_is_complete_and_fences_the_old_owner() {
    let replicas = Replicas::start().await;
    let session = replicas.opened().await;
    SessionPersister::new(&session).store_log_level(LogLevel::Error).await.unwrap();
    let AdoptionOutcome::Local(adopted) = replicas.adopted(&session.id).await else {
        panic!("it is to be had")
    };
    assert_eq!(
        (adopted.epoch(), adopted.log_level(), adopted.agreement.client.roots),
        (2, Some(LogLevel::Error), true)
    );
    assert_eq!(adopted.digest, session.digest);
    assert!(!session.is_leaving(), "it does not know yet");
    let refusal =
        SessionPersister::new(&session).store_log_level(LogLevel::Debug).await.err().unwrap();
    assert_eq!((refusal.kind, session.is_leaving()), (ErrorKind::SessionElsewhere, true));
    let here = replicas.one.local_session(&session.id, &Caller::anonymous(), &Endpoint::Aggregated);
    assert!(here.unwrap().is_none(), "its requests are led to the new owner");
    assert_eq!(
        adopted.log_level(),
        Some(LogLevel::Error),
        "nothing of the late write came through"
    );
}

#[tokio::test]
async fn a_request_for_the_next_owner_of_a_session_is_not_counted_as_refused() {
    let replicas = Replicas::start().await;
    let session = replicas.opened().await;
    assert_eq!(replicas.one.release(&session, ReleaseMode::Forced).await, ReleaseOutcome::Done);
    let id = protocol::ids::RequestId::from_u64(2);
    let ping = handshake::request(&id, Method::Ping, None);
    let ping = Message::decode(ping, &json::Limits::default()).unwrap();
    let stream = session.open_stream(vec![id], 0);
    let refusal = submit::submit_request(&session, ping.clone(), &stream).err().unwrap();
    assert_eq!(refusal.kind, ErrorKind::SessionElsewhere);
    let shared = &replicas.one.shared;
    let counted = || shared.metrics.render();
    assert!(!counted().contains("mcp_requests_total{"), "its next owner counts it");
    assert!(shared.activity.newest(0, 1, |_| true).is_empty());
    // A connection cannot take its request to another replica.
    let refusal = submit::submit_after_quiesce(&session, ping, &stream).await.err().unwrap();
    assert_eq!(refusal.kind, ErrorKind::SessionElsewhere);
    let line = r#"mcp_requests_total{method="ping",outcome="refused",transport="http"} 1"#;
    assert!(counted().contains(line), "its client got the refusal");
}

#[tokio::test]
async fn concurrent_adoptions_of_a_session_return_the_same_session() {
    let replicas = Replicas::start().await;
    let session = replicas.opened().await;
    let found =
        futures_util::future::join_all((0..20).map(|_| replicas.adopted(&session.id))).await;
    let epochs: Vec<i64> = found
        .iter()
        .map(|one| if let AdoptionOutcome::Local(session) = one { session.epoch() } else { 0 })
        .collect();
    assert_eq!(epochs, [2; 20]);
}

#[tokio::test]
async fn a_released_session_can_be_adopted_and_is_removed_here() {
    let replicas = Replicas::start().await;
    let session = replicas.opened().await;
    assert_eq!(replicas.one.release(&session, ReleaseMode::Forced).await, ReleaseOutcome::Done);
    assert_eq!(replicas.one.release(&session, ReleaseMode::Forced).await, ReleaseOutcome::Gone);
    assert!(replicas.one.all_sessions().is_empty());
    let stored = replicas.store.list_sessions(None, None, 10).await.unwrap();
    assert!(stored[0].owner.is_none(), "{stored:?}");
    assert!(matches!(replicas.adopted(&session.id).await, AdoptionOutcome::Local(_)));
}

#[tokio::test]
async fn an_owned_row_whose_claim_answer_was_lost_is_released() {
    let replicas = Replicas::start().await;
    let session = replicas.opened().await;
    let (caller, node) = (Caller::anonymous(), replicas.other.shared.persistence.node());
    let identity = record::session_scope(&caller.tenant, &caller.principal, &Endpoint::Aggregated);
    let claim = replicas
        .store
        .claim_session(&session.key, &identity, &node, Duration::from_secs(60))
        .await
        .unwrap();
    assert!(matches!(claim, SessionClaimOutcome::Acquired { .. }), "and the answer is lost");
    replicas.other.recheck_later(session.key, &identity);
    replicas.other.recheck_later(session.key, &identity);
    let row = || async { replicas.store.list_sessions(None, None, 10).await.unwrap().remove(0) };
    let free =
        || async { if row().await.owner.is_none() { Ok(()) } else { Err(row().await.owner) } };
    testkit::eventually("the row to be free", free).await;
    let claims = "mcp_store_seconds_count{operation=\"claim_session\",store=\"sqlite\"} 1\n";
    assert!(replicas.other.shared.metrics.render().contains(claims), "by one");
    let epoch = row().await.epoch;
    // A session that is here is kept.
    assert!(matches!(replicas.adopted(&session.id).await, AdoptionOutcome::Local(_)));
    replicas.other.release_row(session.key, &identity).await.unwrap();
    assert_eq!(row().await.epoch, epoch + 1);
}

#[tokio::test]
async fn events_lost_before_the_first_read_are_reported_as_a_gap() {
    let replicas = Replicas::start().await;
    for (lost, gap) in [(0, false), (1, true)] {
        let session = replicas.opened().await;
        // The first GET stream of the first owner, which waited for a client.
        let (key, number) = (session.key, 1 << 32 | 1 << 1 | 1);
        let record =
            StreamRecord { number, standalone: true, pending_answers: Vec::new(), was_read: false };
        let mut log = vec![LogEntry::Stream { session: key, record }];
        log.extend((lost > 0).then_some(LogEntry::Trim {
            session: key,
            stream: number,
            through: lost,
        }));
        replicas.store.append(&log).await.unwrap();
        let AdoptionOutcome::Local(adopted) = replicas.adopted(&session.id).await else {
            panic!("it is to be had")
        };
        assert_eq!(
            StreamResumption::new(&adopted).open_general_stream().await.unwrap().gap,
            gap,
            "{lost} lost"
        );
        assert!(
            !StreamResumption::new(&adopted).open_general_stream().await.unwrap().gap,
            "said once"
        );
    }
}

#[tokio::test]
async fn a_client_that_does_not_resume_its_stream_may_have_missed_events() {
    let replicas = Replicas::start().await;
    for (logged, gap) in [(0, false), (1, true)] {
        let session = replicas.opened().await;
        let (key, number) = (session.key, 1 << 32 | 1 << 1 | 1);
        let record =
            StreamRecord { number, standalone: true, pending_answers: Vec::new(), was_read: true };
        let mut log = vec![LogEntry::Stream { session: key, record }];
        let event = LoggedEvent { sequence: 1, kind: 2, frame: "{}".into() };
        log.extend((logged > 0).then_some(LogEntry::Event { session: key, stream: number, event }));
        replicas.store.append(&log).await.unwrap();
        let AdoptionOutcome::Local(adopted) = replicas.adopted(&session.id).await else {
            panic!("it is to be had")
        };
        let opened = async || StreamResumption::new(&adopted).open_general_stream().await.unwrap();
        assert_eq!((opened().await.gap, opened().await.gap), (gap, false), "{logged} logged");
        assert!(replicas.store.stream(&key, number, 0).await.unwrap().is_some(), "it can resume");
    }
}

#[tokio::test]
async fn announcements_that_the_log_lost_with_its_stream_are_reported_as_a_gap() {
    let replicas = Replicas::start().await;
    for (lost, gap) in [(false, false), (true, true)] {
        let session = replicas.opened().await;
        session.on_lists_changed(&ListKind::ALL);
        let frame = handshake::notification(Method::ToolsListChanged, None);
        session.deliver_coalesced(EventKind::Message, None, frame);
        SessionPersister::new(&session).flush().await.unwrap();
        assert_eq!(replicas.store.streams(&session.key).await.unwrap().len(), 1);
        if lost {
            replicas.store.forget_session(&session.key).await.unwrap();
        }
        let AdoptionOutcome::Local(adopted) = replicas.adopted(&session.id).await else {
            panic!("it is to be had")
        };
        let opened = StreamResumption::new(&adopted).open_general_stream().await.unwrap();
        assert_eq!(opened.gap, gap, "lost: {lost}");
    }
}

#[tokio::test]
async fn announcements_on_a_stream_that_is_never_logged_are_no_gap() {
    let replicas = Replicas::start().await;
    let session = replicas.opened().await;
    let _reader = outbox::open(&session, None).unwrap();
    session.on_lists_changed(&ListKind::ALL);
    SessionPersister::new(&session).flush().await.unwrap();
    assert!(replicas.store.streams(&session.key).await.unwrap().is_empty());
    let AdoptionOutcome::Local(adopted) = replicas.adopted(&session.id).await else {
        panic!("it is to be had")
    };
    assert!(!StreamResumption::new(&adopted).open_general_stream().await.unwrap().gap);
}

#[tokio::test]
async fn an_ended_or_foreign_session_is_absent() {
    let replicas = Replicas::start().await;
    let (ended, foreign) = (replicas.opened().await, replicas.opened().await);
    replicas.one.delete_session(&ended).await.unwrap();
    assert!(matches!(replicas.adopted(&ended.id).await, AdoptionOutcome::Absent));
    let caller =
        Caller::new(Caller::anonymous().tenant, protocol::ids::PrincipalId::new("mallory"), None);
    let found = replicas.other.adopt(&foreign.id, &caller, &Endpoint::Aggregated).await.unwrap();
    assert!(matches!(found, AdoptionOutcome::Absent));
    assert_eq!(foreign.epoch(), 1);
    assert_eq!(
        replicas.store.list_sessions(None, None, 10).await.unwrap()[0].epoch,
        1,
        "not even touched"
    );
}

#[tokio::test]
async fn a_session_in_an_unknown_format_is_not_changed() {
    let replicas = Replicas::start().await;
    let session = replicas.opened().await;
    let (key, state) = (session.key, br#"{"format":99}"#.to_vec());
    let release = WriteOp::ReleaseSession {
        key,
        epoch: 1,
        idle: Duration::ZERO,
        state: state.clone(),
        links: Vec::new(),
    };
    assert_eq!(replicas.one.shared.persistence.write(release).await.unwrap(), WriteOutcome::Done);
    assert!(matches!(replicas.adopted(&session.id).await, AdoptionOutcome::Unusable));
    let stored = replicas.store.list_sessions(None, None, 10).await.unwrap();
    assert_eq!((&stored[0].record.state, &stored[0].owner), (&state, &None));
    assert!(replicas.other.shared.metrics.render().contains("mcp_sessions_unreadable_total 1"));
}

#[tokio::test]
async fn a_session_of_a_revoked_key_is_ended_instead_of_adopted() {
    let replicas = Replicas::start().await;
    let session = replicas.opened().await;
    // The session has a key that is not known any more.
    let mut record = replicas.store.list_sessions(None, None, 10).await.unwrap()[0].record.clone();
    let id = SessionId::new("A".repeat(32));
    (record.key, record.api_key) =
        (record::session_key(&id), Some(protocol::ids::KeyId::new("gone")));
    let open = WriteOp::OpenSession {
        record: Box::new(record),
        owner: replicas.one.shared.persistence.node(),
    };
    replicas.one.shared.persistence.write(open).await.unwrap();
    assert!(matches!(replicas.adopted(&id).await, AdoptionOutcome::Unusable));
    // Its end is stored in the background.
    while replicas.store.list_sessions(None, None, 10).await.unwrap().len() > 1 {
        tokio::task::yield_now().await;
    }
    assert!(!session.is_leaving());
}

#[tokio::test]
async fn after_a_lapse_reclaimed_sessions_continue_and_lost_ones_end() {
    let replicas = Replicas::start().await;
    let (kept, lost) = (replicas.opened().await, replicas.opened().await);
    let from = replicas.one.shared.persistence.node();
    let to = records::NodeName::new("one/again");
    assert!(matches!(replicas.adopted(&lost.id).await, AdoptionOutcome::Local(_)));
    let reclaimed =
        replicas.store.reclaim_sessions(&from, &to, &[kept.key, lost.key]).await.unwrap();
    assert_eq!(reclaimed, [(kept.key, 2)]);
    replicas.one.apply_reclaimed(&reclaimed);
    assert_eq!(kept.epoch(), 2);
    SessionPersister::new(&kept).store_log_level(LogLevel::Error).await.unwrap();
    replicas.one.shared.persistence.rename(to);
    replicas.one.drop_lost_sessions(&[lost.key].into());
    assert_eq!((kept.is_leaving(), lost.is_leaving()), (false, true));
}

#[tokio::test]
async fn a_write_fenced_by_its_own_reclaim_waits_for_the_new_epoch() {
    let replicas = Replicas::start().await;
    let session = replicas.opened().await;
    let (persistence, to) = (&replicas.one.shared.persistence, records::NodeName::new("one/again"));
    let from = persistence.rename(to.clone());
    let reclaimed = replicas.store.reclaim_sessions(&from, &to, &[session.key]).await.unwrap();
    let (written, ()) =
        tokio::join!(SessionPersister::new(&session).store_log_level(LogLevel::Error), async {
            while !durable_fenced(&replicas.one) {
                tokio::task::yield_now().await;
            }
            replicas.one.apply_reclaimed(&reclaimed);
        });
    written.unwrap();
    assert_eq!(
        (session.epoch(), session.is_leaving(), session.log_level()),
        (2, false, Some(LogLevel::Error))
    );
}

fn durable_fenced(broker: &Broker) -> bool {
    broker.shared.metrics.render().contains("mcp_fenced_writes_total 1")
}

#[tokio::test]
async fn a_session_end_applies_even_if_the_row_has_another_epoch() {
    let replicas = Replicas::start().await;
    let session = replicas.opened().await;
    let node = replicas.one.shared.persistence.node();
    replicas.store.join(&node, None, Duration::from_secs(3_600)).await.unwrap();
    replicas.store.reclaim_sessions(&node, &node, &[session.key]).await.unwrap();
    replicas.one.delete_session(&session).await.unwrap();
    assert_eq!(replicas.store.list_sessions(None, None, 10).await.unwrap(), []);
    assert!(session.is_leaving() && replicas.one.ending_sessions.is_empty());
}

#[tokio::test]
async fn a_session_is_adoptable_again_after_all_of_its_ends() {
    let replicas = Replicas::start().await;
    let session = replicas.opened().await;
    let first = EndingSession::start(&replicas.one, session.key);
    let second = EndingSession::start(&replicas.one, session.key);
    drop(first);
    assert!(replicas.one.ending_sessions.contains_key(&session.key));
    drop(second);
    assert!(replicas.one.ending_sessions.is_empty());
}

#[tokio::test]
async fn the_late_end_of_an_abandoned_session_keeps_the_log_of_its_new_owner() {
    let replicas = Replicas::start().await;
    let session = replicas.opened().await;
    assert!(matches!(replicas.adopted(&session.id).await, AdoptionOutcome::Local(_)));
    let record = StreamRecord {
        number: 1 << 32 | 1 << 1 | 1,
        standalone: true,
        pending_answers: Vec::new(),
        was_read: false,
    };
    replicas.store.append(&[LogEntry::Stream { session: session.key, record }]).await.unwrap();
    let persistence = &replicas.one.shared.persistence;
    let hint = storage::OwnerHint { node: "other".to_owned(), address: "other:1".to_owned() };
    persistence.hot.put_owner_hint(&session.key, &hint, std::time::Duration::from_secs(60)).await;
    replicas.one.close_abandoned(&session);
    testkit::eventually("the end to be settled", async || {
        if replicas.one.ending_sessions.contains_key(&session.key) { Err(()) } else { Ok(()) }
    })
    .await;
    let log = persistence.event_log.as_ref().expect("the store has one");
    assert!(log.flushed(session.key).await);
    assert_eq!(replicas.store.streams(&session.key).await.unwrap().len(), 1);
    assert_eq!(persistence.hot.owner_hint(&session.key).await, Some(hint));
    assert_eq!(replicas.store.list_sessions(None, None, 10).await.unwrap().len(), 1);
}
