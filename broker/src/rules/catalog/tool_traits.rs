//! What tools say of themselves that matters for carrying them out.

use bytes::Bytes;
use protocol::{
    json::{self, TapeValue, ValueKind},
    splice::Splice,
};

/// Whether a tool runs as a task (MCP 2025-11-25, Tasks: Tool-Level Negotiation).
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

/// What a tool says of itself that matters for carrying it out as a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolTraits {
    pub task_support: TaskSupport,
    /// `annotations.readOnlyHint`
    pub read_only: bool,
    /// `annotations.idempotentHint`
    pub idempotent: bool,
}

impl Default for ToolTraits {
    /// A tool of which nothing is known.
    fn default() -> Self {
        Self { task_support: TaskSupport::Optional, read_only: false, idempotent: false }
    }
}

impl ToolTraits {
    pub(super) fn of(entry: TapeValue<'_>) -> Self {
        let hint = |name: &str| {
            entry.path(&["annotations", name]).and_then(|value| value.as_bool()) == Some(true)
        };
        Self {
            task_support: TaskSupport::of(entry),
            read_only: hint("readOnlyHint"),
            idempotent: hint("idempotentHint"),
        }
    }
}

/// Who carries out a call that is to be a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskHost {
    /// The backend does, for the tools it names; or nobody.
    Backend,
    /// The backend knows no tasks: the broker does, so each of its tools can be one.
    Broker,
}

/// The tool as one that may be run as a task; `None` for one that forbids it. "Required" means nothing from a backend that
/// has no tasks (MCP 2025-11-25, Tasks: Tool-Level Negotiation).
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
            Some(said) if said.as_str().as_deref() == Some("forbidden") => return None,
            Some(said) => splice.replace(local(said), b"\"optional\"".as_slice()),
            None => splice.set_member(local(execution), None, "taskSupport", b"\"optional\""),
        },
        None if entry.get("execution").is_some() => return None, // not what it should be, and left alone
        None => {
            splice.set_member(local(entry), None, "execution", b"{\"taskSupport\":\"optional\"}")
        }
    };
    Some(splice.finish())
}
