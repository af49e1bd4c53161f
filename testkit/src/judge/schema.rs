//! The published JSON schemas of MCP's revisions, one validator per definition, compiled at first
//! use.
//!
//! The definition of each method is read from the schemas themselves, so a method is known exactly
//! where its revision has it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use jsonschema::Validator;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

/// A revision of MCP. Only the last has no sessions: each of its requests names its revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Revision {
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
}

/// Receiver of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipient {
    Client,
    Backend,
}

impl Revision {
    /// The revisions that have sessions.
    pub const ALL: [Self; 4] =
        [Self::V2024_11_05, Self::V2025_03_26, Self::V2025_06_18, Self::V2025_11_25];
    pub const LATEST: Self = Self::V2025_11_25;

    pub fn of(text: &str) -> Option<Self> {
        Self::ALL.into_iter().chain([Self::V2026_07_28]).find(|revision| revision.name() == text)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    /// Returns the member of the schema that holds the definitions.
    fn section(self) -> &'static str {
        if self >= Self::V2025_11_25 { "$defs" } else { "definitions" }
    }

    fn document(self) -> &'static Value {
        static DOCUMENTS: [OnceLock<Value>; 5] = [const { OnceLock::new() }; 5];
        let text = match self {
            Self::V2024_11_05 => include_str!("../../schemas/2024-11-05.json"),
            Self::V2025_03_26 => include_str!("../../schemas/2025-03-26.json"),
            Self::V2025_06_18 => include_str!("../../schemas/2025-06-18.json"),
            Self::V2025_11_25 => include_str!("../../schemas/2025-11-25.json"),
            Self::V2026_07_28 => include_str!("../../schemas/2026-07-28.json"),
        };
        DOCUMENTS[self as usize]
            .get_or_init(|| serde_json::from_str(text).expect("the published schemas are JSON"))
    }

    fn definitions(self) -> &'static Map<String, Value> {
        self.document()[self.section()].as_object().expect("a schema has definitions")
    }

    pub fn has(self, definition: &str) -> bool {
        self.definitions().contains_key(definition)
    }

    /// Returns the definition of a request or notification with this method, if this revision has
    /// it for that receiver.
    pub fn definition_of(
        self,
        toward: Recipient,
        is_request: bool,
        method: &str,
    ) -> Option<&'static str> {
        let sender = if toward == Recipient::Client { "Server" } else { "Client" };
        let kind = if is_request { "Request" } else { "Notification" };
        self.methods_of(&format!("{sender}{kind}"))
            .find(|(name, _)| *name == method)
            .map(|(_, definition)| definition)
    }

    /// Returns the definition of the result of a request with this method, for either sender.
    pub fn result_of(self, method: &str) -> Option<String> {
        let mut requests =
            ["ClientRequest", "ServerRequest"].into_iter().flat_map(|union| self.methods_of(union));
        let (_, request) = requests.find(|(name, _)| *name == method)?;
        let result = format!("{}Result", request.strip_suffix("Request").unwrap_or(request));
        Some(if self.has(&result) { result } else { "EmptyResult".to_owned() })
    }

    /// Returns `(method, definition)` of each member of a union such as `ClientRequest`.
    fn methods_of(self, union: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
        // A revision may have no member of a union, or one that stands for it.
        let alone = (union == "ClientNotification").then_some("CancelledNotification");
        let members = self.definitions().get(union).and_then(|union| union["anyOf"].as_array());
        let alone = alone
            .filter(|_| members.is_none())
            .map(|definition| ("notifications/cancelled", definition));
        alone.into_iter().chain(members.into_iter().flatten().filter_map(move |member| {
            let definition = member["$ref"].as_str()?.rsplit('/').next()?;
            Some((
                self.definitions()[definition]["properties"]["method"]["const"].as_str()?,
                definition,
            ))
        }))
    }

    /// Checks `value` by this definition; `Err` has one line per fault.
    pub fn check(self, definition: &str, value: &Value) -> Result<(), String> {
        let faults: Vec<String> = self
            .validator(definition)
            .iter_errors(value)
            .map(|fault| {
                let text: String = fault.to_string().chars().take(FAULT_CHARS_SHOWN).collect();
                format!("at {:?}: {text}", fault.instance_path().to_string())
            })
            .collect();
        if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
    }

    fn validator(self, definition: &str) -> Arc<Validator> {
        type Compiled = Mutex<BTreeMap<(Revision, String), Arc<Validator>>>;
        static COMPILED: Compiled = Mutex::new(BTreeMap::new());
        let mut compiled = COMPILED.lock();
        let compile = || {
            Arc::new(
                jsonschema::validator_for(&self.cut_out(definition))
                    .expect("the published schemas compile"),
            )
        };
        compiled.entry((self, definition.to_owned())).or_insert_with(compile).clone()
    }

    /// Returns a schema with one definition and those it refers to: a test needs few of them, and
    /// compiling all takes long.
    fn cut_out(self, definition: &str) -> Value {
        let mut kept = Map::new();
        let mut open = vec![definition.to_owned()];
        while let Some(name) = open.pop() {
            if kept.contains_key(&name) {
                continue;
            }
            let schema = self
                .definitions()
                .get(&name)
                .unwrap_or_else(|| panic!("{} has no definition {name}", self.name()));
            references(schema, &mut open);
            kept.insert(name, schema.clone());
        }
        let section = self.section();
        json!({"$schema": self.document()["$schema"], "$ref": format!("#/{section}/{definition}"), section: kept})
    }
}

/// Characters of a fault's text that are shown: it repeats the value.
const FAULT_CHARS_SHOWN: usize = 400;

fn references(schema: &Value, found: &mut Vec<String>) {
    match schema {
        Value::Object(members) => {
            found.extend(
                members
                    .get("$ref")
                    .and_then(Value::as_str)
                    .and_then(|path| path.rsplit('/').next())
                    .map(str::to_owned),
            );
            members.values().for_each(|member| references(member, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

/// Returns whether some revision with sessions has this method, in either direction.
pub fn is_mcp_method(method: &str) -> bool {
    static METHODS: OnceLock<BTreeSet<&'static str>> = OnceLock::new();
    let all = || {
        let unions = ["ClientRequest", "ServerRequest", "ClientNotification", "ServerNotification"];
        let of = |revision: Revision| {
            unions
                .into_iter()
                .flat_map(move |union| revision.methods_of(union))
                .map(|(method, _)| method)
        };
        Revision::ALL.into_iter().flat_map(of).collect()
    };
    METHODS.get_or_init(all).contains(method)
}
