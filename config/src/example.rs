//! Documentation from the table of keys: the commented configuration of `mcp-broker
//! config-example`, and the reference in `docs/configuration.md`. Tests compare both with the
//! table.

use std::fmt::Write as _;

use super::{
    config_key::{ConfigKey, KeyDefault, KeyKind, KeySection},
    key_table::TABLE,
    raw_config::variable_name,
};

const LINE_CHARS_MAX: usize = 100;

const HEAD: &str = "\
# Configuration of mcp-broker: every key with its default. An absent key has its default; an unknown key is an error.
# Durations are whole numbers with a unit (250ms, 30s, 5m, 2h, 7d), and so are sizes (512, 64KiB, 16MiB).
# An environment variable can also set each key and overrides the file: limits.burst is MCP_BROKER__LIMITS__BURST.
# `mcp-broker check-config FILE` names every fault of a file.
";

const BODIES: &str = "
# Tenants, by name; same bodies as PUT /admin/v1/tenants/{tenant}. They are read-only in the admin API.
# The tenant `default` always exists.
tenants: {}
#  acme:
#    enabled: true
#    weight: 1
#    limits: {requests_per_second: 50, burst: 100, sessions_per_tenant: 100, calls_in_flight_per_tenant: 200,
#      requests_per_second_per_principal: 10, burst_per_principal: 20, connections_per_tenant: 50, message_profile: 1MB}
#    timeouts: {call: 20s, control: 5s, call_max: 10m, methods: {resources/read: 10s}}
#    toolsets:
#      reading: {published: true, include: {tools: [files/read_*]}, aliases: {files/read_file: read}}
#    prompts:
#      review: {arguments: [{name: language, required: true}], messages: [{text: \"Review this {{language}} code.\"}]}

# Backends, by name; same bodies as PUT /admin/v1/tenants/{tenant}/backends/{backend}. They are read-only in the admin API.
# A plain NAME belongs to tenant `default`, and TENANT/NAME to that tenant.
backends: {}
#  acme/files:
#    transport: {type: stdio, command: npx, args: [\"-y\", \"@modelcontextprotocol/server-filesystem\", /srv/files]}
#    sandbox: {read: [/srv/reference], write: [/srv/files], network: false}
#  acme/weather:
#    transport: {type: http, url: \"https://weather.example.com/mcp\"}
#    links: auto
#    protocol: auto
#    pins: {mode: hold_changed, ignore: {tool/forecast: [/description]}}
#    timeouts: {call: 30s, control: 5s, initialize: 30s, call_max: 1h, methods: {prompts/get: 5s}, tools: {report: 2m}}
#    breaker: {enabled: true, failures: 5, error_ratio: 0.5, requests: 20, window: 10s, probe_after: 1s, probe_max: 3s}
#    limits: {calls_in_flight: 20, calls_queued: 200, adaptive_concurrency: true, requests_per_second: 20, burst: 40,
#      tools: {forecast: {requests_per_second: 2, burst: 5}}}
#    credentials: {bearer_file: /etc/mcp-broker/weather-token, headers: {x-team: acme}}
#    resources: {roots: [\"https://weather.example.com/maps\"]}
#    tools: {validate_arguments: true, validate_timeout: 100ms}
";

/// Example entries of `auth.operators`, without the key.
const OPERATORS: &str =
    "  #  - {name: prometheus, role: scraper, token_file: /etc/mcp-broker/scraper-token}
  #  - {name: acme-sre, role: operator, tenants: [acme], token_file: /etc/mcp-broker/acme-sre-token}
";

/// Example entries of `auth.issuers`, without the key.
const ISSUERS: &str = "  #  - issuer: https://login.example.com
  #    jwks_url: https://login.example.com/keys
  #    audiences: [\"https://mcp.example.com/mcp\"]
  #    keys_max_age: 24h
  #    algorithms: [RS256, PS256, ES256, EdDSA]
  #    require_typ: at+jwt
  #    tenant: acme
  #    principal_claim: sub
  #    scopes: [\"mcp:tools\"]
  #    exchange: false
  #    sign_in: {client_id: mcp-broker-connect, client_secret: a-secret}
  #    check: signature
  #    introspection: {endpoint: \"https://login.example.com/introspect\", client_id: mcp-broker, client_secret: a-secret,
  #      auth: basic, ttl: 60s}
  #    admin: {claim: groups, map: [{value: platform-sre, role: operator}], login: {client_id: mcp-broker-console}}
  #  - issuer: https://accounts.example.org
  #    tenant_claim: org
  #    tenants: [acme, umbrella]
  #  - issuer: https://login.microsoftonline.com/0a1b/v2.0
  #    tenant: acme
  #    preset: entra
  #    front: adapted
  #    audiences: [\"f00d\"]
  #    resource: strip
  #    metadata_set: {code_challenge_methods_supported: [S256]}
  #    registration: {client_id: f00d, redirect_uris: [\"http://localhost/callback\"]}
  #    scope_prefix: api://f00d/
  #    scopes_append: [offline_access]
  #    prompt: drop
  #    claims: {groups: groups}
";

/// Returns a commented YAML file with every default.
pub fn yaml() -> String {
    let mut out = HEAD.to_owned();
    for section in TABLE.sections {
        out.push('\n');
        comment(&mut out, "", section.doc);
        let _ = writeln!(out, "{}:", section.name);
        let mut group = None;
        for key in section.keys {
            let (indent, name) = match key.name.split_once('.') {
                Some((of, name)) => {
                    if group.replace(of) != Some(of) {
                        let _ = writeln!(out, "  {of}:");
                    }
                    ("    ", name)
                }
                None => ("  ", key.name),
            };
            comment(&mut out, indent, key.doc);
            let _ = match key.default {
                KeyDefault::Value(value) => writeln!(out, "{indent}{name}: {value}"),
                KeyDefault::None { example } => writeln!(out, "{indent}# {name}: {example}"),
            };
            match key.kind {
                KeyKind::Issuers => out.push_str(ISSUERS),
                KeyKind::Operators => out.push_str(OPERATORS),
                _ => {}
            }
        }
    }
    out.push_str(BODIES);
    out
}

/// Returns the reference as Markdown.
pub fn markdown() -> String {
    let mut out = "# Configuration\n\n\
        This page is generated from the table of configuration keys. `mcp-broker config-example` prints the same keys as a YAML \
        file.\n\n"
        .to_owned();
    out.push_str(
        "`mcp-broker serve --config FILE` reads a YAML file with the sections below. Without a file, every key has its default. \
         An environment variable can set each key: the tables name it, and it overrides the file. The broker does not start (exit \
         code 64) if the file or the environment has an unknown key or a value out of range. It reports each fault, as \
         `mcp-broker check-config FILE` does. It checks the values of a tenant or backend only if all its keys exist and have the \
         right type.\n\n\
         A duration is a whole number with one unit (`250ms`, `30s`, `5m`, `2h`, `7d`). A size is a whole number of bytes (`512`) \
         or of a unit (`64KiB`, `16MiB`, `1GiB`). Relative paths start at the working directory. A file can hold a secret (`..._file`): \
         one line. The line end is not part of the secret.\n\n\
         SIGHUP reads the file again. The broker applies `tenants`, `backends`, `telemetry.log`, the files of `tls`, and the keys \
         of `auth` that say so. It applies changed files of `tls` without a signal too. If another key changed, the log states that a restart is needed. If the file has a fault, nothing changes and the log names the \
         fault.\n",
    );
    for section in TABLE.sections {
        section_markdown(&mut out, section);
    }
    let issuers = issuers();
    let _ = write!(
        out,
        "\n## `auth.issuers`\n\n\
         [security.md](security.md#tokens-of-an-authorization-server) and [identity providers](identity-providers.md) describe authorization servers, and [access](access.md#operators-by-openid-connect) describes `admin`. An entry has these members:\n\n\
         ```yaml\nauth:\n  resource: https://mcp.example.com\n  issuers:\n{issuers}```\n"
    );
    let bodies = BODIES.trim();
    let _ = write!(
        out,
        "\n## `tenants` and `backends`\n\n\
         These entries exist together with those of the admin API, which cannot change them. They have the same bodies, and a tenant \
         can have a `policy` ([access](access.md)), `toolsets` and `prompts` ([catalog](catalog.md)). A file can \
         hold the token of a backend (`credentials.bearer_file`). `MCP_BROKER__TENANTS` and `MCP_BROKER__BACKENDS` each hold a \
         whole map, as YAML or JSON, which replaces the map of the file.\n\n```yaml\n{bodies}\n```\n\n{TENANT_BODY}\n\n{BACKEND_BODY}\n\n\
         ## Listeners that others can reach\n\n\
         The broker does not start with `listen.http`, `listen.tcp` or `listen.quic` on an address that is not loopback while \
         `auth.required` is false. It does not start with `listen.admin` on such an address without `auth.admin_token`. \
         `auth.allow_anonymous_public: true` allows both.\n"
    );
    out
}

/// The members of a tenant's body, and the names of tenants and backends.
const TENANT_BODY: &str = r"## Body of a tenant

`tenants` of the file and `PUT /admin/v1/tenants/{tenant}` have the same body. A tenant or a backend has a name of 1 to 32 characters `a-z`, `0-9` and `-`. The name begins and ends with a letter or a digit. Every member of the body is optional:

| member | values | page |
|---|---|---|
| `enabled` | `true` (default), or `false`: the broker refuses the requests of the tenant as if its keys did not exist | |
| `weight` | 1 to 1000 (default 1): share of a busy broker, relative to other tenants | [operations](operations.md#backends-in-trouble) |
| `limits` | the tenant's values of these keys: rates and bursts, `connections_per_tenant`, `sessions_per_tenant`, `sessions_per_principal`, `calls_in_flight_per_tenant`, `message_profile` | [limits](limits.md#limits-of-a-tenant-or-a-backend) |
| `timeouts` | `call`, `control`, `call_max`, and `methods` with deadlines by method | [deadlines](operations.md#backends-in-trouble) |";

/// The members of a backend's body, and the pages that explain them.
const BACKEND_BODY: &str = r"## Body of a backend

`backends` of the file and `PUT /admin/v1/tenants/{tenant}/backends/{backend}` have the same body. Only `transport` is required:

| member | values | page |
|---|---|---|
| `transport` | `type`: `stdio`, `http`, `sse`, `tcp`, `websocket` or `quic`, with the members of this type | [transports](transports.md) |
| `links` | `auto` (default), `shared` (one link for all sessions of the tenant) or `per-session` | [link sharing](decisions/0005-link-sharing.md) |
| `protocol` | `auto` (default), `legacy` (revisions with sessions) or `modern` (2026-07-28) | [backends of 2026-07-28](compatibility-backends.md) |
| `tls` | `client_cert` and `client_key`: the certificate that the broker presents | [transports](transports.md) |
| `timeouts`, `breaker`, `limits` | deadlines, circuit breaker, rates and calls in flight | [limits](limits.md#limits-of-a-tenant-or-a-backend) |
| `credentials`, `auth` | a fixed token and headers, or tokens of an authorization server | [upstream](upstream.md) |
| `resources`, `roots` | roots that resource URIs must stay in, and roots that the broker declares to the backend | [security](security.md), [apps](apps.md#roots-by-operators) |
| `tools` | validation of arguments | [security](security.md) |
| `sandbox` | paths, network and resources of a child process | [security](security.md#sandbox-of-child-processes) |
| `pins` | approval of new and changed definitions | [catalog](catalog.md#pins) |

The members of `transport` depend on its `type`:

| `type` | required | optional |
|---|---|---|
| `stdio` | `command` | `args`, `env`, `cwd` (an absolute path), and `limits` with `memory`, `processes`, `open_files`, `cpu`, `idle` and `lifetime` as in [`stdio`](#stdio) |
| `http`, `sse` | `url` (`http://` or `https://`) | |
| `websocket` | `url` (`ws://` or `wss://`) | |
| `tcp` | `address` (`HOST:PORT`) | `tls`: `true`, or `{server_name: NAME}`; default: no TLS |
| `quic` | `address` (`HOST:PORT`) | `server_name`; `streams`: whether each request has its own stream (default: the handshake with the backend decides) |

`server_name` is the name in the certificate of the server. The default is the host of the address.";

/// Returns [`ISSUERS`] without the comment signs.
fn issuers() -> String {
    ISSUERS.lines().map(|line| format!("{}\n", line.replacen('#', " ", 1))).collect()
}

fn section_markdown(out: &mut String, section: &KeySection) {
    let _ = write!(
        out,
        "\n## `{}`\n\n{}\n\n| key | default | allowed | meaning |\n| --- | --- | --- | --- |\n",
        section.name, section.doc
    );
    for ConfigKey { name, kind, default, doc } in section.keys {
        let default = match default {
            KeyDefault::Value(value) => format!("`{value}`"),
            KeyDefault::None { .. } => "none".to_owned(),
        };
        let (variable, allowed) = (variable_name(section.name, name), kind.allowed());
        let _ = writeln!(
            out,
            "| `{}.{name}`<br>`{variable}` | {default} | {allowed} | {doc} |",
            section.name
        );
    }
}

/// Appends a comment, broken into lines.
fn comment(out: &mut String, indent: &str, text: &str) {
    let mut line = format!("{indent}#");
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > LINE_CHARS_MAX {
            let _ = writeln!(out, "{line}");
            line = format!("{indent}#");
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(out, "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, load_from};

    /// Returns everything but the node's name, half of which is random.
    fn shown(mut config: Config) -> String {
        config.node.id.clear();
        format!("{config:#?}")
    }

    #[test]
    fn the_example_has_the_default_values() {
        let config = load_from(&yaml(), []).unwrap_or_else(|faults| panic!("{faults}"));
        assert_eq!(shown(config), shown(Config::default()));
    }

    #[test]
    fn each_commented_key_of_the_example_is_valid() {
        let folder = tempfile::tempdir().unwrap();
        let files = [
            ("url_file", "sqlite:a.db"),
            ("redis_url_file", "redis://r"),
            ("", "0123456789abcdef"),
        ];
        let files = files.map(|(key, text)| {
            let path = folder.path().join(format!("file{key}"));
            std::fs::write(&path, format!("{text}\n")).unwrap();
            (key, path.display().to_string())
        });
        let in_file = |name: &str| {
            let file = files
                .iter()
                .find(|(key, _)| *key == name || key.is_empty())
                .filter(|_| name.ends_with("_file"));
            file.map(|(_, path)| path.as_str())
        };
        // Some keys require other keys.
        let comment = |name: &str| match name {
            "redis_url" | "redis_url_file" => {
                "  url: postgres://db/x\nnode: {secret: 0123456789abcdef}\n"
            }
            "cert_file" => "  key_file: key.pem\n",
            "key_file" => "  cert_file: cert.pem\n",
            "client_ca_file" => "  self_signed: true\n  client_auth: optional\n",
            "client_crl_file" => {
                "  self_signed: true\n  client_auth: optional\n  client_ca_file: ca.pem\n"
            }
            "quic" => "tls: {self_signed: true}\n",
            "advertise" => "listen: {internal: '127.0.0.1:0'}\n",
            _ => "",
        };
        let mut tried = 0;
        for section in TABLE.sections {
            for key in section.keys {
                let KeyDefault::None { example } = key.default else { continue };
                let text = format!(
                    "{}:\n  {}: {}\n{}",
                    section.name,
                    key.name,
                    in_file(key.name).unwrap_or(example),
                    comment(key.name)
                );
                load_from(&text, []).unwrap_or_else(|faults| panic!("{text}: {faults}"));
                tried += 1;
            }
        }
        assert_eq!(
            tried,
            yaml()
                .lines()
                .filter(|line| line.trim_start().starts_with("# ")
                    && line.starts_with("  ")
                    && !line.contains("#  ") // a member of an entry in a list
                    && line.contains(": ")
                    && is_key(line))
                .count()
        );
    }

    fn is_key(line: &str) -> bool {
        let name = line.trim_start_matches([' ', '#']).split(": ").next().unwrap_or_default();
        let is_called = |key: &ConfigKey| key.name.rsplit('.').next() == Some(name);
        TABLE.sections.iter().any(|section| {
            section
                .keys
                .iter()
                .any(|key| is_called(key) && matches!(key.default, KeyDefault::None { .. }))
        })
    }

    #[test]
    fn the_commented_bodies_of_the_example_are_valid() {
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::write(&token, "abc").unwrap();
        let text: String = BODIES
            .lines()
            .filter(|line| line.starts_with("#  ") || line.ends_with("{}"))
            .map(|line| line.trim_start_matches('#').trim_end_matches(" {}"))
            .fold(String::new(), |text, line| text + line + "\n")
            .replace("/etc/mcp-broker/weather-token", token.to_str().unwrap());
        let config = load_from(&text, []).unwrap_or_else(|faults| panic!("{text}: {faults}"));
        assert_eq!((config.tenants.len(), config.backends.len()), (1, 2));
        assert_eq!(
            config
                .backends
                .iter()
                .find(|entry| entry.backend.as_str() == "weather")
                .unwrap()
                .spec
                .credentials
                .bearer
                .as_deref(),
            Some("abc")
        );
    }

    #[test]
    fn the_commented_issuers_of_the_example_are_valid() {
        let text = format!("auth:\n  resource: https://mcp.example.com\n  issuers:\n{}", issuers());
        let config = load_from(&text, []).unwrap_or_else(|faults| panic!("{text}: {faults}"));
        assert_eq!(config.auth.issuers.len(), 3);
    }

    #[test]
    fn the_example_fits_a_screen_and_names_every_key_once() {
        let yaml = yaml();
        assert!(yaml.lines().all(|line| line.chars().count() <= 130), "{yaml}");
        for section in TABLE.sections {
            assert_eq!(
                yaml.matches(&format!("\n{}:\n", section.name)).count(),
                1,
                "{}",
                section.name
            );
        }
    }

    /// Run with `UPDATE_DOCS=1` to write the page again.
    #[test]
    fn the_reference_page_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs")).unwrap();
            std::fs::write(path, markdown()).unwrap();
        }
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            page == markdown(),
            "docs/configuration.md differs from the table of keys: run this test with UPDATE_DOCS=1"
        );
    }
}
