//! Subscriptions of a link to resources: one subscription at the backend per URI, however many
//! sessions subscribe.
//!
//! The table stores the wanted state (the listeners) and the actual state (the connection with the
//! subscription). Only [`Subscriptions::reconcile`] changes the actual state. All other functions
//! change the wanted state. A new connection gets all subscriptions again. Its listeners get an
//! `updated`, because updates may have been missed.

use std::{
    borrow::Cow,
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Weak},
};

use parking_lot::{Mutex, MutexGuard};
use protocol::{
    envelope::{Kind, Message},
    error::{ErrorKind, Refusal},
    handshake, json,
    method::Method,
    splice::Splice,
};
use rules::event_log::Topic;

use super::{
    link::{Link, connection::Connection},
    link_client::{LinkClient, is_same},
};

#[derive(Debug, Default)]
pub struct Subscriptions {
    by_uri: Mutex<HashMap<String, Subscription>>,
    /// Held during a request to the backend, so that requests about one URI stay in order.
    uri_locks: UriLocks,
}

#[derive(Debug, Default)]
struct Subscription {
    listeners: Vec<Weak<dyn LinkClient>>,
    /// The connection on which the backend has the subscription.
    subscribed_on: Option<Weak<Connection>>,
}

impl Subscription {
    fn has_listener(&self, client: &Arc<impl LinkClient + 'static>) -> bool {
        self.listeners.iter().any(|listener| is_same(listener, client))
    }

    fn remove_listener(&mut self, client: &Arc<impl LinkClient + 'static>) {
        self.listeners.retain(|listener| !is_same(listener, client));
    }

    fn is_wanted(&self) -> bool {
        self.listeners.iter().any(|listener| listener.strong_count() > 0)
    }

    fn is_subscribed_on(&self, connection: &Arc<Connection>) -> bool {
        self.subscribed_on.as_ref().is_some_and(|told| told.as_ptr() == Arc::as_ptr(connection))
    }
}

/// The request that the backend needs for one URI.
enum SubscriptionChange {
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

    /// Returns whether the session listens to `uri` and the backend has the subscription, or gets
    /// it on its next connection.
    pub fn is_subscribed(&self, client: &Arc<impl LinkClient + 'static>, uri: &str) -> bool {
        let held = |one: &Subscription| one.subscribed_on.is_some() && one.has_listener(client);
        self.lock().get(uri).is_some_and(held)
    }

    /// Removes a client whose session has ended.
    pub fn drop_client(&self, link: &Arc<Link>, client: &Arc<impl LinkClient + 'static>) {
        let mut left = Vec::new();
        for (uri, subscription) in self.lock().iter_mut() {
            let before = subscription.listeners.len();
            subscription.remove_listener(client);
            if subscription.listeners.len() < before {
                left.push(uri.clone());
            }
        }
        if left.is_empty() {
            return;
        }
        let (link, running) = (link.clone(), link.backend.shared.running.clone());
        running.spawn(async move {
            for uri in left {
                let _gone_anyway = link.subscriptions.reconcile(&link, &uri).await;
            }
        });
    }

    /// Sends the request that the backend needs for one URI. Without a connection nothing is sent:
    /// a new one begins with [`Subscriptions::restore`].
    pub async fn reconcile(&self, link: &Arc<Link>, uri: &str) -> Result<(), Refusal> {
        let _order = self.uri_locks.lock_uri(uri).await;
        let connection = link.live();
        match self.pending_change(uri, connection.as_ref()) {
            SubscriptionChange::Nothing => Ok(()),
            SubscriptionChange::Unsubscribe => match connection {
                Some(connection) => {
                    send_request(link, &connection, Method::ResourcesUnsubscribe, uri).await
                }
                None => Ok(()),
            },
            SubscriptionChange::Subscribe { again } => {
                let Some(connection) = connection else { return Ok(()) };
                // Stored before the answer, because the first `updated` may come before it.
                self.note_subscribed(uri, Some(Arc::downgrade(&connection)));
                let told = send_request(link, &connection, Method::ResourcesSubscribe, uri).await;
                if told.is_err() {
                    self.note_subscribed(uri, again.then(Weak::new)); // told once, but on no connection that lives
                } else if again {
                    self.notify_listeners(link, uri);
                }
                told
            }
        }
    }

    /// Restores every subscription on a new connection, one after the other, in the background.
    pub async fn restore(&self, link: &Arc<Link>, connection: &Arc<Connection>) {
        let uris: Vec<String> = self.lock().keys().cloned().collect();
        if uris.is_empty() {
            return;
        }
        let (link, connection, running) =
            (link.clone(), connection.clone(), link.backend.shared.running.clone());
        running.spawn(async move {
            for uri in uris {
                if connection.is_closed() {
                    return; // the next connection begins again
                }
                if let Err(refusal) = link.subscriptions.reconcile(&link, &uri).await {
                    tracing::warn!(backend = %link.backend.id, %refusal, "a subscription could not be put back");
                }
            }
        });
    }

    /// Forwards an `updated` of the backend. It may name a part of a subscribed resource (MCP
    /// 2025-11-25, Resources).
    pub fn on_updated(&self, link: &Arc<Link>, message: &Message) {
        let Some(uri) = message.text(message.fields.uri) else { return };
        let mut listeners = self.listeners(&uri);
        let wholes: Vec<String> =
            self.lock().keys().filter(|whole| is_part_of(&uri, whole)).cloned().collect();
        for listener in wholes.iter().flat_map(|whole| self.listeners(whole)) {
            if !listeners.iter().any(|known| Arc::ptr_eq(known, &listener)) {
                listeners.push(listener);
            }
        }
        if listeners.is_empty() {
            link.backend.shared.metrics.dropped_notification("updated");
        }
        for client in listeners {
            let shown = client.exposed_uri(&link.backend.id, &uri);
            let frame = match (&shown, message.fields.uri) {
                (Cow::Owned(shown), Some(span)) => Splice::new(&message.frame)
                    .replace(span, json::quote(shown).into_bytes())
                    .finish(),
                _ => message.frame.clone(),
            };
            client.deliver(Topic::Resource(shown.into_owned()), frame);
        }
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

    fn pending_change(
        &self,
        uri: &str,
        connection: Option<&Arc<Connection>>,
    ) -> SubscriptionChange {
        let mut by_uri = self.lock();
        let Some(subscription) = by_uri.get(uri) else { return SubscriptionChange::Nothing };
        let told = connection.is_some_and(|connection| subscription.is_subscribed_on(connection));
        match (subscription.is_wanted(), told) {
            (true, true) => SubscriptionChange::Nothing,
            (true, false) => {
                SubscriptionChange::Subscribe { again: subscription.subscribed_on.is_some() }
            }
            (false, told) => {
                by_uri.remove(uri);
                if told { SubscriptionChange::Unsubscribe } else { SubscriptionChange::Nothing }
            }
        }
    }

    fn note_subscribed(&self, uri: &str, told: Option<Weak<Connection>>) {
        if let Some(subscription) = self.lock().get_mut(uri) {
            subscription.subscribed_on = told;
        }
    }

    /// Sends an `updated` to one session, because updates may have been missed.
    pub fn notify_gap(&self, link: &Link, client: &dyn LinkClient, uri: &str) {
        let shown = client.exposed_uri(&link.backend.id, uri);
        let params = format!("{{\"uri\":{}}}", json::quote(&shown));
        let frame = handshake::notification(Method::ResourcesUpdated, Some(params.as_bytes()));
        client.deliver(Topic::Resource(shown.into_owned()), frame);
    }

    /// Sends an `updated` to all listeners, because updates may have been missed.
    pub fn notify_gaps(&self, link: &Link) {
        let uris: Vec<String> = self.lock().keys().cloned().collect();
        uris.iter().for_each(|uri| self.notify_listeners(link, uri));
    }

    fn notify_listeners(&self, link: &Link, uri: &str) {
        for client in self.listeners(uri) {
            self.notify_gap(link, &*client, uri);
        }
    }

    fn listeners(&self, uri: &str) -> Vec<Arc<dyn LinkClient>> {
        self.lock()
            .get(uri)
            .map(|one| one.listeners.iter().filter_map(Weak::upgrade).collect())
            .unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Subscription>> {
        self.by_uri.lock()
    }
}

/// Number of URI locks.
const TELLING_PLACES: usize = 64;

/// One lock per URI, from a fixed number of locks. A slow request about one URI delays few others.
#[derive(Debug)]
struct UriLocks([tokio::sync::Mutex<()>; TELLING_PLACES]);

impl Default for UriLocks {
    fn default() -> Self {
        Self(std::array::from_fn(|_| tokio::sync::Mutex::default()))
    }
}

impl UriLocks {
    async fn lock_uri(&self, uri: &str) -> tokio::sync::MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        uri.hash(&mut hasher);
        let place = usize::try_from(hasher.finish() % TELLING_PLACES as u64).unwrap_or_default();
        self.0[place].lock().await
    }
}

async fn send_request(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    method: Method,
    uri: &str,
) -> Result<(), Refusal> {
    let params = format!("{{\"uri\":{}}}", json::quote(uri));
    let answer = connection
        .ask(link, method, Some(params.as_bytes()))
        .await
        .map_err(|failure| link.backend.refusal(&failure))?;
    match answer.kind {
        Kind::Error => {
            Err(Refusal::new(ErrorKind::ResourceNotFound, "the backend refused the subscription")
                .with("uri", uri))
        }
        _ => Ok(()),
    }
}

fn is_part_of(uri: &str, whole: &str) -> bool {
    uri.strip_prefix(whole)
        .is_some_and(|rest| whole.ends_with('/') || rest.starts_with(['/', '#', '?']))
}
