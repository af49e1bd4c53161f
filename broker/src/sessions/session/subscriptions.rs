//! Subscriptions of one client to resources (MCP 2025-11-25, Resources: Subscriptions).
//!
//! The session keeps them by the URI that the client uses, and the link by the backend's URI. Both
//! change together under the session's lock, so an ended session leaves none.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::MutexGuard;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::BackendId,
};
use rules::{
    limits::{BACKOFF_FIRST, BACKOFF_MAX, SUBSCRIBE_ATTEMPTS_MAX},
    routing::ResourceTarget,
};

use super::{
    Session, local_requests::Reply, persisted_state::SessionPersister, state::SessionState,
};
use crate::backends::{link::Link, subscriptions::Subscriptions};

pub(in crate::sessions) async fn subscribe(
    session: Arc<Session>,
    target: ResourceTarget,
) -> Result<Reply, Refusal> {
    let connect = |link: Arc<Link>| async move { link.connection().await.map(|_| ()) };
    subscribe_with(session, target, connect).await
}

/// Subscribes over links that `connect` connects.
async fn subscribe_with<F>(
    session: Arc<Session>,
    target: ResourceTarget,
    connect: impl Fn(Arc<Link>) -> F,
) -> Result<Reply, Refusal>
where
    F: Future<Output = Result<(), Refusal>>,
{
    let mut may_be_stored = false;
    for _attempt in 0..SUBSCRIBE_ATTEMPTS_MAX {
        let link = session.link_to(&target.backend)?;
        record_subscription(&session, &link, &target)?;
        let result = match connect(link.clone()).await {
            Ok(()) => Subscriptions::reconcile(&link, &target.uri).await,
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = result {
            forget_unacknowledged(&session, &link, &target, may_be_stored).await;
            return Err(with_client_uri(refusal, &target));
        }
        // The connection may have ended before the request, or another request for the same URI may
        // have failed meanwhile and removed this listener. The loop tries again.
        if link.subscriptions.is_subscribed(&session, &target.uri) {
            if persist_subscription(&session, &link, &target).await? {
                return Ok(Reply::Result(Bytes::from_static(b"{}")));
            }
            may_be_stored = true;
        }
    }
    // A refused subscription gets no updates later, and does not count.
    if let Ok(link) = session.link_to(&target.backend) {
        forget_unacknowledged(&session, &link, &target, may_be_stored).await;
    }
    Err(Refusal::new(
        ErrorKind::BackendUnavailable,
        "the subscription could not be completed, because connections to the backend ended or other requests changed it at the same time, try again",
    ))
}

/// Subscribes to one resource, for a stateless stream of notifications. While the backend cannot
/// subscribe, the broker tries again in the background. The client then gets one update.
pub async fn listen_to(session: Arc<Session>, target: ResourceTarget) -> Result<(), Refusal> {
    check_listen(&session, &target)?;
    match subscribe(session.clone(), target.clone()).await {
        Err(refusal) if is_transient(&refusal) => {
            let running = session.shared.running.clone();
            running.spawn(listen_later(Arc::downgrade(&session), target, refusal));
            Ok(())
        }
        subscribed => subscribed.map(|_| ()),
    }
}

fn is_transient(refusal: &Refusal) -> bool {
    use ErrorKind::{BackendUnavailable, OutcomeUnknown, Overloaded, Timeout};
    [BackendUnavailable, OutcomeUnknown, Overloaded, Timeout].contains(&refusal.kind)
}

/// Tries to subscribe until the backend answers, or until the session ends. A refusal ends the
/// session: the client opens another stream, whose acknowledgement lacks the resource.
async fn listen_later(session: Weak<Session>, target: ResourceTarget, mut refusal: Refusal) {
    let Some(draining) = session.upgrade().map(|one| one.shared.shutdown.draining.clone()) else {
        return;
    };
    let mut pause = BACKOFF_FIRST;
    loop {
        let wait = refusal.retry_after.unwrap_or_default().max(pause).min(BACKOFF_MAX);
        pause = (pause * 2).min(BACKOFF_MAX);
        if tokio::time::timeout(wait, draining.cancelled()).await.is_ok() {
            return;
        }
        let Some(session) = session.upgrade() else { return };
        if session.lock().check_present().is_err() {
            return;
        }
        refusal = match subscribe(session.clone(), target.clone()).await {
            Ok(_) => {
                if let Ok(link) = session.link_to(&target.backend) {
                    link.subscriptions.notify_gap(&link.backend.id, &*session, &target.uri);
                }
                return;
            }
            Err(refusal) if is_transient(&refusal) => refusal,
            Err(refusal) => {
                tracing::info!(tenant = %session.tenant.id, backend = %target.backend, %refusal, "a backend refuses a resource that a notification stream has");
                return session.end("a backend refuses a subscription");
            }
        };
    }
}

pub(in crate::sessions) async fn unsubscribe(
    session: Arc<Session>,
    target: ResourceTarget,
) -> Result<Reply, Refusal> {
    let link = session.link_to(&target.backend)?;
    forget_subscription(&session, session.lock(), &link, &target);
    if let Err(refusal) =
        SessionPersister::new(&session).store_subscription(&target.exposed_uri).await
    {
        // The subscription stays stored, so it stays in force. The client gets a notification,
        // because updates may have been missed.
        if record_subscription(&session, &link, &target).is_ok() {
            session.lock().subscriptions.acknowledge(&target.exposed_uri);
            let _held_anyway = Subscriptions::reconcile(&link, &target.uri).await;
            link.subscriptions.notify_gap(&link.backend.id, &*session, &target.uri);
        }
        return Err(refusal);
    }
    Subscriptions::reconcile(&link, &target.uri)
        .await
        .map_err(|refusal| with_client_uri(refusal, &target))?;
    Ok(Reply::Result(Bytes::from_static(b"{}")))
}

/// Stores a subscription so that it outlives this process, and marks it as acknowledged. Returns
/// false if another request removed it meanwhile. A further request may have added it again, and
/// the backend may refuse that one.
async fn persist_subscription(
    session: &Arc<Session>,
    link: &Arc<Link>,
    target: &ResourceTarget,
) -> Result<bool, Refusal> {
    match SessionPersister::new(session).store_subscription(&target.exposed_uri).await {
        Ok(()) => {
            let mut state = session.lock();
            Ok(link.subscriptions.is_subscribed(session, &target.uri)
                && state.subscriptions.acknowledge(&target.exposed_uri))
        }
        Err(refusal) => {
            forget_unacknowledged(session, link, target, false).await;
            Err(refusal)
        }
    }
}

/// Repeats the subscriptions to a backend that was replaced.
pub async fn resubscribe(session: Arc<Session>, backend: BackendId) {
    let Ok(link) = session.link_to(&backend) else { return };
    // Subscriptions that the new backend's roots do not admit are removed.
    let is_admitted = |one: &ResourceTarget| link.backend.policy.admits_resource(&one.uri).is_ok();
    forget_subscriptions(&session, |one| one.backend == backend && !is_admitted(one));
    let targets: Vec<ResourceTarget> = {
        let state = session.lock();
        let targets: Vec<_> =
            state.subscriptions.at(&backend).filter(|one| is_admitted(one)).cloned().collect();
        targets.iter().for_each(|target| link.subscriptions.add_listener(&session, &target.uri));
        targets
    };
    if link.open_for_listeners().await {
        let mut failed = Vec::new();
        for target in targets {
            let restored = Subscriptions::reconcile(&link, &target.uri).await;
            link.subscriptions.notify_gap(&link.backend.id, &*session, &target.uri);
            if let Err(refusal) = restored {
                tracing::warn!(tenant = %session.tenant.id, %backend, %refusal, "the broker could not restore a subscription on another link, and tries again");
                failed.push(target.uri);
            }
        }
        Subscriptions::retry_later(&link, failed);
    }
}

/// Removes the subscriptions to a backend that was removed.
pub fn forget_subscriptions_of(session: &Arc<Session>, backend: &BackendId) {
    forget_subscriptions(session, |target| target.backend == *backend);
}

/// Removes subscriptions without a message to backends: the backends are gone, or do not know of
/// these.
fn forget_subscriptions(session: &Arc<Session>, is_forgotten: impl Fn(&ResourceTarget) -> bool) {
    let forgotten = {
        let mut state = session.lock();
        let before = state.subscriptions.len();
        let gone = state.subscriptions.remove_where(is_forgotten);
        count_subscriptions(session, state.subscriptions.len(), before);
        gone
    };
    if forgotten.is_empty() {
        return;
    }
    let owned = session.clone();
    session.shared.running.spawn(async move {
        for uri in forgotten {
            // The client may have subscribed again meanwhile. If the store keeps one that is
            // forgotten, the session's next owner removes it, because it has no such backend either.
            let _tried_once = SessionPersister::new(&owned).store_subscription(&uri).await;
        }
    });
}

fn record_subscription(
    session: &Arc<Session>,
    link: &Link,
    target: &ResourceTarget,
) -> Result<(), Refusal> {
    // The backend and its roots may have been replaced after the request was admitted.
    link.backend.policy.admits_resource(&target.uri)?;
    let mut state = session.lock();
    state.check_present()?;
    let before = state.subscriptions.len();
    state.subscriptions.add(target)?;
    link.subscriptions.add_listener(session, &target.uri);
    count_subscriptions(session, state.subscriptions.len(), before);
    Ok(())
}

/// Removes a subscription after a request for it failed, unless another request for it was
/// acknowledged. `may_be_stored`: the store may have it.
async fn forget_unacknowledged(
    session: &Arc<Session>,
    link: &Arc<Link>,
    target: &ResourceTarget,
    may_be_stored: bool,
) {
    {
        let state = session.lock();
        if state.subscriptions.is_acknowledged(&target.exposed_uri) {
            return;
        }
        forget_subscription(session, state, link, target);
    }
    if may_be_stored {
        // If the store keeps it, the session's next owner subscribes to it.
        let _tried_once =
            SessionPersister::new(session).store_subscription(&target.exposed_uri).await;
    }
    let _gone_anyway = Subscriptions::reconcile(link, &target.uri).await;
}

/// Removes a subscription from the state of its session and from the link.
fn forget_subscription(
    session: &Arc<Session>,
    mut state: MutexGuard<'_, SessionState>,
    link: &Link,
    target: &ResourceTarget,
) {
    let before = state.subscriptions.len();
    state.subscriptions.remove(&target.exposed_uri);
    link.subscriptions.remove_listener(session, &target.uri);
    count_subscriptions(session, state.subscriptions.len(), before);
    // The backend may have been replaced meanwhile, and its new link may have this listener.
    let moved = state
        .links
        .get(&target.backend)
        .filter(|current| !std::ptr::eq(Arc::as_ptr(current), link))
        .cloned();
    drop(state);
    if let Some(current) = moved {
        current.subscriptions.remove_listener(session, &target.uri);
        let uri = target.uri.clone();
        session.shared.running.spawn(async move {
            let _gone_anyway = Subscriptions::reconcile(&current, &uri).await;
        });
    }
}

fn count_subscriptions(session: &Session, now: usize, before: usize) {
    let difference = i64::try_from(now).unwrap_or(0) - i64::try_from(before).unwrap_or(0);
    session.shared.metrics.subscriptions(difference);
}

/// Applies the limits of a subscription to a resource of a stateless stream of notifications.
fn check_listen(session: &Session, target: &ResourceTarget) -> Result<(), Refusal> {
    let Some(backend) = session.tenant.backend(&target.backend) else { return Ok(()) };
    session.tenant.take_backend_budget(&backend, None)?;
    backend.policy.admits_resource(&target.uri)
}

/// Replaces the URI in a refusal with the client's.
fn with_client_uri(mut refusal: Refusal, target: &ResourceTarget) -> Refusal {
    for (key, value) in &mut refusal.data {
        if *key == "uri" {
            *value = target.exposed_uri.clone().into();
        }
    }
    refusal
}

#[cfg(test)]
mod tests {
    use protocol::{envelope::Message, handshake, ids::RequestId, json::Limits, method::Method};
    use rules::{client_transport::Transport, endpoint::Endpoint};
    use serde_json::json;
    use tokio::sync::Notify;

    use super::*;
    use crate::{
        auth::Caller, broker::Broker, persistence::Stores,
        sessions::stateless::tests::pooled_session,
    };

    /// Returns a session, and a resource of a backend that nothing reaches. The broker must outlive
    /// them.
    async fn session_and_target() -> (Arc<Broker>, Arc<Session>, ResourceTarget) {
        let broker = Broker::over(Stores::in_memory().await);
        let target = target_at(&broker);
        let session = pooled_session(&broker);
        (broker, session, target)
    }

    fn target_at(broker: &Arc<Broker>) -> ResourceTarget {
        let (caller, backend) = (Caller::anonymous(), BackendId::parse("b").unwrap());
        let transport = json!({"type": "http", "url": "http://127.0.0.1:9/mcp"});
        let spec = serde_json::from_value(json!({"transport": transport})).unwrap();
        broker.put_backend(&caller.tenant, &backend, spec);
        let (uri, exposed_uri) = ("test://one".to_owned(), "b+test://one".to_owned());
        ResourceTarget { backend, uri, exposed_uri }
    }

    #[tokio::test]
    async fn a_refused_subscription_is_not_kept_if_every_connection_ends_at_once() {
        let (_broker, session, target) = session_and_target().await;
        let backend = target.backend.clone();
        // Each connection opens, and is gone before the request.
        let result = subscribe_with(session.clone(), target, |_link| async { Ok(()) }).await;
        let Err(refusal) = result else { panic!("no backend has the subscription") };
        assert_eq!(refusal.kind, ErrorKind::BackendUnavailable);
        assert_eq!(session.lock().subscriptions.len(), 0, "it does not count");
        let link = session.link_to(&backend).unwrap();
        assert!(link.subscriptions.is_empty(), "no update reaches the client");
    }

    /// The backend may refuse the other request.
    #[tokio::test]
    async fn res_03_a_request_in_flight_acknowledges_no_other() {
        let (_broker, session, target) = session_and_target().await;
        let backend = target.backend.clone();
        let uri = target.uri.as_str();
        let result = subscribe_with(session.clone(), target.clone(), |link| async move {
            link.subscriptions.assume_requested(uri);
            Ok(())
        });
        let Err(refusal) = result.await else { panic!("the backend has not agreed") };
        assert_eq!(refusal.kind, ErrorKind::BackendUnavailable);
        assert_eq!(session.lock().subscriptions.len(), 0, "it does not count");
        let link = session.link_to(&backend).unwrap();
        assert!(link.subscriptions.is_empty(), "no update reaches the client");
    }

    /// While the store has the write of one request, a second one is refused and a third one begins.
    #[tokio::test]
    async fn res_03_a_stored_subscription_is_acknowledged_only_while_the_backend_has_it() {
        let (_broker, session, target) = session_and_target().await;
        let link = session.link_to(&target.backend).unwrap();
        record_subscription(&session, &link, &target).unwrap();
        link.subscriptions.assume_requested(&target.uri);
        assert!(!persist_subscription(&session, &link, &target).await.unwrap());
        assert!(!session.lock().subscriptions.is_acknowledged(&target.exposed_uri));
        link.subscriptions.assume_subscribed(&target.uri);
        assert!(persist_subscription(&session, &link, &target).await.unwrap());
        assert!(session.lock().subscriptions.is_acknowledged(&target.exposed_uri));
    }

    #[tokio::test]
    async fn res_03_a_refused_subscription_does_not_stay_in_the_store() {
        let stores = Stores::in_memory().await;
        let store = stores.durable.clone();
        let broker = Broker::over(stores);
        let params = br#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}"#;
        let frame = handshake::request(&RequestId::from_u64(1), Method::Initialize, Some(params));
        let message = Message::decode(frame, &Limits::default()).unwrap();
        let (caller, endpoint) = (Caller::anonymous(), Endpoint::Aggregated);
        let opened = broker.open_session(caller, endpoint, Transport::Http, &message).await;
        let (session, _) = opened.unwrap();
        let target = target_at(&broker);
        let link = session.link_to(&target.backend).unwrap();
        let stored = async || store.subscription_counts(None).await.unwrap().len();
        record_subscription(&session, &link, &target).unwrap();
        link.subscriptions.assume_requested(&target.uri);
        assert!(!persist_subscription(&session, &link, &target).await.unwrap());
        assert_eq!(stored().await, 1);
        forget_unacknowledged(&session, &link, &target, true).await;
        assert_eq!(stored().await, 0, "the next owner does not subscribe to it");
    }

    #[tokio::test]
    async fn res_03_a_late_failure_keeps_what_another_request_acknowledged() {
        let (_broker, session, target) = session_and_target().await;
        let other_is_answered = &Notify::new();
        let fails = subscribe_with(session.clone(), target.clone(), |_link| async move {
            other_is_answered.notified().await;
            Err(Refusal::new(ErrorKind::BackendUnavailable, "no connection"))
        });
        let uri = target.uri.as_str();
        let succeeds = async {
            let subscribed = subscribe_with(session.clone(), target.clone(), |link| async move {
                link.subscriptions.assume_subscribed(uri);
                Ok(())
            });
            let result = subscribed.await;
            other_is_answered.notify_one();
            result
        };
        // The request that fails is the first.
        let (failed, succeeded) = tokio::join!(fails, succeeds);
        assert!(failed.is_err() && succeeded.is_ok());
        assert!(session.lock().subscriptions.contains(&target.exposed_uri));
        let link = session.link_to(&target.backend).unwrap();
        assert!(link.subscriptions.is_subscribed(&session, uri), "updates reach the client");
    }
}
