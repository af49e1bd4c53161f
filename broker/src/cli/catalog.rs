//! Commands about toolsets, prompts that the broker hosts, and the cost of lists.

use std::path::Path;

use axum::http::Method;
use serde_json::Value;

use super::{
    args::{CatalogCommand, PromptCommand, ToolsetCommand},
    client::{AdminClient, ClientError, with_query},
    input_files::read_json,
    output::{CommandOutput, json_document, remove, render, render_list, warnings},
    table::{self, Column},
};

const TOOLSETS: &[Column] = &[
    ("name", "name"),
    ("endpoint", "endpoint"),
    ("tools", "lists.tools"),
    ("prompts", "lists.prompts"),
    ("resources", "lists.resources"),
    ("tokens", "lists.tokens"),
    ("enforced", "enforce"),
    ("source", "source"),
    ("catalog version", "lists.catalog_version"),
];
const PROMPTS: &[Column] =
    &[("name", "name"), ("description", "description"), ("source", "source")];
const COST: &[Column] =
    &[("tools", "tools"), ("bytes", "bytes"), ("tokens", "tokens"), ("warning", "warning")];
const MOST: &[Column] =
    &[("name", "name"), ("object", "object"), ("bytes", "bytes"), ("tokens", "tokens")];

/// Members that the broker adds to a document when it shows it. A shown document always has a source.
const SHOWN_ONLY: &[&str] = &["name", "source", "endpoint", "lists", "warnings"];

/// Reads a document, or one as `get` prints it.
fn read_document(file: &Path) -> Result<Value, ClientError> {
    let mut document = read_json(file)?;
    if let Value::Object(members) = &mut document
        && members.contains_key("source")
    {
        members.retain(|name, _| !SHOWN_ONLY.contains(&name.as_str()));
    }
    Ok(document)
}

pub(super) async fn toolset(
    client: &AdminClient,
    command: ToolsetCommand,
) -> Result<CommandOutput, ClientError> {
    match command {
        ToolsetCommand::Put { name, file, of, output } => {
            let path = format!("tenants/{}/toolsets/{name}", of.tenant);
            let answer = client.request(Method::PUT, &path, Some(&read_document(&file)?)).await?;
            let stored = |answer: &Value| {
                format!("stored\n{}{}", table::facts(answer, TOOLSETS), warnings(answer))
            };
            Ok(render(&answer, &output, stored))
        }
        ToolsetCommand::Get { name, of } => {
            let path = format!("tenants/{}/toolsets/{name}", of.tenant);
            whole(client.request(Method::GET, &path, None).await?)
        }
        ToolsetCommand::List { of, output } => {
            let path = format!("tenants/{}/toolsets", of.tenant);
            let answer = client.request(Method::GET, &path, None).await?;
            Ok(render_list(answer, "toolsets", TOOLSETS, &output))
        }
        ToolsetCommand::Remove { name, of, output } => {
            let path = format!("tenants/{}/toolsets/{name}", of.tenant);
            remove(client, &path, name.as_str(), &output).await
        }
    }
}

pub(super) async fn prompt(
    client: &AdminClient,
    command: PromptCommand,
) -> Result<CommandOutput, ClientError> {
    match command {
        PromptCommand::Put { name, file, of, output } => {
            let path = format!("tenants/{}/prompts/{name}", of.tenant);
            let answer = client.request(Method::PUT, &path, Some(&read_document(&file)?)).await?;
            let stored = |answer: &Value| format!("stored\n{}", table::facts(answer, PROMPTS));
            Ok(render(&answer, &output, stored))
        }
        PromptCommand::Get { name, of } => {
            let path = format!("tenants/{}/prompts/{name}", of.tenant);
            whole(client.request(Method::GET, &path, None).await?)
        }
        PromptCommand::List { of, output } => {
            let path = format!("tenants/{}/prompts", of.tenant);
            let answer = client.request(Method::GET, &path, None).await?;
            Ok(render_list(answer, "prompts", PROMPTS, &output))
        }
        PromptCommand::Remove { name, of, output } => {
            let path = format!("tenants/{}/prompts/{name}", of.tenant);
            remove(client, &path, name.as_str(), &output).await
        }
    }
}

pub(super) async fn catalog(
    client: &AdminClient,
    command: CatalogCommand,
) -> Result<CommandOutput, ClientError> {
    let CatalogCommand::Cost { toolset, limit, of, output } = command;
    let limit = limit.to_string();
    let toolset = toolset.as_ref().map(|toolset| toolset.as_str());
    let query = [("toolset", toolset), ("limit", Some(limit.as_str()))];
    let path = with_query(&format!("tenants/{}/catalog/cost", of.tenant), &query);
    let answer = client.request(Method::GET, &path, None).await?;
    let shown = |answer: &Value| {
        format!("{}\n{}", table::facts(answer, COST), table::rows(&answer["most"], MOST))
    };
    Ok(render(&answer, &output, shown))
}

fn whole(answer: Value) -> Result<CommandOutput, ClientError> {
    Ok(CommandOutput { out: json_document(&answer), note: String::new() })
}
