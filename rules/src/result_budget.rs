//! Results that are longer than the budget of their tool.
//!
//! The client gets the beginning of the texts and a link; it reads the whole in pages. Structured
//! content is never cut, because its schema would not hold. It is left out, and is in the pages.

use bytes::Bytes;
use protocol::{
    error::{ErrorKind, Refusal},
    json::quote,
};
use serde_json::{Map, Value, json};

use crate::limits::results::{KEPT_RESULT_BYTES_MAX, KEPT_RESULT_PAGE_BYTES_MAX, TOKEN_BYTES};

const SCHEME: &str = "broker://result/";
const PAGE: &str = "?page=";
/// Capacity for the note and the link within the budget.
const NOTE_BYTES: usize = 600;

/// A page of a stored result, as a URI names it. Pages are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultPage {
    pub id: String,
    pub page: usize,
}

impl ResultPage {
    /// Reads a URI. `None` for one of another scheme.
    pub fn parse(uri: &str) -> Option<Self> {
        let rest = uri.strip_prefix(SCHEME)?;
        let (id, page) = match rest.split_once(PAGE) {
            Some((id, page)) => (id, page.parse().ok()?),
            None => (rest, 1),
        };
        Some(Self { id: id.to_owned(), page })
    }

    pub fn uri(id: &str) -> String {
        format!("{SCHEME}{id}")
    }

    fn uri_of(&self, page: usize) -> String {
        format!("{SCHEME}{}{PAGE}{page}", self.id)
    }

    /// Returns the result of reading this page of a stored text.
    pub fn read(&self, text: &str, mime_type: &str, page_bytes: usize) -> Result<Bytes, Refusal> {
        let count = pages(text, page_bytes).count();
        let part = self.page.checked_sub(1).and_then(|at| pages(text, page_bytes).nth(at));
        let Some(part) = part else {
            let text = format!("params.uri must name a page from 1 to {count}");
            return Err(Refusal::new(ErrorKind::InvalidParams, text));
        };
        // A part of a document is not a document.
        let mime_type = if count > 1 { "text/plain" } else { mime_type };
        let mut meta = json!({"dev.mcp-broker/pages": count});
        if self.page < count {
            meta["dev.mcp-broker/next"] = self.uri_of(self.page + 1).into();
        }
        let uri = self.uri_of(self.page);
        let contents = json!({"uri": uri, "mimeType": mime_type, "text": part, "_meta": meta});
        Ok(json!({"contents": [contents]}).to_string().into())
    }
}

/// A result within its budget, and the text that is stored of the whole.
#[derive(Debug, PartialEq, Eq)]
pub struct ShortenedResult {
    pub result: Bytes,
    pub text: String,
    pub mime_type: &'static str,
    pub page_bytes: usize,
}

/// Returns whether a result is longer than its budget.
pub fn exceeds(result: &[u8], tokens: u32) -> bool {
    result.len() > budget_bytes(tokens)
}

fn budget_bytes(tokens: u32) -> usize {
    (tokens as usize).saturating_mul(TOKEN_BYTES)
}

/// Shortens the result of a tool to a budget. `id` is that of the stored whole. `None`: it is not the
/// result of a tool.
pub fn shorten(result: &[u8], tokens: u32, id: &str) -> Option<ShortenedResult> {
    let value: Map<String, Value> = serde_json::from_slice(result).ok()?;
    let blocks = value.get("content")?.as_array()?;
    let budget = budget_bytes(tokens);
    let (mut text, mime_type) = stored_text(&value, blocks, result);
    let stored = text.floor_char_boundary(KEPT_RESULT_BYTES_MAX);
    let is_whole = stored == text.len();
    text.truncate(stored);
    let page_bytes = budget.min(KEPT_RESULT_PAGE_BYTES_MAX);
    let remaining = budget.saturating_sub(NOTE_BYTES);
    let meta = value.get("_meta").map(|meta| (meta, meta.to_string().len()));
    let meta = meta.filter(|(_, size)| *size <= remaining / 2);
    let remaining = remaining - meta.map_or(0, |(_, size)| size);
    let (mut content, left_out) = leading_blocks(blocks, remaining);
    let count = pages(&text, page_bytes).count();
    let about = result.len().div_ceil(TOKEN_BYTES);
    let mut note = format!(
        "[This is the beginning of a result of about {about} tokens. Read the whole as the resource {uri}{PAGE}1, page 1 to {count}.",
        uri = ResultPage::uri(id)
    );
    if left_out > 0 {
        note += &format!(" {left_out} other blocks are left out here.");
    }
    if value.contains_key("structuredContent") {
        note += " Only that resource has the structured content.";
    }
    if !is_whole {
        note += &format!(" Only its first {KEPT_RESULT_BYTES_MAX} bytes are stored.");
    }
    content.push(json!({"type": "text", "text": note + "]"}));
    content.push(json!({
        "type": "resource_link", "uri": ResultPage::uri(id), "name": "the whole result",
        "mimeType": mime_type, "size": text.len()
    }));
    let mut short = Map::from_iter([("content".to_owned(), Value::Array(content))]);
    short.extend(value.get("isError").map(|is_error| ("isError".to_owned(), is_error.clone())));
    short.extend(meta.map(|(meta, _)| ("_meta".to_owned(), meta.clone())));
    let result = Value::Object(short).to_string().into();
    Some(ShortenedResult { result, text, mime_type, page_bytes })
}

/// Returns what is stored: the texts, if there is nothing else, or the result as JSON.
fn stored_text(
    value: &Map<String, Value>,
    blocks: &[Value],
    result: &[u8],
) -> (String, &'static str) {
    let texts: Option<Vec<&str>> = blocks.iter().map(text_of).collect();
    match texts.filter(|_| !value.contains_key("structuredContent")) {
        Some(texts) => (texts.join("\n"), "text/plain"),
        None => (String::from_utf8_lossy(result).into_owned(), "application/json"),
    }
}

fn text_of(block: &Value) -> Option<&str> {
    block.get("text").filter(|_| block["type"] == "text")?.as_str()
}

/// Returns the blocks that fit, the last text cut, and the number of blocks without a text that do
/// not fit.
fn leading_blocks(blocks: &[Value], mut remaining: usize) -> (Vec<Value>, usize) {
    let (mut kept, mut left_out) = (Vec::new(), 0);
    for block in blocks {
        let size = block.to_string().len();
        if size <= remaining {
            remaining -= size;
            kept.push(block.clone());
            continue;
        }
        let Some(text) = text_of(block) else {
            left_out += 1;
            continue;
        };
        let frame = size - quote(text).len();
        let part = cut_quoted(text, remaining.saturating_sub(frame));
        remaining = 0;
        if !part.is_empty() {
            let mut block = block.clone();
            block["text"] = part.into();
            kept.push(block);
        }
    }
    (kept, left_out)
}

/// Returns the beginning of a text that has at most `max` bytes in JSON.
fn cut_quoted(text: &str, max: usize) -> &str {
    let mut part = cut(text, max);
    while !part.is_empty() && quote(part).len() > max {
        part = cut(part, part.len() * 3 / 4);
    }
    part
}

/// Returns the beginning of a text, at most `max` bytes: up to the end of a line or word, if one is
/// in its last quarter.
fn cut(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let part = &text[..text.floor_char_boundary(max)];
    let end = part.rfind('\n').or_else(|| part.rfind(char::is_whitespace));
    match end.map(|end| end + part[end..].chars().next().map_or(0, char::len_utf8)) {
        Some(end) if end >= part.len() - part.len() / 4 => &part[..end],
        _ => part,
    }
}

/// Returns the pages of a text, one at least. Together they are the text.
fn pages(text: &str, page_bytes: usize) -> impl Iterator<Item = &str> {
    let (mut rest, mut is_first) = (text, true);
    // A page has capacity for any character.
    let page_bytes = page_bytes.max(4);
    std::iter::from_fn(move || {
        if rest.is_empty() && !is_first {
            return None;
        }
        is_first = false;
        let page = cut(rest, page_bytes);
        rest = &rest[page.len()..];
        Some(page)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(short: &ShortenedResult, page: usize) -> Result<Value, Refusal> {
        let request = ResultPage { id: "x".to_owned(), page };
        let read = request.read(&short.text, short.mime_type, short.page_bytes)?;
        Ok(serde_json::from_slice::<Value>(&read).unwrap()["contents"][0].clone())
    }

    fn whole(short: &ShortenedResult) -> String {
        let mut text = String::new();
        for page in 1.. {
            let contents = read(short, page).unwrap();
            text += contents["text"].as_str().unwrap();
            let next = contents["_meta"]["dev.mcp-broker/next"].as_str();
            let Some(next) = next else { return text };
            assert_eq!(ResultPage::parse(next).unwrap().page, page + 1);
        }
        text
    }

    #[test]
    fn texts_are_cut_to_the_budget_and_pages_contain_the_whole_text() {
        for line in ["ein Satz mit Wörtern\n", "äöü", "\"\\\"", "\u{1F600}"] {
            let text = line.repeat(6_000 / line.len());
            let result = json!({"content": [{"type": "text", "text": text}], "isError": true, "_meta": {"a": 1}});
            let result = result.to_string();
            let short = shorten(result.as_bytes(), 300, "x").unwrap();
            assert!(!exceeds(&short.result, 300), "{line}: {}", short.result.len());
            assert_eq!((whole(&short), short.mime_type), (text.clone(), "text/plain"));
            let shown: Value = serde_json::from_slice(&short.result).unwrap();
            let first = shown["content"][0]["text"].as_str().unwrap();
            assert!(text.starts_with(first) && !first.is_empty());
            assert!(!line.ends_with('\n') || first.ends_with('\n'), "at the end of a line");
            assert_eq!((&shown["isError"], &shown["_meta"]["a"]), (&json!(true), &json!(1)));
            let [_, note, link] = &shown["content"].as_array().unwrap()[..] else {
                panic!("{shown}")
            };
            assert!(note["text"].as_str().unwrap().contains("broker://result/x?page=1"));
            assert_eq!(
                (&link["type"], &link["uri"]),
                (&json!("resource_link"), &json!("broker://result/x"))
            );
        }
    }

    #[test]
    fn structured_content_is_only_in_the_pages_and_complete() {
        let rows: Vec<Value> = (0..500).map(|at| json!({"row": at})).collect();
        let result = json!({"content": [{"type": "text", "text": "500 rows"}], "structuredContent": {"rows": rows}});
        let short = shorten(result.to_string().as_bytes(), 300, "x").unwrap();
        let shown: Value = serde_json::from_slice(&short.result).unwrap();
        assert_eq!(shown.get("structuredContent"), None);
        assert_eq!(shown["content"][0]["text"], "500 rows");
        let read: Value = serde_json::from_str(&whole(&short)).unwrap();
        assert_eq!((read, short.mime_type), (result, "application/json"));
    }

    #[test]
    fn other_blocks_are_kept_whole_or_left_out() {
        let image = |size: usize| json!({"type": "image", "mimeType": "image/png", "data": "A".repeat(size)});
        let result =
            json!({"content": [image(4), image(5_000), {"type": "text", "text": "after"}]});
        let short = shorten(result.to_string().as_bytes(), 300, "x").unwrap();
        let shown: Value = serde_json::from_slice(&short.result).unwrap();
        assert_eq!(shown["content"][0], image(4));
        assert_eq!(shown["content"][1]["text"], "after");
        assert!(
            shown["content"][2]["text"].as_str().unwrap().contains("1 other blocks are left out")
        );
    }

    #[test]
    fn a_missing_page_is_refused_and_other_uris_are_not_pages() {
        let result = json!({"content": [{"type": "text", "text": "x".repeat(5_000)}]}).to_string();
        let short = shorten(result.as_bytes(), 300, "x").unwrap();
        for page in [0, 99] {
            assert_eq!(read(&short, page).unwrap_err().kind, ErrorKind::InvalidParams);
        }
        assert_eq!(ResultPage::parse("broker://result/ab?page=7").map(|one| one.page), Some(7));
        assert_eq!(ResultPage::parse("broker://result/ab").map(|one| one.page), Some(1));
        for other in ["broker://result/ab?page=x", "b+broker://result/ab", "file:///a"] {
            assert_eq!(ResultPage::parse(other), None, "{other}");
        }
        assert_eq!(shorten(br#"{"task":{}}"#, 300, "x"), None);
    }
}
