//! Converts a server's messages to a revision before 2025-11-25, for a client of that revision.
//!
//! Objects are open in every revision, so unknown members do no harm and pass. A strict reader
//! refuses kinds of content that the revision lacks, and an error that requires an action the
//! client does not support. Both are always converted. A client that accepts no unknown members
//! gets none (`strict`). Sessions convert what they send to their client.

mod sampling;

use bytes::Bytes;

use crate::envelope::Message;
use crate::json::{Document, Limits, Tape, TapeValue, ValueKind, quote};
use crate::method::Method;
use crate::splice::Splice;
use crate::version::Version;

pub use sampling::{convert_response, downgrade_request};

/// Audio that a revision has no content for is a resource with this name.
const AUDIO_URI: &str = "urn:mcp-broker:audio";

/// Converter for one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Translator {
    pub version: Version,
    /// Set when the client gets only members that its revision has.
    pub strict: bool,
}

/// Kind of an object, which decides which of its members are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObjectKind {
    ToolResult,
    PromptResult,
    ReadResult,
    Lists,
    Message,
    Block,
    Contents,
    Annotations,
    Tool,
    Prompt,
    /// An argument of a prompt, a resource or a template.
    Described,
    Server,
}

impl ObjectKind {
    fn of(method: Method) -> Option<Self> {
        Some(match method {
            Method::ToolsCall => Self::ToolResult,
            Method::PromptsGet => Self::PromptResult,
            Method::ResourcesRead => Self::ReadResult,
            Method::ToolsList
            | Method::PromptsList
            | Method::ResourcesList
            | Method::ResourcesTemplatesList => Self::Lists,
            _ => return None,
        })
    }

    /// Returns the kind of object that a member holds, itself or in each element.
    fn member(self, key: &str) -> Option<Self> {
        Some(match (self, key) {
            (Self::ToolResult | Self::Message, "content") => Self::Block,
            (Self::PromptResult, "messages") => Self::Message,
            (Self::ReadResult, "contents") | (Self::Block, "resource") => Self::Contents,
            (Self::Lists, "tools") => Self::Tool,
            (Self::Lists, "prompts") => Self::Prompt,
            (Self::Lists, "resources" | "resourceTemplates") | (Self::Prompt, "arguments") => {
                Self::Described
            }
            (Self::Block | Self::Described, "annotations") => Self::Annotations,
            _ => return None,
        })
    }

    /// Returns the first revision that has this member, unless all revisions have it.
    fn first_version_of(self, key: &str) -> Version {
        match (self, key) {
            (Self::Tool, "annotations") => Version::V2025_03_26,
            (Self::ToolResult, "structuredContent")
            | (Self::Tool, "outputSchema")
            | (Self::Annotations, "lastModified") => Version::V2025_06_18,
            (
                Self::Block | Self::Contents | Self::Tool | Self::Prompt | Self::Described,
                "_meta" | "title",
            ) => Version::V2025_06_18,
            (Self::Server, "title") => Version::V2025_06_18,
            (Self::Server, "icons" | "description" | "websiteUrl") | (Self::Tool, "execution") => {
                Version::V2025_11_25
            }
            (Self::Block | Self::Tool | Self::Prompt | Self::Described, "icons") => {
                Version::V2025_11_25
            }
            _ => Version::V2024_11_05,
        }
    }
}

impl Translator {
    /// Returns whether the client's revision has every member and content that a server can send.
    fn supports_all_content(self) -> bool {
        self.version >= Version::LATEST_WITH_SESSIONS
    }

    /// Converts the result of `method`. `None`: it stays as it is.
    pub fn result(self, method: Method, result: &[u8]) -> Option<Vec<u8>> {
        if self.may_need_conversion(result) {
            self.rewritten(result, ObjectKind::of(method)?)
        } else {
            None
        }
    }

    /// Converts the whole answer to `method`.
    pub fn answer(self, method: Method, frame: Bytes) -> Bytes {
        if !self.may_need_conversion(&frame) {
            return frame;
        }
        let limits = Limits { bytes_max: frame.len(), depth_max: frame.len() };
        let Ok(message) = Message::decode(frame.clone(), &limits) else { return frame };
        let converted = message
            .result
            .and_then(|result| Some((result, self.result(method, result.of(&frame))?)));
        match converted {
            Some((result, converted)) => Splice::new(&frame).replace(result, converted).finish(),
            None => frame,
        }
    }

    /// Returns whether the text may hold something that the revision does not have. Nearly always
    /// it does not.
    fn may_need_conversion(self, text: &[u8]) -> bool {
        let has = |pattern: &[u8]| memchr::memmem::find(text, pattern).is_some();
        !self.supports_all_content()
            && (self.strict
                || has(b"\"execution\"")
                || (!self.version.audio() && has(b"\"audio\""))
                || (!self.version.structured_content() && has(b"\"resource_link\"")))
    }

    /// Converts `serverInfo`. `None`: it stays as it is.
    pub fn server_info(self, info: &[u8]) -> Option<Vec<u8>> {
        if self.strict && !self.supports_all_content() {
            self.rewritten(info, ObjectKind::Server)
        } else {
            None
        }
    }

    fn rewritten(self, text: &[u8], kind: ObjectKind) -> Option<Vec<u8>> {
        // The text was decoded before, whatever its depth.
        let limits = Limits { bytes_max: text.len(), depth_max: text.len() };
        let tape = Tape::parse(text, &limits).ok()?;
        self.value(tape.root(), kind)
    }

    /// Converts a value, or each element of an array. `None`: it stays as it is.
    fn value(self, value: TapeValue<'_>, kind: ObjectKind) -> Option<Vec<u8>> {
        match value.kind() {
            ValueKind::Object if kind == ObjectKind::Block => {
                self.block(value).or_else(|| self.object(value, kind))
            }
            ValueKind::Object => self.object(value, kind),
            ValueKind::Array => {
                let elements: Vec<(TapeValue<'_>, Option<Vec<u8>>)> =
                    value.elements().map(|element| (element, self.value(element, kind))).collect();
                elements.iter().any(|(_, rewritten)| rewritten.is_some()).then(|| {
                    let texts = elements.into_iter().map(|(element, rewritten)| {
                        rewritten.unwrap_or_else(|| element.raw().to_vec())
                    });
                    joined(b'[', texts, b']')
                })
            }
            _ => None,
        }
    }

    fn object(self, object: TapeValue<'_>, kind: ObjectKind) -> Option<Vec<u8>> {
        let mut changed = false;
        let mut members = Vec::new();
        let text_block = self
            .is_dropped(kind, "structuredContent")
            .then(|| structured_as_block(object))
            .flatten();
        for member in object.members() {
            if self.is_dropped(kind, &member.key) {
                changed = true;
                continue;
            }
            let mut text = kind.member(&member.key).and_then(|kind| self.value(member.value, kind));
            if let (Some(block), "content") = (&text_block, member.key.as_ref()) {
                text = Some(with_element(
                    text.as_deref().unwrap_or_else(|| member.value.raw()),
                    block,
                ));
            }
            changed |= text.is_some();
            let value = text.unwrap_or_else(|| member.value.raw().to_vec());
            members.push([quote(&member.key).as_bytes(), b":", value.as_slice()].concat());
        }
        changed.then(|| joined(b'{', members.into_iter(), b'}'))
    }

    fn is_dropped(self, kind: ObjectKind, key: &str) -> bool {
        // The broker adds `execution` to other servers' tools. Only clients of a revision with it
        // get it.
        let is_added = kind == ObjectKind::Tool && key == "execution";
        (self.strict || is_added) && kind.first_version_of(key) > self.version
    }

    /// Converts a block of a kind that the revision does not have into one that it has.
    fn block(self, block: TapeValue<'_>) -> Option<Vec<u8>> {
        let text = |key: &str| block.get(key).and_then(|value| value.as_str());
        let instead = match text("type").as_deref() {
            Some("audio") if !self.version.audio() => {
                let (data, kind) = (text("data")?, text("mimeType").unwrap_or_default());
                let resource = format!(
                    "{{\"uri\":\"{AUDIO_URI}\",\"mimeType\":{},\"blob\":{}}}",
                    quote(&kind),
                    quote(&data)
                );
                format!("\"type\":\"resource\",\"resource\":{resource}")
            }
            Some("resource_link") if !self.version.structured_content() => {
                let link_text = format!("{} {}", text("name").unwrap_or_default(), text("uri")?);
                format!("\"type\":\"text\",\"text\":{}", quote(link_text.trim()))
            }
            _ => return None,
        };
        let annotations = block.get("annotations").map(|value| {
            let known =
                self.value(value, ObjectKind::Annotations).unwrap_or_else(|| value.raw().to_vec());
            format!(",\"annotations\":{}", String::from_utf8_lossy(&known))
        });
        Some(format!("{{{instead}{}}}", annotations.unwrap_or_default()).into_bytes())
    }
}

/// Returns structured content as a block of text, unless a block holds it already.
fn structured_as_block(result: TapeValue<'_>) -> Option<Vec<u8>> {
    let structured = result.get("structuredContent")?;
    let read = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).ok();
    let structured_value = read(structured.raw())?;
    let holds_structured = |block: TapeValue<'_>| {
        block
            .get("text")
            .and_then(|text| text.as_str())
            .and_then(|text| read(text.as_bytes()))
            .as_ref()
            == Some(&structured_value)
    };
    if result.get("content").is_some_and(|content| content.elements().any(holds_structured)) {
        return None;
    }
    let shown = String::from_utf8_lossy(structured.raw());
    Some(format!("{{\"type\":\"text\",\"text\":{}}}", quote(&shown)).into_bytes())
}

fn with_element(array: &[u8], element: &[u8]) -> Vec<u8> {
    let Some(open) = array.trim_ascii_end().strip_suffix(b"]") else { return array.to_vec() };
    let comma: &[u8] = if open.trim_ascii() == b"[" { b"" } else { b"," };
    [open, comma, element, b"]"].concat()
}

fn joined(open: u8, parts: impl Iterator<Item = Vec<u8>>, close: u8) -> Vec<u8> {
    let mut out = vec![open];
    for part in parts {
        if out.len() > 1 {
            out.push(b',');
        }
        out.extend_from_slice(&part);
    }
    out.push(close);
    out
}

/// Converts an error that requires URLs to be opened (MCP 2025-11-25, Elicitation: -32042) into a
/// tool result. The client opens none itself, but its model can pass the URLs to the user. `None`:
/// the error names no URL.
pub fn urls_as_result(error: &Message) -> Option<Vec<u8>> {
    let data = error.bytes(error.fields.error_data)?;
    let document = Document::parse(data, &Limits::with_bytes_max(data.len())).ok()?;
    let elicitations = document.root().get("elicitations")?;
    let blocks: Vec<Vec<u8>> = elicitations
        .elements()
        .filter_map(|one| {
            let url = one.get("url")?.as_str()?;
            let why = one.get("message").and_then(|message| message.as_str()).unwrap_or_default();
            let text = format!("open {url} first, then try again: {why}");
            Some(
                format!(
                    "{{\"type\":\"text\",\"text\":{}}}",
                    quote(text.trim_end_matches([':', ' ']))
                )
                .into_bytes(),
            )
        })
        .collect();
    if blocks.is_empty() {
        return None;
    }
    let content = joined(b'[', blocks.into_iter(), b']');
    Some([b"{\"content\":", content.as_slice(), b",\"isError\":true}"].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(version: Version, strict: bool, method: Method, result: &str) -> String {
        let rewritten = Translator { version, strict }.result(method, result.as_bytes());
        String::from_utf8(rewritten.unwrap_or_else(|| result.as_bytes().to_vec())).unwrap()
    }

    #[test]
    fn v_04_content_that_a_revision_lacks_is_converted() {
        let kept = r#"{"type":"text","text":"a", "x" :1.0}"#;
        let audio = r#"{"type":"audio","data":"AAEC","mimeType":"audio/wav","annotations":{"priority":1.0},"y":1}"#;
        let link = r#"{"type":"resource_link","uri":"a:b","name":"n\"","title":"t"}"#;
        let result = format!(r#"{{"content":[{kept},{audio},{link}],"z":1e3}}"#);
        let as_resource = r#"{"type":"resource","resource":{"uri":"urn:mcp-broker:audio","mimeType":"audio/wav","blob":"AAEC"},"annotations":{"priority":1.0}}"#;
        let as_text = r#"{"type":"text","text":"n\" a:b"}"#;
        for (version, audio, link) in [
            (Version::V2024_11_05, as_resource, as_text),
            (Version::V2025_03_26, audio, as_text),
            (Version::V2025_06_18, audio, link),
            (Version::V2026_07_28, audio, link),
        ] {
            let expected = format!(r#"{{"content":[{kept},{audio},{link}],"z":1e3}}"#);
            assert_eq!(read(version, false, Method::ToolsCall, &result), expected, "{version}");
        }
        let prompt = format!(r#"{{"messages":[{{"role":"user","content":{link}}}]}}"#);
        assert_eq!(
            read(Version::V2025_03_26, false, Method::PromptsGet, &prompt),
            format!(r#"{{"messages":[{{"role":"user","content":{as_text}}}]}}"#)
        );
        assert_eq!(
            read(Version::V2024_11_05, false, Method::CompletionComplete, &result),
            result,
            "nothing of it has content"
        );
    }

    #[test]
    fn a_strict_reader_gets_only_members_of_its_revision() {
        let tools = r#"{"tools":[{"name":"a","title":"A","inputSchema":{"title":"kept"},"outputSchema":{},"annotations":{"title":"x"},"icons":[],"execution":{},"_meta":{}}]}"#;
        for (version, expected) in [
            (Version::V2024_11_05, r#"{"tools":[{"name":"a","inputSchema":{"title":"kept"}}]}"#),
            (
                Version::V2025_03_26,
                r#"{"tools":[{"name":"a","inputSchema":{"title":"kept"},"annotations":{"title":"x"}}]}"#,
            ),
            (
                Version::V2025_06_18,
                r#"{"tools":[{"name":"a","title":"A","inputSchema":{"title":"kept"},"outputSchema":{},"annotations":{"title":"x"},"_meta":{}}]}"#,
            ),
            (Version::V2025_11_25, tools),
        ] {
            assert_eq!(read(version, true, Method::ToolsList, tools), expected);
            // The broker added `execution` to the tool, for clients that can have tasks.
            let open = if version < Version::V2025_11_25 {
                tools.replace(r#""execution":{},"#, "")
            } else {
                tools.to_owned()
            };
            assert_eq!(read(version, false, Method::ToolsList, tools), open);
        }
        let prompts = r#"{"prompts":[{"name":"p","arguments":[{"name":"a","title":"t"}],"icons":[]}],"nextCursor":"c"}"#;
        assert_eq!(
            read(Version::V2025_03_26, true, Method::PromptsList, prompts),
            r#"{"prompts":[{"name":"p","arguments":[{"name":"a"}]}],"nextCursor":"c"}"#
        );
        let contents = r#"{"contents":[{"uri":"a:b","text":"t","_meta":{}}]}"#;
        assert_eq!(
            read(Version::V2024_11_05, true, Method::ResourcesRead, contents),
            r#"{"contents":[{"uri":"a:b","text":"t"}]}"#
        );
        let info = Translator { version: Version::V2025_06_18, strict: true }
            .server_info(br#"{"name":"n","title":"t","icons":[]}"#);
        assert_eq!(info.unwrap(), br#"{"name":"n","title":"t"}"#);
    }

    #[test]
    fn removed_structured_content_is_added_as_text() {
        let strict = |result: &str| read(Version::V2025_03_26, true, Method::ToolsCall, result);
        assert_eq!(
            strict(r#"{"content":[],"structuredContent":{"a":1.50}}"#),
            r#"{"content":[{"type":"text","text":"{\"a\":1.50}"}]}"#
        );
        let translated = r#"{"content":[{"type":"text","text":"{ \"a\": 1.5 }"}],"structuredContent":{"a":1.5}}"#;
        assert_eq!(strict(translated), r#"{"content":[{"type":"text","text":"{ \"a\": 1.5 }"}]}"#);
        let beside = r#"{"structuredContent":{"a":1},"content":[{"type":"resource_link","uri":"u:x","name":"n"}]}"#;
        assert_eq!(
            strict(beside),
            r#"{"content":[{"type":"text","text":"n u:x"},{"type":"text","text":"{\"a\":1}"}]}"#
        );
    }

    #[test]
    fn an_error_that_requires_urls_becomes_a_result_with_the_urls() {
        let error = |data: &str| {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":-32042,"message":"m","data":{data}}}}}"#
            );
            urls_as_result(&Message::decode(Bytes::from(text), &Limits::default()).unwrap())
        };
        let translated =
            error(r#"{"elicitations":[{"url":"https://a.example","message":"sign in"}]}"#).unwrap();
        assert_eq!(
            String::from_utf8(translated).unwrap(),
            r#"{"content":[{"type":"text","text":"open https://a.example first, then try again: sign in"}],"isError":true}"#
        );
        assert!(error("{}").is_none() && error(r#"{"elicitations":[]}"#).is_none());
    }
}
