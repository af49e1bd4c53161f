//! Answers to stateless requests, and the messages before them.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::{FakeBackend, Gate, Reply};

use super::{Modern, VERSION, meta};
use crate::{broker_with, configured, text_of};

fn server_info(result: &Value) -> &Value {
    &result["_meta"]["io.modelcontextprotocol/serverInfo"]
}

/// Returns a backend with something in every list.
async fn everything() -> FakeBackend {
    let backend = FakeBackend::echo().await;
    backend.capabilities(json!({
        "tools": {}, "prompts": {}, "resources": {"subscribe": true}, "completions": {}, "logging": {}, "tasks": {"list": {}},
    }));
    backend.list("prompts", vec![json!({"name": "p"})]);
    backend.list("resources", vec![json!({"uri": "test://one", "name": "one"})]);
    backend.list("resourceTemplates", vec![json!({"uriTemplate": "test://{id}", "name": "t"})]);
    backend.on("prompts/get", |_| async { Reply::Result(json!({"messages": []})) });
    backend.on("completion/complete", |_| async {
        Reply::Result(json!({"completion": {"values": ["v"]}}))
    });
    backend.on("resources/read", |call| async move {
        match call.params()["uri"].as_str() {
            Some("test://one") => {
                Reply::Result(json!({"contents": [{"uri": "test://one", "text": "1"}]}))
            }
            uri => {
                Reply::Error(json!({"code": -32002, "message": "not found", "data": {"uri": uri}}))
            }
        }
    });
    backend
}

#[tokio::test]
async fn n_disc_01_a_discover_result_describes_the_endpoint() {
    let backend = everything().await;
    backend.server_info(json!({"name": "weather", "version": "7"}), Some("ask about the sky"));
    let broker =
        configured(json!({"compat": {"list_ttl": "5s", "list_scope": "public"}}), backend.spec())
            .await;
    let single = Modern::of(&broker, "/mcp/b").result("server/discover", json!({})).await;
    assert_eq!(
        single["supportedVersions"],
        json!(["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", VERSION])
    );
    assert_eq!(
        (server_info(&single)["name"].as_str(), single["instructions"].as_str()),
        (Some("weather"), Some("ask about the sky"))
    );
    assert_eq!(
        (single["ttlMs"].as_u64(), single["cacheScope"].as_str(), single["resultType"].as_str()),
        (Some(5000), Some("public"), Some("complete"))
    );
    let capabilities = single["capabilities"].as_object().unwrap();
    assert_eq!(capabilities["tools"], json!({"listChanged": true}));
    assert!(
        !capabilities.contains_key("tasks"),
        "tasks of earlier revisions are no capability of this one"
    );
    let merged = Modern::of(&broker, "/mcp").result("server/discover", json!({})).await;
    assert_eq!(server_info(&merged)["name"], "mcp-broker");
    assert!(merged["instructions"].as_str().unwrap().contains("ask about the sky"));
}

#[tokio::test]
async fn n_res_01_n_meta_03_n_cache_01_every_result_has_a_type_and_server_info() {
    let backend = everything().await;
    let broker = broker_with(&backend).await;
    let client = Modern::of(&broker, "/mcp");
    let reference = json!({"ref": {"type": "ref/prompt", "name": "b__p"}, "argument": {"name": "a", "value": ""}});
    for (method, params, cacheable) in [
        ("server/discover", json!({}), true),
        ("tools/list", json!({}), true),
        ("prompts/list", json!({}), true),
        ("resources/list", json!({}), true),
        ("resources/templates/list", json!({}), true),
        ("resources/read", json!({"uri": "b+test://one"}), true),
        ("tools/call", json!({"name": "b__echo", "arguments": {}}), false),
        ("prompts/get", json!({"name": "b__p"}), false),
        ("completion/complete", reference, false),
    ] {
        let result = client.result(method, params).await;
        assert_eq!(result["resultType"], "complete", "{method}");
        assert_eq!(server_info(&result)["name"], "mcp-broker", "{method}: {result}");
        let hint = (result["ttlMs"].as_u64(), result["cacheScope"].as_str());
        assert_eq!(
            hint,
            if cacheable { (Some(0), Some("private")) } else { (None, None) },
            "{method}"
        );
    }
}

#[tokio::test]
async fn n_list_01_n_list_02_lists_depend_only_on_the_endpoint() {
    let backend = everything().await;
    let broker = broker_with(&backend).await;
    let client = Modern::of(&broker, "/mcp");
    let first = client.result("tools/list", json!({})).await;
    client.call("b__echo", json!({})).await;
    let able = client.with(json!({"sampling": {}, "elicitation": {}}));
    assert_eq!(able.result("tools/list", json!({})).await, first);
    assert!(
        first["tools"][0].get("execution").is_none(),
        "tasks of earlier revisions are not told of"
    );
    let legacy = broker.connected(json!({})).await;
    assert!(legacy.result("tools/list", json!({})).await["tools"][0].get("execution").is_some());
    let error = client.error("tools/list", json!({"cursor": "made up"})).await;
    assert_eq!(error["code"], -32602);
}

#[tokio::test]
async fn n_err_01_n_rsrc_01_br_04_codes_of_earlier_revisions_are_translated() {
    let backend = everything().await;
    for (tool, code) in [
        ("e32002", -32002),
        ("e32042", -32042),
        ("e32020", -32020),
        ("e32050", -32050),
        ("e32000", -32000),
        ("e5", 5),
    ] {
        backend.tool(tool, move |_| async move { Reply::error(code, "as said") });
    }
    let broker = broker_with(&backend).await;
    let client = Modern::of(&broker, "/mcp");
    for (tool, code) in [
        ("e32002", -32602),
        ("e32042", -32603),
        ("e32020", -32603),
        ("e32050", -32603),
        ("e32000", -32000),
        ("e5", 5),
    ] {
        let error = client.error("tools/call", json!({"name": format!("b__{tool}")})).await;
        assert_eq!(
            (error["code"].as_i64(), error["message"].as_str()),
            (Some(code), Some("as said"))
        );
    }
    for uri in ["b+test://none", "nobody+test://x"] {
        let error = client.error("resources/read", json!({"uri": uri})).await;
        assert_eq!(
            (error["code"].as_i64(), error["data"]["uri"].as_str()),
            (Some(-32602), Some(uri)),
            "{error}"
        );
    }
    let error = client.error("tools/call", json!({"name": "b__none"})).await;
    assert_eq!(error["code"], -32602);
}

#[tokio::test]
async fn n_meta_04_a_backend_gets_the_request_without_metadata_for_the_broker() {
    let backend = everything().await;
    let broker = broker_with(&backend).await;
    let mut sent = meta(json!({"roots": {}}));
    let trace = json!({"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b", "baggage": "k=v"});
    sent.as_object_mut().unwrap().extend(trace.as_object().unwrap().clone());
    sent["example.org/own"] = json!([1.0, 1e3]);
    sent["io.modelcontextprotocol/logLevel"] = json!("info");
    Modern::of(&broker, "/mcp/b")
        .result(
            "tools/call",
            json!({"name": "echo", "arguments": {}, "task": {"ttl": 1}, "_meta": sent}),
        )
        .await;
    let seen = backend.wait_for("the call", |seen| seen.calls("echo")).await;
    let params = &seen.message["params"];
    for (key, value) in trace.as_object().unwrap() {
        assert_eq!(&params["_meta"][key], value);
    }
    assert_eq!(params["_meta"]["example.org/own"], json!([1.0, 1e3]));
    assert!(!params.to_string().contains("io.modelcontextprotocol/"), "{params}");
    assert!(params.get("task").is_none(), "N-TASK-06: it means nothing in this revision");
}

#[tokio::test]
async fn n_sse_01_n_sse_02_n_log_01_a_stream_has_only_messages_of_its_request() {
    let backend = everything().await;
    backend.tool("talk", |call| async move {
        call.progress(1.0, 2.0).await;
        for level in ["debug", "info", "error"] {
            call.notify("notifications/message", json!({"level": level, "data": level})).await;
        }
        call.progress(2.0, 2.0).await;
        Reply::text("done")
    });
    let broker = broker_with(&backend).await;
    let client = Modern::of(&broker, "/mcp/b");
    let asked = |level: Option<&str>, token: Option<Value>| {
        let mut meta = meta(json!({}));
        if let Some(level) = level {
            meta["io.modelcontextprotocol/logLevel"] = json!(level);
        }
        if let Some(token) = token {
            meta["progressToken"] = token;
        }
        json!({"name": "talk", "_meta": meta})
    };
    let (messages, answer) = client.exchange("tools/call", asked(None, None)).await;
    assert_eq!(
        (messages, text_of(&answer["result"])),
        (vec![], "done"),
        "nothing is told that was not asked for"
    );
    let (messages, _) = client.exchange("tools/call", asked(Some("info"), Some(json!("p")))).await;
    let progress: Vec<&Value> =
        messages.iter().filter(|message| message["method"] == "notifications/progress").collect();
    assert_eq!(progress.len(), 2);
    assert!(progress.iter().all(|message| message["params"]["progressToken"] == "p"));
    let logged: Vec<&Value> = messages
        .iter()
        .filter(|one| one["method"] == "notifications/message")
        .map(|one| &one["params"]["level"])
        .collect();
    assert_eq!(logged, ["info", "error"]);
    let (messages, _) = client.exchange("tools/call", asked(Some("error"), None)).await;
    assert_eq!(messages.len(), 1, "{messages:?}");
    let response = client.post(json!(1), "tools/call", asked(Some("debug"), None)).await;
    assert_eq!(response.header("x-accel-buffering"), Some("no"));
    let events = response.events().rest().await;
    assert!(events.iter().all(|event| event.id.is_none()), "there is nothing to come back to");
    let error = client.error("tools/call", asked(Some("loud"), None)).await;
    assert_eq!(error["code"], -32602);
}

#[tokio::test]
async fn n_sse_03_closing_the_stream_cancels_the_request() {
    let backend = everything().await;
    backend.tool("hang", |call| async move {
        call.progress(1.0, 2.0).await;
        Reply::Hang
    });
    let broker = broker_with(&backend).await;
    let client = Modern::of(&broker, "/mcp/b");
    let mut meta = meta(json!({}));
    meta["progressToken"] = json!(1);
    let response =
        client.post(json!(1), "tools/call", json!({"name": "hang", "_meta": meta})).await;
    assert!(response.is_event_stream());
    backend.wait_for("the call", |seen| seen.calls("hang")).await;
    drop(response);
    backend.wait_for("its cancellation", |seen| seen.is("notifications/cancelled")).await;
    assert_eq!(text_of(&client.call("echo", json!({"a": 1})).await), r#"{"a":1}"#);
}

#[tokio::test]
async fn requests_of_one_caller_share_a_backend_session_and_run_concurrently() {
    let backend = everything().await;
    let gate = Arc::new(Gate::default());
    let waits = gate.clone();
    let sessions = Arc::new(Mutex::new(Vec::new()));
    let recorded = sessions.clone();
    backend.sessions();
    backend.tool("wait", move |call| {
        let (waits, recorded) = (waits.clone(), recorded.clone());
        async move {
            recorded.lock().push(call.session.clone());
            waits.passed().await;
            Reply::text("go")
        }
    });
    let broker = broker_with(&backend).await;
    let client = Modern::of(&broker, "/mcp/b");
    let calls: Vec<_> = (0..10)
        .map(|_| {
            tokio::spawn({
                let client = client.clone();
                async move { client.call("wait", json!({})).await }
            })
        })
        .collect();
    backend.wait_count("all calls at once", 10, |seen| seen.calls("wait")).await;
    gate.open();
    for call in calls {
        assert_eq!(text_of(&call.await.unwrap()), "go");
    }
    let mut sessions = std::mem::take(&mut *sessions.lock());
    sessions.sort();
    sessions.dedup();
    assert_eq!(sessions.len(), 1, "one session at the backend carries them all");
}

#[tokio::test]
async fn n_meta_02_declared_capabilities_apply_only_to_their_request() {
    let backend = everything().await;
    backend.tool("ask", |call| async move {
        Reply::text(
            &call
                .request("sampling/createMessage", json!({"messages": [], "maxTokens": 1}))
                .await
                .to_string(),
        )
    });
    let broker = broker_with(&backend).await;
    let client = Modern::of(&broker, "/mcp/b");
    let able = client.with(json!({"sampling": {}}));
    for _ in 0..2 {
        assert_eq!(able.call("ask", json!({})).await["resultType"], "input_required");
        let answer = client.call("ask", json!({})).await;
        assert!(
            text_of(&answer).contains("-326"),
            "the backend hears that nobody can be asked: {answer}"
        );
    }
}
