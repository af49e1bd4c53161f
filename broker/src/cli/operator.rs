//! Commands about named operators.

use http::Method;
use serde_json::{Map, Value};

use super::{
    args::OperatorCommand,
    client::{AdminClient, ClientError, escape},
    output::{CommandOutput, remove, render, render_list},
    table::{self, Column},
};

const OPERATORS: &[Column] = &[
    ("id", "id"),
    ("name", "name"),
    ("role", "role"),
    ("tenants", "tenants"),
    ("backends", "backends"),
    ("source", "source"),
    ("created", "created_at"),
    ("fault", "fault"),
];
const OPERATOR: &[Column] = &[
    ("id", "id"),
    ("name", "name"),
    ("role", "role"),
    ("tenants", "tenants"),
    ("backends", "backends"),
    ("token", "token"),
];

pub(super) async fn operator(
    client: &AdminClient,
    command: OperatorCommand,
) -> Result<CommandOutput, ClientError> {
    match command {
        OperatorCommand::Create { name, role, tenants, backends, output } => {
            let mut body = Map::new();
            body.insert("name".to_owned(), name.into());
            body.insert("role".to_owned(), role.into());
            for (member, names) in [("tenants", tenants), ("backends", backends)] {
                if !names.is_empty() {
                    body.insert(member.to_owned(), names.into());
                }
            }
            let body = Value::Object(body);
            let answer = client.request(Method::POST, "operators", Some(&body)).await?;
            let rendered = render(&answer, &output, |answer| table::facts(answer, OPERATOR));
            Ok(CommandOutput {
                note: "keep the token, it is not shown again".to_owned(),
                ..rendered
            })
        }
        OperatorCommand::List { output } => {
            let answer = client.request(Method::GET, "operators", None).await?;
            Ok(render_list(answer, "operators", OPERATORS, &output))
        }
        OperatorCommand::Revoke { id, output } => {
            remove(client, &format!("operators/{}", escape(&id)), &id, &output).await
        }
    }
}
