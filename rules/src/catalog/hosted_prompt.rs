//! Prompts that the broker hosts for a tenant: templates that operators write.
//!
//! A template is text with `{{argument}}` placeholders. It has no logic and reads nothing. A value
//! is put in place as it is, and is not searched for placeholders again. The prompts are listed
//! like those of a backend, so access policies and toolsets concern them too.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::BackendId,
    json::{self, Document, ValueKind},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::{BackendLists, ListKind, TaskHost, read_page};
use crate::limits::{
    COMPLETION_VALUES_MAX,
    toolsets::{
        HOSTED_PROMPT_ARGUMENTS_MAX, HOSTED_PROMPT_MESSAGES_MAX, HOSTED_PROMPT_NAME_BYTES_MAX,
        HOSTED_PROMPT_RESULT_BYTES_MAX, HOSTED_PROMPT_TEXT_BYTES_MAX, HOSTED_PROMPT_VALUES_MAX,
    },
};

/// A prompt, as operators write it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostedPromptDocument {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<PromptArgument>,
    pub messages: Vec<PromptMessage>,
}

/// An argument of a hosted prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PromptArgument {
    /// Letters, digits, `-` and `_`, at most 64.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether the prompt needs it. An optional argument that is absent is an empty text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub required: bool,
    /// The values that it may have, and that completions offer. Empty: any text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// A message of a hosted prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PromptMessage {
    #[serde(default)]
    pub role: PromptRole,
    /// Text with placeholders such as `{{argument}}`.
    pub text: String,
}

/// Who says a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PromptRole {
    #[default]
    User,
    Assistant,
}

/// A member of a prompt that cannot be used: its path, and what is wrong.
pub type PromptFault = (String, String);

/// A part of a template.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Argument(String),
}

/// A prompt in force.
#[derive(Debug)]
pub struct HostedPrompt {
    document: HostedPromptDocument,
    messages: Vec<(PromptRole, Vec<Piece>)>,
}

/// The prompts of a tenant, by name.
#[derive(Debug, Default)]
pub struct HostedPrompts(BTreeMap<String, Arc<HostedPrompt>>);

/// Permitted names of hosted prompts.
pub const PROMPT_NAME_ALLOWED: &str = "1 to 64 letters, digits, '-' and '_', without '__'";
const _: () = assert!(HOSTED_PROMPT_NAME_BYTES_MAX == 64); // the text names it

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a prompt's name has {PROMPT_NAME_ALLOWED}")]
pub struct InvalidPromptName;

/// Returns the text as the name of a hosted prompt. It never looks like the name of a backend's
/// prompt on the aggregated endpoint.
pub fn parse_prompt_name(name: &str) -> Result<String, InvalidPromptName> {
    let is_name = is_argument_name(name) && !name.contains("__");
    is_name.then(|| name.to_owned()).ok_or(InvalidPromptName)
}

fn is_argument_name(name: &str) -> bool {
    (1..=HOSTED_PROMPT_NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

impl HostedPrompt {
    /// Checks a document and takes its templates apart. All faults are reported at once.
    pub fn compile(document: &HostedPromptDocument) -> Result<Self, Vec<PromptFault>> {
        let mut faults = arguments_faults(&document.arguments);
        let mut fault = |path: String, problem: String| faults.push((path, problem));
        if document.messages.is_empty() {
            fault(
                "messages".to_owned(),
                "is empty; a prompt must have at least one message".to_owned(),
            );
        } else if document.messages.len() > HOSTED_PROMPT_MESSAGES_MAX {
            let text = format!("has more than {HOSTED_PROMPT_MESSAGES_MAX} entries");
            fault("messages".to_owned(), text);
        }
        let texts = document.messages.iter().map(|message| message.text.len());
        let described = [&document.title, &document.description].into_iter().flatten();
        if texts.chain(described.map(String::len)).sum::<usize>() > HOSTED_PROMPT_TEXT_BYTES_MAX {
            let text = format!("have more than {HOSTED_PROMPT_TEXT_BYTES_MAX} bytes together");
            fault("messages".to_owned(), text);
        }
        let known: BTreeSet<&str> =
            document.arguments.iter().map(|argument| argument.name.as_str()).collect();
        let mut messages = Vec::new();
        for (index, message) in document.messages.iter().enumerate() {
            match pieces(&message.text, &known) {
                Ok(pieces) => messages.push((message.role, pieces)),
                Err(problems) => {
                    let path = format!("messages[{index}].text");
                    problems.into_iter().for_each(|problem| fault(path.clone(), problem));
                }
            }
        }
        if faults.is_empty() {
            Ok(Self { document: document.clone(), messages })
        } else {
            Err(faults)
        }
    }

    /// Returns the result of `prompts/get`.
    pub fn fill(&self, arguments: Option<&[u8]>) -> Result<Bytes, Refusal> {
        let values = self.values(arguments)?;
        let mut bytes = 0;
        let mut messages = Vec::new();
        for (role, pieces) in &self.messages {
            let parts: Vec<&str> = pieces
                .iter()
                .map(|piece| match piece {
                    Piece::Text(text) => text.as_str(),
                    Piece::Argument(name) => values.get(name).map_or("", String::as_str),
                })
                .collect();
            bytes += parts.iter().map(|part| part.len()).sum::<usize>();
            if bytes > HOSTED_PROMPT_RESULT_BYTES_MAX {
                let text = format!(
                    "the filled prompt has more than {HOSTED_PROMPT_RESULT_BYTES_MAX} bytes"
                );
                return Err(Refusal::new(ErrorKind::InvalidParams, text));
            }
            let content = json!({"type": "text", "text": parts.concat()});
            messages.push(json!({"role": role, "content": content}));
        }
        let mut result = json!({"messages": messages});
        if let Some(description) = &self.document.description {
            result["description"] = description.as_str().into();
        }
        Ok(result.to_string().into())
    }

    fn values(&self, arguments: Option<&[u8]>) -> Result<BTreeMap<String, String>, Refusal> {
        let refuse = |text: String| Refusal::new(ErrorKind::InvalidParams, text);
        let mut values = BTreeMap::new();
        if let Some(text) = arguments {
            let limits = json::Limits::with_bytes_max(text.len());
            let document = Document::parse(text, &limits)
                .map_err(|_| refuse("params.arguments cannot be read".to_owned()))?;
            if document.root().kind() != ValueKind::Object {
                return Err(refuse("params.arguments must be an object".to_owned()));
            }
            for member in document.root().members() {
                let Some(argument) = self.argument(&member.key) else {
                    return Err(refuse(
                        "params.arguments names an argument that the prompt does not have"
                            .to_owned(),
                    ));
                };
                let value = member.value.as_str().ok_or_else(|| {
                    refuse(format!("params.arguments.{} must be a string", argument.name))
                })?;
                let is_listed =
                    argument.values.is_empty() || argument.values.iter().any(|one| *one == value);
                if !is_listed {
                    let text = format!(
                        "params.arguments.{} is not one of the listed values",
                        argument.name
                    );
                    return Err(refuse(text));
                }
                if values.insert(argument.name.clone(), value.into_owned()).is_some() {
                    return Err(refuse(format!("params.arguments.{} occurs twice", argument.name)));
                }
            }
        }
        let is_missing =
            |argument: &&PromptArgument| argument.required && !values.contains_key(&argument.name);
        match self.document.arguments.iter().find(is_missing) {
            Some(missing) => Err(refuse(format!("params.arguments.{} is missing", missing.name))),
            None => Ok(values),
        }
    }

    fn argument(&self, name: &str) -> Option<&PromptArgument> {
        self.document.arguments.iter().find(|argument| argument.name == name)
    }

    /// Returns the result of `completion/complete`: the listed values that begin with a text.
    pub fn complete(&self, argument: &str, prefix: &str) -> Bytes {
        let values = self.argument(argument).map_or(&[][..], |argument| &argument.values);
        let matching: Vec<&String> =
            values.iter().filter(|value| value.starts_with(prefix)).collect();
        let shown = &matching[..matching.len().min(COMPLETION_VALUES_MAX)];
        let has_more = shown.len() < matching.len();
        let completion = json!({"values": shown, "total": matching.len(), "hasMore": has_more});
        json!({"completion": completion}).to_string().into()
    }

    /// Returns the entry of the list of prompts.
    fn entry(&self, name: &str) -> serde_json::Value {
        let arguments = self.document.arguments.iter().map(|argument| {
            let mut shown = json!({"name": argument.name, "required": argument.required});
            if let Some(description) = &argument.description {
                shown["description"] = description.as_str().into();
            }
            shown
        });
        let mut entry = json!({"name": name, "arguments": arguments.collect::<Vec<_>>()});
        for (member, text) in
            [("title", &self.document.title), ("description", &self.document.description)]
        {
            if let Some(text) = text {
                entry[member] = text.as_str().into();
            }
        }
        entry
    }
}

fn arguments_faults(arguments: &[PromptArgument]) -> Vec<PromptFault> {
    let mut faults = Vec::new();
    if arguments.len() > HOSTED_PROMPT_ARGUMENTS_MAX {
        let text = format!("has more than {HOSTED_PROMPT_ARGUMENTS_MAX} entries");
        faults.push(("arguments".to_owned(), text));
    }
    for (index, argument) in arguments.iter().enumerate() {
        let path = format!("arguments[{index}]");
        if !is_argument_name(&argument.name) {
            let text =
                format!("must be 1 to {HOSTED_PROMPT_NAME_BYTES_MAX} letters, digits, `-` and `_`");
            faults.push((format!("{path}.name"), text));
        } else if arguments[..index].iter().any(|other| other.name == argument.name) {
            faults.push((format!("{path}.name"), "is the name of an earlier argument".to_owned()));
        }
        if argument.values.len() > HOSTED_PROMPT_VALUES_MAX {
            let text = format!("has more than {HOSTED_PROMPT_VALUES_MAX} entries");
            faults.push((format!("{path}.values"), text));
        }
        let bytes: usize = argument.values.iter().map(String::len).sum();
        if bytes > HOSTED_PROMPT_TEXT_BYTES_MAX {
            let text = format!("has more than {HOSTED_PROMPT_TEXT_BYTES_MAX} bytes");
            faults.push((format!("{path}.values"), text));
        }
    }
    faults
}

/// Takes a template apart, or returns every placeholder in it that stands for no argument.
fn pieces(text: &str, known: &BTreeSet<&str>) -> Result<Vec<Piece>, Vec<String>> {
    let (mut pieces, mut problems, mut rest) = (Vec::new(), Vec::new(), text);
    while let Some(start) = rest.find("{{") {
        let (before, placeholder) = (&rest[..start], &rest[start + 2..]);
        let Some(end) = placeholder.find("}}") else {
            problems.push("has a {{ without the closing }}".to_owned());
            break;
        };
        let name = placeholder[..end].trim_matches(' ');
        if !is_argument_name(name) {
            problems.push("has a placeholder that is not {{argument}}".to_owned());
        } else if !known.contains(name) {
            let known: Vec<&str> = known.iter().copied().collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            problems.push(format!("names the undeclared argument {name}; declared: {known}"));
        }
        pieces.push(Piece::Text(before.to_owned()));
        pieces.push(Piece::Argument(name.to_owned()));
        rest = &placeholder[end + 2..];
    }
    pieces.push(Piece::Text(rest.to_owned()));
    if problems.is_empty() { Ok(pieces) } else { Err(problems) }
}

impl HostedPrompts {
    pub fn new(prompts: impl IntoIterator<Item = (String, Arc<HostedPrompt>)>) -> Self {
        Self(prompts.into_iter().collect())
    }

    pub fn get(&self, name: &str) -> Option<&HostedPrompt> {
        self.0.get(name).map(|prompt| &**prompt)
    }

    /// Returns the prompts as the lists of a backend. `None`: there are none.
    pub(super) fn lists(&self) -> Option<BackendLists> {
        if self.0.is_empty() {
            return None;
        }
        let entries: Vec<serde_json::Value> =
            self.0.iter().map(|(name, prompt)| prompt.entry(name)).collect();
        let page = json!({"prompts": entries}).to_string();
        let page =
            read_page(ListKind::Prompts, &BackendId::hosted(), TaskHost::Backend, page.as_bytes());
        let mut prompts = page.ok()?.entries;
        for entry in &mut prompts {
            entry.exposed_key.clone_from(&entry.key);
            entry.exposed = entry.native.clone();
        }
        let none = BackendLists::declaring(br#"{"prompts":{},"completions":{}}"#).ok()?;
        Some(BackendLists { prompts, ..none })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(text: &str) -> Result<HostedPrompt, Vec<PromptFault>> {
        HostedPrompt::compile(&serde_json::from_str(text).unwrap())
    }

    fn review() -> HostedPrompt {
        prompt(
            r#"{"description":"d","arguments":[{"name":"lang","required":true,"values":["rust","ruby","go"]},{"name":"note"}],
                "messages":[{"text":"Review {{lang}}: {{ note }}{{lang}}"},{"role":"assistant","text":"Yes."}]}"#,
        )
        .unwrap()
    }

    fn filled(arguments: &str) -> Result<serde_json::Value, String> {
        let result =
            review().fill(Some(arguments.as_bytes())).map_err(|refusal| refusal.message)?;
        Ok(serde_json::from_slice(&result).unwrap())
    }

    #[test]
    fn placeholders_get_their_values_which_are_not_expanded_again() {
        let result = filled(r#"{"lang":"go","note":"{{lang}} \"<\u0041"}"#).unwrap();
        assert_eq!(result["messages"][0]["content"]["text"], "Review go: {{lang}} \"<Ago");
        assert_eq!(
            result["messages"][1],
            json!({"role":"assistant","content":{"type":"text","text":"Yes."}})
        );
        assert_eq!(result["description"], "d");
        assert_eq!(
            filled(r#"{"lang":"go"}"#).unwrap()["messages"][0]["content"]["text"],
            "Review go: go"
        );
    }

    #[test]
    fn prompt_arguments_are_checked_against_their_declarations() {
        for (arguments, problem) in [
            ("{}", "params.arguments.lang is missing"),
            (r#"{"lang":"c"}"#, "params.arguments.lang is not one of the listed values"),
            (r#"{"lang":1}"#, "params.arguments.lang must be a string"),
            (r#"{"lang":"go","lang":"go"}"#, "params.arguments.lang occurs twice"),
            (
                r#"{"lang":"go","x":""}"#,
                "params.arguments names an argument that the prompt does not have",
            ),
            ("[]", "params.arguments must be an object"),
        ] {
            assert_eq!(filled(arguments), Err(problem.to_owned()), "{arguments}");
        }
    }

    #[test]
    fn completions_come_from_the_listed_values() {
        let complete = |argument: &str, prefix: &str| {
            let result: serde_json::Value =
                serde_json::from_slice(&review().complete(argument, prefix)).unwrap();
            result["completion"]["values"].clone()
        };
        assert_eq!(complete("lang", "ru"), json!(["rust", "ruby"]));
        assert_eq!(complete("note", ""), json!([]));
        assert_eq!(complete("gone", ""), json!([]));
    }

    #[test]
    fn every_fault_has_its_path() {
        let faults = prompt(
            r#"{"arguments":[{"name":"a b"},{"name":"x"},{"name":"x"}],"messages":[{"text":"{{y}} {{ }} {{x"},{"text":"{{x}}"}]}"#,
        )
        .unwrap_err();
        let paths: Vec<&str> = faults.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "arguments[0].name",
                "arguments[2].name",
                "messages[0].text",
                "messages[0].text",
                "messages[0].text"
            ]
        );
        assert!(faults[2].1.contains("undeclared argument y"), "{faults:?}");
        assert!(prompt(r#"{"messages":[]}"#).is_err());
    }

    #[test]
    fn a_huge_value_in_many_placeholders_is_refused() {
        let placeholders = "{{a}}".repeat(2_000);
        let document = json!({"arguments": [{"name": "a"}], "messages": [{"text": placeholders}]});
        let prompt = prompt(&document.to_string()).unwrap();
        let long = json!({"a": "x".repeat(1_000)}).to_string();
        assert!(prompt.fill(Some(long.as_bytes())).is_err());
    }
}
