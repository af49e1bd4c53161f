//! Links to backends that speak 2026-07-28, with stateless requests.
//!
//! The rest of the broker uses a backend as if it had a session: it calls, subscribes and answers
//! requests. A [`Connection`] to a stateless backend translates this into self-contained requests:
//!
//! - [`handshake`] negotiates the era of the backend.
//! - [`exchange`] carries calls.
//! - [`inputs`] sends the inputs that a backend needs to the client.
//! - [`tasks`] follows the tasks that a backend creates.
//! - [`notification_feed`] maintains a stream of notifications.
//!
//! Invariant: only requests, and notifications that cancel one, are sent on a stateless connection.
//! Other messages (answers to the backend's requests, notifications of the client) end in
//! [`StatelessConnection::take_reply`].

pub(super) mod exchange;
pub(super) mod handshake;
mod inputs;
mod notification_feed;
mod requests;
mod tasks;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use protocol::{
    envelope::{Kind, Message},
    ids::RequestId,
    json::{self, Document},
    method::Method,
    stateless::{downgrade, results::SubscriptionFilter},
};
use rules::{limits::CAPABILITIES_REMEMBERED_MAX, tasks::decoded};
use tokio::sync::oneshot;

use self::notification_feed::NotificationFeed;
use super::{Link, connection::Connection, failure::Failure};
use crate::backends::asker::Asker;

/// State of a stateless connection, in addition to its requests.
#[derive(Debug)]
pub struct StatelessConnection {
    pub(super) listening: NotificationFeed,
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
    pub(super) fn new() -> Self {
        Self {
            listening: NotificationFeed::default(),
            inputs: Mutex::default(),
            next_input: AtomicU64::new(1),
            capabilities: Mutex::default(),
        }
    }

    /// Takes a message of the broker that is not a request. The answer to a question is delivered
    /// here. Other messages do not exist in this revision and are dropped. The cancellation of a
    /// request happens when its wait is dropped.
    pub(super) fn take_reply(&self, frame: Bytes) {
        let limits = json::Limits { bytes_max: frame.len(), ..json::Limits::default() };
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
    fn expect_input(&self, key: &str) -> (u64, RequestId, oneshot::Receiver<Message>) {
        let number = self.next_input.fetch_add(1, Ordering::Relaxed);
        let (tell, answer) = oneshot::channel();
        self.inputs.lock().insert(number, PendingInput { key: key.to_owned(), waiting: tell });
        (number, input_id(number), answer)
    }

    /// Returns the backend's key of the question with this id.
    pub fn input_key(&self, id: &RequestId) -> Option<String> {
        Some(self.inputs.lock().get(&input_number(id)?)?.key.clone())
    }

    fn forget_input(&self, number: u64) {
        self.inputs.lock().remove(&number);
    }

    /// Returns the client's capabilities in the form of this revision.
    fn capabilities(&self, declared: &[u8]) -> Bytes {
        let mut known = self.capabilities.lock();
        if let Some(told) = known.get(declared) {
            return told.clone();
        }
        let told = downgrade::upgrade_client_capabilities(declared);
        if known.len() >= CAPABILITIES_REMEMBERED_MAX {
            known.clear();
        }
        known.insert(Bytes::copy_from_slice(declared), told.clone());
        told
    }

    pub(super) fn watch_lists(&self, connection: &Arc<Connection>, link: &Arc<Link>) {
        let Some(agreed) = connection.negotiated() else { return };
        let offered = &agreed.capabilities;
        let lists = SubscriptionFilter {
            tools: offered.tools_list_changed,
            prompts: offered.prompts_list_changed,
            resources: offered.resources_list_changed,
            ..SubscriptionFilter::default()
        };
        if lists != SubscriptionFilter::default() {
            self.listening.watch_lists(connection, link, lists);
        }
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
                let limits = json::Limits { bytes_max: frame.len(), ..json::Limits::default() };
                Message::decode(frame, &limits).unwrap_or_else(|_| message.clone())
            }),
            _ => Some(message.clone()),
        }
    }
}

/// Sends a request of the broker, given in the form of earlier revisions.
pub(super) async fn ask(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
    method: Method,
    params: Option<&[u8]>,
) -> Result<Message, Failure> {
    let Some(modern) = connection.modern() else {
        return Err(Failure::NotSent("the connection is not a modern one".to_owned()));
    };
    match method {
        // This revision has no ping. The broker sends a request that each server answers.
        Method::Ping => requests::ask(connection, link, Method::ServerDiscover, None, None).await,
        Method::ResourcesSubscribe | Method::ResourcesUnsubscribe => {
            let uri = params.and_then(uri_of).unwrap_or_default();
            if method == Method::ResourcesUnsubscribe {
                modern.listening.unsubscribe(&uri);
                return done(true);
            }
            done(modern.listening.subscribe(connection, link, &uri).await)
        }
        _ => requests::ask(connection, link, method, params, None).await,
    }
}

/// Sends a request of the broker on behalf of `asker`, whose client may get questions meanwhile.
pub(super) async fn ask_for(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
    method: Method,
    params: &[u8],
    asker: &Arc<dyn Asker>,
) -> Result<Message, Failure> {
    match method {
        // The state of a task that is over contains its outcome.
        Method::TasksResult => tasks::result(link, asker, params).await,
        _ => requests::ask(connection, link, method, Some(params), Some(asker)).await,
    }
}

fn uri_of(params: &[u8]) -> Option<String> {
    let document = Document::parse(params, &json::Limits::default()).ok()?;
    Some(document.root().get("uri")?.as_str()?.into_owned())
}

/// Creates an answer of the connection itself.
fn done(agreed: bool) -> Result<Message, Failure> {
    let frame: &'static [u8] = match agreed {
        true => br#"{"jsonrpc":"2.0","id":0,"result":{}}"#,
        false => br#"{"jsonrpc":"2.0","id":0,"error":{"code":-32002,"message":"the backend does not tell updates of it"}}"#,
    };
    decoded(Bytes::from_static(frame))
        .ok_or_else(|| Failure::Protocol("an answer of ours".to_owned()))
}

/// Returns the id of a question, as if the backend had sent it.
fn input_id(number: u64) -> RequestId {
    RequestId::from_raw(Bytes::from(format!("\"input-{number}\"")))
}

fn input_number(id: &RequestId) -> Option<u64> {
    std::str::from_utf8(id.raw()).ok()?.strip_prefix("\"input-")?.strip_suffix('"')?.parse().ok()
}

/// Returns whether a message is a result.
fn is_result(message: &Message) -> bool {
    message.kind == Kind::Result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nb_msg_01_only_answers_to_questions_are_taken() {
        let modern = StatelessConnection::new();
        let (number, id, answer) = modern.expect_input("where");
        assert_eq!(
            (input_number(&id), modern.input_key(&id).as_deref()),
            (Some(number), Some("where"))
        );
        modern.take_reply(Bytes::from_static(
            br#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#,
        ));
        modern.take_reply(Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#));
        modern.take_reply(Bytes::from(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"roots":[]}}}}"#
        )));
        assert!(is_result(&answer.await.unwrap()));
        assert!(modern.inputs.lock().is_empty());
    }

    #[test]
    fn capabilities_are_put_into_new_words_once() {
        let modern = StatelessConnection::new();
        assert_eq!(modern.capabilities(b"{}"), modern.capabilities(b"{}"));
        assert_eq!(modern.capabilities.lock().len(), 1);
        (0..=CAPABILITIES_REMEMBERED_MAX)
            .for_each(|n| drop(modern.capabilities(format!(r#"{{"x":{n}}}"#).as_bytes())));
        assert!(modern.capabilities.lock().len() <= CAPABILITIES_REMEMBERED_MAX);
    }
}
