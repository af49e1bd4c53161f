//! The trace that a task belongs to, as its record keeps it.

use serde::{Deserialize, Serialize};

/// Trace context in the stored record of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredTrace {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baggage: Option<String>,
    /// True if the named span does not exist: only the trace id is valid.
    #[serde(default)]
    pub is_root: bool,
    #[serde(default)]
    pub from_meta: bool,
}
