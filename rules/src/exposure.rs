//! Results and entries on the aggregated endpoint: every resource URI names its backend.
//!
//! Only URIs of a backend's resources change, and all other bytes stay the backend's:
//!
//! - MCP 2025-11-25: embedded resources, resource links, resource contents, `data.uri` of a
//!   not-found error
//! - MCP Apps: the links of a tool and of a result to a user interface
//!
//! A client must read every URI where the broker rewrote it. Therefore an answer in which readers
//! would find different URIs is an error.

use std::borrow::Cow;

use bytes::Bytes;
use protocol::{
    envelope::Message,
    ids::BackendId,
    json::{self, AmbiguousMember, JsonError, Limits, Span, Tape, TapeValue},
    method::Method,
    splice::Splice,
};

use super::{endpoint::Endpoint, exposed_names};

/// Member of `_meta` that links a user interface for hosts of earlier revisions of MCP Apps.
pub(crate) const FLAT_UI_LINK: &str = "ui/resourceUri";

/// Returns a list entry with its exposed name.
pub fn expose_entry(
    backend: &BackendId,
    native: &Bytes,
    entry: TapeValue<'_>,
    key: TapeValue<'_>,
    exposed_key: &str,
) -> Result<Bytes, AmbiguousMember> {
    let base = entry.span().start;
    let mut splice = Splice::new(native);
    splice.replace(shifted(key.span(), base), json::quote(exposed_key).into_bytes());
    if let Some(meta) = entry.unambiguous("_meta")? {
        for (link, uri) in ui_links(meta)? {
            splice.replace(shifted(link.span(), base), quoted_uri(backend, &uri));
        }
    }
    Ok(splice.finish())
}

/// Returns the links to a user interface in a `_meta` (MCP Apps): the member `ui.resourceUri`, and
/// the flat one of earlier hosts.
pub(crate) fn ui_links<'t>(
    meta: TapeValue<'t>,
) -> Result<impl Iterator<Item = (TapeValue<'t>, Cow<'t, str>)>, AmbiguousMember> {
    let links = [meta.unambiguous_path(&["ui", "resourceUri"])?, meta.unambiguous(FLAT_UI_LINK)?];
    Ok(links.into_iter().flatten().filter_map(|link| Some((link, link.as_str()?))))
}

/// Returns a list entry without its links to a user interface.
pub(crate) fn without_ui_links(entry: &Bytes) -> Bytes {
    let Ok(tape) = parsed(entry) else { return entry.clone() };
    let Some(meta) = tape.root().get("_meta") else { return entry.clone() };
    let mut splice = Splice::new(entry);
    if let Some(ui) = meta.get("ui") {
        splice.remove_member(ui.span(), "resourceUri");
    }
    splice.remove_member(meta.span(), FLAT_UI_LINK);
    splice.finish()
}

fn quoted_uri(backend: &BackendId, uri: &str) -> Vec<u8> {
    json::quote(&exposed_names::exposed_uri(backend, uri)).into_bytes()
}

/// Reason why the URIs of an answer cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum UriError {
    /// Two readers of the answer would find different URIs.
    #[error(transparent)]
    Ambiguous(#[from] AmbiguousMember),
    #[error(transparent)]
    Unreadable(#[from] JsonError),
}

/// The URIs of a backend's own resources in its answer, if the endpoint shows them differently.
#[derive(Debug, Default)]
pub struct ResourceUris(Vec<(Span, String)>);

impl ResourceUris {
    /// Finds the URIs in an answer to a request with this method. An answer whose URIs cannot be
    /// found is an error, because its client would get those of the backend.
    pub fn find(answer: &Message, method: Method, endpoint: &Endpoint) -> Result<Self, UriError> {
        let mut found = Vec::new();
        if !endpoint.is_merged() {
            return Ok(Self(found));
        }
        // Most answers hold no URI, as decoding has shown. They are not parsed a second time.
        if answer.fields.has_uri_key
            && let Some(span) = answer.result.or(answer.error)
        {
            let tape = parsed(span.of(&answer.frame))?;
            let mut take = |value: TapeValue<'_>| {
                found.extend(
                    value.as_str().map(|uri| (value.span().shifted(span.start), uri.into_owned())),
                )
            };
            match answer.result {
                Some(_) => each_uri(tape.root(), method, &mut take)?,
                None => tape.root().unambiguous_path(&["data", "uri"])?.map_or((), &mut take),
            }
        }
        if let Some(span) = answer.fields.meta.filter(|_| answer.fields.meta_has_more) {
            let tape = parsed(span.of(&answer.frame))?;
            found.extend(
                ui_links(tape.root())?
                    .map(|(link, uri)| (link.span().shifted(span.start), uri.into_owned())),
            );
        }
        Ok(Self(found))
    }

    /// Adds the backend to each URI.
    pub fn expose(&self, backend: &BackendId, splice: &mut Splice<'_>) {
        for (span, uri) in &self.0 {
            splice.replace(*span, quoted_uri(backend, uri));
        }
    }
}

fn parsed(text: &[u8]) -> Result<Tape<'_>, JsonError> {
    Tape::parse(text, &Limits::with_bytes_max(text.len()))
}

/// Takes the URIs of a result. Members that results of this method do not have stay as they are.
fn each_uri(
    root: TapeValue<'_>,
    method: Method,
    take: &mut impl FnMut(TapeValue<'_>),
) -> Result<(), AmbiguousMember> {
    let member = match method {
        Method::ResourcesRead => "contents",
        Method::ToolsCall | Method::TasksResult => "content",
        Method::PromptsGet => "messages",
        _ => return Ok(()),
    };
    for entry in root.unambiguous(member)?.into_iter().flat_map(|value| value.elements()) {
        let uri = match method {
            Method::ResourcesRead => entry.unambiguous("uri")?,
            Method::PromptsGet => {
                entry.unambiguous("content")?.map(block_uri).transpose()?.flatten()
            }
            _ => block_uri(entry)?,
        };
        uri.map(&mut *take);
    }
    Ok(())
}

fn block_uri(block: TapeValue<'_>) -> Result<Option<TapeValue<'_>>, AmbiguousMember> {
    let kind = block.unambiguous("type")?;
    match kind.and_then(|kind| kind.as_str()).as_deref() {
        Some("resource_link") => block.unambiguous("uri"),
        Some("resource") => block.unambiguous_path(&["resource", "uri"]),
        _ => Ok(None),
    }
}

/// Returns the span of a part within its entry, which begins at `base`.
pub(crate) fn shifted(span: Span, base: u32) -> Span {
    Span { start: span.start - base, end: span.end - base }
}

#[cfg(test)]
mod tests {
    use protocol::json::MESSAGE_BYTES_MAX;

    use super::*;

    const METHODS: [Method; 3] = [Method::ToolsCall, Method::ResourcesRead, Method::PromptsGet];

    fn exposed(method: Method, answer: &str) -> String {
        let limits = Limits::with_bytes_max(answer.len());
        let message = Message::decode(Bytes::from(answer.to_owned()), &limits).unwrap();
        let backend = BackendId::parse("b").unwrap();
        let mut splice = Splice::new(&message.frame);
        ResourceUris::find(&message, method, &Endpoint::Aggregated)
            .unwrap()
            .expose(&backend, &mut splice);
        String::from_utf8(splice.finish().to_vec()).unwrap()
    }

    #[test]
    fn uris_of_resources_are_exposed_and_nothing_else() {
        let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"uri: file:///x"},
            {"type":"resource_link","uri":"file:///a","name":"uri"},{"type":"resource","resource":{"uri":"file:///b","text":""}}],
            "structuredContent":{"uri":"file:///kept"}}}"#;
        let expected = answer
            .replace("\"file:///a\"", "\"b+file:///a\"")
            .replace("\"file:///b\"", "\"b+file:///b\"");
        assert_eq!(exposed(Method::ToolsCall, answer), expected);
    }

    #[test]
    fn uris_of_contents_prompts_and_not_found_errors_are_exposed() {
        for (method, from, to) in [
            (
                Method::ResourcesRead,
                r#"{"jsonrpc":"2.0","id":1,"result":{"contents":[{"uri":"x:1"}]}}"#,
                r#"{"uri":"b+x:1"}"#,
            ),
            (
                Method::PromptsGet,
                r#"{"jsonrpc":"2.0","id":1,"result":{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"x:1"}}}]}}"#,
                r#""uri":"b+x:1""#,
            ),
            (
                Method::ResourcesRead,
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"no","data":{"uri":"x:1"}}}"#,
                r#"{"uri":"b+x:1"}"#,
            ),
        ] {
            assert!(exposed(method, from).contains(to), "{}", exposed(method, from));
        }
    }

    #[test]
    fn members_that_results_of_a_method_do_not_have_stay() {
        let contents = r#""contents":[{"uri":"x:1"}]"#;
        let content = r#""content":[{"type":"resource_link","uri":"x:1"}]"#;
        let messages = r#""messages":[{"content":{"type":"resource_link","uri":"x:1"}}]"#;
        for (method, own) in [
            (Method::ResourcesRead, contents),
            (Method::ToolsCall, content),
            (Method::TasksResult, content),
            (Method::PromptsGet, messages),
            (Method::CompletionComplete, ""),
        ] {
            let answer = format!(
                r#"{{"jsonrpc":"2.0","id":1,"result":{{"data":{{"uri":"x:1"}},{contents},{content},{messages}}}}}"#
            );
            let expected = match own {
                "" => answer.clone(),
                own => answer.replace(own, &own.replace("x:1", "b+x:1")),
            };
            assert_eq!(exposed(method, &answer), expected, "{}", method.name());
        }
    }

    #[test]
    fn only_links_to_user_interfaces_are_exposed_in_the_meta_of_a_result() {
        let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"t"}], "_meta":{ "ui" : {"csp":{"connectDomains":["https://a.example"]},
            "resourceUri":"ui://app/view.html","domain":"x"},"ui/resourceUri":"ui:\/\/app/view.html","other":"ui://app/view.html"}}}"#;
        let expected = answer
            .replacen("\"ui://app/view.html\"", "\"ui://b+app/view.html\"", 1)
            .replacen("\"ui:\\/\\/app/view.html\"", "\"ui://b+app/view.html\"", 1);
        assert_eq!(exposed(Method::ToolsCall, answer), expected);
        assert!(expected.contains(r#""other":"ui://app/view.html""#));
    }

    #[test]
    fn s01_a_result_with_an_ambiguous_user_interface_is_an_error() {
        for meta in [
            r#"{"ui":{"resourceUri":"ui://a","ResourceURI":"ui://c+a"}}"#,
            r#"{"ui":{"resourceUri":"ui://a"},"UI":{"resourceUri":"ui://c+a"}}"#,
            r#"{"ui":{"resource\u0055ri":"ui://a","resourceUri":"ui://c+a"}}"#,
            r#"{"ui/resourceUri":"ui://a","UI/resourceUri":"ui://c+a"}"#,
        ] {
            let answer =
                format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[],"_meta":{meta}}}}}"#);
            let message = Message::decode(Bytes::from(answer), &Limits::default()).unwrap();
            assert!(
                ResourceUris::find(&message, Method::ToolsCall, &Endpoint::Aggregated).is_err(),
                "{meta}"
            );
        }
    }

    #[test]
    fn an_answer_without_uris_keeps_its_bytes() {
        let answer =
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"plain"}]}}"#;
        assert_eq!(exposed(Method::ToolsCall, answer), answer);
    }

    #[test]
    fn uris_of_an_answer_above_the_usual_size_are_exposed() {
        let text = "x".repeat(MESSAGE_BYTES_MAX);
        let answer = |contents: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"result":{{"contents":[{{{contents},"text":"{text}"}}],"_meta":{{"ui/resourceUri":"ui://a","text":"{text}"}}}}}}"#
            )
        };
        let native = answer(r#""uri":"x:1""#);
        let expected = native.replacen("x:1", "b+x:1", 1).replacen("ui://a", "ui://b+a", 1);
        assert!(
            exposed(Method::ResourcesRead, &native) == expected,
            "the texts are too long to show"
        );
        let ambiguous = Bytes::from(answer(r#""uri":"x:1","uri":"c+x:1""#));
        let limits = Limits::with_bytes_max(ambiguous.len());
        let message = Message::decode(ambiguous, &limits).unwrap();
        let found = ResourceUris::find(&message, Method::ResourcesRead, &Endpoint::Aggregated);
        assert!(found.is_err());
    }

    #[test]
    fn s01_an_answer_with_ambiguous_uris_is_an_error() {
        for result in [
            r#"{"content":[{"type":"resource_link","uri":"x:1","URI":"other+x:1"}]}"#,
            r#"{"content":[{"type":"resource_link","uri":"x:1","uri":"other+x:1"}]}"#,
            r#"{"content":[{"type":"resource_link","\u0055ri":"other+x:1"}]}"#,
            r#"{"content":[{"type":"resource_link","Type":"text","uri":"x:1"}]}"#,
            r#"{"content":[{"type":"resource","resource":{"uri":"x:1"},"Resource":{"uri":"other+x:1"}}]}"#,
            r#"{"content":[],"Content":[{"type":"resource_link","uri":"other+x:1"}]}"#,
            r#"{"contents":[{"uri":"x:1"}],"contents":[]}"#,
            r#"{"messages":[{"role":"user","content":{"type":"text"},"Content":{"type":"resource_link","uri":"other+x:1"}}]}"#,
        ] {
            let answer = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
            // Decoding already refuses duplicates of the outer members.
            let Ok(message) = Message::decode(Bytes::from(answer), &Limits::default()) else {
                continue;
            };
            let is_ambiguous =
                |method| ResourceUris::find(&message, method, &Endpoint::Aggregated).is_err();
            assert!(METHODS.into_iter().any(is_ambiguous), "{result}");
        }
        let escaped = r#"{"jsonrpc":"2.0","id":1,"result":{"contents":[{"\u0075ri":"x:1"}]}}"#;
        assert_eq!(exposed(Method::ResourcesRead, escaped), escaped.replace("x:1", "b+x:1"));
    }
}
