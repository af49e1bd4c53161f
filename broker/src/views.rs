//! Views of the running broker for the admin API and the CLI. Plain data, filled by
//! [`crate::broker::Broker`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// State of one backend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BackendStatus {
    pub tenant: String,
    pub backend: String,
    /// `connecting`, `ready`, `degraded` (serving the last valid lists), `failed` or `disabled`.
    pub state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_version: Option<String>,
    pub tools: usize,
    pub prompts: usize,
    pub resources: usize,
    pub resource_templates: usize,
    /// Open links to this backend.
    pub links: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Tools whose arguments are not checked despite `validate_arguments`, because their schemas
    /// cannot be used, each with the reason. Checked at the first call of a tool. At most 16 are
    /// shown.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unchecked_tools: BTreeMap<String, String>,
    /// Mean latency of the most recent answers, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<f64>,
    /// Circuit breaker of this replica. Absent for a disabled backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerStatus>,
    /// Calls of this replica that are at the backend now.
    #[serde(default)]
    pub calls_in_flight: usize,
    /// Calls that wait for capacity at the backend.
    #[serde(default)]
    pub calls_queued: usize,
    /// Maximum number of concurrent calls.
    #[serde(default)]
    pub calls_max: usize,
    /// Consecutive failed attempts to connect to the backend or to start it. Connections that ended
    /// early count.
    #[serde(default)]
    pub failed_attempts: u32,
    /// Time until the next attempt, in milliseconds. Absent if it may start at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_in_ms: Option<u64>,
    /// Confinement of its child processes: `uid+landlock`, `uid`, `landlock` or `off`. Absent
    /// before the first child starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Protections that this host lacks for a better confinement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sandbox_missing: Vec<String>,
    /// Why the user of its child processes cannot read or write paths of `sandbox.read` and
    /// `sandbox.write`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sandbox_unreachable: Vec<String>,
}

/// State of a backend's circuit breaker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BreakerStatus {
    /// `closed`, `half_open` (a probe is running) or `open`.
    pub state: String,
    /// Reason why it is not closed: `failures_in_a_row`, `error_ratio`,
    /// `operator`, or `other_replica`: another replica found that it fails, and so did this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub failures_in_a_row: u32,
    /// Time until the next probe, in milliseconds. Absent while it is closed, and while an operator
    /// holds it open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_probe_ms: Option<u64>,
    /// The last verdict of another replica, for ten seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<VerdictView>,
}

/// The state of a backend's breaker on another replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VerdictView {
    /// Name of the replica.
    pub replica: String,
    /// `closed`, `half_open` or `open`.
    pub state: String,
    /// Time since this replica learned of it, in milliseconds.
    pub age_ms: u64,
}

/// One record of the audit log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Increases with every record. The number of the last record of a page is the start of the
    /// next page.
    #[serde(default)]
    pub number: i64,
    pub at: String,
    /// `admin`: a change by an operator, or an attempt; `call`: a request of a client.
    pub kind: String,
    /// Tenant of the record; absent if it concerns none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Actor: a tenant's principal, `admin`, `configuration`, or `unknown` for a failed sign-in.
    pub principal: String,
    /// API key of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<String>,
    /// MCP method, HTTP method and route of the admin API, or `sign_in`.
    pub action: String,
    /// Tool, prompt or resource as the client names it, digest of a task, or path of the admin API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// The tool under its backend's name, for calls at a toolset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Hash of the tool's definition, as the backend listed it at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<String>,
    /// Approval by which a call passed, or that it waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<String>,
    /// Hash of the arguments, or of the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments_digest: Option<String>,
    /// Redacted arguments, only if that is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<serde_json::Value>,
    /// The policy before a change of it, and after. A policy of more than 64 KiB is a digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<serde_json::Value>,
    /// Outcome as in `mcp_requests_total`, status of a task, or status of an HTTP response.
    pub outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<f64>,
    /// Request id, as in the log and in errors for clients.
    pub request_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// Digest of the session id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Address of the operator, of the client, or of the failed sign-in. For a failed sign-in over
    /// IPv6 it is the /64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Number of such failed sign-ins within a minute, or of such refused requests since the last
    /// record of one; absent in other records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Replica that recorded it.
    pub node: String,
}

/// A recent request that failed, or that the access policy did not plainly allow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActivityEntry {
    /// Increases with every entry of this replica.
    pub number: u64,
    pub at: String,
    pub tenant: String,
    pub principal: String,
    pub transport: String,
    /// MCP method.
    pub method: String,
    /// Tool, prompt or resource as the client names it, or digest of a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Outcome as in `mcp_requests_total`.
    pub outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Verdict of the access policy, and the rule that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    pub duration_ms: f64,
    /// Request id, as in the log and in errors for clients.
    pub request_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

/// A tool, prompt, resource or resource template of a backend.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CatalogItemView {
    /// `tool`, `prompt`, `resource` or `template`.
    pub kind: String,
    pub backend: String,
    /// Name or URI at the backend.
    pub name: String,
    /// Name or URI on `/mcp`.
    pub exposed_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Size of the definition in bytes.
    pub bytes: usize,
    /// SHA-256 of the definition, as the audit log has it.
    pub hash: String,
    /// True if the backend is unreachable and the definition may be outdated.
    pub stale: bool,
    /// The definition as the backend lists it, with the task support that the broker adds. Only on
    /// request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub definition: Option<Box<RawValue>>,
}

/// State of the broker at one glance, for the tenants and backends that the operator sees.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OverviewView {
    pub version: String,
    /// Name of the replica that answers. All numbers are its own.
    pub replica: String,
    /// `ready`, `starting`, `draining` or `store_unavailable`.
    pub readiness: String,
    pub uptime_seconds: u64,
    /// Address of the broker for clients, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    pub tenants: usize,
    /// Backends by state.
    pub backends: BTreeMap<String, usize>,
    /// Circuit breakers by state.
    pub breakers: BTreeMap<String, usize>,
    pub tools: usize,
    pub prompts: usize,
    pub resources: usize,
    /// Sessions that live in this replica.
    pub sessions: usize,
    pub calls_in_flight: usize,
    /// Calls that wait for capacity at a backend.
    pub calls_queued: usize,
    /// Tools, prompts, resources and templates that pins keep from clients.
    pub held: usize,
    /// Objects that pins keep from clients, by backend. At most 20.
    pub holding: Vec<HoldingBackend>,
    /// Work for people, of all replicas. Absent while the database does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingView>,
    /// Backends that are not ready, or whose breaker is not closed. At most 20.
    pub troubled: Vec<TroubledBackend>,
}

/// A backend with objects that pins keep from clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HoldingBackend {
    pub tenant: String,
    pub backend: String,
    pub held: usize,
}

/// What waits for a person.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitingView {
    /// Calls that wait for a decision.
    pub approvals: u64,
    /// Accounts at backends whose people must connect again.
    pub reconnect: u64,
    /// Connected accounts whose access token has ended. The next call renews it, or the person must
    /// connect again.
    pub ended: u64,
    /// Tenants with at least one of these.
    pub tenants: Vec<WaitingTenant>,
}

/// What waits for a person in one tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitingTenant {
    pub tenant: String,
    pub approvals: u64,
    pub reconnect: u64,
    pub ended: u64,
}

/// A backend that needs attention.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TroubledBackend {
    pub tenant: String,
    pub backend: String,
    pub state: String,
    /// State of its breaker, if it is not closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// A client session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    /// Digest of the session id, because the id itself is a secret of its client.
    pub id: String,
    pub tenant: String,
    pub principal: String,
    pub transport: String,
    /// `aggregated`, or the name of the only backend.
    pub endpoint: String,
    pub protocol_version: String,
    pub client_name: String,
    pub client_version: String,
    /// `handshake`, `ready` or `closing`; `parked` while no replica owns the session, until its
    /// client sends a request.
    pub state: String,
    /// Known only for sessions of the replica that answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls_in_flight: Option<usize>,
    /// Known only for sessions of the replica that answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<usize>,
    pub subscriptions: usize,
    pub idle_seconds: u64,
    pub created_at: String,
    /// Replica that owns the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// A replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    /// `node.id`, with a part that changes at every start and at every lost lease.
    pub node: String,
    /// Address for other replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// True if the replica drains and accepts no new work.
    pub draining: bool,
    /// Remaining time of its lease, in milliseconds. Absent for a broker without replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// True for the replica that answers.
    pub is_this: bool,
}

/// A task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskView {
    /// Digest of the task's id, as in the log. The id is a secret of its client.
    pub id: String,
    pub tenant: String,
    pub principal: String,
    pub backend: String,
    pub status: String,
    pub created_at: String,
    /// Message about the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Session that created the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Time of the latest status change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
    /// Time at which the task is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// A task with its history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskShown {
    #[serde(flatten)]
    pub task: TaskView,
    /// Status changes, oldest first.
    pub history: Vec<TaskChange>,
}

/// A change of a task's status.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskChange {
    pub to: String,
    pub at: String,
    /// Number of replicas that had owned the task by then. Absent for a change without ownership,
    /// such as a cancellation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,
}

/// A resource with subscribers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SubscriptionView {
    pub tenant: String,
    pub backend: String,
    pub uri: String,
    /// Number of sessions that are subscribed to it.
    pub sessions: usize,
}
