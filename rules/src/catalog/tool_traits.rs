//! Annotations of tools that affect how the broker runs them.

use bytes::Bytes;
use protocol::{
    json::{self, TapeValue, ValueKind},
    splice::Splice,
};

use super::{CatalogEntry, ToolIdentity};
use crate::exposure;

/// Task support of a tool (MCP 2025-11-25, Tasks: Tool-Level Negotiation).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskSupport {
    Forbidden,
    Optional,
    Required,
}

impl TaskSupport {
    pub(super) fn of(entry: TapeValue<'_>) -> Self {
        match entry.path(&["execution", "taskSupport"]).and_then(|value| value.as_str()).as_deref()
        {
            Some("optional") => TaskSupport::Optional,
            Some("required") => TaskSupport::Required,
            _ => TaskSupport::Forbidden,
        }
    }
}

/// Annotations of a tool that affect how the broker runs it and who may call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolTraits {
    pub task_support: TaskSupport,
    /// `annotations.readOnlyHint`
    pub read_only: bool,
    /// `annotations.idempotentHint`
    pub idempotent: bool,
    /// `annotations.destructiveHint` is not false.
    pub destructive: bool,
    /// `annotations.openWorldHint` is not false.
    pub open_world: bool,
    /// True if `_meta` links a user interface (MCP Apps).
    pub has_ui: bool,
    /// True if apps may call the tool: `_meta.ui.visibility` is absent or includes `app`.
    pub is_app_visible: bool,
}

impl Default for ToolTraits {
    /// Returns the traits of an unknown tool.
    fn default() -> Self {
        Self {
            task_support: TaskSupport::Optional,
            read_only: false,
            idempotent: false,
            destructive: true,
            open_world: true,
            has_ui: false,
            is_app_visible: true,
        }
    }
}

impl ToolTraits {
    pub(super) fn of(entry: TapeValue<'_>) -> Self {
        let given =
            |name: &str| entry.path(&["annotations", name]).and_then(|value| value.as_bool());
        let hint = |name: &str| given(name) == Some(true);
        let visibility = entry.path(&["_meta", "ui", "visibility"]);
        let is_app = |who: TapeValue<'_>| who.as_str().as_deref() == Some("app");
        Self {
            task_support: TaskSupport::of(entry),
            read_only: hint("readOnlyHint"),
            idempotent: hint("idempotentHint"),
            destructive: given("destructiveHint") != Some(false),
            open_world: given("openWorldHint") != Some(false),
            has_ui: entry
                .get("_meta")
                .and_then(|meta| exposure::ui_links(meta).ok())
                .is_some_and(|mut links| links.next().is_some()),
            is_app_visible: visibility.is_none_or(|listed| listed.elements().any(is_app)),
        }
    }

    /// Returns whether a second call of the tool has no further effect.
    fn is_repeatable(self) -> bool {
        self.read_only || self.idempotent
    }
}

/// A listed tool, as the decisions about its calls need it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToolFacts {
    /// Traits as the backend declares them.
    pub(crate) traits: ToolTraits,
    /// Whether a second call has no further effect, by the hints that the endpoint lists.
    pub(crate) is_repeatable: bool,
    pub(super) identity: ToolIdentity,
}

impl ToolFacts {
    pub(super) fn of(tool: &CatalogEntry) -> Self {
        let is_repeatable = tool.listed_traits.is_repeatable();
        Self { traits: tool.traits, is_repeatable, identity: tool.identity() }
    }
}

/// The side that runs a call as a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskHost {
    /// The backend, for tools with task support. Other tools do not run as tasks.
    Backend,
    /// The broker, for every tool, because the backend does not support tasks.
    Broker,
}

/// Returns the tool with task support. `None` if the tool forbids it. "Required" has no meaning
/// from a backend without tasks (MCP 2025-11-25, Tasks: Tool-Level Negotiation).
pub(super) fn with_task_support(entry: TapeValue<'_>) -> Option<Bytes> {
    let native = Bytes::copy_from_slice(entry.raw());
    let base = entry.span().start;
    let local = |value: TapeValue<'_>| json::Span {
        start: value.span().start - base,
        end: value.span().end - base,
    };
    let mut splice = Splice::new(&native);
    match entry.get("execution").filter(|execution| execution.kind() == ValueKind::Object) {
        Some(execution) => match execution.get("taskSupport") {
            Some(value) if value.as_str().as_deref() == Some("forbidden") => return None,
            Some(value) => splice.replace(local(value), b"\"optional\"".as_slice()),
            None => splice.set_member(local(execution), None, "taskSupport", b"\"optional\""),
        },
        None if entry.get("execution").is_some() => return None, // not what it should be, and left alone
        None => {
            splice.set_member(local(entry), None, "execution", b"{\"taskSupport\":\"optional\"}")
        }
    };
    Some(splice.finish())
}
