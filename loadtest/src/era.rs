//! The two eras of MCP that a load can use: sessions, or stateless requests.

use clap::ValueEnum;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::target::{Target, Wire};

/// Era, named by its protocol revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, ValueEnum)]
pub enum Era {
    /// A session, opened with `initialize`.
    #[default]
    #[serde(rename = "2025-11-25")]
    #[value(name = "2025-11-25")]
    Sessions,
    /// Every request is complete in itself.
    #[serde(rename = "2026-07-28")]
    #[value(name = "2026-07-28")]
    Stateless,
}

impl Era {
    /// Returns the protocol revision.
    pub const fn version(self) -> &'static str {
        match self {
            Self::Sessions => "2025-11-25",
            Self::Stateless => "2026-07-28",
        }
    }
}

/// Returns the client's description of itself, the same in both eras.
pub(crate) fn client_info() -> Value {
    json!({"name": "mcp-loadtest", "version": env!("CARGO_PKG_VERSION")})
}

/// Returns the metadata that messages need on a wire without paths and headers.
pub(crate) fn own_meta(target: &Target, key: Option<&str>) -> Map<String, Value> {
    if !matches!(target.wire, Wire::Tcp | Wire::Quic) {
        return Map::new();
    }
    let backend = target.named_backend().map(|name| ("dev.mcp-broker/backend", name));
    let named = backend.into_iter().chain(key.map(|key| ("dev.mcp-broker/token", key)));
    named.map(|(name, value)| (name.to_owned(), json!(value))).collect()
}

/// The parts that all stateless requests of one caller share.
#[derive(Debug)]
pub(crate) struct StatelessTemplate {
    /// `_meta`, as JSON.
    meta: String,
    /// HTTP: the lines of a head that are the same in all requests.
    head: String,
}

impl StatelessTemplate {
    pub(crate) fn new(target: &Target, key: Option<&str>) -> Self {
        let mut meta = own_meta(target, key);
        let of_the_hop = [
            ("io.modelcontextprotocol/protocolVersion", json!(Era::Stateless.version())),
            ("io.modelcontextprotocol/clientInfo", client_info()),
            ("io.modelcontextprotocol/clientCapabilities", json!({})),
        ];
        meta.extend(of_the_hop.map(|(name, value)| (name.to_owned(), value)));
        let authorization =
            key.map_or(String::new(), |key| format!("Authorization: Bearer {key}\r\n"));
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\n{authorization}MCP-Protocol-Version: {}\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n",
            target.path,
            target.address,
            Era::Stateless.version()
        );
        Self { meta: Value::Object(meta).to_string(), head }
    }

    /// Returns a whole request. `params` is an object without `_meta`.
    pub(crate) fn request(&self, id: u64, method: &str, params: &str) -> String {
        let rest = params.trim_start_matches('{');
        let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"_meta":{}{comma}{rest}}}"#,
            self.meta
        )
    }

    /// HTTP: returns the head of a request, up to the name of the last header.
    pub(crate) fn head(&self, method: &str, name: Option<&str>) -> String {
        let name = name.map_or(String::new(), |name| format!("Mcp-Name: {name}\r\n"));
        format!("{}Mcp-Method: {method}\r\n{name}Content-Length: ", self.head)
    }
}

/// Returns whether a result is complete. Only the stateless revision marks this.
pub(crate) fn is_complete(era: Era, result: &Value) -> bool {
    era == Era::Sessions || result["resultType"] == "complete"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_contains_the_credential_and_the_revision() {
        let target: Target = "tcp://127.0.0.1:1/fast".parse().unwrap();
        let alone = StatelessTemplate::new(&target, Some("k"));
        for params in ["{}", r#"{"name":"echo"}"#] {
            let request: Value =
                serde_json::from_str(&alone.request(7, "tools/call", params)).unwrap();
            let meta = &request["params"]["_meta"];
            assert_eq!(
                (&request["id"], &meta["dev.mcp-broker/backend"], &meta["dev.mcp-broker/token"]),
                (&json!(7), &json!("fast"), &json!("k"))
            );
            assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
            assert_eq!(request["params"].get("name").is_some(), params != "{}");
        }
        let target: Target = "http://127.0.0.1:1/mcp/fast".parse().unwrap();
        let head = StatelessTemplate::new(&target, Some("k")).head("tools/call", Some("echo"));
        for line in [
            "MCP-Protocol-Version: 2026-07-28\r\n",
            "Mcp-Method: tools/call\r\n",
            "Mcp-Name: echo\r\n",
            "Bearer k\r\n",
        ] {
            assert!(head.contains(line) && head.ends_with("Content-Length: "), "{head}");
        }
    }
}
