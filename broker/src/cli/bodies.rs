//! Bodies for the admin API, built from command-line arguments.

use config::spec::as_http_url;
use serde_json::{Map, Value, json};

use super::{
    args::{BackendAdd, Links, Protocol},
    client::ClientError,
    input_files::{read_file, read_json},
};

/// Returns the body of the request. `imported`: the body that a `server.json` gave. `own` reads a
/// variable of this shell's environment.
pub(super) fn backend_body(
    add: &BackendAdd,
    imported: Option<Value>,
    own: impl Fn(&str) -> Option<String>,
) -> Result<Value, ClientError> {
    if let Some(file) = &add.spec {
        return read_json(file);
    }
    let mut body = match (imported, &add.url) {
        (Some(body), _) => body,
        (None, Some(url)) if as_http_url(url).is_some() => {
            if add.sse {
                let wrong = "--sse: the URL is that of a WebSocket; allowed: http:// or https://";
                return Err(ClientError::Usage(wrong.to_owned()));
            }
            json!({ "transport": { "type": "websocket", "url": url } })
        }
        (None, Some(url)) => {
            let kind = if add.sse { "sse" } else { "http" };
            json!({ "transport": { "type": kind, "url": url } })
        }
        (None, None) => json!({ "transport": stdio(add, &own)? }),
    };
    let credentials = credentials(add, &own)?;
    if !credentials.is_empty() {
        body["credentials"] = credentials.into();
    }
    if let Some(links) = add.links {
        body["links"] = match links {
            Links::Auto => "auto",
            Links::Shared => "shared",
            Links::PerSession => "per-session",
        }
        .into();
    }
    if let Some(protocol) = add.protocol {
        body["protocol"] = match protocol {
            Protocol::Auto => "auto",
            Protocol::Legacy => "legacy",
            Protocol::Modern => "modern",
        }
        .into();
    }
    for (name, timeout) in [("call", &add.call_timeout), ("initialize", &add.initialize_timeout)] {
        if let Some(timeout) = timeout {
            body["timeouts"][name] = timeout.as_str().into();
        }
    }
    for (name, paths) in [("read", &add.read), ("write", &add.write)] {
        if !paths.is_empty() {
            body["sandbox"][name] = json!(paths);
        }
    }
    if add.no_network {
        body["sandbox"]["network"] = false.into();
    }
    for (name, count) in &add.limit {
        body["limits"][name] = (*count).into();
    }
    Ok(body)
}

fn stdio(add: &BackendAdd, own: &impl Fn(&str) -> Option<String>) -> Result<Value, ClientError> {
    let (command, args) = add
        .command
        .split_first()
        .ok_or_else(|| ClientError::Usage("name the program after --".to_owned()))?;
    let mut transport = json!({ "type": "stdio", "command": command, "args": args });
    for given in &add.env {
        let (name, value) = match given.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => (given.as_str(), own_variable(given, "--env", given, own)?),
        };
        transport["env"][name] = value.into();
    }
    if let Some(cwd) = &add.cwd {
        transport["cwd"] = cwd.as_str().into();
    }
    Ok(transport)
}

/// Returns the value of a variable of this shell. An error does not repeat the name of the variable,
/// which may be a secret at the wrong place.
fn own_variable(
    variable: &str,
    option: &str,
    name: &str,
    own: &impl Fn(&str) -> Option<String>,
) -> Result<String, ClientError> {
    let absent = || ClientError::Usage(format!("{option} {name}: this shell has no such variable"));
    own(variable).ok_or_else(absent)
}

fn credentials(
    add: &BackendAdd,
    own: &impl Fn(&str) -> Option<String>,
) -> Result<Map<String, Value>, ClientError> {
    let mut credentials = Map::new();
    if let Some(file) = &add.bearer_file {
        credentials.insert("bearer".to_owned(), read_file(file)?.trim().into());
    }
    let mut headers = Map::new();
    for header in &add.header {
        // The name of a header has neither of the two characters, so the first one decides.
        let at = header.find([':', '=']);
        let (name, given) = at.map_or((header.as_str(), ""), |at| header.split_at(at));
        let value = match given.split_at_checked(1) {
            Some((":", value)) => value.trim().to_owned(),
            Some((_, variable)) => own_variable(variable, "--header", name, own)?.trim().to_owned(),
            None => {
                let wrong = "--header: write it as NAME:VALUE or NAME=VARIABLE";
                return Err(ClientError::Usage(wrong.to_owned()));
            }
        };
        headers.insert(name.trim().to_owned(), value.into());
    }
    if !headers.is_empty() {
        credentials.insert("headers".to_owned(), headers.into());
    }
    Ok(credentials)
}
