//! Commands about connections: accounts that principals connected at backends.

use std::io::Write as _;

use axum::http::Method;
use serde_json::{Value, json};

use super::{
    client::{AdminClient, ClientError},
    key_args::{AccountArgs, ConnectionCommand},
    output::{CommandOutput, remove, render, render_list},
    table::Column,
};

const CONNECTIONS: &[Column] = &[
    ("backend", "backend"),
    ("principal", "principal"),
    ("state", "state"),
    ("issuer", "issuer"),
    ("expires", "expires_at"),
    ("last error", "last_error"),
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
        ConnectionCommand::Link(account) => {
            let path = format!("tenants/{}/connections", account.of.tenant);
            let body = json!({"principal": account.principal, "backend": account.backend.as_str()});
            let answer = client.request(Method::POST, &path, Some(&body)).await?;
            let shown =
                |answer: &Value| format!("{}\n", answer["url"].as_str().unwrap_or_default());
            Ok(render(&answer, &account.output, shown))
        }
        ConnectionCommand::Test(account) => {
            let path = format!("{}/test", account_path(&account));
            let answer = client.request(Method::POST, &path, None).await?;
            let Some(error) = answer["error"].as_str() else {
                let shown = |_: &Value| "the backend accepts the account\n".to_owned();
                return Ok(render(&answer, &account.output, shown));
            };
            // The answer as JSON still goes to standard output.
            let shown = render(&answer, &account.output, |_| String::new());
            let _closed = std::io::stdout().lock().write_all(shown.out.as_bytes());
            let detail = format!("the account cannot be used: {error}");
            Err(ClientError::refused(detail))
        }
        ConnectionCommand::Revoke(account) => {
            remove(client, &account_path(&account), account.backend.as_str(), &account.output).await
        }
    }
}

/// Returns the path of a connection.
fn account_path(account: &AccountArgs) -> String {
    let AccountArgs { principal, backend, of, .. } = account;
    let encoded: String = principal.bytes().map(|byte| format!("%{byte:02X}")).collect();
    format!("tenants/{}/connections/{encoded}/{}", of.tenant, backend.as_str())
}
