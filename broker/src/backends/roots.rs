//! Roots that operators give a backend, and the answers to its `roots/list` (MCP 2025-11-25, Roots).
//!
//! Operators add and remove roots while the backend runs. Its connections then get
//! `notifications/roots/list_changed` and send the request again. The revision 2026-07-28
//! deprecates roots, so backends of that revision always get those of their clients.

use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use config::spec::{ConfiguredRoot, RootMode, RootRules};
use protocol::{
    envelope::{Kind, Message},
    handshake,
    ids::RequestId,
    json::{Document, Limits},
};

/// The roots of one backend in force.
#[derive(Debug)]
pub struct BackendRoots {
    mode: RootMode,
    list: ArcSwap<Vec<ConfiguredRoot>>,
}

impl BackendRoots {
    pub fn new(rules: &RootRules) -> Arc<Self> {
        Arc::new(Self { mode: rules.mode, list: ArcSwap::from_pointee(rules.list.clone()) })
    }

    /// Returns whether the broker answers the backend, alone or together with a client.
    pub fn are_configured(&self) -> bool {
        self.mode != RootMode::Client
    }

    /// Returns whether the roots of clients reach the backend.
    pub fn include_clients(&self) -> bool {
        self.mode != RootMode::Configured
    }

    /// Replaces the operator's roots. Returns whether the backend needs a notification.
    pub fn replace(&self, list: &[ConfiguredRoot]) -> bool {
        let differs = **self.list.load() != *list;
        if differs {
            self.list.store(Arc::new(list.to_vec()));
        }
        differs && self.are_configured()
    }

    /// Returns the answer to `roots/list` with the operator's roots alone.
    pub(super) fn answer(&self, id: &RequestId) -> Bytes {
        handshake::success(id, &self.result(b""))
    }

    /// Returns the result of `roots/list`, with the roots of a client behind the operator's.
    fn result(&self, of_client: &[u8]) -> Vec<u8> {
        let list = self.list.load();
        let mut roots: Vec<String> = list.iter().map(as_json).collect();
        let limits = Limits::with_bytes_max(of_client.len());
        if let Ok(document) = Document::parse(of_client, &limits) {
            let is_configured = |uri: &str| list.iter().any(|root| root.uri == uri);
            let given = document.root().get("roots");
            let others = given.iter().flat_map(|roots| roots.elements()).filter(|root| {
                !root.get("uri").and_then(|uri| uri.as_str()).is_some_and(|uri| is_configured(&uri))
            });
            roots.extend(others.map(|root| String::from_utf8_lossy(root.raw()).into_owned()));
        }
        format!("{{\"roots\":[{}]}}", roots.join(",")).into_bytes()
    }

    /// Adds the operator's roots to the answer of a client. An error of the client leaves them
    /// alone.
    pub(super) fn complete(&self, id: &RequestId, answer: &Message) -> Bytes {
        let of_client = answer.bytes(answer.result).filter(|_| answer.kind == Kind::Result);
        handshake::success(id, &self.result(of_client.unwrap_or_default()))
    }
}

fn as_json(root: &ConfiguredRoot) -> String {
    // A root is two texts, so it always has a JSON form.
    serde_json::to_string(root).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use protocol::json;

    use super::*;

    fn roots(uris: &[&str]) -> Arc<BackendRoots> {
        let list = uris.iter().map(|uri| ConfiguredRoot { uri: (*uri).to_owned(), name: None });
        BackendRoots::new(&RootRules { list: list.collect(), mode: RootMode::Merge })
    }

    fn completed(roots: &BackendRoots, answer: &str) -> String {
        let answer =
            Message::decode(Bytes::from(answer.to_owned()), &json::Limits::default()).unwrap();
        let id = RequestId::from_raw(Bytes::from_static(b"\"r\""));
        String::from_utf8(roots.complete(&id, &answer).to_vec()).unwrap()
    }

    #[test]
    fn the_roots_of_a_client_follow_those_of_the_operator() {
        let both = roots(&["file:///a", "file:///b"]);
        let answer = r#"{"jsonrpc":"2.0","id":4,"result":{"roots":[{"uri":"file:///c","name":"C","x":1.50},{"uri":"file:///a","name":"mine"}]}}"#;
        assert_eq!(
            completed(&both, answer),
            r#"{"jsonrpc":"2.0","id":"r","result":{"roots":[{"uri":"file:///a"},{"uri":"file:///b"},{"uri":"file:///c","name":"C","x":1.50}]}}"#
        );
    }

    #[test]
    fn the_roots_of_the_operator_are_sent_if_the_client_has_none() {
        let expected = r#"{"jsonrpc":"2.0","id":"r","result":{"roots":[{"uri":"file:///a"}]}}"#;
        for answer in [
            r#"{"jsonrpc":"2.0","id":4,"result":{"roots":[]}}"#,
            r#"{"jsonrpc":"2.0","id":4,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":4,"error":{"code":-32601,"message":"no"}}"#,
        ] {
            assert_eq!(completed(&roots(&["file:///a"]), answer), expected, "{answer}");
        }
    }
}
