//! One JSON-RPC message: its kind, and the spans of its parts in the sender's bytes.
//!
//! Listeners and links decode each message once, here. Policy, routing and forwarding all use the
//! same result, so they cannot disagree about a message. The peer that receives the forwarded
//! message must not disagree either. Therefore a member that the broker reads is refused if it
//! occurs twice, or in another letter case. Decoding is one scan without a tree, and copies nothing
//! but reference counts.

mod fields;
mod member_names;
mod reader;

use std::{
    borrow::Cow,
    ops::{Deref, DerefMut},
};

use bytes::Bytes;

use crate::error::{ErrorKind, Refusal};
use crate::ids::RequestId;
use crate::json::{self, JsonError, Limits, Span, Walker};
use crate::method::Method;
use crate::version::Batches;

pub use self::fields::Fields;
use self::reader::Envelope;

/// Longest JSON text of an id, and of a progress token of a client.
pub const ID_BYTES_MAX: usize = 1024;
/// Longest method name, quotes not counted.
pub const METHOD_BYTES_MAX: usize = 256;
/// Most messages in one batch.
pub const BATCH_MESSAGES_MAX: usize = 100;

/// Kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Has a method and an id.
    Request,
    /// Has a method and no id.
    Notification,
    /// Has a result.
    Result,
    /// Has an error.
    Error,
}

/// A decoded message. Its parts are on the heap, because messages are moved often.
#[derive(Debug, Clone)]
pub struct Message {
    /// The sender's bytes; all spans point into them.
    pub frame: Bytes,
    parts: Box<MessageParts>,
}

/// What decoding found in a message.
#[derive(Debug, Clone)]
pub struct MessageParts {
    /// Kind of the message.
    pub kind: Kind,
    /// Its id; absent for notifications and for errors about unreadable requests.
    pub id: Option<RequestId>,
    /// Span of the id.
    pub id_span: Option<Span>,
    /// The method, `Unknown` for responses.
    pub method: Method,
    /// Span of the method name, quotes included.
    pub method_span: Option<Span>,
    /// The params object.
    pub params: Option<Span>,
    /// The result object.
    pub result: Option<Span>,
    /// The error object.
    pub error: Option<Span>,
    /// Values inside params, result or error.
    pub fields: Fields,
}

impl Deref for Message {
    type Target = MessageParts;

    fn deref(&self) -> &MessageParts {
        &self.parts
    }
}

impl DerefMut for Message {
    fn deref_mut(&mut self) -> &mut MessageParts {
        &mut self.parts
    }
}

/// Prefix of the `_meta` members that only the broker and its direct peers exchange. It removes
/// those of a client before a backend sees them, and those of a backend before a client does.
pub const OWN_META: &str = "dev.mcp-broker/";

/// A text that is not an acceptable message.
#[derive(Debug, Clone, PartialEq)]
pub struct RefusedMessage {
    /// Refusal to answer with.
    pub refusal: Refusal,
    /// The id to answer to, when it could be read. An answer has none: its id is of a request of the
    /// receiver, and the sender may have a request with the same id.
    pub id: Option<RequestId>,
    /// The id of the receiver's request that the text answers. Set if it names no method.
    pub answers: Option<Box<RequestId>>,
    /// True for a request whose id could not be read.
    pub has_unreadable_id: bool,
}

/// Content of one body or frame.
#[derive(Debug, Clone)]
pub enum Body {
    /// One message.
    One(Message),
    /// A batch, each entry judged on its own.
    Batch(Vec<Result<Message, RefusedMessage>>),
}

impl Body {
    /// Returns whether the answer to the broker's request with this id is in the body.
    pub fn answers(&self, wire_id: u64) -> bool {
        match self {
            Self::One(message) => message.is_response_to(wire_id),
            Self::Batch(messages) => {
                messages.iter().flatten().any(|message| message.is_response_to(wire_id))
            }
        }
    }
}

/// Decodes a body. Arrays are batches where the revision has them (2025-03-26 only) and refused elsewhere.
pub fn decode_body(
    frame: Bytes,
    limits: &Limits,
    batches: Batches,
) -> Result<Body, RefusedMessage> {
    let first = frame.iter().find(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
    if first != Some(&b'[') {
        return Message::decode(frame, limits).map(Body::One);
    }
    let items = json::scan(&frame, limits, batch_items).map_err(RefusedMessage::from)?;
    if batches == Batches::Refused {
        return Err(RefusedMessage::invalid(
            "batches were removed in 2025-06-18, send one message at a time",
        ));
    }
    if items.is_empty() {
        return Err(RefusedMessage::invalid("a batch must not be empty"));
    }
    if items.len() > BATCH_MESSAGES_MAX {
        return Err(RefusedMessage::invalid(format!(
            "a batch may hold at most {BATCH_MESSAGES_MAX} messages"
        )));
    }
    Ok(Body::Batch(items.iter().map(|item| Message::decode(item.slice(&frame), limits)).collect()))
}

// One more than allowed is enough to refuse the batch.
fn batch_items(walker: &mut Walker<'_>) -> Vec<Span> {
    let mut items = Vec::new();
    walker.enter();
    while walker.next_item() {
        let item = walker.skip();
        if items.len() <= BATCH_MESSAGES_MAX {
            items.push(item);
        }
    }
    items
}

/// Refuses params or a result inside a message where readers would differ about its members, as
/// decoding does.
pub fn check_body(object: &[u8], limits: &Limits) -> Result<(), RefusedMessage> {
    let fault = json::scan(object, limits, |walker| {
        let mut envelope = Envelope::default();
        envelope.read_body(walker);
        envelope.fault
    })?;
    fault.map_or(Ok(()), |fault| Err(RefusedMessage::invalid(fault.to_string())))
}

impl Message {
    /// Decodes one message.
    pub fn decode(frame: Bytes, limits: &Limits) -> Result<Self, RefusedMessage> {
        let envelope = json::scan(&frame, limits, Envelope::read).map_err(RefusedMessage::from)?;
        envelope.judge(frame, limits)
    }

    /// Returns the JSON text of a part.
    pub fn bytes(&self, span: Option<Span>) -> Option<&[u8]> {
        span.map(|span| span.of(&self.frame))
    }

    /// Returns the text of a part that is a string.
    pub fn text(&self, span: Option<Span>) -> Option<Cow<'_, str>> {
        json::unquote(self.bytes(span)?)
    }

    /// Returns the method's name as sent; empty for responses.
    pub fn method_text(&self) -> Cow<'_, str> {
        self.text(self.method_span).unwrap_or_default()
    }

    /// Returns every span of the message that is known.
    pub(crate) fn spans_mut(&mut self) -> impl Iterator<Item = &mut Option<Span>> {
        let MessageParts { id_span, method_span, params, result, error, fields, .. } =
            &mut *self.parts;
        [id_span, method_span, params, result, error].into_iter().chain(fields.spans_mut())
    }

    /// Returns whether the message has the form of 2026-07-28, which needs no session.
    pub fn is_stateless(&self) -> bool {
        self.fields.meta_protocol_version.is_some()
            || matches!(
                self.method,
                Method::ServerDiscover | Method::SubscriptionsListen | Method::TasksUpdate
            )
    }

    /// Refuses a progress token that is neither a string nor an integer (MCP 2025-11-25, Progress),
    /// and one that is longer than an id: each notification about the request repeats it.
    pub fn check_progress_token(&self) -> Result<(), Refusal> {
        let Some(token) = self.bytes(self.fields.meta_progress_token) else { return Ok(()) };
        let digits = token.strip_prefix(b"-").unwrap_or(token);
        let is_typed = token.first() == Some(&b'"') || digits.iter().all(u8::is_ascii_digit);
        if is_typed && token.len() <= ID_BYTES_MAX {
            return Ok(());
        }
        let text = format!(
            "params._meta.progressToken must be a string or an integer, at most {ID_BYTES_MAX} bytes long"
        );
        Err(Refusal::new(ErrorKind::InvalidParams, text))
    }

    /// Returns whether this is the answer to the broker's request with this id.
    pub fn is_response_to(&self, wire_id: u64) -> bool {
        self.is_response() && self.id.as_ref().and_then(RequestId::as_wire_id) == Some(wire_id)
    }

    /// Returns whether the message answers a request.
    pub fn is_response(&self) -> bool {
        matches!(self.kind, Kind::Result | Kind::Error)
    }
}

impl RefusedMessage {
    fn invalid(message: impl Into<String>) -> Self {
        Self::new(Refusal::new(ErrorKind::InvalidRequest, message), None)
    }

    /// Creates a refusal of a message whose envelope is fine otherwise.
    pub fn new(refusal: Refusal, id: Option<RequestId>) -> Self {
        Self { refusal, id, answers: None, has_unreadable_id: false }
    }
}

impl From<JsonError> for RefusedMessage {
    fn from(error: JsonError) -> Self {
        Self::new(Refusal::from(error), None)
    }
}
