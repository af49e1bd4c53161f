//! Encodings of a stream for others: its pending requests for the event log, and positions in it as
//! event ids.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use protocol::{
    ids::{RequestId, TaskId},
    json::{Document, Limits, Value, ValueKind, quote},
};
use rules::limits::NAMED_REQUEST_BYTES_MAX;

/// A request that gets its answer on a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingAnswer {
    pub id: RequestId,
    /// The task that the request only waits for. Any owner of the session can wait for it.
    pub task: Option<TaskId>,
}

impl From<RequestId> for PendingAnswer {
    fn from(id: RequestId) -> Self {
        Self { id, task: None }
    }
}

/// Encodes requests as a JSON array: the id of each, or an object with the id and the task it waits
/// for.
pub(super) fn encode_pending(due: &[PendingAnswer]) -> Vec<u8> {
    let one = |due: &PendingAnswer| match &due.task {
        None => due.id.raw().to_vec(),
        Some(task) => {
            [&b"{\"id\":"[..], due.id.raw(), b",\"task\":", quote(task.as_str()).as_bytes(), b"}"]
                .concat()
        }
    };
    let all: Vec<Vec<u8>> = due.iter().map(one).collect();
    [&b"["[..], &all.join(&b','), b"]"].concat()
}

/// Decodes the output of [`encode_pending`].
pub fn decode_pending(text: &[u8]) -> Vec<PendingAnswer> {
    let Ok(document) = Document::parse(text, &Limits::with_bytes_max(text.len())) else {
        return Vec::new();
    };
    let raw = |raw: &[u8]| RequestId::from_raw(Bytes::copy_from_slice(raw));
    let one = |due: Value<'_>| match due.get("id") {
        Some(id) => PendingAnswer {
            id: raw(id.raw()),
            task: due.get("task").and_then(|task| task.as_str().map(|task| TaskId::new(&*task))),
        },
        None => raw(due.raw()).into(),
    };
    document.root().elements().map(one).collect()
}

/// Highest sequence of an event. Every store has capacity for the sequences that may follow.
const SEQUENCE_MAX: u64 = (i64::MAX / 2).unsigned_abs();

/// Parses an event id.
pub fn parse_event_id(text: &str) -> Option<EventId> {
    let (stream, position) = text.split_once('-')?;
    let (sequence, request) = position
        .split_once('-')
        .map_or((position, None), |(sequence, request)| (sequence, Some(request)));
    let sequence = sequence.parse().ok().filter(|sequence| *sequence <= SEQUENCE_MAX)?;
    Some(EventId {
        stream: stream.parse().ok()?,
        sequence,
        request: request.and_then(decode_request_id),
    })
}

/// An event id as a client sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventId {
    pub stream: u64,
    pub sequence: u64,
    /// The request without an answer up to this event. The client's claim decides only about its
    /// own request.
    pub request: Option<RequestId>,
}

/// Returns whether an id is short enough for event ids.
pub(super) fn is_nameable(id: &RequestId) -> bool {
    id.raw().len() <= NAMED_REQUEST_BYTES_MAX
}

/// Encodes a request's id for event ids.
pub(super) fn encode_request_id(id: &RequestId) -> String {
    URL_SAFE_NO_PAD.encode(id.raw())
}

fn decode_request_id(text: &str) -> Option<RequestId> {
    let raw =
        URL_SAFE_NO_PAD.decode(text).ok().filter(|raw| raw.len() <= NAMED_REQUEST_BYTES_MAX)?;
    let document = Document::parse(&raw, &Limits::with_bytes_max(raw.len())).ok()?;
    let is_id = matches!(document.root().kind(), ValueKind::String | ValueKind::Number);
    is_id.then(|| RequestId::from_raw(Bytes::copy_from_slice(document.root().raw())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_request_id_in_an_event_id_is_ignored() {
        for odd in ["{}", "[1]", "null", "1 2", "\"", ""] {
            let id = format!("1-2-{}", URL_SAFE_NO_PAD.encode(odd));
            assert_eq!(
                parse_event_id(&id),
                Some(EventId { stream: 1, sequence: 2, request: None }),
                "{odd}"
            );
        }
        assert_eq!(parse_event_id("1-x"), None);
    }

    #[test]
    fn a_sequence_number_above_the_store_maximum_is_refused() {
        let id = |sequence: u64| parse_event_id(&format!("1-{sequence}"));
        assert_eq!(id(SEQUENCE_MAX).unwrap().sequence, SEQUENCE_MAX);
        assert_eq!((id(SEQUENCE_MAX + 1), id(u64::MAX)), (None, None));
    }

    #[test]
    fn pending_answers_are_read_as_they_were_written() {
        let waiting = PendingAnswer {
            id: RequestId::from_raw(Bytes::from_static(b"\"x\"")),
            task: Some(TaskId::new("t\"1")),
        };
        let due = vec![RequestId::from_u64(7).into(), waiting];
        assert_eq!(decode_pending(&encode_pending(&due)), due);
    }
}
