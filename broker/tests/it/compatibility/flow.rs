//! Messages during a request, and updates of resources.

use serde_json::{Value, json};

use super::{Cell, Found, Pair, REVISIONS, back::gate, ensure};

pub(super) async fn progress(pair: &Pair) -> Found {
    for token in [json!("a token"), json!(77)] {
        let mut steps = Vec::new();
        for step in 1..=2 {
            let mut params = json!({"progressToken": "", "progress": step, "total": 2});
            if pair.back_since("2025-03-26") {
                params["message"] = json!("under way");
            }
            steps.push(json!({"method": "notifications/progress", "params": params}));
        }
        let params = json!({"name": "talk", "arguments": {"notifications": steps}, "_meta": {"progressToken": token}});
        pair.client.request("tools/call", params).await.result()?;
        for step in &steps {
            let message = pair
                .client
                .wait_for_message("progress", |message| {
                    message["method"] == "notifications/progress"
                })
                .await;
            let mut wanted = step["params"].clone();
            wanted["progressToken"] = token.clone();
            ensure(message["params"] == wanted, || format!("{message} instead of {wanted}"))?;
        }
    }
    Ok(Cell::Same)
}

pub(super) async fn cancellation(pair: &Pair) -> Found {
    let mark = pair.mark();
    let mut call = pair
        .client
        .start_request("tools/call", json!({"name": "hang", "arguments": {"mark": mark}}))
        .await;
    let seen = pair
        .back
        .wait_for("the call", |seen| seen.message["params"]["arguments"]["mark"] == mark.as_str())
        .await;
    pair.client.cancel(call.id).await;
    let id = &seen.message["id"];
    match &pair.back {
        super::Back::Legacy(backend) => {
            backend
                .wait_for("the end of the call", |seen| {
                    seen.is("notifications/cancelled") && seen.message["params"]["requestId"] == *id
                })
                .await;
        }
        super::Back::Modern(backend) => backend.wait_for_cancelled(id).await,
    }
    pair.client.call("say", json!({"result": r#"{"content":[]}"#})).await.result()?;
    ensure(!call.is_answered(), || "who cancels gets no answer".to_owned())?;
    Ok(pair.by_era())
}

pub(super) async fn log_level(pair: &Pair) -> Found {
    let notifications: Vec<Value> = ["debug", "warning", "error"]
        .map(|level| json!({"method": "notifications/message", "params": {"level": level, "logger": "l", "data": {"level": level}}}))
        .into();
    let mut params = json!({"name": "talk", "arguments": {"notifications": notifications}});
    if pair.is_modern_client() {
        params["_meta"] = json!({"io.modelcontextprotocol/logLevel": "warning"});
    } else {
        pair.client.request("logging/setLevel", json!({"level": "warning"})).await.result()?;
    }
    pair.client.request("tools/call", params).await.result()?;
    for notification in &notifications[1..] {
        let message = pair
            .client
            .wait_for_message("a log message", |message| {
                message["method"] == "notifications/message"
            })
            .await;
        ensure(message["params"] == notification["params"], || message.to_string())?;
    }
    let left: Vec<Value> = pair
        .client
        .untaken()
        .into_iter()
        .filter(|message| message["method"] == "notifications/message")
        .collect();
    ensure(left.is_empty(), || format!("{left:?}"))?;
    Ok(pair.by_era())
}

pub(super) async fn subscription(pair: &Pair) -> Found {
    let uri = "test://r/0";
    let listening = if pair.is_modern_client() {
        let listening = pair
            .client
            .start_request(
                "subscriptions/listen",
                json!({"notifications": {"resourceSubscriptions": [uri, "nobody://x"]}}),
            )
            .await;
        let received = pair
            .client
            .wait_for_message("the acknowledgement", |message| {
                message["method"] == "notifications/subscriptions/acknowledged"
            })
            .await;
        let accepted = received["params"]["notifications"]["resourceSubscriptions"].clone();
        ensure(accepted.as_array().is_some_and(|uris| uris.contains(&json!(uri))), || {
            received.to_string()
        })?;
        Some(listening)
    } else {
        pair.client.request("resources/subscribe", json!({"uri": uri})).await.result()?;
        None
    };
    pair.back.update_once_listened_to(uri).await;
    let received = pair
        .client
        .wait_for_message("the update", |message| {
            message["method"] == "notifications/resources/updated"
        })
        .await;
    ensure(received["params"]["uri"] == uri, || received.to_string())?;
    match listening {
        Some(listening) => {
            ensure(
                received["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"]
                    == json!(listening.id),
                || received.to_string(),
            )?;
            pair.client.cancel(listening.id).await;
        }
        None => {
            ensure(!received.to_string().contains("subscriptionId"), || received.to_string())?;
            pair.client.request("resources/unsubscribe", json!({"uri": uri})).await.result()?;
        }
    }
    match &pair.back {
        // The broker listens for a client without a session in a session of its own, which ends
        // with the client's stream.
        super::Back::Legacy(backend) => {
            let subscribed =
                backend.recorded_of("resources/subscribe").pop().ok_or("no subscription came")?;
            let ends = |seen: &testkit::RecordedRequest| {
                seen.is("resources/unsubscribe") || seen.http == "DELETE"
            };
            let of_it = |seen: &testkit::RecordedRequest| {
                ends(seen) && seen.header("mcp-session-id") == subscribed.header("mcp-session-id")
            };
            backend.wait_for("the end of it", of_it).await;
        }
        super::Back::Modern(backend) => backend.wait_listening_to(&[]).await,
    }
    Ok(pair.by_era())
}

/// Tests that a client can resume a stream after its response broke off.
pub(super) async fn resumption(pair: &Pair) -> Found {
    if pair.is_modern_client() || !pair.client_since("2025-03-26") {
        return Ok(Cell::Absent);
    }
    let mark = format!("{}-{}", pair.name, pair.mark());
    let client = pair.broker.client(&format!("/mcp/{}", pair.name));
    client.initialize(REVISIONS[pair.client_of()], super::everything(pair.client_of())).await;
    let mut step = json!({"progressToken": "", "progress": 1, "total": 2});
    if pair.back_since("2025-03-26") {
        step["message"] = json!("under way");
    }
    let arguments = json!({"mark": mark, "notifications": [{"method": "notifications/progress", "params": step}]});
    let params = json!({"name": "long", "arguments": arguments, "_meta": {"progressToken": "p"}});
    let body = json!({"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": params});
    let mut call = client.start_raw(json!(77), body.to_string());
    let last_seen = call.first_event_id().await;
    drop(call);
    gate(&mark).open();
    let answer = client.resume(&last_seen).await.find(|message| message["id"] == 77).await;
    ensure(answer["result"]["content"][0]["text"] == "done", || answer.to_string())?;
    Ok(Cell::Translated)
}

/// Tests several messages in one body, which one revision has.
pub(super) async fn batch(pair: &Pair) -> Found {
    if REVISIONS[pair.client_of()] != "2025-03-26" {
        return Ok(Cell::Absent);
    }
    let call = |id: &str| {
        let arguments =
            json!({"result": format!(r#"{{"content":[{{"type":"text","text":"{id}"}}]}}"#)});
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "say", "arguments": arguments}})
    };
    pair.client
        .send(
            json!([call("one"), {"jsonrpc": "2.0", "method": "notifications/x"}, call("two")])
                .to_string(),
        )
        .await;
    let is_of = |message: &Value, id: &str| {
        let all = message.as_array().cloned().unwrap_or_else(|| vec![message.clone()]);
        all.iter().any(|one| one["id"] == id && one["result"]["content"][0]["text"] == id)
    };
    let first = pair
        .client
        .wait_for_message("an answer", |message| is_of(message, "one") || is_of(message, "two"))
        .await;
    if !(is_of(&first, "one") && is_of(&first, "two")) {
        pair.client
            .wait_for_message("the other answer", |message| {
                is_of(message, "one") || is_of(message, "two")
            })
            .await;
    }
    ensure(pair.back.seen_of("tools/call").iter().all(|seen| seen.message.is_object()), || {
        "a batch went on".to_owned()
    })?;
    Ok(Cell::Translated)
}

/// Tests a call as a task of 2025-11-25.
pub(super) async fn task(pair: &Pair) -> Found {
    if REVISIONS[pair.client_of()] != "2025-11-25" {
        return Ok(Cell::Absent);
    }
    let arguments = json!({"result": r#"{"content":[{"type":"text","text":"done"}]}"#});
    let made = pair
        .client
        .request(
            "tools/call",
            json!({"name": "say", "arguments": arguments, "task": {"ttl": 60000}}),
        )
        .await;
    let id = made.result()?["task"]["taskId"].clone();
    let result = pair.client.request("tasks/result", json!({"taskId": id})).await;
    ensure(result.text_result()? == "done", || result.text.clone())?;
    ensure(
        result.message["result"]["_meta"]["io.modelcontextprotocol/related-task"]["taskId"] == id,
        || result.text.clone(),
    )?;
    let state = pair.client.request("tasks/get", json!({"taskId": id})).await;
    ensure(state.result()?["status"] == "completed", || state.text.clone())?;
    Ok(Cell::Translated)
}

/// Tests that `task` in a call of another revision has no meaning.
pub(super) async fn task_member(pair: &Pair) -> Found {
    if REVISIONS[pair.client_of()] == "2025-11-25" {
        return Ok(Cell::Absent);
    }
    let mark = pair.mark();
    let arguments = json!({"mark": mark, "notifications": []});
    let answer = pair
        .client
        .request(
            "tools/call",
            json!({"name": "talk", "arguments": arguments, "task": {"ttl": 60000}}),
        )
        .await;
    ensure(answer.text_result()? == "done", || answer.text.clone())?;
    let seen = pair
        .back
        .wait_for("the call", |seen| seen.message["params"]["arguments"]["mark"] == mark.as_str())
        .await;
    ensure(seen.message["params"].get("task").is_none(), || seen.message.to_string())?;
    Ok(Cell::Translated)
}

/// Tests a backend of 2026-07-28 that turns a call into a task unasked. The client waits for the
/// task's end.
pub(super) async fn task_of_the_backend(pair: &Pair) -> Found {
    if !pair.is_modern_back() {
        return Ok(Cell::Absent);
    }
    let answer = pair.client.call("job", json!({})).await;
    ensure(answer.text_result()? == "done", || answer.text.clone())?;
    Ok(Cell::Translated)
}
