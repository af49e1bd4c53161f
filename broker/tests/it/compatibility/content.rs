//! Content of tools, prompts and resources: each kind, and bytes that pass unchanged.

use serde_json::{Value, json};

use super::{Cell, Found, Pair, ensure, features};
use crate::compatibility::front::Answer;

const TEXT: &str = r#"{"type":"text","text":"caf\u00e9 \/", "annotations" : {"priority":1.0}}"#;
const IMAGE: &str = r#"{"type":"image","data":"AAEC","mimeType":"image/png"}"#;
const AUDIO: &str = r#"{"type":"audio","data":"AAEC","mimeType":"audio/wav"}"#;
const EMBEDDED: &str =
    r#"{"type":"resource","resource":{"uri":"test://r/0","mimeType":"text/plain","text":"t"}}"#;
const LINK: &str = r#"{"type":"resource_link","uri":"test://r/0","name":"r0","description":"d"}"#;
/// Form of audio for clients that do not know it.
const AUDIO_AS_RESOURCE: &str = r#"{"type":"resource","resource":{"uri":"urn:mcp-broker:audio","mimeType":"audio/wav","blob":"AAEC"}}"#;
const LINK_AS_TEXT: &str = r#"{"type":"text","text":"r0 test://r/0"}"#;

async fn call(pair: &Pair, result: &str) -> Answer {
    pair.client.call("say", json!({"result": result})).await
}

/// Places the block between two others, whose order and form stay.
async fn carried(pair: &Pair, since: &str, block: &str, instead: Option<&str>) -> Found {
    if !pair.back_since(since) {
        return Ok(Cell::Absent);
    }
    let content = |block: &str| format!(r#""content":[{TEXT},{block},{IMAGE}]"#);
    let answer = call(pair, &format!("{{{}}}", content(block))).await;
    answer.result()?;
    let message = |block: &str| format!(r#""messages":[{{"role":"user","content":{block}}}]"#);
    let result = format!(r#"{{"description":"d",{}}}"#, message(block));
    let prompt = pair
        .client
        .request("prompts/get", json!({"name": "p", "arguments": {"result": result}}))
        .await;
    if answer.text.contains(&content(block)) && prompt.text.contains(&message(block)) {
        return Ok(Cell::Same);
    }
    let instead = instead.ok_or_else(|| answer.text.clone())?;
    ensure(answer.text.contains(&content(instead)), || answer.text.clone())?;
    ensure(prompt.text.contains(&message(instead)), || prompt.text.clone())?;
    Ok(Cell::Translated)
}

pub(super) async fn text(pair: &Pair) -> Found {
    carried(pair, "2024-11-05", TEXT, None).await
}

pub(super) async fn image(pair: &Pair) -> Found {
    carried(pair, "2024-11-05", IMAGE, None).await
}

pub(super) async fn audio(pair: &Pair) -> Found {
    carried(pair, "2025-03-26", AUDIO, Some(AUDIO_AS_RESOURCE)).await
}

pub(super) async fn embedded(pair: &Pair) -> Found {
    carried(pair, "2024-11-05", EMBEDDED, None).await
}

pub(super) async fn link(pair: &Pair) -> Found {
    carried(pair, "2025-06-18", LINK, Some(LINK_AS_TEXT)).await
}

pub(super) async fn structured(pair: &Pair) -> Found {
    if !pair.back_since("2025-06-18") {
        return Ok(Cell::Absent);
    }
    let answer = call(
        pair,
        r#"{"content":[{"type":"text","text":"{}"}],"structuredContent":{"n":1.50,"k":[null]}}"#,
    )
    .await;
    ensure(answer.text.contains(r#""structuredContent":{"n":1.50,"k":[null]}"#), || {
        answer.text.clone()
    })?;
    Ok(Cell::Same)
}

/// Structured content of 2026-07-28 may be anything.
pub(super) async fn structured_other(pair: &Pair) -> Found {
    if !pair.is_modern_back() {
        return Ok(Cell::Absent);
    }
    let answer = call(pair, r#"{"content":[],"structuredContent":[1.50,2]}"#).await;
    match answer.result()?.get("structuredContent") {
        Some(_) => {
            ensure(answer.text.contains(r#""structuredContent":[1.50,2]"#), || {
                answer.text.clone()
            })?;
            Ok(Cell::Same)
        }
        None => {
            ensure(answer.text_result()? == "[1.50,2]", || answer.text.clone())?;
            Ok(Cell::Translated)
        }
    }
}

pub(super) async fn tool_error(pair: &Pair) -> Found {
    let answer =
        call(pair, r#"{"content":[{"type":"text","text":"it rained"}],"isError":true}"#).await;
    ensure(
        answer.text.contains(r#""content":[{"type":"text","text":"it rained"}],"isError":true"#),
        || answer.text.clone(),
    )?;
    Ok(Cell::Same)
}

/// Tests members that no revision knows, and numbers and escapes that have several spellings.
pub(super) async fn unknown_members_of_results(pair: &Pair) -> Found {
    const MEMBERS: [&str; 3] = [
        r#""example.org/own":[1.0, 1e3,"\u00e9"]"#,
        r#""extra":12345678901234567890.10"#,
        r#""content":[ ]"#,
    ];
    let [own, extra, content] = MEMBERS;
    let answer = call(pair, &format!("{{{content},{extra},\"_meta\":{{{own}}}}}")).await;
    ensure(MEMBERS.iter().all(|member| answer.text.contains(member)), || answer.text.clone())?;
    Ok(Cell::Same)
}

pub(super) async fn bytes_of_requests(pair: &Pair) -> Found {
    let mark = pair.mark();
    let arguments = format!(
        r#""arguments":{{"mark":"{mark}","n":1.50, "big":12345678901234567890,"s":"\u00e9\/","notifications":[]}}"#
    );
    let own = r#""example.org/own":[1.0, 1e3]"#;
    let trace = r#""traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01""#;
    let params =
        format!(r#"{{"name":"talk",{arguments},"extra":{{"x":1e0}},"_meta":{{{own},{trace}}}}}"#);
    pair.client.request_text("tools/call", &params).await.result()?;
    let seen = pair
        .back
        .wait_for("the call", |seen| seen.message["params"]["arguments"]["mark"] == mark.as_str())
        .await;
    let body = String::from_utf8_lossy(&seen.body).into_owned();
    for part in [arguments.as_str(), own, trace, r#""extra":{"x":1e0}"#] {
        ensure(body.contains(part), || format!("{part} is not in {body}"))?;
    }
    ensure(!body.contains("clientInfo") || pair.is_modern_back(), || body.clone())?;
    Ok(Cell::Same)
}

pub(super) async fn prompt(pair: &Pair) -> Found {
    let answer =
        pair.client.request("prompts/get", json!({"name": "p", "arguments": {"a": "x"}})).await;
    let wanted = features::prompt(&json!({"arguments": {"a": "x"}}));
    same_members(&answer, &wanted)
}

pub(super) async fn read(pair: &Pair) -> Found {
    for uri in ["test://r/0", "test://r/1", "test://r/119"] {
        let answer = pair.client.request("resources/read", json!({"uri": uri})).await;
        let wanted = features::contents(uri).expect("it is there");
        same_members(&answer, &wanted)?;
        let hinted = answer.message["result"].get("ttlMs").is_some();
        ensure(hinted == pair.is_modern_client(), || answer.text.clone())?;
    }
    Ok(Cell::Same)
}

pub(super) async fn completion(pair: &Pair) -> Found {
    let mut params = json!({"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": "v"}});
    if pair.client_since("2025-06-18") {
        params["context"] = json!({"arguments": {"b": "known"}});
    }
    let answer = pair.client.request("completion/complete", params.clone()).await;
    if let Some(error) = answer.message.get("error") {
        return super::refused(error);
    }
    same_members(&answer, &features::completion(&params))
}

/// Checks that the answer holds these members exactly as given.
fn same_members(answer: &Answer, wanted: &Value) -> Found {
    let result = answer.result()?;
    for (key, value) in wanted.as_object().expect("an object") {
        ensure(result[key] == *value, || format!("{key}: {}", answer.text))?;
    }
    Ok(Cell::Same)
}
