//! What a command of operators says: the broker's answer as JSON, or told to people.

use serde_json::Value;

use super::{
    args::OutputOptions,
    table::{self, Column},
};

/// What to tell: the answer, and a remark beside it.
pub(super) struct CommandOutput {
    pub(super) out: String,
    pub(super) note: String,
}

pub(super) fn list(
    answer: Value,
    member: &str,
    columns: &[Column],
    output: &OutputOptions,
) -> CommandOutput {
    said(&answer, output, |answer| table::rows(&answer[member], columns))
}

pub(super) fn said(
    answer: &Value,
    output: &OutputOptions,
    people: impl FnOnce(&Value) -> String,
) -> CommandOutput {
    let out = if output.json { format!("{answer:#}\n") } else { people(answer) };
    CommandOutput { out, note: String::new() }
}
