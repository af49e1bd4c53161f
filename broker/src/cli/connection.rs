//! Commands about connections: accounts that principals connected at backends.

use axum::http::Method;
use serde_json::{Value, json};

use super::{
    client::{AdminClient, ClientError},
    key_args::ConnectionCommand,
    output::{CommandOutput, remove, render, render_list},
    table::Column,
};

const CONNECTIONS: &[Column] = &[
    ("backend", "backend"),
    ("principal", "principal"),
    ("state", "state"),
    ("issuer", "issuer"),
    ("expires", "expires_at"),
];

pub(super) async fn connection(
    client: &AdminClient,
    command: ConnectionCommand,
) -> Result<CommandOutput, ClientError> {
    match command {
        ConnectionCommand::List { of, output } => {
            let path = format!("tenants/{}/connections", of.tenant);
            let answer = client.request(Method::GET, &path, None).await?;
            Ok(render_list(answer, "connections", CONNECTIONS, &output))
        }
        ConnectionCommand::Link { principal, backend, of, output } => {
            let path = format!("tenants/{}/connections", of.tenant);
            let body = json!({"principal": principal, "backend": backend.as_str()});
            let answer = client.request(Method::POST, &path, Some(&body)).await?;
            let shown =
                |answer: &Value| format!("{}\n", answer["url"].as_str().unwrap_or_default());
            Ok(render(&answer, &output, shown))
        }
        ConnectionCommand::Revoke { principal, backend, of, output } => {
            let encoded: String = principal.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let path = format!("tenants/{}/connections/{encoded}/{backend}", of.tenant);
            remove(client, &path, backend.as_str(), &output).await
        }
    }
}
