//! State of a connection to a stateless backend.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use parking_lot::Mutex;
use protocol::{envelope::Message, ids::RequestId, json, method::Method, stateless::downgrade};
use rules::limits::CAPABILITIES_REMEMBERED_MAX;
use tokio::sync::oneshot;

use super::notification_feeds::NotificationFeeds;

/// State of a stateless connection, in addition to its requests.
#[derive(Debug)]
pub struct StatelessConnection {
    pub(in crate::backends::link) listening: NotificationFeeds,
    /// Questions to clients for an `input_required`, by number.
    inputs: Mutex<HashMap<u64, PendingInput>>,
    next_input: AtomicU64,
    /// Capabilities of clients, from the declared form to the form of 2026-07-28.
    capabilities: Mutex<HashMap<Bytes, Bytes>>,
}

/// An input that the backend needs, while its client works on it.
#[derive(Debug)]
struct PendingInput {
    /// The key of the input in the backend's request.
    key: String,
    waiting: oneshot::Sender<Message>,
}

impl StatelessConnection {
    pub(in crate::backends::link) fn new() -> Self {
        Self {
            listening: NotificationFeeds::default(),
            inputs: Mutex::default(),
            next_input: AtomicU64::new(1),
            capabilities: Mutex::default(),
        }
    }

    /// Takes a message of the broker that is not a request. The answer to a question is delivered
    /// here. Other messages do not exist in this revision and are dropped. The cancellation of a
    /// request happens when its wait is dropped.
    pub(in crate::backends::link) fn take_reply(&self, frame: Bytes) {
        let limits = json::Limits::with_bytes_max(frame.len());
        let Ok(message) = Message::decode(frame, &limits) else { return };
        if let Some(number) =
            message.id.as_ref().filter(|_| message.is_response()).and_then(input_number)
            && let Some(input) = self.inputs.lock().remove(&number)
        {
            let _given_up = input.waiting.send(message);
        }
    }

    /// Registers a question with the backend's `key`. Returns its number, its id and the wait for
    /// its answer.
    pub(super) fn expect_input(&self, key: &str) -> (u64, RequestId, oneshot::Receiver<Message>) {
        let number = self.next_input.fetch_add(1, Ordering::Relaxed);
        let (answer_tx, answer) = oneshot::channel();
        self.inputs.lock().insert(number, PendingInput { key: key.to_owned(), waiting: answer_tx });
        (number, input_id(number), answer)
    }

    /// Returns the backend's key of the question with this id.
    pub fn input_key(&self, id: &RequestId) -> Option<String> {
        Some(self.inputs.lock().get(&input_number(id)?)?.key.clone())
    }

    pub(super) fn forget_input(&self, number: u64) {
        self.inputs.lock().remove(&number);
    }

    /// Returns the client's capabilities in the form of this revision.
    pub(super) fn capabilities(&self, declared: &[u8]) -> Bytes {
        let mut cache = self.capabilities.lock();
        if let Some(converted) = cache.get(declared) {
            return converted.clone();
        }
        let converted = downgrade::upgrade_client_capabilities(declared);
        if cache.len() >= CAPABILITIES_REMEMBERED_MAX {
            cache.clear();
        }
        cache.insert(Bytes::copy_from_slice(declared), converted.clone());
        converted
    }

    /// Translates a notification for the rest of the broker. `None`: it belongs to no stream of the
    /// broker, or is handled already.
    pub fn admit(&self, message: &Message) -> Option<Message> {
        match message.method {
            Method::SubscriptionsAcknowledged => {
                self.listening.acknowledged(message);
                None
            }
            Method::Cancelled => {
                self.listening.ended(message);
                None
            }
            Method::ToolsListChanged
            | Method::PromptsListChanged
            | Method::ResourcesListChanged
            | Method::ResourcesUpdated => self.listening.admits(message).then(|| {
                let frame = downgrade::without_subscription_id(message);
                let limits = json::Limits::with_bytes_max(frame.len());
                Message::decode(frame, &limits).unwrap_or_else(|_| message.clone())
            }),
            _ => Some(message.clone()),
        }
    }
}

/// Returns the id of a question, as if the backend had sent it.
fn input_id(number: u64) -> RequestId {
    RequestId::from_raw(Bytes::from(format!("\"input-{number}\"")))
}

fn input_number(id: &RequestId) -> Option<u64> {
    std::str::from_utf8(id.raw()).ok()?.strip_prefix("\"input-")?.strip_suffix('"')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use protocol::{envelope::Kind, stateless::results::DiscoverResult};

    use super::*;
    use crate::{
        backends::link::{connection::Connection, queue::FrameQueue, wire::WireSender},
        metrics::Metrics,
    };

    #[test]
    fn an_open_stream_of_notifications_is_not_pending() {
        let metrics = Arc::new(Metrics::new(false));
        let (queue, _frames) = FrameQueue::for_tests(1, metrics.queue_depth("pipe"));
        let connection = Connection::new(WireSender::Pipe(queue), metrics);
        let found = br#"{"supportedVersions":["2026-07-28"],"capabilities":{}}"#;
        let found = downgrade::initialize_result_from(&DiscoverResult::parse(found).unwrap(), "b");
        connection.set_stateless(found, StatelessConnection::new());
        let listening = connection.stateless().unwrap().listening.first();
        let _stream = connection.pending().expect(7, None);
        assert!(connection.has_pending(), "its clients wait for it");
        listening.switch(7);
        assert!(!connection.has_pending());
        let _next = connection.pending().expect(8, None);
        assert!(connection.has_pending());
        listening.switch(8);
        assert!(!connection.has_pending(), "both streams are open");
        listening.lost();
        assert!(connection.has_pending());
    }

    #[tokio::test]
    async fn nb_msg_01_only_answers_to_pending_inputs_are_accepted() {
        let stateless = StatelessConnection::new();
        let (number, id, answer) = stateless.expect_input("where");
        assert_eq!(
            (input_number(&id), stateless.input_key(&id).as_deref()),
            (Some(number), Some("where"))
        );
        stateless.take_reply(Bytes::from_static(
            br#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#,
        ));
        stateless.take_reply(Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#));
        stateless.take_reply(Bytes::from(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"roots":[]}}}}"#
        )));
        assert_eq!(answer.await.unwrap().kind, Kind::Result);
        assert!(stateless.inputs.lock().is_empty());
    }

    #[test]
    fn capabilities_are_translated_once_and_cached() {
        let stateless = StatelessConnection::new();
        assert_eq!(stateless.capabilities(b"{}"), stateless.capabilities(b"{}"));
        assert_eq!(stateless.capabilities.lock().len(), 1);
        (0..=CAPABILITIES_REMEMBERED_MAX)
            .for_each(|n| drop(stateless.capabilities(format!(r#"{{"x":{n}}}"#).as_bytes())));
        assert!(stateless.capabilities.lock().len() <= CAPABILITIES_REMEMBERED_MAX);
    }
}
