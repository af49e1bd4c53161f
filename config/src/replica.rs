//! Settings of one process among replicas: its name and address, the shared stores, and the limits
//! of stored data. Read with the rest by [`super::validation`].
//!
//! Invariant: a URL of a store may hold a password, so no fault shows one.

use std::{path::PathBuf, time::Duration};

use super::{
    Config, DatabaseConfig, NodeConfig, Secret, StorageConfig, TaskConfig,
    config_key::{COUNT, ConfigKey, DAY, GIB, HOUR, KIB, KeyKind, MIB, SECOND, key, optional_key},
    config_reader::{ConfigReader, host, read_secret_file, text},
    field_error::{InvalidReason, describe, invalid_value},
};

const TASK_TTL: KeyKind = KeyKind::Duration { min: SECOND, max: DAY.saturating_mul(365) };

/// The keys of the section `node`.
pub(super) const NODE: &[ConfigKey] = &[
    optional_key(
        "id",
        KeyKind::NodeId,
        "broker-1",
        "Name of this process in logs. Absent: the host name and four random characters.",
    ),
    optional_key(
        "advertise",
        KeyKind::HostPort,
        "broker-1.internal:7400",
        "Address at which other replicas reach `listen.internal`. Absent: the address that the listener is bound to, which must then be a single address, not a wildcard.",
    ),
    optional_key(
        "secret",
        KeyKind::Secret { bytes_min: 16 },
        "\"at-least-16-characters\"",
        "Root secret. It decrypts the root key in the database. The broker derives from it the keys that encrypt credentials, hash API keys and authenticate replicas. All processes with the same database need the same secret. Absent: created once, in `secret.key` next to an SQLite database. To change it, set `node.secret_previous` too.",
    ),
    optional_key(
        "secret_file",
        KeyKind::SecretFile { bytes_min: 16 },
        "/etc/mcp-broker/secret",
        "File to read `node.secret` from.",
    ),
    optional_key(
        "secret_previous",
        KeyKind::Secret { bytes_min: 16 },
        "\"the-secret-until-now\"",
        "Root secret that `node.secret` replaces. API keys, credentials and sessions stay valid. Remove it when every replica has the new secret: the previous one then decrypts nothing, and the broker encrypts credentials again. Absent, with SQLite: `secret.key.previous` next to the database, if that exists.",
    ),
    optional_key(
        "secret_previous_file",
        KeyKind::SecretFile { bytes_min: 16 },
        "/etc/mcp-broker/secret.previous",
        "File to read `node.secret_previous` from.",
    ),
];

/// The keys of the section `tasks`.
pub(super) const TASKS: &[ConfigKey] = &[
    key("enabled", KeyKind::Bool, "true", "Offers tasks to clients."),
    key(
        "ttl",
        TASK_TTL,
        "1h",
        "How long the broker keeps a task and its result after its creation, when the client requests no time.",
    ),
    key(
        "ttl_max",
        TASK_TTL,
        "24h",
        "Longest time that a client gets. A client that requests more gets this time.",
    ),
    key(
        "poll_interval",
        KeyKind::Duration { min: Duration::from_millis(100), max: HOUR },
        "1s",
        "Interval at which clients should poll the status of a task.",
    ),
    key(
        "promote",
        KeyKind::Bool,
        "true",
        "Answers long calls of clients that declare the extension of tasks (2026-07-28) with a task. The client fetches the result from the task.",
    ),
    key(
        "promote_after",
        KeyKind::Duration { min: Duration::from_millis(100), max: HOUR },
        "10s",
        "How long a call can take before it becomes such a task. A call for which the backend creates a task becomes one at once. The call then counts among the tasks and no longer in `limits.calls_in_flight_per_tenant`. It keeps its permits in `limits.calls_in_flight` and at the backend.",
    ),
    key("running_per_tenant", COUNT, "1000", "Unfinished tasks of one tenant."),
    key("stored_per_tenant", COUNT, "100000", "Tasks of one tenant, finished ones included."),
    key(
        "bytes_per_tenant",
        KeyKind::Size { min: MIB, max: 1024 * GIB },
        "1GiB",
        "Bytes of the requests, open questions, answers to them, and results of all tasks of one tenant.",
    ),
    key(
        "result_bytes",
        KeyKind::Size { min: KIB, max: 256 * MIB },
        "16MiB",
        "Largest result of a task. A task with a larger result fails.",
    ),
];

impl ConfigReader<'_> {
    pub(super) fn node(&mut self) -> NodeConfig {
        let id = self.optional("node.id", |value, _| {
            text(value)
                .filter(|text| is_node_id(text))
                .map(str::to_owned)
                .ok_or_else(|| invalid_value(value))
        });
        let advertise = self.optional("node.advertise", |value, _| {
            text(value).and_then(host_port).ok_or_else(|| invalid_value(value))
        });
        NodeConfig {
            id: id.unwrap_or_else(generated_node_id),
            advertise,
            secret: self.secret("node.secret", "node.secret_file"),
            secret_previous: self.secret("node.secret_previous", "node.secret_previous_file"),
        }
    }

    pub(super) fn storage(&mut self) -> StorageConfig {
        let database = self.url("storage.url", "storage.url_file", database);
        let file = |path: &str| self.raw.value(path).and_then(text).map(PathBuf::from);
        let (url_file, redis_url_file) = (file("storage.url_file"), file("storage.redis_url_file"));
        StorageConfig {
            database: database.unwrap_or_else(|| {
                self.default("storage.url", |value, _| database_default(text(value)))
            }),
            url_file,
            redis_url: self.url("storage.redis_url", "storage.redis_url_file", redis_url),
            redis_url_file,
            migrate_on_start: self.bool("storage.migrate_on_start"),
        }
    }

    pub(super) fn tasks(&mut self) -> TaskConfig {
        let tasks = TaskConfig {
            enabled: self.bool("tasks.enabled"),
            ttl: self.duration("tasks.ttl"),
            ttl_max: self.duration("tasks.ttl_max"),
            poll_interval: self.duration("tasks.poll_interval"),
            promote: self.bool("tasks.promote"),
            promote_after: self.duration("tasks.promote_after"),
            running_per_tenant: self.count("tasks.running_per_tenant") as usize,
            stored_per_tenant: self.count("tasks.stored_per_tenant") as usize,
            bytes_per_tenant: self.size("tasks.bytes_per_tenant"),
            result_bytes: self.size("tasks.result_bytes"),
        };
        if tasks.ttl > tasks.ttl_max {
            self.report("tasks.ttl", "is longer than tasks.ttl_max", "a time up to tasks.ttl_max");
        }
        if tasks.result_bytes > tasks.bytes_per_tenant {
            self.report(
                "tasks.result_bytes",
                "is more than tasks.bytes_per_tenant",
                "a size up to tasks.bytes_per_tenant",
            );
        }
        tasks
    }

    /// Checks settings that depend on each other.
    pub(super) fn replicas(&mut self, config: &Config) {
        if matches!(config.storage.database, DatabaseConfig::Postgres(_))
            && config.node.secret.is_none()
        {
            let wrong = "names a PostgreSQL database, but node.secret is not set: replicas could not read each other's data";
            self.report(
                "storage.url",
                wrong,
                "also node.secret or node.secret_file, the same on every replica",
            );
        }
        if matches!(config.storage.database, DatabaseConfig::Sqlite(_))
            && config.storage.redis_url.is_some()
        {
            let wrong = "is set together with an SQLite database: Redis connects replicas, and SQLite serves one process";
            self.report(
                "storage.redis_url",
                wrong,
                "leaving it out, or a postgres:// database in storage.url",
            );
        }
        match config.listen.internal {
            Some(address) if address.ip().is_unspecified() && config.node.advertise.is_none() => {
                let wrong = format!(
                    "{address} is not an address that other replicas can reach, and node.advertise is not set"
                );
                self.report(
                    "listen.internal",
                    &wrong,
                    "one address of this machine, or also node.advertise",
                );
            }
            None if config.node.advertise.is_some() => {
                self.report(
                    "node.advertise",
                    "has no effect: listen.internal is not set",
                    "also listen.internal, or leaving it out",
                );
            }
            _ => {}
        }
    }

    /// Reads a URL from a text or a file, but not both.
    fn url<T>(
        &mut self,
        path: &str,
        file_path: &str,
        parse: fn(&str) -> Result<T, InvalidReason>,
    ) -> Option<T> {
        let inline = self.optional(path, |value, _| match text(value) {
            Some(text) => parse(text),
            None => Err(format!("is {}", describe(value))),
        });
        let file = self.optional(file_path, |value, kind| match (text(value), kind) {
            (Some(path), KeyKind::SecretFile { bytes_min }) => {
                let secret = read_secret_file(path, bytes_min)?;
                parse(secret.expose())
                    .map_err(|wrong| format!("\"{path}\": the text of the file {wrong}"))
            }
            _ => Err(format!("is {}", describe(value))),
        });
        if self.raw.value(path).is_some() && self.raw.value(file_path).is_some() {
            self.report(file_path, &format!("is set together with {path}"), "one of the two");
        }
        inline.or(file)
    }
}

fn database_default(text: Option<&str>) -> Result<DatabaseConfig, InvalidReason> {
    database(text.unwrap_or_default())
}

pub(super) fn database(url: &str) -> Result<DatabaseConfig, InvalidReason> {
    if let Some(rest) =
        url.strip_prefix("postgres://").or_else(|| url.strip_prefix("postgresql://"))
    {
        if rest.is_empty() || !is_plain(rest) {
            return Err("is not a usable postgres: URL".to_owned());
        }
        storage::check_postgres_url(url)?;
        return Ok(DatabaseConfig::Postgres(Secret::new(url)));
    }
    let path = url
        .strip_prefix("sqlite:")
        .ok_or_else(|| "is neither an sqlite: nor a postgres: URL".to_owned())?;
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.contains(":memory:") {
        return Err("names an in-memory database, which would lose all data".to_owned());
    }
    if path.is_empty() || path.ends_with('/') || path.contains(['?', '\0']) {
        return Err("names no file".to_owned());
    }
    Ok(DatabaseConfig::Sqlite(PathBuf::from(path)))
}

/// Schemes of Redis. With `s` after `redis`, the connection has TLS.
const REDIS_SCHEMES: [&str; 7] = [
    "redis://",
    "rediss://",
    "redis+unix://",
    "redis+sentinel://",
    "rediss+sentinel://",
    "redis+cluster://",
    "rediss+cluster://",
];

/// Checks the scheme and the parts that it requires. The store of events reads the rest.
fn redis_url(url: &str) -> Result<Secret, InvalidReason> {
    let parts =
        REDIS_SCHEMES.into_iter().find_map(|scheme| Some((scheme, url.strip_prefix(scheme)?)));
    let Some((scheme, rest)) = parts.filter(|(_, rest)| !rest.is_empty() && is_plain(rest)) else {
        return Err("is not a usable Redis URL".to_owned());
    };
    let (hosts_and_path, _parameters) = rest.split_once('?').unwrap_or((rest, ""));
    let (_hosts, path) = hosts_and_path.split_once('/').unwrap_or((hosts_and_path, ""));
    if scheme.contains("+sentinel") && (path.is_empty() || path.starts_with('/')) {
        return Err("is not a usable Redis URL: it names no service after the sentinels".to_owned());
    }
    if scheme.contains("+cluster") && !matches!(path, "" | "0") {
        return Err("is not a usable Redis URL: a cluster has one database, 0".to_owned());
    }
    Ok(Secret::new(url))
}

/// Returns whether the text has only characters of a URL. Other characters must be percent-encoded.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn host_port(text: &str) -> Option<String> {
    let (name, port) = text.rsplit_once(':')?;
    let is_address = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .is_some_and(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok());
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    (is_port && (is_address || host(name).is_some())).then(|| text.to_owned())
}

fn is_node_id(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

fn generated_node_id() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String =
        host.trim().chars().filter(|char| is_node_id(&char.to_string())).take(59).collect();
    let host = if host.is_empty() { "broker" } else { &host };
    format!("{host}-{:04x}", rand::random::<u16>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_from;

    const SECRET: &str = "node: {secret: 0123456789abcdef}";

    fn load(text: &str) -> Config {
        load_from(text, []).unwrap_or_else(|faults| panic!("{text}\n{faults}"))
    }

    fn assert_fault(text: &str, start: &str) {
        let faults = load_from(text, []).err().map(|faults| faults.to_string()).unwrap_or_default();
        assert!(
            faults.lines().any(|fault| fault.starts_with(start)),
            "{text}\nno fault starts with {start:?} in {faults}"
        );
        assert!(!faults.contains("hush"), "{faults}");
    }

    #[test]
    fn a_database_is_a_file_or_a_server() {
        for (url, path) in [
            ("sqlite:a.db", "a.db"),
            ("sqlite:/a/b.db", "/a/b.db"),
            ("sqlite:///a/b.db", "/a/b.db"),
            ("sqlite://b.db", "b.db"),
        ] {
            assert_eq!(
                load(&format!("storage: {{url: '{url}'}}")).storage.database,
                DatabaseConfig::Sqlite(PathBuf::from(path))
            );
        }
        for url in ["postgres://user:hush@db/x", "postgresql:///x?host=/run/postgresql"] {
            let config = load(&format!("storage: {{url: '{url}'}}\n{SECRET}"));
            assert_eq!(config.storage.database, DatabaseConfig::Postgres(Secret::new(url)));
            assert!(!format!("{config:?}").contains("hush"));
        }
        assert_fault(
            "storage: {url: 'sqlite::memory:'}",
            "storage.url: names an in-memory database",
        );
        for url in [
            "",
            "mysql://u:hush@x",
            "sqlite:",
            "sqlite:a/",
            "sqlite:a?mode=ro",
            "postgres://",
            "postgres://u:hush @db",
        ] {
            assert_fault(&format!("storage: {{url: '{url}'}}\n{SECRET}"), "storage.url: ");
        }
    }

    #[test]
    fn postgres_requires_a_node_secret_and_redis_requires_postgres() {
        assert_fault(
            "storage: {url: 'postgres://u:hush@db/x'}",
            "storage.url: names a PostgreSQL database, but node.secret is not set",
        );
        let wrong = "storage.redis_url: is set together with an SQLite database";
        assert_fault("storage: {redis_url: 'redis://:hush@redis'}", wrong);
        let both = format!(
            "storage: {{url: 'postgres://db/x', redis_url: 'rediss://:hush@redis:6379/0'}}\n{SECRET}"
        );
        let config = load(&both);
        assert!(config.storage.redis_url.is_some() && !format!("{config:?}").contains("hush"));
        for url in ["redis+sentinel://:hush@a:1,b:2/s/0", "rediss+cluster://:hush@a,b"] {
            load(&format!("storage: {{url: 'postgres://db/x', redis_url: '{url}'}}\n{SECRET}"));
        }
        for url in [
            "http://hush",
            "redis://",
            "redis:hush",
            "redis://a hush",
            "redis+sentinel:hush",
            "rediss+unix://hush",
            "redis+cluster://",
            "redis+sentinel://:hush@a:1,b",
            "redis+sentinel://:hush@a/?sentinel_password=x",
            "rediss+cluster://:hush@a,b/1",
        ] {
            assert_fault(
                &format!("storage: {{url: 'postgres://db/x', redis_url: '{url}'}}\n{SECRET}"),
                "storage.redis_url: is not a usable",
            );
        }
    }

    #[test]
    fn urls_can_be_kept_in_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (database, redis, wrong) = (
            file("db", "postgres://u:hush@db/x\n"),
            file("redis", "redis://r"),
            file("wrong", "hush"),
        );
        let config = load(&format!(
            "storage: {{url_file: '{database}', redis_url_file: '{redis}'}}\n{SECRET}"
        ));
        assert_eq!(
            config.storage.database,
            DatabaseConfig::Postgres(Secret::new("postgres://u:hush@db/x"))
        );
        assert!(config.storage.redis_url.is_some());
        assert_fault(&format!("storage: {{url_file: '{wrong}'}}"), "storage.url_file: ");
        assert_fault(
            &format!("storage: {{url: 'sqlite:a.db', url_file: '{database}'}}\n{SECRET}"),
            "storage.url_file: is set together with",
        );
        assert_fault(
            "storage: {url_file: /does/not/exist}",
            "storage.url_file: \"/does/not/exist\" cannot be read",
        );
    }

    #[test]
    fn an_internal_listener_needs_an_address_that_replicas_can_reach() {
        assert_eq!(
            load("listen: {internal: '127.0.0.1:7400'}").listen.internal,
            Some("127.0.0.1:7400".parse().unwrap())
        );
        assert_fault(
            "listen: {internal: '0.0.0.0:7400'}",
            "listen.internal: 0.0.0.0:7400 is not an address that other replicas can reach",
        );
        assert_fault(
            "listen: {internal: '127.0.0.1:8080'}",
            "listen.internal: 127.0.0.1:8080 is taken by listen.http",
        );
        for advertise in ["broker-1.internal:7400", "[fd00::1]:7400", "10.0.0.5:1"] {
            let config = load(&format!(
                "listen: {{internal: '0.0.0.0:7400'}}\nnode: {{advertise: '{advertise}'}}"
            ));
            assert_eq!(config.node.advertise.as_deref(), Some(advertise));
        }
        for advertise in
            ["broker-1", ":7400", "a:0", "a:70000", "fd00::1:7400", "a b:1", "http://a:1"]
        {
            assert_fault(
                &format!(
                    "listen: {{internal: '0.0.0.0:7400'}}\nnode: {{advertise: '{advertise}'}}"
                ),
                "node.advertise: is \"",
            );
        }
        assert_fault("node: {advertise: 'a:1'}", "node.advertise: has no effect");
    }

    #[test]
    fn limits_of_tasks_and_leases_are_checked() {
        let tasks = load("").tasks;
        assert!(tasks.enabled);
        assert_eq!(
            [tasks.ttl, tasks.ttl_max, tasks.poll_interval].map(|time| time.as_secs()),
            [3_600, 86_400, 1]
        );
        assert_eq!((tasks.running_per_tenant, tasks.stored_per_tenant), (1_000, 100_000));
        assert_eq!((tasks.bytes_per_tenant, tasks.result_bytes), (1 << 30, 16 << 20));
        assert_fault("tasks: {ttl: 25h}", "tasks.ttl: is longer than tasks.ttl_max");
        assert_fault(
            "tasks: {bytes_per_tenant: 1MiB}",
            "tasks.result_bytes: is more than tasks.bytes_per_tenant",
        );
        assert_fault("session: {lease: 100ms}", "session.lease: is \"100ms\"");
        assert_eq!(load("session: {lease: 500ms}").session.lease.as_millis(), 500);
    }

    #[test]
    fn generated_node_names_are_valid() {
        assert!(is_node_id(&generated_node_id()));
        assert!(!is_node_id("a b") && !is_node_id("") && !is_node_id(&"x".repeat(65)));
    }
}
