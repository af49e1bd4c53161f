//! Lists that an operator declares for a backend: the `auth.catalog` of its body.

use std::collections::HashSet;

use protocol::ids::BackendId;
use rules::{
    catalog::{ListKind, TaskHost, read_page},
    limits::{LIST_BYTES_MAX, LIST_ENTRIES_MAX},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

/// Lists of a backend, with entries as MCP has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeclaredCatalog {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_templates: Vec<Value>,
}

impl DeclaredCatalog {
    fn members(&self) -> [(&'static str, ListKind, &Vec<Value>); 4] {
        [
            ("tools", ListKind::Tools, &self.tools),
            ("prompts", ListKind::Prompts, &self.prompts),
            ("resources", ListKind::Resources, &self.resources),
            ("resource_templates", ListKind::ResourceTemplates, &self.resource_templates),
        ]
    }

    /// Returns a list as the result of a list request.
    pub fn result(&self, kind: ListKind) -> Vec<u8> {
        let members = self.members();
        let entries = members.iter().find(|(_, of, _)| *of == kind).map(|(_, _, entries)| entries);
        json!({kind.member(): entries}).to_string().into_bytes()
    }

    /// Returns whether the lists belong to this capability of a server.
    pub fn has(&self, kind: ListKind) -> bool {
        self.members().iter().any(|(_, of, entries)| *of == kind && !entries.is_empty())
    }

    /// Reports what clients could not use.
    pub(super) fn check(&self, fault: &mut impl FnMut(&str, &str, &str)) {
        let Ok(any) = BackendId::parse("b") else { return };
        for (name, kind, entries) in self.members() {
            let path = format!("catalog.{name}");
            let text = self.result(kind);
            if entries.len() > LIST_ENTRIES_MAX || text.len() > LIST_BYTES_MAX {
                let allowed =
                    format!("at most {LIST_ENTRIES_MAX} entries and {LIST_BYTES_MAX} bytes");
                fault(&path, "is too long", &allowed);
                continue;
            }
            let allowed = "entries of MCP, such as {\"name\": …, \"inputSchema\": {…}}";
            match read_page(kind, &any, TaskHost::Backend, &text) {
                Err(why) => fault(&path, why, allowed),
                Ok(page) => {
                    for left_out in page.skipped {
                        let wrong = format!("entry {:?}: {}", left_out.key, left_out.reason);
                        fault(&path, &wrong, allowed);
                    }
                    let mut seen = HashSet::new();
                    for twice in page.entries.iter().filter(|entry| !seen.insert(&entry.key)) {
                        fault(&path, &format!("has {:?} twice", twice.key), "each name once");
                    }
                }
            }
        }
    }
}
