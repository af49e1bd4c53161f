//! Subscriptions of sessions: what was acknowledged still brings updates after all faults.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{ANSWER_WITHIN, Load, PATIENCE, PAUSE};
use crate::{
    backend::FakeBackend,
    client::{AttemptOutcome, TestClient},
    events::EventReader,
    history::Observation,
};

/// Time after which the backend sends an update again.
const UPDATE_EVERY: Duration = Duration::from_secs(1);

/// An acknowledged subscription.
#[derive(Debug)]
pub(super) struct Subscription {
    client: TestClient,
    session: Option<String>,
    /// The URI that the backend knows.
    uri: String,
}

impl Subscription {
    /// Returns the URI that the client knows.
    fn client_uri(&self) -> String {
        format!("b+{}", self.uri)
    }
}

impl Load {
    /// Subscribes to a resource of its own, with as many tries as it takes.
    pub(super) async fn subscribe(&self, client: &TestClient, key: &str) {
        let first = Instant::now();
        loop {
            let session = client.session();
            let uri = format!("test://{key}");
            let subscription = Subscription { client: client.clone(), session, uri };
            let params = json!({"uri": subscription.client_uri()});
            let answer = client.attempt("resources/subscribe", params, ANSWER_WITHIN).await;
            if let AttemptOutcome::Result(_) = answer {
                return self.subscriptions.lock().push(subscription);
            }
            self.record_loss(client, &answer).await;
            if answer.is_final() || first.elapsed() > PATIENCE {
                let what = format!("no subscription to {key}; last: {answer:?}");
                return self.history.record(first, Observation::Wrong { what });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Checks that each subscription brings an update of its resource.
    pub(in crate::chaos) async fn subscriptions_live(&self, backend: &FakeBackend) {
        let subscriptions = std::mem::take(&mut *self.subscriptions.lock());
        for subscription in subscriptions {
            // A session that was lost is a violation already.
            if subscription.client.session() != subscription.session {
                continue;
            }
            let began = Instant::now();
            let updated = tokio::time::timeout(PATIENCE, updated(&subscription, backend)).await;
            if updated.is_err() {
                let what = format!(
                    "the session {:?} gets no update of {}",
                    subscription.session, subscription.uri
                );
                self.history.record(began, Observation::Wrong { what });
            }
        }
    }
}

/// Opens the session's stream, and lets the backend update the resource until the client knows.
async fn updated(subscription: &Subscription, backend: &FakeBackend) {
    loop {
        let Some(mut events) = open_stream(&subscription.client).await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        loop {
            let update = json!({"uri": subscription.uri});
            backend.notify("notifications/resources/updated", update).await;
            match tokio::time::timeout(UPDATE_EVERY, find_update(subscription, &mut events)).await {
                Ok(true) => return,
                Ok(false) => break,
                Err(_) => {}
            }
        }
    }
}

async fn open_stream(client: &TestClient) -> Option<EventReader> {
    let opened = client.try_get_stream(None);
    let opened = tokio::time::timeout(ANSWER_WITHIN, opened).await.ok()?.ok()?;
    opened.is_event_stream().then(|| opened.events())
}

/// Returns whether an update came before the end of the stream.
async fn find_update(subscription: &Subscription, events: &mut EventReader) -> bool {
    while let Some(event) = events.advance().await {
        let message = event.message().unwrap_or_default();
        if message["method"] == "notifications/resources/updated"
            && message["params"]["uri"] == subscription.client_uri()
        {
            return true;
        }
    }
    false
}
