//! Requests: the metadata of each, its headers, its answer, its cancellation.

use serde_json::json;
use testkit::{Gate, StatelessBackend, StatelessReply, eventually};

use super::{broker_with, on_both_wires};
use crate::{
    configured, kind,
    stateless::{Modern, meta},
    text_of,
};

const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const INFO: &str = "io.modelcontextprotocol/clientInfo";
const LEVEL: &str = "io.modelcontextprotocol/logLevel";

#[tokio::test]
async fn nb_meta_01_nb_meta_02_each_request_has_the_metadata_of_its_client() {
    for backend in on_both_wires().await {
        backend.list("tools", vec![testkit::backend::tool("echo")]);
        let broker = broker_with(&backend).await;
        let one = broker
            .connected(
                json!({"sampling": {}, "roots": {"listChanged": true}, "tasks": {"list": {}}}),
            )
            .await;
        let two = broker.connected(json!({})).await;
        one.result("logging/setLevel", json!({"level": "warning"})).await;
        for client in [&one, &two] {
            assert_eq!(text_of(&client.call("b__echo", json!({"a": 1})).await), r#"{"a":1}"#);
        }
        let calls = backend.recorded_of("tools/call");
        let meta: Vec<_> = calls.iter().map(|call| &call.message["params"]["_meta"]).collect();
        assert_eq!(
            meta[0][CAPABILITIES],
            json!({"sampling": {}, "roots": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}})
        );
        assert_eq!(
            meta[1][CAPABILITIES],
            json!({"extensions": {"io.modelcontextprotocol/tasks": {}}})
        );
        assert_eq!((&meta[0][LEVEL], meta[1].get(LEVEL)), (&json!("warning"), None));
        // The broker asks whether the backend also has sessions, and it refuses. A connection can
        // keep the era of its first request, so the broker asks again on another one.
        let is_http = backend.spec()["transport"]["type"] == "http";
        let asked = backend.recorded_of("initialize").len();
        assert_eq!(asked, if is_http { 1 } else { 2 });
        // A replaced stream of notifications is given up by a notification, which carries only its
        // id.
        for seen in backend
            .recorded()
            .iter()
            .filter(|seen| !seen.is("initialize") && !seen.is("notifications/cancelled"))
        {
            assert!(
                !["notifications/initialized", "ping", "logging/setLevel"]
                    .contains(&seen.method().unwrap_or_default())
            );
            assert_ne!(seen.http, "GET");
            let meta = &seen.message["params"]["_meta"];
            assert_eq!(
                (&meta[VERSION], meta[INFO]["name"].is_string()),
                (&json!("2026-07-28"), true),
                "{}",
                seen.message
            );
        }
    }
}

#[tokio::test]
async fn nb_hdr_01_headers_contain_the_names_of_the_backend() {
    let backend = StatelessBackend::http().await;
    backend.list("tools", vec![testkit::backend::tool("größe")]);
    backend.list("resources", vec![json!({"uri": "test://one", "name": "one"})]);
    backend.list("prompts", vec![json!({"name": "greet"})]);
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let exposed = client.tool_names().await.remove(0);
    client.call(&exposed, json!({})).await;
    client.result("resources/read", json!({"uri": "b+test://one"})).await;
    client.result("prompts/get", json!({"name": "b__greet"})).await;
    // A strict backend accepted them all; these are the headers.
    let named: Vec<_> = backend
        .recorded()
        .iter()
        .filter_map(|seen| {
            Some((seen.header("mcp-method")?.to_owned(), seen.header("mcp-name")?.to_owned()))
        })
        .collect();
    assert_eq!(named[0], ("tools/call".to_owned(), "=?base64?Z3LDtsOfZQ==?=".to_owned()));
    assert_eq!(named[1], ("resources/read".to_owned(), "test://one".to_owned()));
    assert_eq!(named[2], ("prompts/get".to_owned(), "greet".to_owned()));
    assert!(
        backend
            .recorded()
            .iter()
            .filter(|seen| !seen.is("initialize"))
            .all(|seen| seen.header("mcp-protocol-version") == Some("2026-07-28")
                && seen.header("mcp-session-id").is_none())
    );
}

fn regional(header: &str) -> serde_json::Value {
    let properties = json!({"region": {"type": "string", "x-mcp-header": header}, "n": {"type": "integer", "x-mcp-header": "N"}});
    json!({"name": "regional", "inputSchema": {"type": "object", "properties": properties}})
}

#[tokio::test]
async fn nb_hdr_02_arguments_are_repeated_in_headers_by_the_schema() {
    let backend = StatelessBackend::http().await;
    backend.list("tools", vec![regional("Region")]);
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    client.call("b__regional", json!({"region": "eu", "n": 7})).await;
    client.call("b__regional", json!({"region": " ü", "n": null})).await;
    let calls = backend.recorded_of("tools/call");
    assert_eq!(
        (calls[0].header("mcp-param-region"), calls[0].header("mcp-param-n")),
        (Some("eu"), Some("7"))
    );
    assert_eq!(
        (calls[1].header("mcp-param-region"), calls[1].header("mcp-param-n")),
        (Some("=?base64?IMO8?="), None)
    );
}

#[tokio::test]
async fn nb_hdr_03_tools_with_invalid_annotations_are_not_offered_over_http() {
    for backend in on_both_wires().await {
        backend.list("tools", vec![regional("not a token"), testkit::backend::tool("fine")]);
        let broker = broker_with(&backend).await;
        let names = broker.connected(json!({})).await.tool_names().await;
        let is_http = backend.spec()["transport"]["type"] == "http";
        assert_eq!(names.contains(&"b__regional".to_owned()), !is_http, "{names:?}");
        assert!(names.contains(&"b__fine".to_owned()));
        if is_http {
            broker.wait_for_log("the catalog omits it tenant=default backend=b").await;
        }
    }
}

#[tokio::test]
async fn nb_hdr_04_a_call_with_headers_of_an_old_schema_is_repeated_once() {
    let backend = StatelessBackend::http().await;
    backend.list("tools", vec![regional("Old")]);
    backend.on("tools/call", |call| async move {
        match call.headers.get("mcp-param-new") {
            Some(_) => StatelessReply::text("accepted"),
            None => StatelessReply::error(-32020, "Mcp-Param-New is missing"),
        }
    });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    assert_eq!(client.tool_names().await, ["b__regional"]);
    backend.list("tools", vec![regional("New")]);
    assert_eq!(text_of(&client.call("b__regional", json!({"region": "eu"})).await), "accepted");
    let ids: Vec<_> =
        backend.recorded_of("tools/call").iter().map(|seen| seen.message["id"].clone()).collect();
    assert_eq!(ids.len(), 2);
    assert_ne!(ids[0], ids[1], "each attempt is a request of its own");
    backend.list("tools", vec![regional("Other")]);
    backend.on("tools/call", |_| async { StatelessReply::error(-32020, "never") });
    let error = client
        .error("tools/call", json!({"name": "b__regional", "arguments": {"region": "eu"}}))
        .await;
    assert_eq!(kind(&error), "backend_protocol_error");
    assert_eq!(backend.recorded_of("tools/call").len(), 4, "once more, and not again");
}

#[tokio::test]
async fn nb_rt_01_results_lose_new_members_and_unknown_types_are_errors() {
    for backend in on_both_wires().await {
        let content = json!([{"type": "text", "text": "t"}]);
        let message = content.clone();
        backend.tool("plain", move |_| {
            let message = message.clone();
            async move { StatelessReply::Exactly(json!({"content": message})) }
        });
        backend.tool("list", |_| async {
            StatelessReply::Result(json!({"content": [], "structuredContent": [1, 2]}))
        });
        backend.tool("odd", |_| async {
            StatelessReply::Exactly(json!({"resultType": "later", "content": []}))
        });
        backend.list("resources", vec![json!({"uri": "test://one", "name": "one"})]);
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({})).await;
        assert_eq!(
            client.call("b__plain", json!({})).await,
            json!({"content": content}),
            "without a type it is complete"
        );
        let received = client.call("b__list", json!({})).await;
        assert_eq!(received, json!({"content": [{"type": "text", "text": "[1,2]"}]}));
        let read = client.result("resources/read", json!({"uri": "b+test://one"})).await;
        assert_eq!(read, json!({"contents": [{"uri": "b+test://one", "text": "content"}]}));
        let error = client.error("tools/call", json!({"name": "b__odd", "arguments": {}})).await;
        assert_eq!(kind(&error), "backend_protocol_error");
    }
}

#[tokio::test]
async fn nb_res_01_br_04_a_missing_resource_has_the_error_code_of_the_client() {
    for backend in on_both_wires().await {
        backend.on("resources/read", |call| async move {
            StatelessReply::Error(400, json!({"code": -32602, "message": "not found", "data": {"uri": call.params()["uri"]}}))
        });
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({})).await;
        let error = client.error("resources/read", json!({"uri": "b+test://none"})).await;
        assert_eq!(
            (&error["code"], &error["data"]["uri"]),
            (&json!(-32002), &json!("b+test://none"))
        );
    }
}

#[tokio::test]
async fn errors_of_the_backend_are_answers_with_any_http_status() {
    let backend = StatelessBackend::http().await;
    backend.tool("needs", |_| async {
        let data = json!({"requiredCapabilities": {"sampling": {}}});
        StatelessReply::Error(400, json!({"code": -32021, "message": "no sampling", "data": data}))
    });
    backend.tool("missing", |_| async { StatelessReply::error(-32601, "unknown method") });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let needs = || client.error("tools/call", json!({"name": "b__needs", "arguments": {}}));
    let error = needs().await;
    assert_eq!(
        (&error["code"], &error["data"]["requiredCapabilities"]),
        (&json!(-32021), &json!({"sampling": {}}))
    );
    let asked = backend.recorded_of("server/discover").len();
    assert_eq!(
        client.error("tools/call", json!({"name": "b__missing", "arguments": {}})).await["code"],
        -32601
    );
    needs().await;
    assert_eq!(
        backend.recorded_of("server/discover").len(),
        asked,
        "neither made the broker ask again who it speaks to"
    );
}

#[tokio::test]
async fn an_error_without_an_id_is_the_answer_to_its_request() {
    let backend = StatelessBackend::http().await;
    backend.tool("unread", |_| async {
        StatelessReply::ErrorWithoutId(400, json!({"code": -32600, "message": "too long"}))
    });
    let broker = broker_with(&backend).await;
    let call = json!({"name": "b__unread", "arguments": {}});
    let error = broker.connected(json!({})).await.error("tools/call", call.clone()).await;
    assert_eq!((&error["code"], &error["message"]), (&json!(-32600), &json!("too long")));
    let answer = Modern::of(&broker, "/mcp").answer("tools/call", call).await;
    assert_eq!(answer["error"]["message"], "too long", "{answer}");
    assert!(!answer["id"].is_null(), "{answer}");
}

#[tokio::test]
async fn nb_can_01_a_cancelled_call_is_cancelled_at_the_backend() {
    for backend in on_both_wires().await {
        backend.tool("slow", |_| async { StatelessReply::Hang });
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({})).await;
        let call = client.start_call("b__slow", json!({}));
        let seen = backend.wait_for("the call", |seen| seen.calls("slow")).await;
        client.notify("notifications/cancelled", json!({"requestId": call.id})).await;
        backend.wait_for_cancelled(&seen.message["id"]).await;
        // Over TCP the catalog may have ended a stream of notifications in the same way.
        let received = backend
            .recorded_of("notifications/cancelled")
            .iter()
            .any(|received| received.message["params"]["requestId"] == seen.message["id"]);
        assert_eq!(
            received,
            backend.spec()["transport"]["type"] == "tcp",
            "over HTTP its response is closed, and that is all"
        );
    }
}

#[tokio::test]
async fn http_18_a_disconnected_client_cancels_no_call() {
    let gate = Gate::new();
    let backend = StatelessBackend::http().await;
    let wait = gate.clone();
    backend.tool("slow", move |call| {
        let wait = wait.clone();
        async move {
            call.progress(1.0).await;
            wait.passed().await;
            StatelessReply::text("done")
        }
    });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let body = json!({"jsonrpc": "2.0", "id": 77, "method": "tools/call",
        "params": {"name": "b__slow", "arguments": {}, "_meta": {"progressToken": "p"}}});
    let mut call = client.start_raw(json!(77), body.to_string());
    let at = call.first_event_id().await;
    backend.wait_for("the call", |seen| seen.calls("slow")).await;
    drop(call);
    gate.open();
    let mut resumed = client.resume(&at).await;
    let answer = loop {
        let (_, message) = resumed.next_message().await.unwrap();
        if message["id"] == 77 {
            break message;
        }
    };
    assert_eq!(text_of(&answer["result"]), "done");
    assert!(backend.cancelled_requests().is_empty());
}

#[tokio::test]
async fn progress_and_log_messages_come_on_the_stream_of_their_call() {
    for backend in on_both_wires().await {
        backend.tool("steps", |call| async move {
            for step in 1..=3 {
                call.progress(f64::from(step)).await;
            }
            call.notify("notifications/message", json!({"level": "error", "data": "careful"}))
                .await;
            StatelessReply::text("done")
        });
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({})).await;
        client.result("logging/setLevel", json!({"level": "info"})).await;
        let params =
            json!({"name": "b__steps", "arguments": {}, "_meta": {"progressToken": "mine"}});
        let mut call = client.start_request("tools/call", params);
        call.finish().await;
        let message: Vec<_> = call.before.iter().map(|one| one.value["params"].clone()).collect();
        let steps: Vec<_> = message
            .iter()
            .filter(|one| one["progressToken"] == "mine")
            .map(|one| one["progress"].clone())
            .collect();
        assert_eq!(steps.len(), 3, "{message:?}");
        assert!(message.iter().any(|one| one["data"] == "careful"), "{message:?}");
    }
}

#[tokio::test]
async fn nb_lost_01_a_lost_call_is_not_sent_again() {
    let backend = StatelessBackend::http().await;
    backend.tool("breaks", |call| async move {
        call.progress(1.0).await;
        StatelessReply::End
    });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let params = json!({"name": "b__breaks", "arguments": {}, "_meta": {"progressToken": 1}});
    assert_eq!(kind(&client.error("tools/call", params).await), "outcome_unknown");
    assert_eq!(backend.recorded_of("tools/call").len(), 1);
    assert!(backend.recorded().iter().all(|seen| seen.http == "POST"), "nothing is resumed");
}

#[tokio::test]
async fn nb_msg_01_an_unsolicited_request_of_a_backend_is_not_answered() {
    for backend in on_both_wires().await {
        backend.tool("asks", |call| async move {
            call.send(json!({"jsonrpc": "2.0", "id": 5, "method": "roots/list"})).await;
            call.send(json!({"jsonrpc": "2.0", "id": 6, "method": "ping"})).await;
            StatelessReply::text("done")
        });
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({"roots": {}})).await;
        let mut call = client.start_call("b__asks", json!({}));
        assert_eq!(text_of(&call.finish().await.value["result"]), "done");
        assert!(call.before.is_empty(), "the client is not asked: {:?}", call.before);
        assert!(
            backend.recorded().iter().all(|seen| seen.message.get("method").is_some()),
            "no response was sent"
        );
    }
}

#[tokio::test]
async fn n_cache_02_lists_are_fetched_again_when_they_expire() {
    let backend = StatelessBackend::http().await;
    // It announces no changes, so only the age of its lists makes them stale.
    backend
        .capabilities(json!({"tools": {}}))
        .ttl_ms(1)
        .list("tools", vec![testkit::backend::tool("one")]);
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    assert_eq!(client.tool_names().await, ["b__one"]);
    backend.list("tools", vec![testkit::backend::tool("two")]);
    testkit::eventually_within(std::time::Duration::from_secs(30), "the new list", || async {
        let names = client.tool_names().await;
        if names == ["b__two"] { Ok(()) } else { Err(names) }
    })
    .await;
    assert!(backend.recorded_of("subscriptions/listen").is_empty(), "it has nothing to tell");
}

#[tokio::test]
async fn operators_see_the_revision_of_a_backend() {
    let backend = StatelessBackend::http().await;
    let broker = broker_with(&backend).await;
    broker.connected(json!({})).await;
    let shown = broker.admin().backend("default", "b").await;
    assert_eq!(
        (&shown["protocol_version"], &shown["server_name"]),
        (&json!("2026-07-28"), &json!("modern"))
    );
    let labels = [("version", "2026-07-28"), ("side", "backend")];
    eventually("the metric", || async {
        match broker.admin().metric("mcp_protocol_version_negotiated_total", &labels).await {
            Some(count) if count >= 1.0 => Ok(()),
            other => Err(other),
        }
    })
    .await;
}

#[tokio::test]
async fn nb_meta_02_a_stateless_request_has_its_own_log_level() {
    for backend in on_both_wires().await {
        backend.list("tools", vec![testkit::backend::tool("echo")]);
        let config = json!({"limits": {"batch_calls": 5}});
        let broker = configured(config, backend.spec()).await;
        let client = Modern::of(&broker, "/mcp");
        let batch = json!({"calls": [{"tool": "b__echo", "arguments": {}}]});
        for (tool, arguments, level) in [
            ("b__echo", json!({}), Some("debug")),
            ("b__echo", json!({}), None),
            ("b__echo", json!({}), Some("error")),
            ("execute_batch", batch.clone(), Some("warning")),
            ("execute_batch", batch, None),
        ] {
            let mut meta = meta(json!({}));
            meta.as_object_mut()
                .unwrap()
                .extend(level.map(|level| (LEVEL.to_owned(), json!(level))));
            let params = json!({"name": tool, "arguments": arguments, "_meta": meta});
            client.result("tools/call", params).await;
            let sent = backend.recorded_of("tools/call").pop().unwrap().message;
            assert_eq!(
                sent["params"]["_meta"].get(LEVEL),
                level.map(|level| json!(level)).as_ref()
            );
        }
    }
}

#[tokio::test]
async fn br_04_uris_outside_their_results_are_not_exposed() {
    let backend = StatelessBackend::http().await;
    let unknown = json!({"contents": [{"uri": "x:1"}], "messages": [{"content": {"type": "resource_link", "uri": "x:1"}}], "data": {"uri": "x:1"}});
    let mut result = unknown.clone();
    result["content"] = json!([{"type": "resource_link", "uri": "x:1", "name": "n"}]);
    backend.tool("own", move |_| {
        let result = result.clone();
        async move { StatelessReply::Result(result) }
    });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let received = client.call("b__own", json!({})).await;
    assert_eq!(received["content"][0]["uri"], "b+x:1");
    for (member, sent) in unknown.as_object().unwrap() {
        assert_eq!(&received[member], sent, "{member}");
    }
}

#[tokio::test]
async fn n_meta_02_a_retry_has_its_own_progress_and_log_level() {
    for backend in on_both_wires().await {
        let form = json!({"method": "elicitation/create", "params": {"mode": "form", "message": "who?",
            "requestedSchema": {"type": "object", "properties": {}}}});
        backend.tool("ask", move |call| {
            let form = form.clone();
            async move {
                if call.input("who").is_null() {
                    call.progress(5.0).await;
                    return StatelessReply::needs(json!({"who": form}), None);
                }
                call.progress(1.0).await;
                StatelessReply::text("done")
            }
        });
        let broker = broker_with(&backend).await;
        let client = Modern::of(&broker, "/mcp");
        let meta = |token: &str, level: Option<&str>| {
            let mut meta = meta(json!({"elicitation": {"form": {}}}));
            meta["progressToken"] = json!(token);
            meta.as_object_mut()
                .unwrap()
                .extend(level.map(|level| (LEVEL.to_owned(), json!(level))));
            meta
        };
        let first = json!({"name": "b__ask", "arguments": {}, "_meta": meta("one", Some("debug"))});
        let (messages, required) = client.exchange("tools/call", first).await;
        assert_eq!(messages[0]["params"]["progressToken"], "one", "{messages:?}");
        let required = &required["result"];
        let key = required["inputRequests"].as_object().unwrap().keys().next().unwrap();
        let retry = json!({"name": "b__ask", "arguments": {}, "_meta": meta("two", None), "requestState": required["requestState"],
            "inputResponses": {key: {"action": "accept", "content": {}}}});
        let (messages, answer) = client.exchange("tools/call", retry).await;
        assert_eq!(text_of(&answer["result"]), "done");
        let progress: Vec<_> = messages.iter().map(|message| &message["params"]).collect();
        assert_eq!(
            progress,
            [&json!({"progressToken": "two", "progress": 1.0})],
            "a series of its own"
        );
        let calls = backend.recorded_of("tools/call");
        let levels: Vec<_> =
            calls.iter().map(|call| call.message["params"]["_meta"].get(LEVEL)).collect();
        assert_eq!(levels, [Some(&json!("debug")), None]);
    }
}
