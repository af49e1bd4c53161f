//! Tests of the cost of failed lookups, and of requests whose replica runs but does not answer.

use config::spec::TenantLimits;
use records::NodeName;
use rules::endpoint::Endpoint;

use super::*;
use crate::sessions::session::{ReleaseMode, Session};

const LEASE: Duration = Duration::from_millis(700);

impl Replica {
    fn session(&self, id: &str) -> Option<Arc<Session>> {
        self.broker
            .local_session(&SessionId::new(id), &Caller::anonymous(), &Endpoint::Aggregated)
            .unwrap()
    }

    fn stored(&self, operation: &str) -> u64 {
        let series =
            format!("mcp_store_seconds_count{{operation=\"{operation}\",store=\"sqlite\"}} ");
        let text = self.broker.shared.metrics.render();
        text.lines()
            .find_map(|line| line.strip_prefix(&series))
            .map_or(0, |count| count.parse().unwrap())
    }

    /// Opens a session here, and moves it to another replica in the store.
    async fn taken_by(&self, node: &NodeName, address: &str) -> String {
        let id = self.open_session().await;
        let (session, persistence) = (self.session(&id).unwrap(), &self.broker.shared.persistence);
        persistence.store.join(node, Some(address), LEASE).await.unwrap();
        assert_eq!(
            persistence
                .store
                .reclaim_sessions(&persistence.node(), node, &[session.key])
                .await
                .unwrap()
                .len(),
            1
        );
        session.abandon("a test");
        id
    }

    async fn request_kind(&self, session: &str) -> (u16, String) {
        let response = self.request(Method::POST, Some(session), call(1, "ping", json!({}))).await;
        let status = response.status().as_u16();
        (status, json_of(response).await["error"]["data"]["kind"].as_str().unwrap_or("").to_owned())
    }
}

/// Returns a peer whose answers are shorter than announced: it took the request, and the result is
/// lost.
fn breaks_off() -> FakePeer {
    FakePeer::start(|_| {
        let mut response = Response::new(Full::new(Bytes::from_static(b"{")).boxed_unsync());
        response.headers_mut().insert("content-length", "100".parse().unwrap());
        Some(response)
    })
}

#[tokio::test]
async fn f_13_a_request_is_not_repeated_if_a_replica_may_have_received_it() {
    let (edge, peer, node) = (Replica::start().await, breaks_off(), NodeName::new("peer/1"));
    let id = edge.taken_by(&node, &peer.address).await;
    let store = edge.broker.shared.persistence.store.clone();
    let keeping = tokio::spawn(async move {
        loop {
            store.renew_lease(&node, LEASE, false).await.unwrap();
            tokio::time::sleep(LEASE / 7).await;
        }
    });
    let response = edge.request(Method::POST, Some(&id), call(7, "ping", json!({}))).await;
    let answer = json_of(response).await;
    assert_eq!(
        (&answer["id"], &answer["error"]["data"]["kind"]),
        (&json!(7), &json!("outcome_unknown")),
        "{answer}"
    );
    assert_eq!(answer["error"]["data"]["retryable"], true, "a ping does no harm twice");
    assert_eq!(peer.requests(), 1);
    // A notification has no answer, so it may be sent again and again.
    let note =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
            .to_string();
    edge.request(Method::POST, Some(&id), note).await;
    assert!(peer.requests() > 2, "{} requests", peer.requests());
    keeping.abort();
}

#[tokio::test]
async fn f_13_a_request_is_repeated_at_the_next_owner() {
    let (edge, peer) = (Replica::start().await, breaks_off());
    let id = edge.taken_by(&NodeName::new("peer/1"), &peer.address).await;
    // The peer does not renew its lease: the edge itself takes the session over.
    let response = edge.request(Method::POST, Some(&id), call(7, "ping", json!({}))).await;
    assert_eq!(json_of(response).await, json!({"jsonrpc": "2.0", "id": 7, "result": {}}));
    assert_eq!((peer.requests(), edge.session(&id).is_some()), (1, true));
}

#[tokio::test]
async fn a_27_lookups_of_unknown_sessions_are_limited() {
    let edge = Replica::start().await;
    let limits =
        TenantLimits { requests_per_second: Some(1), burst: Some(100), ..TenantLimits::default() };
    edge.broker.put_tenant(
        &TenantId::parse("default").unwrap(),
        TenantSpec { limits, ..TenantSpec::default() },
        0,
    );
    for _ in 0..20 {
        assert_eq!(edge.request_kind(SESSION).await, (404, "session_not_found".to_owned()));
    }
    let claims = edge.stored("claim_session");
    assert!((1..=5).contains(&claims), "one id was asked for {claims} times");
    let mut answers = HashMap::<_, usize>::new();
    for number in 0..200 {
        *answers.entry(edge.request_kind(&format!("{number:032}")).await).or_default() += 1;
    }
    let refused = answers.get(&(429, "rate_limited".to_owned())).copied().unwrap_or(0);
    assert!(refused > 50 && answers.len() == 2, "{answers:?}");
    assert!(
        edge.stored("claim_session") <= claims + 200 - refused as u64,
        "a caller over the rate asks no replica"
    );
}

#[tokio::test]
async fn failed_lookups_of_other_callers_do_not_hide_a_session() {
    let edge = Replica::start().await;
    let acme = TenantId::parse("acme").unwrap();
    edge.broker.put_tenant(&acme, TenantSpec::default(), 0);
    let id = edge.taken_by(&NodeName::new("gone/1"), "127.0.0.1:9").await;
    let stranger = Caller { tenant: acme, ..Caller::anonymous() };
    let in_vain = crate::broker::session_lookup::lookup_for_peer(
        &edge.broker,
        &id,
        &stranger,
        &Endpoint::Aggregated,
    )
    .await;
    assert!(in_vain.is_err_and(|refusal| refusal.kind.name() == "session_not_found"));
    assert_eq!(
        edge.request_kind(&id).await,
        (200, String::new()),
        "taken over when the lease had lapsed"
    );
    // A released session has no owner, but it still exists.
    let session = edge.session(&id).unwrap();
    edge.broker.release(&session, ReleaseMode::Forced).await;
    assert_eq!(edge.request_kind(&id).await, (200, String::new()));
    assert_eq!(edge.request(Method::DELETE, Some(&id), "").await.status(), StatusCode::NO_CONTENT);
    assert_eq!(edge.request_kind(&id).await.0, 404);
}
