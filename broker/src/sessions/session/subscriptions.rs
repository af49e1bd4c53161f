//! The resources one client listens to (MCP 2025-11-25, Resources: Subscriptions): kept here by the URI the client uses, and
//! on the link by the backend's own. Both are changed together, under the session's lock, so an ended session leaves none.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::BackendId,
};

use super::{Session, local_requests::Reply};
use crate::{
    backends::link::Link,
    limits::{SUBSCRIBE_ATTEMPTS_MAX, SUBSCRIPTIONS_PER_SESSION_MAX},
    rules::routing::ResourceTarget,
};

impl Session {
    pub(in crate::sessions) async fn subscribe(
        self: Arc<Self>,
        target: ResourceTarget,
    ) -> Result<Reply, Refusal> {
        for _attempt in 0..SUBSCRIBE_ATTEMPTS_MAX {
            let link = self.link_to(&target.backend)?;
            self.note_subscription(&link, &target)?;
            let told = match link.connection().await {
                Ok(_) => link.subscriptions.reconcile(&link, &target.uri).await,
                Err(refusal) => Err(refusal),
            };
            if let Err(refusal) = told {
                self.forget_subscription(&link, &target);
                let _never_told = link.subscriptions.reconcile(&link, &target.uri).await;
                return Err(with_client_uri(refusal, &target));
            }
            // Another request for the same URI may have failed meanwhile and taken this one's wish with it: ask again.
            if link.subscriptions.is_subscribed(&self, &target.uri) {
                self.persist_subscription(&link, &target).await?;
                return Ok(Reply::Result(Bytes::from_static(b"{}")));
            }
        }
        Err(Refusal::new(
            ErrorKind::BackendUnavailable,
            "the subscription could not be settled, other requests for it interfere",
        ))
    }

    /// Hears of one resource from now on.
    pub async fn listen_to(self: Arc<Self>, target: ResourceTarget) -> Result<(), Refusal> {
        self.check_listen(&target)?;
        self.subscribe(target).await.map(|_| ())
    }

    pub(in crate::sessions) async fn unsubscribe(
        self: Arc<Self>,
        target: ResourceTarget,
    ) -> Result<Reply, Refusal> {
        let link = self.link_to(&target.backend)?;
        self.forget_subscription(&link, &target);
        if let Err(refusal) = self.delete_subscription(&target.exposed_uri).await {
            // It stays stored, so it stays: what came meanwhile may have been missed.
            if self.note_subscription(&link, &target).is_ok() {
                let _held_anyway = link.subscriptions.reconcile(&link, &target.uri).await;
                link.subscriptions.notify_gap(&link, &*self, &target.uri);
            }
            return Err(refusal);
        }
        link.subscriptions
            .reconcile(&link, &target.uri)
            .await
            .map_err(|refusal| with_client_uri(refusal, &target))?;
        Ok(Reply::Result(Bytes::from_static(b"{}")))
    }

    /// A subscription that is to outlive this process; one that cannot be stored is none.
    async fn persist_subscription(
        self: &Arc<Self>,
        link: &Arc<Link>,
        target: &ResourceTarget,
    ) -> Result<(), Refusal> {
        if let Err(refusal) = self.store_subscription(target).await {
            self.forget_subscription(link, target);
            let _not_stored_anyway = link.subscriptions.reconcile(link, &target.uri).await;
            return Err(refusal);
        }
        Ok(())
    }

    /// A backend was replaced: what this client listens to there is subscribed to anew.
    pub async fn resubscribe(self: Arc<Self>, backend: BackendId) {
        let Ok(link) = self.link_to(&backend) else { return };
        // What was subscribed to under other roots is not taken along.
        let is_admitted =
            |one: &ResourceTarget| link.backend.policy.admits_resource(&one.uri).is_ok();
        self.forget_subscriptions(|one| one.backend == backend && !is_admitted(one));
        let targets: Vec<ResourceTarget> = {
            let state = self.lock();
            let targets: Vec<_> = state
                .subscriptions
                .values()
                .filter(|one| one.backend == backend && is_admitted(one))
                .cloned()
                .collect();
            targets.iter().for_each(|target| link.subscriptions.add_listener(&self, &target.uri));
            targets
        };
        if link.open_for_listeners().await {
            for target in &targets {
                if let Err(refusal) = link.subscriptions.reconcile(&link, &target.uri).await {
                    tracing::warn!(%backend, %refusal, "a subscription could not be put back on the changed backend");
                }
                link.subscriptions.notify_gap(&link, &*self, &target.uri);
            }
        }
    }

    /// A backend was removed, and with it what there was to listen to.
    pub fn forget_subscriptions_of(self: &Arc<Self>, backend: &BackendId) {
        self.forget_subscriptions(|target| target.backend == *backend);
    }

    /// Nothing is told to backends: they are gone, or were never told of these.
    fn forget_subscriptions(self: &Arc<Self>, is_forgotten: impl Fn(&ResourceTarget) -> bool) {
        let forgotten: Vec<String> = {
            let mut state = self.lock();
            let gone = state.subscriptions.values().filter(|target| is_forgotten(target));
            let gone: Vec<String> = gone.map(|target| target.exposed_uri.clone()).collect();
            let before = state.subscriptions.len();
            gone.iter().for_each(|uri| drop(state.subscriptions.remove(uri)));
            self.count_subscriptions(state.subscriptions.len(), before);
            gone
        };
        if forgotten.is_empty() {
            return;
        }
        let session = self.clone();
        self.shared.running.spawn(async move {
            for uri in forgotten {
                // What stays stored is forgotten by the session's next owner, which has no such backend either.
                let _tried_once = session.delete_subscription(&uri).await;
            }
        });
    }

    fn note_subscription(
        self: &Arc<Self>,
        link: &Link,
        target: &ResourceTarget,
    ) -> Result<(), Refusal> {
        // The backend may have been replaced since the request was admitted, and its roots with it.
        link.backend.policy.admits_resource(&target.uri)?;
        let mut state = self.lock();
        state.check_present()?;
        let before = state.subscriptions.len();
        if before >= SUBSCRIPTIONS_PER_SESSION_MAX
            && !state.subscriptions.contains_key(&target.exposed_uri)
        {
            let text = format!(
                "the session has {SUBSCRIPTIONS_PER_SESSION_MAX} subscriptions, which is its limit"
            );
            return Err(Refusal::new(ErrorKind::Overloaded, text));
        }
        state.subscriptions.insert(target.exposed_uri.clone(), target.clone());
        link.subscriptions.add_listener(self, &target.uri);
        self.count_subscriptions(state.subscriptions.len(), before);
        Ok(())
    }

    fn forget_subscription(self: &Arc<Self>, link: &Link, target: &ResourceTarget) {
        let mut state = self.lock();
        let before = state.subscriptions.len();
        state.subscriptions.remove(&target.exposed_uri);
        link.subscriptions.remove_listener(self, &target.uri);
        self.count_subscriptions(state.subscriptions.len(), before);
        // The backend may have been replaced meanwhile, and the wish moved to its new link.
        let moved = state
            .links
            .get(&target.backend)
            .filter(|current| !std::ptr::eq(Arc::as_ptr(current), link))
            .cloned();
        drop(state);
        if let Some(current) = moved {
            current.subscriptions.remove_listener(self, &target.uri);
            let uri = target.uri.clone();
            self.shared.running.spawn(async move {
                let _gone_anyway = current.subscriptions.reconcile(&current, &uri).await;
            });
        }
    }

    fn count_subscriptions(&self, now: usize, before: usize) {
        let difference = i64::try_from(now).unwrap_or(0) - i64::try_from(before).unwrap_or(0);
        self.shared.metrics.subscriptions(difference);
    }
}

/// A refusal names the URI as the client does.
fn with_client_uri(mut refusal: Refusal, target: &ResourceTarget) -> Refusal {
    for (key, value) in &mut refusal.data {
        if *key == "uri" {
            *value = target.exposed_uri.clone().into();
        }
    }
    refusal
}
