//! The official suite's scenarios for the extension of tasks. They need tools that no known server
//! has, so the two backends are made for them. One has sessions, and the broker makes tasks of its
//! calls. The other is of 2026-07-28 with tasks of its own, which the broker watches.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::{
    BackendCall, BrokerBuilder, FakeBackend, Reply, StatelessBackend, StatelessReply, Topology,
    backend::text,
};

use super::{
    conformance::{Check, complaints, verdicts},
    install::Peers,
    process::{Ended, run},
};

/// All scenarios except `tasks-status-notifications`, which the suite itself skips.
const SCENARIOS: [&str; 9] = [
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-required-task-error",
    "tasks-mrtr-composition",
];
/// A scenario that requires a refusal where a tool only runs as a task. In front of a backend of
/// 2026-07-28 the broker refuses no request for that: it waits for the backend's task, and answers
/// when it is over.
const WAITED_FOR: &str = "tasks-required-task-error";
const SUITE_WITHIN: Duration = Duration::from_secs(60);
/// Longer than the time after which a call becomes a task here.
const WORKS_FOR: Duration = Duration::from_millis(600);

/// Runs the scenarios one by one. None may fail or warn, and each must have a success.
async fn passes(topology: Topology, spec: Value, scenarios: impl Iterator<Item = &str>) {
    let peers = Peers::installed();
    let config = json!({"tasks": {"promote_after": "200ms", "poll_interval": "100ms"}});
    let broker = BrokerBuilder::new(env!("CARGO_BIN_EXE_mcp-broker"))
        .config(config)
        .backend("default", "fixture", spec);
    let broker = broker.on(topology).start().await;
    broker.admin().wait_backend_state("default", "fixture", "ready").await;
    for scenario in scenarios {
        let results = tempfile::tempdir().expect("a temporary folder");
        let mut suite = peers.conformance();
        suite.args(["server", "--url", &broker.url("/mcp/fixture"), "--scenario", scenario, "-o"]);
        suite.arg(results.path());
        let Ended { stdout, stderr, .. } = run(suite, SUITE_WITHIN).await;
        let found = verdicts(results.path());
        let complaints = complaints(&found);
        let good = |check: &&Check| check.status == "SUCCESS";
        let successes = found.values().flatten().filter(good).count();
        assert!(
            complaints.is_empty() && successes > 0,
            "{scenario}: {}\n{stdout}\n{stderr}",
            complaints.join("\n")
        );
    }
}

fn form() -> Value {
    json!({"mode": "form", "message": "?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}})
}

fn greeting(arguments: &Value) -> String {
    format!("Hello, {}!", arguments["name"].as_str().unwrap_or("nobody"))
}

fn seconds(arguments: &Value) -> Duration {
    Duration::from_secs_f64(arguments["seconds"].as_f64().unwrap_or(0.0))
}

/// Returns a backend with sessions. One tool only runs as a task; the others do not support tasks.
async fn with_sessions() -> FakeBackend {
    let backend = FakeBackend::start().await;
    backend.capabilities(
        json!({"tools": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}),
    );
    let plain = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
    let mut required = plain("failing_job");
    required["execution"] = json!({"taskSupport": "required"});
    backend.tool("greet", |call| async move { Reply::text(&greeting(call.arguments())) });
    backend.tool("slow_compute", |call| async move {
        tokio::time::sleep(seconds(call.arguments())).await; // it is asked to take that long
        Reply::text("computed")
    });
    backend.tool("protocol_error_job", |_| async {
        tokio::time::sleep(WORKS_FOR).await;
        Reply::error(-32000, "it broke")
    });
    backend.tool("confirm_delete", |call| async move {
        tokio::time::sleep(WORKS_FOR).await;
        Reply::text(
            &call.request("elicitation/create", form()).await["result"]["action"].to_string(),
        )
    });
    backend.tool("multi_input", |call| async move {
        tokio::time::sleep(WORKS_FOR).await;
        let one = call.start_question("elicitation/create", form()).await.1;
        let other = call.start_question("elicitation/create", form()).await.1;
        let answered = one.await.is_ok() && other.await.is_ok();
        Reply::text(if answered { "both" } else { "not both" })
    });
    backend.tool("test_tool_with_task", |call| async move {
        let name =
            call.request("elicitation/create", form()).await["result"]["content"]["name"].clone();
        tokio::time::sleep(WORKS_FOR).await;
        Reply::text(&greeting(&json!({"name": name})))
    });
    let task = |status: &str| {
        json!({"taskId": "only", "status": status, "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z",
            "ttl": 60000, "pollInterval": 50})
    };
    backend.tool("failing_job", move |call: BackendCall| async move {
        assert!(call.params().get("task").is_some(), "it only runs as a task");
        Reply::Result(json!({"task": task("working")}))
    });
    backend.on("tasks/get", move |_| async move { Reply::Result(task("failed")) });
    backend.on("tasks/result", |_| async { Reply::Result(failure()) });
    let names = [
        "greet",
        "slow_compute",
        "protocol_error_job",
        "confirm_delete",
        "multi_input",
        "test_tool_with_task",
    ];
    backend.list("tools", names.map(plain).into_iter().chain([required]).collect());
    backend
}

fn failure() -> Value {
    json!({"content": [{"type": "text", "text": "it went wrong"}], "isError": true})
}

/// A task of the backend's own.
struct Job {
    due: Instant,
    end: Value,
    /// Inputs it still needs before it can end.
    needs: Vec<&'static str>,
    cancelled: bool,
}

impl Job {
    fn state(&self, id: &str) -> Value {
        let mut state = json!({"taskId": id, "status": "working", "createdAt": "2026-01-01T00:00:00Z",
            "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttlMs": 60000, "pollIntervalMs": 50});
        let (status, more) = match () {
            () if self.cancelled => ("cancelled", json!({})),
            () if !self.needs.is_empty() => {
                let asked = |key: &&str| {
                    ((*key).to_owned(), json!({"method": "elicitation/create", "params": form()}))
                };
                (
                    "input_required",
                    json!({"inputRequests": self.needs.iter().map(asked).collect::<serde_json::Map<_, _>>()}),
                )
            }
            () if Instant::now() < self.due => ("working", json!({})),
            () if self.end.get("error").is_some() => ("failed", self.end.clone()),
            () => ("completed", self.end.clone()),
        };
        state["status"] = json!(status);
        state
            .as_object_mut()
            .expect("an object")
            .extend(more.as_object().expect("an object").clone());
        state
    }
}

type Jobs = Arc<Mutex<HashMap<String, Job>>>;

fn create_job(jobs: &Jobs, takes: Duration, end: Value, needs: &[&'static str]) -> StatelessReply {
    let mut jobs = jobs.lock();
    let id = format!("job-{}", jobs.len() + 1);
    let job = Job { due: Instant::now() + takes, end, needs: needs.to_vec(), cancelled: false };
    let created = json!({"resultType": "task", "taskId": id, "status": "working", "createdAt": "2026-01-01T00:00:00Z",
        "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttlMs": 60000, "pollIntervalMs": 50});
    jobs.insert(id, job);
    StatelessReply::Exactly(created)
}

fn ends(output: &str) -> Value {
    let mut result = text(output);
    result["resultType"] = json!("complete");
    json!({"result": result})
}

/// Returns a backend of 2026-07-28 that makes tasks of most calls.
async fn with_tasks_of_its_own() -> StatelessBackend {
    let backend = StatelessBackend::http().await;
    backend.capabilities(json!({"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}));
    let jobs = Jobs::default();
    backend.tool("greet", |call| async move { StatelessReply::text(&greeting(call.arguments())) });
    let own = jobs.clone();
    backend.tool("slow_compute", move |call| {
        let created = create_job(&own, seconds(call.arguments()), ends("computed"), &[]);
        async move { created }
    });
    for (name, end, needs) in [
        ("failing_job", json!({"result": failure()}), &[][..]),
        ("protocol_error_job", json!({"error": {"code": -32000, "message": "it broke"}}), &[]),
        ("confirm_delete", ends("deleted"), &["confirm"]),
        ("multi_input", ends("both"), &["one", "other"]),
    ] {
        let own = jobs.clone();
        backend.tool(name, move |_| {
            let created = create_job(&own, WORKS_FOR, end.clone(), needs);
            async move { created }
        });
    }
    let own = jobs.clone();
    backend.tool("test_tool_with_task", move |call| {
        let name = call.input("user_name")["content"]["name"].clone();
        let reply = match name.is_string() {
            true => create_job(&own, WORKS_FOR, ends(&greeting(&json!({"name": name}))), &[]),
            false => StatelessReply::needs(
                json!({"user_name": {"method": "elicitation/create", "params": form()}}),
                None,
            ),
        };
        async move { reply }
    });
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let own = jobs.clone();
        backend.on(method, move |call| {
            let reply = about(&own, method, call.params());
            async move { reply }
        });
    }
    backend
}

fn about(jobs: &Jobs, method: &str, params: &Value) -> StatelessReply {
    let id = params["taskId"].as_str().unwrap_or_default();
    let mut jobs = jobs.lock();
    let Some(job) = jobs.get_mut(id) else { return StatelessReply::error(-32602, "no such task") };
    match method {
        "tasks/get" => return StatelessReply::Result(job.state(id)),
        "tasks/cancel" => job.cancelled = true,
        _ => {
            let answers = params["inputResponses"].as_object().cloned().unwrap_or_default();
            job.needs.retain(|key| !answers.contains_key(*key));
        }
    }
    StatelessReply::Result(json!({}))
}

on_every_ground! {
    async fn task_scenarios_where_calls_become_tasks(topology: Topology) {
        let backend = with_sessions().await;
        passes(topology, backend.spec(), SCENARIOS.into_iter()).await;
    }

    async fn task_scenarios_where_the_backend_has_tasks(topology: Topology) {
        let backend = with_tasks_of_its_own().await;
        passes(topology, backend.spec(), SCENARIOS.into_iter().filter(|scenario| *scenario != WAITED_FOR)).await;
    }
}
