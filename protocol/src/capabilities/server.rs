//! What a server declared.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    about_senders_task,
    extensions::{Extensions, NULL},
    missing, parse_object,
};
use crate::{
    error::{ErrorKind, Refusal},
    json::{Limits, Tape, TapeValue, ValueKind, quote_into},
    method::{Method, ServerCapability},
    version::Version,
};

/// Capabilities that a server declared in its answer to `initialize`.
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
    /// `extensions`, except for the one of tasks
    extensions: Extensions,
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
    /// Returns the notification that announces a change of the list.
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

    /// Reads the object from a part of the server's answer.
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
            extensions: Extensions::of(object),
        }
    }

    /// Returns the capabilities of a server that offers nothing.
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
            extensions: Extensions::default(),
        }
    }

    /// Returns the object as sent, or as merged.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// Returns the object as a shared buffer.
    pub fn to_json(&self) -> Bytes {
        self.raw.clone()
    }

    /// Returns whether the server declared the capability that a client's method needs.
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

    /// Refuses a client's request or notification that a backend with these capabilities must not
    /// be sent. A backend of 2026-07-28 is treated as one of the last revision with sessions,
    /// because its link translates.
    pub fn permits(&self, method: Method, backend_version: Version) -> Result<(), Refusal> {
        let backend_version = backend_version.min(Version::LATEST_WITH_SESSIONS);
        if method == Method::Unknown || !method.from_client() {
            return Err(Refusal::new(ErrorKind::MethodNotFound, "clients do not send this method"));
        }
        if !method.exists_in(backend_version) {
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

    /// Returns the union of the capabilities of several backends. Unknown members cannot be merged
    /// and are left out. In `experimental` and `extensions`, the first backend that names a feature
    /// describes it. `null` describes nothing.
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
            merged.extensions.add(&one.extensions);
            for (key, value) in one.experimental() {
                let known = experimental.entry(key).or_insert_with(|| NULL.to_vec());
                if *known == NULL {
                    *known = value;
                }
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
        if let Some(extensions) = self.extensions.to_json() {
            root.member("extensions", &extensions);
        }
        root.close().into()
    }
}

/// Writer of one JSON object, member by member.
pub(super) struct ObjectWriter {
    out: Vec<u8>,
}

impl ObjectWriter {
    pub(super) fn new() -> Self {
        Self { out: vec![b'{'] }
    }

    pub(super) fn member(&mut self, key: &str, value: &[u8]) {
        if self.out.len() > 1 {
            self.out.push(b',');
        }
        quote_into(&mut self.out, key);
        self.out.push(b':');
        self.out.extend_from_slice(value);
    }

    /// Writes `key` if it is on, with those of its own members that are on.
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

    pub(super) fn close(mut self) -> Vec<u8> {
        self.out.push(b'}');
        self.out
    }
}

pub(super) fn tape_of_object(text: &[u8]) -> Result<Tape<'_>, Refusal> {
    let limits = Limits::with_bytes_max(text.len());
    let tape = Tape::parse(text, &limits)
        .map_err(|error| Refusal::new(ErrorKind::InvalidParams, error.to_string()))?;
    match tape.root().kind() {
        ValueKind::Object => Ok(tape),
        _ => Err(Refusal::new(ErrorKind::InvalidParams, "must be an object")),
    }
}

/// Returns whether the capability is declared: an object or `true`. `false` and `null` withdraw it.
pub(super) fn declared(root: TapeValue<'_>, path: &[&str]) -> bool {
    root.path(path).is_some_and(|value| !value.is_null() && value.as_bool() != Some(false))
}
