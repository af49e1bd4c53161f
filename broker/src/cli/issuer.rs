//! Commands about the issuers of a tenant.

use axum::http::Method;
use serde_json::Value;

use super::{
    args::IssuerCommand,
    client::{AdminClient, ClientError},
    input_files::read_json,
    output::{CommandOutput, remove, render, render_list},
    table::{self, Column},
};

const ISSUERS: &[Column] = &[
    ("name", "name"),
    ("issuer", "issuer"),
    ("authorization server", "authorization_server"),
    ("keys", "keys"),
    ("in force", "in_force"),
    ("source", "source"),
    ("fault", "fault"),
];

pub(super) async fn issuer(
    client: &AdminClient,
    command: IssuerCommand,
) -> Result<CommandOutput, ClientError> {
    match command {
        IssuerCommand::Put { name, file, of, output } => {
            let path = format!("tenants/{}/issuers/{name}", of.tenant);
            let answer = client.request(Method::PUT, &path, Some(&read_json(&file)?)).await?;
            let stored = |answer: &Value| format!("stored\n{}", table::facts(answer, ISSUERS));
            Ok(render(&answer, &output, stored))
        }
        IssuerCommand::List { of, output } => {
            let path = format!("tenants/{}/issuers", of.tenant);
            let answer = client.request(Method::GET, &path, None).await?;
            Ok(render_list(answer, "issuers", ISSUERS, &output))
        }
        IssuerCommand::Remove { name, of, output } => {
            let path = format!("tenants/{}/issuers/{name}", of.tenant);
            remove(client, &path, name.as_str(), &output).await
        }
    }
}
