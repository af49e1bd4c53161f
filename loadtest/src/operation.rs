//! Operations of a client, and the checks of their answers.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::{
    answer::{self, Answer, ECHO_LABEL},
    era::is_complete,
    findings::{FindingKind, excerpt},
    mix::{Mix, Operation},
    tool_call::{ToolCall, is_payload},
    wire::{NoAnswer, RequestSlot},
};

/// Result of an operation. A wrong answer is already among the findings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallOutcome {
    Succeeded,
    /// The answer was an error, named by its JSON-RPC code or HTTP status.
    Refused(String),
    Wrong,
}

/// Facts about the target that the callers learn during the load.
#[derive(Debug, Default)]
pub struct TargetState {
    /// Tools that the mix calls. Every list must have them. A server can change the rest of its list
    /// at any time.
    called: Vec<String>,
    /// Names of the arguments that take the payload, by tool.
    text_arguments: HashMap<String, String>,
    /// Names of all listed tools. `None` if the list could not be read to its end.
    listed: Option<Vec<String>>,
}

/// Argument of a tool whose schema is not known or does not tell.
const TEXT_ARGUMENT: &str = "text";
/// Pages of a list that are read for the schemas of tools.
const PAGES_MAX: usize = 100;
/// Listed tools that a report names if the load calls another one.
const LISTED_SHOWN: usize = 10;

impl TargetState {
    /// Learns which tools the target lists, and from their schemas which arguments take the payloads
    /// of a mix.
    pub async fn learn(mix: &Mix, lane: &mut RequestSlot) -> Self {
        let called = mix.operations().filter_map(|operation| match operation {
            Operation::Call(call) | Operation::Task(call) => Some(call.tool.clone()),
            _ => None,
        });
        let mut known = Self { called: called.collect(), ..Self::default() };
        let (mut params, mut listed) = ("{}".to_owned(), Vec::new());
        for _ in 0..if known.called.is_empty() { 0 } else { PAGES_MAX } {
            let id = lane.next_id();
            let answer = lane.request(id, "tools/list", None, &params).await.ok();
            let Some(page) = answer.and_then(|frame| answer::read(&frame)?.result) else { break };
            let Some(tools) = page["tools"].as_array() else { break };
            for (tool, name) in tools.iter().filter_map(|tool| Some((tool, tool["name"].as_str()?)))
            {
                if let Some(argument) = text_argument(tool) {
                    known.text_arguments.insert(name.to_owned(), argument.to_owned());
                }
                listed.push(name.to_owned());
            }
            let Some(cursor) = page["nextCursor"].as_str() else {
                known.listed = Some(listed);
                break;
            };
            params = json!({"cursor": cursor}).to_string();
        }
        known
    }

    /// Returns the reason for refusals of a target that does not list a called tool. Such a tool can
    /// exist nevertheless.
    pub fn unlisted_tool(&self) -> Option<String> {
        let listed = self.listed.as_ref()?;
        let absent = self.called.iter().find(|name| !listed.contains(name))?;
        let shown: Vec<String> =
            listed.iter().take(LISTED_SHOWN).map(|name| excerpt(name.as_bytes())).collect();
        let more = if listed.len() > LISTED_SHOWN { ", ..." } else { "" };
        let shown = if shown.is_empty() { "none".to_owned() } else { shown.join(", ") };
        Some(format!(
            "the load calls the tool {absent:?}, which the target does not list; choose another with `tool` and `arguments` in the profile (listed: {shown}{more})"
        ))
    }

    fn text_argument(&self, tool: &str) -> &str {
        self.text_arguments.get(tool).map_or(TEXT_ARGUMENT, String::as_str)
    }
}

/// Returns the only required argument of a tool, if that is a text.
fn text_argument(tool: &Value) -> Option<&str> {
    let schema = &tool["inputSchema"];
    match schema["required"].as_array()?.as_slice() {
        [name] => name.as_str().filter(|name| schema["properties"][name]["type"] == "string"),
        _ => None,
    }
}

/// Carries out the operation on this lane. `number` is that of the operation, which makes every
/// payload unique.
pub async fn perform(
    operation: &Operation,
    number: u64,
    lane: &mut RequestSlot,
    known: &TargetState,
) -> CallOutcome {
    match operation {
        Operation::Call(call) => {
            let (arguments, text) = call.render(number, known.text_argument(&call.tool));
            let params = format!(r#"{{"name":"{}","arguments":{arguments}}}"#, call.tool);
            let about = ("tools/call", Some(call.tool.as_str()));
            let answered = request(lane, about, &params, |answer| call.check(answer, &text)).await;
            answered.map_or_else(|ended| ended, |result| outcome(&result))
        }
        Operation::ListTools => {
            let listed =
                request(lane, ("tools/list", None), "{}", |answer| lists(answer, known)).await;
            listed.map_or_else(|ended| ended, |_| CallOutcome::Succeeded)
        }
        Operation::Read { uri } => {
            let params = json!({"uri": uri}).to_string();
            let read =
                request(lane, ("resources/read", Some(uri)), &params, |answer| holds(answer, uri))
                    .await;
            read.map_or_else(|ended| ended, |_| CallOutcome::Succeeded)
        }
        Operation::Ping => request(lane, ("ping", None), "{}", is_result)
            .await
            .map_or_else(|ended| ended, |_| CallOutcome::Succeeded),
        Operation::Subscribe { uri } => {
            let params = json!({"uri": uri}).to_string();
            for method in ["resources/subscribe", "resources/unsubscribe"] {
                if let Err(ended) = request(lane, (method, None), &params, is_result).await {
                    return ended;
                }
            }
            CallOutcome::Succeeded
        }
        Operation::Task(call) => task(call, number, lane, known).await,
    }
}

/// A tool that reports an error has answered.
fn outcome(result: &Value) -> CallOutcome {
    if result["isError"] == true {
        CallOutcome::Refused("tool error".to_owned())
    } else {
        CallOutcome::Succeeded
    }
}

async fn task(
    call: &ToolCall,
    number: u64,
    lane: &mut RequestSlot,
    known: &TargetState,
) -> CallOutcome {
    let (arguments, text) = call.render(number, known.text_argument(&call.tool));
    let tool = &call.tool;
    let params = format!(r#"{{"name":"{tool}","arguments":{arguments},"task":{{"ttl":60000}}}}"#);
    let id = |result: &Value| {
        result["task"]["taskId"].as_str().map(|id| json!({"taskId": id}).to_string())
    };
    let made = request(lane, ("tools/call", Some(tool)), &params, |frame| {
        let answer = answer::read(frame)?;
        (answer.error.is_some() || id(answer.result.as_ref()?).is_some()).then_some(answer)
    });
    let made = match made.await {
        Ok(result) => id(&result),
        Err(ended) => return ended,
    };
    let collected = request(lane, ("tasks/result", None), &made.unwrap_or_default(), |answer| {
        call.check(answer, &text)
    })
    .await;
    collected.map_or_else(|ended| ended, |result| outcome(&result))
}

/// Sends a request. Returns the result if `check` accepts the answer, or else an error. `about` is
/// the method and the name of its subject.
async fn request(
    lane: &mut RequestSlot,
    about: (&str, Option<&str>),
    params: &str,
    check: impl Fn(&[u8]) -> Option<Answer>,
) -> Result<Value, CallOutcome> {
    let (id, era, (method, name)) = (lane.next_id(), lane.site().era, about);
    let frame = match lane.request(id, method, name, params).await {
        Ok(frame) => frame,
        Err(NoAnswer::Status(status)) => {
            return Err(CallOutcome::Refused(format!("HTTP {status}")));
        }
        Err(NoAnswer::Wrong) => return Err(CallOutcome::Wrong),
        Err(NoAnswer::Lost(why)) => {
            lane.record(FindingKind::Lost, &format!("{method}: {why}"));
            return Err(CallOutcome::Wrong);
        }
    };
    let right = check(&frame)
        .filter(|answer| answer.result.as_ref().is_none_or(|result| is_complete(era, result)));
    match right {
        Some(Answer { error: Some(refused), .. }) => {
            Err(CallOutcome::Refused(format!("code {}", refused.code)))
        }
        Some(Answer { result, .. }) => Ok(result.unwrap_or_default()),
        None => {
            lane.record(
                mistaken(&frame),
                &format!("{method}, request {id} got {}", excerpt(&frame)),
            );
            Err(CallOutcome::Wrong)
        }
    }
}

/// Classifies a wrong payload. A whole payload of another call means that the answers were swapped.
fn mistaken(frame: &[u8]) -> FindingKind {
    let Some(answer) = answer::read(frame) else { return FindingKind::Corrupted };
    let text = answer
        .result
        .and_then(|result| result["content"][0]["text"].as_str().map(str::to_owned))
        .unwrap_or_default();
    if is_payload(text.strip_prefix(ECHO_LABEL).unwrap_or(&text)) {
        FindingKind::Swapped
    } else {
        FindingKind::Corrupted
    }
}

/// Parses an answer. Errors pass every check, because they are valid answers.
fn or_error(frame: &[u8], is_right: impl Fn(&Value) -> bool) -> Option<Answer> {
    let answer = answer::read(frame)?;
    answer.result.as_ref().is_none_or(is_right).then_some(answer)
}

fn is_result(frame: &[u8]) -> Option<Answer> {
    or_error(frame, Value::is_object)
}

fn holds(frame: &[u8], uri: &str) -> Option<Answer> {
    or_error(frame, |result| result["contents"][0]["uri"] == uri)
}

fn lists(frame: &[u8], known: &TargetState) -> Option<Answer> {
    or_error(frame, |result| {
        let Some(tools) = result["tools"].as_array() else { return false };
        let is_listed = |name: &String| tools.iter().any(|tool| tool["name"] == *name);
        // A tool can be on another page.
        let is_page = result["nextCursor"].is_string();
        !tools.is_empty() && (is_page || known.called.iter().all(is_listed))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool_call::payload;

    fn answer(text: &str) -> String {
        json!({"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": text}]}})
            .to_string()
    }

    #[test]
    fn a_list_must_contain_the_called_tools_and_may_change_otherwise() {
        let known = TargetState { called: vec!["echo".to_owned()], ..TargetState::default() };
        let is_good = |result: Value| {
            let frame = json!({"jsonrpc": "2.0", "id": 1, "result": result}).to_string();
            lists(frame.as_bytes(), &known).is_some()
        };
        assert!(is_good(json!({"tools": [{"name": "echo"}]})));
        assert!(is_good(json!({"tools": [{"name": "new"}, {"name": "echo"}]})));
        assert!(is_good(json!({"tools": [{"name": "new"}], "nextCursor": "2"})));
        assert!(!is_good(json!({"tools": [{"name": "new"}]})));
        assert!(!is_good(json!({"tools": []})) && !is_good(json!({})));
    }

    #[test]
    fn a_called_tool_that_is_not_listed_is_named() {
        let known = |listed: Option<&[&str]>| {
            let listed = listed.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
            TargetState { called: vec!["echo".to_owned()], listed, ..TargetState::default() }
        };
        assert_eq!(known(None).unlisted_tool(), None, "the list is not known");
        assert_eq!(known(Some(&["other", "echo"])).unlisted_tool(), None);
        let reason = known(Some(&["search", "fetch\x1b"])).unlisted_tool().unwrap();
        assert!(reason.contains(r#"the tool "echo""#), "{reason}");
        assert!(reason.contains("(listed: search, fetch\u{fffd})"), "{reason}");
        assert!(known(Some(&[])).unlisted_tool().unwrap().contains("(listed: none)"));
        let many = known(Some(&["a"; 11])).unlisted_tool().unwrap();
        assert!(many.ends_with("a, a, ...)"), "{many}");
    }

    #[test]
    fn a_foreign_payload_is_distinguished_from_a_corrupted_one() {
        let other = payload(8, 100);
        assert_eq!(mistaken(answer(&other).as_bytes()), FindingKind::Swapped);
        assert_eq!(mistaken(answer(&other[1..]).as_bytes()), FindingKind::Corrupted);
        assert_eq!(mistaken(b"{"), FindingKind::Corrupted);
    }

    #[test]
    fn the_payload_is_put_into_the_only_required_text_argument() {
        let tool = |required: Value, kind: &str| {
            let properties = json!({"message": {"type": kind}, "more": {"type": "string"}});
            json!({"inputSchema": {"properties": properties, "required": required}})
        };
        assert_eq!(text_argument(&tool(json!(["message"]), "string")), Some("message"));
        assert_eq!(text_argument(&tool(json!(["message"]), "number")), None);
        assert_eq!(text_argument(&tool(json!(["message", "more"]), "string")), None);
        assert_eq!(text_argument(&json!({"inputSchema": {"type": "object"}})), None);
    }

    #[test]
    fn an_error_is_a_valid_answer_to_every_request() {
        let error = br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no"}}"#;
        assert!(is_result(error).is_some() && holds(error, "x").is_some());
        assert!(holds(answer("y").as_bytes(), "x").is_none());
    }
}
