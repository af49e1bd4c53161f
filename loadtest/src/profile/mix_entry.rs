//! One operation of a profile, parsed and checked.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    mix::Operation,
    tool_call::{Arguments, Expectation, Template, ToolCall},
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MixEntry {
    pub(super) method: String,
    #[serde(default = "weight_of_one")]
    weight: u32,
    tool: Option<String>,
    uri: Option<String>,
    bytes: Option<Sizes>,
    arguments: Option<Map<String, Value>>,
    expect: Option<Expect>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Expect {
    Name(String),
    Equals(Equals),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Equals {
    pointer: String,
    equals: Value,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Sizes {
    One(Size),
    Several(Vec<Size>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Size {
    Number(usize),
    Text(String),
}

const WEIGHT_MAX: u32 = 10_000;
const PAYLOAD_BYTES_MAX: usize = 64 * 1024 * 1024;
const PAYLOAD_BYTES_DEFAULT: usize = 256;
pub(super) const METHODS: &str = "tools/call, tools/list, resources/read, ping, subscription, task";
const EXPECTATIONS: &str = "`echo`, `success`, or `{pointer: /structuredContent/sum, equals: 3}`";
const PLACEHOLDERS: &str = "`{{n}}` or `{{text:4KB}}`";

fn weight_of_one() -> u32 {
    1
}

impl MixEntry {
    pub(super) fn checked(self, path: &str, faults: &mut Vec<String>) -> (Operation, u32) {
        let weight = self.weight;
        if !(1..=WEIGHT_MAX).contains(&weight) {
            faults.push(format!("{path}.weight: {weight}; 1 to {WEIGHT_MAX} is allowed"));
        }
        let calls_tool = matches!(self.method.as_str(), "tools/call" | "task");
        let takes_uri = matches!(self.method.as_str(), "resources/read" | "subscription");
        for (key, is_given, is_taken) in [
            ("tool", self.tool.is_some(), calls_tool),
            ("bytes", self.bytes.is_some(), calls_tool),
            ("arguments", self.arguments.is_some(), calls_tool),
            ("expect", self.expect.is_some(), calls_tool),
            ("uri", self.uri.is_some(), takes_uri),
        ] {
            if is_given && !is_taken {
                faults.push(format!("{path}.{key}: {} does not accept this member", self.method));
            }
        }
        if takes_uri && self.uri.is_none() {
            faults
                .push(format!("{path}.uri: missing; {} needs the URI of a resource", self.method));
        }
        let Self { method, tool, uri, bytes, arguments, expect, .. } = self;
        let uri = uri.unwrap_or_default();
        let operation = match method.as_str() {
            "tools/call" => {
                Operation::Call(tool_call(path, tool, bytes, arguments, expect, faults))
            }
            "tools/list" => Operation::ListTools,
            "resources/read" => Operation::Read { uri },
            "ping" => Operation::Ping,
            "subscription" => Operation::Subscribe { uri },
            "task" => Operation::Task(tool_call(path, tool, bytes, arguments, expect, faults)),
            other => {
                faults.push(format!("{path}.method: {other:?} is not one of {METHODS}"));
                Operation::Ping
            }
        };
        (operation, weight.min(WEIGHT_MAX))
    }
}

fn tool_call(
    path: &str,
    tool: Option<String>,
    bytes: Option<Sizes>,
    arguments: Option<Map<String, Value>>,
    expect: Option<Expect>,
    faults: &mut Vec<String>,
) -> ToolCall {
    let of_echo = ToolCall::echo(Vec::new());
    if arguments.is_some() && bytes.is_some() {
        faults.push(format!("{path}.bytes: write the size in `arguments`, as {{{{text:4KB}}}}"));
    }
    let template = arguments.map(|arguments| {
        Template::parse(&arguments, size).unwrap_or_else(|found| {
            faults.push(format!(
                "{path}.arguments: {{{{{found}}}}} is not a placeholder; write {PLACEHOLDERS}"
            ));
            Template::default()
        })
    });
    let can_echo = template.as_ref().is_none_or(Template::has_one_text);
    let expect = match expect {
        None if template.is_some() => Expectation::Success,
        None => Expectation::Echo,
        Some(Expect::Name(name)) if name == "echo" => {
            if !can_echo {
                faults.push(format!(
                    "{path}.expect: an echo needs exactly one {{{{text:SIZE}}}} in `arguments`"
                ));
            }
            Expectation::Echo
        }
        Some(Expect::Name(name)) if name == "success" => Expectation::Success,
        Some(Expect::Equals(Equals { pointer, equals })) if pointer.starts_with('/') => {
            Expectation::Equals { pointer, value: equals }
        }
        Some(other) => {
            let given = match other {
                Expect::Name(name) => name,
                Expect::Equals(Equals { pointer, .. }) => pointer,
            };
            faults.push(format!("{path}.expect: {given:?} is not valid; write {EXPECTATIONS}"));
            Expectation::Success
        }
    };
    ToolCall {
        tool: tool.unwrap_or(of_echo.tool),
        arguments: match template {
            Some(template) => Arguments::Template(template),
            None => Arguments::Payload(sizes(&format!("{path}.bytes"), bytes, faults)),
        },
        expect,
    }
}

fn sizes(key: &str, sizes: Option<Sizes>, faults: &mut Vec<String>) -> Vec<usize> {
    let sizes = match sizes {
        None => return vec![PAYLOAD_BYTES_DEFAULT],
        Some(Sizes::One(size)) => vec![size],
        Some(Sizes::Several(sizes)) => sizes,
    };
    if sizes.is_empty() {
        faults.push(format!("{key}: the list is empty"));
    }
    sizes.iter().map(|size| size.bytes(key, faults)).collect()
}

impl Size {
    fn bytes(&self, key: &str, faults: &mut Vec<String>) -> usize {
        let bytes = match self {
            Self::Number(bytes) => Some(*bytes).filter(|bytes| *bytes <= PAYLOAD_BYTES_MAX),
            Self::Text(text) => size(text),
        };
        bytes.unwrap_or_else(|| {
            faults.push(format!(
                "{key}: {self:?} is not a size; write 256, 4KB or 1MB, at most 64MB"
            ));
            PAYLOAD_BYTES_DEFAULT
        })
    }
}

/// Parses a size such as `256`, `256B`, `4KB` or `1MB`. A kilobyte has 1024 bytes.
fn size(text: &str) -> Option<usize> {
    let at = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let unit = match text[at..].trim() {
        "" | "B" => 1,
        "KB" => 1024,
        "MB" => 1024 * 1024,
        _ => return None,
    };
    let bytes = text[..at].parse::<usize>().ok()?.checked_mul(unit)?;
    Some(bytes).filter(|bytes| *bytes <= PAYLOAD_BYTES_MAX)
}
