//! Bodies for the admin API, built from command-line arguments.

use std::{hash::RandomState, io::Read, path::Path};

use config::spec::as_http_url;
use protocol::json::{Limits, duplicate_member};
use serde_json::{Map, Value, json};

use super::{
    args::{BackendAdd, Links, Protocol},
    client::ClientError,
};

/// Longest pointer of a member in a refusal.
const MEMBER_CHARS_MAX: usize = 200;

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

/// Returns the JSON of a file.
pub(super) fn read_json(file: &Path) -> Result<Value, ClientError> {
    let text = read_file(file)?;
    let name =
        if file == Path::new("-") { "standard input".into() } else { file.to_string_lossy() };
    parse_json(&name, &text)
}

/// Parses a document, and refuses one with a duplicate member. The parser keeps the last of two
/// equal members only, so the broker could not see that there were two.
fn parse_json(name: &str, text: &str) -> Result<Value, ClientError> {
    if text.trim().is_empty() {
        return Err(ClientError::Usage(format!("{name} is empty; allowed: a JSON document")));
    }
    let not_json = |reason: String| ClientError::Usage(format!("{name} is not JSON: {reason}"));
    let value = serde_json::from_str(text).map_err(|error| not_json(error.to_string()))?;
    let limits = Limits::with_bytes_max(text.len());
    match duplicate_member(text.as_bytes(), &limits, &RandomState::new(), MEMBER_CHARS_MAX) {
        Ok(None) => Ok(value),
        Ok(Some(pointer)) => {
            Err(ClientError::Usage(format!("{name}: {pointer} is in its object twice")))
        }
        Err(error) => Err(not_json(error.to_string())),
    }
}

pub(super) fn read_file(file: &Path) -> Result<String, ClientError> {
    let read = || {
        if file == Path::new("-") {
            let mut text = String::new();
            std::io::stdin().lock().read_to_string(&mut text)?;
            return Ok(text);
        }
        std::fs::read_to_string(file)
    };
    read()
        .map_err(|error: std::io::Error| ClientError::Usage(format!("{}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_with_a_duplicate_member_is_refused_with_its_pointer() {
        let parsed = |text: &str| parse_json("policy.json", text);
        assert_eq!(parsed("{\"a\": [{\"b\": 1}, {\"b\": 2}]}\n").unwrap()["a"][1]["b"], 2);
        let text = r#"{"rules": [{"id": "x", "effect": "deny", "effect": "allow"}]}"#;
        let refused = parsed(text).unwrap_err();
        assert!(matches!(refused, ClientError::Usage(_)), "{refused:?}");
        assert_eq!(refused.to_string(), "policy.json: /rules/0/effect is in its object twice");
        for (text, reason) in [("{", "policy.json is not JSON: "), (" \n", "policy.json is empty")]
        {
            let refused = parsed(text).unwrap_err().to_string();
            assert!(refused.starts_with(reason), "{refused}");
        }
    }
}
