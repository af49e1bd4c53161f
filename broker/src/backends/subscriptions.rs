//! Subscriptions of a link to resources: one subscription at the backend per URI, however many
//! sessions subscribe.
//!
//! The table stores the wanted state (the listeners) and the actual state (the connection with the
//! subscription). Only [`Subscriptions::reconcile`] changes the actual state, in
//! [`super::subscription_reconciler`]. All other functions change the wanted state. A new connection gets all subscriptions again. Its listeners get an
//! `updated`, because updates may have been missed.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Weak},
};

use parking_lot::{Mutex, MutexGuard};
use protocol::{
    envelope::Message, handshake, ids::BackendId, json, method::Method, splice::Splice,
};
use rules::{event_log::Topic, limits::URI_BYTES_MAX};

use super::{
    link::connection::Connection,
    link_client::{LinkClient, is_same},
};

#[derive(Debug, Default)]
pub struct Subscriptions {
    by_uri: Mutex<HashMap<String, Subscription>>,
    /// Held during a request to the backend, so that requests about one URI stay in order.
    uri_locks: UriLocks,
}

#[derive(Debug, Default)]
pub(super) struct Subscription {
    pub(super) listeners: Vec<Weak<dyn LinkClient>>,
    /// The connection on which the backend has the subscription, or has been asked for it.
    subscribed_on: Option<Weak<Connection>>,
    /// Set once the backend has agreed, on this connection or on an earlier one.
    is_confirmed: bool,
    /// The connection whose task repeats the request after a failure.
    retried_on: Option<Weak<Connection>>,
}

impl Subscription {
    fn has_listener(&self, client: &Arc<impl LinkClient + 'static>) -> bool {
        self.listeners.iter().any(|listener| is_same(listener, client))
    }

    pub(super) fn remove_listener(&mut self, client: &Arc<impl LinkClient + 'static>) {
        self.listeners.retain(|listener| !is_same(listener, client));
    }

    fn is_wanted(&self) -> bool {
        self.listeners.iter().any(|listener| listener.strong_count() > 0)
    }

    fn is_subscribed_on(&self, connection: &Arc<Connection>) -> bool {
        is_connection(self.subscribed_on.as_ref(), connection)
    }
}

/// The request that the backend needs for one URI.
pub(super) enum SubscriptionRequest {
    Nothing,
    Subscribe { again: bool },
    Unsubscribe,
}

impl Subscriptions {
    /// Adds a listener to `uri`. Takes effect with the next [`Subscriptions::reconcile`].
    pub fn add_listener<Client: LinkClient + 'static>(&self, client: &Arc<Client>, uri: &str) {
        let mut by_uri = self.lock();
        let subscription = by_uri.entry(uri.to_owned()).or_default();
        if !subscription.has_listener(client) {
            let listener: Weak<Client> = Arc::downgrade(client);
            subscription.listeners.push(listener);
        }
    }

    /// Removes a listener from `uri`.
    pub fn remove_listener(&self, client: &Arc<impl LinkClient + 'static>, uri: &str) {
        if let Some(subscription) = self.lock().get_mut(uri) {
            subscription.remove_listener(client);
        }
    }

    /// Returns whether the session listens to `uri` and the backend has agreed to the subscription.
    /// After a loss of its connection, the backend gets it again on the next one. A first request in
    /// flight does not count, because the backend may refuse it.
    pub fn is_subscribed(&self, client: &Arc<impl LinkClient + 'static>, uri: &str) -> bool {
        let held = |one: &Subscription| one.is_confirmed && one.has_listener(client);
        self.lock().get(uri).is_some_and(held)
    }

    /// Forwards an `updated` of the backend. It may name a part of a subscribed resource (MCP
    /// 2025-11-25, Resources). Returns `false` if it has no listener, or a URI that is too long.
    pub(super) fn on_updated(&self, backend: &BackendId, message: &Message) -> bool {
        let Some(uri) = message.text(message.fields.uri) else { return true };
        if uri.len() > URI_BYTES_MAX {
            return false; // no client can subscribe to it or read it
        }
        let of_whole = self.listeners(&uri);
        let whole_count = of_whole.len();
        let subscribed_uris: Vec<String> = self
            .lock()
            .keys()
            .filter(|subscribed_uri| is_part_of(&uri, subscribed_uri))
            .cloned()
            .collect();
        let of_parts =
            subscribed_uris.iter().flat_map(|subscribed_uri| self.listeners(subscribed_uri));
        let listeners = each_once(of_whole.into_iter().chain(of_parts));
        let has_listeners = !listeners.is_empty();
        for (at, client) in listeners.into_iter().enumerate() {
            let exposed = client.exposed_uri(backend, &uri);
            let frame = match (&exposed, message.fields.uri) {
                (Cow::Owned(exposed), Some(span)) => Splice::new(&message.frame)
                    .replace(span, json::quote(exposed).into_bytes())
                    .finish(),
                _ => message.frame.clone(),
            };
            let topic = match at < whole_count {
                true => Topic::Resource(exposed.into_owned()),
                false => Topic::ResourcePart(exposed.into_owned()),
            };
            client.deliver(topic, frame);
        }
        has_listeners
    }

    /// Returns every URI with listeners, with their number.
    pub fn counts(&self) -> Vec<(String, usize)> {
        let count = |one: &Subscription| {
            one.listeners.iter().filter(|listener| listener.strong_count() > 0).count()
        };
        self.lock()
            .iter()
            .map(|(uri, one)| (uri.clone(), count(one)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    /// Returns whether there are no listeners.
    pub fn is_empty(&self) -> bool {
        !self.lock().values().any(Subscription::is_wanted)
    }

    pub(super) fn pending_change(
        &self,
        uri: &str,
        connection: Option<&Arc<Connection>>,
    ) -> SubscriptionRequest {
        let mut by_uri = self.lock();
        let Some(subscription) = by_uri.get(uri) else { return SubscriptionRequest::Nothing };
        let is_subscribed =
            connection.is_some_and(|connection| subscription.is_subscribed_on(connection));
        match (subscription.is_wanted(), is_subscribed) {
            (true, true) => SubscriptionRequest::Nothing,
            (true, false) => SubscriptionRequest::Subscribe { again: subscription.is_confirmed },
            (false, is_subscribed) => {
                by_uri.remove(uri);
                if is_subscribed {
                    SubscriptionRequest::Unsubscribe
                } else {
                    SubscriptionRequest::Nothing
                }
            }
        }
    }

    /// Stores the connection over which the backend is asked for the subscription.
    pub(super) fn record_requested(&self, uri: &str, connection: Weak<Connection>) {
        if let Some(subscription) = self.lock().get_mut(uri) {
            subscription.subscribed_on = Some(connection);
        }
    }

    /// Stores the outcome of the request. A subscription that the backend had before stays
    /// confirmed, on a connection that has ended.
    pub(super) fn record_outcome(&self, uri: &str, is_agreed: bool) {
        if let Some(subscription) = self.lock().get_mut(uri) {
            if is_agreed {
                subscription.is_confirmed = true;
            } else {
                subscription.subscribed_on = subscription.is_confirmed.then(Weak::new);
            }
        }
    }

    /// Returns whether the caller repeats the failed request for `uri` over this connection. Only one
    /// task does so.
    pub(super) fn take_retry(&self, uri: &str, connection: &Arc<Connection>) -> bool {
        let mut by_uri = self.lock();
        let Some(subscription) = by_uri.get_mut(uri) else { return false };
        let is_taken = is_connection(subscription.retried_on.as_ref(), connection);
        subscription.retried_on = Some(Arc::downgrade(connection));
        !is_taken
    }

    /// Notes that a first request for the subscription is in flight.
    #[cfg(test)]
    pub(crate) fn assume_requested(&self, uri: &str) {
        self.record_requested(uri, Weak::new());
    }

    /// Notes that the backend had the subscription on a connection that has ended.
    #[cfg(test)]
    pub(crate) fn assume_subscribed(&self, uri: &str) {
        self.assume_requested(uri);
        self.record_outcome(uri, true);
    }

    /// Sends an `updated` to one session, because updates may have been missed.
    pub fn notify_gap(&self, backend: &BackendId, client: &dyn LinkClient, uri: &str) {
        let exposed = client.exposed_uri(backend, uri);
        let params = format!("{{\"uri\":{}}}", json::quote(&exposed));
        let frame = handshake::notification(Method::ResourcesUpdated, Some(params.as_bytes()));
        client.deliver(Topic::Resource(exposed.into_owned()), frame);
    }

    /// Sends an `updated` to the listeners of a URI, because updates may have been missed.
    pub(super) fn notify_listeners(&self, backend: &BackendId, uri: &str) {
        for client in self.listeners(uri) {
            self.notify_gap(backend, &*client, uri);
        }
    }

    /// Sends an `updated` to the listeners of every subscription, because updates may have been
    /// missed.
    pub(super) fn notify_all(&self, backend: &BackendId) {
        let by_uri = self.lock();
        let subscribed = by_uri.iter().filter(|(_, one)| one.subscribed_on.is_some());
        let uris: Vec<String> = subscribed.map(|(uri, _)| uri.clone()).collect();
        drop(by_uri);
        uris.iter().for_each(|uri| self.notify_listeners(backend, uri));
    }

    fn listeners(&self, uri: &str) -> Vec<Arc<dyn LinkClient>> {
        self.lock()
            .get(uri)
            .map(|one| one.listeners.iter().filter_map(Weak::upgrade).collect())
            .unwrap_or_default()
    }

    /// Waits until no request about the URI is under way.
    pub(super) async fn lock_uri(&self, uri: &str) -> tokio::sync::MutexGuard<'_, ()> {
        self.uri_locks.lock_uri(uri).await
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<String, Subscription>> {
        self.by_uri.lock()
    }
}

/// Number of URI locks.
const URI_LOCK_COUNT: usize = 64;

/// One lock per URI, from a fixed number of locks. A slow request about one URI delays few others.
#[derive(Debug)]
struct UriLocks([tokio::sync::Mutex<()>; URI_LOCK_COUNT]);

impl Default for UriLocks {
    fn default() -> Self {
        Self(std::array::from_fn(|_| tokio::sync::Mutex::default()))
    }
}

impl UriLocks {
    async fn lock_uri(&self, uri: &str) -> tokio::sync::MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        uri.hash(&mut hasher);
        let index = usize::try_from(hasher.finish() % URI_LOCK_COUNT as u64).unwrap_or_default();
        self.0[index].lock().await
    }
}

fn is_connection(known: Option<&Weak<Connection>>, connection: &Arc<Connection>) -> bool {
    known.is_some_and(|known| known.as_ptr() == Arc::as_ptr(connection))
}

/// Returns each client once, in the order of their first places.
fn each_once<Client: ?Sized>(clients: impl Iterator<Item = Arc<Client>>) -> Vec<Arc<Client>> {
    let mut known = HashSet::new();
    clients.filter(|client| known.insert(Arc::as_ptr(client).cast::<()>())).collect()
}

fn is_part_of(uri: &str, subscribed_uri: &str) -> bool {
    uri.strip_prefix(subscribed_uri)
        .is_some_and(|rest| subscribed_uri.ends_with('/') || rest.starts_with(['/', '#', '?']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_of_several_subscriptions_is_found_once() {
        let clients: Vec<Arc<usize>> = (0..10_000).map(Arc::new).collect();
        let found = each_once(clients.iter().chain(clients.iter().rev()).cloned());
        assert!(found.iter().eq(&clients), "each at its first place");
    }
}
