//! A batch: several calls of tools in one call of `execute_batch`.
//!
//! The tool belongs to no backend. The broker sends each call of a batch as a separate call, by the
//! name that the client would use for it. Each has one entry in the result.

use std::borrow::Cow;

use bytes::Bytes;
use protocol::{
    envelope::{Kind, Message},
    error::{ErrorKind, Refusal},
    ids::RequestId,
    json::{self, Tape, TapeValue, ValueKind},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use crate::{
    limits::toolsets::{BATCH_RESULT_BYTES_MAX, BATCH_RESULT_VALUES_MAX},
    tool_error::is_tool_error,
};

/// The name of the tool.
pub const BATCH_TOOL: &str = "execute_batch";

/// The longest `traceparent` in bytes that a batch passes on to its calls. Each call repeats it. Those
/// of W3C Trace Context have 57 bytes as JSON.
const TRACE_BYTES_MAX: usize = 256;

/// One call of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchCall {
    pub tool: String,
    /// The arguments as the client wrote them.
    pub arguments: Option<Bytes>,
}

impl BatchCall {
    /// Returns the call as a request of the client. `trace`: the `traceparent` of the batch, as JSON.
    /// A long one is left out.
    pub fn request(&self, id: &RequestId, trace: Option<&[u8]>) -> Result<Message, Refusal> {
        let mut frame = b"{\"jsonrpc\":\"2.0\",\"id\":".to_vec();
        frame.extend_from_slice(id.raw());
        frame.extend_from_slice(b",\"method\":\"tools/call\",\"params\":{\"name\":");
        json::quote_into(&mut frame, &self.tool);
        if let Some(arguments) = &self.arguments {
            frame.extend_from_slice(b",\"arguments\":");
            frame.extend_from_slice(arguments);
        }
        if let Some(trace) = trace.filter(|trace| trace.len() <= TRACE_BYTES_MAX) {
            frame.extend_from_slice(b",\"_meta\":{\"traceparent\":");
            frame.extend_from_slice(trace);
            frame.push(b'}');
        }
        frame.extend_from_slice(b"}}");
        let limits = json::Limits::with_bytes_max(frame.len());
        Message::decode(frame.into(), &limits).map_err(|rejected| rejected.refusal)
    }
}

/// The arguments of `execute_batch`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub calls: Vec<BatchCall>,
    pub is_parallel: bool,
    /// Whether no further call begins after one that failed.
    pub stops_on_error: bool,
}

impl Batch {
    /// Reads the arguments. All calls are checked before one begins.
    pub fn read(arguments: Option<&[u8]>, calls_max: usize) -> Result<Self, Refusal> {
        let text = arguments.unwrap_or(b"{}");
        let limits = json::Limits::with_bytes_max(text.len());
        let tape = Tape::parse(text, &limits).map_err(|_| invalid("cannot be read"))?;
        let [calls, parallel, stop] =
            members(tape.root(), "", ["calls", "parallel", "stop_on_error"])?;
        let calls = calls
            .filter(|calls| calls.kind() == ValueKind::Array)
            .ok_or_else(|| invalid("needs the array calls"))?;
        let count = calls.elements().take(calls_max + 1).count();
        if !(1..=calls_max).contains(&count) {
            return Err(invalid(&format!("must have 1 to {calls_max} calls")));
        }
        let flag = |given: Option<TapeValue<'_>>, name: &str, absent: bool| match given {
            None => Ok(absent),
            Some(value) => value
                .as_bool()
                .ok_or_else(|| invalid(&format!("has a {name} that is not a boolean"))),
        };
        Ok(Self {
            is_parallel: flag(parallel, "parallel", false)?,
            stops_on_error: flag(stop, "stop_on_error", true)?,
            calls: calls
                .elements()
                .enumerate()
                .map(|(at, call)| read_call(at, call))
                .collect::<Result<_, _>>()?,
        })
    }
}

fn read_call(at: usize, call: TapeValue<'_>) -> Result<BatchCall, Refusal> {
    let path = format!("calls[{at}]");
    let [tool, arguments] = members(call, &path, ["tool", "arguments"])?;
    let tool = tool
        .and_then(|tool| tool.as_str())
        .ok_or_else(|| invalid(&format!("needs the text {path}.tool")))?;
    if tool == BATCH_TOOL {
        let text = format!("has {path}.tool {BATCH_TOOL}: a batch must not contain a batch");
        return Err(invalid(&text));
    }
    let arguments = match arguments {
        None => None,
        Some(value) if value.kind() == ValueKind::Object => {
            Some(Bytes::copy_from_slice(value.raw()))
        }
        Some(_) => return Err(invalid(&format!("has {path}.arguments that are not an object"))),
    };
    Ok(BatchCall { tool: tool.into_owned(), arguments })
}

/// Reads the members of an object. Another member, and one that occurs twice, is refused: a batch
/// must not do less or other than its text says.
fn members<'t, const N: usize>(
    object: TapeValue<'t>,
    path: &str,
    names: [&str; N],
) -> Result<[Option<TapeValue<'t>>; N], Refusal> {
    let name = if path.is_empty() { String::new() } else { format!("has {path} that ") };
    if object.kind() != ValueKind::Object {
        return Err(invalid(&format!("{name}must be an object")));
    }
    let mut found = [None; N];
    for member in object.members() {
        let at = names.iter().position(|name| *name == member.key);
        let Some(slot) = at.map(|at| &mut found[at]) else {
            let allowed = names.join(", ");
            return Err(invalid(&format!("{name}has a member other than {allowed}")));
        };
        if slot.replace(member.value).is_some() {
            return Err(invalid(&format!("{name}has a member twice")));
        }
    }
    Ok(found)
}

fn invalid(problem: &str) -> Refusal {
    Refusal::new(ErrorKind::InvalidParams, format!("params.arguments {problem}"))
}

/// Returns the entry of the tool in a list.
pub fn entry(calls_max: usize) -> Bytes {
    let call = json!({
        "type": "object", "required": ["tool"], "additionalProperties": false,
        "properties": {
            "tool": {"type": "string", "description": "The name of a listed tool."},
            "arguments": {"type": "object", "description": "Arguments by the schema of the tool."}
        }
    });
    let properties = json!({
        "calls": {"type": "array", "minItems": 1, "maxItems": calls_max, "items": call},
        "parallel": {"type": "boolean", "default": false, "description": "Run the calls at the same time. Otherwise each call begins after the previous one has ended."},
        "stop_on_error": {"type": "boolean", "default": true, "description": "Begin no further call after a failed one. Completed calls are not undone."}
    });
    let schema = json!({
        "type": "object", "required": ["calls"], "additionalProperties": false,
        "properties": properties
    });
    json!({
        "name": BATCH_TOOL,
        "description": "Calls several tools. Returns the result of each call, in the order of the calls.",
        "inputSchema": schema,
        "annotations": {"readOnlyHint": false, "destructiveHint": true, "openWorldHint": true}
    })
    .to_string()
    .into()
}

/// The end of one call of a batch.
#[derive(Debug)]
pub enum BatchEnd {
    Answered(Box<Message>),
    /// The call began, and its answer cannot be read. The backend may have acted.
    Unreadable,
    /// The call did not begin, because an earlier one failed or the time was over.
    NotRun,
}

impl BatchEnd {
    /// Reads the answer to a call that began.
    pub fn of_answer(frame: Bytes) -> Self {
        let limits = json::Limits::with_bytes_max(frame.len());
        match Message::decode(frame, &limits) {
            Ok(answer) => Self::Answered(Box::new(answer)),
            Err(_) => Self::Unreadable,
        }
    }

    /// Returns whether the call failed. One that did not run has not failed itself.
    pub fn is_failure(&self) -> bool {
        match self {
            Self::Answered(answer) => answer.kind != Kind::Result || is_tool_error(answer),
            Self::Unreadable => true,
            Self::NotRun => false,
        }
    }
}

/// The result of a batch.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BatchResult<'a> {
    content: Vec<ResultPart<'a>>,
    structured_content: BatchEntries<'a>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_error: bool,
}

#[derive(Serialize)]
struct BatchEntries<'a> {
    results: Vec<BatchEntry<'a>>,
}

/// The entry of one call in the result.
#[derive(Default, Serialize)]
struct BatchEntry<'a> {
    tool: &'a str,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<ResultPart<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ResultPart<'a>>,
    #[serde(skip)]
    error_message: Option<Cow<'a, str>>,
}

/// A part of the result. Parts of answers keep their text, so that numbers keep any precision.
#[derive(Serialize)]
#[serde(untagged)]
enum ResultPart<'a> {
    Sent(&'a RawValue),
    Own(Value),
}

/// The blocks of a tool's result.
#[derive(Default, Deserialize)]
struct ContentBlocks<'a> {
    #[serde(borrow, default)]
    content: Vec<&'a RawValue>,
}

/// Levels of a batch's answer around the result of one call: the frame, `result`,
/// `structuredContent`, `results` and the entry.
const LEVELS_AROUND_RESULT: usize = 5;

/// What the results of a batch may still have together.
struct ResultAllowance {
    bytes: usize,
    values: usize,
}

impl ResultAllowance {
    /// The allowance of a batch without results.
    const WHOLE: Self = Self { bytes: BATCH_RESULT_BYTES_MAX, values: BATCH_RESULT_VALUES_MAX };

    /// Subtracts an answer. Returns the reason for which its result is left out.
    fn subtract(&mut self, answer: &Message) -> Result<(), String> {
        let Some(bytes) = self.bytes.checked_sub(answer.frame.len()) else {
            let limit = BATCH_RESULT_BYTES_MAX;
            return Err(format!("all results together have more than {limit} bytes"));
        };
        let Some(values) = self.values.checked_sub(values_of(answer)?) else {
            let limit = BATCH_RESULT_VALUES_MAX;
            return Err(format!("all results together have more than {limit} JSON values"));
        };
        (self.bytes, self.values) = (bytes, values);
        Ok(())
    }
}

/// Returns the number of values in the result or the error of an answer. Fails if the answer of the
/// batch would be too deep with it: its readers accept the depth of a message.
fn values_of(answer: &Message) -> Result<usize, String> {
    let Some(part) = answer.bytes(answer.result.or(answer.error)) else { return Ok(0) };
    let depth_max = json::DEPTH_MAX - LEVELS_AROUND_RESULT;
    let limits = json::Limits { bytes_max: part.len(), depth_max };
    match Tape::parse(part, &limits) {
        Ok(tape) => Ok(tape.root().count_values()),
        Err(_) => Err(format!("it is nested deeper than {depth_max} levels")),
    }
}

/// Returns the result of a batch. `isError` is set if a batch stopped, or if all of its calls failed.
pub fn result(batch: &Batch, ends: &[BatchEnd]) -> Bytes {
    let (mut allowance, mut content, mut results) =
        (ResultAllowance::WHOLE, Vec::new(), Vec::new());
    for (at, (call, end)) in batch.calls.iter().zip(ends).enumerate() {
        let entry = result_entry(&call.tool, end, &mut allowance);
        let head = format!("calls[{at}] {}: {}", call.tool, entry.status);
        let text = match &entry.error_message {
            Some(message) => format!("{head}: {message}"),
            None => head,
        };
        content.push(ResultPart::Own(json!({"type": "text", "text": text})));
        if let Some(ResultPart::Sent(result)) = entry.result {
            let blocks: ContentBlocks<'_> = serde_json::from_str(result.get()).unwrap_or_default();
            content.extend(blocks.content.into_iter().map(ResultPart::Sent));
        }
        results.push(entry);
    }
    let failed = ends.iter().filter(|end| end.is_failure()).count();
    let result = BatchResult {
        content,
        structured_content: BatchEntries { results },
        is_error: failed > 0 && (batch.stops_on_error || failed == ends.len()),
    };
    serde_json::to_vec(&result).unwrap_or_default().into()
}

fn result_entry<'a>(
    tool: &'a str,
    end: &'a BatchEnd,
    allowance: &mut ResultAllowance,
) -> BatchEntry<'a> {
    let answer = match end {
        BatchEnd::Answered(answer) => answer,
        BatchEnd::Unreadable => {
            let text = "the broker cannot read the answer, and the backend may have acted";
            return lost_entry(tool, "error", ErrorKind::OutcomeUnknown, text);
        }
        BatchEnd::NotRun => {
            return BatchEntry { tool, status: "not_run", ..BatchEntry::default() };
        }
    };
    let status = match (answer.kind, end.is_failure()) {
        (Kind::Result, false) => "ok",
        (Kind::Result, true) => "tool_error",
        _ => "error",
    };
    if let Err(reason) = allowance.subtract(answer) {
        let text = format!("the call was carried out; its result is left out, because {reason}");
        return lost_entry(tool, status, ErrorKind::MessageTooLarge, &text);
    }
    let sent = |span| Some(ResultPart::Sent(serde_json::from_slice(answer.bytes(span)?).ok()?));
    match (sent(answer.result), sent(answer.error)) {
        (None, None) => {
            let text = "the answer cannot be read";
            lost_entry(tool, status, ErrorKind::BackendProtocolError, text)
        }
        (result, error) => {
            let error_message = answer.text(answer.fields.error_message);
            BatchEntry { tool, status, result, error, error_message }
        }
    }
}

/// Returns the entry of a call that began and whose answer the result of the batch does not have.
fn lost_entry<'a>(
    tool: &'a str,
    status: &'static str,
    kind: ErrorKind,
    text: &str,
) -> BatchEntry<'a> {
    let error = json!({"code": kind.code(), "message": text, "data": {"kind": kind.name()}});
    let error_message = Some(text.to_owned().into());
    let error = Some(ResultPart::Own(error));
    BatchEntry { tool, status, error, error_message, ..BatchEntry::default() }
}

#[cfg(test)]
mod tests;
