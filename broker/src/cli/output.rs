//! Output of a command for operators: the broker's answer as JSON, or as a table. Removals, which
//! print alike, are here whole.

use http::Method;
use serde_json::{Value, json};

use super::{
    client::{AdminClient, ClientError},
    common_args::OutputOptions,
    table::{self, Column},
};

/// Output of a command: the answer for standard output, and a note for standard error.
pub(super) struct CommandOutput {
    pub(super) out: String,
    pub(super) note: String,
}

pub(super) fn render_list(
    answer: Value,
    member: &str,
    columns: &[Column],
    output: &OutputOptions,
) -> CommandOutput {
    render(&answer, output, |answer| table::rows(&answer[member], columns))
}

pub(super) fn render(
    answer: &Value,
    output: &OutputOptions,
    people: impl FnOnce(&Value) -> String,
) -> CommandOutput {
    let out = if output.json { format!("{answer:#}\n") } else { people(answer) };
    CommandOutput { out, note: String::new() }
}

/// Removes what is at a path of the admin API.
pub(super) async fn remove(
    client: &AdminClient,
    path: &str,
    name: &str,
    output: &OutputOptions,
) -> Result<CommandOutput, ClientError> {
    client.request(Method::DELETE, path, None).await?;
    Ok(render(&json!({ "removed": name }), output, |_| format!("removed {}\n", table::clean(name))))
}
