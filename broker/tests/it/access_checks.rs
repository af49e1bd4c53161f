//! Every check of the access policy keeps hidden objects hidden. The probe of a check fails when
//! that one check is disabled (`MCP_BROKER_DISABLED_CHECK`).

use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use testkit::{EventReader, FakeBackend, Reply, TestBroker, TestClient, backend::tool, eventually};

use crate::{
    approvals, builder, kind,
    stateless::{self, Modern},
    tasks::{start, wait_status},
};

/// The checks, by their names in the broker. Checks of requests are called like their method.
const CHECKS: [&str; 20] = [
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "stateless lists",
    "tools/call",
    "prompts/get",
    "resources/read",
    "resources/subscribe",
    "completion/complete",
    "tasks/get",
    "tasks/result",
    "tasks/cancel",
    "tasks/list",
    "notifications/resources/updated",
    "subscriptions/listen",
    "tasks of subscriptions",
    "endpoint",
    "approvals",
    "approved calls",
];

/// A broker with hidden objects, and a guest that has used one of each before they were hidden.
struct Scene {
    broker: TestBroker,
    backend: FakeBackend,
    key: String,
    client: TestClient,
    /// The same guest at `/mcp/b`, where names are those of the backend.
    native: TestClient,
    stream: EventReader,
    task: String,
}

async fn hidden_backend() -> FakeBackend {
    let backend = FakeBackend::start().await;
    for name in ["open", "secret", "job", "pay"] {
        backend.tool(name, |_| async { Reply::text("done") });
    }
    backend.list("tools", vec![tool("open"), tool("secret"), tool("job"), tool("pay")]);
    backend.list("prompts", vec![json!({"name": "open"}), json!({"name": "secret"})]);
    let resource = |uri: &str| json!({"uri": uri, "name": uri});
    backend.list("resources", vec![resource("file:///open"), resource("file:///secret")]);
    let template = |uri: &str| json!({"uriTemplate": uri, "name": uri});
    backend.list(
        "resourceTemplates",
        vec![template("file:///open/{x}"), template("file:///secret/{x}")],
    );
    for method in ["resources/read", "resources/subscribe", "resources/unsubscribe"] {
        backend.on(method, |_| async { Reply::Result(json!({"contents": []})) });
    }
    backend.on("prompts/get", |_| async { Reply::Result(json!({"messages": []})) });
    backend.on("completion/complete", |_| async {
        Reply::Result(json!({"completion": {"values": ["leak"]}}))
    });
    backend.capabilities(
        json!({"tools": {}, "prompts": {}, "completions": {}, "resources": {"subscribe": true}}),
    );
    backend
}

impl Scene {
    async fn start(disabled: Option<&str>) -> Self {
        let backend = hidden_backend().await;
        let builder = builder().auth_required().backend("default", "b", backend.spec());
        let builder = builder.backend("default", "h", backend.spec());
        let broker = match disabled {
            Some(check) => builder.env("MCP_BROKER_DISABLED_CHECK", check).start().await,
            None => builder.start().await,
        };
        let keys = "/admin/v1/tenants/default/keys";
        let (_, key) = broker.admin().post(keys, &json!({"groups": ["guests"]})).await;
        let key = key["key"].as_str().unwrap().to_owned();
        let client = broker.client("/mcp").bearer(&key).connected(json!({})).await;
        let native = broker.client("/mcp/b").bearer(&key).connected(json!({})).await;
        let stream = client.open_get_stream().await;
        let task = start(&client, "b__job").await;
        wait_status(&client, &task, "completed").await;
        for uri in ["b+file:///secret", "b+file:///open"] {
            client.result("resources/subscribe", json!({"uri": uri})).await;
        }
        let policy = json!({"rules": [
            {"id": "pays", "effect": "approve", "subjects": {"groups": ["guests"]}, "objects": {"tools": ["b/pay"]}},
            {"id": "names", "effect": "deny", "subjects": {"groups": ["guests"]}, "objects": {
                "tools": ["b/secret", "b/job"], "prompts": ["b/secret"], "resources": ["b/file:///secret*"]}},
            {"id": "h", "effect": "deny", "subjects": {"groups": ["guests"]}, "objects": {"backends": ["h"]}},
        ]});
        let (status, answer) =
            broker.admin().put("/admin/v1/tenants/default/policy", &policy).await;
        assert_eq!(status, 201, "{answer}");
        Self { broker, backend, key, client, native, stream, task }
    }

    /// Returns whether the objects of a check stay hidden.
    async fn holds(&mut self, check: &str) -> bool {
        let task = json!({"taskId": self.task});
        match check {
            "tools/list" | "prompts/list" | "resources/list" | "resources/templates/list" => {
                !self.client.result(check, json!({})).await.to_string().contains("secret")
            }
            "stateless lists" => {
                let stateless = Modern::of(&self.broker, "/mcp").bearer(&self.key);
                let listed = stateless.result("tools/list", json!({})).await;
                !listed.to_string().contains("secret")
            }
            "tools/call" => self.refused(check, json!({"name": "secret", "arguments": {}})).await,
            "prompts/get" => self.refused(check, json!({"name": "secret"})).await,
            "resources/read" | "resources/subscribe" => {
                self.refused(check, json!({"uri": "file:///secret"})).await
            }
            "completion/complete" => {
                let reference = json!({"type": "ref/prompt", "name": "secret"});
                let argument = json!({"name": "a", "value": "x"});
                let asked = json!({"ref": reference, "argument": argument});
                let answer = self.native.request(check, asked).await;
                !answer.to_string().contains("leak")
            }
            "tasks/get" | "tasks/result" | "tasks/cancel" => {
                let answer = self.client.request(check, task).await;
                answer["error"]["data"]["kind"] == "task_not_found"
            }
            "tasks/list" => self.client.result(check, json!({})).await["tasks"] == json!([]),
            "notifications/resources/updated" => self.is_not_updated().await,
            "subscriptions/listen" => {
                let stateless = Modern::of(&self.broker, "/mcp").bearer(&self.key);
                let filter = json!({"resourceSubscriptions": ["b+file:///secret"]});
                let asked = json!({"notifications": filter});
                let mut events = stateless.post(json!(1), check, asked).await.events();
                let accepted = events.next_message().await.expect("the stream is open").1;
                !accepted["params"]["notifications"].to_string().contains("secret")
            }
            "tasks of subscriptions" => {
                let client = Modern::of(&self.broker, "/mcp").bearer(&self.key);
                let client = client.with(stateless::tasks::with_tasks(json!({})));
                let asked = json!({"notifications": {"taskIds": [self.task]}});
                let listening = client.post(json!(1), "subscriptions/listen", asked).await;
                let accepted = listening.events().next_message().await.expect("it is open").1;
                !accepted.to_string().contains(&self.task)
            }
            "endpoint" => {
                let client = self.broker.client("/mcp/h").bearer(&self.key);
                client.post(crate::initialize_body("2025-11-25")).await.status == 404
            }
            "approvals" => self.waits_everywhere().await,
            "approved calls" => self.is_denied_after_its_approval().await,
            other => panic!("no probe for {other}"),
        }
    }

    /// Returns whether the backend never got the request, and the client got an error.
    async fn refused(&self, method: &str, params: Value) -> bool {
        let before = self.backend.recorded_of(method).len();
        let answer = self.native.request(method, params).await;
        let is_refused = answer["error"]["data"]["kind"].as_str().is_some_and(|kind| {
            ["tool_not_found", "prompt_not_found", "resource_not_found"].contains(&kind)
        });
        is_refused && self.backend.recorded_of(method).len() == before
    }

    /// Returns whether no call of a tool that needs an approval reaches its backend: at both
    /// endpoints, in a batch, as a task and without a session.
    async fn waits_everywhere(&self) -> bool {
        let before = self.backend.count(|seen| seen.calls("pay"));
        for (path, name) in [("/mcp", "b__pay"), ("/mcp/b", "pay")] {
            let old = self.broker.client(path).bearer(&self.key);
            old.initialize("2025-03-26", json!({})).await;
            let call = |id: u64| {
                let params = json!({"name": name, "arguments": {"batch": id, "path": path}});
                json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
            };
            let _waits = old.start_raw(json!(101), json!([call(101), call(102)]).to_string());
            let client = self.broker.client(path).bearer(&self.key).connected(json!({})).await;
            let _waits = client.start_call(name, json!({"path": path}));
            let task = json!({"name": name, "arguments": {"task": path}, "task": {"ttl": 60_000}});
            client.result("tools/call", task).await;
            let stateless = Modern::of(&self.broker, path).bearer(&self.key);
            // An id of its own: other requests without a session id have the first numbers.
            let params = json!({"name": name, "arguments": {"stateless": path}});
            let id = json!(format!("stateless {path}"));
            stateless.post(id, "tools/call", params).await.text().await;
        }
        let ended = eventually("each call to wait or to leave", || async {
            let pending = approvals::list(&self.broker.admin(), "pending").await.len();
            let sent = self.backend.count(|seen| seen.calls("pay")) - before;
            if pending + sent >= 10 { Ok(sent) } else { Err((pending, sent)) }
        })
        .await;
        ended == 0
    }

    /// Returns whether a rule that denies a waiting call wins over its approval.
    async fn is_denied_after_its_approval(&self) -> bool {
        let call = self.native.start_call("pay", json!({"late": true}));
        let is_late = |listed: &[Value]| {
            let late = |approval: &&Value| approval["arguments"]["late"] == true;
            listed.iter().find(late).map(|approval| approval["id"].as_str().unwrap().to_owned())
        };
        let id = eventually("the call to wait", || async {
            let listed = approvals::list(&self.broker.admin(), "pending").await;
            is_late(&listed).ok_or(listed)
        })
        .await;
        let path = "/admin/v1/tenants/default/policy";
        let (_, mut policy) = self.broker.admin().get(path).await;
        let no = json!({"id": "no", "effect": "deny", "objects": {"tools": ["b/pay"]}});
        policy["rules"].as_array_mut().unwrap().push(no);
        let (status, answer) = self.broker.admin().put(path, &policy).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(approvals::decide(&self.broker.admin(), &id, "approve").await.0, 200);
        call.response().await.value.get("error").is_some()
    }

    /// Returns whether an update of the hidden resource stays away. The update of another resource
    /// comes after it.
    async fn is_not_updated(&mut self) -> bool {
        let updated = "notifications/resources/updated";
        self.backend.wait_get_streams(1).await;
        self.backend.notify(updated, json!({"uri": "file:///secret"})).await;
        self.backend.notify(updated, json!({"uri": "file:///open"})).await;
        let found = self.stream.find(|message| message["method"] == updated).await;
        found["params"]["uri"] == "b+file:///open"
    }
}

#[tokio::test]
async fn every_check_hides_denied_objects() {
    let mut scene = Scene::start(None).await;
    for check in CHECKS {
        assert!(scene.holds(check).await, "{check}");
    }
    let allowed =
        scene.native.request("tools/call", json!({"name": "open", "arguments": {}})).await;
    assert!(allowed["result"].is_object(), "{allowed}");
    let kept = scene.client.error("tasks/get", json!({"taskId": scene.task})).await;
    assert_eq!(kind(&kept), "task_not_found");
}

#[tokio::test]
async fn s01_a_completion_cannot_hide_a_denied_prompt_behind_a_permitted_resource() {
    let scene = Scene::start(None).await;
    let argument = json!({"name": "x", "value": "a"});
    for (client, prompt, uri) in [
        (&scene.native, "secret", "file:///open/{x}"),
        (&scene.client, "b__secret", "b+file:///open/{x}"),
    ] {
        for reference in [
            json!({"type": "ref/prompt", "name": prompt, "uri": uri}),
            json!({"type": "ref/resource", "name": prompt, "uri": uri}),
            json!({"type": "ref/prompt", "uri": uri}),
            json!({"name": prompt, "uri": uri}),
        ] {
            let asked = json!({"ref": reference, "argument": argument});
            let error = client.error("completion/complete", asked).await;
            assert_eq!(kind(&error), "invalid_params", "{reference}");
        }
        let reference = json!({"type": "ref/resource", "uri": uri});
        let asked = json!({"ref": reference, "argument": argument});
        let answer = client.result("completion/complete", asked).await;
        assert_eq!(answer["completion"]["values"], json!(["leak"]), "it is permitted");
    }
    assert_eq!(scene.backend.recorded_of("completion/complete").len(), 2);
}

#[tokio::test]
async fn the_probe_of_each_check_fails_when_the_check_is_disabled() {
    let probes = CHECKS.map(|check| async move {
        let switch = match check {
            // One function decides about a task for all three methods.
            "tasks/result" | "tasks/cancel" => "tasks/get",
            other => other,
        };
        (check, Scene::start(Some(switch)).await.holds(check).await)
    });
    let mut probes = stream::iter(probes).buffer_unordered(4);
    while let Some((check, holds)) = probes.next().await {
        assert!(!holds, "{check} is disabled, and its probe does not fail");
    }
}
