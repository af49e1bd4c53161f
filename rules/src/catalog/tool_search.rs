//! Search over the tools of a toolset, instead of their list: a model gets five tools, and finds
//! the others with them.
//!
//! Three of the five call what was found. They keep reading, writing and destroying apart, so that
//! the question of a client to its user keeps its meaning. Ranking is Okapi BM25 over the words of
//! names, titles, descriptions and arguments.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::BackendId,
    json::{self, Document, Tape, ValueKind},
};
use serde_json::{Value, json};

use super::{BackendLists, CatalogEntry, ListKind, Target, ToolTraits};
use crate::limits::toolsets::{SEARCH_QUERY_BYTES_MAX, SEARCH_RESULTS, SEARCH_RESULTS_MAX};

/// Saturation of repeated words, as usual for BM25.
const K1: f64 = 1.2;
/// Influence of the length, as usual for BM25.
const B: f64 = 0.75;
/// How often a word counts by the field in which it is.
const NAME_WEIGHT: u32 = 3;
const TITLE_WEIGHT: u32 = 2;

/// The tools that a searched toolset lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchTool {
    Search,
    Describe,
    CallRead,
    CallWrite,
    CallDestructive,
}

impl SearchTool {
    const ALL: [Self; 5] =
        [Self::Search, Self::Describe, Self::CallRead, Self::CallWrite, Self::CallDestructive];

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Search => "search_tools",
            Self::Describe => "describe_tool",
            Self::CallRead => "call_tool_read",
            Self::CallWrite => "call_tool_write",
            Self::CallDestructive => "call_tool_destructive",
        }
    }

    /// Returns whether the tool calls other tools.
    pub fn calls_tools(self) -> bool {
        matches!(self, Self::CallRead | Self::CallWrite | Self::CallDestructive)
    }

    /// Returns the tool that calls tools of these traits.
    pub fn caller_of(traits: ToolTraits) -> Self {
        match traits {
            ToolTraits { read_only: true, .. } => Self::CallRead,
            ToolTraits { destructive: false, .. } => Self::CallWrite,
            _ => Self::CallDestructive,
        }
    }

    /// Returns the entries of the list.
    pub(super) fn entries() -> Vec<(&'static str, Bytes)> {
        Self::ALL.iter().map(|tool| (tool.name(), tool.entry().to_string().into())).collect()
    }

    fn entry(self) -> Value {
        let (description, properties, required): (&str, Value, &[&str]) = match self {
            Self::Search => (
                "Finds tools for a task. Returns names and descriptions. Describe a tool before you call it.",
                json!({
                    "query": {"type": "string", "description": "The task, in a few words."},
                    "limit": {"type": "integer", "minimum": 1, "maximum": SEARCH_RESULTS_MAX}
                }),
                &["query"],
            ),
            Self::Describe => (
                "Returns the description of a tool, the schema of its arguments, and the tool that calls it.",
                json!({"name": {"type": "string"}}),
                &["name"],
            ),
            Self::CallRead => ("Calls a tool that only reads.", call_properties(), &["name"]),
            Self::CallWrite => {
                ("Calls a tool that writes and destroys nothing.", call_properties(), &["name"])
            }
            Self::CallDestructive => {
                ("Calls a tool that may destroy something.", call_properties(), &["name"])
            }
        };
        let reads = !matches!(self, Self::CallWrite | Self::CallDestructive);
        let mut hints = json!({"readOnlyHint": reads, "openWorldHint": !matches!(self, Self::Search | Self::Describe)});
        if !reads {
            hints["destructiveHint"] = (self == Self::CallDestructive).into();
        }
        let schema = json!({"type": "object", "properties": properties, "required": required});
        json!({"name": self.name(), "description": description, "inputSchema": schema, "annotations": hints})
    }
}

fn call_properties() -> Value {
    json!({
        "name": {"type": "string", "description": "A name that search_tools returned."},
        "arguments": {"type": "object", "description": "Arguments by the schema of describe_tool."}
    })
}

/// A call of a tool that was found: its name, and its arguments as JSON.
#[derive(Debug, PartialEq, Eq)]
pub struct FoundCall {
    pub name: String,
    pub arguments: Option<Bytes>,
}

impl FoundCall {
    /// Reads the arguments of a calling tool.
    pub fn read(arguments: Option<&[u8]>) -> Result<Self, Refusal> {
        let document = parsed(arguments)?;
        let member =
            |key| document.root().unambiguous(key).map_err(|_| invalid("has a member twice"));
        let name = member("name")?.and_then(|name| name.as_str().map(|name| name.into_owned()));
        let name = name.ok_or_else(|| invalid("needs the text name"))?;
        let inner = match member("arguments")? {
            None => None,
            Some(value) if value.kind() == ValueKind::Object => {
                Some(Bytes::copy_from_slice(value.raw()))
            }
            Some(_) => return Err(invalid("has arguments that are not an object")),
        };
        Ok(Self { name, arguments: inner })
    }
}

fn parsed(arguments: Option<&[u8]>) -> Result<Document<'_>, Refusal> {
    let text = arguments.unwrap_or(b"{}");
    let limits = json::Limits::with_bytes_max(text.len());
    let document = Document::parse(text, &limits).map_err(|_| invalid("cannot be read"))?;
    if document.root().kind() == ValueKind::Object {
        Ok(document)
    } else {
        Err(invalid("must be an object"))
    }
}

fn invalid(problem: &str) -> Refusal {
    Refusal::new(ErrorKind::InvalidParams, format!("params.arguments {problem}"))
}

/// A tool as search finds it.
#[derive(Debug)]
struct FoundTool {
    target: Target,
    /// Traits as the toolset lists them.
    traits: ToolTraits,
    entry: Bytes,
    words: u32,
}

/// The tools of a snapshot by their words.
#[derive(Debug, Default)]
pub struct ToolSearch {
    tools: Vec<FoundTool>,
    by_name: BTreeMap<String, usize>,
    /// For each word, the tools that have it, with its count.
    postings: HashMap<String, Vec<(usize, u32)>>,
    words: u64,
}

impl ToolSearch {
    pub(super) fn of(backends: &BTreeMap<BackendId, std::sync::Arc<BackendLists>>) -> Self {
        let mut search = Self::default();
        for (backend, lists) in backends {
            for entry in lists.listed(ListKind::Tools) {
                search.add(backend, entry);
            }
        }
        search
    }

    fn add(&mut self, backend: &BackendId, entry: &CatalogEntry) {
        let limits = json::Limits::with_bytes_max(entry.exposed.len());
        let Ok(tape) = Tape::parse(&entry.exposed, &limits) else { return };
        let root = tape.root();
        // MCP Apps: a tool without `model` in its visibility is for the app alone.
        let visibility = root.path(&["_meta", "ui", "visibility"]);
        let is_for_model = |list: json::TapeValue<'_>| {
            list.elements().any(|one| one.as_str().as_deref() == Some("model"))
        };
        if visibility.is_some_and(|list| !is_for_model(list))
            || self.by_name.contains_key(&entry.exposed_key)
        {
            return;
        }
        let text = |key: &str| root.get(key).and_then(|value| value.as_str()).unwrap_or_default();
        let mut counts: HashMap<String, u32> = HashMap::new();
        let mut count = |text: &str, weight: u32| {
            words(text).for_each(|word| *counts.entry(word).or_default() += weight);
        };
        count(&entry.exposed_key, NAME_WEIGHT);
        count(&text("title"), TITLE_WEIGHT);
        count(&text("description"), 1);
        for argument in
            root.path(&["inputSchema", "properties"]).into_iter().flat_map(|all| all.members())
        {
            count(&argument.key, 1);
            let described = argument.value.get("description").and_then(|text| text.as_str());
            count(&described.unwrap_or_default(), 1);
        }
        let at = self.tools.len();
        let total = counts.values().sum();
        for (word, count) in counts {
            self.postings.entry(word).or_default().push((at, count));
        }
        self.words += u64::from(total);
        self.by_name.insert(entry.exposed_key.clone(), at);
        let target = Target::of_entry(backend, entry);
        let (traits, entry) = (entry.listed_traits, entry.exposed.clone());
        self.tools.push(FoundTool { target, traits, entry, words: total });
    }

    /// Returns the target of a tool, and its traits as the toolset lists them.
    pub fn target(&self, name: &str) -> Option<(&Target, ToolTraits)> {
        self.by_name.get(name).map(|&at| (&self.tools[at].target, self.tools[at].traits))
    }

    /// Returns the names of the tools that fit a query best, the best first.
    pub fn best(&self, query: &str, limit: usize) -> Vec<&str> {
        let count = self.tools.len() as f64;
        let average = (self.words as f64 / count.max(1.0)).max(1.0);
        let mut scores = vec![0.0; self.tools.len()];
        for (word, times) in wanted(query) {
            let Some(postings) = self.postings.get(&word) else { continue };
            let having = postings.len() as f64;
            let rarity = f64::from(times) * ((count - having + 0.5) / (having + 0.5)).ln_1p();
            for &(at, frequency) in postings {
                let length = f64::from(self.tools[at].words) / average;
                let frequency = f64::from(frequency);
                let share = frequency * (K1 + 1.0) / (frequency + K1 * (1.0 - B + B * length));
                scores[at] += rarity * share;
            }
        }
        let mut found: Vec<(&str, f64)> = self
            .by_name
            .iter()
            .map(|(name, at)| (name.as_str(), scores[*at]))
            .filter(|(_, score)| *score > 0.0)
            .collect();
        // Equal scores stay in the order of the names.
        found.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        found.into_iter().take(limit).map(|(name, _)| name).collect()
    }

    /// Returns the result of `search_tools`.
    pub fn search(&self, arguments: Option<&[u8]>) -> Result<Bytes, Refusal> {
        let document = parsed(arguments)?;
        let query = document.root().get("query").and_then(|query| query.as_str());
        let query =
            query.filter(|query| query.len() <= SEARCH_QUERY_BYTES_MAX).ok_or_else(|| {
                invalid(&format!("needs the text query of at most {SEARCH_QUERY_BYTES_MAX} bytes"))
            })?;
        let limit = match document.root().get("limit") {
            None => SEARCH_RESULTS,
            Some(limit) => std::str::from_utf8(limit.raw())
                .ok()
                .and_then(|text| text.parse().ok())
                .filter(|limit| (1..=SEARCH_RESULTS_MAX).contains(limit))
                .ok_or_else(|| {
                    invalid(&format!("has a limit that is not from 1 to {SEARCH_RESULTS_MAX}"))
                })?,
        };
        let tools: Vec<Value> = self
            .best(&query, limit)
            .into_iter()
            .map(|name| {
                let (entry, _) = self.shown(name);
                let mut shown = json!({"name": name});
                for member in ["title", "description"] {
                    if let Some(text) = entry.get(member) {
                        shown[member] = text.clone();
                    }
                }
                shown
            })
            .collect();
        Ok(result(&json!({"tools": tools})))
    }

    /// Returns the result of `describe_tool`.
    pub fn describe(&self, arguments: Option<&[u8]>) -> Result<Bytes, Refusal> {
        let FoundCall { name, .. } = FoundCall::read(arguments)?;
        if !self.by_name.contains_key(&name) {
            return Err(Refusal::new(ErrorKind::ToolNotFound, "no tool has the requested name"));
        }
        let (entry, traits) = self.shown(&name);
        let caller = SearchTool::caller_of(traits).name();
        Ok(result(&json!({"tool": entry, "call_with": caller})))
    }

    fn shown(&self, name: &str) -> (Value, ToolTraits) {
        let tool = &self.tools[self.by_name[name]];
        (serde_json::from_slice(&tool.entry).unwrap_or_default(), tool.traits)
    }
}

fn result(content: &Value) -> Bytes {
    let text = json!({"type": "text", "text": content.to_string()});
    json!({"content": [text], "structuredContent": content}).to_string().into()
}

/// Returns how often a query has each of its words. Each is looked up once: a query of one letter,
/// repeated, would otherwise go through the same tools hundreds of times.
fn wanted(query: &str) -> BTreeMap<String, u32> {
    let mut wanted = BTreeMap::new();
    words(query).for_each(|word| *wanted.entry(word).or_default() += 1);
    wanted
}

/// Returns the words of a text in lower case, parts of `snake_case` and `camelCase` apart, without a
/// plural `s`.
fn words(text: &str) -> impl Iterator<Item = String> {
    let mut words: Vec<String> = Vec::new();
    let (mut word, mut was_lower) = (String::new(), false);
    for char in text.chars().chain([' ']) {
        let is_break = !char.is_alphanumeric() || (char.is_uppercase() && was_lower);
        if is_break && !word.is_empty() {
            let long = word.len() > 3 && word.ends_with('s') && !word.ends_with("ss");
            word.truncate(word.len() - usize::from(long));
            words.push(std::mem::take(&mut word));
        }
        if char.is_alphanumeric() {
            word.extend(char.to_lowercase());
        }
        was_lower = char.is_lowercase() || char.is_numeric();
    }
    words.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOLS: [(&str, &str); 20] = [
        ("read_file", "Read the complete contents of a file from disk"),
        ("write_file", "Create a file or overwrite it with new content"),
        ("list_directory", "List files and folders in a directory"),
        ("move_file", "Rename a file or move it to another place"),
        ("search_code", "Search source code for a pattern"),
        ("create_issue", "Open a new issue in a repository"),
        ("list_issues", "List the issues of a repository"),
        ("merge_pull_request", "Merge a pull request"),
        ("create_pull_request", "Open a pull request from a branch"),
        ("send_email", "Send an e-mail message to recipients"),
        ("searchInbox", "Find messages in the mailbox"),
        ("create_event", "Add an appointment to the calendar"),
        ("list_events", "Show upcoming appointments of the calendar"),
        ("get_forecast", "Weather forecast for a city"),
        ("get_alerts", "Active weather warnings for a region"),
        ("run_query", "Run an SQL query against the database"),
        ("describe_table", "Columns and types of a database table"),
        ("translate", "Translate text into another language"),
        ("convert_currency", "Convert an amount between currencies"),
        ("resize_image", "Change the size of a picture"),
    ];

    /// Queries, and the tool that each needs.
    const QUERIES: [(&str, &str); 12] = [
        ("show me the contents of a file", "read_file"),
        ("rename file", "move_file"),
        ("find a string in the source code", "search_code"),
        ("report a bug as an issue", "create_issue"),
        ("merge the pull request", "merge_pull_request"),
        ("mail to a customer", "send_email"),
        ("inbox messages", "searchInbox"),
        ("put a meeting into my calendar", "create_event"),
        ("weather in Paris", "get_forecast"),
        ("SQL over the database", "run_query"),
        ("how many euros is one dollar, currency", "convert_currency"),
        ("make an image smaller, size", "resize_image"),
    ];

    fn search() -> ToolSearch {
        let id = BackendId::parse("b").unwrap();
        let tools: Vec<Value> = TOOLS
            .iter()
            .map(|(name, text)| json!({"name": name, "description": text, "inputSchema": {"type": "object"}}))
            .chain([json!({"name": "app_only", "inputSchema": {}, "description": "weather weather",
                "_meta": {"ui": {"visibility": ["app"]}}})])
            .collect();
        let page = json!({"tools": tools}).to_string();
        let page = super::super::read_page(
            ListKind::Tools,
            &id,
            super::super::TaskHost::Backend,
            page.as_bytes(),
        );
        let mut search = ToolSearch::default();
        page.unwrap().entries.iter().for_each(|entry| search.add(&id, entry));
        search
    }

    #[test]
    fn the_needed_tool_is_among_the_first_five() {
        let search = search();
        let found = |(query, tool): &&(&str, &str)| {
            search.best(query, 5).contains(&format!("b__{tool}").as_str())
        };
        let missed: Vec<_> = QUERIES.iter().filter(|one| !found(one)).collect();
        assert!(missed.is_empty(), "{missed:?}");
        assert_eq!(search.best("weather", 10).len(), 2, "an app's own tool is not for the model");
        assert!(search.best("xyzzy", 5).is_empty());
    }

    #[test]
    fn each_word_of_a_query_is_looked_up_once() {
        let query = "a ".repeat(SEARCH_QUERY_BYTES_MAX / 2) + "File";
        let wanted: Vec<(String, u32)> = wanted(&query).into_iter().collect();
        assert_eq!(wanted, [("a".to_owned(), 512), ("file".to_owned(), 1)]);
        let search = search();
        assert_eq!(search.best("file file file", 5), search.best("file", 5));
    }

    #[test]
    fn search_text_is_split_into_words() {
        let all: Vec<String> = words("listIssues of_a SSH2key, Größe").collect();
        assert_eq!(all, ["list", "issue", "of", "a", "ssh2key", "größe"]);
    }

    #[test]
    fn arguments_of_the_five_tools_are_checked() {
        let search = search();
        for bad in [
            "{}",
            r#"{"query":1}"#,
            r#"{"query":"a","limit":0}"#,
            r#"{"query":"a","limit":51}"#,
            "[]",
            "{",
        ] {
            assert!(search.search(Some(bad.as_bytes())).is_err(), "{bad}");
        }
        for bad in
            ["{}", r#"{"name":1}"#, r#"{"name":"a","arguments":[]}"#, r#"{"name":"a","Name":"b"}"#]
        {
            assert!(FoundCall::read(Some(bad.as_bytes())).is_err(), "{bad}");
        }
        let described = search.describe(Some(br#"{"name":"b__translate"}"#)).unwrap();
        let described: Value = serde_json::from_slice(&described).unwrap();
        assert_eq!(described["structuredContent"]["call_with"], "call_tool_destructive");
        assert!(search.describe(Some(br#"{"name":"b__app_only"}"#)).is_err());
    }
}
