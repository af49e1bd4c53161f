//! Calls of tools: their arguments, and the check of their answers.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::answer::{self, Answer};

/// A tool, the arguments of each call, and what the answer has to be.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    pub tool: String,
    pub arguments: Arguments,
    pub expect: Expectation,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Arguments {
    /// One text, with payloads of these sizes in turns. Its name comes from the schema of the tool.
    Payload(Vec<usize>),
    Template(Template),
}

/// What the answer of a call has to be. Every answer is a result or an error of the protocol.
#[derive(Debug, Clone, PartialEq)]
pub enum Expectation {
    /// The first content is the text of the call.
    Echo,
    /// `isError` is not true.
    Success,
    /// The result has this value at this JSON pointer (RFC 6901).
    Equals { pointer: String, value: Value },
}

impl ToolCall {
    /// Returns calls of the tool `echo`, which returns its text.
    pub fn echo(bytes: Vec<usize>) -> Self {
        Self {
            tool: "echo".to_owned(),
            arguments: Arguments::Payload(bytes),
            expect: Expectation::Echo,
        }
    }

    /// Returns the arguments of the call with this number as JSON, and the text in them.
    /// `text_argument` is the name of the argument of a [`Arguments::Payload`].
    pub(crate) fn render(&self, number: u64, text_argument: &str) -> (String, String) {
        match &self.arguments {
            Arguments::Payload(sizes) => {
                let text = payload(number, sizes[(number % sizes.len() as u64) as usize]);
                (format!(r#"{{"{text_argument}":"{text}"}}"#), text)
            }
            Arguments::Template(template) => template.render(number),
        }
    }

    /// Parses the answer of a call with this text. Errors of the protocol and of the tool pass,
    /// because they are valid answers.
    pub(crate) fn check(&self, frame: &[u8], text: &str) -> Option<Answer> {
        let is_right = |result: &Value| match &self.expect {
            Expectation::Echo => false,
            Expectation::Success => result.is_object(),
            Expectation::Equals { pointer, value } => result.pointer(pointer) == Some(value),
        };
        let echoed = match self.expect {
            Expectation::Echo => answer::read_echo(frame, text),
            _ => None,
        };
        echoed.or_else(|| answer::read(frame)).filter(|answer| {
            answer.result.as_ref().is_none_or(|result| {
                answer.is_echo || result["isError"] == true || is_right(result)
            })
        })
    }
}

/// Prefix of every payload, before its number, so that payloads can be told apart.
const PAYLOAD_MARK: &str = "payload-";

/// Returns a payload of this size that no other call sends. It is longer if the size is too small
/// for its number. It needs no escape in JSON.
pub(crate) fn payload(number: u64, bytes: usize) -> String {
    const FILL: &str = "all work and no play makes a dull proxy; ";
    let mut text = format!("{PAYLOAD_MARK}{number}-");
    while text.len() < bytes {
        text.push_str(&FILL[..FILL.len().min(bytes - text.len())]);
    }
    text
}

/// Returns whether the text is the whole payload of some call.
pub(crate) fn is_payload(text: &str) -> bool {
    let number = text
        .strip_prefix(PAYLOAD_MARK)
        .and_then(|rest| rest.split_once('-'))
        .and_then(|(number, _)| number.parse().ok());
    number.is_some_and(|number| payload(number, text.len()) == text)
}

/// Arguments with placeholders for the number of the call (`{{n}}`) and for a payload
/// (`{{text:4KB}}`).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq)]
enum Piece {
    Json(String),
    Number,
    Text(usize),
}

impl Template {
    /// Parses the arguments. `size` reads a size such as `4KB`. The error names the placeholder
    /// that cannot be read.
    pub(crate) fn parse(
        arguments: &Map<String, Value>,
        size: impl Fn(&str) -> Option<usize>,
    ) -> Result<Self, String> {
        let json = Value::Object(arguments.clone()).to_string();
        // A text of nothing but the number becomes a number.
        let json = json.replace(r#""{{n}}""#, "{{n}}");
        let mut pieces = Vec::new();
        let mut rest = json.as_str();
        while let Some((before, after)) = rest.split_once("{{") {
            let (placeholder, after) = after.split_once("}}").unwrap_or((after, ""));
            pieces.push(Piece::Json(before.to_owned()));
            pieces.push(match placeholder.split_once(':') {
                None if placeholder == "n" => Piece::Number,
                Some(("text", bytes)) => {
                    Piece::Text(size(bytes).ok_or_else(|| placeholder.to_owned())?)
                }
                _ => return Err(placeholder.to_owned()),
            });
            rest = after;
        }
        pieces.push(Piece::Json(rest.to_owned()));
        Ok(Self(pieces))
    }

    /// Returns whether the arguments have exactly one payload, which an answer can echo.
    pub(crate) fn has_one_text(&self) -> bool {
        self.0.iter().filter(|piece| matches!(piece, Piece::Text(_))).count() == 1
    }

    fn render(&self, number: u64) -> (String, String) {
        let (mut json, mut text) = (String::new(), String::new());
        for piece in &self.0 {
            match piece {
                Piece::Json(part) => json.push_str(part),
                Piece::Number => {
                    let _infallible = write!(json, "{number}");
                }
                Piece::Text(bytes) => {
                    text = payload(number, *bytes);
                    json.push_str(&text);
                }
            }
        }
        (json, text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(arguments: &Value) -> Result<Template, String> {
        let size = |text: &str| text.strip_suffix("KB")?.parse::<usize>().ok().map(|kb| kb * 1024);
        Template::parse(arguments.as_object().unwrap(), size)
    }

    #[test]
    fn arguments_hold_the_number_and_a_payload_of_the_call() {
        let parsed = template(
            &json!({"a": "{{n}}", "b": ["row {{n}}", "{{text:1KB}}"], "c": {"d\"": true}}),
        );
        let parsed = parsed.unwrap();
        assert!(parsed.has_one_text());
        let (rendered, text) = parsed.render(7);
        assert_eq!(text.len(), 1024);
        assert_eq!(
            serde_json::from_str::<Value>(&rendered).unwrap(),
            json!({"a": 7, "b": ["row 7", text], "c": {"d\"": true}})
        );
    }

    #[test]
    fn unknown_placeholders_are_refused_with_their_text() {
        for (text, named) in
            [("{{m}}", "m"), ("{{text:4XB}}", "text:4XB"), ("{{text}}", "text"), ("{{n", "n\"}")]
        {
            assert_eq!(template(&json!({"a": text})), Err(named.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_complete_payload_is_distinguished_from_other_text() {
        assert!(is_payload(&payload(8, 100)));
        assert!(!is_payload(&payload(8, 100).replace("dull", "DULL")));
        assert!(!is_payload("something else"));
    }

    #[test]
    fn answers_are_checked_against_the_expectation() {
        let frame = |result: Value| {
            json!({"jsonrpc": "2.0", "id": 1, "result": result}).to_string().into_bytes()
        };
        let text = |text: &str| frame(json!({"content": [{"type": "text", "text": text}]}));
        let call = |expect| ToolCall { expect, ..ToolCall::echo(vec![1]) };
        let passes = |expect, frame: &[u8]| call(expect).check(frame, "abc").is_some();
        let three = || Expectation::Equals {
            pointer: "/structuredContent/sum".to_owned(),
            value: json!(3),
        };
        assert!(passes(Expectation::Echo, &text("abc")) && !passes(Expectation::Echo, &text("x")));
        assert!(passes(Expectation::Success, &text("x")));
        assert!(passes(three(), &frame(json!({"structuredContent": {"sum": 3}}))));
        assert!(!passes(three(), &frame(json!({"structuredContent": {"sum": 4}}))));
        let failed = frame(json!({"content": [], "isError": true}));
        let refused = br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no"}}"#;
        for expect in [Expectation::Echo, Expectation::Success, three()] {
            assert!(passes(expect.clone(), &failed) && passes(expect, refused));
        }
    }
}
