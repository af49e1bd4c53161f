//! Requests that stand alone over HTTP (MCP 2026-07-28, Streamable HTTP): each POST says all there is to know.
//!
//! Which revision a request is in is decided by its body; headers must then agree with it. The stream of an answer is the
//! request's life: a client that closes it cancels the request.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderName, Response, StatusCode};
use protocol::{
    envelope::{Kind, Message, Rejection},
    error::{ErrorKind, Refusal},
    ids::RequestId,
    json::Limits,
    method::Method,
    stateless::{
        headers::{self, METHOD, NAME, PARAM_PREFIX, PROTOCOL_VERSION},
        tool_headers::ParamHeader,
    },
};
use tokio::time::Instant;

use super::{
    connection_cache::ConnectionCache,
    exchange::{InboundRequest, RequestSource},
    response::{self, Body, ServerResponse},
};
use crate::{
    actors::stateless::{
        RequestStateError, StatelessClient, StatelessRequest, SuspensionId,
        exchange::{Exchange, ExchangeEvent},
        notification_stream::NotificationStream,
    },
    broker::session_lookup,
    listeners::stateless::{StatelessOutcome, meta_of, react},
    metrics::{Direction, Side},
    rules::stateless,
};

const TRANSPORT: &str = "http";
// As headers, which text would become each time it is looked for.
const METHOD_HEADER: HeaderName = HeaderName::from_static(METHOD);
const NAME_HEADER: HeaderName = HeaderName::from_static(NAME);
const VERSION_HEADER: HeaderName = HeaderName::from_static(PROTOCOL_VERSION);

/// What a body turned out to be.
pub(super) enum ParsedBody {
    /// A message of this revision.
    Stateless(Message),
    /// One of a session, or one to open a session with.
    Session(Message),
    /// Maybe a batch: how it is read depends on its session.
    Undecoded,
}

/// Reads a body, once, whichever revision it is of; `names_it`: its head says that it is of this one.
pub(super) fn read(
    names_it: bool,
    frame: &Bytes,
    limits: &Limits,
) -> Result<ParsedBody, Rejection> {
    let is_array = frame.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    if is_array {
        let none = || {
            Rejection::new(
                Refusal::new(ErrorKind::InvalidRequest, "there are no batches in 2026-07-28"),
                None,
            )
        };
        return if names_it { Err(none()) } else { Ok(ParsedBody::Undecoded) };
    }
    let message = Message::decode(frame.clone(), limits)?;
    // What opens a session is told by itself.
    let is_modern = message.is_modern() || (names_it && message.method != Method::Initialize);
    Ok(if is_modern { ParsedBody::Stateless(message) } else { ParsedBody::Session(message) })
}

impl InboundRequest<'_> {
    /// Serves one message of this revision.
    pub(super) async fn serve_modern(
        &self,
        message: Message,
        frame: &Bytes,
    ) -> Result<ServerResponse, Rejection> {
        let id = message.id.clone();
        Ok(match self.modern_answer(message, frame).await {
            Ok(answer) => answer,
            Err(refusal) => refused(self, &refusal, id.as_ref()).into(),
        })
    }

    /// Another replica has compared the headers, or its client's wire has none.
    fn compares_headers(&self) -> bool {
        matches!(self.reach, RequestSource::Client(..))
    }

    async fn modern_answer(
        &self,
        message: Message,
        frame: &Bytes,
    ) -> Result<ServerResponse, Refusal> {
        // Over HTTP a request is cancelled by closing its stream, so that there is nothing to tell (same section).
        if message.kind == Kind::Notification {
            let visitor =
                self.broker.visitor(self.caller.clone(), self.endpoint.clone(), TRANSPORT)?;
            visitor.tenant.take_notification_budget(&visitor.caller.principal)?;
            return Ok(response::empty(StatusCode::ACCEPTED).into());
        }
        let headers = &self.head.headers;
        let meta = match meta_of(self.broker, &message) {
            // Of what the body lacks it is told first; of what it says, once the headers say the same.
            Err(refusal)
                if self.compares_headers()
                    && matches!(
                        refusal.kind,
                        ErrorKind::UnsupportedProtocolVersion | ErrorKind::MethodNotFound
                    ) =>
            {
                version_header(headers, &message)?;
                if refusal.kind == ErrorKind::MethodNotFound {
                    same(headers, &METHOD_HEADER, &message.method_text(), "method")?;
                }
                return Err(refusal);
            }
            meta => meta?,
        };
        let mut request = StatelessRequest::read(message, meta)?;
        let visitor = self.broker.visitor(self.caller.clone(), self.endpoint.clone(), TRANSPORT)?;
        if self.compares_headers() {
            version_header(headers, &request.message)?;
            mirrored(headers, &request.message)?;
        }
        if request.message.method == Method::ToolsCall {
            request.passed = self.arguments_in_headers(&request.message, &visitor)?;
        }
        match react(self.broker, &visitor, request).await? {
            StatelessOutcome::Answer(frame) => {
                self.broker.shared.metrics.bytes(Direction::Out, Side::Client, frame.len());
                Ok(ServerResponse::Json { version: None, text: frame })
            }
            StatelessOutcome::Exchange(exchange) => Ok(exchanged(exchange, self.kept).await),
            StatelessOutcome::Notifications(listening) => Ok(listened(*listening).into()),
            StatelessOutcome::OtherReplica(place) => {
                self.lead_to(&place, frame).await.map(ServerResponse::from)
            }
        }
    }

    /// `Mcp-Param-*` repeat the arguments that the tool's schema says. Gives those that it does not say.
    fn arguments_in_headers(
        &self,
        message: &Message,
        visitor: &StatelessClient,
    ) -> Result<HeaderMap, Refusal> {
        let headers = &self.head.headers;
        let tool = message.text(message.fields.name).unwrap_or_default();
        let catalog = visitor.tenant.catalog();
        let params = catalog.mirrored(&visitor.endpoint, &tool);
        if self.compares_headers() {
            mirrored_arguments(headers, message, params)?;
        }
        Ok(passed_on(headers, params))
    }

    /// The request waits at another replica. One that is gone has lost it.
    async fn lead_to(
        &self,
        place: &SuspensionId,
        frame: &Bytes,
    ) -> Result<Response<Body>, Refusal> {
        let gone = || RequestStateError::Expired.refusal();
        let RequestSource::Client(..) = self.reach else { return Err(gone()) };
        let owner = session_lookup::replica(self.broker, &place.node).await.ok_or_else(gone)?;
        self.send_to(&owner, frame).await.ok_or_else(gone)
    }
}

fn refused(
    asked: &InboundRequest<'_>,
    refusal: &Refusal,
    id: Option<&RequestId>,
) -> Response<Body> {
    let mut response = response::refusal(&asked.broker.shared, refusal, id);
    if refusal.kind == ErrorKind::ResourceNotFound {
        response = response::json(
            StatusCode::OK,
            stateless::refusal_response(refusal, id, &crate::request_id()),
        );
    }
    *response.status_mut() = StatusCode::from_u16(stateless::refusal_status(refusal))
        .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

fn mismatch(text: impl Into<String>) -> Refusal {
    Refusal::new(ErrorKind::HeaderMismatch, text)
}

/// A header of which there is at most one repeats what the body says.
fn same(headers: &HeaderMap, name: &HeaderName, body: &str, member: &str) -> Result<(), Refusal> {
    let mut given = headers.get_all(name).iter();
    let Some(value) = given.next() else {
        return Err(mismatch(format!("{name} is missing: it repeats {member}")));
    };
    if given.next().is_some() {
        return Err(mismatch(format!("{name} is given more than once")));
    }
    match headers::says(value.as_bytes(), body) {
        Ok(true) => Ok(()),
        Ok(false) => Err(mismatch(format!("{name} is not what {member} says"))),
        Err(error) => Err(mismatch(format!("{name}: {error}"))),
    }
}

fn version_header(headers: &HeaderMap, message: &Message) -> Result<(), Refusal> {
    let version = message.text(message.fields.meta_protocol_version).unwrap_or_default();
    same(headers, &VERSION_HEADER, &version, "the revision in _meta")
}

/// `Mcp-Method` and `Mcp-Name` repeat the body.
fn mirrored(headers: &HeaderMap, message: &Message) -> Result<(), Refusal> {
    same(headers, &METHOD_HEADER, &message.method_text(), "method")?;
    let Some((span, member)) = headers::named_value(message) else { return Ok(()) };
    let Some(name) = message.text(span) else {
        return Err(Refusal::new(ErrorKind::InvalidParams, format!("{member} must be a string")));
    };
    same(headers, &NAME_HEADER, &name, member)
}

fn mirrored_arguments(
    given: &HeaderMap,
    message: &Message,
    params: &[ParamHeader],
) -> Result<(), Refusal> {
    let arguments = message.bytes(message.fields.arguments);
    for param in params {
        let name = &param.header[PARAM_PREFIX.len()..];
        let mut values = given.get_all(param.header.as_str()).iter();
        match (values.next(), param.is_given(arguments)) {
            (None, false) => {}
            (None, true) => {
                return Err(mismatch(format!(
                    "{PARAM_PREFIX}{name} is missing: it repeats an argument"
                )));
            }
            (Some(_), false) => {
                return Err(mismatch(format!(
                    "{PARAM_PREFIX}{name} repeats an argument that is not there"
                )));
            }
            (Some(value), true)
                if values.next().is_none() && param.agrees(value.as_bytes(), arguments) => {}
            (Some(_), true) => {
                return Err(mismatch(format!(
                    "{PARAM_PREFIX}{name} is not what the argument says"
                )));
            }
        }
    }
    Ok(())
}

/// Those the schema does not say are the backend's to judge, whose schema may be newer (same section: who stands between forwards
/// what it does not know).
fn passed_on(given: &HeaderMap, params: &[ParamHeader]) -> HeaderMap {
    let is_param = |name: &HeaderName| name.as_str().starts_with(PARAM_PREFIX);
    if !given.keys().any(is_param) {
        return HeaderMap::new();
    }
    let is_known = |name: &HeaderName| {
        params.iter().any(|param| param.header.eq_ignore_ascii_case(name.as_str()))
    };
    let passed = given.iter().filter(|(name, _)| is_param(name) && !is_known(name));
    passed.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The answer as JSON where it is the first thing there is to say, and soon; as an event stream otherwise.
async fn exchanged(mut exchange: Box<Exchange>, kept: &ConnectionCache) -> ServerResponse {
    let shared = exchange.shared().clone();
    let keepalive = shared.config.events.keepalive;
    let first = match kept.in_time(Instant::now() + keepalive, exchange.next()).await {
        Some(ExchangeEvent::Answer(frame, code)) => {
            shared.metrics.bytes(Direction::Out, Side::Client, frame.len());
            let Some(status) = code.map(stateless::http_status) else {
                return ServerResponse::Json { version: None, text: frame };
            };
            return response::json(StatusCode::from_u16(status).unwrap_or(StatusCode::OK), frame)
                .into();
        }
        Some(ExchangeEvent::Frame(frame)) => Some(frame),
        Some(ExchangeEvent::Ended) => {
            return response::json(StatusCode::OK, exchange.given_up()).into();
        }
        None => None,
    };
    exchange.let_go();
    let steps = stream::unfold((Some(exchange), first), move |(exchange, first)| {
        let shared = shared.clone();
        async move {
            let mut exchange = exchange?;
            let frame = match first {
                Some(frame) => frame,
                None => match exchange.next().await {
                    ExchangeEvent::Frame(frame) => frame,
                    ExchangeEvent::Answer(frame, _) => {
                        shared.metrics.bytes(Direction::Out, Side::Client, frame.len());
                        return Some((frame, (None, None)));
                    }
                    ExchangeEvent::Ended => return Some((exchange.given_up(), (None, None))),
                },
            };
            shared.metrics.bytes(Direction::Out, Side::Client, frame.len());
            Some((frame, (Some(exchange), None)))
        }
    });
    response::frames(steps, keepalive).into()
}

fn listened(listening: NotificationStream) -> Response<Body> {
    let shared: Arc<_> = listening.shared().clone();
    let keepalive = shared.config.events.keepalive;
    let steps = stream::unfold(Some(listening), move |listening| {
        let shared = shared.clone();
        async move {
            let mut listening = listening?;
            let (frame, rest) = match listening.next().await {
                ExchangeEvent::Frame(frame) => (frame, Some(listening)),
                ExchangeEvent::Answer(frame, _) => (frame, None),
                ExchangeEvent::Ended => return None,
            };
            shared.metrics.bytes(Direction::Out, Side::Client, frame.len());
            Some((frame, rest))
        }
    });
    response::frames(steps, keepalive)
}
