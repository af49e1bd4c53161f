//! Commands about the process itself: its configuration, its log, the replicas and the drain.

use std::fmt::Write as _;

use http::Method;
use serde_json::{Value, json};

use super::{
    client::{AdminClient, ClientError, escape},
    output::{CommandOutput, escaped, render, render_list},
    process_args::{ConfigCommand, DrainArgs, LogCommand, NodeCommand},
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
/// Texts that YAML reads as a value of another type, if they are a name without quotes.
const TYPED_WORDS: [&str; 11] =
    ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"];

pub(super) async fn config(
    client: &AdminClient,
    ConfigCommand::Show(output): ConfigCommand,
) -> Result<CommandOutput, ClientError> {
    let answer = client.request(Method::GET, "configuration/effective", None).await?;
    Ok(render(&answer, &output, yaml))
}

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

pub(super) async fn drain(
    client: &AdminClient,
    DrainArgs { node, output }: DrainArgs,
) -> Result<CommandOutput, ClientError> {
    let path = match node {
        Some(node) => format!("nodes/{}/drain", escape(&node)),
        None => "drain".to_owned(),
    };
    let answer = client.request(Method::POST, &path, None).await?;
    Ok(render(&answer, &output, |_| "draining\n".to_owned()))
}

/// Returns the configuration as YAML, with the source of a setting as a comment.
fn yaml(answer: &Value) -> String {
    let mut printer = YamlPrinter { out: String::new(), sources: &answer["sources"] };
    let node = answer["node"].as_str().unwrap_or_default();
    printer.comment(&format!("Replica {node}, generation {}.", answer["generation"]));
    printer.comment("A comment names the source of a setting that does not have its default.");
    for (section, keys) in answer["configuration"].as_object().into_iter().flatten() {
        printer.member("", section, keys, 0);
    }
    escaped(&printer.out)
}

struct YamlPrinter<'a> {
    out: String,
    /// Sources by path.
    sources: &'a Value,
}

impl YamlPrinter<'_> {
    fn comment(&mut self, text: &str) {
        let _infallible = writeln!(self.out, "# {}", table::clean(text));
    }

    fn member(&mut self, parent: &str, name: &str, value: &Value, depth: usize) {
        let path = if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") };
        let (indent, key) = ("  ".repeat(depth), yaml_key(name));
        let source = self.source(&path);
        // JSON is YAML, so it can be the text of a value.
        let Some(members) = value.as_object().filter(|members| !members.is_empty()) else {
            let _infallible = writeln!(self.out, "{indent}{key}: {value}{source}");
            return;
        };
        let _infallible = writeln!(self.out, "{indent}{key}:{source}");
        for (name, value) in members {
            self.member(&path, name, value, depth + 1);
        }
    }

    /// Returns the comment with the source of a setting, if it does not have its default.
    fn source(&self, path: &str) -> String {
        let source = &self.sources[path];
        let name = table::clean(source["name"].as_str().unwrap_or_default());
        match source["kind"].as_str() {
            Some("file") => "  # configuration file".to_owned(),
            Some("environment" | "included_file") => format!("  # {name}"),
            _ => String::new(),
        }
    }
}

/// Returns a name as a key of YAML: in quotes unless it is a plain word.
fn yaml_key(name: &str) -> String {
    let is_plain = name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte))
        && !TYPED_WORDS.iter().any(|word| name.eq_ignore_ascii_case(word));
    if is_plain { name.to_owned() } else { Value::from(name).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_printed_as_yaml_with_sources() {
        let answer = json!({
            "node": "one/0badf00d", "generation": 2,
            "configuration": {
                "limits": {"burst": 7, "message_profiles": {}},
                "listen": {"tcp": null},
                "tenants": {"on": {"limits": {"burst": 3}}},
                "backends": {"acme/x": {"transport": {"type": "http", "url": "http://h/?k=***"}}},
            },
            "sources": {
                "limits.burst": {"kind": "environment", "name": "MCP_BROKER__LIMITS__BURST"},
                "tenants.on": {"kind": "file"},
                "backends.acme/x": {"kind": "included_file", "name": "team.yaml"},
            },
        });
        let expected = "\
# Replica one/0badf00d, generation 2.
# A comment names the source of a setting that does not have its default.
backends:
  acme/x:  # team.yaml
    transport:
      type: \"http\"
      url: \"http://h/?k=***\"
limits:
  burst: 7  # MCP_BROKER__LIMITS__BURST
  message_profiles: {}
listen:
  tcp: null
tenants:
  \"on\":  # configuration file
    limits:
      burst: 3
";
        assert_eq!(yaml(&answer), expected);
    }
}
