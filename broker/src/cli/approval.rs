//! Commands about approvals: calls that wait for the decision of a person.

use axum::http::Method;
use serde_json::{Value, json};

use super::{
    args::ApprovalCommand,
    client::{AdminClient, ClientError, escape, with_query},
    common_args::TenantArg,
    output::{CommandOutput, render, render_list},
    table::{self, Column},
};

const APPROVALS: &[Column] = &[
    ("id", "id"),
    ("state", "state"),
    ("principal", "principal"),
    ("backend", "backend"),
    ("tool", "tool"),
    ("created", "created_at"),
    ("expires", "expires_at"),
];
/// Number of approvals per request. Each may have arguments of 64 KiB, so a page is at most 32 MiB.
const PAGE: &str = "500";
const APPROVAL: &[Column] = &[
    ("id", "id"),
    ("state", "state"),
    ("principal", "principal"),
    ("backend", "backend"),
    ("tool", "tool"),
    ("arguments hash", "arguments_hash"),
    ("definition", "definition"),
    ("tool changed", "tool_changed"),
    ("rule", "rule"),
    ("rule's reason", "rule_reason"),
    ("by roles", "by.roles"),
    ("by groups", "by.groups"),
    ("four eyes", "four_eyes"),
    ("created", "created_at"),
    ("expires", "expires_at"),
    ("decided by", "decided_by"),
    ("decided", "decided_at"),
    ("reason", "reason"),
    ("window until", "window_until"),
];

pub(super) async fn approval(
    client: &AdminClient,
    command: ApprovalCommand,
) -> Result<CommandOutput, ClientError> {
    match command {
        ApprovalCommand::List { state, of, output } => {
            let approvals = list(client, &of, state.as_deref()).await?;
            Ok(render_list(json!({ "approvals": approvals }), "approvals", APPROVALS, &output))
        }
        ApprovalCommand::Show { id, of, output } => {
            let answer = client.request(Method::GET, &path_of(&of, &id), None).await?;
            Ok(render(&answer, &output, shown))
        }
        ApprovalCommand::Approve { id, reason, window, of, output } => {
            let mut body = json!({"decision": "approve", "reason": reason});
            if let Some(window) = window {
                body["for"] = json!(window);
            }
            let answer = client.request(Method::POST, &path_of(&of, &id), Some(&body)).await?;
            Ok(render(&answer, &output, |answer| table::facts(answer, APPROVAL)))
        }
        ApprovalCommand::Deny { id, reason, of, output } => {
            let body = json!({"decision": "deny", "reason": reason});
            let answer = client.request(Method::POST, &path_of(&of, &id), Some(&body)).await?;
            Ok(render(&answer, &output, |answer| table::facts(answer, APPROVAL)))
        }
    }
}

/// Returns all approvals of a tenant, the newest first.
async fn list(
    client: &AdminClient,
    of: &TenantArg,
    state: Option<&str>,
) -> Result<Vec<Value>, ClientError> {
    let path = format!("tenants/{}/approvals", of.tenant);
    let (mut approvals, mut after) = (Vec::new(), None::<String>);
    loop {
        let parameters = [("state", state), ("after", after.as_deref()), ("limit", Some(PAGE))];
        let mut page = client.request(Method::GET, &with_query(&path, &parameters), None).await?;
        let entries = page["approvals"].as_array_mut().ok_or_else(|| client.foreign(200))?;
        approvals.append(entries);
        after = page["next"].as_str().map(str::to_owned);
        if after.is_none() {
            return Ok(approvals);
        }
    }
}

fn path_of(of: &TenantArg, id: &str) -> String {
    format!("tenants/{}/approvals/{}", of.tenant, escape(id))
}

/// Returns one approval with its arguments, in which every character is seen.
fn shown(answer: &Value) -> String {
    let facts = table::facts(answer, APPROVAL);
    match answer["arguments_text"].as_str() {
        Some(arguments) => format!("{facts}\n{}\n", table::with_names(arguments)),
        None => facts,
    }
}
