//! Every refusal: of the broker, and of backends in the codes of their revisions.

use serde_json::{Value, json};

use super::{Cell, Found, Pair, ensure, refused};

fn error(answer: &super::front::Answer) -> Result<&Value, String> {
    answer.message.get("error").ok_or_else(|| format!("no error: {}", answer.text))
}

/// At its own endpoint a backend gets requests with any name: it may know names that it does not
/// list.
fn not_there(answer: &super::front::Answer) -> Found {
    let error = error(answer)?;
    ensure(*error == json!({"code": -32602, "message": super::back::UNKNOWN}), || {
        answer.text.clone()
    })?;
    Ok(Cell::Same)
}

pub(super) async fn unknown_tool(pair: &Pair) -> Found {
    not_there(&pair.client.call("none", json!({})).await)
}

pub(super) async fn unknown_prompt(pair: &Pair) -> Found {
    not_there(&pair.client.request("prompts/get", json!({"name": "none"})).await)
}

pub(super) async fn unknown_method(pair: &Pair) -> Found {
    refused(error(&pair.client.request("vendor/method", json!({})).await)?)
}

pub(super) async fn wrong_params(pair: &Pair) -> Found {
    refused(error(&pair.client.request("resources/read", json!({"uri": 7})).await)?)
}

/// Checks that an error of the backend is passed on unchanged, or with another code.
async fn translated_code(pair: &Pair, code: i64, client_code: i64) -> Found {
    let rest = r#""message":"in its own words","data":{"n":1.50,"k":[null]}"#;
    let answer =
        pair.client.call("fail", json!({"error": format!(r#"{{"code":{code},{rest}}}"#)})).await;
    error(&answer)?;
    for (code, cell) in [(code, Cell::Same), (client_code, Cell::Translated)] {
        if answer.text.contains(&format!(r#""error":{{"code":{code},{rest}}}"#)) {
            return Ok(cell);
        }
    }
    Err(answer.text)
}

pub(super) async fn invalid_params(pair: &Pair) -> Found {
    translated_code(pair, -32602, -32602).await
}

pub(super) async fn internal(pair: &Pair) -> Found {
    translated_code(pair, -32603, -32603).await
}

pub(super) async fn own_code(pair: &Pair) -> Found {
    translated_code(pair, 7, 7).await
}

/// Tests codes that 2026-07-28 reserves for earlier use, so that its servers do not use them.
pub(super) async fn legacy_code(pair: &Pair) -> Found {
    if pair.is_modern_back() {
        return Ok(Cell::Absent);
    }
    translated_code(pair, -32001, -32603).await
}

/// Tests codes whose meaning 2026-07-28 defines or reserves.
pub(super) async fn reserved_code(pair: &Pair) -> Found {
    if pair.is_modern_back() {
        return Ok(Cell::Absent);
    }
    translated_code(pair, -32050, -32603).await
}

pub(super) async fn missing_resource(pair: &Pair) -> Found {
    let answer = pair.client.request("resources/read", json!({"uri": "test://none"})).await;
    let error = error(&answer)?;
    let wanted = if pair.is_modern_client() { -32602 } else { -32002 };
    ensure(
        *error
            == json!({"code": wanted, "message": "it is not there", "data": {"uri": "test://none"}}),
        || answer.text.clone(),
    )?;
    Ok(pair.by_era())
}

/// Tests the error of a backend of 2026-07-28 for a capability that the request lacks.
pub(super) async fn capability_required(pair: &Pair) -> Found {
    if !pair.is_modern_back() {
        return Ok(Cell::Absent);
    }
    let error = r#"{"code":-32021,"message":"it needs more","data":{"requiredCapabilities":{"sampling":{}}}}"#;
    let answer = pair.client.call("fail", json!({"error": error})).await;
    ensure(answer.text.contains(&format!(r#""error":{error}"#)), || answer.text.clone())?;
    Ok(Cell::Same)
}

/// Tests a result of a type that only the backend knows.
pub(super) async fn unknown_result_type(pair: &Pair) -> Found {
    if !pair.is_modern_back() {
        return Ok(Cell::Absent);
    }
    refused(error(
        &pair.client.call("say", json!({"result": r#"{"resultType":"poem","content":[]}"#})).await,
    )?)
}
