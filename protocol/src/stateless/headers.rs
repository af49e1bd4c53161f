//! Headers that repeat values of the body (MCP 2026-07-28, Streamable HTTP: Request Headers).
//!
//! A value is plain if it is printable ASCII without outer blanks. Any other value is base64
//! between `=?base64?` and `?=`. Both forms of one value are equal: comparisons always use the
//! decoded value.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::envelope::Message;
use crate::json::Span;
use crate::method::Method;

/// The revision, as in `_meta`.
pub const PROTOCOL_VERSION: &str = "mcp-protocol-version";
/// The method.
pub const METHOD: &str = "mcp-method";
/// The subject of the request: a tool, a prompt, a URI or a task.
pub const NAME: &str = "mcp-name";
/// Prefix of the names of headers that repeat arguments of a tool.
pub const PARAM_PREFIX: &str = "mcp-param-";

const SENTINEL_START: &str = "=?base64?";
const SENTINEL_END: &str = "?=";

/// A header value that is neither plain nor valid base64 of UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the value is neither printable ASCII nor valid base64 of UTF-8 between =?base64? and ?=")]
pub struct BadHeaderValue;

/// Returns the text as a header value.
pub fn encode(text: &str) -> Cow<'_, str> {
    if is_plain(text) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{SENTINEL_START}{}{SENTINEL_END}", STANDARD.encode(text)))
}

/// Returns the text of a header value; blanks around it do not count.
pub fn decode(value: &[u8]) -> Result<Cow<'_, str>, BadHeaderValue> {
    let text = std::str::from_utf8(value).map_err(|_| BadHeaderValue)?.trim_matches([' ', '\t']);
    if text.bytes().any(|byte| !matches!(byte, 0x20..=0x7e | b'\t')) {
        return Err(BadHeaderValue);
    }
    if !is_wrapped(text) {
        return Ok(Cow::Borrowed(text));
    }
    let inner = &text[SENTINEL_START.len()..text.len() - SENTINEL_END.len()];
    let bytes = STANDARD.decode(inner).map_err(|_| BadHeaderValue)?;
    String::from_utf8(bytes).map(Cow::Owned).map_err(|_| BadHeaderValue)
}

/// Returns whether a header value, as it came, stands for this text.
pub fn value_matches(value: &[u8], text: &str) -> Result<bool, BadHeaderValue> {
    // Most values are plain: nothing has to be decoded.
    if value == text.as_bytes() && is_plain(text) {
        return Ok(true);
    }
    decode(value).map(|decoded| decoded == text)
}

/// Returns whether the text is its own header value.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, 0x20..=0x7e))
        && text.trim_matches(' ') == text
        && !is_wrapped(text)
}

fn is_wrapped(text: &str) -> bool {
    text.len() >= SENTINEL_START.len() + SENTINEL_END.len()
        && text.starts_with(SENTINEL_START)
        && text.ends_with(SENTINEL_END)
}

/// Returns the span of the value that `Mcp-Name` repeats, and its name. `None`: the request
/// carries no such header. The value itself may be missing.
pub fn named_value(message: &Message) -> Option<(Option<Span>, &'static str)> {
    match message.method {
        Method::ToolsCall | Method::PromptsGet => Some((message.fields.name, "params.name")),
        Method::ResourcesRead => Some((message.fields.uri, "params.uri")),
        Method::TasksGet | Method::TasksUpdate | Method::TasksCancel => {
            Some((message.fields.task_id, "params.taskId"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_stays_as_it_is() {
        for text in ["", "tool.name", "file:///a b", "100 %", "=?base64", "?="] {
            assert_eq!(encode(text), text);
            assert_eq!(decode(text.as_bytes()).unwrap(), text);
        }
    }

    #[test]
    fn other_text_is_encoded_and_decoded_unchanged() {
        for text in
            [" a", "a ", "naïve", "日本", "a\nb", "\u{7f}", "=?base64?YQ==?=", "=?base64??="]
        {
            let encoded = encode(text);
            assert!(encoded.is_ascii() && encoded.starts_with("=?base64?"), "{encoded}");
            assert_eq!(decode(encoded.as_bytes()).unwrap(), text);
        }
    }

    #[test]
    fn a_header_value_is_compared_in_its_decoded_form() {
        for text in ["", "tool.name", " a", "naïve", "=?base64?YQ==?=", "=?base64?"] {
            assert_eq!(value_matches(encode(text).as_bytes(), text), Ok(true), "{text}");
            assert_eq!(value_matches(encode(text).as_bytes(), "other"), Ok(false), "{text}");
        }
        assert_eq!(
            value_matches("naïve".as_bytes(), "naïve"),
            Err(BadHeaderValue),
            "it has to be wrapped"
        );
        assert_eq!(
            value_matches(b"=?base64?YQ==?=", "=?base64?YQ==?="),
            Ok(false),
            "it stands for another text"
        );
    }

    #[test]
    fn an_invalid_header_value_is_refused() {
        for value in ["=?base64?!!?=", "=?base64?YQ?=", "=?base64?/w==?=", "a\u{7f}b", "naïve"] {
            assert_eq!(decode(value.as_bytes()), Err(BadHeaderValue), "{value}");
        }
        assert_eq!(decode(b"\xff"), Err(BadHeaderValue));
        assert_eq!(decode(b" \tpadded  ").unwrap(), "padded");
        assert_eq!(
            decode(b"=?BASE64?YQ==?=").unwrap(),
            "=?BASE64?YQ==?=",
            "the marks are compared exactly"
        );
    }
}
