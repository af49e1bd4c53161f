//! The capabilities that each side declared, and the messages they permit.
//!
//! The broker checks `ClientCapabilities` before it sends a backend's request to a client, and
//! `ServerCapabilities` before it sends a client's request to a backend. The objects are kept as
//! sent, because unknown members belong to the peers.

mod downgrade;
mod extensions;
mod questions;
mod server;

use bytes::Bytes;

use self::extensions::Extensions;
use self::questions::{ambiguous, contents, has_array_property};
pub use self::server::{ListKind, ServerCapabilities};
use self::server::{declared, tape_of_object};
use crate::envelope::Message;
use crate::error::{ErrorKind, Refusal};
use crate::json::{Document, Limits, Value, ValueKind};
use crate::method::{ClientCapability, Method};
use crate::stateless::EXTENSION_TASKS;
use crate::version::Version;

/// Capabilities that a client declared in `initialize`.
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
    /// Further `extensions`.
    extensions: Extensions,
}

impl ClientCapabilities {
    /// Reads the `capabilities` object of a client.
    pub fn parse(text: &[u8]) -> Result<Self, Refusal> {
        if text == b"{}" {
            return Ok(Self::none()); // nearly all requests without a session
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
            extensions: Extensions::of(root),
        })
    }

    /// Returns the capabilities of a client that declares none.
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
            extensions: Extensions::default(),
        }
    }

    /// Returns the object as sent.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// Returns a hash of the declared object. It is the same in every process for equal texts.
    pub fn fingerprint(&self) -> u32 {
        fnv1a(&self.raw)
    }

    /// Returns the hash of the extensions that the broker passes on. 0: there are none.
    pub fn extensions_fingerprint(&self) -> u32 {
        self.extensions.to_json().map_or(0, |text| fnv1a(&text))
    }

    /// Returns whether the client declared extensions that the broker passes on.
    pub fn has_extensions(&self) -> bool {
        !self.extensions.is_empty()
    }

    /// Returns whether the client can be sent any server request except `ping`.
    pub fn can_answer(&self) -> bool {
        self.roots || self.sampling || self.elicitation()
    }

    /// Returns whether the client declared any mode of elicitation.
    pub fn elicitation(&self) -> bool {
        self.elicitation_form || self.elicitation_url
    }

    /// Returns whether the client declared the capability that a server's method needs.
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

    /// Refuses a server's request or notification that a client of this `version` must not be sent.
    pub fn permits(&self, request: &Message, version: Version) -> Result<(), Refusal> {
        let method = request.method;
        if method == Method::Unknown || !method.from_server() {
            return Err(Refusal::new(ErrorKind::MethodNotFound, "servers do not send this method"));
        }
        if !method.exists_in(version) {
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
            return Ok(()); // the client reports what is missing
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
        // `only_block` turns an array of one block into that block for these revisions.
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
        // Multiple choice in forms exists since the revision that added URLs.
        if !version.elicitation_url()
            && request.bytes(request.params).is_some_and(has_array_property)
        {
            let message =
                format!("the client's protocol version {version} has no multiple choice in forms");
            return Err(Refusal::new(ErrorKind::InvalidParams, message));
        }
        Ok(())
    }
}

fn parse_object(text: &[u8]) -> Result<Document<'_>, Refusal> {
    let limits = Limits::with_bytes_max(text.len());
    let document = Document::parse(text, &limits)
        .map_err(|error| Refusal::new(ErrorKind::InvalidParams, error.to_string()))?;
    if document.root().kind() != ValueKind::Object {
        return Err(Refusal::new(ErrorKind::InvalidParams, "must be an object"));
    }
    Ok(document)
}

// MCP 2025-11-25, Tasks: the party that runs a task reports on it. Its own capability counts here,
// not the reader's.
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

/// Computes the FNV-1a hash, which is short and the same in every process and build.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
