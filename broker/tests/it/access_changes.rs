//! The access policy changes while something is under way: a call that will ask its client or has
//! asked it, a request that waits for input, a stream that a client resumes. The new policy decides, and the
//! probe of each of these checks fails when the check is disabled.

use std::sync::Arc;

use serde_json::{Value, json};
use testkit::{FakeBackend, Reply, TestBroker};
use tokio::sync::Notify;

use crate::{builder, stateless::Modern};

const FORM: &str = r#"{"message": "Your name?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}"#;

/// A broker, a backend whose tool asks its client once it may, and the key of a guest.
struct Scene {
    broker: TestBroker,
    backend: FakeBackend,
    key: String,
    may_introspect: Arc<Notify>,
}

impl Scene {
    async fn start(disabled: Option<&str>) -> Self {
        let backend = FakeBackend::start().await;
        let may_introspect = Arc::new(Notify::new());
        let gate = may_introspect.clone();
        backend.tool("asks", move |call| {
            let gate = gate.clone();
            async move {
                gate.notified().await;
                let form: Value = serde_json::from_str(FORM).unwrap();
                Reply::text(&call.request("elicitation/create", form).await.to_string())
            }
        });
        for method in ["resources/subscribe", "resources/unsubscribe"] {
            backend.on(method, |_| async { Reply::Result(json!({})) });
        }
        let resource = |uri: &str| json!({"uri": uri, "name": uri});
        backend.list("resources", vec![resource("file:///open"), resource("file:///secret")]);
        backend.capabilities(json!({"tools": {}, "resources": {"subscribe": true}}));
        let builder = builder().auth_required().backend("default", "b", backend.spec());
        let broker = match disabled {
            Some(check) => builder.env("MCP_BROKER_DISABLED_CHECK", check).start().await,
            None => builder.start().await,
        };
        let keys = "/admin/v1/tenants/default/keys";
        let (_, key) = broker.admin().post(keys, &json!({"groups": ["guests"]})).await;
        let key = key["key"].as_str().unwrap().to_owned();
        // A policy is in force from the start, as calls are judged again only under one.
        put_policy(&broker, json!({"tools": ["b/nothing"]}), 201).await;
        Self { broker, backend, key, may_introspect }
    }

    /// Hides the tool and the secret resource from guests.
    async fn hide(&self) {
        let hidden = json!({"tools": ["b/asks"], "resources": ["b/file:///secret*"]});
        put_policy(&self.broker, hidden, 200).await;
    }

    /// Returns whether a call whose tool is hidden meanwhile cannot ask its client.
    async fn is_refused_input(&self) -> bool {
        let client = self
            .broker
            .client("/mcp")
            .bearer(&self.key)
            .answers(|_, _| Ok(json!({"action": "accept", "content": {"name": "Ada"}})))
            .connected(json!({"elicitation": {}}))
            .await;
        let call = client.start_call("b__asks", json!({}));
        self.backend.wait_for("the call", |seen| seen.calls("asks")).await;
        self.hide().await;
        self.may_introspect.notify_one();
        let answer = call.response().await.value;
        let text = answer["result"]["content"][0]["text"].as_str().expect("the call goes on");
        text.contains("the access policy does not allow the client this call now, so the broker does not ask it") && !text.contains("Ada")
    }

    /// Returns whether a call whose tool is hidden meanwhile does not get its client's answer.
    async fn refuses_the_answer(&self) -> bool {
        let client = self.broker.client("/mcp").bearer(&self.key);
        let client = client.connected(json!({"elicitation": {}})).await;
        self.may_introspect.notify_one();
        let mut call = client.start_call("b__asks", json!({}));
        let id = loop {
            let message = call.next().await.expect("the call waits for its client").value;
            if message["method"] == "elicitation/create" {
                break message["id"].clone();
            }
        };
        self.hide().await;
        let content = json!({"action": "accept", "content": {"name": "Ada"}});
        client.post(json!({"jsonrpc": "2.0", "id": id, "result": content}).to_string()).await;
        let answer = call.response().await.value;
        let text = answer["result"]["content"][0]["text"].as_str().expect("the call goes on");
        text.contains("so the broker does not forward its answer") && !text.contains("Ada")
    }

    /// Returns whether a request whose tool is hidden meanwhile does not take the client's input.
    async fn refuses_the_retry(&self) -> bool {
        let client = Modern::of(&self.broker, "/mcp").bearer(&self.key);
        let client = client.with(json!({"elicitation": {}}));
        self.may_introspect.notify_one();
        let required = client.call("b__asks", json!({})).await;
        let (name, _) = required["inputRequests"].as_object().unwrap().iter().next().unwrap();
        self.hide().await;
        let input = json!({name: {"action": "accept", "content": {"name": "Ada"}}});
        let answer = client.retry("b__asks", json!({}), &required["requestState"], input).await;
        let is_refused = answer["error"]["data"]["kind"] == "tool_not_found";
        if is_refused {
            self.backend
                .wait_for("the cancellation", |seen| seen.is("notifications/cancelled"))
                .await;
        }
        is_refused
    }

    /// Returns whether a resumed stream leaves out the update of a resource that is hidden
    /// meanwhile.
    async fn resumes_without_the_secret(&self) -> bool {
        let client = self.broker.client("/mcp").bearer(&self.key).connected(json!({})).await;
        let mut stream = client.open_get_stream().await;
        for uri in ["b+file:///open", "b+file:///secret"] {
            client.result("resources/subscribe", json!({"uri": uri})).await;
        }
        self.backend.wait_get_streams(1).await;
        let mut ids = Vec::new();
        for uri in ["file:///open", "file:///secret", "file:///open"] {
            self.backend.notify("notifications/resources/updated", json!({"uri": uri})).await;
            let (id, message) = stream.next_message().await.expect("the stream is open");
            assert_eq!(message["params"]["uri"], format!("b+{uri}"));
            ids.push(id.expect("events have ids"));
        }
        drop(stream);
        self.hide().await;
        let mut resumed = client.resume(&ids[0]).await;
        let updated = |message: &Value| message["method"] == "notifications/resources/updated";
        let first = resumed.find(updated).await;
        first["params"]["uri"] == "b+file:///open"
    }

    async fn holds(&self, check: &str) -> bool {
        match check {
            "questions" => self.is_refused_input().await,
            "answers" => self.refuses_the_answer().await,
            "retries" => self.refuses_the_retry().await,
            "resumed streams" => self.resumes_without_the_secret().await,
            other => panic!("no probe for {other}"),
        }
    }
}

async fn put_policy(broker: &TestBroker, hidden: Value, expected: u16) {
    let deny =
        json!({"id": "d", "effect": "deny", "subjects": {"groups": ["guests"]}, "objects": hidden});
    let path = "/admin/v1/tenants/default/policy";
    let (status, answer) = broker.admin().put(path, &json!({"rules": [deny]})).await;
    assert_eq!(status, expected, "{answer}");
}

const CHECKS: [&str; 4] = ["questions", "answers", "retries", "resumed streams"];

#[tokio::test]
async fn a_changed_policy_applies_to_requests_in_progress() {
    for check in CHECKS {
        assert!(Scene::start(None).await.holds(check).await, "{check}");
    }
}

#[tokio::test]
async fn the_probe_of_each_later_check_fails_when_the_check_is_disabled() {
    for check in CHECKS {
        let scene = Scene::start(Some(check)).await;
        assert!(!scene.holds(check).await, "{check} is disabled, and its probe does not fail");
    }
}

#[tokio::test]
async fn a_rule_for_updates_of_a_resource_stops_its_updates_only() {
    let scene = Scene::start(None).await;
    let client = scene.broker.client("/mcp").bearer(&scene.key).connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    let uris = ["file:///open", "file:///secret"];
    for uri in uris {
        client.result("resources/subscribe", json!({"uri": format!("b+{uri}")})).await;
    }
    scene.backend.wait_get_streams(1).await;
    let hidden =
        json!({"methods": ["notifications/resources/updated"], "resources": ["b/file:///secret"]});
    put_policy(&scene.broker, hidden, 200).await;
    assert_eq!(client.list_all("resources/list", "resources").await.len(), 2);
    for uri in [uris[1], uris[0]] {
        scene.backend.notify("notifications/resources/updated", json!({"uri": uri})).await;
    }
    let updated = |message: &Value| message["method"] == "notifications/resources/updated";
    assert_eq!(stream.find(updated).await["params"]["uri"], "b+file:///open");
}
