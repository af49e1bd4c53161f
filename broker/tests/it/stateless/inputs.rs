//! Requests of backends with sessions to the client, sent in the answers to stateless requests (MCP
//! 2026-07-28, Multi Round-Trip Requests).

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use serde_json::{Value, json};
use testkit::{FakeBackend, PipeBackend, Reply, StatelessBackend, StatelessReply, eventually};

use super::{Modern, meta};
use crate::{broker_with, builder, configured, kind, stdio, text_of};

fn everything() -> Value {
    json!({"sampling": {}, "roots": {}, "elicitation": {"form": {}, "url": {}}})
}

const FORM: &str = r#"{"mode":"form","message":"who?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}"#;

fn form() -> Value {
    serde_json::from_str(FORM).unwrap()
}

/// Returns a backend whose tool `ask` sends the requests of its arguments to the client, one after
/// the other or all at once. It returns the answers.
pub(super) async fn backend_with_questions() -> FakeBackend {
    FakeBackend::with_tool("ask", |call| async move {
        let requests: Vec<(String, Value)> =
            serde_json::from_value(call.arguments()["asks"].clone()).unwrap();
        let mut answers = Vec::new();
        if call.arguments()["together"] == true {
            let mut waits = Vec::new();
            for (method, params) in requests {
                waits.push(call.start_question(&method, params).await.1);
            }
            for wait in waits {
                answers.push(wait.await.expect("the backend lives"));
            }
        } else {
            for (method, params) in requests {
                answers.push(call.request(&method, params).await);
            }
        }
        let received: Vec<Value> = answers
            .into_iter()
            .map(|answer| answer.get("result").or(answer.get("error")).cloned().unwrap())
            .collect();
        Reply::text(&json!(received).to_string())
    })
    .await
}

fn with_requests(requests: &[(&str, Value)]) -> Value {
    json!({"asks": requests})
}

/// Returns the only key of the required inputs, and the request.
pub(super) fn only(required: &Value) -> (String, Value) {
    let requests = required["inputRequests"]
        .as_object()
        .unwrap_or_else(|| panic!("something is asked for: {required}"));
    assert_eq!(
        (requests.len(), required["resultType"].as_str()),
        (1, Some("input_required")),
        "{required}"
    );
    assert!(required.get("ttlMs").is_none(), "N-CACHE-01: it is not to be kept");
    let (key, request) = requests.iter().next().unwrap();
    assert!(
        request.get("id").is_none() && request.get("jsonrpc").is_none(),
        "N-MRTR-02: {request}"
    );
    (key.clone(), request.clone())
}

#[tokio::test]
async fn br_02_n_mrtr_02_each_kind_of_question_becomes_an_input_request() {
    let backend = backend_with_questions().await;
    let broker = broker_with(&backend).await;
    let client = Modern::of(&broker, "/mcp").with(everything());
    let sampled =
        json!({"role": "assistant", "content": {"type": "text", "text": "Paris"}, "model": "m"});
    let url = json!({"mode": "url", "message": "go", "url": "https://example.org/x", "elicitationId": "e1"});
    for (method, params, answer) in [
        ("elicitation/create", form(), json!({"action": "accept", "content": {"name": "Ada"}})),
        ("elicitation/create", form(), json!({"action": "decline"})),
        ("elicitation/create", form(), json!({"action": "cancel"})),
        ("elicitation/create", url, json!({"action": "accept"})),
        ("sampling/createMessage", json!({"messages": [], "maxTokens": 9}), sampled),
        ("roots/list", json!({}), json!({"roots": [{"uri": "file:///a"}]})),
    ] {
        let arguments = with_requests(&[(method, params.clone())]);
        let required = client.call("b__ask", arguments.clone()).await;
        let (key, request) = only(&required);
        let mut expected = params;
        expected.as_object_mut().unwrap().remove("elicitationId");
        assert_eq!((request["method"].as_str(), &request["params"]), (Some(method), &expected));
        let done = client
            .retry(
                "b__ask",
                arguments,
                &required["requestState"],
                json!({key: answer, "unknown": {}}),
            )
            .await;
        assert_eq!(done["result"]["resultType"], "complete", "{done}");
        assert_eq!(
            serde_json::from_str::<Value>(text_of(&done["result"])).unwrap(),
            json!([answer]),
            "as it was given"
        );
    }
    assert_eq!(backend.count(|seen| seen.calls("ask")), 6, "each call was made once");
}

#[tokio::test]
async fn br_02_an_answer_may_lead_to_more_rounds_with_several_questions() {
    let backend = backend_with_questions().await;
    let broker = broker_with(&backend).await;
    let client = Modern::of(&broker, "/mcp/b").with(everything());
    let arguments = with_requests(&[("elicitation/create", form()), ("roots/list", json!({}))]);
    let first = client.call("ask", arguments.clone()).await;
    let (key, _) = only(&first);
    let second = client
        .retry(
            "ask",
            arguments.clone(),
            &first["requestState"],
            json!({key: {"action": "decline"}}),
        )
        .await;
    let (key, request) = only(&second["result"]);
    assert_eq!(request["method"], "roots/list");
    assert_ne!(first["requestState"], second["result"]["requestState"]);
    let done = client
        .retry("ask", arguments, &second["result"]["requestState"], json!({key: {"roots": []}}))
        .await;
    assert_eq!(text_of(&done["result"]), r#"[{"action":"decline"},{"roots":[]}]"#);

    let mut together = with_requests(&[("elicitation/create", form()), ("roots/list", json!({}))]);
    together["together"] = json!(true);
    let required = client.call("ask", together.clone()).await;
    let requests = required["inputRequests"].as_object().unwrap();
    assert_eq!(requests.len(), 2, "{required}");
    let key_of = |method: &str| {
        requests.iter().find(|(_, request)| request["method"] == method).unwrap().0.clone()
    };
    let (form_key, roots_key) = (key_of("elicitation/create"), key_of("roots/list"));
    // N-MRTR-04: missing inputs are requested again, and only those.
    let again = client
        .retry(
            "ask",
            together.clone(),
            &required["requestState"],
            json!({form_key: {"action": "decline"}}),
        )
        .await;
    let (key, _) = only(&again["result"]);
    assert_eq!(key, roots_key);
    let done = client
        .retry("ask", together, &again["result"]["requestState"], json!({key: {"roots": []}}))
        .await;
    assert_eq!(text_of(&done["result"]), r#"[{"action":"decline"},{"roots":[]}]"#);
}

/// Returns a backend of the revision whose tool `ask` needs inputs under names of its own.
#[tokio::test]
async fn n_meta_02_n_mrtr_02_a_retry_gets_only_what_it_declares_itself() {
    let backend = backend_with_questions().await;
    let broker = broker_with(&backend).await;
    let all = Modern::of(&broker, "/mcp/b").with(everything());
    let forms = Modern::of(&broker, "/mcp/b").with(json!({"elicitation": {"form": {}}}));
    let nothing = Modern::of(&broker, "/mcp/b").with(json!({}));
    let arguments = with_requests(&[("elicitation/create", form()), ("roots/list", json!({}))]);
    let codes = |done: &Value| -> Vec<Value> {
        let answers: Vec<Value> = serde_json::from_str(text_of(&done["result"])).unwrap();
        answers.iter().map(|answer| answer["code"].clone()).collect()
    };

    // The next question needs a capability that only the first request declares.
    let first = all.call("ask", arguments.clone()).await;
    let (key, _) = only(&first);
    let answer = json!({key: {"action": "decline"}});
    let done = forms.retry("ask", arguments.clone(), &first["requestState"], answer).await;
    assert_eq!(codes(&done), [json!(null), json!(-32021)], "{done}");

    // The repeated question needs one, too.
    let first = all.call("ask", arguments.clone()).await;
    let done = nothing.retry("ask", arguments.clone(), &first["requestState"], json!({})).await;
    assert_eq!(codes(&done), [json!(-32021), json!(-32021)], "{done}");

    // Of two questions at once, the retry gets the one that it declares.
    let mut together = arguments;
    together["together"] = json!(true);
    let first = all.call("ask", together.clone()).await;
    let second = forms.retry("ask", together.clone(), &first["requestState"], json!({})).await;
    let (key, request) = only(&second["result"]);
    assert_eq!(request["method"], "elicitation/create");
    let answer = json!({key: {"action": "cancel"}});
    let done = forms.retry("ask", together, &second["result"]["requestState"], answer).await;
    assert_eq!(codes(&done), [json!(null), json!(-32021)], "{done}");
}

async fn naming() -> StatelessBackend {
    let backend = StatelessBackend::http().await;
    backend.tool("ask", |call| async move {
        let request = |message: &str| json!({"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": {"type": "object", "properties": {}}}});
        match call.params().get("inputResponses") {
            None => StatelessReply::needs(json!({"user name": request("who?"), "elicitation-1": request("what?")}), Some("state")),
            Some(answers) => StatelessReply::text(&json!({"answers": answers, "state": call.state()}).to_string()),
        }
    });
    backend
}

#[tokio::test]
async fn n_mrtr_02_a_backends_own_names_are_kept() {
    let backend = naming().await;
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    let client = Modern::of(&broker, "/mcp").with(everything());
    let required = client.call("b__ask", json!({})).await;
    let requests = required["inputRequests"].as_object().unwrap();
    assert_eq!(requests.keys().collect::<Vec<_>>(), ["elicitation-1", "user name"]);
    assert_eq!(
        (
            &requests["user name"]["params"]["message"],
            &requests["elicitation-1"]["params"]["message"]
        ),
        (&json!("who?"), &json!("what?"))
    );
    let answers = json!({"user name": {"action": "decline"}, "elicitation-1": {"action": "accept", "content": {"a": 1}}});
    let done = client.retry("b__ask", json!({}), &required["requestState"], answers.clone()).await;
    assert_eq!(
        serde_json::from_str::<Value>(text_of(&done["result"])).unwrap(),
        json!({"answers": answers, "state": "state"})
    );
    // A client may send known answers at once, and only the missing ones are requested.
    let brought =
        |answers: Value| json!({"name": "b__ask", "arguments": {}, "inputResponses": answers});
    let mut all = answers.clone();
    all["nobody asked"] = json!({"x": 1});
    let done = client.result("tools/call", brought(all)).await;
    assert_eq!(serde_json::from_str::<Value>(text_of(&done)).unwrap()["answers"], answers);
    let (key, _) = only(
        &client.result("tools/call", brought(json!({"user name": {"action": "decline"}}))).await,
    );
    assert_eq!(key, "elicitation-1");
    for wrong in [json!({"user name": {"action": "perhaps"}}), json!([])] {
        assert_eq!(client.error("tools/call", brought(wrong)).await["code"], -32602);
    }
}

#[tokio::test]
async fn n_mrtr_03_n_mrtr_04_n_mrtr_06_a_state_is_valid_once_for_its_request() {
    let backend = backend_with_questions().await;
    let broker =
        builder().auth_required().tenant("acme").backend("acme", "b", backend.spec()).start().await;
    let (alice, mallory) =
        (broker.admin().create_key("acme").await, broker.admin().create_key("acme").await);
    let client = Modern::of(&broker, "/mcp").with(everything()).bearer(&alice);
    let arguments = with_requests(&[("elicitation/create", form())]);
    let required = client.call("b__ask", arguments.clone()).await;
    let (key, _) = only(&required);
    let state = required["requestState"].as_str().unwrap().to_owned();
    let answer = json!({key.clone(): {"action": "accept", "content": {"name": "Ada"}}});
    let mut tampered = state.clone().into_bytes();
    let middle = tampered.len() / 2;
    tampered[middle] = if tampered[middle] == b'A' { b'B' } else { b'A' };
    let tampered = json!(String::from_utf8(tampered).unwrap());
    for (who, arguments, state) in [
        (client.clone(), arguments.clone(), tampered),
        (client.clone(), arguments.clone(), json!("made up")),
        (client.clone(), with_requests(&[("roots/list", json!({}))]), json!(state)),
        (client.bearer(&mallory), arguments.clone(), json!(state)),
    ] {
        let refused = who.retry("b__ask", arguments, &state, answer.clone()).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    let elsewhere = Modern::of(&broker, "/mcp/b").with(everything()).bearer(&alice);
    assert_eq!(
        elsewhere.retry("ask", arguments.clone(), &json!(state), answer.clone()).await["error"]["code"],
        -32602
    );
    for malformed in
        [json!({key.clone(): {"action": "perhaps"}}), json!({key.clone(): 7}), json!([])]
    {
        let refused = client.retry("b__ask", arguments.clone(), &json!(state), malformed).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    let done = client.retry("b__ask", arguments.clone(), &json!(state), answer.clone()).await;
    assert!(text_of(&done["result"]).contains("Ada"), "none of it did any harm: {done}");
    let again = client.retry("b__ask", arguments, &json!(state), answer).await;
    assert_eq!(again["error"]["code"], -32602, "{again}");
    assert!(again["error"]["message"].as_str().unwrap().contains("expired"));
    assert_eq!(backend.count(|seen| seen.calls("ask")), 1, "the call was made once");
}

#[tokio::test]
async fn n_mrtr_05_a_client_that_never_retries_leaves_no_state() {
    let backend = backend_with_questions().await;
    let broker = configured(json!({"timeouts": {"client_request": "1s"}}), backend.spec()).await;
    let client = Modern::of(&broker, "/mcp").with(everything());
    let arguments = with_requests(&[("elicitation/create", form())]);
    let required = client.call("b__ask", arguments.clone()).await;
    backend.wait_for("the end of the call", |seen| seen.is("notifications/cancelled")).await;
    let (key, _) = only(&required);
    let late = client
        .retry(
            "b__ask",
            arguments.clone(),
            &required["requestState"],
            json!({key: {"action": "decline"}}),
        )
        .await;
    assert_eq!(late["error"]["code"], -32602, "{late}");
    broker.admin().wait_metric("mcp_requests_pending", &[], |pending| pending == 0.0).await;
}

#[tokio::test]
async fn n_mrtr_05_the_waiting_requests_of_a_caller_are_limited() {
    let backend = backend_with_questions().await;
    let broker = broker_with(&backend).await;
    let client = Modern::of(&broker, "/mcp").with(everything());
    let arguments = with_requests(&[("elicitation/create", form())]);
    // All at once: one after the other, the first might be over before the last is sent.
    let asked = (0..=64)
        .map(|_| client.answer("tools/call", json!({"name": "b__ask", "arguments": arguments})));
    let answers = futures_util::future::join_all(asked).await;
    let refused: Vec<&Value> =
        answers.iter().filter(|answer| answer.get("error").is_some()).collect();
    assert_eq!(refused.len(), 1, "a caller has so many suspensions: {refused:?}");
    assert_eq!(refused[0]["error"]["data"]["kind"], "too_many_calls", "{refused:?}");
}

#[tokio::test]
async fn br_04_n_err_02_urls_of_an_error_are_opened_before_the_call_is_repeated() {
    let counted = Arc::new(AtomicU64::new(0));
    let backend = FakeBackend::with_tool("login", move |call| {
        let tries = counted.fetch_add(1, Ordering::Relaxed);
        async move {
            if tries < call.arguments()["after"].as_u64().unwrap() {
                let elicitation = json!({"mode": "url", "elicitationId": "e", "url": "https://example.org/login", "message": "sign in"});
                return Reply::Error(json!({"code": -32042, "message": "sign in first", "data": {"elicitations": [elicitation]}}));
            }
            Reply::text("welcome")
        }
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = Modern::of(&broker, "/mcp/b").with(everything());
    let arguments = json!({"after": 2});
    let first = client.call("login", arguments.clone()).await;
    let (key, request) = only(&first);
    assert_eq!(
        request["params"],
        json!({"mode": "url", "url": "https://example.org/login", "message": "sign in"})
    );
    let second = client
        .retry(
            "login",
            arguments.clone(),
            &first["requestState"],
            json!({key: {"action": "accept"}}),
        )
        .await;
    let (key, _) = only(&second["result"]);
    let done = client
        .retry(
            "login",
            arguments,
            &second["result"]["requestState"],
            json!({key: {"action": "accept"}}),
        )
        .await;
    assert_eq!(text_of(&done["result"]), "welcome");
    let unable = client.with(json!({"elicitation": {"form": {}}}));
    let error =
        unable.error("tools/call", json!({"name": "login", "arguments": {"after": 9}})).await;
    assert_eq!(
        (error["code"].as_i64(), &error["data"]["requiredCapabilities"]),
        (Some(-32021), &json!({"elicitation": {"url": {}}}))
    );
}

#[tokio::test]
async fn a_retry_above_the_rate_can_be_repeated_with_its_state() {
    let counted = Arc::new(AtomicU64::new(0));
    let backend = FakeBackend::with_tool("login", move |_| {
        let is_first = counted.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            let elicitation = json!({"mode": "url", "elicitationId": "e", "url": "https://example.org/login", "message": "sign in"});
            match is_first {
                true => Reply::Error(json!({"code": -32042, "message": "sign in first", "data": {"elicitations": [elicitation]}})),
                false => Reply::text("welcome"),
            }
        }
    })
    .await;
    backend.tool("ask", |call| async move {
        let form = json!({"message": "?", "requestedSchema": {"type": "object", "properties": {}}});
        let answer = call.request("elicitation/create", form).await;
        Reply::text(answer["result"]["action"].as_str().unwrap_or("nothing"))
    });
    let limits = json!({"requests_per_second_per_principal": 1, "burst_per_principal": 1});
    let broker = configured(json!({"limits": limits}), backend.spec()).await;
    let client = Modern::of(&broker, "/mcp/b").with(everything());
    for (tool, wanted) in [("login", "welcome"), ("ask", "accept")] {
        let required = eventually("the first answer", || async {
            let answer = client.answer("tools/call", json!({"name": tool, "arguments": {}})).await;
            if answer["error"].is_null() { Ok(answer["result"].clone()) } else { Err(answer) }
        })
        .await;
        let (key, _) = only(&required);
        let state = &required["requestState"];
        let accepted = json!({key: {"action": "accept", "content": {}}});
        let again = || client.retry(tool, json!({}), state, accepted.clone());
        let refused = again().await;
        assert_eq!(kind(&refused["error"]), "rate_limited", "{refused}");
        let done = eventually("the retry", || async {
            let answer = again().await;
            assert!(!answer.to_string().contains("expired"), "{answer}");
            if answer["error"].is_null() { Ok(answer["result"].clone()) } else { Err(answer) }
        })
        .await;
        assert_eq!(text_of(&done), wanted);
        // A used state counts too.
        let mut kinds = Vec::new();
        for _ in 0..3 {
            kinds.push(kind(&again().await["error"]).to_owned());
        }
        assert!(kinds.contains(&"rate_limited".to_owned()), "{kinds:?}");
    }
}

#[tokio::test]
async fn a_refused_request_is_counted_once() {
    let broker = broker_with(&FakeBackend::echo().await).await;
    let client = Modern::of(&broker, "/mcp/b");
    let refused = || async {
        let labels = [("method", "tools/call"), ("outcome", "refused")];
        broker.admin().metric("mcp_requests_total", &labels).await.unwrap_or(0.0)
    };
    client.error("tools/call", json!({"name": "none", "arguments": {}})).await;
    assert_eq!(refused().await, 1.0, "by the session");
    let params = json!({"name": "echo", "arguments": {}, "requestState": "made up"});
    client.error("tools/call", params).await;
    assert_eq!(refused().await, 2.0, "before the session");
}

#[tokio::test]
async fn br_02_a_pipe_carries_one_call_with_questions_at_a_time() {
    let pipe = PipeBackend::tcp(&stdio()).await;
    let broker = builder().backend("default", "b", pipe.spec()).start().await;
    let client = Modern::of(&broker, "/mcp/b").with(json!({"elicitation": {}}));
    let mut parked = Vec::new();
    for _ in 0..3 {
        parked.push(client.call("elicit", json!({"message": "who?"})).await);
    }
    assert!(
        pipe.accepted() >= 4,
        "each has a connection of its own, in addition to that of the catalog"
    );
    for (number, required) in parked.iter().enumerate().rev() {
        let (key, _) = only(required);
        let answer = json!({key: {"action": "accept", "content": {"n": number}}});
        let done = client
            .retry("elicit", json!({"message": "who?"}), &required["requestState"], answer)
            .await;
        assert!(text_of(&done["result"]).contains(&format!("\"n\":{number}")), "{done}");
    }
    let before = pipe.accepted();
    assert_eq!(client.call("echo", json!({"a": 1})).await["resultType"], "complete");
    assert_eq!(pipe.accepted(), before, "what is free is used again");
}

/// The first call has the only session, and the second one waits until another session is opened.
#[tokio::test]
async fn the_end_of_another_tenant_does_not_refuse_a_waiting_request() {
    let pipe = PipeBackend::tcp(&stdio()).await;
    let broker =
        builder().single_process().backend("default", "b", pipe.spec()).tenant("other").start();
    let broker = broker.await;
    let client = Modern::of(&broker, "/mcp/b").with(json!({"elicitation": {}}));
    let late = json!({"name": "late", "arguments": {"message": "who?", "pauseMs": 60_000}, "_meta": meta(json!({"elicitation": {}}))});
    let first = client.clone();
    let first = tokio::spawn(async move { first.post(json!(1), "tools/call", late).await });
    broker.admin().wait_metric("mcp_requests_pending", &[], |pending| pending == 1.0).await;
    let second =
        tokio::spawn(async move { client.call("elicit", json!({"message": "who?"})).await });
    while !second.is_finished() {
        broker.admin().put_tenant("other", json!({"enabled": false})).await;
    }
    let required = second.await.unwrap();
    assert_eq!(required["resultType"], "input_required", "{required}");
    first.abort();
}

#[tokio::test]
async fn br_02_a_question_after_a_cancellation_reaches_no_client() {
    let pipe = PipeBackend::tcp(&stdio()).await;
    let broker = builder().backend("default", "b", pipe.spec()).start().await;
    let client = Modern::of(&broker, "/mcp/b").with(json!({"elicitation": {}}));
    let late = |message: &str, pause_ms: u64| {
        let mut meta = meta(json!({"elicitation": {}}));
        meta["progressToken"] = json!(1);
        json!({"name": "late", "arguments": {"message": message, "pauseMs": pause_ms}, "_meta": meta})
    };
    // Its progress shows that the call is at the backend. Closing the stream cancels the call.
    let mut given_up =
        client.post(json!(1), "tools/call", late("of the first", 300)).await.events();
    assert_eq!(given_up.next_message().await.unwrap().1["method"], "notifications/progress");
    let before = pipe.accepted();
    drop(given_up);
    let required = client.result("tools/call", late("of the second", 1_000)).await;
    let (_, request) = only(&required);
    assert_eq!(request["params"]["message"], "of the second");
    assert_eq!(
        pipe.accepted(),
        before + 1,
        "what a cancelled request had is used by no other request"
    );
}

#[tokio::test]
async fn br_02_a_cancellation_at_one_backend_ends_no_call_at_another() {
    let answers = Arc::new(tokio::sync::Semaphore::new(0));
    let may = answers.clone();
    let http = FakeBackend::with_tool("hold", move |_| {
        let may = may.clone();
        async move {
            may.acquire().await.unwrap().forget();
            Reply::text("held")
        }
    })
    .await;
    let pipe = PipeBackend::tcp(&stdio()).await;
    let broker = builder()
        .backend("default", "p", pipe.spec())
        .backend("default", "h", http.spec())
        .start()
        .await;
    let client = Modern::of(&broker, "/mcp").with(json!({"elicitation": {}}));
    let mut meta = meta(json!({"elicitation": {}}));
    meta["progressToken"] = json!(1);
    let late = json!({"name": "p__late", "arguments": {"message": "who?", "pauseMs": 60_000}, "_meta": meta});
    let mut given_up = client.post(json!(1), "tools/call", late).await.events();
    assert_eq!(given_up.next_message().await.unwrap().1["method"], "notifications/progress");
    let other = tokio::spawn(async move { client.call("h__hold", json!({})).await });
    http.wait_for("the call", |seen| seen.calls("hold")).await;
    drop(given_up);
    broker.admin().wait_metric("mcp_requests_pending", &[], |pending| pending <= 1.0).await;
    answers.add_permits(1);
    assert_eq!(text_of(&other.await.unwrap()), "held");
}

#[tokio::test]
async fn unanswered_questions_leave_permits_for_other_callers() {
    let backend = backend_with_questions().await;
    let pipe = PipeBackend::tcp(&stdio()).await;
    let broker = builder()
        .single_process()
        .backend("default", "b", backend.spec())
        .backend("default", "pipe", pipe.spec())
        .start()
        .await;
    let client = Modern::of(&broker, "/mcp").with(everything());
    // The limit of bytes: one waiting call has capacity whatever its size, and no other.
    let mut long = form();
    long["message"] = json!("x".repeat(7 << 20));
    let arguments = with_requests(&[("elicitation/create", long)]);
    let required = client.call("b__ask", arguments.clone()).await;
    only(&required);
    let refused =
        client.error("tools/call", json!({"name": "b__ask", "arguments": arguments})).await;
    assert_eq!(kind(&refused), "too_many_calls", "{refused}");
    let small = client.call("b__ask", with_requests(&[("roots/list", json!({}))])).await;
    only(&small);
    // The limit of calls, where each has a connection to itself: some are left for requests that
    // need no input.
    let mut parked = 0;
    loop {
        let answer =
            client.answer("tools/call", json!({"name": "pipe__roots", "arguments": {}})).await;
        match answer.get("error") {
            None => parked += 1,
            Some(error) => {
                assert_eq!((parked, kind(error)), (24, "too_many_calls"));
                break;
            }
        }
    }
    assert_eq!(client.call("pipe__echo", json!({})).await["resultType"], "complete");
}

#[tokio::test]
async fn n_mrtr_01_br_07_a_question_that_cannot_be_sent_is_refused_at_once() {
    let backend = backend_with_questions().await;
    backend.capabilities(json!({"tools": {}, "prompts": {}, "completions": {}}));
    backend.list("prompts", vec![json!({"name": "p"})]);
    backend.on("completion/complete", |call| async move {
        let answers = [
            call.request("roots/list", json!({})).await["error"]["code"].to_string(),
            call.request("elicitation/create", form()).await["result"]["action"].to_string(),
        ];
        Reply::Result(json!({"completion": {"values": answers}}))
    });
    backend.on("prompts/get", |call| async move {
        let answer = call.request("roots/list", json!({})).await;
        Reply::Result(json!({"messages": [{"role": "user", "content": {"type": "text", "text": answer["result"].to_string()}}]}))
    });
    let broker = broker_with(&backend).await;
    let client = Modern::of(&broker, "/mcp/b").with(everything());
    let reference =
        json!({"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": ""}});
    let completed = client.result("completion/complete", reference).await;
    assert_eq!(
        completed["completion"]["values"],
        json!(["-32601", "\"cancel\""]),
        "there is no asking back on account of a completion"
    );
    let required = client.result("prompts/get", json!({"name": "p"})).await;
    let (key, _) = only(&required);
    let retry = json!({"name": "p", "requestState": required["requestState"], "inputResponses": {key: {"roots": []}}});
    assert_eq!(
        client.result("prompts/get", retry).await["messages"][0]["content"]["text"],
        r#"{"roots":[]}"#
    );
    // Without a request of the client no client can receive this one.
    backend.wait_get_streams(1).await;
    let asked = json!({"jsonrpc": "2.0", "id": "free", "method": "roots/list", "params": {}});
    backend.push(asked).await;
    backend
        .wait_for("a refusal", |seen| {
            seen.message["id"] == "free" && seen.message["error"]["code"] == -32601
        })
        .await;
}

#[tokio::test]
async fn a_request_state_without_a_question_is_ignored() {
    let backend = backend_with_questions().await;
    let broker = broker_with(&backend).await;
    let client = Modern::of(&broker, "/mcp/b");
    let listed = client
        .result(
            "tools/list",
            json!({"requestState": "x", "inputResponses": {}, "_meta": meta(json!({}))}),
        )
        .await;
    assert_eq!(listed["resultType"], "complete");
    let fresh = client
        .result(
            "tools/call",
            json!({"name": "ask", "arguments": with_requests(&[]), "inputResponses": {"a": {}}}),
        )
        .await;
    assert_eq!(text_of(&fresh), "[]");
}
