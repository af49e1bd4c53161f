//! Requests of a backend to the client during a request of the client, and without one.

use serde_json::{Value, json};

use super::{Cell, Found, Pair, ensure, features, front, refused};

/// Tests that the backend sends `params` and the client receives `shown`. The only difference may
/// be the id of a URL elicitation, which one era has.
async fn relayed(pair: &Pair, method: &str, params: Value, shown: &Value) -> Found {
    pair.client.requests_received();
    let answer = pair.client.call("ask", json!({"method": method, "params": params})).await;
    if let Some(error) = answer.message.get("error") {
        return refused(error);
    }
    let received: Value =
        serde_json::from_str(answer.text_result()?).map_err(|error| error.to_string())?;
    if let Some(error) = received.get("error") {
        return refused(error);
    }
    let expected = front::answer(method, shown).expect("it is answered");
    ensure(received["result"] == expected, || format!("{received} instead of {expected}"))?;
    let asked = pair.client.requests_received();
    let [(asked_method, asked_params)] = asked.as_slice() else {
        return Err(format!("the client was asked {asked:?}"));
    };
    let mut shown = shown.clone();
    for key in ["elicitationId", "_meta"] {
        if let (Some(shown), None) = (shown.as_object_mut(), asked_params.get(key)) {
            shown.remove(key);
        } else if let Some(given) = asked_params.get(key) {
            shown[key] = given.clone();
        }
    }
    let asked_params = if asked_params.is_null() { json!({}) } else { asked_params.clone() };
    ensure(asked_method == method && asked_params == shown, || {
        format!("{asked:?} instead of {shown}")
    })?;
    if shown != params
        && params.get("elicitationId").is_none()
        && shown.get("elicitationId").is_none()
    {
        return Ok(Cell::Translated);
    }
    Ok(pair.by_era())
}

async fn plainly(pair: &Pair, since: &str, method: &str, params: Value) -> Found {
    if !pair.back_since(since) {
        return Ok(Cell::Absent);
    }
    relayed(pair, method, params.clone(), &params).await
}

pub(super) async fn roots(pair: &Pair) -> Found {
    plainly(pair, "2024-11-05", "roots/list", json!({})).await
}

pub(super) async fn sampling(pair: &Pair) -> Found {
    plainly(pair, "2024-11-05", "sampling/createMessage", features::sampling()).await
}

pub(super) async fn sampling_with_tools(pair: &Pair) -> Found {
    let mut params = features::sampling();
    params["tools"] = json!([{"name": "t", "inputSchema": {"type": "object"}}]);
    params["toolChoice"] = json!({"mode": "auto"});
    plainly(pair, "2025-11-25", "sampling/createMessage", params).await
}

/// Tests an array of one block of content, which is a single block in earlier revisions.
pub(super) async fn sampling_array_of_one(pair: &Pair) -> Found {
    if !pair.back_since("2025-11-25") {
        return Ok(Cell::Absent);
    }
    let mut params = features::sampling();
    params["messages"][0]["content"] = json!([{"type": "text", "text": "hi"}]);
    let shown = if pair.client_since("2025-11-25") { params.clone() } else { features::sampling() };
    relayed(pair, "sampling/createMessage", params, &shown).await
}

pub(super) async fn sampling_array(pair: &Pair) -> Found {
    let mut params = features::sampling();
    params["messages"][0]["content"] =
        json!([{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]);
    plainly(pair, "2025-11-25", "sampling/createMessage", params).await
}

pub(super) async fn sampling_with_audio(pair: &Pair) -> Found {
    let mut params = features::sampling();
    params["messages"][0]["content"] =
        json!({"type": "audio", "data": "AAEC", "mimeType": "audio/wav"});
    plainly(pair, "2025-03-26", "sampling/createMessage", params).await
}

fn form(pair: &Pair, message: &str, property: Value) -> Value {
    let mut params = json!({"message": message, "requestedSchema": {"type": "object", "properties": {"name": property}}});
    if pair.back_since("2025-11-25") {
        params["mode"] = json!("form");
    }
    params
}

pub(super) async fn elicitation(pair: &Pair) -> Found {
    let mut found = Ok(Cell::Absent);
    for message in ["who?", "decline", "cancel"] {
        found = plainly(
            pair,
            "2025-06-18",
            "elicitation/create",
            form(pair, message, json!({"type": "string"})),
        )
        .await;
    }
    found
}

pub(super) async fn elicitation_of_several(pair: &Pair) -> Found {
    let several = json!({"type": "array", "items": {"type": "string", "enum": ["a", "b"]}});
    plainly(pair, "2025-11-25", "elicitation/create", form(pair, "which?", several)).await
}

pub(super) async fn elicitation_by_url(pair: &Pair) -> Found {
    let mut params = json!({"mode": "url", "message": "go", "url": "https://example.org/x"});
    if !pair.is_modern_back() {
        params["elicitationId"] = json!("e");
    }
    plainly(pair, "2025-11-25", "elicitation/create", params).await
}

/// Tests the backend's notification that the action at an opened URL is complete.
pub(super) async fn url_opened(pair: &Pair) -> Found {
    if pair.is_modern_back() || !pair.back_since("2025-11-25") || !pair.client_since("2025-11-25") {
        return Ok(Cell::Absent);
    }
    let id = format!("{}-{}", pair.name, pair.mark());
    let params = json!({"mode": "url", "message": "go", "url": "https://example.org/x", "elicitationId": id});
    let answer = pair.client.call("opened", json!({"params": params})).await;
    ensure(answer.text_result()? == r#"{"action":"accept"}"#, || answer.text.clone())?;
    let is_completion = |message: &Value| message["method"] == "notifications/elicitation/complete";
    if pair.is_modern_client() {
        ensure(!pair.client.untaken().iter().any(is_completion), || {
            "this revision has no such word".to_owned()
        })?;
        return Ok(Cell::Translated);
    }
    let completion = pair.client.wait_for_message("that it is done", is_completion).await;
    ensure(completion["params"]["elicitationId"] == id.as_str(), || completion.to_string())?;
    Ok(Cell::Same)
}

/// Tests error -32042: the call can be made once the URL was opened.
pub(super) async fn url_required(pair: &Pair) -> Found {
    if pair.is_modern_back() || !pair.back_since("2025-11-25") {
        return Ok(Cell::Absent);
    }
    pair.client.requests_received();
    let elicitations = r#"[{"mode":"url","elicitationId":"e","url":"https://example.org/in","message":"sign in"}]"#;
    let error =
        format!(r#"{{"code":-32042,"message":"first","data":{{"elicitations":{elicitations}}}}}"#);
    if pair.is_modern_client() {
        // The client receives the request to open the URL each time, as the call fails again. The
        // client ends that.
        let call = pair
            .client
            .start_request("tools/call", json!({"name": "fail", "arguments": {"error": error}}))
            .await;
        let answer = call.response().await;
        let request = answer["result"]["inputRequests"]
            .as_object()
            .and_then(|all| all.values().next())
            .cloned()
            .unwrap_or_default();
        let wanted = json!({"mode": "url", "url": "https://example.org/in", "message": "sign in"});
        ensure(request["method"] == "elicitation/create" && request["params"] == wanted, || {
            answer.to_string()
        })?;
        return Ok(Cell::Translated);
    }
    let answer = pair.client.call("fail", json!({"error": error})).await;
    if answer.text.contains(&format!(r#""error":{error}"#)) {
        return Ok(Cell::Same);
    }
    ensure(
        answer.message["result"]["isError"] == true
            && answer.text_result()?.contains("https://example.org/in"),
        || answer.text.clone(),
    )?;
    Ok(Cell::Translated)
}

/// Tests a request to a client that did not declare the capability.
pub(super) async fn undeclared(pair: &Pair) -> Found {
    let answer = pair
        .plain()
        .await
        .call("ask", json!({"method": "sampling/createMessage", "params": features::sampling()}))
        .await;
    if let Some(error) = answer.message.get("error") {
        if error["code"] == -32021 {
            ensure(error["data"]["requiredCapabilities"] == json!({"sampling": {}}), || {
                answer.text.clone()
            })?;
        }
        return refused(error);
    }
    let received: Value =
        serde_json::from_str(answer.text_result()?).map_err(|error| error.to_string())?;
    refused(received.get("error").ok_or_else(|| answer.text.clone())?)
}

/// Tests a request caused by a completion.
pub(super) async fn beside_a_call(pair: &Pair) -> Found {
    let params = json!({"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": "ask"}});
    let answer = pair.client.request("completion/complete", params).await;
    if let Some(error) = answer.message.get("error") {
        return refused(error);
    }
    let received = &answer.result()?["completion"]["values"];
    if *received == json!(["null", "null"]) {
        return Ok(Cell::Same); // no errors
    }
    ensure(*received == json!(["-32601", "-32601"]), || answer.text.clone())?;
    Ok(Cell::Refused(-32601, "method_not_found".to_owned()))
}

/// Tests a request of the backend without a request of the client.
pub(super) async fn unasked(pair: &Pair) -> Found {
    let super::Back::Legacy(backend) = &pair.back else { return Ok(Cell::Absent) };
    // A call comes first, so that there is a link for this client.
    pair.client.call("say", json!({"result": r#"{"content":[]}"#})).await.result()?;
    pair.client.requests_received();
    let id = pair.mark();
    backend.wait_get_streams(2).await;
    let call = backend.recorded_of("tools/call").pop().ok_or("no call was seen")?;
    let session = call.header("mcp-session-id").ok_or("the call has no session")?.to_owned();
    let question = json!({"jsonrpc": "2.0", "id": id, "method": "roots/list", "params": {}});
    ensure(backend.push_to(&session, question).await == 1, || {
        "this session has no stream".to_owned()
    })?;
    let answer = backend
        .wait_for("an answer", |seen| {
            seen.message["id"] == id.as_str() && seen.message.get("method").is_none()
        })
        .await;
    match answer.message.get("error") {
        Some(error) => refused(error),
        None => {
            ensure(pair.client.requests_received().len() == 1, || {
                "another answer came".to_owned()
            })?;
            Ok(Cell::Same)
        }
    }
}

/// Tests a backend that sheds load: it returns the state alone, to come back with later.
pub(super) async fn state_alone(pair: &Pair) -> Found {
    let super::Back::Modern(backend) = &pair.back else { return Ok(Cell::Absent) };
    backend.on("prompts/get", |call| async move {
        match call.state() {
            None => testkit::StatelessReply::needs(Value::Null, Some("later")),
            Some(state) => testkit::StatelessReply::Result(features::prompt(
                &json!({"arguments": {"a": state}}),
            )),
        }
    });
    let answer = pair.client.request("prompts/get", json!({"name": "p"})).await;
    ensure(answer.result()?["messages"][0]["content"]["text"] == "later", || answer.text.clone())?;
    Ok(Cell::Translated)
}

/// Tests an answer with an array of one block, from clients that have content arrays.
pub(super) async fn sampling_answered_with_an_array(pair: &Pair) -> Found {
    if !pair.client_since("2025-11-25") {
        return Ok(Cell::Absent);
    }
    let mut params = features::sampling();
    params["messages"][0]["content"]["text"] = json!(front::ANSWER_WITH_AN_ARRAY);
    let answer = pair
        .client
        .call("ask", json!({"method": "sampling/createMessage", "params": params}))
        .await;
    let received: Value =
        serde_json::from_str(answer.text_result()?).map_err(|error| error.to_string())?;
    let content = &received["result"]["content"];
    if *content == json!({"type": "text", "text": "ho"}) {
        return Ok(Cell::Translated);
    }
    ensure(*content == json!([{"type": "text", "text": "ho"}]), || received.to_string())?;
    Ok(pair.by_era())
}

/// Tests a backend that sends a request and then cancels it.
pub(super) async fn withdrawn(pair: &Pair) -> Found {
    if pair.is_modern_back() {
        return Ok(Cell::Absent);
    }
    if pair.is_modern_client() {
        // The request may have been sent before the backend cancelled it. The client then repeats
        // the call, and gets the result.
        let answer = pair.client.call("withdraw", json!({})).await;
        pair.client.requests_received();
        ensure(answer.text_result()? == "without it", || answer.text.clone())?;
        return Ok(Cell::Translated);
    }
    let call = pair
        .silent()
        .await
        .start_request("tools/call", json!({"name": "withdraw", "arguments": {}}))
        .await;
    let client = pair.silent().await;
    let question = client
        .wait_for_message("the question", |message| message["method"] == "sampling/createMessage")
        .await;
    let withdrawal = client
        .wait_for_message("its end", |message| message["method"] == "notifications/cancelled")
        .await;
    ensure(withdrawal["params"]["requestId"] == question["id"], || withdrawal.to_string())?;
    let answer = call.response().await;
    ensure(answer["result"]["content"][0]["text"] == "without it", || answer.to_string())?;
    Ok(Cell::Same)
}
