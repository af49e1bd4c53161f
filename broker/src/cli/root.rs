//! Commands about the roots that operators give a backend.

use axum::http::Method;
use clap::Subcommand;
use protocol::ids::BackendId;
use serde_json::json;

use super::{
    client::{AdminClient, ClientError, with_query},
    common_args::{OutputOptions, TenantArg},
    output::{CommandOutput, remove, render_list},
    table::Column,
};

const ROOTS: &[Column] = &[("uri", "uri"), ("name", "name")];

#[derive(Debug, Subcommand)]
pub(super) enum RootCommand {
    /// Add a root while the backend runs, or give a known one another name
    Add {
        #[arg(value_parser = BackendId::parse)]
        backend: BackendId,
        /// Such as file:///srv/projects
        uri: String,
        /// Name for people
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Remove a root while the backend runs
    Remove {
        #[arg(value_parser = BackendId::parse)]
        backend: BackendId,
        uri: String,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
}

pub(super) async fn root(
    client: &AdminClient,
    command: RootCommand,
) -> Result<CommandOutput, ClientError> {
    match command {
        RootCommand::Add { backend, uri, name, of, output } => {
            let body = match name {
                Some(name) => json!({"uri": uri, "name": name}),
                None => json!({"uri": uri}),
            };
            let answer = client.request(Method::POST, &path(&of, &backend), Some(&body)).await?;
            Ok(render_list(answer, "list", ROOTS, &output))
        }
        RootCommand::Remove { backend, uri, of, output } => {
            let path = with_query(&path(&of, &backend), &[("uri", Some(&uri))]);
            remove(client, &path, &uri, &output).await
        }
    }
}

fn path(of: &TenantArg, backend: &BackendId) -> String {
    format!("tenants/{}/backends/{backend}/roots", of.tenant)
}
