//! The audit log on the command line: a table of some records, or all records as JSON lines.

use http::Method;
use serde_json::Value;

use super::{
    args::{AuditCommand, AuditFilter},
    audit_verify,
    client::{AdminClient, ClientError, with_query},
    output::{CommandOutput, escaped, render_list},
    table::Column,
    write_output,
};

const RECORDS: &[Column] = &[
    ("number", "number"),
    ("at", "at"),
    ("kind", "kind"),
    ("tenant", "tenant"),
    ("who", "principal"),
    ("action", "action"),
    ("target", "target"),
    ("outcome", "outcome"),
    ("request", "request_id"),
];
/// Number of records per request of an export.
const PAGE: &str = "1000";

pub(super) async fn audit(
    client: &AdminClient,
    command: AuditCommand,
) -> Result<CommandOutput, ClientError> {
    match command {
        AuditCommand::List { filter, order, after, limit, output } => {
            let limit = limit.map(|limit| limit.to_string());
            let path = path(&filter, Some(&order), after, limit.as_deref());
            let answer = client.request(Method::GET, &path, None).await?;
            let next = answer["next"].as_i64();
            let mut rendered = render_list(answer, "records", RECORDS, &output);
            if let Some(next) = next {
                rendered.note =
                    format!("there are more records; --after {next} lists the next ones");
            }
            Ok(rendered)
        }
        AuditCommand::Verify { checkpoint, output } => {
            audit_verify::verify(client, checkpoint.as_deref(), &output).await
        }
        AuditCommand::Export { filter, mut after } => loop {
            let path = path(&filter, None, after, Some(PAGE));
            let page = client.request(Method::GET, &path, None).await?;
            let lines: String = page["records"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|record| escaped(&format!("{record}\n")))
                .collect();
            // A closed pipe ends the export.
            let is_read = write_output(&lines)?;
            after = page["next"].as_i64();
            if !is_read || after.is_none() {
                return Ok(CommandOutput { out: String::new(), note: String::new() });
            }
        },
    }
}

fn path(
    filter: &AuditFilter,
    order: Option<&str>,
    after: Option<i64>,
    limit: Option<&str>,
) -> String {
    let AuditFilter { tenant, kind, since, until } = filter;
    let after = after.map(|after| Value::from(after).to_string());
    let parameters = [
        ("tenant", tenant.as_deref()),
        ("kind", kind.as_deref()),
        ("since", since.as_deref()),
        ("until", until.as_deref()),
        ("order", order),
        ("after", after.as_deref()),
        ("limit", limit),
    ];
    with_query("audit", &parameters)
}
