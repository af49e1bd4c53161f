//! Import of a backend from a `server.json`: a file, or an entry of a registry.

use std::{collections::BTreeMap, path::PathBuf};

use clap::Args;
use http::{Method, StatusCode};
use serde_json::Value;

use super::{
    client::{AdminClient, ClientError, escape},
    input_files::read_json,
    prompt,
    server_json::{ImportError, MissingInput, ServerJson},
};

/// The registry of the MCP project.
const REGISTRY: &str = "https://registry.modelcontextprotocol.io";

/// Where a `server.json` is, and the values of its inputs.
#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct ServerImport {
    /// A server.json, the publisher's description of a server; - for standard input
    #[arg(long, value_name = "FILE")]
    pub(super) server_json: Option<PathBuf>,
    /// A server of a registry; without a version, the latest one is added in its exact version
    #[arg(long, value_name = "NAME[@VERSION]")]
    pub(super) registry: Option<String>,
    /// The registry
    #[arg(long, value_name = "URL", default_value = REGISTRY)]
    pub(super) registry_url: String,
    /// An input of the server.json: NAME=VALUE, or NAME for the value of this shell's variable
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(super) input: Vec<String>,
    /// Use the publisher's remote server instead of a package
    #[arg(long)]
    pub(super) remote: bool,
}

impl ServerImport {
    fn is_wanted(&self) -> bool {
        self.server_json.is_some() || self.registry.is_some()
    }

    /// Returns the body of the backend. `None`: nothing is imported. `own` reads a variable of this
    /// shell's environment.
    pub(super) async fn body(
        &self,
        client: &AdminClient,
        own: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Value>, ClientError> {
        if !self.is_wanted() {
            if self.remote || !self.input.is_empty() {
                let text = "--input and --remote belong to --server-json and --registry";
                return Err(ClientError::Usage(text.to_owned()));
            }
            return Ok(None);
        }
        let mut inputs = self.inputs(own)?;
        let server = match &self.registry {
            Some(name) => self.of_registry(client, name).await?,
            None => {
                let file = self.server_json.as_deref().unwrap_or(std::path::Path::new("-"));
                ServerJson::read(&read_json(file)?).map_err(ClientError::Faults)?
            }
        };
        loop {
            match server.body(&inputs, self.remote) {
                Ok(body) => return Ok(Some(body)),
                // Each round requests further inputs, which a given one may have opened.
                Err(ImportError::Missing(missing)) if prompt::is_possible() => {
                    for input in missing {
                        let value = prompt::read_value(&question(&input), input.is_secret).await?;
                        inputs.insert(input.name, value);
                    }
                }
                Err(error) => return Err(ClientError::Faults(lines(error))),
            }
        }
    }

    fn inputs(
        &self,
        own: impl Fn(&str) -> Option<String>,
    ) -> Result<BTreeMap<String, String>, ClientError> {
        let mut inputs = BTreeMap::new();
        for given in &self.input {
            let (name, value) = match given.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => {
                    let missing = || {
                        ClientError::Usage(format!(
                            "--input {given}: this shell has no such variable"
                        ))
                    };
                    (given.as_str(), own(given).ok_or_else(missing)?)
                }
            };
            inputs.insert(name.to_owned(), value);
        }
        Ok(inputs)
    }

    /// Fetches an entry (registry API v0.1). The answer must be about the requested server.
    async fn of_registry(
        &self,
        client: &AdminClient,
        reference: &str,
    ) -> Result<ServerJson, ClientError> {
        let (name, version) = match reference.rsplit_once('@') {
            Some((name, version)) => (name, Some(version)),
            None => (reference, None),
        };
        let base = self.registry_url.trim_end_matches('/');
        let version_path = escape(version.unwrap_or("latest"));
        let url = format!("{base}/v0.1/servers/{}/versions/{version_path}", escape(name));
        let (status, answer) = client.fetch(Method::GET, &url).await?;
        let usage = |text: String| ClientError::Usage(text);
        if status == StatusCode::NOT_FOUND {
            return Err(usage(format!("{base} has no server {reference}")));
        }
        if !status.is_success() {
            let status = status.as_u16();
            return Err(ClientError::Unavailable(format!("{base} answered {status}")));
        }
        let answer: Value = serde_json::from_slice(&answer).map_err(|error| {
            ClientError::Unavailable(format!("the answer of {base} is not JSON: {error}"))
        })?;
        let server = ServerJson::read(&answer).map_err(ClientError::Faults)?;
        let is_match =
            server.name == name && version.is_none_or(|version| version == server.version);
        if is_match {
            Ok(server)
        } else {
            let (name, version) = (&server.name, &server.version);
            Err(usage(format!("{base} answered the request for {reference} with {name}@{version}")))
        }
    }
}

/// Returns the prompt for an input.
fn question(input: &MissingInput) -> String {
    let secret = if input.is_secret { " (secret)" } else { "" };
    format!("{}{secret}  {}", input.name, input.description).trim_end().to_owned()
}

fn lines(error: ImportError) -> Vec<String> {
    match error {
        ImportError::Faults(faults) => faults,
        ImportError::Missing(missing) => {
            let text = "the server needs these inputs; give each with --input NAME=VALUE, and a secret with --input NAME from a variable of this shell:";
            [text.to_owned()].into_iter().chain(missing.iter().map(question)).collect()
        }
    }
}
