//! `input_required`: the broker sends a backend's request for input to the client, and repeats the
//! call.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json};
use testkit::{StatelessBackend, StatelessReply, TestClient};

use super::{broker_with, on_both_wires};
use crate::{builder, kind, text_of};

fn form(message: &str) -> Value {
    json!({"method": "elicitation/create", "params": {"mode": "form", "message": message,
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}})
}

fn sampling() -> Value {
    json!({"method": "sampling/createMessage", "params": {"maxTokens": 5, "messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}]}})
}

fn everything() -> Value {
    json!({"sampling": {}, "roots": {}, "elicitation": {"form": {}, "url": {}}})
}

fn answered(method: &str, params: &Value) -> Result<Value, Value> {
    Ok(match method {
        "sampling/createMessage" => {
            json!({"role": "assistant", "content": {"type": "text", "text": "ho"}, "model": "m"})
        }
        "roots/list" => json!({"roots": [{"uri": "file:///r"}]}),
        "elicitation/create" => json!({"action": "accept", "content": {"name": params["message"]}}),
        other => panic!("{other} is not asked"),
    })
}

/// Gives a backend a tool `ask` that needs `requests` and returns the answers with the state.
fn backend_with_questions(
    backend: &StatelessBackend,
    requests: Value,
    state: Option<&'static str>,
) {
    backend.tool("ask", move |call| {
        let requests = requests.clone();
        async move {
            match call.params().get("inputResponses") {
                None => StatelessReply::needs(requests, state),
                Some(answers) => StatelessReply::text(
                    &json!({"answers": answers, "state": call.state()}).to_string(),
                ),
            }
        }
    });
}

async fn call_ask(client: &TestClient) -> Value {
    serde_json::from_str(text_of(&client.call("b__ask", json!({"a": 1})).await)).unwrap()
}

#[tokio::test]
async fn nb_mrtr_01_nb_mrtr_02_br_02_all_kinds_of_inputs_are_requested() {
    for backend in on_both_wires().await {
        backend_with_questions(
            &backend,
            json!({"who": form("Ann"), "model": sampling(), "where": {"method": "roots/list"}}),
            Some("st\u{e9}\n\"te"),
        );
        let broker = broker_with(&backend).await;
        let client = broker.client("/mcp").answers(answered).connected(everything()).await;
        let result = call_ask(&client).await;
        assert_eq!(
            result["answers"]["who"],
            json!({"action": "accept", "content": {"name": "Ann"}})
        );
        assert_eq!(result["answers"]["model"]["content"]["text"], "ho");
        assert_eq!(result["answers"]["where"]["roots"][0]["uri"], "file:///r");
        assert_eq!(result["state"], "st\u{e9}\n\"te", "exactly as it came");
        let calls = backend.recorded_of("tools/call");
        assert_eq!(calls.len(), 2);
        assert_ne!(calls[0].message["id"], calls[1].message["id"], "a request of its own");
        assert_eq!(
            calls[0].message["params"]["arguments"],
            calls[1].message["params"]["arguments"]
        );
        // The next call does not see the state.
        client.call("b__ask", json!({})).await;
        let third = &backend.recorded_of("tools/call")[2];
        assert!(
            third.message["params"].get("requestState").is_none()
                && third.message["params"].get("inputResponses").is_none()
        );
    }
}

#[tokio::test]
async fn br_02_questions_are_answered_at_another_replica_than_that_of_the_call() {
    for backend in on_both_wires().await {
        backend_with_questions(
            &backend,
            json!({"who": form("Ann"), "model": sampling(), "where": {"method": "roots/list"}}),
            Some("st"),
        );
        let cluster = builder().backend("default", "b", backend.spec()).cluster(2).start().await;
        let client = cluster.client_of(0, "/mcp").connected(everything()).await;
        for (asked, at) in [(0, 1), (1, 0), (1, 1)] {
            let before = backend.recorded_of("tools/call").len();
            let (caller, other) = (cluster.at(asked, &client), cluster.at(at, &client));
            let mut call = caller.start_call("b__ask", json!({"a": 1}));
            for _ in 0..3 {
                let question = call.next().await.unwrap().value;
                let answer =
                    answered(question["method"].as_str().unwrap(), &question["params"]).unwrap();
                other.respond(question["id"].clone(), answer).await;
            }
            let result = call.result().await;
            let inputs: Value = serde_json::from_str(text_of(&result)).unwrap();
            assert_eq!(
                (&inputs["answers"]["who"]["content"]["name"], &inputs["state"]),
                (&json!("Ann"), &json!("st")),
                "{asked} {at}"
            );
            assert_eq!(inputs["answers"]["where"]["roots"][0]["uri"], "file:///r");
            assert_eq!(
                backend.recorded_of("tools/call").len(),
                before + 2,
                "the request, and once more with the answers"
            );
            // The client may also decline at either replica.
            let mut call = caller.start_call("b__ask", json!({"a": 2}));
            let question = call.next().await.unwrap().value;
            other
                .respond_error(
                    question["id"].clone(),
                    json!({"code": -1, "message": "the user said no"}),
                )
                .await;
            assert_eq!(call.error().await["message"], "the user said no", "{asked} {at}");
        }
    }
}

#[tokio::test]
async fn nb_mrtr_01_a_missing_request_state_is_not_sent_back() {
    let backend = StatelessBackend::http().await;
    backend_with_questions(&backend, json!({"who": form("Ann")}), None);
    let broker = broker_with(&backend).await;
    let client = broker.client("/mcp").answers(answered).connected(everything()).await;
    assert_eq!(call_ask(&client).await["state"], Value::Null);
    assert!(backend.recorded_of("tools/call")[1].message["params"].get("requestState").is_none());
}

#[tokio::test]
async fn br_02_an_elicitation_that_opens_a_url_gets_an_id() {
    let backend = StatelessBackend::http().await;
    let url = json!({"method": "elicitation/create", "params": {"mode": "url", "url": "https://example.com/x", "message": "go"}});
    backend_with_questions(&backend, json!({"go": url}), None);
    let broker = broker_with(&backend).await;
    let asked = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let recorded = asked.clone();
    let answers = move |_: &str, params: &Value| {
        recorded.lock().push(params["elicitationId"].as_str().unwrap_or_default().to_owned());
        Ok(json!({"action": "accept"}))
    };
    let client = broker.client("/mcp").answers(answers).connected(everything()).await;
    call_ask(&client).await;
    call_ask(&client).await;
    let ids = asked.lock().clone();
    assert!(ids.iter().all(|id| id.len() >= 16) && ids[0] != ids[1], "{ids:?}");
}

#[tokio::test]
async fn br_02_prompts_and_resources_may_need_inputs_too() {
    for backend in on_both_wires().await {
        backend.list("prompts", vec![json!({"name": "greet"})]);
        let request = |call: testkit::StatelessCall, result: Value| match call.input("who") {
            Value::Null => StatelessReply::needs(json!({"who": form("Ann")}), Some("s")),
            _ => StatelessReply::Result(result),
        };
        backend.on("prompts/get", move |call| async move {
            request(call, json!({"messages": [], "description": "d"}))
        });
        backend.on("resources/read", move |call| async move {
            request(call, json!({"contents": [{"uri": "test://one", "text": "t"}], "ttlMs": 0, "cacheScope": "private"}))
        });
        backend.on("completion/complete", |_| async {
            StatelessReply::needs(json!({"who": form("Ann")}), None)
        });
        let broker = broker_with(&backend).await;
        let client = broker.client("/mcp").answers(answered).connected(everything()).await;
        assert_eq!(
            client.result("prompts/get", json!({"name": "b__greet"})).await,
            json!({"messages": [], "description": "d"})
        );
        assert_eq!(
            client.result("resources/read", json!({"uri": "b+test://one"})).await["contents"][0]["text"],
            "t"
        );
        let params = json!({"ref": {"type": "ref/prompt", "name": "b__greet"}, "argument": {"name": "a", "value": ""}});
        assert_eq!(
            kind(&client.error("completion/complete", params).await),
            "backend_protocol_error",
            "nothing else may"
        );
    }
}

#[tokio::test]
async fn br_02_an_input_refused_by_the_client_fails_its_call_with_that_error() {
    for backend in on_both_wires().await {
        backend_with_questions(
            &backend,
            json!({"model": sampling(), "who": form("Ann")}),
            Some("s"),
        );
        let broker = broker_with(&backend).await;
        let answers = |method: &str, params: &Value| match method {
            "sampling/createMessage" => Err(json!({"code": -1, "message": "the user said no"})),
            _ => answered(method, params),
        };
        let client = broker.client("/mcp").answers(answers).connected(everything()).await;
        let error = client.error("tools/call", json!({"name": "b__ask", "arguments": {}})).await;
        assert_eq!((&error["code"], &error["message"]), (&json!(-1), &json!("the user said no")));
        assert_eq!(backend.recorded_of("tools/call").len(), 1, "the request is never sent again");
    }
}

#[tokio::test]
async fn br_02_a_decline_is_sent_to_the_backend_as_an_answer() {
    let backend = StatelessBackend::http().await;
    backend_with_questions(&backend, json!({"who": form("Ann")}), None);
    let broker = broker_with(&backend).await;
    let client = broker
        .client("/mcp")
        .answers(|_, _| Ok(json!({"action": "decline"})))
        .connected(everything())
        .await;
    assert_eq!(call_ask(&client).await["answers"]["who"], json!({"action": "decline"}));
}

#[tokio::test]
async fn cli_01_an_input_of_an_undeclared_capability_is_not_requested() {
    for backend in on_both_wires().await {
        backend_with_questions(&backend, json!({"who": form("Ann")}), None);
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({"sampling": {}})).await;
        let error = client.error("tools/call", json!({"name": "b__ask", "arguments": {}})).await;
        assert_eq!((&error["code"], kind(&error)), (&json!(-32601), "capability_missing"));
        assert_eq!(backend.recorded_of("tools/call").len(), 1);
    }
}

#[tokio::test]
async fn nb_mrtr_03_a_state_without_inputs_is_sent_again_and_rounds_are_limited() {
    let backend = StatelessBackend::http().await;
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    backend.tool("busy", move |call| {
        let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if first {
                StatelessReply::needs(Value::Null, Some("later"))
            } else {
                StatelessReply::text(call.state().unwrap_or("none"))
            }
        }
    });
    backend.tool("endless", |call| async move {
        StatelessReply::needs(json!({"who": form("Ann")}), call.state().or(Some("s")))
    });
    let broker = broker_with(&backend).await;
    let client = broker.client("/mcp").answers(answered).connected(everything()).await;
    assert_eq!(text_of(&client.call("b__busy", json!({})).await), "later");
    let error = client.error("tools/call", json!({"name": "b__endless", "arguments": {}})).await;
    assert_eq!(kind(&error), "backend_protocol_error");
    let sent = backend.recorded().iter().filter(|seen| seen.calls("endless")).count();
    assert_eq!(sent, 17, "the call, and sixteen rounds");
}

#[tokio::test]
async fn br_02_a_cancelled_call_withdraws_its_questions() {
    let backend = StatelessBackend::http().await;
    backend_with_questions(&backend, json!({"who": form("Ann")}), None);
    let broker = broker_with(&backend).await;
    let client = broker.connected(everything()).await; // answers nothing
    let mut stream = client.open_get_stream().await;
    let mut call = client.start_call("b__ask", json!({}));
    let question = call.next().await.unwrap();
    assert_eq!(question.value["method"], "elicitation/create");
    client.notify("notifications/cancelled", json!({"requestId": call.id})).await;
    let withdrawn = loop {
        let next = tokio::select! {
            next = call.next_or_end() => next.map(|one| one.value),
            next = stream.next_message() => next.map(|(_, message)| message),
        };
        if let Some(next) = next.filter(|next| next["method"] == "notifications/cancelled") {
            break next;
        }
    };
    assert_eq!(withdrawn["params"]["requestId"], question.value["id"]);
    assert_eq!(backend.recorded_of("tools/call").len(), 1);
}

#[tokio::test]
async fn two_clients_of_one_link_get_their_own_questions() {
    for backend in on_both_wires().await {
        backend.tool("ask", |call| async move {
            match call.input("who") {
                Value::Null => StatelessReply::needs(
                    json!({"who": form(call.arguments()["n"].as_str().unwrap())}),
                    None,
                ),
                who => StatelessReply::text(who["content"]["name"].as_str().unwrap()),
            }
        });
        let broker = broker_with(&backend).await;
        let one = broker.client("/mcp").answers(answered).connected(everything()).await;
        let two = broker.client("/mcp").answers(answered).connected(everything()).await;
        let calls: Vec<_> = (0..20)
            .map(|n| {
                (
                    n,
                    if n % 2 == 0 { &one } else { &two }
                        .start_call("b__ask", json!({"n": n.to_string()})),
                )
            })
            .collect();
        for (n, call) in calls {
            assert_eq!(text_of(&call.result().await), n.to_string());
        }
    }
}

/// Gives a backend a tool `ask` whose round with the user's answer fails `failures` times.
fn backend_failing_after_the_answer(
    backend: &StatelessBackend,
    is_read_only: bool,
    failure: StatelessReply,
    failures: usize,
) {
    let rounds = AtomicUsize::new(0);
    backend.tool("ask", move |call| {
        let fails =
            !call.input("who").is_null() && rounds.fetch_add(1, Ordering::SeqCst) < failures;
        let failure = failure.clone();
        async move {
            match call.input("who") {
                Value::Null => StatelessReply::needs(json!({"who": form("Ann")}), Some("s")),
                _ if fails => failure,
                who => StatelessReply::text(who["content"]["name"].as_str().unwrap()),
            }
        }
    });
    let mut tool = testkit::backend::tool("ask");
    tool["annotations"] = json!({"readOnlyHint": is_read_only});
    backend.list("tools", vec![tool]);
}

/// Returns answers that count the questions.
fn counted(asked: &Arc<AtomicUsize>) -> impl Fn(&str, &Value) -> Result<Value, Value> + use<> {
    let asked = asked.clone();
    move |method, params| {
        asked.fetch_add(1, Ordering::SeqCst);
        answered(method, params)
    }
}

#[tokio::test]
async fn br_02_a_call_that_fails_after_an_answer_does_not_ask_again() {
    for (failure, is_read_only) in [
        (StatelessReply::Refused(429), false),
        (StatelessReply::Refused(429), true),
        (StatelessReply::Refused(503), true),
        (StatelessReply::End, true),
    ] {
        let backend = StatelessBackend::http().await;
        backend_failing_after_the_answer(&backend, is_read_only, failure.clone(), usize::MAX);
        let broker = broker_with(&backend).await;
        let asked = Arc::default();
        let client = broker.client("/mcp").answers(counted(&asked)).connected(everything()).await;
        let error = client.error("tools/call", json!({"name": "b__ask", "arguments": {}})).await;
        assert_eq!(
            (kind(&error), asked.load(Ordering::SeqCst)),
            ("outcome_unknown", 1),
            "{failure:?} {is_read_only}: {error}"
        );
        assert_eq!(error["data"].get("retryAfterMs"), None, "a repetition is not safe: {error}");
    }
}

#[tokio::test]
async fn br_02_a_round_that_the_backend_did_not_process_is_sent_again() {
    let backend = StatelessBackend::http().await;
    backend_failing_after_the_answer(&backend, false, StatelessReply::Refused(429), 1);
    let broker = broker_with(&backend).await;
    let asked = Arc::default();
    let client = broker.client("/mcp").answers(counted(&asked)).connected(everything()).await;
    assert_eq!(text_of(&client.call("b__ask", json!({})).await), "Ann");
    let calls = backend.recorded_of("tools/call");
    assert_eq!((calls.len(), asked.load(Ordering::SeqCst)), (3, 1));
    let (failed, repeated) = (&calls[1].message, &calls[2].message);
    assert_ne!(failed["id"], repeated["id"], "a request of its own");
    for member in ["inputResponses", "requestState", "arguments"] {
        assert_eq!(failed["params"][member], repeated["params"][member], "{member}");
    }
}

#[tokio::test]
async fn br_02_a_task_that_fails_after_an_answer_does_not_ask_again() {
    for (failure, is_read_only) in
        [(StatelessReply::Refused(429), false), (StatelessReply::End, true)]
    {
        let backend = StatelessBackend::http().await;
        backend_failing_after_the_answer(&backend, is_read_only, failure.clone(), usize::MAX);
        let broker = broker_with(&backend).await;
        let asked = Arc::default();
        let client = broker.client("/mcp").answers(counted(&asked)).connected(everything()).await;
        let params = json!({"name": "b__ask", "arguments": {}, "task": {"ttl": 60000}});
        let created = client.result("tools/call", params).await;
        let error =
            client.error("tasks/result", json!({"taskId": created["task"]["taskId"]})).await;
        assert_eq!(
            (kind(&error), asked.load(Ordering::SeqCst)),
            ("outcome_unknown", 1),
            "{failure:?} {is_read_only}: {error}"
        );
    }
}
