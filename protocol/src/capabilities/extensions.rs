//! Extensions that a side declared (MCP 2026-07-28, Extensions; MCP Apps declares itself so in
//! earlier revisions too).
//!
//! The broker passes on what it does not know. It takes part in the extension of tasks itself, so
//! that one never passes.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::server::ObjectWriter;
use crate::{json::TapeValue, stateless::EXTENSION_TASKS};

/// Settings of a feature that a side names without a description.
pub(super) const NULL: &[u8] = b"null";

/// Member of capabilities that holds extensions.
const EXTENSIONS: &str = "extensions";

/// Extensions that the broker passes on, always in the same order. Their settings are kept as
/// written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Extensions(BTreeMap<String, Bytes>);

impl Extensions {
    /// Reads the extensions of a capabilities object.
    pub(super) fn of(capabilities: TapeValue<'_>) -> Self {
        let mut found = BTreeMap::new();
        for one in capabilities.get(EXTENSIONS).into_iter().flat_map(|all| all.members()) {
            if one.key != EXTENSION_TASKS {
                let settings = || Bytes::copy_from_slice(one.value.raw());
                found.entry(one.key.clone().into_owned()).or_insert_with(settings);
            }
        }
        Self(found)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the extensions that only `other` has, or that have no settings but `null` so far.
    pub(super) fn add(&mut self, other: &Self) {
        for (id, settings) in &other.0 {
            let known = self.0.entry(id.clone()).or_insert_with(|| Bytes::from_static(NULL));
            if *known == NULL {
                known.clone_from(settings);
            }
        }
    }

    /// Returns the member of a capabilities object, without a comma. `None`: there are none.
    pub(super) fn member(&self) -> Option<String> {
        let value = self.to_json()?;
        Some(format!("\"{EXTENSIONS}\":{}", String::from_utf8_lossy(&value)))
    }

    /// Returns the JSON text of the member. `None`: there are none.
    pub(super) fn to_json(&self) -> Option<Vec<u8>> {
        if self.is_empty() {
            return None;
        }
        let mut all = ObjectWriter::new();
        for (id, settings) in &self.0 {
            all.member(id, settings);
        }
        Some(all.close())
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        capabilities::{ClientCapabilities, ServerCapabilities},
        stateless::{downgrade::upgrade_client_capabilities, results::upgrade_server_capabilities},
    };

    const UI: &str = r#""io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}"#;
    const TASKS: &str = r#""io.modelcontextprotocol/tasks":{}"#;

    fn client(text: &str) -> ClientCapabilities {
        ClientCapabilities::parse(text.as_bytes()).unwrap()
    }

    fn server(text: &str) -> ServerCapabilities {
        ServerCapabilities::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn unknown_extensions_of_a_client_reach_servers_of_earlier_revisions() {
        let declared = client(&format!(
            r#"{{"extensions":{{{TASKS},"z/z":{{"a":1.50}},{UI}}},"sampling":{{}}}}"#
        ));
        let expected = format!(r#"{{"sampling":{{}},"extensions":{{{UI},"z/z":{{"a":1.50}}}}}}"#);
        assert_eq!(String::from_utf8_lossy(declared.downgraded().raw()), expected);
        let only = format!(r#"{{"extensions":{{{UI},"z/z":{{"a":1.50}}}}}}"#);
        assert_eq!(String::from_utf8_lossy(declared.extensions_only().raw()), only);
        let other_order = client(&format!(r#"{{"extensions":{{"z/z":{{"a":1.50}},{UI}}}}}"#));
        assert_eq!(other_order.downgraded(), declared.extensions_only());
        for without in ["{}", r#"{"extensions":{}}"#, &format!(r#"{{"extensions":{{{TASKS}}}}}"#)] {
            assert_eq!(client(without).downgraded(), ClientCapabilities::none(), "{without}");
            assert_eq!(client(without).extensions_fingerprint(), 0, "{without}");
        }
        assert_ne!(declared.extensions_fingerprint(), 0);
    }

    #[test]
    fn roots_of_an_operator_are_added_to_the_client_capabilities() {
        let with =
            |text: &str| String::from_utf8(client(text).with_roots().raw().to_vec()).unwrap();
        assert_eq!(with("{}"), r#"{"roots":{"listChanged":true}}"#);
        let read: serde_json::Value =
            serde_json::from_str(&with(r#"{"roots":{"x":1},"sampling":{}}"#)).unwrap();
        assert_eq!(read, serde_json::json!({"roots": {"listChanged": true}, "sampling": {}}));
        let same = r#"{ "roots" : {"listChanged":true} }"#;
        assert_eq!(with(same), same);
        assert!(client("{}").with_roots().can_answer());
    }

    #[test]
    fn extensions_pass_to_stateless_servers_with_the_tasks_extension() {
        let translated =
            upgrade_client_capabilities(format!(r#"{{"extensions":{{{UI}}}}}"#).as_bytes());
        let translated: serde_json::Value = serde_json::from_slice(&translated).unwrap();
        let expected: serde_json::Value =
            serde_json::from_str(&format!(r#"{{"extensions":{{{UI},{TASKS}}}}}"#)).unwrap();
        assert_eq!(translated, expected);
    }

    #[test]
    fn several_servers_together_have_the_extensions_of_each() {
        let first =
            server(&format!(r#"{{"tools":{{}},"extensions":{{"a/a":{{"v":1}},{TASKS}}}}}"#));
        let second = server(&format!(r#"{{"extensions":{{{UI},"a/a":{{"v":2}}}}}}"#));
        let merged = ServerCapabilities::merge([&first, &second].into_iter());
        let expected = format!(r#"{{"tools":{{}},"extensions":{{"a/a":{{"v":1}},{UI}}}}}"#);
        assert_eq!(String::from_utf8_lossy(merged.raw()), expected);
    }

    #[test]
    fn stateless_clients_see_the_extensions_of_a_server() {
        let translated = |text: &str, tasks| {
            String::from_utf8(upgrade_server_capabilities(&server(text), tasks).to_vec()).unwrap()
        };
        let with = format!(r#"{{"tools":{{}},"tasks":{{}},"extensions":{{{UI}}}}}"#);
        assert_eq!(translated(&with, false), format!(r#"{{"tools":{{}},"extensions":{{{UI}}}}}"#));
        let both: serde_json::Value = serde_json::from_str(&translated(&with, true)).unwrap();
        let expected: serde_json::Value =
            serde_json::from_str(&format!(r#"{{"tools":{{}},"extensions":{{{UI},{TASKS}}}}}"#))
                .unwrap();
        assert_eq!(both, expected);
        let of_another = format!(r#"{{"extensions":{{{TASKS},{UI}}}}}"#);
        assert_eq!(translated(&of_another, false), format!(r#"{{"extensions":{{{UI}}}}}"#));
        assert_eq!(translated("{}", false), "{}");
    }
}
