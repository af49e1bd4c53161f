//! Stateless requests over HTTP (MCP 2026-07-28, Streamable HTTP): each POST is complete in itself.
//!
//! The body decides the revision of a request. The headers must then agree with it. A request lives
//! as long as the stream of its answer: a client that closes the stream cancels the request.

use std::{pin::pin, sync::Arc};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderName, Response, StatusCode};
use protocol::{
    envelope::{Kind, Message, RefusedMessage},
    error::{ErrorKind, Refusal},
    ids::RequestId,
    json::Limits,
    method::Method,
    stateless::{
        headers::{self, METHOD, NAME, PARAM_PREFIX, PROTOCOL_VERSION},
        request::RequestMeta,
        tool_headers::{self, ParamHeader},
    },
};
use rules::{client_transport::Transport, stateless};
use tokio::time::Instant;

use super::{
    connection_cache::MirroredValues,
    inbound_request::{InboundRequest, RequestSource},
    response::{self, Body, ServerResponse},
};
use crate::{
    auth::{unless_revoked, until_ended},
    listeners::{
        replicas::{
            proxied_request::ProxiedRequest, replica_headers, suspended_request::forward_suspended,
        },
        stateless::{StatelessOutcome, dispatch, read_meta, record_refused},
    },
    metrics::{Direction, Side},
    sessions::stateless::{
        StatelessClient, StatelessRequest, SuspensionId,
        exchange::{Exchange, ExchangeEvent},
        notification_stream::NotificationStream,
    },
};

// Parsed once: a text would be converted at every lookup.
const METHOD_HEADER: HeaderName = HeaderName::from_static(METHOD);
const NAME_HEADER: HeaderName = HeaderName::from_static(NAME);
const VERSION_HEADER: HeaderName = HeaderName::from_static(PROTOCOL_VERSION);

/// Result of parsing a body.
pub(super) enum ParsedBody {
    /// A stateless message.
    Stateless(Message),
    /// A message of a session, or one that opens a session.
    Session(Message),
    /// Possibly a batch, whose parsing depends on its session.
    Undecoded,
}

/// Parses a body once, for any revision. `names_it` is true if the head names this revision.
pub(super) fn parse_body(
    names_it: bool,
    frame: &Bytes,
    limits: &Limits,
) -> Result<ParsedBody, RefusedMessage> {
    let is_array = frame.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    if is_array {
        let none = || {
            RefusedMessage::new(
                Refusal::new(ErrorKind::InvalidRequest, "MCP 2026-07-28 does not allow batches"),
                None,
            )
        };
        return if names_it { Err(none()) } else { Ok(ParsedBody::Undecoded) };
    }
    let message = Message::decode(frame.clone(), limits)?;
    // The method of a message that opens a session is sufficient.
    let is_modern = message.is_stateless() || (names_it && message.method != Method::Initialize);
    Ok(if is_modern { ParsedBody::Stateless(message) } else { ParsedBody::Session(message) })
}

/// Serves one stateless message.
pub(super) async fn serve(
    inbound: &InboundRequest<'_>,
    message: Message,
    frame: &Bytes,
) -> Result<ServerResponse, RefusedMessage> {
    let id = message.id.clone();
    Ok(match answer_stateless(inbound, message, id.as_ref(), frame).await {
        Ok(answer) => answer,
        Err(refusal) => refused(inbound, &refusal, id.as_ref()).into(),
    })
}

/// Returns whether the headers must be compared. A forwarding replica has already compared them, or
/// its client's wire has none.
fn compares_headers(inbound: &InboundRequest<'_>) -> bool {
    !matches!(inbound.source, RequestSource::Replica)
}

async fn answer_stateless(
    inbound: &InboundRequest<'_>,
    message: Message,
    id: Option<&RequestId>,
    frame: &Bytes,
) -> Result<ServerResponse, Refusal> {
    // Over HTTP a client cancels a request by closing its stream, so notifications have no effect
    // (same section).
    if message.kind == Kind::Notification {
        inbound.tenant.take_notification_budget(&inbound.caller.principal)?;
        return Ok(response::empty(StatusCode::ACCEPTED).into());
    }
    let headers = &inbound.head.headers;
    let meta = checked_meta(inbound, &message)?;
    let mut request = StatelessRequest::read(message, meta)?;
    let client = inbound.broker.stateless_client_of(
        inbound.tenant.clone(),
        inbound.caller.clone(),
        inbound.endpoint.clone(),
        Transport::Http,
    );
    let known = &inbound.cache.validated_head;
    if compares_headers(inbound) && !known.mirrors(mirrored_values(&request.message)) {
        version_header(headers, &request.message)?;
        check_mirrored_headers(headers, &request.message)?;
        known.record_mirrored(mirrored_values(&request.message));
    }
    if request.message.method == Method::ToolsCall {
        request.passed = arguments_in_headers(inbound, &request.message, &client)?;
    }
    if !matches!(inbound.source, RequestSource::Replica) {
        // The replica of the client counts a forwarded request.
        inbound.broker.shared.metrics.stateless_request();
    }
    let method = request.message.method;
    match dispatch(inbound.broker, &client, request).await? {
        StatelessOutcome::Answer(frame) => {
            inbound.broker.shared.metrics.bytes(Direction::Out, Side::Client, frame.len());
            Ok(ServerResponse::Json { version: None, text: frame })
        }
        StatelessOutcome::Exchange(exchange) => Ok(exchange_response(exchange, inbound).await),
        StatelessOutcome::Notifications(listening) => {
            Ok(listen_response(*listening, inbound).into())
        }
        StatelessOutcome::OtherReplica(suspension) => {
            // Boxed, because it is rare and would enlarge the future of every call.
            let since = std::time::Instant::now();
            let response = Box::pin(forward_to_replica(inbound, &suspension, method, frame))
                .await
                .inspect_err(|refusal| record_refused(&client, frame, since, refusal.kind))?;
            let Some(id) = id.filter(|_| response::is_event_stream(response.headers())) else {
                return Ok(response.into());
            };
            let proxied = ProxiedRequest::new(&inbound.broker.shared, &client, id, response);
            Ok(proxied_response(proxied, inbound).into())
        }
    }
}

/// Returns the metadata of a request. Refuses members that are missing from the body first, and
/// other faults after the comparison with the headers.
fn checked_meta(inbound: &InboundRequest<'_>, message: &Message) -> Result<RequestMeta, Refusal> {
    let refusal = match read_meta(inbound.broker, message) {
        Ok(meta) => return Ok(meta),
        Err(refusal) => refusal,
    };
    let headers = &inbound.head.headers;
    let is_unknown_method = refusal.kind == ErrorKind::MethodNotFound;
    let is_in_headers = is_unknown_method || refusal.kind == ErrorKind::UnsupportedProtocolVersion;
    if compares_headers(inbound) && is_in_headers {
        version_header(headers, message)?;
        if is_unknown_method {
            check_repeated_header(headers, &METHOD_HEADER, &message.method_text(), "method")?;
        }
    }
    Err(refusal)
}

/// Compares the `Mcp-Param-*` headers with the arguments that the tool's schema maps to headers.
/// Returns the headers that it does not map.
fn arguments_in_headers(
    inbound: &InboundRequest<'_>,
    message: &Message,
    client: &StatelessClient,
) -> Result<HeaderMap, Refusal> {
    let headers = &inbound.head.headers;
    let tool = message.text(message.fields.name).unwrap_or_default();
    let catalog = client.visible_catalog();
    let params = catalog.param_headers(&client.endpoint, &tool);
    if compares_headers(inbound) {
        check_mirrored_arguments(headers, message, params)?;
    }
    Ok(unknown_param_headers(headers, params))
}

/// Forwards a request to the replica where it waits. A request of another replica was meant for an
/// earlier process at this address.
async fn forward_to_replica(
    inbound: &InboundRequest<'_>,
    suspension: &SuspensionId,
    method: Method,
    frame: &Bytes,
) -> Result<Response<Body>, Refusal> {
    if let RequestSource::Replica = inbound.source {
        return Ok(replica_headers::not_here_response(None));
    }
    forward_suspended(inbound, suspension, method, frame).await
}

fn refused(
    inbound: &InboundRequest<'_>,
    refusal: &Refusal,
    id: Option<&RequestId>,
) -> Response<Body> {
    let mut response = response::refusal_response(&inbound.broker.shared, refusal, id);
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

/// Checks that a header occurs once and repeats a member of the body.
fn check_repeated_header(
    headers: &HeaderMap,
    name: &HeaderName,
    body: &str,
    member: &str,
) -> Result<(), Refusal> {
    let mut given = headers.get_all(name).iter();
    let Some(value) = given.next() else {
        return Err(mismatch(format!("{name} is missing: it must repeat {member}")));
    };
    if given.next().is_some() {
        return Err(mismatch(format!("{name} is given more than once")));
    }
    match headers::value_matches(value.as_bytes(), body) {
        Ok(true) => Ok(()),
        Ok(false) => Err(mismatch(format!("{name} does not match {member}"))),
        Err(error) => Err(mismatch(format!("{name}: {error}"))),
    }
}

fn version_header(headers: &HeaderMap, message: &Message) -> Result<(), Refusal> {
    let version = message.text(message.fields.meta_protocol_version).unwrap_or_default();
    check_repeated_header(headers, &VERSION_HEADER, &version, "the revision in _meta")
}

/// Returns the values of the body that headers repeat, as sent: revision, method and name. The
/// method decides which member is the name.
fn mirrored_values(message: &Message) -> MirroredValues<'_> {
    let name = headers::named_value(message).and_then(|(span, _)| message.bytes(span));
    let version = message.bytes(message.fields.meta_protocol_version);
    [version, message.bytes(message.method_span), name]
}

/// Checks that `Mcp-Method` and `Mcp-Name` repeat the body.
fn check_mirrored_headers(headers: &HeaderMap, message: &Message) -> Result<(), Refusal> {
    check_repeated_header(headers, &METHOD_HEADER, &message.method_text(), "method")?;
    let Some((span, member)) = headers::named_value(message) else { return Ok(()) };
    let Some(name) = message.text(span) else {
        return Err(Refusal::new(ErrorKind::InvalidParams, format!("{member} must be a string")));
    };
    check_repeated_header(headers, &NAME_HEADER, &name, member)
}

/// Checks that the `Mcp-Param-*` headers repeat the arguments. The arguments are read once.
fn check_mirrored_arguments(
    given: &HeaderMap,
    message: &Message,
    params: &[ParamHeader],
) -> Result<(), Refusal> {
    let arguments = message.bytes(message.fields.arguments);
    for argument in tool_headers::mirrored_arguments(params, arguments) {
        let header = argument.param.header.as_str();
        let name = &header[PARAM_PREFIX.len()..];
        let mut values = given.get_all(header).iter();
        match (values.next(), argument.is_present) {
            (None, false) => {}
            (None, true) => {
                return Err(mismatch(format!(
                    "{PARAM_PREFIX}{name} is missing: it must repeat an argument"
                )));
            }
            (Some(_), false) => {
                return Err(mismatch(format!(
                    "{PARAM_PREFIX}{name} repeats an argument that the request does not have"
                )));
            }
            (Some(value), true)
                if values.next().is_none() && argument.matches(value.as_bytes()) => {}
            (Some(_), true) => {
                return Err(mismatch(format!("{PARAM_PREFIX}{name} does not match the argument")));
            }
        }
    }
    Ok(())
}

/// Returns the headers that the schema does not map. The backend checks them, because its schema
/// may be newer (same section: an intermediary forwards unknown headers).
fn unknown_param_headers(given: &HeaderMap, params: &[ParamHeader]) -> HeaderMap {
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

/// Returns the answer as JSON if it comes first and soon. Otherwise returns an event stream.
async fn exchange_response(
    mut exchange: Box<Exchange>,
    inbound: &InboundRequest<'_>,
) -> ServerResponse {
    let (cache, until) = (inbound.cache, inbound.until.clone());
    let shared = exchange.shared().clone();
    let keepalive = shared.config.events.keepalive;
    let first = {
        // Pinned here, so that the futures around it need only a pointer to it.
        let next = pin!(exchange.next());
        let first = unless_revoked(until.as_ref(), next);
        cache.with_deadline(Instant::now() + keepalive, first).await
    };
    let first = match first {
        Some(Some(ExchangeEvent::Answer(frame, code))) => {
            shared.metrics.bytes(Direction::Out, Side::Client, frame.len());
            let Some(status) = code.map(stateless::http_status) else {
                return ServerResponse::Json { version: None, text: frame };
            };
            return response::json(StatusCode::from_u16(status).unwrap_or(StatusCode::OK), frame)
                .into();
        }
        Some(Some(ExchangeEvent::Frame(frame))) => Some(frame),
        // Also after the revocation of the client's token.
        Some(Some(ExchangeEvent::Ended) | None) => {
            return response::json(StatusCode::OK, exchange.given_up()).into();
        }
        None => None,
    };
    exchange.detach();
    let observed = shared.clone();
    let steps = stream::unfold((Some(exchange), first), move |(exchange, first)| {
        let (shared, until) = (observed.clone(), until.clone());
        async move {
            let mut exchange = exchange?;
            let frame = match first {
                Some(frame) => frame,
                None => match until_ended(until.as_ref(), exchange.next()).await {
                    Some(ExchangeEvent::Frame(frame)) => frame,
                    Some(ExchangeEvent::Answer(frame, _)) => {
                        shared.metrics.bytes(Direction::Out, Side::Client, frame.len());
                        return Some((frame, (None, None)));
                    }
                    // Without its credential, the client gets an answer and nothing more.
                    Some(ExchangeEvent::Ended) | None => {
                        return Some((exchange.given_up(), (None, None)));
                    }
                },
            };
            shared.metrics.bytes(Direction::Out, Side::Client, frame.len());
            Some((frame, (Some(exchange), None)))
        }
    });
    response::frame_stream(&shared, cache.validated_head.unread_owner(), steps).into()
}

/// Returns the stream of a request that another replica serves. The stream ends with one answer, also
/// if the other replica or the client's credential ends before.
fn proxied_response(proxied: ProxiedRequest, inbound: &InboundRequest<'_>) -> Response<Body> {
    let (shared, until) = (inbound.broker.shared.clone(), inbound.until.clone());
    let observed = shared.clone();
    let steps = stream::unfold(Some(proxied), move |proxied| {
        let (shared, until) = (observed.clone(), until.clone());
        async move {
            let mut proxied = proxied?;
            let (frame, is_answer) = match until_ended(until.as_ref(), proxied.next()).await {
                Some(next) => next?,
                // Without its credential, the client gets an answer and nothing more.
                None => (proxied.given_up(), true),
            };
            shared.metrics.bytes(Direction::Out, Side::Client, frame.len());
            Some((frame, (!is_answer).then_some(proxied)))
        }
    });
    response::frame_stream(&shared, inbound.cache.validated_head.unread_owner(), steps)
}

fn listen_response(listening: NotificationStream, inbound: &InboundRequest<'_>) -> Response<Body> {
    let cache = inbound.cache;
    let shared: Arc<_> = listening.shared().clone();
    let observed = shared.clone();
    let first = Some((listening, inbound.until.clone()));
    let steps = stream::unfold(first, move |listening| {
        let shared = observed.clone();
        async move {
            let (mut listening, mut until) = listening?;
            let event = match until_ended(until.as_ref(), listening.next()).await {
                Some(event) => event,
                None => {
                    until = None;
                    listening.end();
                    listening.next().await
                }
            };
            let (frame, rest) = match event {
                ExchangeEvent::Frame(frame) => (frame, Some((listening, until))),
                ExchangeEvent::Answer(frame, _) => (frame, None),
                ExchangeEvent::Ended => return None,
            };
            shared.metrics.bytes(Direction::Out, Side::Client, frame.len());
            Some((frame, rest))
        }
    });
    response::frame_stream(&shared, cache.validated_head.unread_owner(), steps)
}
