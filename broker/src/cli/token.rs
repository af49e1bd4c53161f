//! Commands about revocations of tokens.

use axum::http::Method;
use serde_json::{Map, Value};

use super::{
    args::TokenCommand,
    client::{AdminClient, ClientError, escape},
    output::{CommandOutput, remove, render, render_list},
    table::{self, Column},
};

const REVOCATIONS: &[Column] = &[
    ("id", "id"),
    ("principal", "principal"),
    ("token", "jti"),
    ("issued before", "issued_before"),
    ("created", "created_at"),
];

pub(super) async fn token(
    client: &AdminClient,
    command: TokenCommand,
) -> Result<CommandOutput, ClientError> {
    match command {
        TokenCommand::Revoke { subject, issued_before, of, output } => {
            let given = [
                ("principal", subject.principal),
                ("jti", subject.jti),
                ("issued_before", issued_before),
            ];
            let given = given.into_iter().filter_map(|(key, value)| Some((key, value?)));
            let body: Map<String, Value> =
                given.map(|(key, value)| (key.to_owned(), value.into())).collect();
            let path = format!("tenants/{}/revocations", of.tenant);
            let answer = client.request(Method::POST, &path, Some(&body.into())).await?;
            Ok(render(&answer, &output, |answer| table::facts(answer, REVOCATIONS)))
        }
        TokenCommand::List { of, output } => {
            let path = format!("tenants/{}/revocations", of.tenant);
            let answer = client.request(Method::GET, &path, None).await?;
            Ok(render_list(answer, "revocations", REVOCATIONS, &output))
        }
        TokenCommand::Restore { id, of, output } => {
            let path = format!("tenants/{}/revocations/{}", of.tenant, escape(&id));
            remove(client, &path, &id, &output).await
        }
    }
}
