//! Commands about the process itself: its log and the replicas.

use http::Method;
use serde_json::json;

use super::{
    client::{AdminClient, ClientError},
    output::{CommandOutput, render, render_list},
    process_args::{LogCommand, NodeCommand},
    table::{self, Column},
};

const LOG: &[Column] = &[
    ("filter", "filter"),
    ("configured", "configured"),
    ("remaining s", "remaining_seconds"),
    ("node", "node"),
];
const NODES: &[Column] = &[
    ("node", "node"),
    ("this", "is_this"),
    ("address", "address"),
    ("draining", "draining"),
    ("lease ms", "lease_ms"),
];

pub(super) async fn log(
    client: &AdminClient,
    command: LogCommand,
) -> Result<CommandOutput, ClientError> {
    let (method, body, output) = match command {
        LogCommand::Show(output) => (Method::GET, None, output),
        LogCommand::Set { filter, time, output } => {
            let mut body = json!({ "filter": filter });
            if let Some(time) = time {
                body["for"] = time.into();
            }
            (Method::PUT, Some(body), output)
        }
        LogCommand::Reset(output) => (Method::DELETE, None, output),
    };
    let answer = client.request(method, "log", body.as_ref()).await?;
    Ok(render(&answer, &output, |answer| table::facts(answer, LOG)))
}

pub(super) async fn node(
    client: &AdminClient,
    NodeCommand::List(output): NodeCommand,
) -> Result<CommandOutput, ClientError> {
    let answer = client.request(Method::GET, "nodes", None).await?;
    Ok(render_list(answer, "nodes", NODES, &output))
}
