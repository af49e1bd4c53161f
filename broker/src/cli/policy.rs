//! Commands about the access policy of a tenant.

use axum::http::Method;
use serde_json::{Map, Value, json};

use super::{
    args::PolicyCommand,
    client::{AdminClient, ClientError, with_query},
    input_files::read_json,
    output::{CommandOutput, json_document, remove, render, render_list, warnings},
    table::{self, Column},
};

const DECISION: &[Column] = &[
    ("verdict", "verdict"),
    ("rule", "rule"),
    ("because", "because"),
    ("required scopes", "required_scopes"),
    ("with shadow rules", "shadow_verdict"),
];
const CONSIDERED: &[Column] = &[("rule", "rule"), ("outcome", "outcome")];

const DECISIONS: &[Column] = &[
    ("rule", "rule"),
    ("verdict", "verdict"),
    ("mode", "mode"),
    ("count", "count"),
    ("last", "last_at"),
    ("principals", "principals"),
    ("objects", "objects"),
];

pub(super) async fn policy(
    client: &AdminClient,
    command: PolicyCommand,
) -> Result<CommandOutput, ClientError> {
    match command {
        PolicyCommand::Put { file, of, output } => {
            let path = format!("tenants/{}/policy", of.tenant);
            let answer = client.request(Method::PUT, &path, Some(&read_json(&file)?)).await?;
            let stored = |answer: &Value| {
                let rules = answer["rules"].as_array().map_or(0, Vec::len);
                let rules = if rules == 1 { "1 rule".to_owned() } else { format!("{rules} rules") };
                format!("stored, {rules}\n{}", warnings(answer))
            };
            Ok(render(&answer, &output, stored))
        }
        PolicyCommand::Get { of } => {
            let path = format!("tenants/{}/policy", of.tenant);
            let answer = client.request(Method::GET, &path, None).await?;
            Ok(CommandOutput { out: json_document(&answer), note: String::new() })
        }
        PolicyCommand::Remove { of, output } => {
            let path = format!("tenants/{}/policy", of.tenant);
            remove(client, &path, "policy", &output).await
        }
        PolicyCommand::Check { subject, method, object, of, output } => {
            let path = format!("tenants/{}/policy/check", of.tenant);
            let object = match object.split_once("__") {
                Some((backend, tool)) if !object.contains('/') => format!("{backend}/{tool}"),
                _ => object,
            };
            let body = json!({"as": attributes(subject)?, "method": method, "object": object});
            let answer = client.request(Method::POST, &path, Some(&body)).await?;
            let explained = |answer: &Value| {
                let mut shown = answer.clone();
                shown["because"] = decided_by(answer).into();
                let decision = table::facts(&shown, DECISION);
                match answer["considered"].as_array() {
                    Some(rules) if !rules.is_empty() => {
                        format!("{decision}\n{}", table::rows(&answer["considered"], CONSIDERED))
                    }
                    _ => decision,
                }
            };
            let note = answer["note"].as_str().map(table::clean).unwrap_or_default();
            Ok(CommandOutput { note, ..render(&answer, &output, explained) })
        }
        PolicyCommand::Report { since, of, output } => {
            let path = format!("tenants/{}/policy/report", of.tenant);
            let path = with_query(&path, &[("since", Some(since.as_str()))]);
            let answer = client.request(Method::GET, &path, None).await?;
            Ok(render_list(answer, "decisions", DECISIONS, &output))
        }
    }
}

/// Returns why there is a verdict without a rule.
fn decided_by(answer: &Value) -> &'static str {
    match answer["decided_by"].as_str() {
        Some("no_policy") => "the tenant has no policy, so everything is allowed",
        Some("shadow") => "the policy is in shadow mode, so everything is allowed",
        Some("default") => "no rule applies, so the default of the policy decides",
        _ => "",
    }
}

/// Returns the subject of a check.
fn attributes(pairs: Vec<(String, String)>) -> Result<Map<String, Value>, ClientError> {
    let mut subject = Map::new();
    for (name, value) in pairs {
        match name.as_str() {
            "principal" | "client" | "key" => drop(subject.insert(name, value.into())),
            "group" | "scope" => {
                let list = subject.entry(format!("{name}s")).or_insert_with(|| json!([]));
                list.as_array_mut().into_iter().for_each(|list| list.push(value.clone().into()));
            }
            _ => {
                return Err(ClientError::Usage(format!(
                    "--as: {name} is not a known name; allowed: principal, group, scope, client, key"
                )));
            }
        }
    }
    Ok(subject)
}
