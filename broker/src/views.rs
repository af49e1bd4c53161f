//! What the admin API and the CLI show of the running broker. Plain data, filled by [`crate::broker::Broker`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One backend as it stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BackendStatus {
    pub tenant: String,
    pub backend: String,
    /// `connecting`, `ready`, `degraded` (serving the last good lists), `failed` or `disabled`.
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
    /// Tools whose arguments are not checked though `validate_arguments` is on, as their schemas cannot be used, each with the
    /// reason. Found out when a tool is first called; the first 16 are shown.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unchecked_tools: BTreeMap<String, String>,
    /// Mean of the latest answers, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<f64>,
    /// The circuit breaker of this replica. None of a backend that is disabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerStatus>,
    /// Calls that are with it now, from this replica.
    #[serde(default)]
    pub calls_in_flight: usize,
    /// Calls that wait for room at it.
    #[serde(default)]
    pub calls_queued: usize,
    /// How many calls it gets at the same time.
    #[serde(default)]
    pub calls_max: usize,
    /// Attempts to connect or to start it that failed in a row; connections that ended young count.
    #[serde(default)]
    pub failed_attempts: u32,
    /// When the next one may begin, in milliseconds, where that is not at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_in_ms: Option<u64>,
    /// What confines its child processes: `uid+landlock`, `uid`, `landlock` or `off`. None before the first one started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// What this host lacks to confine them better.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sandbox_missing: Vec<String>,
}

/// Whether calls go to a backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BreakerStatus {
    /// `closed`, `half_open` (a probe is under way) or `open`.
    pub state: String,
    /// Why it is not closed: `failures_in_a_row`, `error_ratio` or `operator`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub failures_in_a_row: u32,
    /// Until the next probe. None while it is closed, and while an operator holds it open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_probe_ms: Option<u64>,
}

/// One record of the audit log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Grows with every record; what a page ends with is where the next one begins.
    #[serde(default)]
    pub number: i64,
    pub at: String,
    /// `admin`: an operator changed something, or tried to; `call`: a client asked for something.
    pub kind: String,
    /// Whom it concerns; absent where it is no tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Who did it: a tenant's principal, `admin`, `configuration`, or `unknown` where a sign-in failed.
    pub principal: String,
    /// The API key that was shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<String>,
    /// The MCP method, the HTTP method and route of the admin API, or `sign_in`.
    pub action: String,
    /// The tool, prompt or resource as its client calls it, or the path of the admin API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Hash of the tool's definition as its backend listed it at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<String>,
    /// Hash of the arguments, or of the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments_digest: Option<String>,
    /// The arguments without what looks like a secret; only where that is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<serde_json::Value>,
    /// As in `mcp_requests_total`, or the status of a task, or of an HTTP response.
    pub outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<f64>,
    /// The one in the log, and in errors that clients are told.
    pub request_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// Digest of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Where the operator called from, or who failed to sign in; of IPv6 then the /64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// How many sign-ins failed so within a minute; absent in other records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The replica that took it.
    pub node: String,
}

/// One client session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    /// A digest of the session id: the id itself is a secret of its client.
    pub id: String,
    pub tenant: String,
    pub principal: String,
    pub transport: String,
    /// `aggregated` or the one backend's name.
    pub endpoint: String,
    pub protocol_version: String,
    pub client_name: String,
    pub client_version: String,
    /// `handshake`, `ready` or `closing`; `suspended` when no replica has it, until its client is heard of again.
    pub state: String,
    /// Known of sessions of the replica that is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls_in_flight: Option<usize>,
    /// Known of sessions of the replica that is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<usize>,
    pub subscriptions: usize,
    pub idle_seconds: u64,
    pub created_at: String,
    /// The replica that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// One replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    /// `node.id` and a part that changes with every start and every lost lease.
    pub node: String,
    /// Where other replicas reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// It is going away and takes nothing new.
    pub draining: bool,
    /// How long its lease runs if it is not renewed. None of a broker that is alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// The replica that is asked.
    pub is_this: bool,
}

/// One task known to the broker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskView {
    pub id: String,
    pub tenant: String,
    pub principal: String,
    pub backend: String,
    pub status: String,
    pub created_at: String,
    /// What is said about the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The session that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Its latest change of status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
    /// It is deleted then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// One task with what happened to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskShown {
    #[serde(flatten)]
    pub task: TaskView,
    /// Oldest first.
    pub history: Vec<TaskChange>,
}

/// A change of a task's status.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskChange {
    pub to: String,
    pub at: String,
    /// How many replicas had had the task by then. None: somebody who does not own it, such as a cancellation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,
}

/// One resource somebody listens to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SubscriptionView {
    pub tenant: String,
    pub backend: String,
    pub uri: String,
    /// Sessions that asked for it.
    pub sessions: usize,
}
