//! Tasks that a backend of 2025-11-25 hosts itself: the broker watches them, for clients that
//! support tasks.
//!
//! The pair has such a backend in addition to its own, because its other behaviours are those of a
//! backend without tasks.

use serde_json::{Value, json};
use testkit::{FakeBackend, Gate, RecordedRequest};

use super::{
    Cell, Found, Pair, ensure,
    front::{Client, everything},
    refused, tasks,
};
use crate::tasks::with_tasks;

/// A backend with tasks, and the gate that lets them end.
pub(super) struct Keeper {
    pub(super) backend: FakeBackend,
    /// Name of the backend in the broker.
    pub(super) name: String,
    done: Gate,
}

impl Keeper {
    pub(super) async fn beside(name: &str, pipe: bool) -> Self {
        let done = Gate::new();
        let backend = with_tasks(&done).await;
        let backend = if pipe { backend.behind_lines().await } else { backend };
        Self { backend, name: format!("{name}k"), done }
    }
}

/// Returns a client of the pair's revision in front of the keeper. It supports tasks if its
/// revision has them.
async fn client<'a>(pair: &'a Pair, keeper: &Keeper) -> &'a Client {
    let mut capabilities = everything(pair.client_of());
    if pair.is_modern_client() {
        capabilities["extensions"] = json!({"io.modelcontextprotocol/tasks": {}});
    }
    pair.at_keeper
        .get_or_init(|| {
            Client::open(&pair.broker, pair.front, pair.client_of(), &keeper.name, capabilities)
        })
        .await
}

/// Calls a tool that only runs as a task; returns the id of the task.
async fn task(pair: &Pair, client: &Client) -> Result<Value, String> {
    let mut params = json!({"name": "must", "arguments": {}});
    if !pair.is_modern_client() {
        params["task"] = json!({"ttl": 60000});
    }
    let created = client.request("tools/call", params).await;
    let result = created.result()?;
    let id = if pair.is_modern_client() { &result["taskId"] } else { &result["task"]["taskId"] };
    ensure(id.is_string() && !id.as_str().is_some_and(|id| id.starts_with("task-")), || {
        created.text.clone()
    })?;
    Ok(id.clone())
}

/// Tests that the task is the backend's, and the client gets its result.
pub(super) async fn watched(pair: &Pair) -> Found {
    let Some(keeper) = pair.keeper.as_ref().filter(|_| pair.client_since("2025-11-25")) else {
        return Ok(Cell::Absent);
    };
    let client = client(pair, keeper).await;
    let id = task(pair, client).await?;
    let state = client.request("tasks/get", json!({"taskId": id})).await;
    ensure(state.result()?["status"] == "working", || state.text.clone())?;
    keeper.done.open();
    let done = tasks::wait(client, &id, "completed").await?;
    let result = if pair.is_modern_client() {
        done.result()?["result"].clone()
    } else {
        client.request("tasks/result", json!({"taskId": id})).await.result()?.clone()
    };
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    ensure(text.starts_with("result of task-"), || result.to_string())?;
    Ok(Cell::Translated)
}

/// Tests that a cancellation reaches the backend's task.
pub(super) async fn cancelled(pair: &Pair) -> Found {
    let Some(keeper) = pair.keeper.as_ref().filter(|_| pair.client_since("2025-11-25")) else {
        return Ok(Cell::Absent);
    };
    let client = client(pair, keeper).await;
    let id = task(pair, client).await?;
    // A task that was not sent yet is only the broker's.
    keeper.backend.wait_for("it to be watched", |seen| seen.is("tasks/get")).await;
    client.request("tasks/cancel", json!({"taskId": id})).await.result()?;
    keeper.backend.wait_for("the cancellation", |seen| seen.is("tasks/cancel")).await;
    tasks::wait(client, &id, "cancelled").await?;
    Ok(Cell::Translated)
}

/// Tests a call without a task of a tool that may run as one.
pub(super) async fn optional(pair: &Pair) -> Found {
    let Some(keeper) = &pair.keeper else { return Ok(Cell::Absent) };
    let client = client(pair, keeper).await;
    let answer = client.call("job", json!({})).await;
    let plain =
        |seen: &RecordedRequest| !seen.calls("job") || seen.message["params"]["task"].is_null();
    ensure(keeper.backend.recorded_of("tools/call").iter().all(plain), || {
        "it was asked for a task".to_owned()
    })?;
    let mut result = answer.result()?.clone();
    if pair.is_modern_client() && result["resultType"] == "task" {
        // The call took long here, and became a task of the broker's.
        result =
            tasks::wait(client, &result["taskId"], "completed").await?.result()?["result"].clone();
    }
    ensure(result["content"][0]["text"] == "without a task", || answer.text.clone())?;
    Ok(Cell::Same)
}

/// Tests a call of a tool that only runs as a task, by a client that does not support tasks.
pub(super) async fn required(pair: &Pair) -> Found {
    let Some(keeper) = &pair.keeper else { return Ok(Cell::Absent) };
    let client = Client::open(
        &pair.broker,
        pair.front,
        pair.client_of(),
        &keeper.name,
        everything(pair.client_of()),
    )
    .await;
    let answer = client.call("must", json!({})).await;
    ensure(
        keeper
            .backend
            .recorded_of("tools/call")
            .iter()
            .all(|seen| !seen.calls("must") || seen.message["params"]["task"].is_object()),
        || "it was called all the same".to_owned(),
    )?;
    refused(answer.message.get("error").ok_or_else(|| answer.text.clone())?)
}
