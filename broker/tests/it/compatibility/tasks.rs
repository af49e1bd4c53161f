//! Tasks of 2026-07-28, an extension: the broker hosts them, whatever the backend.

use serde_json::{Value, json};
use testkit::eventually;

use super::{
    Cell, Found, Pair,
    back::gate,
    ensure, features,
    front::{Answer, Client},
};

/// Calls a tool that takes long; returns the id of the task it becomes.
async fn promoted(pair: &Pair, client: &Client, tool: &str, mark: &str) -> Result<Value, String> {
    let mark = format!("{}-{mark}", pair.name);
    let created = client.call(tool, json!({"mark": mark})).await;
    let result = created.result()?;
    ensure(result["resultType"] == "task" && result["status"] == "working", || {
        created.text.clone()
    })?;
    Ok(result["taskId"].clone())
}

/// Polls a task until it has this status.
pub(super) async fn wait(client: &Client, id: &Value, status: &str) -> Result<Answer, String> {
    eventually("the status of the task", || async {
        let answer = client.request("tasks/get", json!({"taskId": id})).await;
        match answer.result() {
            Ok(task) if task["status"] != status => Err(answer.text),
            Ok(_) => Ok(Ok(answer)),
            Err(refused) => Ok(Err(refused)),
        }
    })
    .await
}

/// Tests that a call that takes long becomes a task, and the task has the call's result.
pub(super) async fn promotion(pair: &Pair) -> Found {
    if !pair.is_modern_client() {
        return Ok(Cell::Absent);
    }
    let (client, mark) = (pair.tasker().await, pair.mark());
    let id = promoted(pair, client, "long", &mark).await?;
    let working = client.request("tasks/get", json!({"taskId": id})).await;
    ensure(working.result()?["status"] == "working", || working.text.clone())?;
    gate(&format!("{}-{mark}", pair.name)).open();
    let done = wait(client, &id, "completed").await?;
    ensure(done.result()?["result"]["content"][0]["text"] == "done", || done.text.clone())?;
    Ok(Cell::Translated)
}

/// Tests that a subscribed stream reports the end of a task.
pub(super) async fn end_notification(pair: &Pair) -> Found {
    if !pair.is_modern_client() {
        return Ok(Cell::Absent);
    }
    let (client, mark) = (pair.tasker().await, pair.mark());
    let id = promoted(pair, client, "long", &mark).await?;
    let listening = client
        .start_request(
            "subscriptions/listen",
            json!({"notifications": {"taskIds": [id, "unknown"]}}),
        )
        .await;
    let accepted = client
        .wait_for_message("the acknowledgement", |message| {
            message["method"] == "notifications/subscriptions/acknowledged"
        })
        .await;
    ensure(accepted["params"]["notifications"] == json!({"taskIds": [id]}), || {
        accepted.to_string()
    })?;
    gate(&format!("{}-{mark}", pair.name)).open();
    let ended = |message: &Value| {
        message["method"] == "notifications/tasks" && message["params"]["status"] == "completed"
    };
    let received = client.wait_for_message("the end of the task", ended).await;
    let of_it = received["params"]["taskId"] == id
        && received["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"]
            == json!(listening.id);
    ensure(of_it, || received.to_string())?;
    client.cancel(listening.id).await;
    Ok(Cell::Translated)
}

/// Tests that a task's requests for input are sent and answered through the task.
pub(super) async fn update(pair: &Pair) -> Found {
    if !pair.is_modern_client() {
        return Ok(Cell::Absent);
    }
    let client = pair.tasker().await;
    let question = json!({"method": "sampling/createMessage", "params": features::sampling()});
    // With an idempotency key the call is a task from the beginning.
    let key = json!({"dev.mcp-broker/idempotency-key": format!("{}-{}", pair.name, pair.mark())});
    let created = client
        .request("tools/call", json!({"name": "ask", "arguments": question, "_meta": key}))
        .await;
    let id = created.result()?["taskId"].clone();
    ensure(id.is_string(), || created.text.clone())?;
    let needs = wait(client, &id, "input_required").await?;
    let requests =
        needs.result()?["inputRequests"].as_object().ok_or_else(|| needs.text.clone())?;
    let (name, request) = requests.iter().next().ok_or_else(|| needs.text.clone())?;
    ensure(request["method"] == "sampling/createMessage", || needs.text.clone())?;
    let answer = super::front::answer("sampling/createMessage", &request["params"])
        .expect("it can be answered");
    let mut responses = json!({});
    responses[name] = answer;
    client
        .request("tasks/update", json!({"taskId": id, "inputResponses": responses}))
        .await
        .result()?;
    let done = wait(client, &id, "completed").await?;
    let text = done.result()?["result"]["content"][0]["text"].as_str().unwrap_or_default();
    ensure(text.contains("\"ho\""), || done.text.clone())?;
    Ok(Cell::Translated)
}

/// Tests that the cancellation of a task reaches the backend.
pub(super) async fn cancel(pair: &Pair) -> Found {
    if !pair.is_modern_client() {
        return Ok(Cell::Absent);
    }
    let (client, mark) = (pair.tasker().await, pair.mark());
    let id = promoted(pair, client, "hang", &mark).await?;
    let mark = format!("{}-{mark}", pair.name);
    let seen = pair
        .back
        .wait_for("the call", |seen| seen.message["params"]["arguments"]["mark"] == mark.as_str())
        .await;
    client.request("tasks/cancel", json!({"taskId": id})).await.result()?;
    wait(client, &id, "cancelled").await?;
    let number = &seen.message["id"];
    match &pair.back {
        super::Back::Legacy(backend) => {
            let ends = |seen: &testkit::RecordedRequest| {
                seen.is("notifications/cancelled") && seen.message["params"]["requestId"] == *number
            };
            backend.wait_for("the end of the call", ends).await;
        }
        super::Back::Modern(backend) => backend.wait_for_cancelled(number).await,
    }
    Ok(Cell::Translated)
}
