//! Commands for operators. Each sends requests to the admin API and prints the answer as a table or
//! as JSON.

use std::{env, time::Duration};

use config::units::parse_duration;
use http::Method;
use serde_json::{Map, Value, json};

use super::{
    approval,
    args::{
        AdminCommand, BackendCommand, KeyCommand, SessionCommand, SubscriptionCommand, TaskCommand,
        TenantFilter,
    },
    audit,
    bodies::backend_body,
    catalog,
    client::{AdminClient, ClientError, escape, with_query},
    common_args::BackendListArgs,
    connection, issuer, operator,
    output::{CommandOutput, remove, render, render_list},
    pins, policy, process, root,
    table::{self, Column},
    tenant, token,
};

/// Time that the registration of a backend takes besides its handshake.
const HANDSHAKE_MARGIN: Duration = Duration::from_secs(30);

const BACKENDS: &[Column] = &[
    ("backend", "backend"),
    ("state", "state"),
    ("breaker", "breaker.state"),
    ("type", "settings.transport.type"),
    ("version", "protocol_version"),
    ("tools", "tools"),
    ("prompts", "prompts"),
    ("resources", "resources"),
    ("links", "links"),
    ("source", "source"),
    ("last error", "last_error"),
];
/// What the list of all tenants' backends has. It omits their settings.
const STATES: &[Column] = &[
    ("backend", "backend"),
    ("state", "state"),
    ("breaker", "breaker.state"),
    ("version", "protocol_version"),
    ("tools", "tools"),
    ("prompts", "prompts"),
    ("resources", "resources"),
    ("links", "links"),
    ("last error", "last_error"),
];
const BACKEND: &[Column] = &[
    ("backend", "backend"),
    ("tenant", "tenant"),
    ("state", "state"),
    ("replica", "replica"),
    ("breaker", "breaker.state"),
    ("breaker reason", "breaker.reason"),
    ("next probe ms", "breaker.next_probe_ms"),
    ("verdict of replica", "breaker.verdict.replica"),
    ("verdict", "breaker.verdict.state"),
    ("last error", "last_error"),
    ("protocol version", "protocol_version"),
    ("server", "server_name"),
    ("server version", "server_version"),
    ("tools", "tools"),
    ("prompts", "prompts"),
    ("resources", "resources"),
    ("resource templates", "resource_templates"),
    ("open links", "links"),
    ("latency ms", "latency_ms"),
    ("calls in flight", "calls_in_flight"),
    ("calls waiting", "calls_queued"),
    ("type", "settings.transport.type"),
    ("url", "settings.transport.url"),
    ("address", "settings.transport.address"),
    ("certificate", "settings.tls.client_cert"),
    ("command", "settings.transport.command"),
    ("arguments", "settings.transport.args"),
    ("folder", "settings.transport.cwd"),
    ("environment", "settings.transport.env"),
    ("sandbox", "sandbox"),
    ("sandbox lacks", "sandbox_missing"),
    ("out of reach", "sandbox_unreachable"),
    ("may read", "settings.sandbox.read"),
    ("may write", "settings.sandbox.write"),
    ("sharing", "settings.links"),
    ("protocol", "settings.protocol"),
    ("timeouts", "settings.timeouts"),
    ("limits", "settings.limits"),
    ("breaker rules", "settings.breaker"),
    ("tool rules", "settings.tools"),
    ("resource rules", "settings.resources"),
    ("roots", "settings.roots"),
    ("auth", "settings.auth"),
    ("pins", "settings.pins"),
    ("bearer", "settings.credentials.bearer"),
    ("headers", "settings.credentials.headers"),
    ("source", "source"),
    ("created", "created_at"),
    ("updated", "updated_at"),
];
const KEYS: &[Column] = &[
    ("id", "id"),
    ("principal", "principal"),
    ("name", "name"),
    ("groups", "groups"),
    ("created", "created_at"),
    ("expires", "expires_at"),
];
const KEY: &[Column] = &[
    ("id", "id"),
    ("principal", "principal"),
    ("name", "name"),
    ("groups", "groups"),
    ("scopes", "scopes"),
    ("labels", "labels"),
    ("expires", "expires_at"),
    ("key", "key"),
];
const SESSIONS: &[Column] = &[
    ("id", "id"),
    ("tenant", "tenant"),
    ("principal", "principal"),
    ("endpoint", "endpoint"),
    ("transport", "transport"),
    ("version", "protocol_version"),
    ("client", "client_name"),
    ("state", "state"),
    ("calls", "calls_in_flight"),
    ("idle s", "idle_seconds"),
    ("node", "node"),
];
const SESSION: &[Column] = &[
    ("id", "id"),
    ("tenant", "tenant"),
    ("principal", "principal"),
    ("endpoint", "endpoint"),
    ("transport", "transport"),
    ("protocol version", "protocol_version"),
    ("client", "client_name"),
    ("client version", "client_version"),
    ("state", "state"),
    ("node", "node"),
    ("calls in flight", "calls_in_flight"),
    ("open streams", "streams"),
    ("subscriptions", "subscriptions"),
    ("idle seconds", "idle_seconds"),
    ("created", "created_at"),
];
const TASKS: &[Column] = &[
    ("id", "id"),
    ("tenant", "tenant"),
    ("principal", "principal"),
    ("backend", "backend"),
    ("status", "status"),
    ("created", "created_at"),
];
const TASK: &[Column] = &[
    ("id", "id"),
    ("tenant", "tenant"),
    ("principal", "principal"),
    ("session", "session"),
    ("backend", "backend"),
    ("status", "status"),
    ("message", "message"),
    ("created", "created_at"),
    ("updated", "updated_at"),
    ("expires", "expires_at"),
];
const HISTORY: &[Column] = &[("status", "to"), ("at", "at"), ("owner", "epoch")];
const SUBSCRIPTIONS: &[Column] =
    &[("tenant", "tenant"), ("backend", "backend"), ("sessions", "sessions"), ("resource", "uri")];

pub(super) async fn run(
    client: &AdminClient,
    command: AdminCommand,
) -> Result<CommandOutput, ClientError> {
    match command {
        AdminCommand::Backend(command) => backend(client, command).await,
        AdminCommand::Tenant(command) => tenant::tenant(client, command).await,
        AdminCommand::Key(command) => key(client, command).await,
        AdminCommand::Token(command) => token::token(client, command).await,
        AdminCommand::Operator(command) => operator::operator(client, command).await,
        AdminCommand::Policy(command) => policy::policy(client, command).await,
        AdminCommand::Pins(command) => pins::pins(client, command).await,
        AdminCommand::Toolset(command) => catalog::toolset(client, command).await,
        AdminCommand::Prompt(command) => catalog::prompt(client, command).await,
        AdminCommand::Catalog(command) => catalog::catalog(client, command).await,
        AdminCommand::Issuer(command) => issuer::issuer(client, command).await,
        AdminCommand::Connection(command) => connection::connection(client, command).await,
        AdminCommand::Approval(command) => approval::approval(client, command).await,
        AdminCommand::Session(command) => session(client, command).await,
        AdminCommand::Task(command) => task(client, command).await,
        AdminCommand::Audit(command) => audit::audit(client, command).await,
        AdminCommand::Subscription(SubscriptionCommand::List { of, output }) => {
            let path = with_query("subscriptions", &[("tenant", of.name())]);
            Ok(render_list(
                client.request(Method::GET, &path, None).await?,
                "subscriptions",
                SUBSCRIPTIONS,
                &output,
            ))
        }
        AdminCommand::Node(command) => process::node(client, command).await,
        AdminCommand::Config(command) => process::config(client, command).await,
        AdminCommand::Log(command) => process::log(client, command).await,
        AdminCommand::Drain(drain) => process::drain(client, drain).await,
    }
}

async fn list_backends(
    client: &AdminClient,
    BackendListArgs { of, all, state, output }: BackendListArgs,
) -> Result<CommandOutput, ClientError> {
    let (path, columns) = if all {
        ("backends".to_owned(), [&[("tenant", "tenant")], STATES].concat())
    } else {
        (format!("tenants/{}/backends", of.tenant), BACKENDS.to_vec())
    };
    let mut answer = client.request(Method::GET, &path, None).await?;
    if let (Some(state), Some(backends)) = (state, answer["backends"].as_array_mut()) {
        backends.retain(|backend| backend["state"] == *state);
    }
    Ok(render_list(answer, "backends", &columns, &output))
}

async fn backend(
    client: &AdminClient,
    command: BackendCommand,
) -> Result<CommandOutput, ClientError> {
    match command {
        BackendCommand::Add(add) => {
            let own = |name: &str| env::var(name).ok();
            let body = backend_body(&add, add.import.body(client, own).await?, own)?;
            let wait = if add.no_wait { "?wait=false" } else { "" };
            let path = format!("tenants/{}/backends/{}{wait}", add.of.tenant, add.name);
            // The broker answers after the handshake. It checks the text of the time limit itself.
            let handshake = add.initialize_timeout.as_deref().map(parse_duration);
            let limit = handshake.and_then(Result::ok).unwrap_or_default() + HANDSHAKE_MARGIN;
            let exists = || format!("backend {} exists already; --replace replaces it", add.name);
            let added = client.add(limit, &path, &body, add.replace).await;
            let answer = added.map_err(|error| error.or_exists(exists))?;
            let mut rendered = render(&answer, &add.output, |answer| table::facts(answer, BACKEND));
            rendered.note = notes_about_added(&answer, add.no_wait);
            Ok(rendered)
        }
        BackendCommand::List(list) => list_backends(client, list).await,
        BackendCommand::Show { name, of, output } => {
            let answer = client
                .request(Method::GET, &format!("tenants/{}/backends/{name}", of.tenant), None)
                .await?;
            Ok(render(&answer, &output, |answer| table::facts(answer, BACKEND)))
        }
        BackendCommand::Probe { name, of, output } => {
            let answer = client
                .request(
                    Method::POST,
                    &format!("tenants/{}/backends/{name}/probe", of.tenant),
                    None,
                )
                .await?;
            Ok(render(&answer, &output, |answer| table::facts(answer, BACKEND)))
        }
        BackendCommand::Breaker { name, state, of, output } => {
            let path = format!("tenants/{}/backends/{name}/breaker", of.tenant);
            let answer = client
                .request(Method::POST, &path, Some(&json!({ "state": state.name() })))
                .await?;
            Ok(render(&answer, &output, |answer| table::facts(answer, BACKEND)))
        }
        BackendCommand::Root(command) => root::root(client, command).await,
        BackendCommand::Remove { name, of, output } => {
            remove(
                client,
                &format!("tenants/{}/backends/{name}", of.tenant),
                name.as_str(),
                &output,
            )
            .await
        }
    }
}

/// Returns what an operator has to mend of a backend that was registered.
fn notes_about_added(answer: &Value, at_once: bool) -> String {
    let failed = (answer["state"] == "failed").then(|| {
        let why = answer["last_error"].as_str().unwrap_or("for an unknown reason");
        format!("warning: the backend is registered, but the broker could not connect to it: {why}; the broker keeps trying")
    });
    let unreachable = answer["sandbox_unreachable"].as_array().into_iter().flatten();
    let unreachable = unreachable
        .filter_map(Value::as_str)
        .map(|why| format!("warning: {why}; change its owner or mode, or the child cannot use it"));
    let unknown = (at_once && answer["state"] == "connecting").then(|| {
        let name = answer["backend"].as_str().unwrap_or_default();
        format!("the broker is connecting to it; `backend show {name}` shows the outcome")
    });
    failed.into_iter().chain(unknown).chain(unreachable).collect::<Vec<_>>().join("; ")
}

async fn key(client: &AdminClient, command: KeyCommand) -> Result<CommandOutput, ClientError> {
    match command {
        KeyCommand::Create { of, name, principal, groups, scopes, labels, expires_in, output } => {
            let given = [("name", name), ("principal", principal), ("expires_in", expires_in)];
            let mut body: Map<String, Value> = given
                .into_iter()
                .filter_map(|(key, value)| Some((key.to_owned(), value?.into())))
                .collect();
            for (key, values) in [("groups", groups), ("scopes", scopes)] {
                if !values.is_empty() {
                    body.insert(key.to_owned(), values.into());
                }
            }
            if !labels.is_empty() {
                let labels = labels.into_iter().map(|(name, value)| (name, value.into()));
                body.insert("labels".to_owned(), Value::Object(labels.collect()));
            }
            let answer = client
                .request(Method::POST, &format!("tenants/{}/keys", of.tenant), Some(&body.into()))
                .await?;
            let rendered = render(&answer, &output, |answer| table::facts(answer, KEY));
            Ok(CommandOutput { note: "keep the key, it is not shown again".to_owned(), ..rendered })
        }
        KeyCommand::List { of, output } => {
            let answer =
                client.request(Method::GET, &format!("tenants/{}/keys", of.tenant), None).await?;
            let now = jiff::Timestamp::now();
            let marked = |answer: &Value| table::rows(&with_expired(&answer["keys"], now), KEYS);
            Ok(render(&answer, &output, marked))
        }
        KeyCommand::Revoke { id, of, output } => {
            remove(client, &format!("tenants/{}/keys/{}", of.tenant, escape(&id)), &id, &output)
                .await
        }
    }
}

/// Returns keys with a mark on the expired ones.
fn with_expired(keys: &Value, now: jiff::Timestamp) -> Value {
    let mut keys = keys.clone();
    for key in keys.as_array_mut().into_iter().flatten() {
        let expires = key["expires_at"].as_str().unwrap_or_default();
        if expires.parse::<jiff::Timestamp>().is_ok_and(|expires| expires <= now) {
            key["expires_at"] = format!("{expires} (expired)").into();
        }
    }
    keys
}

async fn session(
    client: &AdminClient,
    command: SessionCommand,
) -> Result<CommandOutput, ClientError> {
    match command {
        SessionCommand::List { of, output } => {
            let answer = client.list("sessions", &[("tenant", of.name())], "sessions").await?;
            Ok(render_list(answer, "sessions", SESSIONS, &output))
        }
        SessionCommand::Show { id, output } => {
            let answer =
                client.request(Method::GET, &format!("sessions/{}", escape(&id)), None).await?;
            Ok(render(&answer, &output, |answer| table::facts(answer, SESSION)))
        }
        SessionCommand::End { id, output } => {
            remove(client, &format!("sessions/{}", escape(&id)), &id, &output).await
        }
    }
}

async fn task(client: &AdminClient, command: TaskCommand) -> Result<CommandOutput, ClientError> {
    match command {
        TaskCommand::List { of, status, output } => {
            let parameters = [("tenant", of.name()), ("status", status.as_deref())];
            let answer = client.list("tasks", &parameters, "tasks").await?;
            Ok(render_list(answer, "tasks", TASKS, &output))
        }
        TaskCommand::Show { id, output } => {
            let answer =
                client.request(Method::GET, &format!("tasks/{}", escape(&id)), None).await?;
            let people = |answer: &Value| {
                format!(
                    "{}\n{}",
                    table::facts(answer, TASK),
                    table::rows(&answer["history"], HISTORY)
                )
            };
            Ok(render(&answer, &output, people))
        }
        TaskCommand::Cancel { id, output } => {
            let answer = client
                .request(Method::POST, &format!("tasks/{}/cancel", escape(&id)), None)
                .await?;
            Ok(render(&answer, &output, |answer| table::facts(answer, TASK)))
        }
    }
}

impl TenantFilter {
    fn name(&self) -> Option<&str> {
        self.tenant.as_ref().map(|tenant| tenant.as_str())
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::cli::args::{Cli, Command};

    fn parsed(line: &str) -> Result<AdminCommand, clap::Error> {
        match Cli::try_parse_from(line.split(' '))?.command {
            Command::Admin(command) => Ok(command),
            other => panic!("{other:?}"),
        }
    }

    fn body_of(line: &str) -> Result<Value, ClientError> {
        match parsed(line).unwrap() {
            AdminCommand::Backend(BackendCommand::Add(add)) => {
                backend_body(&add, None, |name| (name == "HOME").then(|| "/home/ann".to_owned()))
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_tree_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_backend_is_described_by_its_url() {
        let body = body_of(
            "mcp-broker backend add one --url http://h/mcp --header X-Key:v:w --links per-session --protocol legacy --call-timeout 5s",
        )
        .unwrap();
        let expected = json!({"transport": {"type": "http", "url": "http://h/mcp"}, "links": "per-session", "protocol": "legacy",
            "timeouts": {"call": "5s"}, "credentials": {"headers": {"X-Key": "v:w"}}});
        assert_eq!(body, expected);
        assert!(config::validation::parse_backend_spec(&body).is_ok());
    }

    #[test]
    fn an_event_stream_is_described_by_its_url() {
        let body = body_of("mcp-broker backend add one --url http://h/sse --sse").unwrap();
        assert_eq!(body, json!({"transport": {"type": "sse", "url": "http://h/sse"}}));
        assert!(config::validation::parse_backend_spec(&body).is_ok());
    }

    #[test]
    fn the_url_of_a_websocket_is_not_an_event_stream() {
        for url in ["ws://h/mcp", "wss://h/mcp"] {
            let line = format!("mcp-broker backend add one --url {url}");
            assert_eq!(body_of(&line).unwrap()["transport"]["type"], "websocket");
            let refused = body_of(&format!("{line} --sse")).unwrap_err().to_string();
            assert!(refused.starts_with("--sse: the URL is that of a WebSocket"), "{refused}");
        }
    }

    #[test]
    fn a_header_has_a_value_or_a_variable_of_this_shell() {
        let body = |header: &str| {
            body_of(&format!("mcp-broker backend add one --url http://h/mcp --header {header}"))
        };
        let headers = |header: &str| body(header).unwrap()["credentials"]["headers"].clone();
        assert_eq!(headers("X-Key:HOME=1"), json!({"X-Key": "HOME=1"}));
        assert_eq!(headers("X-Key=HOME"), json!({"X-Key": "/home/ann"}));
        let refused = |header: &str| body(header).unwrap_err().to_string();
        assert_eq!(refused("X-Key=hush"), "--header X-Key: this shell has no such variable");
        assert_eq!(refused("X-Key"), "--header: write it as NAME:VALUE or NAME=VARIABLE");
    }

    #[test]
    fn a_backend_is_described_by_its_command() {
        let body =
            body_of("mcp-broker backend add one --env A=b=c --env HOME --cwd /srv --read /a --write /b --no-network -- npx -y pkg --flag")
                .unwrap();
        let expected = json!({"transport": {"type": "stdio", "command": "npx", "args": ["-y", "pkg", "--flag"],
            "env": {"A": "b=c", "HOME": "/home/ann"}, "cwd": "/srv"},
            "sandbox": {"read": ["/a"], "write": ["/b"], "network": false}});
        assert_eq!(body, expected);
        assert!(config::validation::parse_backend_spec(&body).is_ok());
        assert!(matches!(
            body_of("mcp-broker backend add one --env NOT_SET -- npx"),
            Err(ClientError::Usage(_))
        ));
    }

    #[test]
    fn a_backend_that_was_added_without_success_is_a_warning_with_the_reason() {
        let failed =
            json!({"backend": "b", "state": "failed", "last_error": "command \"x\" not found"});
        assert_eq!(
            notes_about_added(&failed, false),
            "warning: the backend is registered, but the broker could not connect to it: command \"x\" not found; the broker keeps trying"
        );
        let connecting = json!({"backend": "b", "state": "connecting"});
        assert!(notes_about_added(&connecting, true).contains("`backend show b`"));
        assert_eq!(notes_about_added(&json!({"state": "ready"}), true), "");
    }

    #[test]
    fn the_table_of_a_backend_shows_every_setting() {
        let document = serde_json::to_value(crate::listeners::admin::openapi::document()).unwrap();
        let settings = &document["components"]["schemas"]["BackendSettings"]["properties"];
        for name in settings.as_object().unwrap().keys() {
            let member = format!("settings.{name}");
            assert!(BACKEND.iter().any(|(_, shown)| shown.starts_with(&member)), "{member}");
        }
    }

    #[test]
    fn a_key_whose_time_is_over_is_marked() {
        let keys = json!([{"id": "a"}, {"expires_at": "2026-01-31T12:00:00Z"}, {"expires_at": "2026-02-01T12:00:00Z"}]);
        let marked = with_expired(&keys, "2026-01-31T12:00:00Z".parse().unwrap());
        let expires: Vec<&Value> = (0..3).map(|at| &marked[at]["expires_at"]).collect();
        let expected =
            [json!(null), json!("2026-01-31T12:00:00Z (expired)"), keys[2]["expires_at"].clone()];
        assert_eq!(expires, expected.iter().collect::<Vec<_>>());
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in [
            "mcp-broker backend add one",
            "mcp-broker backend add one --url http://h/ -- npx",
            "mcp-broker backend add One --url http://h/",
            "mcp-broker backend add one --url http://h/ --env A=b",
            "mcp-broker backend add one --header a:b -- npx",
            "mcp-broker backend add one --sse -- npx",
            "mcp-broker backend list --tenant a__b",
            "mcp-broker prompt get a?b",
            "mcp-broker prompt remove copy?x=1",
            "mcp-broker prompt put a/../b -",
            "mcp-broker tenant add acme --weight many",
            "mcp-broker session end",
            "mcp-broker serve --confg x",
            "mcp-broker",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }

    #[test]
    fn parts_of_a_url_are_escaped() {
        assert_eq!(
            with_query("tasks", &[("tenant", None), ("status", Some("a b&c"))]),
            "tasks?status=a%20b%26c"
        );
        assert_eq!(escape("../x?é"), "..%2Fx%3F%C3%A9");
    }
}
