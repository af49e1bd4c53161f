//! Who on a link listens to which resource: one backend subscription per URI, however many sessions ask.
//!
//! The first session's request goes to the backend, the last one's end takes it back, and a new connection gets them all
//! again, with one `updated` each, because nobody knows what was missed.

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, Weak},
};

use protocol::{
    envelope::{Kind, Message},
    error::{ErrorKind, Refusal},
    json,
    method::Method,
    splice::Splice,
};

use super::{
    incoming,
    link::{Link, connection::Connection},
    session::Session,
    sync,
};
use crate::rules::{catalog::Endpoint, event_log::EventKind, names};

#[derive(Debug, Default)]
pub struct Subscriptions {
    by_uri: Mutex<HashMap<String, Vec<Weak<Session>>>>,
    /// Held while the backend is told, so that subscribe and unsubscribe of one URI can not overtake each other.
    telling: Telling,
}

impl Subscriptions {
    /// A session wants to hear of `uri`.
    pub async fn subscribe(
        &self,
        link: &Arc<Link>,
        connection: &Arc<Connection>,
        session: &Arc<Session>,
        uri: &str,
    ) -> Result<(), Refusal> {
        let _order = self.telling.about(uri).await;
        if self.has_listeners(uri) {
            self.add(session, uri);
            return Ok(());
        }
        // Known before the backend is asked: its first `updated` may come before its answer.
        self.add(session, uri);
        let told = tell(link, connection, Method::ResourcesSubscribe, uri).await;
        if told.is_err() {
            self.remove(session, uri);
        }
        told
    }

    /// A session has heard enough. A backend that can not be reached is not told: a new connection begins without it.
    pub async fn unsubscribe(&self, link: &Arc<Link>, session: &Arc<Session>, uri: &str) -> Result<(), Refusal> {
        let _order = self.telling.about(uri).await;
        if !self.remove(session, uri) || self.has_listeners(uri) {
            return Ok(());
        }
        match link.live() {
            Some(connection) => tell(link, &connection, Method::ResourcesUnsubscribe, uri).await,
            None => Ok(()),
        }
    }

    /// A session is over.
    pub fn drop_session(&self, link: &Arc<Link>, session: &Arc<Session>) {
        let mut orphans = Vec::new();
        self.lock().retain(|uri, listeners| {
            listeners.retain(|other| other.upgrade().is_some_and(|other| !Arc::ptr_eq(&other, session)));
            if listeners.is_empty() {
                orphans.push(uri.clone());
            }
            !listeners.is_empty()
        });
        let Some(connection) = link.live().filter(|_| !orphans.is_empty()) else { return };
        let running = link.backend.shared.running.clone();
        let link = link.clone();
        running.spawn(async move {
            for uri in orphans {
                let _order = link.subscriptions.telling.about(&uri).await;
                if !link.subscriptions.has_listeners(&uri) {
                    let _gone_anyway = tell(&link, &connection, Method::ResourcesUnsubscribe, &uri).await;
                }
            }
        });
    }

    /// Puts every subscription back on a new connection.
    pub async fn restore(&self, link: &Arc<Link>, connection: &Arc<Connection>) {
        let uris: Vec<String> = self.lock().keys().cloned().collect();
        for uri in uris {
            if let Err(refusal) = tell(link, connection, Method::ResourcesSubscribe, &uri).await {
                tracing::warn!(backend = %link.backend.id, %refusal, "a subscription could not be put back");
            }
            for session in self.listeners(&uri) {
                session.deliver(EventKind::Message, incoming::updated_frame(&session, link, &uri));
            }
        }
    }

    /// The backend says that a resource changed; it may be a part of the one subscribed to (MCP 2025-11-25, Resources).
    pub fn updated(&self, link: &Arc<Link>, message: &Message) {
        let Some(uri) = message.text(message.fields.uri) else { return };
        let mut listeners = self.listeners(&uri);
        let wholes: Vec<String> = self.lock().keys().filter(|whole| is_part_of(&uri, whole)).cloned().collect();
        for listener in wholes.iter().flat_map(|whole| self.listeners(whole)) {
            if !listeners.iter().any(|known| Arc::ptr_eq(known, &listener)) {
                listeners.push(listener);
            }
        }
        if listeners.is_empty() {
            link.backend.shared.metrics.dropped_notification("updated");
        }
        for session in listeners {
            let frame = match (&session.endpoint, message.fields.uri) {
                (Endpoint::Aggregated, Some(span)) => {
                    let shown = json::quote(&names::exposed_uri(&link.backend.id, &uri));
                    Splice::new(&message.frame).replace(span, shown.into_bytes()).finish()
                }
                _ => message.frame.clone(),
            };
            session.deliver(EventKind::Message, frame);
        }
    }

    /// Every URI with its number of listeners.
    pub fn counts(&self) -> Vec<(String, usize)> {
        self.lock().iter().map(|(uri, listeners)| (uri.clone(), listeners.iter().filter(|l| l.strong_count() > 0).count())).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn listeners(&self, uri: &str) -> Vec<Arc<Session>> {
        self.lock().get(uri).map(|listeners| listeners.iter().filter_map(Weak::upgrade).collect()).unwrap_or_default()
    }

    fn has_listeners(&self, uri: &str) -> bool {
        !self.listeners(uri).is_empty()
    }

    fn add(&self, session: &Arc<Session>, uri: &str) {
        let mut by_uri = self.lock();
        let listeners = by_uri.entry(uri.to_owned()).or_default();
        if !listeners.iter().any(|other| other.as_ptr() == Arc::as_ptr(session)) {
            listeners.push(Arc::downgrade(session));
        }
    }

    /// `false` when the session did not listen.
    fn remove(&self, session: &Arc<Session>, uri: &str) -> bool {
        let mut by_uri = self.lock();
        let Some(listeners) = by_uri.get_mut(uri) else { return false };
        let before = listeners.len();
        listeners.retain(|other| other.as_ptr() != Arc::as_ptr(session));
        let removed = listeners.len() < before;
        if listeners.is_empty() {
            by_uri.remove(uri);
        }
        removed
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<Weak<Session>>>> {
        sync::lock(&self.by_uri)
    }
}

/// One lock per URI, from a fixed number of them: a URI the backend is slow about holds up few others.
#[derive(Debug)]
struct Telling([tokio::sync::Mutex<()>; 64]);

impl Default for Telling {
    fn default() -> Self {
        Self(std::array::from_fn(|_| tokio::sync::Mutex::default()))
    }
}

impl Telling {
    async fn about(&self, uri: &str) -> tokio::sync::MutexGuard<'_, ()> {
        let mut hasher = std::hash::DefaultHasher::new();
        uri.hash(&mut hasher);
        let place = usize::try_from(hasher.finish() % 64).unwrap_or_default();
        self.0[place].lock().await
    }
}

async fn tell(link: &Arc<Link>, connection: &Arc<Connection>, method: Method, uri: &str) -> Result<(), Refusal> {
    let params = format!("{{\"uri\":{}}}", json::quote(uri));
    let answer = connection.ask(link, method, Some(params.as_bytes())).await.map_err(|failure| link.backend.refusal(&failure))?;
    match answer.kind {
        Kind::Error => Err(Refusal::new(ErrorKind::ResourceNotFound, "the backend refused the subscription").with("uri", uri)),
        _ => Ok(()),
    }
}

fn is_part_of(uri: &str, whole: &str) -> bool {
    uri.strip_prefix(whole).is_some_and(|rest| whole.ends_with('/') || rest.starts_with(['/', '#', '?']))
}
