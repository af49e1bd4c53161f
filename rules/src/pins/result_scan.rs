//! Looks through results of tools for characters that a reader does not see, and takes them out.
//!
//! A result is data of any kind, so only characters are looked for: the phrases of definitions occur in
//! honest texts.

use bytes::Bytes;
use memchr::memmem;
use protocol::{
    envelope::{Kind, Message},
    json::{self, Span, Tape, TapeValue, ValueKind},
    splice::Splice,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    pointer::{Pointer, Step},
    scanner::{Finding, has_hidden, hidden, without_hidden},
};
use crate::limits::pins::FINDINGS_MAX;

/// Member of `_meta` with what was found.
const FINDINGS_MEMBER: &str = "dev.mcp-broker/findings";
/// Member of the result whose parts have no meaning in MCP.
const STRUCTURED_MEMBER: &str = "structuredContent";

/// What the broker does with hidden characters in the results of tools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResultScan {
    /// It does not look for them.
    #[default]
    Off,
    /// The result names what was found.
    Flag,
    /// They are taken out, and the result names what was found.
    Strip,
}

/// A result in which something was found.
#[derive(Debug)]
pub struct ScannedResult {
    pub frame: Bytes,
    pub findings: Vec<Finding>,
}

impl ResultScan {
    /// Scans the result of a tool. `None`: nothing was found.
    pub fn scan(self, answer: &Message) -> Option<ScannedResult> {
        let span = answer.result.filter(|_| self != Self::Off && answer.kind == Kind::Result)?;
        let result = span.of(&answer.frame);
        let escapes = [br"\u", br"\b", br"\f"];
        let has_escape = escapes.iter().any(|escape| memmem::find(result, *escape).is_some());
        // JSON demands no escape for the last character of ASCII, which is a control character too.
        if result.is_ascii() && !has_escape && memchr::memchr(0x7f, result).is_none() {
            return None; // as nearly everywhere
        }
        let limits = json::Limits::with_bytes_max(result.len());
        let tape = Tape::parse(result, &limits).ok()?;
        let mut splice = Splice::new(&answer.frame);
        let mut walk = Walk {
            base: span.start,
            strips: self == Self::Strip,
            pointer: Pointer::default(),
            findings: Vec::new(),
        };
        walk.value(tape.root(), &mut splice);
        let mut findings = walk.findings;
        if findings.is_empty() {
            return None;
        }
        findings.truncate(FINDINGS_MAX);
        let findings_json = serde_json::to_vec(&findings).ok()?;
        let frame = splice.set_meta(answer, FINDINGS_MEMBER, &findings_json).finish();
        Some(ScannedResult { frame, findings })
    }
}

struct Walk<'a> {
    /// Span of the result in its frame.
    base: u32,
    strips: bool,
    pointer: Pointer<'a>,
    findings: Vec<Finding>,
}

impl<'a> Walk<'a> {
    fn value(&mut self, value: TapeValue<'a>, splice: &mut Splice<'_>) {
        match value.kind() {
            ValueKind::String => self.text(value, splice),
            ValueKind::Array => {
                for (at, element) in value.elements().enumerate() {
                    self.pointer.enter(Step::Element(at));
                    self.value(element, splice);
                    self.pointer.leave();
                }
            }
            ValueKind::Object => {
                for member in value.members() {
                    // The broker replaces its own member, and a `_meta` that is not an object.
                    let is_replaced = (self.pointer.is_member("_meta")
                        && member.key == FINDINGS_MEMBER)
                        || (self.pointer.is_root()
                            && member.key == "_meta"
                            && member.value.kind() != ValueKind::Object);
                    if is_replaced {
                        continue;
                    }
                    let hidden_name = has_hidden(&member.key).then(|| member.key.clone());
                    self.pointer.enter(Step::Member(member.key));
                    if let Some(name) = hidden_name {
                        self.name(&name, member.key_span, splice);
                    }
                    self.value(member.value, splice);
                    self.pointer.leave();
                }
            }
            _ => {}
        }
    }

    /// Notes a name with hidden characters. Names outside structured content stay: without the
    /// characters, one could pass for a member of MCP that the broker has not read.
    fn name(&mut self, name: &str, span: Span, splice: &mut Splice<'_>) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.extend(hidden(&self.pointer, name));
        }
        if self.strips && self.pointer.is_in_member(STRUCTURED_MEMBER) {
            let kept = json::quote(&without_hidden(name)).into_bytes();
            splice.replace(span.shifted(self.base), kept);
        }
    }

    fn text(&mut self, value: TapeValue<'_>, splice: &mut Splice<'_>) {
        let Some(text) = value.as_str().filter(|text| has_hidden(text)) else { return };
        if self.findings.len() < FINDINGS_MAX {
            self.findings.extend(hidden(&self.pointer, &text));
        }
        if self.strips {
            let kept = json::quote(&without_hidden(&text)).into_bytes();
            splice.replace(value.span().shifted(self.base), kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn scanned(mode: ResultScan, result: &Value) -> Option<(Value, Vec<String>)> {
        let frame = json!({"jsonrpc": "2.0", "id": 1, "result": result}).to_string();
        let message = Message::decode(Bytes::from(frame), &json::Limits::default()).unwrap();
        let scanned = mode.scan(&message)?;
        let shown: Value = serde_json::from_slice(&scanned.frame).unwrap();
        let rules = scanned.findings.into_iter().map(|finding| finding.rule).collect();
        Some((shown["result"].clone(), rules))
    }

    fn text(text: &str) -> Value {
        json!({"content": [{"type": "text", "text": text}], "structuredContent": {"a": [text]}})
    }

    #[test]
    fn a_raw_delete_character_is_found() {
        let (stripped, rules) = scanned(ResultScan::Strip, &text("a\u{7f}b")).unwrap();
        assert_eq!(rules, ["control-character", "control-character"]);
        assert_eq!(stripped["content"], text("ab")["content"]);
    }

    #[test]
    fn only_hidden_characters_are_flagged_or_removed() {
        for (bad, good, rule) in [
            ("a\u{200b}b", "ab", "hidden-zero-width"),
            ("a\u{202e}b", "ab", "hidden-direction"),
            ("a\u{e0041}b", "ab", "hidden-tag"),
            ("a\u{8}b", "ab", "control-character"),
        ] {
            let (flagged, rules) = scanned(ResultScan::Flag, &text(bad)).unwrap();
            assert_eq!(rules, [rule, rule]);
            assert_eq!(flagged["content"][0]["text"], bad);
            let finding = &flagged["_meta"][FINDINGS_MEMBER][0];
            assert_eq!(
                (&finding["rule"], &finding["pointer"]),
                (&json!(rule), &json!("/content/0/text"))
            );
            let (stripped, rules) = scanned(ResultScan::Strip, &text(bad)).unwrap();
            assert_eq!(rules, [rule, rule]);
            assert_eq!(stripped["content"], text(good)["content"]);
            assert_eq!(stripped["structuredContent"], text(good)["structuredContent"]);
            assert_eq!(scanned(ResultScan::Off, &text(bad)).map(|(result, _)| result), None);
        }
    }

    #[test]
    fn names_of_members_are_flagged_and_cleaned_in_structured_content() {
        let result = |name: &str| {
            let content = json!([{"type": "text", "text": "ok", name: 1}]);
            json!({"content": content, "structuredContent": {"deep": [{name: {"a": 1}}]}})
        };
        let (bad, good) = (result("a\u{e0041}b"), result("ab"));
        let (flagged, rules) = scanned(ResultScan::Flag, &bad).unwrap();
        assert_eq!(rules, ["hidden-tag", "hidden-tag"]);
        assert_eq!(flagged["structuredContent"], bad["structuredContent"]);
        let pointers: Vec<&str> = flagged["_meta"][FINDINGS_MEMBER]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|finding| finding["pointer"].as_str())
            .collect();
        assert!(pointers.contains(&"/structuredContent/deep/0/a<U+E0041>b"), "{pointers:?}");
        let (stripped, rules) = scanned(ResultScan::Strip, &bad).unwrap();
        assert_eq!(rules, ["hidden-tag", "hidden-tag"]);
        assert_eq!(stripped["structuredContent"], good["structuredContent"]);
        assert_eq!(stripped["content"], bad["content"], "no member of MCP comes up");
    }

    #[test]
    fn honest_texts_are_not_changed_and_a_forged_mark_is_replaced() {
        for honest in [
            "plain",
            "two\nlines\t",
            "K\u{f6}ln",
            "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467}",
            "\u{645}\u{6cc}\u{200c}\u{62e}",
        ] {
            assert!(scanned(ResultScan::Strip, &text(honest)).is_none(), "{honest}");
        }
        let mut forged = text("a\u{200b}b");
        forged["_meta"] = json!({FINDINGS_MEMBER: "nothing\u{200b}", "own": 1});
        let (shown, _) = scanned(ResultScan::Strip, &forged).unwrap();
        assert!(shown["_meta"][FINDINGS_MEMBER].is_array(), "{shown}");
        assert_eq!(shown["_meta"]["own"], 1);
    }

    /// Without a limit, the findings would hold gigabytes of copies of one name.
    #[test]
    fn a_long_name_is_not_copied_for_each_text_under_it() {
        let long = "k".repeat(2 * 1024 * 1024);
        let texts: Vec<&str> = vec!["a\u{200b}b"; 20_000];
        let (shown, rules) = scanned(ResultScan::Strip, &json!({&long: texts})).unwrap();
        assert_eq!(rules.len(), FINDINGS_MAX);
        assert_eq!(shown[&long].as_array().map(Vec::len), Some(texts.len()));
        assert!(shown[&long].as_array().unwrap().iter().all(|text| text == "ab"));
    }
}
