//! A request as the backend received it.

use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;

/// One HTTP request as it came.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    pub http: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The body as JSON, or null.
    pub message: Value,
}

impl RecordedRequest {
    pub fn method(&self) -> Option<&str> {
        self.message["method"].as_str()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub fn is(&self, method: &str) -> bool {
        self.method() == Some(method)
    }

    /// Returns whether this is a `tools/call` of this tool.
    pub fn calls(&self, tool: &str) -> bool {
        self.is("tools/call") && self.message["params"]["name"] == tool
    }
}
