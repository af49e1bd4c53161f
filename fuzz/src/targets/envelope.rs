//! Messages and batches: what the broker found in an accepted message is what every reader finds.

use std::str;

use bytes::Bytes;
use protocol::{
    Batches, Body, ErrorKind, Limits, Message, RefusedMessage, Span, decode_body,
    json::{Document, JsonError},
};

use super::MESSAGE_TOKENS;
use crate::{
    Outcome, Target,
    json_oracle::{self, READERS},
};

pub(super) const TARGET: Target =
    Target { name: "envelope", tokens: MESSAGE_TOKENS, bytes_max: 2048, check };

/// A part of a message: its path, and where the broker found it.
type Part = (&'static [&'static str], fn(&Message) -> Option<Span>);

const PARTS: [Part; 12] = [
    (&["id"], |message| message.id_span),
    (&["method"], |message| message.method_span),
    (&["params"], |message| message.params),
    (&["result"], |message| message.result),
    (&["error"], |message| message.error),
    (&["error", "code"], |message| message.fields.error_code),
    (&["error", "data"], |message| message.fields.error_data),
    (&["BODY", "name"], |message| message.fields.name),
    (&["BODY", "uri"], |message| message.fields.uri),
    (&["BODY", "arguments"], |message| message.fields.arguments),
    (&["BODY", "_meta"], |message| message.fields.meta),
    (&["BODY", "_meta", "progressToken"], |message| message.fields.meta_progress_token),
];

const MORE_PARTS: [Part; 11] = [
    (&["BODY", "_meta", "io.modelcontextprotocol/related-task", "taskId"], |message| {
        message.fields.meta_related_task_id
    }),
    (&["BODY", "_meta", "io.modelcontextprotocol/protocolVersion"], |message| {
        message.fields.meta_protocol_version
    }),
    (&["BODY", "task", "taskId"], |message| message.fields.task_task_id),
    (&["BODY", "ref", "type"], |message| message.fields.reference_type),
    (&["BODY", "ref", "name"], |message| message.fields.reference_name),
    (&["BODY", "ref", "uri"], |message| message.fields.reference_uri),
    (&["BODY", "cursor"], |message| message.fields.cursor),
    (&["BODY", "requestId"], |message| message.fields.request_id),
    (&["BODY", "taskId"], |message| message.fields.task_id),
    (&["BODY", "level"], |message| message.fields.level),
    (&["BODY", "requestState"], |message| message.fields.request_state),
];

fn check(input: &[u8]) -> Outcome {
    let decoded =
        decode_body(Bytes::copy_from_slice(input), &Limits::default(), Batches::Permitted);
    let is_deep = Document::parse(
        input,
        &Limits { depth_max: json_oracle::SERDE_DEPTH_MAX, ..Limits::default() },
    )
    .is_err_and(|error| matches!(error, JsonError::TooDeep { .. }));
    if !is_deep {
        let is_json = serde_json::from_slice::<serde_json::Value>(input).is_ok();
        let is_parse_error =
            decoded.as_ref().is_err_and(|error| error.refusal.kind == ErrorKind::ParseError);
        assert_eq!(is_json, !is_parse_error, "serde_json and the envelope judge the syntax");
    }
    match decoded {
        Ok(Body::One(message)) => {
            read_alike(&message);
            Outcome::of(&(message.kind, message.method.name(), found(&message)))
        }
        Ok(Body::Batch(messages)) => {
            let text = str::from_utf8(input).expect("what is decoded is UTF-8");
            let theirs = json_oracle::elements(text).expect("a batch is an array");
            assert_eq!(messages.len(), theirs.len(), "messages of the batch");
            for (message, theirs) in messages.iter().zip(theirs) {
                if let Ok(message) = message {
                    // Decoding leaves out a member that is null next to a result or an error.
                    if !theirs.contains("null") {
                        assert_eq!(message.frame, theirs.as_bytes(), "a message of the batch");
                    }
                    read_alike(message);
                }
            }
            Outcome::of(&("batch", messages.iter().take(4).map(Result::is_ok).collect::<Vec<_>>()))
        }
        Err(RefusedMessage { refusal, id, answers, has_unreadable_id }) => {
            let found = (id.is_some(), answers.is_some(), has_unreadable_id);
            Outcome::of(&(refusal.kind.name(), refusal.message.len(), found))
        }
    }
}

fn parts() -> impl Iterator<Item = &'static Part> {
    PARTS.iter().chain(&MORE_PARTS)
}

fn found(message: &Message) -> Vec<bool> {
    parts().map(|(_, span)| span(message).is_some()).collect()
}

/// Checks that each model of a peer finds each part where the broker found it.
fn read_alike(message: &Message) {
    let text = str::from_utf8(&message.frame).expect("a decoded message is UTF-8");
    let root = json_oracle::root(text).expect("a decoded message is JSON");
    let body = if message.params.is_some() { "params" } else { "result" };
    for (path, span) in parts() {
        let ours =
            span(message).map(|span| str::from_utf8(span.of(&message.frame)).expect("UTF-8"));
        let path: Vec<&str> =
            path.iter().map(|name| if *name == "BODY" { body } else { *name }).collect();
        for reader in READERS {
            assert_eq!(ours, reader.find(root, &path), "{reader:?} looks for {path:?}");
        }
    }
}
