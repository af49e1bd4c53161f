//! Parses incoming messages: finds the request of an answer, and checks the answer.
//!
//! The check searches for the payload as bytes and parses only the small rest of the answer as
//! JSON. So it costs little and still covers every byte.

use std::borrow::Cow;

use memchr::memmem;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Kind of an incoming message.
#[derive(Debug, PartialEq, Eq)]
pub enum Incoming<'a> {
    /// Answer to the request with this number.
    Answer(u64),
    /// Request of the server. The id is the raw JSON text.
    Request {
        id: &'a str,
        method: Cow<'a, str>,
    },
    Notification(Cow<'a, str>),
    /// An answer without a usable id, or bytes that are not a message.
    Unreadable,
}

#[derive(Debug, Deserialize)]
struct MessageHead<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
}

/// First bytes of an answer from most servers.
const ANSWER_HEAD: &[u8] = br#"{"jsonrpc":"2.0","id":"#;

pub fn incoming(frame: &[u8]) -> Incoming<'_> {
    if let Some(rest) = frame.strip_prefix(ANSWER_HEAD) {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number =
            std::str::from_utf8(&rest[..digits]).ok().and_then(|digits| digits.parse().ok());
        if let Some(number) = number
            && (rest[digits..].starts_with(br#","result":"#)
                || rest[digits..].starts_with(br#","error":"#))
        {
            return Incoming::Answer(number);
        }
    }
    match serde_json::from_slice(frame) {
        Ok(MessageHead { id: Some(id), method: Some(method) }) => {
            Incoming::Request { id: id.get(), method }
        }
        Ok(MessageHead { id: None, method: Some(method) }) => Incoming::Notification(method),
        Ok(MessageHead { id: Some(id), method: None }) => {
            id.get().parse().map_or(Incoming::Unreadable, Incoming::Answer)
        }
        _ => Incoming::Unreadable,
    }
}

/// A whole answer.
#[derive(Debug, Deserialize)]
pub struct Answer {
    pub result: Option<serde_json::Value>,
    pub error: Option<RpcError>,
    /// True if the payload of the call was found in the answer and cut out of the result.
    #[serde(skip)]
    pub(crate) is_echo: bool,
}

/// An error as the answer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RpcError {
    pub code: i64,
    #[serde(default)]
    pub message: String,
}

pub fn read(frame: &[u8]) -> Option<Answer> {
    serde_json::from_slice(frame)
        .ok()
        .filter(|answer: &Answer| answer.result.is_some() != answer.error.is_some())
}

/// Put before the text by `server-everything`, the reference server.
pub(crate) const ECHO_LABEL: &str = "Echo: ";

/// Parses the answer of a tool that echoes. Returns `None` unless the answer contains exactly the
/// payload.
pub fn read_echo(frame: &[u8], payload: &str) -> Option<Answer> {
    let at = memmem::find(frame, payload.as_bytes())?;
    let (head, tail) = (&frame[..at], &frame[at + payload.len()..]);
    // The payload must be the whole string. A part of a longer text is not the payload.
    let label = if head.ends_with(ECHO_LABEL.as_bytes()) { ECHO_LABEL } else { "" };
    let answer = (head[..head.len() - label.len()].ends_with(b"\"") && tail.starts_with(b"\""))
        .then(|| read(&[head, tail].concat()))??;
    (answer.result.as_ref()?["content"][0]["text"] == label)
        .then_some(Answer { is_echo: true, ..answer })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incoming_messages_are_classified() {
        for (frame, wanted) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{}}"#, Incoming::Answer(7)),
            (r#"{"id":8,"error":{"code":1,"message":""},"jsonrpc":"2.0"}"#, Incoming::Answer(8)),
            (
                r#"{"jsonrpc":"2.0","id":9,"method":"ping"}"#,
                Incoming::Request { id: "9", method: "ping".into() },
            ),
            (
                r#"{"jsonrpc":"2.0","method":"a/b","params":{"id":1}}"#,
                Incoming::Notification("a/b".into()),
            ),
            (r#"{"jsonrpc":"2.0","id":"x","result":{}}"#, Incoming::Unreadable),
            (r#"{"jsonrpc":"2.0","id":null,"error":{}}"#, Incoming::Unreadable),
            ("", Incoming::Unreadable),
        ] {
            assert_eq!(incoming(frame.as_bytes()), wanted, "{frame}");
        }
    }

    #[test]
    fn an_echo_is_accepted_only_if_every_byte_matches() {
        let answer = |text: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#
            )
        };
        assert!(read_echo(answer("abc").as_bytes(), "abc").is_some());
        assert!(read_echo(answer("Echo: abc").as_bytes(), "abc").is_some());
        for wrong in ["abd", "abcd", "ab", "", "xabc", "Echo: abcd", "xEcho: abc"] {
            assert!(read_echo(answer(wrong).as_bytes(), "abc").is_none(), "{wrong}");
        }
        let mut broken = answer("abc");
        broken.pop();
        assert!(read_echo(broken.as_bytes(), "abc").is_none());
        let elsewhere = r#"{"id":1,"result":{"content":[],"abc":"abc"}}"#;
        assert!(read_echo(elsewhere.as_bytes(), "abc").is_none());
    }

    #[test]
    fn an_answer_is_a_result_or_an_error() {
        assert!(read(br#"{"id":1,"result":{}}"#).unwrap().error.is_none());
        assert_eq!(
            read(br#"{"id":1,"error":{"code":-32603,"message":"no"}}"#)
                .unwrap()
                .error
                .unwrap()
                .code,
            -32603
        );
        assert!(
            read(br#"{"id":1}"#).is_none()
                && read(br#"{"result":{},"error":{"code":1}}"#).is_none()
                && read(b"{").is_none()
        );
    }
}
