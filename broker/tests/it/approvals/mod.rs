//! Calls that wait for the approval of a person: in sessions, without sessions, as tasks, on several
//! replicas, and by SDK clients.

mod decisions;
mod replicas;
mod sessions;
mod stateless;
mod tasks;

use serde_json::{Value, json};
use testkit::{
    AdminClient, BrokerBuilder, FakeBackend, Gate, Reply, TestBroker, TestClient, eventually,
};

use crate::builder;

const POLICY: &str = "/admin/v1/tenants/default/policy";
pub(crate) const APPROVALS: &str = "/admin/v1/tenants/default/approvals";

/// Returns a policy that asks for the approval of every call of `send`. `more`: further members of
/// the rule.
pub(crate) fn policy_requiring_approval(more: Value) -> Value {
    let mut rule = json!({"id": "pay", "effect": "approve", "reason": "money", "objects": {"tools": ["b/send"]}});
    rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"rules": [rule]})
}

/// Returns a backend whose tool `send` tells whom it sent to, and a tool that needs no approval.
pub(crate) async fn bank() -> FakeBackend {
    let backend = FakeBackend::start().await;
    backend.tool("send", |call| async move {
        Reply::text(&format!("sent {}", call.arguments()["to"].as_str().unwrap_or_default()))
    });
    backend.tool("read", |_| async { Reply::text("read") });
    backend.list("tools", vec![testkit::backend::tool("send"), testkit::backend::tool("read")]);
    backend
}

/// Lists `send` with another description.
pub(crate) async fn change_definition(backend: &FakeBackend) {
    let mut changed = testkit::backend::tool("send");
    changed["description"] = json!("sends twice as much");
    backend.list("tools", vec![changed]);
    backend.notify("notifications/tools/list_changed", json!({})).await;
}

/// Waits until a client sees the other description of `send`.
async fn wait_changed(client: &TestClient) {
    eventually("the changed definition", || async {
        let tools = client.list_all("tools/list", "tools").await;
        let is_changed = tools[0]["description"] == "sends twice as much";
        if is_changed { Ok(()) } else { Err(tools) }
    })
    .await;
}

/// A broker that asks for approvals, and one caller.
struct Desk {
    broker: TestBroker,
    backend: FakeBackend,
    key: String,
}

impl Desk {
    async fn start(more: Value) -> Self {
        Self::on(builder(), more).await
    }

    /// Starts with this policy rule. Calls have two seconds, so that those that wait answer soon.
    async fn on(builder: BrokerBuilder, more: Value) -> Self {
        Self::with_call_timeout("2s", builder, more).await
    }

    /// Starts with this policy rule, and with calls that wait for as long as a decision takes.
    async fn patient(builder: BrokerBuilder, more: Value) -> Self {
        Self::with_call_timeout("1m", builder, more).await
    }

    async fn with_call_timeout(timeout: &str, builder: BrokerBuilder, more: Value) -> Self {
        let backend = bank().await;
        let broker = builder
            .auth_required()
            .config(json!({"timeouts": {"call": timeout}, "audit": {"calls": "metadata"}}))
            .backend("default", "b", backend.spec())
            .start()
            .await;
        let desk = Self { key: key(&broker.admin(), "ann").await, broker, backend };
        desk.put(&policy_requiring_approval(more)).await;
        desk
    }

    /// Starts with a backend that has one call in flight at most. A call of `read` ends when the gate
    /// opens.
    async fn with_one_permit() -> (Self, Gate) {
        let (backend, done) = (bank().await, Gate::new());
        backend.tool("read", done.before(Reply::text("read")));
        let mut spec = backend.spec();
        spec["limits"] = json!({"calls_in_flight": 1});
        let broker = builder().single_process().auth_required().backend("default", "b", spec);
        let broker = broker.start().await;
        let desk = Self { key: key(&broker.admin(), "ann").await, broker, backend };
        desk.put(&policy_requiring_approval(json!({}))).await;
        (desk, done)
    }

    async fn put(&self, policy: &Value) {
        let (status, answer) = self.broker.admin().put(POLICY, policy).await;
        assert!([200, 201].contains(&status), "{answer}");
    }

    async fn client(&self) -> TestClient {
        self.broker.client("/mcp").bearer(&self.key).connected(json!({})).await
    }

    /// Returns how often the backend was called.
    fn sent(&self) -> usize {
        self.backend.count(|seen| seen.calls("send"))
    }

    async fn pending(&self, count: usize) -> Vec<Value> {
        pending(&self.broker.admin(), count).await
    }

    /// Waits for the only pending approval and decides about it.
    async fn decide(&self, decision: &str) -> String {
        let id = id_of(&self.pending(1).await[0]);
        let (status, answer) = decide(&self.broker.admin(), &id, decision).await;
        assert_eq!(status, 200, "{answer}");
        id
    }
}

pub(crate) async fn key(admin: &AdminClient, principal: &str) -> String {
    let body = json!({"principal": principal});
    let (status, key) = admin.post("/admin/v1/tenants/default/keys", &body).await;
    assert_eq!(status, 201, "{key}");
    key["key"].as_str().unwrap().to_owned()
}

/// Waits until so many approvals are pending.
pub(crate) async fn pending(admin: &AdminClient, count: usize) -> Vec<Value> {
    eventually("the pending approvals", || async {
        let listed = list(admin, "pending").await;
        if listed.len() == count { Ok(listed) } else { Err(listed) }
    })
    .await
}

pub(crate) async fn list(admin: &AdminClient, state: &str) -> Vec<Value> {
    let (status, answer) = admin.get(&format!("{APPROVALS}?state={state}")).await;
    assert_eq!(status, 200, "{answer}");
    answer["approvals"].as_array().unwrap().clone()
}

fn id_of(approval: &Value) -> String {
    approval["id"].as_str().unwrap_or_else(|| panic!("{approval}")).to_owned()
}

pub(crate) async fn decide(admin: &AdminClient, id: &str, decision: &str) -> (u16, Value) {
    admin.post(&format!("{APPROVALS}/{id}"), &json!({"decision": decision})).await
}

/// Returns id and state of the approval that a result with `isError` names.
fn approval_of(result: &Value) -> (String, String) {
    assert_eq!(result["isError"], true, "{result}");
    let approval = &result["_meta"]["dev.mcp-broker/approval"];
    let id = id_of(approval);
    assert!(result["content"][0]["text"].as_str().unwrap().contains(&id), "{result}");
    (id, approval["state"].as_str().unwrap().to_owned())
}

fn to(name: &str) -> Value {
    json!({"to": name, "amount": 9_007_199_254_740_993_u64})
}
