//! Requests that stand alone over HTTP (MCP 2026-07-28, Streamable HTTP): each POST says all there is to know.
//!
//! Which revision a request is in is decided by its body; headers must then agree with it. The stream of an answer is the
//! request's life: a client that closes it cancels the request.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Response, StatusCode};
use memchr::memmem;
use protocol::{
    envelope::{Kind, Message, Rejected},
    error::{ErrorKind, Refusal},
    handshake,
    ids::RequestId,
    json::Limits,
    method::Method,
    modern::{
        META_PROTOCOL_VERSION,
        headers::{self, METHOD, NAME, PARAM_PREFIX, PROTOCOL_VERSION},
        is_request,
        request::{RequestMeta, unsupported_version},
    },
    version::Version,
};

use super::{
    answer::{self, Body},
    exchange::{Asked, Reach},
};
use crate::{
    actors::modern::{
        Request, StateError, Visitor,
        exchange::{Exchange, Step},
        list_kind,
        listening::Listening,
    },
    config::Compat,
    metrics::{Direction, Outcome, Side},
    placement,
    rules::{catalog::Catalog, modern, offer::Offer},
};

const TRANSPORT: &str = "http";

/// The message, if it is one of this revision. Most are not, and those are not read twice.
pub(super) fn read(headers: &HeaderMap, frame: &Bytes, limits: &Limits) -> Result<Option<Message>, Rejected> {
    let names_it = headers.get(PROTOCOL_VERSION).is_some_and(|version| version.as_bytes() == Version::V2026_07_28.as_str().as_bytes());
    let may_be = names_it || headers.contains_key(METHOD) || memmem::find(frame, META_PROTOCOL_VERSION.as_bytes()).is_some();
    let is_array = frame.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    if is_array && names_it {
        return Err(Rejected::new(Refusal::new(ErrorKind::InvalidRequest, "there are no batches in 2026-07-28"), None));
    }
    if is_array || !(may_be || has_modern_method(frame)) {
        return Ok(None);
    }
    let message = Message::decode(frame.clone(), limits)?;
    // What opens a session is told by itself.
    let is_modern = message.is_modern() || (names_it && message.method != Method::Initialize);
    Ok(is_modern.then_some(message))
}

/// Methods that no other revision has, in a request that lacks the rest.
fn has_modern_method(frame: &[u8]) -> bool {
    [Method::ServerDiscover, Method::SubscriptionsListen, Method::TasksUpdate]
        .iter()
        .any(|method| memmem::find(frame, method.name().as_bytes()).is_some())
}

/// What a client gets that wants to open a session where there are none.
pub(super) fn no_sessions(message: &Message) -> Refusal {
    let requested = message.bytes(message.params).and_then(|params| {
        let params: serde_json::Value = serde_json::from_slice(params).ok()?;
        Some(params.get("protocolVersion")?.as_str()?.to_owned())
    });
    unsupported_version(&requested.unwrap_or_default(), &[Version::V2026_07_28])
}

impl Asked<'_> {
    /// Serves one message of this revision.
    pub(super) async fn serve_modern(&self, message: Message, frame: &Bytes) -> Result<Response<Body>, Rejected> {
        let (id, shared) = (message.id.clone(), &self.broker.shared);
        let begun = std::time::Instant::now();
        let method = message.method;
        match self.modern_answer(message, frame).await {
            Ok(response) => Ok(response),
            Err(refusal) => {
                shared.metrics.request_finished(method, Outcome::Refused, TRANSPORT, begun.elapsed().as_secs_f64());
                Ok(refused(self, &refusal, id.as_ref()))
            }
        }
    }

    async fn modern_answer(&self, message: Message, frame: &Bytes) -> Result<Response<Body>, Refusal> {
        let compat = &self.broker.shared.config.compat;
        if !compat.eras.has_modern() {
            return Err(Refusal::new(ErrorKind::UnsupportedEra, "this endpoint speaks MCP up to 2025-11-25: open a session with initialize"));
        }
        match message.kind {
            Kind::Request => {}
            // Over HTTP a request is cancelled by closing its stream, so that there is nothing to tell (same section).
            Kind::Notification => return Ok(answer::empty(StatusCode::ACCEPTED)),
            Kind::Result | Kind::Error => {
                return Err(Refusal::new(ErrorKind::InvalidRequest, "in 2026-07-28 clients answer nothing: send the request again with inputResponses"));
            }
        }
        let request = self.admitted(message, compat)?;
        let visitor = self.broker.visitor(self.caller.clone(), self.endpoint.clone(), TRANSPORT)?;
        mirrored_arguments(&self.head.headers, &request.message, &visitor.tenant.catalog(), &visitor)?;
        self.broker.shared.metrics.version_negotiated(request.meta.version, Side::Client);
        let offer = self.broker.offer_to(&visitor).await?;
        self.dispatch(visitor, request, &offer, frame).await
    }

    /// The checks that need nothing but the request.
    fn admitted(&self, message: Message, compat: &Compat) -> Result<Request, Refusal> {
        let headers = &self.head.headers;
        let meta = RequestMeta::read(&message, compat.versions());
        // A revision that is not served is told first, if headers and body agree on it; what is missing from the body, too.
        let meta = match meta {
            Err(refusal) if refusal.kind == ErrorKind::UnsupportedProtocolVersion => {
                version_header(headers, &message)?;
                return Err(refusal);
            }
            meta => meta?,
        };
        version_header(headers, &message)?;
        mirrored(headers, &message)?;
        if !is_request(message.method) || is_about_tasks(message.method) {
            return Err(Refusal::new(ErrorKind::MethodNotFound, format!("{} is no method of 2026-07-28 that is served here", quoted(&message))));
        }
        Request::read(message, meta)
    }

    async fn dispatch(&self, visitor: Visitor, request: Request, offer: &Offer, frame: &Bytes) -> Result<Response<Body>, Refusal> {
        let method = request.message.method;
        if let Some(kind) = list_kind(method) {
            visitor.tenant.take_budget()?;
            let result = visitor.list(kind, &request.message, offer)?;
            return Ok(self.whole(method, handshake::success(&request.id, &result)));
        }
        match method {
            Method::ServerDiscover => {
                visitor.tenant.take_budget()?;
                Ok(self.whole(method, visitor.discover(&request.id, offer)))
            }
            Method::SubscriptionsListen => {
                visitor.tenant.take_budget()?;
                let listening = visitor.listen(&request, offer).await?;
                Ok(listened(listening))
            }
            _ => match request.message.text(request.message.fields.request_state) {
                Some(state) if protocol::modern::may_require_input(method) => {
                    let state = state.into_owned();
                    self.go_on(visitor, request, &state, offer, frame).await
                }
                _ => Ok(exchanged(visitor.begin(request, offer).await?).await),
            },
        }
    }

    /// The request waits somewhere for what its client brings now.
    async fn go_on(&self, visitor: Visitor, request: Request, state: &str, offer: &Offer, frame: &Bytes) -> Result<Response<Body>, Refusal> {
        let place = visitor.place_of(state, &request.message).map_err(StateError::refusal)?;
        let durable = &visitor.shared.durable;
        if durable.names().iter().any(|own| own.as_str() == place.node) {
            return Ok(exchanged(visitor.go_on(request, &place, offer).await?).await);
        }
        let gone = || StateError::Expired.refusal();
        let Reach::Edge(_) = self.reach else { return Err(gone()) };
        let owner = placement::replica(self.broker, &place.node).await.ok_or_else(gone)?;
        self.send_to(&owner, frame).await.ok_or_else(gone)
    }

    fn whole(&self, method: Method, frame: Bytes) -> Response<Body> {
        let metrics = &self.broker.shared.metrics;
        metrics.request_finished(method, Outcome::Ok, TRANSPORT, 0.0);
        metrics.bytes(Direction::Out, Side::Client, frame.len());
        answer::json(StatusCode::OK, frame)
    }
}

fn refused(asked: &Asked<'_>, refusal: &Refusal, id: Option<&RequestId>) -> Response<Body> {
    let mut response = answer::refusal(&asked.broker.shared, refusal, id);
    let request_id = crate::request_id();
    if refusal.kind == ErrorKind::ResourceNotFound {
        response = answer::json(StatusCode::OK, modern::refusal_response(refusal, id, &request_id));
    }
    *response.status_mut() = StatusCode::from_u16(modern::refusal_status(refusal)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

/// Tasks are an extension, which is not offered.
fn is_about_tasks(method: Method) -> bool {
    matches!(method, Method::TasksGet | Method::TasksUpdate | Method::TasksCancel)
}

fn quoted(message: &Message) -> String {
    protocol::json::quote(&message.method_text().chars().take(100).collect::<String>())
}

fn mismatch(text: impl Into<String>) -> Refusal {
    Refusal::new(ErrorKind::HeaderMismatch, text)
}

/// A header of which there is at most one, as text.
fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<std::borrow::Cow<'a, str>>, Refusal> {
    let mut given = headers.get_all(name).iter();
    let Some(value) = given.next() else { return Ok(None) };
    if given.next().is_some() {
        return Err(mismatch(format!("{name} is given more than once")));
    }
    headers::decode(value.as_bytes()).map(Some).map_err(|error| mismatch(format!("{name}: {error}")))
}

fn same(headers: &HeaderMap, name: &str, body: &str, member: &str) -> Result<(), Refusal> {
    match header(headers, name)? {
        None => Err(mismatch(format!("{name} is missing: it repeats {member}"))),
        Some(value) if value == body => Ok(()),
        Some(_) => Err(mismatch(format!("{name} is not what {member} says"))),
    }
}

fn version_header(headers: &HeaderMap, message: &Message) -> Result<(), Refusal> {
    let version = message.text(message.fields.meta_protocol_version).unwrap_or_default();
    same(headers, PROTOCOL_VERSION, &version, "the revision in _meta")
}

/// `Mcp-Method` and `Mcp-Name` repeat the body.
fn mirrored(headers: &HeaderMap, message: &Message) -> Result<(), Refusal> {
    same(headers, METHOD, &message.method_text(), "method")?;
    let Some((span, member)) = headers::named_value(message) else { return Ok(()) };
    let Some(name) = message.text(span) else {
        return Err(Refusal::new(ErrorKind::InvalidParams, format!("{member} must be a string")));
    };
    same(headers, NAME, &name, member)
}

/// `Mcp-Param-*` repeat the arguments that the tool's schema says.
fn mirrored_arguments(given: &HeaderMap, message: &Message, catalog: &Catalog, visitor: &Visitor) -> Result<(), Refusal> {
    if message.method != Method::ToolsCall {
        return Ok(());
    }
    let tool = message.text(message.fields.name).unwrap_or_default();
    let arguments = message.bytes(message.fields.arguments);
    for param in catalog.mirrored(&visitor.endpoint, &tool) {
        let name = &param.header[PARAM_PREFIX.len()..];
        let mut values = given.get_all(param.header.as_str()).iter();
        match (values.next(), param.is_given(arguments)) {
            (None, false) => {}
            (None, true) => return Err(mismatch(format!("{PARAM_PREFIX}{name} is missing: it repeats an argument"))),
            (Some(_), false) => return Err(mismatch(format!("{PARAM_PREFIX}{name} repeats an argument that is not there"))),
            (Some(value), true) if values.next().is_none() && param.agrees(value.as_bytes(), arguments) => {}
            (Some(_), true) => return Err(mismatch(format!("{PARAM_PREFIX}{name} is not what the argument says"))),
        }
    }
    Ok(())
}

/// The answer as JSON where it is the first thing there is to say, and soon; as an event stream otherwise.
async fn exchanged(mut exchange: Exchange) -> Response<Body> {
    let shared = exchange.shared().clone();
    let keepalive = shared.config.events.keepalive;
    let first = match tokio::time::timeout(keepalive, exchange.next()).await {
        Ok(Step::Answer(frame, code)) => {
            shared.metrics.bytes(Direction::Out, Side::Client, frame.len());
            let status = code.map_or(200, modern::http_status);
            return answer::json(StatusCode::from_u16(status).unwrap_or(StatusCode::OK), frame);
        }
        Ok(Step::Frame(frame)) => Some(frame),
        Ok(Step::Over) => return unanswered(&exchange),
        Err(_) => None,
    };
    let steps = stream::unfold((Some(exchange), first), move |(exchange, first)| {
        let shared = shared.clone();
        async move {
            let mut exchange = exchange?;
            let frame = match first {
                Some(frame) => frame,
                None => match exchange.next().await {
                    Step::Frame(frame) => frame,
                    Step::Answer(frame, _) => {
                        shared.metrics.bytes(Direction::Out, Side::Client, frame.len());
                        return Some((frame, (None, None)));
                    }
                    Step::Over => return None,
                },
            };
            shared.metrics.bytes(Direction::Out, Side::Client, frame.len());
            Some((frame, (Some(exchange), None)))
        }
    });
    answer::frames(steps, keepalive)
}

/// What stood in for a session ended under the request.
fn unanswered(exchange: &Exchange) -> Response<Body> {
    let refusal = Refusal::new(ErrorKind::OutcomeUnknown, "the request was given up: it may or may not have been carried out");
    answer::refusal(exchange.shared(), &refusal, Some(exchange.id()))
}

fn listened(listening: Listening) -> Response<Body> {
    let shared: Arc<_> = listening.shared().clone();
    let keepalive = shared.config.events.keepalive;
    let steps = stream::unfold(Some(listening), move |listening| {
        let shared = shared.clone();
        async move {
            let mut listening = listening?;
            let (frame, rest) = match listening.next().await {
                Step::Frame(frame) => (frame, Some(listening)),
                Step::Answer(frame, _) => (frame, None),
                Step::Over => return None,
            };
            shared.metrics.bytes(Direction::Out, Side::Client, frame.len());
            Some((frame, rest))
        }
    });
    answer::frames(steps, keepalive)
}
