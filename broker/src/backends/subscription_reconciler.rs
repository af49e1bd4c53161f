//! The requests by which a backend gets the subscriptions of a link ([`super::subscriptions`]).

use std::sync::Arc;

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
    /// Dropping the future does not cancel the request. Until its answer, other callers for the URI
    /// wait.
    pub async fn reconcile(link: &Arc<Link>, uri: &str) -> Result<(), Refusal> {
        let (of_request, uri) = (Arc::clone(link), uri.to_owned());
        let change =
            link.backend.context.running.spawn(async move {
                of_request.subscriptions.send_change(&of_request, &uri).await
            });
        match change.await {
            Ok(sent) => sent.map(drop).map_err(|failed| failed.refusal),
            Err(_) => {
                Err(Refusal::new(ErrorKind::Internal, "the request to the backend did not finish"))
            }
        }
    }

    /// Sends the request that the backend needs for one URI. Returns whether the listeners were told
    /// that updates may have been missed.
    async fn send_change(&self, link: &Arc<Link>, uri: &str) -> Result<bool, FailedChange> {
        let _order = self.lock_uri(uri).await;
        let connection = link.live();
        match self.pending_change(uri, connection.as_ref()) {
            SubscriptionRequest::Nothing => Ok(false),
            SubscriptionRequest::Unsubscribe => match connection {
                Some(connection) => {
                    let sent = send_request(link, &connection, Method::ResourcesUnsubscribe, uri);
                    let again = false;
                    sent.await.map(|()| again).map_err(|refusal| FailedChange { refusal, again })
                }
                None => Ok(false),
            },
            SubscriptionRequest::Subscribe { again } => {
                let Some(connection) = connection else { return Ok(false) };
                // Stored before the answer, because a gap before it may lose the first `updated`.
                self.record_requested(uri, Arc::downgrade(&connection));
                let result = send_request(link, &connection, Method::ResourcesSubscribe, uri).await;
                self.record_outcome(uri, result.is_ok());
                if result.is_ok() && again {
                    self.notify_listeners(&link.backend.id, uri);
                }
                result.map(|()| again).map_err(|refusal| FailedChange { refusal, again })
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

    /// Tries again, in the background, what failed for these URIs on the open connection of the link.
    /// A next connection begins with [`Subscriptions::restore`].
    pub fn retry_later(link: &Arc<Link>, failed: Vec<String>) {
        if let Some(connection) = link.live().filter(|_| !failed.is_empty()) {
            link.backend.context.running.spawn(retry(link.clone(), connection, failed));
        }
    }
}

/// Subscribes to these URIs on a new connection. Ends when all are restored, or with the
/// connection: the next one begins again.
async fn restore_all(link: Arc<Link>, connection: Arc<Connection>, uris: Vec<String>) {
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
        if again {
            tracing::warn!(tenant = %link.backend.tenant, backend = %link.backend.id, %refusal, "a subscription could not be restored, the broker tries again");
            link.subscriptions.notify_listeners(&link.backend.id, &uri);
        }
        failed.push(uri);
    }
    retry(link, connection, failed).await;
}

/// Repeats failed requests, until the backend has all subscriptions or the connection ends. Leaves
/// out those that another task repeats over this connection.
async fn retry(link: Arc<Link>, connection: Arc<Connection>, mut uris: Vec<String>) {
    uris.retain(|uri| link.subscriptions.take_retry(uri, &connection));
    let mut pause = BACKOFF_FIRST;
    while !uris.is_empty() {
        if tokio::time::timeout(pause, connection.closed()).await.is_ok() {
            return;
        }
        let mut failed = Vec::new();
        for uri in uris {
            if connection.is_closed() {
                return;
            }
            match link.subscriptions.send_change(&link, &uri).await {
                Ok(true) => {}
                // Updates may have been missed since the failure.
                Ok(false) => link.subscriptions.notify_listeners(&link.backend.id, &uri),
                Err(_) => failed.push(uri),
            }
        }
        (uris, pause) = (failed, pause.saturating_mul(2).min(BACKOFF_MAX));
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
