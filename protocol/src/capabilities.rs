//! What each side declared it can do, and what may therefore be sent to it.
//!
//! The rules ask `ClientCapabilities` before a backend's request goes to a client, and `ServerCapabilities` before a
//! client's request goes to a backend. The objects are kept as sent, because unknown members belong to the peers.

mod downgrade;
mod questions;

use std::collections::BTreeMap;

use bytes::Bytes;

use self::questions::{ambiguous, asks_for_several, contents};
use crate::envelope::Message;
use crate::error::{ErrorKind, Refusal};
use crate::json::{Document, Limits, Tape, TapeValue, Value, ValueKind, quote_into};
use crate::method::{ClientCapability, Method, ServerCapability};
use crate::stateless::EXTENSION_TASKS;
use crate::version::Version;

/// What a client declared in `initialize`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCapabilities {
    raw: Bytes,
    /// `roots`
    pub roots: bool,
    /// `roots.listChanged`
    pub roots_list_changed: bool,
    /// `sampling`
    pub sampling: bool,
    /// `sampling.tools`
    pub sampling_tools: bool,
    /// `sampling.context`
    pub sampling_context: bool,
    /// `elicitation` with `form`, or with neither mode
    pub elicitation_form: bool,
    /// `elicitation.url`
    pub elicitation_url: bool,
    /// `tasks`
    pub tasks: bool,
    /// `tasks.list`
    pub tasks_list: bool,
    /// `tasks.cancel`
    pub tasks_cancel: bool,
    /// `tasks.requests.sampling.createMessage`
    pub tasks_sampling: bool,
    /// `tasks.requests.elicitation.create`
    pub tasks_elicitation: bool,
    /// `extensions["io.modelcontextprotocol/tasks"]`, of 2026-07-28
    pub extension_tasks: bool,
}

impl ClientCapabilities {
    /// Reads the `capabilities` object of a client.
    pub fn parse(text: &[u8]) -> Result<Self, Refusal> {
        if text == b"{}" {
            return Ok(Self::none()); // what most requests say that say it again each time
        }
        let tape = tape_of_object(text)?;
        let root = tape.root();
        let has = |path: &[&str]| declared(root, path);
        let url = has(&["elicitation", "url"]);
        Ok(Self {
            raw: Bytes::copy_from_slice(text),
            roots: has(&["roots"]),
            roots_list_changed: has(&["roots", "listChanged"]),
            sampling: has(&["sampling"]),
            sampling_tools: has(&["sampling", "tools"]),
            sampling_context: has(&["sampling", "context"]),
            // MCP 2025-11-25, Elicitation: an empty object means form mode only.
            elicitation_form: has(&["elicitation", "form"]) || (has(&["elicitation"]) && !url),
            elicitation_url: url,
            tasks: has(&["tasks"]),
            tasks_list: has(&["tasks", "list"]),
            tasks_cancel: has(&["tasks", "cancel"]),
            tasks_sampling: has(&["tasks", "requests", "sampling", "createMessage"]),
            tasks_elicitation: has(&["tasks", "requests", "elicitation", "create"]),
            extension_tasks: root
                .path(&["extensions", EXTENSION_TASKS])
                .is_some_and(|value| value.kind() == ValueKind::Object),
        })
    }

    /// A client that can do nothing.
    pub fn none() -> Self {
        Self {
            raw: Bytes::from_static(b"{}"),
            roots: false,
            roots_list_changed: false,
            sampling: false,
            sampling_tools: false,
            sampling_context: false,
            elicitation_form: false,
            elicitation_url: false,
            tasks: false,
            tasks_list: false,
            tasks_cancel: false,
            tasks_sampling: false,
            tasks_elicitation: false,
            extension_tasks: false,
        }
    }

    /// The object as sent.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// Same for clients that declared the same in the same words, whichever process computes it.
    pub fn fingerprint(&self) -> u32 {
        fnv1a(&self.raw)
    }

    /// Whether any server request but `ping` could be sent to it.
    pub fn can_answer(&self) -> bool {
        self.roots || self.sampling || self.elicitation()
    }

    /// Whether any mode of elicitation is declared.
    pub fn elicitation(&self) -> bool {
        self.elicitation_form || self.elicitation_url
    }

    /// Whether it declared what a method of the server needs.
    pub fn has(&self, capability: ClientCapability) -> bool {
        match capability {
            ClientCapability::Roots => self.roots,
            ClientCapability::RootsListChanged => self.roots_list_changed,
            ClientCapability::Sampling => self.sampling,
            ClientCapability::Elicitation => self.elicitation(),
            ClientCapability::ElicitationUrl => self.elicitation_url,
            ClientCapability::Tasks => self.tasks,
            ClientCapability::TasksList => self.tasks_list,
            ClientCapability::TasksCancel => self.tasks_cancel,
        }
    }

    /// Whether this request or notification of a server may be sent to the client, which speaks `version`.
    pub fn permits(&self, request: &Message, version: Version) -> Result<(), Refusal> {
        let method = request.method;
        if method == Method::Unknown || !method.from_server() {
            return Err(Refusal::new(ErrorKind::MethodNotFound, "servers do not send this method"));
        }
        if !method.served(version) {
            let message = format!(
                "{} does not exist in the client's protocol version {version}",
                method.name()
            );
            return Err(Refusal::new(ErrorKind::CapabilityMissing, message));
        }
        if let Some(capability) = method.info().client_capability
            && !self.has(capability)
            && !about_senders_task(method)
        {
            return Err(missing("client", capability.name()));
        }
        match method {
            Method::SamplingCreateMessage => self.permits_sampling(request, version),
            Method::ElicitationCreate => self.permits_elicitation(request, version),
            _ => Ok(()),
        }
    }

    // MCP 2025-11-25, Sampling: `tools` and `toolChoice` need `sampling.tools`; content arrays came with them.
    fn permits_sampling(&self, request: &Message, version: Version) -> Result<(), Refusal> {
        let Some(text) = request.bytes(request.params) else {
            return Ok(()); // the client will say what it misses
        };
        let document = parse_object(text)?;
        let params = document.root();
        if (params.get("tools").is_some() || params.get("toolChoice").is_some())
            && !(self.sampling_tools && version.sampling_tools())
        {
            return Err(Refusal::new(
                ErrorKind::InvalidParams,
                "the client did not declare sampling.tools",
            ));
        }
        let contents = contents(params).map_err(ambiguous)?;
        // An array of one block is told as that block.
        let several = |content: Value<'_>| {
            content.kind() == ValueKind::Array && content.elements().count() != 1
        };
        if !version.sampling_tools() && contents.iter().any(|content| several(*content)) {
            let message = format!(
                "the client's protocol version {version} has no content arrays in sampling"
            );
            return Err(Refusal::new(ErrorKind::InvalidParams, message));
        }
        let blocks = || {
            contents.iter().flat_map(|content| std::iter::once(*content).chain(content.elements()))
        };
        let kinds: Result<Vec<_>, _> = blocks().map(|block| block.unambiguous("type")).collect();
        let is_audio = |kind: &Option<Value<'_>>| {
            kind.and_then(|kind| kind.as_str()).as_deref() == Some("audio")
        };
        if kinds.map_err(ambiguous)?.iter().any(is_audio) && !version.audio() {
            return Err(Refusal::new(
                ErrorKind::InvalidParams,
                format!("the client's protocol version {version} has no audio"),
            ));
        }
        Ok(())
    }

    // MCP 2025-11-25, Elicitation: no mode means form; an undeclared mode is answered with -32602.
    fn permits_elicitation(&self, request: &Message, version: Version) -> Result<(), Refusal> {
        let mode = request.text(request.fields.mode);
        let allowed = match (request.fields.mode, mode.as_deref()) {
            (None, _) | (_, Some("form")) => self.elicitation_form,
            (_, Some("url")) => self.elicitation_url && version.elicitation_url(),
            _ => false,
        };
        if !allowed {
            return Err(Refusal::new(
                ErrorKind::InvalidParams,
                "the client did not declare this elicitation mode",
            ));
        }
        // Richer forms came with URLs.
        if !version.elicitation_url() && request.bytes(request.params).is_some_and(asks_for_several)
        {
            let message = format!(
                "the client's protocol version {version} has no choice of several in a form"
            );
            return Err(Refusal::new(ErrorKind::InvalidParams, message));
        }
        Ok(())
    }
}

/// What a server declared in its answer to `initialize`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerCapabilities {
    raw: Bytes,
    /// `tools`
    pub tools: bool,
    /// `tools.listChanged`
    pub tools_list_changed: bool,
    /// `prompts`
    pub prompts: bool,
    /// `prompts.listChanged`
    pub prompts_list_changed: bool,
    /// `resources`
    pub resources: bool,
    /// `resources.subscribe`
    pub resources_subscribe: bool,
    /// `resources.listChanged`
    pub resources_list_changed: bool,
    /// `logging`
    pub logging: bool,
    /// `completions`
    pub completions: bool,
    /// `tasks`
    pub tasks: bool,
    /// `tasks.list`
    pub tasks_list: bool,
    /// `tasks.cancel`
    pub tasks_cancel: bool,
    /// `tasks.requests.tools.call`
    pub tasks_tools_call: bool,
}

/// One of the three lists that can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ListKind {
    /// `tools/list`
    Tools,
    /// `resources/list` and `resources/templates/list`
    Resources,
    /// `prompts/list`
    Prompts,
}

impl ListKind {
    /// The notification that says the list changed.
    pub const fn notification(self) -> Method {
        match self {
            Self::Tools => Method::ToolsListChanged,
            Self::Resources => Method::ResourcesListChanged,
            Self::Prompts => Method::PromptsListChanged,
        }
    }
}

impl ServerCapabilities {
    /// Reads the `capabilities` object of a server.
    pub fn parse(text: &[u8]) -> Result<Self, Refusal> {
        Ok(Self::of(tape_of_object(text)?.root()))
    }

    /// Reads the same as a part of what the server sent.
    pub(crate) fn of(object: TapeValue<'_>) -> Self {
        let has = |path: &[&str]| declared(object, path);
        Self {
            raw: Bytes::copy_from_slice(object.raw()),
            tools: has(&["tools"]),
            tools_list_changed: has(&["tools", "listChanged"]),
            prompts: has(&["prompts"]),
            prompts_list_changed: has(&["prompts", "listChanged"]),
            resources: has(&["resources"]),
            resources_subscribe: has(&["resources", "subscribe"]),
            resources_list_changed: has(&["resources", "listChanged"]),
            logging: has(&["logging"]),
            completions: has(&["completions"]),
            tasks: has(&["tasks"]),
            tasks_list: has(&["tasks", "list"]),
            tasks_cancel: has(&["tasks", "cancel"]),
            tasks_tools_call: has(&["tasks", "requests", "tools", "call"]),
        }
    }

    /// A server that offers nothing.
    pub fn none() -> Self {
        Self {
            raw: Bytes::from_static(b"{}"),
            tools: false,
            tools_list_changed: false,
            prompts: false,
            prompts_list_changed: false,
            resources: false,
            resources_subscribe: false,
            resources_list_changed: false,
            logging: false,
            completions: false,
            tasks: false,
            tasks_list: false,
            tasks_cancel: false,
            tasks_tools_call: false,
        }
    }

    /// The object as sent, or as merged.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// The same, shared.
    pub fn to_json(&self) -> Bytes {
        self.raw.clone()
    }

    /// The lists whose changes it announces.
    pub fn changing_lists(&self) -> impl Iterator<Item = ListKind> {
        let lists = [
            (self.tools_list_changed, ListKind::Tools),
            (self.resources_list_changed, ListKind::Resources),
            (self.prompts_list_changed, ListKind::Prompts),
        ];
        lists.into_iter().filter_map(|(announced, list)| announced.then_some(list))
    }

    /// Whether it declared what a method of the client needs.
    pub fn has(&self, capability: ServerCapability) -> bool {
        match capability {
            ServerCapability::Tools => self.tools,
            ServerCapability::ToolsListChanged => self.tools_list_changed,
            ServerCapability::Prompts => self.prompts,
            ServerCapability::PromptsListChanged => self.prompts_list_changed,
            ServerCapability::Resources => self.resources,
            ServerCapability::ResourcesSubscribe => self.resources_subscribe,
            ServerCapability::ResourcesListChanged => self.resources_list_changed,
            ServerCapability::Logging => self.logging,
            ServerCapability::Completions => self.completions,
            ServerCapability::Tasks => self.tasks,
            ServerCapability::TasksList => self.tasks_list,
            ServerCapability::TasksCancel => self.tasks_cancel,
        }
    }

    /// Whether a client's request or notification may be sent to a backend that declared this. To one that speaks
    /// 2026-07-28 its link says the same in other words, so all that was there before may be.
    pub fn permits(&self, method: Method, backend_version: Version) -> Result<(), Refusal> {
        let backend_version = backend_version.min(Version::LATEST_WITH_SESSIONS);
        if method == Method::Unknown || !method.from_client() {
            return Err(Refusal::new(ErrorKind::MethodNotFound, "clients do not send this method"));
        }
        if !method.served(backend_version) {
            let message = format!(
                "{} does not exist in the backend's protocol version {backend_version}",
                method.name()
            );
            return Err(Refusal::new(ErrorKind::CapabilityMissing, message));
        }
        match method.info().server_capability {
            // The method is older than its capability.
            Some(ServerCapability::Completions) if !backend_version.completions_capability() => {
                Ok(())
            }
            Some(_) if about_senders_task(method) => Ok(()),
            Some(capability) if !self.has(capability) => Err(missing("server", capability.name())),
            _ => Ok(()),
        }
    }

    /// What several backends offer together. Members we do not know cannot be merged and are left out, except in
    /// `experimental`, where the first backend to name a feature describes it.
    pub fn merge<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let mut merged = Self::none();
        let mut experimental = BTreeMap::new();
        for one in all {
            merged.tools |= one.tools;
            merged.tools_list_changed |= one.tools_list_changed;
            merged.prompts |= one.prompts;
            merged.prompts_list_changed |= one.prompts_list_changed;
            merged.resources |= one.resources;
            merged.resources_subscribe |= one.resources_subscribe;
            merged.resources_list_changed |= one.resources_list_changed;
            merged.logging |= one.logging;
            merged.completions |= one.completions;
            merged.tasks |= one.tasks;
            merged.tasks_list |= one.tasks_list;
            merged.tasks_cancel |= one.tasks_cancel;
            merged.tasks_tools_call |= one.tasks_tools_call;
            for (key, value) in one.experimental() {
                experimental.entry(key).or_insert(value);
            }
        }
        merged.raw = merged.render(&experimental);
        merged
    }

    fn experimental(&self) -> Vec<(String, Vec<u8>)> {
        let Ok(document) = parse_object(&self.raw) else {
            return Vec::new(); // it was read before, so this does not happen
        };
        let features = document.root().get("experimental");
        features.map_or_else(Vec::new, |features| {
            features
                .members()
                .map(|member| (member.key.into_owned(), member.value.raw().to_vec()))
                .collect()
        })
    }

    fn render(&self, experimental: &BTreeMap<String, Vec<u8>>) -> Bytes {
        let mut root = ObjectWriter::new();
        if !experimental.is_empty() {
            let mut features = ObjectWriter::new();
            for (key, value) in experimental {
                features.member(key, value);
            }
            root.member("experimental", &features.close());
        }
        root.flag("logging", self.logging, &[]);
        root.flag("completions", self.completions, &[]);
        root.flag("prompts", self.prompts, &[("listChanged", self.prompts_list_changed)]);
        let resources =
            [("subscribe", self.resources_subscribe), ("listChanged", self.resources_list_changed)];
        root.flag("resources", self.resources, &resources);
        root.flag("tools", self.tools, &[("listChanged", self.tools_list_changed)]);
        if self.tasks {
            let mut tasks = ObjectWriter::new();
            tasks.flag("list", self.tasks_list, &[]);
            tasks.flag("cancel", self.tasks_cancel, &[]);
            if self.tasks_tools_call {
                tasks.member("requests", b"{\"tools\":{\"call\":{}}}");
            }
            root.member("tasks", &tasks.close());
        }
        root.close().into()
    }
}

/// Writes one JSON object member by member.
struct ObjectWriter {
    out: Vec<u8>,
}

impl ObjectWriter {
    fn new() -> Self {
        Self { out: vec![b'{'] }
    }

    fn member(&mut self, key: &str, value: &[u8]) {
        if self.out.len() > 1 {
            self.out.push(b',');
        }
        quote_into(&mut self.out, key);
        self.out.push(b':');
        self.out.extend_from_slice(value);
    }

    /// Writes `key` when it is on, with those of its own members that are on.
    fn flag(&mut self, key: &str, on: bool, inner: &[(&str, bool)]) {
        if !on {
            return;
        }
        let mut value = Self::new();
        for (name, _) in inner.iter().filter(|(_, on)| *on) {
            value.member(name, b"true");
        }
        self.member(key, &value.close());
    }

    fn close(mut self) -> Vec<u8> {
        self.out.push(b'}');
        self.out
    }
}

fn parse_object(text: &[u8]) -> Result<Document<'_>, Refusal> {
    let limits = Limits { bytes_max: text.len(), ..Limits::default() };
    let document = Document::parse(text, &limits)
        .map_err(|error| Refusal::new(ErrorKind::InvalidParams, error.to_string()))?;
    if document.root().kind() != ValueKind::Object {
        return Err(Refusal::new(ErrorKind::InvalidParams, "must be an object"));
    }
    Ok(document)
}

fn tape_of_object(text: &[u8]) -> Result<Tape<'_>, Refusal> {
    let limits = Limits { bytes_max: text.len(), ..Limits::default() };
    let tape = Tape::parse(text, &limits)
        .map_err(|error| Refusal::new(ErrorKind::InvalidParams, error.to_string()))?;
    match tape.root().kind() {
        ValueKind::Object => Ok(tape),
        _ => Err(Refusal::new(ErrorKind::InvalidParams, "must be an object")),
    }
}

/// A capability is an object or `true`; `false` and `null` take it back.
fn declared(root: TapeValue<'_>, path: &[&str]) -> bool {
    root.path(path).is_some_and(|value| !value.is_null() && value.as_bool() != Some(false))
}

// MCP 2025-11-25, Tasks: whoever runs a task reports on it, so its own capability counts, not the reader's.
fn about_senders_task(method: Method) -> bool {
    method == Method::TasksStatus
}

fn missing(side: &str, capability: &str) -> Refusal {
    Refusal::new(
        ErrorKind::CapabilityMissing,
        format!("the {side} did not declare the capability {capability}"),
    )
    .with("capability", capability)
}

/// FNV-1a: short, and the same in every process and build.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
