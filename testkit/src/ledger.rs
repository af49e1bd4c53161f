//! A backend that keeps a ledger: each side effect under the key of its request, in order. Tests
//! take the ledger as the truth.
//!
//! Its tools take `{"key": TEXT}` and optionally:
//!
//! - `"millis"`: time that the answer takes
//! - `"steps"`: progress on the way
//! - `"hang": true`: no answer until [`Ledger::release`]
//!
//! The effect counts when the call comes in, as for an order placed or a mail sent: a second call
//! causes it twice. `write` and `hidden` declare nothing about repeats, `put` declares them
//! harmless, and `ask` sends a request to its client after its steps.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};

use crate::{
    backend::{BackendCall, FakeBackend, Reply, tool},
    deadline::Gate,
};

/// Time that `ask` waits for its client's answer.
const TOLD_WITHIN: Duration = Duration::from_secs(30);

/// One side effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    pub key: String,
    pub tool: &'static str,
    /// The text of the answer that its caller got, or will get.
    pub result: String,
    pub began: Instant,
    /// Time when the answer was ready.
    pub ended: Option<Instant>,
}

#[derive(Debug, Default)]
struct EffectLog(Mutex<Vec<Effect>>);

impl EffectLog {
    fn lock(&self) -> MutexGuard<'_, Vec<Effect>> {
        self.0.lock()
    }
}

/// The backend with its ledger; gone when dropped.
#[derive(Debug)]
pub struct Ledger {
    backend: FakeBackend,
    book: Arc<EffectLog>,
    released: Gate,
}

impl Ledger {
    pub async fn start() -> Self {
        let backend = FakeBackend::start().await;
        let (book, released) = (Arc::new(EffectLog::default()), Gate::new());
        let mut put = tool("put");
        put["annotations"] = json!({"idempotentHint": true});
        backend.list("tools", vec![tool("write"), tool("ask"), tool("hidden"), put]);
        let to_tools = (book.clone(), released.clone());
        backend.on("tools/call", move |call| {
            let (book, released) = to_tools.clone();
            async move {
                match call.params()["name"].as_str() {
                    Some("write") => execute("write", &call, &book, &released).await,
                    Some("put") => execute("put", &call, &book, &released).await,
                    Some("ask") => execute("ask", &call, &book, &released).await,
                    Some("hidden") => execute("hidden", &call, &book, &released).await,
                    _ => Reply::error(-32602, "no such tool"),
                }
            }
        });
        Self { backend, book, released }
    }

    pub fn backend(&self) -> &FakeBackend {
        &self.backend
    }

    /// Returns the admin API's body for this backend.
    pub fn spec(&self) -> Value {
        self.backend.spec()
    }

    /// Answers the calls that hang, now and from now on.
    pub fn release(&self) {
        self.released.open();
    }

    /// Returns every effect so far, in order.
    pub fn effects(&self) -> Vec<Effect> {
        self.book.lock().clone()
    }

    /// Returns how often the effect of this key happened.
    pub fn count(&self, key: &str) -> usize {
        self.book.lock().iter().filter(|effect| effect.key == key).count()
    }

    /// Returns the results given to the calls with this key.
    pub fn results(&self, key: &str) -> Vec<String> {
        self.book
            .lock()
            .iter()
            .filter(|effect| effect.key == key)
            .map(|effect| effect.result.clone())
            .collect()
    }

    /// Waits until the effect of this key happened.
    pub async fn wait_for(&self, key: &str) {
        let wanted = |seen: &crate::RecordedRequest| {
            seen.is("tools/call") && seen.message["params"]["arguments"]["key"] == key
        };
        self.backend.wait_for(&format!("the effect {key}"), wanted).await;
        crate::eventually(&format!("the effect {key}"), || async {
            if self.count(key) > 0 { Ok(()) } else { Err(()) }
        })
        .await;
    }
}

async fn execute(
    tool: &'static str,
    call: &BackendCall,
    book: &EffectLog,
    released: &Gate,
) -> Reply {
    let arguments = call.arguments();
    let Some(key) = arguments["key"].as_str() else {
        return Reply::error(-32602, "a key is needed");
    };
    let (index, mut result) = {
        let mut effects = book.lock();
        let number = effects.len();
        let nth = effects.iter().filter(|effect| effect.key == key).count() + 1;
        let result = format!("{key}: effect {number}, time {nth}");
        effects.push(Effect {
            key: key.to_owned(),
            tool,
            result: result.clone(),
            began: Instant::now(),
            ended: None,
        });
        (number, result)
    };
    let (millis, steps) =
        (arguments["millis"].as_u64().unwrap_or(0), arguments["steps"].as_u64().unwrap_or(0));
    for step in 1..=steps {
        call.progress(step as f64, 1_000.0).await;
        tokio::time::sleep(Duration::from_millis(millis / (steps + 1))).await;
    }
    if tool == "ask" {
        let schema = json!({"type": "object", "properties": {"word": {"type": "string"}}});
        let (_, answer) = call
            .start_question(
                "elicitation/create",
                json!({"message": key, "requestedSchema": schema}),
            )
            .await;
        // The client may be gone, or the replica with its answer.
        let told = match tokio::time::timeout(TOLD_WITHIN, answer).await {
            Ok(Ok(answer)) => answer["result"]["content"]["word"].clone(),
            _ => Value::Null,
        };
        result = format!("{result}, told {told}");
    }
    tokio::time::sleep(Duration::from_millis(millis / (steps + 1))).await;
    if arguments["hang"] == true {
        released.passed().await;
    }
    let mut effects = book.lock();
    effects[index].ended = Some(Instant::now());
    effects[index].result.clone_from(&result);
    Reply::text(&result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestClient;

    fn write(key: &str, more: Value) -> Value {
        let mut arguments = json!({"key": key});
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"name": "write", "arguments": arguments})
    }

    #[tokio::test]
    async fn each_request_has_one_effect_and_its_own_result() {
        let ledger = Ledger::start().await;
        let client = TestClient::new(ledger.backend().address(), "/mcp");
        let first = client.result("tools/call", write("a", json!({"millis": 1}))).await;
        assert_eq!(first["content"][0]["text"], ledger.results("a")[0].as_str());
        let hanging =
            client.start_request("tools/call", write("b", json!({"hang": true, "steps": 2})));
        ledger.wait_for("b").await;
        assert_eq!((ledger.count("b"), ledger.effects()[1].ended), (1, None));
        ledger.release();
        assert_eq!(hanging.result().await["content"][0]["text"], "b: effect 1, time 1");
        client.result("tools/call", write("a", json!({}))).await;
        assert_eq!(ledger.results("a"), ["a: effect 0, time 1", "a: effect 2, time 2"]);
        assert_eq!(
            ledger.effects().iter().map(|effect| effect.key.as_str()).collect::<Vec<_>>(),
            ["a", "b", "a"]
        );
        assert!(ledger.effects().iter().all(|effect| effect.ended.is_some()));
    }
}
