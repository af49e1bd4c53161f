//! Converts sampling between revisions with one block of content to a message and those with
//! arrays.

use bytes::Bytes;

use crate::envelope::{Kind, Message};
use crate::error::{ErrorKind, Refusal};
use crate::json::{Document, Limits, Span, Value, ValueKind};
use crate::method::Method;
use crate::splice::Splice;
use crate::version::Version;

fn limits(text: &[u8]) -> Limits {
    Limits { bytes_max: text.len(), depth_max: text.len() }
}

/// Returns the only block of a content array.
fn only_block<'a>(content: Value<'a>) -> Option<Value<'a>> {
    let mut blocks = content.elements();
    match (blocks.next(), blocks.next()) {
        (Some(block), None) if content.kind() == ValueKind::Array => Some(block),
        _ => None,
    }
}

/// Converts a server's request for a client of this revision: an array of one block becomes that
/// block. `None`: it stays as it is.
pub fn downgrade_request(version: Version, request: &Message) -> Option<Bytes> {
    if version.sampling_tools() || request.method != Method::SamplingCreateMessage {
        return None;
    }
    let params = request.params?;
    let document = Document::parse(params.of(&request.frame), &limits(&request.frame)).ok()?;
    let mut splice = Splice::new(&request.frame);
    let mut changed = false;
    for content in
        document.root().get("messages")?.elements().filter_map(|message| message.get("content"))
    {
        if let Some(block) = only_block(content) {
            splice.replace(shifted(content.span(), params), block.raw().to_vec());
            changed = true;
        }
    }
    changed.then(|| splice.finish())
}

/// Converts a client's answer to a sampling request for a server of this revision. `None`: it stays
/// as it is. `Err`: the refusal that the server gets instead.
pub fn convert_response(version: Version, answer: &Message) -> Result<Option<Bytes>, Refusal> {
    let Some(result) =
        answer.result.filter(|_| answer.kind == Kind::Result && !version.sampling_tools())
    else {
        return Ok(None);
    };
    let text = result.of(&answer.frame);
    // Roots and forms have no content of this kind.
    if memchr::memmem::find(text, b"\"content\"").is_none() {
        return Ok(None);
    }
    let Ok(document) = Document::parse(text, &limits(text)) else { return Ok(None) };
    let Some(content) =
        document.root().get("content").filter(|_| document.root().get("role").is_some())
    else {
        return Ok(None);
    };
    let unknown = |what: &str| {
        Refusal::new(
            ErrorKind::Internal,
            format!("the client answered with {what}, which {version} does not have"),
        )
    };
    let block = match content.kind() {
        ValueKind::Array => {
            only_block(content).ok_or_else(|| unknown("several blocks of content"))?
        }
        _ => content,
    };
    match block.get("type").and_then(|kind| kind.as_str()).as_deref() {
        Some("audio") if !version.audio() => Err(unknown("audio")),
        Some("tool_use" | "tool_result") => Err(unknown("the use of a tool")),
        _ if content.kind() != ValueKind::Array => Ok(None),
        _ => {
            let mut splice = Splice::new(&answer.frame);
            Ok(Some(splice.replace(shifted(content.span(), result), block.raw().to_vec()).finish()))
        }
    }
}

fn shifted(span: Span, base: Span) -> Span {
    Span { start: span.start + base.start, end: span.end + base.start }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: String) -> Message {
        Message::decode(Bytes::from(text), &Limits::default()).unwrap()
    }

    fn text(frame: Bytes) -> String {
        String::from_utf8(frame.to_vec()).unwrap()
    }

    #[test]
    fn a_question_with_arrays_of_one_block_is_converted_to_blocks() {
        let request = |content: &str| {
            let messages = format!(
                r#"[{{"role":"user","content":{content}}},{{"role":"user","content":{{"type":"text","text":"b"}}}}]"#
            );
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{{"messages":{messages},"maxTokens":1}}}}"#
            )
        };
        let (one, block) = (r#"[ {"type":"text","text":"a"} ]"#, r#"{"type":"text","text":"a"}"#);
        assert_eq!(
            downgrade_request(Version::V2025_06_18, &message(request(one))).map(text),
            Some(request(block))
        );
        assert_eq!(downgrade_request(Version::V2025_11_25, &message(request(one))), None);
        assert_eq!(downgrade_request(Version::V2024_11_05, &message(request(block))), None);
    }

    #[test]
    fn an_answer_with_several_blocks_needs_a_revision_with_arrays() {
        let answer = |content: &str| {
            message(format!(
                r#"{{"jsonrpc":"2.0","id":1,"result":{{"role":"assistant","model":"m","content":{content}}}}}"#
            ))
        };
        let block = r#"{"type":"text","text":"a"}"#;
        let collapsed = convert_response(Version::V2025_06_18, &answer(&format!("[{block}]")))
            .unwrap()
            .map(text)
            .unwrap();
        assert!(collapsed.contains(&format!(r#""content":{block}}}"#)), "{collapsed}");
        assert_eq!(convert_response(Version::V2025_06_18, &answer(block)), Ok(None));
        assert_eq!(
            convert_response(Version::V2025_11_25, &answer(&format!("[{block},{block}]"))),
            Ok(None)
        );
        for (version, content) in [
            (Version::V2025_06_18, format!("[{block},{block}]")),
            (
                Version::V2025_06_18,
                r#"{"type":"tool_use","id":"1","name":"n","input":{}}"#.to_owned(),
            ),
            (
                Version::V2024_11_05,
                r#"{"type":"audio","data":"","mimeType":"audio/wav"}"#.to_owned(),
            ),
        ] {
            assert_eq!(
                convert_response(version, &answer(&content)).map_err(|refusal| refusal.kind),
                Err(ErrorKind::Internal)
            );
        }
        let form = message(
            r#"{"jsonrpc":"2.0","id":1,"result":{"action":"accept","content":{"type":"audio"}}}"#
                .to_owned(),
        );
        assert_eq!(convert_response(Version::V2024_11_05, &form), Ok(None));
    }
}
