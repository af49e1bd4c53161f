//! Requests to a stateless backend. Each names its client in `_meta`, and over HTTP repeats its
//! target in headers (MCP 2026-07-28, Streamable HTTP). The broker creates both for every hop, with
//! the backend's own names.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use protocol::{
    envelope::{Kind, Message},
    handshake,
    ids::RequestId,
    json::{self, Span},
    method::Method,
    stateless::{
        UNSUPPORTED_PROTOCOL_VERSION, downgrade, headers,
        request::meta_members,
        results::ResultType,
        tool_headers::{MirroredArgument, mirrored_arguments},
    },
    version::Version,
};
use rules::{catalog::ListKind, log_level::LogLevel, tasks::decoded};

use crate::backends::link::{
    Era, Link,
    connection::{
        Connection,
        requester::{ClientIdentity, Requester},
    },
    failure::Failure,
    request::{BackendRequest, WireRequest},
    wire::WireSender,
};

/// The client of a request.
pub(super) struct RequestIdentity {
    capabilities: Bytes,
    info: Bytes,
    level: Option<LogLevel>,
}

impl RequestIdentity {
    /// Returns the identity of the client behind a call or a task: its capabilities, name and log
    /// level.
    pub(super) fn of(connection: &Connection, requester: &Arc<dyn Requester>) -> Self {
        let ClientIdentity { capabilities, info, log_level } = requester.identity();
        let info = info.unwrap_or(Bytes::from_static(rules::endpoint_info::BROKER_INFO.as_bytes()));
        let logs = connection.negotiated().is_some_and(|agreed| agreed.capabilities.logging);
        Self {
            capabilities: sent_capabilities(connection, capabilities),
            info,
            level: log_level.filter(|_| logs),
        }
    }

    /// Returns the identity of the broker, for the clients behind a link.
    pub(super) fn broker(connection: &Connection, link: &Link) -> Self {
        let info = Bytes::from_static(rules::endpoint_info::BROKER_INFO.as_bytes());
        Self { capabilities: sent_capabilities(connection, link.declared.raw()), info, level: None }
    }

    pub(super) fn meta(&self) -> Vec<(&'static str, Cow<'_, [u8]>)> {
        meta_members(&self.capabilities, Some(&self.info), self.level.map(LogLevel::name))
    }
}

fn sent_capabilities(connection: &Connection, declared: &[u8]) -> Bytes {
    match connection.stateless() {
        Some(stateless) => stateless.capabilities(declared),
        None => downgrade::upgrade_client_capabilities(declared),
    }
}

/// Sends `server/discover`. The answer shows the era and the capabilities of the backend.
pub(super) async fn probe(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
) -> Result<Message, Failure> {
    let request = broker_request(
        connection,
        link,
        Method::ServerDiscover,
        None,
        &RequestIdentity::broker(connection, link),
        None,
    );
    let answer = connection.send_and_wait(link, request).await?;
    connection.record_first_answer(&answer);
    Ok(answer)
}

/// Sends a request of the broker, on behalf of `requester` if there is one. The answer is a
/// complete result or an error, as the backend wrote it.
pub(super) async fn send_of_broker(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
    method: Method,
    params: Option<&[u8]>,
    requester: Option<&Arc<dyn Requester>>,
) -> Result<Message, Failure> {
    let identity = requester.map_or_else(
        || RequestIdentity::broker(connection, link),
        |requester| RequestIdentity::of(connection, requester),
    );
    let answer =
        send(connection, link, broker_request(connection, link, method, params, &identity, None))
            .await?;
    if downgrade::error_code(&answer) == Some(UNSUPPORTED_PROTOCOL_VERSION) {
        return Err(end_outdated_era(connection, link));
    }
    match ResultType::of(&answer) {
        ResultType::Complete => Ok(answer),
        other if is_result(&answer) => Err(Failure::Protocol(format!(
            "the backend returned a result of type {} for {}",
            other.name(),
            method.name()
        ))),
        _ => Ok(answer),
    }
}

/// Closes a connection whose revision the backend no longer supports. The next connection
/// negotiates the era again. The backend did not process the request.
pub(super) fn end_outdated_era(connection: &Connection, link: &Arc<Link>) -> Failure {
    connection.close_forgotten();
    link.backend.on_era_changed(link);
    Failure::SessionGone
}

/// Builds a request of the broker with these params and this identity. `requester` gets its
/// progress.
pub(super) fn broker_request<'a>(
    connection: &Connection,
    link: &Link,
    method: Method,
    params: Option<&[u8]>,
    identity: &RequestIdentity,
    requester: Option<&'a Arc<dyn Requester>>,
) -> WireRequest<'a> {
    let wire_id = connection.next_wire_id();
    let members: Vec<u8> = identity.meta().iter().fold(Vec::new(), |mut out, (key, value)| {
        out.extend_from_slice(if out.is_empty() { b"" } else { b"," });
        out.extend_from_slice(json::quote(key).as_bytes());
        out.push(b':');
        out.extend_from_slice(value);
        out
    });
    let mark = match method == Method::ServerDiscover || ListKind::of_method(method).is_some() {
        true => format!(",{}", link.backend.mark.member()),
        false => String::new(),
    };
    let rest = params
        .map_or(&b""[..], |params| params.trim_ascii().strip_prefix(b"{").unwrap_or_default());
    let rest = rest.trim_ascii_start();
    let comma: &[u8] = if rest.is_empty() || rest.starts_with(b"}") { b"" } else { b"," };
    let rest = if rest.is_empty() { b"}" } else { rest };
    let params = [b"{\"_meta\":{", members.as_slice(), mark.as_bytes(), b"}", comma, rest].concat();
    let frame = handshake::request(&RequestId::from_u64(wire_id), method, Some(&params));
    let headers = is_http(connection).then(|| {
        let message = decoded(frame.clone());
        let named =
            message.as_ref().and_then(|message| Some((message, headers::named_value(message)?.0)));
        let name = named.and_then(|(message, span)| message.text(span).map(Cow::into_owned));
        header_map(link, method, name.as_deref(), None, HeaderMap::new())
    });
    WireRequest { requester, headers, ..WireRequest::new(wire_id, frame.into()) }
}

pub(super) fn is_http(connection: &Connection) -> bool {
    matches!(connection.wire(), WireSender::Http(_))
}

/// Builds the headers of a call. Their values equal those in the body after the edits.
pub(super) fn call_headers(link: &Link, outgoing: &BackendRequest<'_>) -> Box<HeaderMap> {
    let message = outgoing.message;
    let sent = |span: Span| {
        let edited = outgoing
            .edits
            .iter()
            .find(|(edited, _)| *edited == span)
            .map(|(_, text)| text.as_slice());
        json::unquote(edited.unwrap_or_else(|| span.of(&message.frame))).map(Cow::into_owned)
    };
    let name = headers::named_value(message).and_then(|(span, _)| sent(span?));
    let mut passed = outgoing.requester.forwarded_headers();
    // A header that the operator configured overrides the client's.
    for name in link.backend.spec.credentials.headers.keys() {
        passed.remove(name.as_str());
    }
    header_map(
        link,
        message.method,
        name.as_deref(),
        rules::routing::sent_arguments(message, outgoing.edits),
        passed,
    )
}

/// Builds the headers. Headers of the broker replace forwarded ones.
fn header_map(
    link: &Link,
    method: Method,
    name: Option<&str>,
    arguments: Option<&[u8]>,
    forwarded: HeaderMap,
) -> Box<HeaderMap> {
    let mut map = Box::new(forwarded);
    map.reserve(8);
    map.insert(
        HeaderName::from_static(headers::PROTOCOL_VERSION),
        HeaderValue::from_static(Version::V2026_07_28.as_str()),
    );
    map.insert(HeaderName::from_static(headers::METHOD), HeaderValue::from_static(method.name()));
    let Some(name) = name else { return map };
    if let Ok(value) = HeaderValue::from_str(&headers::encode(name)) {
        map.insert(HeaderName::from_static(headers::NAME), value);
    }
    if method == Method::ToolsCall {
        let params = link.backend.param_headers.of(name);
        for argument in mirrored_arguments(&params, arguments) {
            insert_param(&mut map, &argument);
        }
    }
    map
}

fn insert_param(map: &mut HeaderMap, argument: &MirroredArgument<'_>) {
    let header = argument.param.header.as_str();
    let Some(text) = &argument.text else {
        map.remove(header);
        return;
    };
    if let (Ok(name), Ok(value)) =
        (HeaderName::from_bytes(header.as_bytes()), HeaderValue::from_str(&headers::encode(text)))
    {
        map.insert(name, value);
    }
}

/// Sends a request and waits for its answer. Dropping the wait cancels the request at the backend
/// (MCP 2026-07-28, Cancellation). Over HTTP, it closes the response. Over a pipe, it sends a
/// notification.
pub(super) async fn send(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
    request: WireRequest<'_>,
) -> Result<Message, Failure> {
    let mut unanswered = RequestCancelGuard { connection, wire_id: request.wire_id };
    let answer = connection.send_and_wait(link, request).await;
    unanswered.wire_id = 0;
    answer
}

/// Translates the answer for its requester: to the form of earlier revisions, unless its client is
/// one of 2026-07-28.
pub(super) fn for_the_requester(
    answer: &Message,
    method: Method,
    requester: &Arc<dyn Requester>,
) -> Result<Message, Failure> {
    let frame = match requester.client_era() {
        Era::Sessions => downgrade::downgrade_answer(answer, method),
        Era::Stateless => downgrade::stateless_answer(answer, method),
    };
    decoded(frame).ok_or_else(|| {
        Failure::Protocol("the broker could not convert the backend's answer".to_owned())
    })
}

/// Returns whether a message is a result.
pub(super) fn is_result(message: &Message) -> bool {
    message.kind == Kind::Result
}

struct RequestCancelGuard<'a> {
    connection: &'a Connection,
    /// Wire id to cancel. 0 once the answer has come.
    wire_id: u64,
}

impl Drop for RequestCancelGuard<'_> {
    fn drop(&mut self) {
        if self.wire_id != 0 && !is_http(self.connection) {
            let params = format!("{{\"requestId\":{}}}", self.wire_id);
            self.connection
                .push_frame(handshake::notification(Method::Cancelled, Some(params.as_bytes())));
        }
    }
}
