//! The requests by which a backend gets the subscriptions of a link ([`super::subscriptions`]).

use std::sync::{Arc, Weak};

use protocol::{
    envelope::Kind,
    error::{ErrorKind, Refusal},
    json,
    method::Method,
};
use rules::limits::{BACKOFF_FIRST, BACKOFF_MAX};

use super::{
    link::{Link, connection::Connection},
    link_client::LinkClient,
    subscriptions::{SubscriptionRequest, Subscriptions},
};

/// A request that failed.
struct FailedChange {
    refusal: Refusal,
    /// The subscription was in force on an earlier connection.
    again: bool,
}

impl Subscriptions {
    /// Removes a client whose session has ended.
    pub fn drop_client(&self, link: &Arc<Link>, client: &Arc<impl LinkClient + 'static>) {
        let mut removed = Vec::new();
        for (uri, subscription) in self.lock().iter_mut() {
            let before = subscription.listeners.len();
            subscription.remove_listener(client);
            if subscription.listeners.len() < before {
                removed.push(uri.clone());
            }
        }
        if removed.is_empty() {
            return;
        }
        let (link, running) = (link.clone(), link.backend.context.running.clone());
        running.spawn(async move {
            for uri in removed {
                let _gone_anyway = Self::reconcile(&link, &uri).await;
            }
        });
    }

    /// Sends the request that the backend needs for one URI. Without a connection nothing is sent:
    /// a new one begins with [`Subscriptions::restore`].
    ///
    /// Dropping the future does not cancel the request. Until its answer, other callers take the
    /// subscription for one that is in force.
    pub async fn reconcile(link: &Arc<Link>, uri: &str) -> Result<(), Refusal> {
        let (of_request, uri) = (Arc::clone(link), uri.to_owned());
        let change =
            link.backend.context.running.spawn(async move {
                of_request.subscriptions.send_change(&of_request, &uri).await
            });
        match change.await {
            Ok(sent) => sent.map_err(|failed| failed.refusal),
            Err(_) => {
                Err(Refusal::new(ErrorKind::Internal, "the request to the backend did not finish"))
            }
        }
    }

    async fn send_change(&self, link: &Arc<Link>, uri: &str) -> Result<(), FailedChange> {
        let _order = self.lock_uri(uri).await;
        let connection = link.live();
        match self.pending_change(uri, connection.as_ref()) {
            SubscriptionRequest::Nothing => Ok(()),
            SubscriptionRequest::Unsubscribe => match connection {
                Some(connection) => {
                    let sent = send_request(link, &connection, Method::ResourcesUnsubscribe, uri);
                    sent.await.map_err(|refusal| FailedChange { refusal, again: false })
                }
                None => Ok(()),
            },
            SubscriptionRequest::Subscribe { again } => {
                let Some(connection) = connection else { return Ok(()) };
                // Stored before the answer, because the first `updated` may come before it.
                self.record_subscribed(uri, Some(Arc::downgrade(&connection)));
                let result = send_request(link, &connection, Method::ResourcesSubscribe, uri).await;
                if result.is_err() {
                    self.record_subscribed(uri, again.then(Weak::new)); // it was subscribed once, on a connection that has ended
                } else if again {
                    self.notify_listeners(&link.backend.id, uri);
                }
                result.map_err(|refusal| FailedChange { refusal, again })
            }
        }
    }

    /// Restores every subscription on a new connection, one after the other, in the background.
    /// Tries those again that fail, while the connection is open. Their clients get one update,
    /// because updates may be missed meanwhile.
    pub async fn restore(&self, link: &Arc<Link>, connection: &Arc<Connection>) {
        let uris: Vec<String> = self.lock().keys().cloned().collect();
        if uris.is_empty() {
            return;
        }
        let restored = restore_all(link.clone(), connection.clone(), uris);
        link.backend.context.running.spawn(restored);
    }
}

/// Subscribes to these URIs on a new connection. Ends when all are restored, or with the
/// connection: the next one begins again.
async fn restore_all(link: Arc<Link>, connection: Arc<Connection>, mut uris: Vec<String>) {
    let (mut is_first, mut pause) = (true, BACKOFF_FIRST);
    loop {
        let mut failed = Vec::new();
        for uri in uris {
            if connection.is_closed() {
                return;
            }
            let Err(FailedChange { refusal, again }) =
                link.subscriptions.send_change(&link, &uri).await
            else {
                continue;
            };
            // The client of a new one gets the refusal itself.
            if is_first && again {
                tracing::warn!(tenant = %link.backend.tenant, backend = %link.backend.id, %refusal, "a subscription could not be restored, the broker tries again");
                link.subscriptions.notify_listeners(&link.backend.id, &uri);
            }
            failed.push(uri);
        }
        if failed.is_empty() || tokio::time::timeout(pause, connection.closed()).await.is_ok() {
            return;
        }
        (uris, is_first, pause) = (failed, false, pause.saturating_mul(2).min(BACKOFF_MAX));
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
        .control_request(link, method, Some(params.as_bytes()))
        .await
        .map_err(|failure| link.backend.report_failure(&failure))?;
    match answer.kind {
        Kind::Error => {
            Err(Refusal::new(ErrorKind::ResourceNotFound, "the backend refused the subscription")
                .with("uri", uri))
        }
        _ => Ok(()),
    }
}
