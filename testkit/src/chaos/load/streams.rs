//! Calls whose answers are streams, which break and are resumed.

use std::time::Instant;

use serde_json::{Value, json};

use super::{ANSWER_WITHIN, Load, PATIENCE, PAUSE, of_message, outcome_of};
use crate::{
    client::{AttemptOutcome, TestClient},
    events::EventReader,
    history::Observation,
};

impl Load {
    /// Makes a call whose progress is read event by event, over as many connections as it takes.
    pub(super) async fn stream(&self, client: &TestClient, key: &str, steps: u64, millis: u64) {
        let began = Instant::now();
        let params = json!({"name": "b__write", "arguments": {"key": key, "millis": millis, "steps": steps}, "_meta": {"progressToken": key}});
        let id = client.take_id();
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
            .to_string();
        let requested = tokio::time::timeout(
            ANSWER_WITHIN,
            client.try_send("POST", &client.usual_headers(), body.into()),
        )
        .await;
        let mut last = None;
        let mut answer = AttemptOutcome::NoAnswer("no head of an answer".to_owned());
        if let Ok(Ok(response)) = requested {
            if response.is_event_stream() {
                answer = self.read_stream(key, response.events(), &mut last).await;
            } else {
                let status = response.status;
                let body: Value = response
                    .try_bytes()
                    .await
                    .ok()
                    .and_then(|body| serde_json::from_slice(&body).ok())
                    .unwrap_or_default();
                answer = of_message(status, &body);
            }
        }
        while let (AttemptOutcome::NoAnswer(_), Some(from)) = (&answer, last.clone()) {
            if began.elapsed() > PATIENCE {
                break;
            }
            tokio::time::sleep(PAUSE).await;
            answer = self.resume(client, key, &from, &mut last).await;
        }
        self.record_loss(client, &answer).await;
        self.history.record(
            began,
            Observation::Called { key: key.to_owned(), outcome: outcome_of(&answer) },
        );
    }

    async fn read_stream(
        &self,
        key: &str,
        mut events: EventReader,
        last: &mut Option<String>,
    ) -> AttemptOutcome {
        let mut gaps = 0;
        while let Ok(Some(event)) = events.next_event(ANSWER_WITHIN).await {
            let began = Instant::now();
            if events.gaps() > gaps {
                gaps = events.gaps();
                self.history.record(began, Observation::Gap { stream: key.to_owned() });
            }
            if event.is_priming() {
                self.record_priming(key, event.id, last);
                continue;
            }
            let message = event.message().unwrap_or_default();
            if let Some(id) = event.id {
                let number = message["params"]["progress"].as_f64().map(|progress| progress as u64);
                self.history.record(
                    began,
                    Observation::Event { stream: key.to_owned(), id: id.clone(), number },
                );
                *last = Some(id);
            }
            if message.get("result").is_some() || message.get("error").is_some() {
                return of_message(200, &message);
            }
        }
        AttemptOutcome::NoAnswer("the stream ended".to_owned())
    }

    /// Notes a priming event. It only marks where the stream continues: after the event that its
    /// client resumed from.
    fn record_priming(&self, key: &str, id: Option<String>, last: &mut Option<String>) {
        if last.is_some() && *last != id {
            let what =
                format!("{key} was resumed after {last:?}, and its stream begins after {id:?}");
            self.history.record(Instant::now(), Observation::Wrong { what });
        }
        *last = id;
    }

    pub(super) async fn resume(
        &self,
        client: &TestClient,
        key: &str,
        from: &str,
        last: &mut Option<String>,
    ) -> AttemptOutcome {
        match tokio::time::timeout(ANSWER_WITHIN, client.try_get_stream(Some(from))).await {
            Ok(Ok(response)) if response.is_event_stream() => {
                self.read_stream(key, response.events(), last).await
            }
            Ok(Ok(response)) => {
                let status = response.status;
                let body: Value = response
                    .try_bytes()
                    .await
                    .ok()
                    .and_then(|body| serde_json::from_slice(&body).ok())
                    .unwrap_or_default();
                let refused = of_message(status, &body);
                match refused.kind().as_str() {
                    // The broker reports that events of this stream are lost, the answer included.
                    "events_gone" => {
                        self.history
                            .record(Instant::now(), Observation::Gap { stream: key.to_owned() });
                        *last = None;
                        AttemptOutcome::NoAnswer("the events are gone".to_owned())
                    }
                    "session_not_found" => refused,
                    _ => AttemptOutcome::NoAnswer(refused.kind()),
                }
            }
            _ => AttemptOutcome::NoAnswer("no replica answers".to_owned()),
        }
    }
}
