//! Links to backends that speak 2026-07-28, where each request stands alone.
//!
//! The rest of the broker speaks to a backend as one does in a session: it calls, subscribes, answers questions. A
//! [`Connection`] that turned out to be a modern one turns this into requests that say everything themselves: [`exchange`]
//! carries calls, [`inputs`] turns what a backend needs into questions to the client, [`tasks`] follows the tasks it makes,
//! [`notification_feed`] keeps a stream of notifications. [`handshake`] finds out in which era a backend lives.
//!
//! Invariant: nothing but requests, and notifications that cancel one, leaves on a modern connection. What the broker says
//! beside them (answers to questions, notifications of the client) ends in [`StatelessConnection::take_reply`].

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
use tokio::sync::oneshot;

use self::notification_feed::NotificationFeed;
use super::{
    Link,
    connection::{Connection, Failure},
};
use crate::{backends::asker::Asker, limits::CAPABILITIES_REMEMBERED_MAX, rules::tasks::decoded};

/// What a modern connection knows beside its requests.
#[derive(Debug)]
pub struct StatelessConnection {
    pub(super) listening: NotificationFeed,
    /// Questions to clients on account of an `input_required`, by number.
    inputs: Mutex<HashMap<u64, PendingInput>>,
    next_input: AtomicU64,
    /// Capabilities of clients, as they declared them and as they are told.
    capabilities: Mutex<HashMap<Bytes, Bytes>>,
}

/// Something the backend needs, while its client is asked for it.
#[derive(Debug)]
struct PendingInput {
    /// The backend's name for it.
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

    /// Takes what the broker says to the backend that is not a request of a client: the answer to a question ends here, what
    /// else there is (the roots changed, a call is not wanted any more) has no place in this revision. A request that is
    /// given up ends with its wait.
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

    /// Waits for the answer to a question that is about to be asked, which the backend knows by `key`.
    fn expect_input(&self, key: &str) -> (u64, RequestId, oneshot::Receiver<Message>) {
        let number = self.next_input.fetch_add(1, Ordering::Relaxed);
        let (tell, answer) = oneshot::channel();
        self.inputs.lock().insert(number, PendingInput { key: key.to_owned(), waiting: tell });
        (number, input_id(number), answer)
    }

    /// By which name the backend knows the question with this id.
    pub fn input_key(&self, id: &RequestId) -> Option<String> {
        Some(self.inputs.lock().get(&input_number(id)?)?.key.clone())
    }

    fn forget_input(&self, number: u64) {
        self.inputs.lock().remove(&number);
    }

    /// The client's capabilities in the words of this revision.
    fn capabilities(&self, declared: &[u8]) -> Bytes {
        let mut known = self.capabilities.lock();
        if let Some(told) = known.get(declared) {
            return told.clone();
        }
        let told = downgrade::client_capabilities(declared);
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

    /// A notification, as it is to be taken; `None`: it belongs to no stream of ours, or was taken already.
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

/// A request of the broker's own, as connections of earlier revisions take it.
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
        // There is no ping any more; what is always answered serves as well.
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

/// The same, on behalf of somebody whose client may be asked meanwhile.
pub(super) async fn ask_for(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
    method: Method,
    params: &[u8],
    asker: &Arc<dyn Asker>,
) -> Result<Message, Failure> {
    match method {
        // A state that is over has its outcome in it.
        Method::TasksResult => tasks::result(link, asker, params).await,
        _ => requests::ask(connection, link, method, Some(params), Some(asker)).await,
    }
}

fn uri_of(params: &[u8]) -> Option<String> {
    let document = Document::parse(params, &json::Limits::default()).ok()?;
    Some(document.root().get("uri")?.as_str()?.into_owned())
}

/// An answer of the connection itself.
fn done(agreed: bool) -> Result<Message, Failure> {
    let frame: &'static [u8] = match agreed {
        true => br#"{"jsonrpc":"2.0","id":0,"result":{}}"#,
        false => br#"{"jsonrpc":"2.0","id":0,"error":{"code":-32002,"message":"the backend does not tell updates of it"}}"#,
    };
    decoded(Bytes::from_static(frame))
        .ok_or_else(|| Failure::Protocol("an answer of ours".to_owned()))
}

/// A question's id, as if the backend had given it.
fn input_id(number: u64) -> RequestId {
    RequestId::from_raw(Bytes::from(format!("\"input-{number}\"")))
}

fn input_number(id: &RequestId) -> Option<u64> {
    std::str::from_utf8(id.raw()).ok()?.strip_prefix("\"input-")?.strip_suffix('"')?.parse().ok()
}

/// Whether a message is a result.
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
