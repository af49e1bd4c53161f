//! What the admin API and the CLI show of the running broker. Plain data, filled by [`crate::broker::Broker`].

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
    /// Mean of the latest answers, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<f64>,
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
    /// `opening`, `ready` or `closing`.
    pub state: String,
    pub calls_in_flight: usize,
    pub streams: usize,
    pub subscriptions: usize,
    pub idle_seconds: u64,
    pub created_at: String,
}

/// One task known to the broker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskView {
    pub id: String,
    pub tenant: String,
    pub principal: String,
    pub backend: String,
    /// As last told by the backend.
    pub status: String,
    pub created_at: String,
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
