//! Child processes: the limits of one backend (`transport.limits`), the limits of all (section
//! `stdio`), and the permitted commands. Read with the rest by [`super::validation`] and
//! [`super::spec_parser`].
//!
//! Invariant: a command that the operator did not list is refused at registration and again before
//! each start.

use std::{collections::BTreeMap, ops::RangeInclusive, path::PathBuf, time::Duration};

use serde_json::Value;
use transport::child_launcher::ResourceLimits;

use super::{
    commands::{self, AllowedCommand},
    config_key::{COUNT, COUNT_MAX, ConfigKey, DEADLINE_MAX, KeyKind, SECOND, key, optional_key},
    config_reader::{ConfigReader, duration},
    field_error::{FieldError, join},
    range::{check_count, check_duration, check_size},
    sandbox::{self, SandboxMode},
    transport_spec::{StdioLimits, TransportSpec},
};

/// Path of a backend's limits in its body.
const PATH: &str = "transport.limits";
/// Minimum memory. Few interpreters start with less.
const MEMORY_MIN: usize = 16 << 20;
const MEMORY: KeyKind = KeyKind::Size { min: MEMORY_MIN, max: 1024 << 30 };
/// Range of open files. A process with fewer cannot start.
const OPEN_FILES: KeyKind = KeyKind::Count { min: 16, max: COUNT_MAX };
const CHILD_TIME: KeyKind = KeyKind::Duration { min: SECOND, max: LIFETIME_MAX };

/// Keys of the section `stdio`.
pub(super) const KEYS: &[ConfigKey] = &[
    optional_key(
        "commands",
        KeyKind::Commands,
        "[\"npx\", {\"command\": \"/opt/mcp/\", \"env\": [\"LOG_LEVEL\"]}]",
        "Commands that the broker can run, as written in `transport.command`. An entry that ends with `/` allows the programs in that folder. A backend can then set only the variables that `env` names for its command. Absent: any command and any variable.",
    ),
    key(
        "sandbox",
        KeyKind::Choice(sandbox::MODES),
        "auto",
        "How the broker confines children. `uid`: one user for each tenant. `landlock`: kernel rules for files and connections. `auto`: both where the host offers them; the broker refuses the backend if the host offers neither. `off`: no confinement, so a child can read the secrets of the broker.",
    ),
    key(
        "uid_range",
        KeyKind::UserRange,
        "200000-265535",
        "User ids, and equal group ids, of the children of tenants. Nothing else on the host may use them. Two brokers on one host need separate ranges.",
    ),
    optional_key(
        "homes",
        KeyKind::Folder,
        "/var/lib/mcp-broker/homes",
        "Folder with a home for the children of each tenant. Absent: `homes` next to an SQLite database, else `.mcp-broker/homes` in the home of the broker.",
    ),
    key("children_per_tenant", COUNT, "256", "Child processes of one tenant's backends."),
    key("memory", MEMORY, "4GiB", "Private memory of each process of a child (RLIMIT_DATA)."),
    key("open_files", OPEN_FILES, "1024", "Open descriptors of each process of a child."),
    optional_key(
        "processes",
        COUNT,
        "512",
        "Processes and threads of the child's user. Beyond it, a child cannot start more (RLIMIT_NPROC). It counts everything that the user runs. If `sandbox` gives each tenant a user, these are all children of the tenant; otherwise it is everything of the broker's user. It does not apply to root. Absent: no limit.",
    ),
    optional_key(
        "cpu",
        CHILD_TIME,
        "1h",
        "Processor time of each process of a child. The kernel kills a process that exceeds it. Absent: no limit.",
    ),
    optional_key(
        "idle",
        CHILD_TIME,
        "30m",
        "The broker ends a child of sessions that got no request for this long and has no subscribers. The child loses its state of those sessions; the next request starts another child. Absent: the child ends with the sessions that use it.",
    ),
    optional_key(
        "lifetime",
        CHILD_TIME,
        "12h",
        "The broker ends a child of sessions that has run for this time, as soon as no request waits for it. The next request starts another child. Absent: no limit.",
    ),
];

/// Settings of the section `stdio`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StdioConfig {
    /// Permitted commands. `None`: every command.
    pub commands: Option<Vec<AllowedCommand>>,
    pub sandbox: SandboxMode,
    /// User ids for children, one per tenant.
    pub uid_range: RangeInclusive<u32>,
    /// Folder of the children's homes, if configured.
    pub homes: Option<PathBuf>,
    pub children_per_tenant: usize,
    pub defaults: StdioLimits,
}

/// Limits in force for the children of one backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectiveChildLimits {
    pub resources: ResourceLimits,
    pub idle: Option<Duration>,
    pub lifetime: Option<Duration>,
}

impl StdioConfig {
    pub fn effective_limits(&self, own: &StdioLimits) -> EffectiveChildLimits {
        let common = &self.defaults;
        EffectiveChildLimits {
            resources: ResourceLimits {
                memory: own.memory.or(common.memory).map(|bytes| bytes as u64),
                processes: own.processes.or(common.processes).map(u64::from),
                open_files: own.open_files.or(common.open_files).map(u64::from),
                cpu: own.cpu.or(common.cpu),
            },
            idle: own.idle.or(common.idle),
            lifetime: own.lifetime.or(common.lifetime),
        }
    }

    /// Checks that this backend's command is permitted.
    pub fn check(&self, transport: &TransportSpec) -> Result<(), FieldError> {
        self.commands.as_ref().map_or(Ok(()), |allowed| commands::check(allowed, transport))
    }
}

impl ConfigReader<'_> {
    pub(super) fn stdio(&mut self) -> StdioConfig {
        let count = |value: &Value, kind| super::config_reader::count(value, kind);
        StdioConfig {
            commands: self.commands(),
            sandbox: self.sandbox_mode(),
            uid_range: self.user_range(),
            homes: self.homes(),
            children_per_tenant: self.count("stdio.children_per_tenant") as usize,
            defaults: StdioLimits {
                memory: Some(self.size("stdio.memory")),
                processes: self.optional("stdio.processes", count),
                open_files: Some(self.count("stdio.open_files")),
                cpu: self.optional("stdio.cpu", duration),
                idle: self.optional("stdio.idle", duration),
                lifetime: self.optional("stdio.lifetime", duration),
            },
        }
    }
}

/// Checks the rules that the types do not express.
pub(super) fn check_limits(limits: &StdioLimits, faults: &mut Vec<FieldError>) {
    let StdioLimits { memory, processes, open_files, cpu, idle, lifetime } = limits;
    check_size(join(PATH, "memory"), *memory, MEMORY, faults);
    check_count(join(PATH, "processes"), processes.map(u64::from), COUNT, faults);
    check_count(join(PATH, "open_files"), open_files.map(u64::from), OPEN_FILES, faults);
    for (name, time) in [("cpu", cpu), ("idle", idle), ("lifetime", lifetime)] {
        check_duration(join(PATH, name), *time, CHILD_TIME, faults);
    }
}

/// Longest lifetime of a child.
const LIFETIME_MAX: Duration = Duration::from_secs(DEADLINE_MAX.as_secs() * 24 * 30);

/// Returns a child with this command and no other settings.
pub fn child(command: String, args: Vec<String>) -> TransportSpec {
    TransportSpec::Stdio {
        command,
        args,
        env: BTreeMap::new(),
        cwd: None,
        limits: StdioLimits::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{load_from, spec_parser::parse_backend_spec};

    fn stdio(yaml: &str) -> StdioConfig {
        load_from(yaml, []).unwrap_or_else(|faults| panic!("{yaml}: {faults}")).stdio
    }

    #[test]
    fn the_limits_of_a_backend_override_the_global_limits() {
        let all = stdio("stdio: {memory: 1GiB, open_files: 64, lifetime: 1h}");
        let own =
            StdioLimits { memory: Some(MEMORY_MIN), processes: Some(5), ..StdioLimits::default() };
        let rules = all.effective_limits(&own);
        assert_eq!(
            rules.resources,
            ResourceLimits {
                memory: Some(MEMORY_MIN as u64),
                processes: Some(5),
                open_files: Some(64),
                cpu: None
            }
        );
        assert_eq!((rules.idle, rules.lifetime), (None, Some(Duration::from_secs(3_600))));
    }

    #[test]
    fn limits_out_of_range_are_faults() {
        let body = |limits: Value| serde_json::json!({"transport": {"type": "stdio", "command": "x", "limits": limits}});
        let good = serde_json::json!({"memory": "512MiB", "processes": 9, "open_files": 64, "cpu": "1m", "idle": "5m", "lifetime": "2h"});
        let spec = parse_backend_spec(&body(good)).unwrap();
        assert_eq!(serde_json::to_value(&spec).unwrap()["transport"]["limits"]["memory"], "512MiB");
        for (limits, path) in [
            (serde_json::json!({"memory": "1MiB"}), "transport.limits.memory"),
            (serde_json::json!({"memory": "1MB"}), "transport.limits.memory"),
            (serde_json::json!({"processes": 0}), "transport.limits.processes"),
            (serde_json::json!({"open_files": 3}), "transport.limits.open_files"),
            (serde_json::json!({"cpu": "10ms"}), "transport.limits.cpu"),
            (serde_json::json!({"lifetime": 5}), "transport.limits.lifetime"),
            (serde_json::json!({"ram": 5}), "transport.limits.ram"),
            (serde_json::json!(5), "transport.limits"),
        ] {
            let faults = parse_backend_spec(&body(limits.clone())).unwrap_err();
            assert!(faults.iter().any(|fault| fault.path == path), "{limits}: {faults:?}");
        }
    }
}
