//! Which settings a reload applies. A change of the others needs a restart.

use serde_json::Value;

use super::{Config, DatabaseConfig, NodeConfig, Secret, StorageConfig, TelemetryConfig};

/// Keys that a reload applies. Tenants, backends and the contents of files are applied too.
const RELOADED_KEYS: [&str; 6] = [
    "telemetry.log",
    "auth.operators",
    "auth.allowed_origins",
    "auth.allowed_hosts",
    "auth.resource",
    "auth.issuers",
];

/// Returns whether a reload applies a changed value of the key at a dotted path.
pub fn is_reloaded(path: &str) -> bool {
    RELOADED_KEYS.contains(&path)
}

/// Returns the changed sections that require a restart. A reload applies `tenants`, `backends`,
/// `telemetry.log`, and the keys of `auth` about origins, hosts and issuers.
pub fn sections_needing_restart(running: &Config, next: &Config) -> Vec<&'static str> {
    let telemetry =
        TelemetryConfig { log: running.telemetry.log.clone(), ..next.telemetry.clone() };
    let differs = [
        ("listen", running.listen != next.listen),
        ("tls", running.tls != next.tls),
        ("node", node_settings(running) != node_settings(next)),
        ("storage", !is_same_storage(&running.storage, &next.storage)),
        ("auth", running.auth.reloaded(&next.auth) != next.auth),
        ("limits", running.limits != next.limits),
        ("overload", running.overload != next.overload),
        ("timeouts", running.timeouts != next.timeouts),
        ("breaker", running.breaker != next.breaker),
        ("retries", running.retries != next.retries),
        ("session", running.session != next.session),
        ("tasks", running.tasks != next.tasks),
        ("events", running.events != next.events),
        ("compat", running.compat != next.compat),
        ("telemetry", running.telemetry != telemetry),
        ("audit", running.audit != next.audit),
        ("egress", running.egress != next.egress),
        ("include", running.include != next.include),
        ("stdio", running.stdio != next.stdio),
        ("shutdown", running.shutdown != next.shutdown),
    ];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(section, _)| section).collect()
}

/// Returns whether the stores are the same. New connections use a changed login in a file, without a
/// restart.
fn is_same_storage(running: &StorageConfig, next: &StorageConfig) -> bool {
    use storage::differ_in_login_only;
    let mut next = next.clone();
    if let (Some(_), DatabaseConfig::Postgres(one), DatabaseConfig::Postgres(other)) =
        (&running.url_file, &running.database, &next.database)
        && differ_in_login_only(one.expose(), other.expose())
    {
        next.database = running.database.clone();
    }
    if let (Some(_), Some(one), Some(other)) =
        (&running.redis_url_file, &running.redis_url, &next.redis_url)
        && differ_in_login_only(one.expose(), other.expose())
    {
        next.redis_url.clone_from(&running.redis_url);
    }
    *running == next
}

/// Secret, previous secret, address for other replicas, and configured name of a node.
type ComparableNode<'a> =
    (&'a Option<Secret>, &'a Option<Secret>, &'a Option<String>, Option<&'a Value>);

/// Returns the settings of the node that can be compared. A random node name differs at every
/// reading, so the name counts only if it is configured.
fn node_settings(config: &Config) -> ComparableNode<'_> {
    let NodeConfig { secret, secret_previous, advertise, .. } = &config.node;
    let mut settings = config.settings.settings().iter();
    let id = settings.find(|setting| setting.path() == "node.id").map(|setting| &setting.value);
    (secret, secret_previous, advertise, id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_from;

    #[test]
    fn a_reloaded_key_needs_no_restart_and_its_neighbours_do() {
        let running = load_from("", []).unwrap();
        let base = "auth: {resource: 'https://mcp.example.com'}";
        for text in [
            "telemetry: {log: debug}",
            "auth: {operators: [{name: ann, role: viewer, token: a-token-of-sixteen-bytes}]}",
            "auth: {allowed_origins: ['https://app.example.com']}",
            "auth: {allowed_hosts: [broker.example.com]}",
            base,
            "auth: {resource: 'https://mcp.example.com', issuers: [{issuer: 'https://login.example.com', tenant: default}]}",
        ] {
            let next = load_from(text, []).unwrap_or_else(|faults| panic!("{text}: {faults}"));
            let changed = |path: &str| {
                let value = |config: &Config| {
                    let mut all = config.settings.settings().iter();
                    all.find(|setting| setting.path() == path).unwrap().value.clone()
                };
                value(&running) != value(&next)
            };
            assert!(RELOADED_KEYS.into_iter().any(changed), "{text}");
            assert_eq!(sections_needing_restart(&running, &next), Vec::<&str>::new(), "{text}");
        }
        for text in ["telemetry: {log_format: json}", "auth: {allow_anonymous_public: true}"] {
            let next = load_from(text, []).unwrap();
            assert_eq!(sections_needing_restart(&running, &next).len(), 1, "{text}");
        }
    }

    #[test]
    fn a_changed_login_in_a_file_needs_no_restart() {
        let folder = tempfile::tempdir().unwrap();
        let load = |url: &str, redis_url: &str| {
            let files = ["url", "redis"].map(|name| folder.path().join(name));
            std::fs::write(&files[0], url).unwrap();
            std::fs::write(&files[1], redis_url).unwrap();
            let files = files.map(|file| file.display().to_string());
            let node = "node: {secret: a-secret-of-the-replicas}";
            let [database, redis] = files;
            let storage = format!("{{url_file: '{database}', redis_url_file: '{redis}'}}");
            load_from(&format!("{node}\nstorage: {storage}"), []).unwrap()
        };
        let running = load("postgres://ada:one@db/x", "redis://:one@cache:6379");
        for (url, redis_url, expected) in [
            ("postgres://ada:two@db/x", "redis://:one@cache:6379", vec![]),
            ("postgres://eve:two@db/x", "redis://ada:two@cache:6379", vec![]),
            ("postgres://ada:one@db/y", "redis://:one@cache:6379", vec!["storage"]),
            ("postgres://ada:one@db/x", "rediss://:one@cache:6379", vec!["storage"]),
        ] {
            let next = load(url, redis_url);
            assert_eq!(sections_needing_restart(&running, &next), expected, "{url} {redis_url}");
        }
    }

    #[test]
    fn a_changed_name_or_previous_secret_of_the_node_needs_a_restart() {
        let secret = "secret: a-secret-of-the-replicas";
        let running = load_from(&format!("node: {{{secret}}}"), []).unwrap();
        for (members, expected) in [
            ("", vec![]),
            (", id: broker-1", vec!["node"]),
            (", secret_previous: the-secret-before-that-one", vec!["node"]),
        ] {
            let next = load_from(&format!("node: {{{secret}{members}}}"), []).unwrap();
            assert_eq!(sections_needing_restart(&running, &next), expected, "{members}");
        }
    }
}
