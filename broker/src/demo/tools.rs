//! Tools of the demo backend. Wrong arguments are the tool's own error, which a model can read and
//! correct (MCP 2025-11-25, Tools, Error Handling). An unknown tool is a protocol error.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    catalog::COUNTER,
    session::{DemoSession, RpcError},
};

const COUNTDOWN_FROM: u64 = 3;
const COUNTDOWN_FROM_MAX: u64 = 100;
const PAUSE_MS: u64 = 200;
const PAUSE_MS_MAX: u64 = 10_000;

/// Reason of a tool's failure, as text for a model.
type ToolFailure = String;

pub(super) async fn call(session: &DemoSession, params: &Value) -> Result<Value, RpcError> {
    let arguments = &params["arguments"];
    let done = match params["name"].as_str() {
        Some("echo") => echo(arguments),
        Some("add") => add(arguments),
        Some("countdown") => {
            countdown(session, arguments, params["_meta"].get("progressToken")).await
        }
        Some("ask") => elicit(session, arguments).await,
        Some("increment") => increment(session, arguments).await,
        Some(other) => return Err(RpcError::invalid(format!("unknown tool {other}"))),
        None => return Err(RpcError::invalid("name is missing or not a text")),
    };
    Ok(done.unwrap_or_else(
        |excuse| json!({ "content": [{ "type": "text", "text": excuse }], "isError": true }),
    ))
}

fn text_result(text: impl Into<String>) -> Value {
    json!({ "content": [{ "type": "text", "text": text.into() }] })
}

/// Returns structured content, and the same as text for clients that do not support it.
fn structured(value: Value) -> Value {
    json!({ "content": [{ "type": "text", "text": value.to_string() }], "structuredContent": value })
}

fn echo(arguments: &Value) -> Result<Value, ToolFailure> {
    arguments["message"]
        .as_str()
        .map(text_result)
        .ok_or_else(|| "message is missing or not a text".to_owned())
}

fn add(arguments: &Value) -> Result<Value, ToolFailure> {
    let number = |name: &str| {
        arguments[name].as_number().ok_or_else(|| format!("{name} is missing or not a number"))
    };
    let (a, b) = (number("a")?, number("b")?);
    let whole = a.as_i64().zip(b.as_i64()).and_then(|(a, b)| a.checked_add(b)).map(Value::from);
    let sum = whole.or_else(|| Some(json!(a.as_f64()? + b.as_f64()?))).filter(|sum| !sum.is_null());
    Ok(structured(json!({ "sum": sum.ok_or("the sum is too large")? })))
}

async fn countdown(
    session: &DemoSession,
    arguments: &Value,
    token: Option<&Value>,
) -> Result<Value, ToolFailure> {
    let from = whole(arguments, "from", COUNTDOWN_FROM, 1, COUNTDOWN_FROM_MAX)?;
    let pause = Duration::from_millis(whole(arguments, "pause_ms", PAUSE_MS, 0, PAUSE_MS_MAX)?);
    for done in 0..from {
        let text = format!("{} to go", from - done);
        session.log("info", text.clone()).await;
        if let Some(token) = token {
            let progress =
                json!({ "progressToken": token, "progress": done, "total": from, "message": text });
            session.notify("notifications/progress", progress).await;
        }
        // Usually cancelled here, when the caller drops this future.
        tokio::time::sleep(pause).await;
    }
    Ok(text_result("lift-off"))
}

async fn elicit(session: &DemoSession, arguments: &Value) -> Result<Value, ToolFailure> {
    let question = arguments["question"].as_str().unwrap_or("What is your favourite colour?");
    if !session.locked(|state| state.supports_forms) {
        return Err("this client cannot ask its user: it has no elicitation capability".to_owned());
    }
    let schema = json!({ "type": "object", "properties": { "answer": { "type": "string", "title": "Answer" } }, "required": ["answer"] });
    let answer = session
        .request("elicitation/create", json!({ "message": question, "requestedSchema": schema }))
        .await;
    let result = answer
        .as_ref()
        .and_then(|answer| answer.get("result"))
        .ok_or("the client refused to ask its user")?;
    match result["action"].as_str() {
        Some("accept") => Ok(text_result(format!(
            "the user answered: {}",
            result["content"]["answer"].as_str().unwrap_or_default()
        ))),
        Some("decline") => Ok(text_result("the user would rather not say")),
        _ => Ok(text_result("the user closed the question")),
    }
}

async fn increment(session: &DemoSession, arguments: &Value) -> Result<Value, ToolFailure> {
    let by = whole(arguments, "by", 1, 1, 1_000)?;
    let (count, is_subscribed) = session.locked(|state| {
        state.count = state.count.saturating_add(by);
        (state.count, state.subscriptions.contains(COUNTER))
    });
    if is_subscribed {
        session.notify("notifications/resources/updated", json!({ "uri": COUNTER })).await;
    }
    Ok(structured(json!({ "count": count })))
}

fn whole(
    arguments: &Value,
    name: &str,
    default: u64,
    min: u64,
    max: u64,
) -> Result<u64, ToolFailure> {
    let Some(given) = arguments.get(name) else { return Ok(default) };
    given
        .as_u64()
        .filter(|value| (min..=max).contains(value))
        .ok_or_else(|| format!("{name} is not a whole number from {min} to {max}"))
}
