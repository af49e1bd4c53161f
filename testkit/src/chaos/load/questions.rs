//! Calls of a session whose backend asks the client. The answer takes another connection, and often
//! another replica.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{ANSWER_WITHIN, Load, PATIENCE, PAUSE, outcome_of, told};
use crate::{
    client::{Call, TestClient},
    history::Observation,
};

impl Load {
    /// Makes a call and answers its question after `millis`.
    pub(super) async fn question(&self, client: &TestClient, key: &str, millis: u64) {
        let began = Instant::now();
        let mut call = client
            .start_request("tools/call", json!({"name": "b__ask", "arguments": {"key": key}}));
        let response = answered(client, &mut call, Duration::from_millis(millis));
        let response = tokio::time::timeout(PATIENCE, response)
            .await
            .unwrap_or_else(|_| Err(format!("no response within {PATIENCE:?}")));
        let answer = call.outcome_of(response);
        self.record_loss(client, &answer).await;
        let outcome = outcome_of(&answer);
        self.history.record(began, Observation::Called { key: key.to_owned(), outcome });
    }
}

/// Reads the response of a call. Answers a question on its stream until the answer is accepted.
async fn answered(client: &TestClient, call: &mut Call, after: Duration) -> Result<Value, String> {
    loop {
        let message = call.try_next().await?;
        if message.is_response() {
            return Ok(message.value);
        }
        if call.status.is_some_and(|(_, stream)| !stream) {
            return Ok(Value::Null);
        }
        if message.method() != Some("elicitation/create") {
            continue;
        }
        tokio::time::sleep(after).await;
        let began = Instant::now();
        while !client.try_respond(&message.value["id"], &told(), ANSWER_WITHIN).await
            && began.elapsed() < PATIENCE
        {
            tokio::time::sleep(PAUSE).await;
        }
    }
}
