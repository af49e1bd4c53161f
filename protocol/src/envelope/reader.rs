//! One scan over a message: what is where, and whether every reader finds the same.

use bytes::Bytes;

use super::{
    ID_BYTES_MAX, Kind, METHOD_BYTES_MAX, Message, MessageParts, OWN_META, RefusedMessage,
    fields::Fields,
    member_names::{self, BODY, ENVELOPE, ERROR, META, NOTIFICATIONS, REFERENCE, TASK},
};
use crate::{
    error::{ErrorKind, Refusal},
    ids::RequestId,
    json::{Limits, MemberFault, NameIndex, Seen, Span, ValueKind, Walker},
    method::Method,
};

/// Result of the scan, before anything is judged: the order of members must not matter.
pub(super) struct Envelope {
    is_object: bool,
    jsonrpc: Option<Span>,
    params: Option<ValueKind>,
    result: Option<ValueKind>,
    error: Option<ValueKind>,
    /// The spans that the scan found. The rest of the message is judged.
    parts: Box<MessageParts>,
    pub(super) fault: Option<MemberFault>,
}

impl Default for Envelope {
    fn default() -> Self {
        let parts = Box::new(MessageParts {
            kind: Kind::Notification,
            id: None,
            id_span: None,
            method: Method::Unknown,
            method_span: None,
            params: None,
            result: None,
            error: None,
            fields: Fields::default(),
        });
        Self {
            is_object: false,
            jsonrpc: None,
            params: None,
            result: None,
            error: None,
            parts,
            fault: None,
        }
    }
}

impl Envelope {
    pub(super) fn read(walker: &mut Walker<'_>) -> Self {
        let mut envelope =
            Self { is_object: walker.kind() == ValueKind::Object, ..Self::default() };
        let mut seen = Seen::default();
        object(walker, |walker, key| envelope.read_member(walker, key, &mut seen));
        envelope.parts.fields.has_uri_key = walker.has_uri_key();
        envelope
    }

    fn read_member(&mut self, walker: &mut Walker<'_>, key: &[u8], seen: &mut Seen) {
        let kind = walker.kind();
        match key {
            b"jsonrpc" => set(&mut self.jsonrpc, walker.skip(), "jsonrpc", &mut self.fault),
            b"id" => set(&mut self.parts.id_span, walker.skip(), "id", &mut self.fault),
            b"method" => set(&mut self.parts.method_span, walker.skip(), "method", &mut self.fault),
            b"params" => {
                let span = self.read_body(walker);
                self.params = Some(kind);
                set(&mut self.parts.params, span, "params", &mut self.fault);
            }
            b"result" => {
                let span = self.read_body(walker);
                self.result = Some(kind);
                set(&mut self.parts.result, span, "result", &mut self.fault);
            }
            b"error" => {
                let span = self.read_error(walker);
                self.error = Some(kind);
                set(&mut self.parts.error, span, "error", &mut self.fault);
            }
            _ => other(walker, key, &ENVELOPE, seen, &mut self.fault),
        }
    }

    /// Reads params or result.
    pub(super) fn read_body(&mut self, walker: &mut Walker<'_>) -> Span {
        let (fields, fault, mut seen) = (&mut self.parts.fields, &mut self.fault, Seen::default());
        object(walker, |walker, key| match key {
            b"name" => set(&mut fields.name, walker.skip(), "name", fault),
            b"uri" => set(&mut fields.uri, walker.skip(), "uri", fault),
            b"cursor" => set(&mut fields.cursor, walker.skip(), "cursor", fault),
            b"level" => set(&mut fields.level, walker.skip(), "level", fault),
            b"requestId" => set(&mut fields.request_id, walker.skip(), "requestId", fault),
            b"progressToken" => {
                set(&mut fields.progress_token, walker.skip(), "progressToken", fault)
            }
            b"progress" => set(&mut fields.progress, walker.skip(), "progress", fault),
            b"taskId" => set(&mut fields.task_id, walker.skip(), "taskId", fault),
            b"arguments" => set(&mut fields.arguments, walker.skip(), "arguments", fault),
            b"status" => set(&mut fields.status, walker.skip(), "status", fault),
            b"mode" => set(&mut fields.mode, walker.skip(), "mode", fault),
            b"elicitationId" => {
                set(&mut fields.elicitation_id, walker.skip(), "elicitationId", fault)
            }
            b"resultType" => set(&mut fields.result_type, walker.skip(), "resultType", fault),
            b"ttlMs" => set(&mut fields.ttl_ms, walker.skip(), "ttlMs", fault),
            b"cacheScope" => set(&mut fields.cache_scope, walker.skip(), "cacheScope", fault),
            b"requestState" => set(&mut fields.request_state, walker.skip(), "requestState", fault),
            b"inputResponses" => {
                set(&mut fields.input_responses, walker.skip(), "inputResponses", fault)
            }
            b"isError" => set(&mut fields.is_error, walker.skip(), "isError", fault),
            b"notifications" => set(
                &mut fields.notifications,
                named(walker, &NOTIFICATIONS, fault),
                "notifications",
                fault,
            ),
            b"task" => {
                let span = task_reference(walker, &mut fields.task_task_id, "task.taskId", fault);
                set(&mut fields.task, span, "task", fault);
            }
            b"ref" => {
                let span = completion_reference(walker, fields, fault);
                set(&mut fields.reference, span, "ref", fault);
            }
            b"_meta" => {
                let span = meta(walker, fields, fault);
                set(&mut fields.meta, span, "_meta", fault);
            }
            _ => {
                record(BODY.admit(key, &mut seen), fault);
                match member_names::inside(key) {
                    Some(names) => named(walker, names, fault),
                    None => walker.skip(),
                };
            }
        })
    }

    fn read_error(&mut self, walker: &mut Walker<'_>) -> Span {
        let (fields, fault, mut seen) = (&mut self.parts.fields, &mut self.fault, Seen::default());
        object(walker, |walker, key| match key {
            b"code" => set(&mut fields.error_code, walker.skip(), "error.code", fault),
            b"message" => set(&mut fields.error_message, walker.skip(), "error.message", fault),
            b"data" => set(&mut fields.error_data, walker.skip(), "error.data", fault),
            _ => other(walker, key, &ERROR, &mut seen, fault),
        })
    }

    /// Turns the found parts into a message, or returns the refusal. `limits` are those of the scan.
    pub(super) fn judge(
        mut self,
        frame: Bytes,
        limits: &Limits,
    ) -> Result<Message, RefusedMessage> {
        let id = self
            .parts
            .id_span
            .filter(|span| is_request_id(span.of(&frame)))
            .map(|span| RequestId::from_raw(span.slice(&frame)));
        let kind = match self.problem(&frame, id.is_some()) {
            Ok(kind) => kind,
            Err(problem) => {
                if let Some(rest) = self.without_null(&frame) {
                    return Message::decode(rest, limits);
                }
                let refusal = Refusal::new(ErrorKind::InvalidRequest, problem);
                let has_method = self.parts.method_span.is_some();
                let answers = id.clone().filter(|_| !has_method).map(Box::new);
                let has_unreadable_id = has_method && id.is_none() && self.parts.id_span.is_some();
                let is_answer =
                    answers.is_some() && (self.result.is_some() || self.error.is_some());
                let id = id.filter(|_| !is_answer);
                return Err(RefusedMessage { refusal, id, answers, has_unreadable_id });
            }
        };
        let parts = &mut *self.parts;
        parts.kind = kind;
        parts.method =
            parts.method_span.map_or(Method::Unknown, |span| Method::from_json(span.of(&frame)));
        parts.id_span = parts.id_span.filter(|_| id.is_some());
        parts.id = id;
        Ok(Message { frame, parts: self.parts })
    }

    fn problem(&self, frame: &[u8], id_readable: bool) -> Result<Kind, String> {
        if !self.is_object {
            return Err("a message must be a JSON object".into());
        }
        if let Some(fault) = self.fault {
            return Err(fault.to_string());
        }
        if self.jsonrpc.is_none_or(|span| span.of(frame) != b"\"2.0\"") {
            return Err("member `jsonrpc` must be the string \"2.0\"".into());
        }
        let null_id = self.parts.id_span.is_some_and(|span| span.of(frame) == b"null");
        // JSON-RPC 2.0: an error about a request whose id could not be read carries `null`; MCP
        // 2025-11-25 omits it.
        let unanswerable = self.error.is_some() && (self.parts.id_span.is_none() || null_id);
        if self.parts.id_span.is_some() && !id_readable && !unanswerable {
            return Err(format!(
                "member `id` must be a string or an integer of at most 64 bits, at most {ID_BYTES_MAX} bytes long"
            ));
        }
        // The fields of `params` would be read in addition to those of the result.
        if self.parts.method_span.is_none() && self.params.is_some() {
            return Err("a response has no `params`".into());
        }
        match (self.parts.method_span, self.result, self.error) {
            (Some(method), None, None) => self.call_problem(method.of(frame)),
            (None, Some(kind), None) => {
                if self.parts.id_span.is_none() {
                    return Err("a result needs an `id`".into());
                }
                if kind != ValueKind::Object {
                    return Err("member `result` must be an object".into());
                }
                Ok(Kind::Result)
            }
            (None, None, Some(kind)) => self.error_problem(frame, kind),
            (None, None, None) => {
                Err("a message needs one of `method`, `result` and `error`".into())
            }
            _ => Err("a message has only one of `method`, `result` and `error`".into()),
        }
    }

    /// Returns the frame of a response without a member that is `null`. Some serialisers write
    /// `error` as `null` next to a result, or `result` next to an error. Receivers disagree about such
    /// a frame, so no receiver gets the member.
    fn without_null(&self, frame: &[u8]) -> Option<Bytes> {
        if self.fault.is_some() || self.parts.method_span.is_some() {
            return None;
        }
        match (self.result?, self.error?) {
            (ValueKind::Null, ValueKind::Null) => None,
            (_, ValueKind::Null) => without_member(frame, self.parts.error?),
            (ValueKind::Null, _) => without_member(frame, self.parts.result?),
            _ => None,
        }
    }

    fn call_problem(&self, method: &[u8]) -> Result<Kind, String> {
        if method.first() != Some(&b'"') {
            return Err("member `method` must be a string".into());
        }
        if method.len() > METHOD_BYTES_MAX + 2 {
            return Err(format!("member `method` must be at most {METHOD_BYTES_MAX} bytes long"));
        }
        if self.params.is_some_and(|kind| kind != ValueKind::Object) {
            return Err("member `params` must be an object".into());
        }
        Ok(if self.parts.id_span.is_some() { Kind::Request } else { Kind::Notification })
    }

    fn error_problem(&self, frame: &[u8], kind: ValueKind) -> Result<Kind, String> {
        let code = self.parts.fields.error_code.map(|span| span.of(frame));
        let message = self.parts.fields.error_message.map(|span| span.of(frame));
        let well_formed =
            code.is_some_and(is_integer) && message.is_some_and(|text| text.first() == Some(&b'"'));
        if kind != ValueKind::Object || !well_formed {
            return Err(
                "member `error` must be an object with an integer `code` and a string `message`"
                    .into(),
            );
        }
        Ok(Kind::Error)
    }
}

/// Offers each member of the object under the cursor to `on_member`, which must pass over the value.
fn each_member(walker: &mut Walker<'_>, mut on_member: impl FnMut(&mut Walker<'_>, &[u8])) -> Span {
    let start = walker.start();
    walker.enter();
    while let Some(key) = walker.next_key() {
        on_member(walker, &key.bytes());
    }
    Span { start, end: walker.end() }
}

/// As `each_member`, but a value that is not an object is passed over whole.
fn object(walker: &mut Walker<'_>, on_member: impl FnMut(&mut Walker<'_>, &[u8])) -> Span {
    if walker.kind() != ValueKind::Object {
        return walker.skip();
    }
    each_member(walker, on_member)
}

fn set<T>(slot: &mut Option<T>, value: T, name: &'static str, fault: &mut Option<MemberFault>) {
    if slot.replace(value).is_some() {
        fault.get_or_insert(MemberFault::Duplicate(name));
    }
}

/// Passes over a member that is not kept here, and notes it where readers would differ about it.
#[inline]
fn other(
    walker: &mut Walker<'_>,
    key: &[u8],
    known: &NameIndex,
    seen: &mut Seen,
    fault: &mut Option<MemberFault>,
) {
    record(known.admit(key, seen), fault);
    walker.skip();
}

fn record(admitted: Result<(), MemberFault>, fault: &mut Option<MemberFault>) {
    if let Err(found) = admitted {
        fault.get_or_insert(found);
    }
}

/// Passes over an object of which nothing is kept. Only its names are checked against the table.
fn named(walker: &mut Walker<'_>, known: &NameIndex, fault: &mut Option<MemberFault>) -> Span {
    let mut seen = Seen::default();
    object(walker, |walker, key| other(walker, key, known, &mut seen, fault))
}

fn task_reference(
    walker: &mut Walker<'_>,
    task_id: &mut Option<Span>,
    name: &'static str,
    fault: &mut Option<MemberFault>,
) -> Span {
    let mut seen = Seen::default();
    object(walker, |walker, key| match key {
        b"taskId" => set(task_id, walker.skip(), name, fault),
        _ => other(walker, key, &TASK, &mut seen, fault),
    })
}

fn completion_reference(
    walker: &mut Walker<'_>,
    fields: &mut Fields,
    fault: &mut Option<MemberFault>,
) -> Span {
    let mut seen = Seen::default();
    object(walker, |walker, key| match key {
        b"type" => set(&mut fields.reference_type, walker.skip(), "ref.type", fault),
        b"name" => set(&mut fields.reference_name, walker.skip(), "ref.name", fault),
        b"uri" => set(&mut fields.reference_uri, walker.skip(), "ref.uri", fault),
        _ => other(walker, key, &REFERENCE, &mut seen, fault),
    })
}

fn meta(walker: &mut Walker<'_>, fields: &mut Fields, fault: &mut Option<MemberFault>) -> Span {
    let (mut related_task, mut seen) = (None, Seen::default());
    object(walker, |walker, key| {
        if let Some((slot, name)) = hop_meta(fields, key) {
            return set(slot, walker.skip(), name, fault);
        }
        fields.meta_has_more = true;
        match key {
            b"progressToken" => {
                set(&mut fields.meta_progress_token, walker.skip(), "_meta.progressToken", fault)
            }
            b"traceparent" => {
                set(&mut fields.meta_traceparent, walker.skip(), "_meta.traceparent", fault)
            }
            b"tracestate" => {
                set(&mut fields.meta_tracestate, walker.skip(), "_meta.tracestate", fault)
            }
            b"baggage" => set(&mut fields.meta_baggage, walker.skip(), "_meta.baggage", fault),
            b"dev.mcp-broker/token" => {
                fields.meta_has_own = true;
                set(
                    &mut fields.meta_token,
                    walker.skip(),
                    "_meta[\"dev.mcp-broker/token\"]",
                    fault,
                );
            }
            b"io.modelcontextprotocol/related-task" => {
                let name = "_meta[\"io.modelcontextprotocol/related-task\"].taskId";
                let span = task_reference(walker, &mut fields.meta_related_task_id, name, fault);
                set(
                    &mut related_task,
                    span,
                    "_meta[\"io.modelcontextprotocol/related-task\"]",
                    fault,
                );
            }
            key => {
                fields.meta_has_own |= key.starts_with(OWN_META.as_bytes());
                other(walker, key, &META, &mut seen, fault);
            }
        }
    })
}

/// Returns the span and the name of a member that only two neighbours exchange
/// ([`crate::stateless::HOP_META`]).
fn hop_meta<'a>(
    fields: &'a mut Fields,
    key: &[u8],
) -> Option<(&'a mut Option<Span>, &'static str)> {
    Some(match key.strip_prefix(b"io.modelcontextprotocol/")? {
        b"protocolVersion" => (
            &mut fields.meta_protocol_version,
            "_meta[\"io.modelcontextprotocol/protocolVersion\"]",
        ),
        b"clientCapabilities" => (
            &mut fields.meta_client_capabilities,
            "_meta[\"io.modelcontextprotocol/clientCapabilities\"]",
        ),
        b"clientInfo" => {
            (&mut fields.meta_client_info, "_meta[\"io.modelcontextprotocol/clientInfo\"]")
        }
        b"logLevel" => (&mut fields.meta_log_level, "_meta[\"io.modelcontextprotocol/logLevel\"]"),
        _ => return None,
    })
}

/// Returns the frame without the member that has its value at `value`. The object has other members.
fn without_member(frame: &[u8], value: Span) -> Option<Bytes> {
    let (before, after) = (&frame[..value.start as usize], &frame[value.end as usize..]);
    let name = before.trim_ascii_end().strip_suffix(b":")?.trim_ascii_end().strip_suffix(b"\"")?;
    let before = before[..name.iter().rposition(|byte| *byte == b'"')?].trim_ascii_end();
    let (before, after) = match before.strip_suffix(b",") {
        Some(earlier) => (earlier, after),
        None => (before, after.trim_ascii_start().strip_prefix(b",")?),
    };
    Some([before, after].concat().into())
}

fn is_request_id(raw: &[u8]) -> bool {
    raw.len() <= ID_BYTES_MAX && (raw.first() == Some(&b'"') || is_integer(raw))
}

/// Returns whether `raw` is an integer without fraction or exponent that fits 64 bits. JSON has no
/// leading zeros, so 18 digits always fit.
fn is_integer(raw: &[u8]) -> bool {
    if (1..=18).contains(&raw.len()) && raw.iter().all(u8::is_ascii_digit) {
        return true;
    }
    std::str::from_utf8(raw)
        .is_ok_and(|text| text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok())
}
