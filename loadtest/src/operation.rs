//! Operations of a client, and the checks of their answers.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::{
    answer::{self, Answer},
    era::is_complete,
    findings::{FindingKind, excerpt},
    mix::Operation,
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
    /// Number of tools in the first list. Every later list must have as many.
    tools: AtomicUsize,
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
        Operation::Call { tool, bytes } => {
            let text = payload(number, size(bytes, number));
            let params = format!(r#"{{"name":"{tool}","arguments":{{"text":"{text}"}}}}"#);
            let answered =
                ask(lane, ("tools/call", Some(tool)), &params, |answer| echoes(answer, &text))
                    .await;
            answered.map_or_else(|ended| ended, |_| CallOutcome::Succeeded)
        }
        Operation::ListTools => {
            let listed = ask(lane, ("tools/list", None), "{}", |answer| lists(answer, known)).await;
            listed.map_or_else(|ended| ended, |_| CallOutcome::Succeeded)
        }
        Operation::Read { uri } => {
            let params = json!({"uri": uri}).to_string();
            let read =
                ask(lane, ("resources/read", Some(uri)), &params, |answer| holds(answer, uri))
                    .await;
            read.map_or_else(|ended| ended, |_| CallOutcome::Succeeded)
        }
        Operation::Ping => ask(lane, ("ping", None), "{}", is_result)
            .await
            .map_or_else(|ended| ended, |_| CallOutcome::Succeeded),
        Operation::Subscribe { uri } => {
            let params = json!({"uri": uri}).to_string();
            for method in ["resources/subscribe", "resources/unsubscribe"] {
                if let Err(ended) = ask(lane, (method, None), &params, is_result).await {
                    return ended;
                }
            }
            CallOutcome::Succeeded
        }
        Operation::Task { tool, bytes } => {
            task(tool, &payload(number, size(bytes, number)), lane).await
        }
    }
}

async fn task(tool: &str, text: &str, lane: &mut RequestSlot) -> CallOutcome {
    let params =
        format!(r#"{{"name":"{tool}","arguments":{{"text":"{text}"}},"task":{{"ttl":60000}}}}"#);
    let id = |result: &Value| {
        result["task"]["taskId"].as_str().map(|id| json!({"taskId": id}).to_string())
    };
    let made = ask(lane, ("tools/call", Some(tool)), &params, |frame| {
        let answer = answer::read(frame)?;
        (answer.error.is_some() || id(answer.result.as_ref()?).is_some()).then_some(answer)
    });
    let made = match made.await {
        Ok(result) => id(&result),
        Err(ended) => return ended,
    };
    let collected =
        ask(lane, ("tasks/result", None), &made.unwrap_or_default(), |answer| echoes(answer, text))
            .await;
    collected.map_or_else(|ended| ended, |_| CallOutcome::Succeeded)
}

/// Sends a request. Returns the result if `check` accepts the answer, or else an error. `about` is
/// the method and the name of its subject.
async fn ask(
    lane: &mut RequestSlot,
    about: (&str, Option<&str>),
    params: &str,
    check: impl Fn(&[u8]) -> Option<Answer>,
) -> Result<Value, CallOutcome> {
    let (id, era, (method, name)) = (lane.next_id(), lane.site().era, about);
    let frame = match lane.ask(id, method, name, params).await {
        Ok(frame) => frame,
        Err(NoAnswer::Status(status)) => {
            return Err(CallOutcome::Refused(format!("HTTP {status}")));
        }
        Err(NoAnswer::Wrong) => return Err(CallOutcome::Wrong),
        Err(NoAnswer::Lost(why)) => {
            lane.note(FindingKind::Lost, &format!("{method}: {why}"));
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
            lane.note(mistaken(&frame), &format!("{method}, request {id} got {}", excerpt(&frame)));
            Err(CallOutcome::Wrong)
        }
    }
}

/// Prefix of every payload, before its number, so that payloads can be told apart.
const PAYLOAD_MARK: &str = "payload-";

fn size(sizes: &[usize], number: u64) -> usize {
    sizes[(number % sizes.len() as u64) as usize]
}

/// Returns a payload of this size that no other call sends. It is longer if the size is too small
/// for its number.
fn payload(number: u64, bytes: usize) -> String {
    const FILL: &str = "all work and no play makes a dull proxy; ";
    let mut text = format!("{PAYLOAD_MARK}{number}-");
    while text.len() < bytes {
        text.push_str(&FILL[..FILL.len().min(bytes - text.len())]);
    }
    text
}

/// Classifies a wrong payload. A whole payload of another call means that the answers were swapped.
fn mistaken(frame: &[u8]) -> FindingKind {
    let Some(answer) = answer::read(frame) else { return FindingKind::Corrupted };
    let text = answer
        .result
        .and_then(|result| result["content"][0]["text"].as_str().map(str::to_owned))
        .unwrap_or_default();
    let number = text
        .strip_prefix(PAYLOAD_MARK)
        .and_then(|rest| rest.split_once('-'))
        .and_then(|(number, _)| number.parse().ok());
    match number {
        Some(number) if payload(number, text.len()) == text => FindingKind::Swapped,
        _ => FindingKind::Corrupted,
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

fn echoes(frame: &[u8], text: &str) -> Option<Answer> {
    answer::read_echo(frame, text).or_else(|| or_error(frame, |_| false))
}

fn holds(frame: &[u8], uri: &str) -> Option<Answer> {
    or_error(frame, |result| result["contents"][0]["uri"] == uri)
}

fn lists(frame: &[u8], known: &TargetState) -> Option<Answer> {
    or_error(frame, |result| {
        let count = result["tools"].as_array().map_or(0, Vec::len);
        let first = known
            .tools
            .compare_exchange(0, count, Ordering::Relaxed, Ordering::Relaxed)
            .unwrap_or_else(|first| first);
        count > 0 && (first == 0 || first == count)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> String {
        json!({"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": text}]}})
            .to_string()
    }

    #[test]
    fn a_foreign_payload_is_told_from_a_broken_one() {
        assert_eq!(payload(7, 100).len(), 100);
        assert_eq!(mistaken(answer(&payload(8, 100)).as_bytes()), FindingKind::Swapped);
        assert_eq!(
            mistaken(answer(&payload(8, 100).replace("dull", "DULL")).as_bytes()),
            FindingKind::Corrupted
        );
        assert_eq!(mistaken(answer("something else").as_bytes()), FindingKind::Corrupted);
        assert_eq!(mistaken(b"{"), FindingKind::Corrupted);
    }

    #[test]
    fn an_error_is_an_answer_to_everything() {
        let error = br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no"}}"#;
        assert!(
            echoes(error, "x").is_some()
                && is_result(error).is_some()
                && holds(error, "x").is_some()
        );
        assert!(
            echoes(answer("y").as_bytes(), "x").is_none()
                && holds(answer("y").as_bytes(), "x").is_none()
        );
    }

    #[test]
    fn a_list_that_grows_or_is_empty_is_wrong() {
        let known = TargetState::default();
        let list = |count: usize| {
            json!({"id": 1, "result": {"tools": vec![json!({}); count]}}).to_string()
        };
        assert!(lists(list(0).as_bytes(), &known).is_none());
        assert!(lists(list(2).as_bytes(), &known).is_some());
        assert!(lists(list(3).as_bytes(), &known).is_none());
        assert!(lists(list(2).as_bytes(), &known).is_some());
    }
}
