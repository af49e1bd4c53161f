//! Tenants on the command line: they are created, changed in part, shown, listed and removed.

use std::time::Duration;

use http::Method;
use serde_json::{Map, Value, json};

use super::{
    args::{TenantAdd, TenantCommand, TenantSet, TenantSettings},
    client::{AdminClient, ClientError},
    output::{CommandOutput, remove, render, render_list},
    table::{self, Column},
};

const TENANTS: &[Column] = &[
    ("tenant", "tenant"),
    ("enabled", "enabled"),
    ("weight", "weight"),
    ("requests/s", "limits.requests_per_second"),
    ("burst", "limits.burst"),
    ("sessions", "limits.sessions_per_tenant"),
    ("calls", "limits.calls_in_flight_per_tenant"),
    ("source", "source"),
];
const TENANT: &[Column] = &[
    ("tenant", "tenant"),
    ("enabled", "enabled"),
    ("weight", "weight"),
    ("limits", "limits"),
    ("timeouts", "timeouts"),
    ("source", "source"),
    ("created", "created_at"),
    ("updated", "updated_at"),
];
/// Members of a tenant's view that its body has.
const SETTINGS: [&str; 4] = ["enabled", "weight", "limits", "timeouts"];

pub(super) async fn tenant(
    client: &AdminClient,
    command: TenantCommand,
) -> Result<CommandOutput, ClientError> {
    let facts = |answer: &Value| table::facts(answer, TENANT);
    match command {
        TenantCommand::Add(add) => {
            let path = format!("tenants/{}", add.name);
            let exists = || {
                let name = &add.name;
                format!(
                    "tenant {name} exists already; `tenant set {name}` changes some of its settings, and --replace replaces all"
                )
            };
            let added = client.add(Duration::ZERO, &path, &new_body(&add), add.replace).await;
            let answer = added.map_err(|error| error.or_exists(exists))?;
            Ok(render(&answer, &add.output, facts))
        }
        TenantCommand::Set(set) => {
            let path = format!("tenants/{}", set.name);
            let answer = client.update(&path, |entry| changed_body(&set, &entry)).await?;
            Ok(render(&answer, &set.output, facts))
        }
        TenantCommand::Show { name, output } => {
            let answer = client.request(Method::GET, &format!("tenants/{name}"), None).await?;
            Ok(render(&answer, &output, facts))
        }
        TenantCommand::List(output) => Ok(render_list(
            client.request(Method::GET, "tenants", None).await?,
            "tenants",
            TENANTS,
            &output,
        )),
        TenantCommand::Remove { name, output } => {
            remove(client, &format!("tenants/{name}"), name.as_str(), &output).await
        }
    }
}

fn new_body(add: &TenantAdd) -> Value {
    let mut body = json!({ "enabled": !add.disabled, "limits": {} });
    apply(&add.settings, &mut body);
    body
}

/// Returns the body with the settings of `entry`, and the changes of the command line.
fn changed_body(set: &TenantSet, entry: &Value) -> Value {
    let kept = SETTINGS.iter().map(|name| ((*name).to_owned(), entry[*name].clone()));
    let mut body = Value::Object(kept.filter(|(_, value)| !value.is_null()).collect());
    if set.enabled || set.disabled {
        body["enabled"] = set.enabled.into();
    }
    apply(&set.settings, &mut body);
    body
}

/// Writes the settings that the command line has into a body.
fn apply(settings: &TenantSettings, body: &mut Value) {
    let limits = [
        ("requests_per_second", settings.requests_per_second),
        ("burst", settings.burst),
        ("sessions_per_tenant", settings.sessions),
        ("calls_in_flight_per_tenant", settings.calls_in_flight),
    ];
    let mut given: Map<String, Value> = limits
        .into_iter()
        .filter_map(|(name, limit)| Some((name.to_owned(), limit?.into())))
        .collect();
    given.extend(settings.limit.iter().map(|(name, count)| (name.clone(), (*count).into())));
    for (name, limit) in given {
        body["limits"][name] = limit;
    }
    if let Some(weight) = settings.weight {
        body["weight"] = weight.into();
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::args::{AdminCommand, Cli, Command};

    fn parsed(line: &str) -> TenantCommand {
        match Cli::try_parse_from(line.split(' ')).unwrap().command {
            Command::Admin(AdminCommand::Tenant(command)) => command,
            _ => panic!("another command"),
        }
    }

    #[test]
    fn a_new_tenant_has_the_given_settings() {
        let line = "mcp-broker tenant add acme --disabled --burst 9 --limit burst_per_tool=2";
        let TenantCommand::Add(add) = parsed(line) else { panic!("another command") };
        assert_eq!(
            new_body(&add),
            json!({"enabled": false, "limits": {"burst": 9, "burst_per_tool": 2}})
        );
    }

    #[test]
    fn a_change_keeps_the_other_settings() {
        let TenantCommand::Set(set) = parsed("mcp-broker tenant set acme --enabled --burst 9")
        else {
            panic!("another command")
        };
        let entry = json!({
            "tenant": "acme", "source": "api", "enabled": false, "weight": 3,
            "limits": {"burst": 1, "requests_per_second": 5}, "timeouts": {"call": "5s"},
        });
        assert_eq!(
            changed_body(&set, &entry),
            json!({
                "enabled": true, "weight": 3,
                "limits": {"burst": 9, "requests_per_second": 5}, "timeouts": {"call": "5s"},
            })
        );
        assert!(Cli::try_parse_from(["mcp-broker", "tenant", "set", "acme"]).is_err());
    }
}
