//! Properties of a configuration key: kind, range and default, and the lookup of keys. The keys
//! themselves are in [`super::key_table`] and in the files of their sections.

use std::time::Duration;

use super::{
    log_filter::LOG_FILTER_ALLOWED,
    units::{format_duration, format_size, parse_duration, parse_size},
};

/// Smallest user id for children. Smaller ids belong to the system.
pub(super) const USER_MIN: u32 = 1_000;
/// Largest user id. The next number means no user.
pub(super) const USER_MAX: u32 = u32::MAX - 1;

/// All sections and keys of a configuration.
pub(super) struct KeyTable {
    pub(super) sections: &'static [KeySection],
    /// Documented keys and sections that this build does not support. Their use is an error, never
    /// ignored.
    pub(super) unavailable: &'static [&'static str],
    /// Two spellings of one setting. An environment variable for one replaces the other in the
    /// file.
    pub(super) aliases: &'static [(&'static str, &'static str)],
}

impl KeyTable {
    pub(super) fn section(&self, name: &str) -> Option<&'static KeySection> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// Returns the key at a dotted path.
    pub(super) fn find(&self, path: &str) -> Option<&'static ConfigKey> {
        let (section_name, key_name) = path.split_once('.')?;
        self.section(section_name)?.keys.iter().find(|key| key.name == key_name)
    }

    pub(super) fn unavailable(&self, path: &str) -> bool {
        self.unavailable.iter().any(|known| {
            path == *known || path.strip_prefix(*known).is_some_and(|rest| rest.starts_with('.'))
        })
    }

    /// Returns the second spelling of a setting, from its first one.
    pub(super) fn second_spelling(&self, path: &str) -> Option<&'static str> {
        let is_first = |(one, _): &&(&str, &str)| *one == path;
        self.aliases.iter().find(is_first).map(|(_, other)| *other)
    }

    /// Returns the other spelling of a setting.
    pub(super) fn alias(&self, path: &str) -> Option<&'static str> {
        self.aliases.iter().find_map(|(one, other)| {
            if *one == path { Some(*other) } else { (*other == path).then_some(*one) }
        })
    }
}

pub(super) struct KeySection {
    pub(super) name: &'static str,
    pub(super) doc: &'static str,
    pub(super) keys: &'static [ConfigKey],
}

pub(super) struct ConfigKey {
    pub(super) name: &'static str,
    pub(super) kind: KeyKind,
    pub(super) default: KeyDefault,
    pub(super) doc: &'static str,
}

/// Default of an absent key.
#[derive(Clone, Copy)]
pub(super) enum KeyDefault {
    /// Value as written in the file.
    Value(&'static str),
    /// No value. The example is a valid value.
    None { example: &'static str },
}

#[derive(Clone, Copy)]
pub(super) enum KeyKind {
    Address,
    Bool,
    Count {
        min: u64,
        max: u64,
    },
    Duration {
        min: Duration,
        max: Duration,
    },
    Size {
        min: usize,
        max: usize,
    },
    Choice(&'static [&'static str]),
    NodeId,
    /// A host name or an IP address, and a port.
    HostPort,
    /// May hold a password, so the broker never shows it.
    StorageUrl,
    /// May hold a password, so the broker never shows it.
    RedisUrl,
    LogFilter,
    /// Never shown and never logged. The number is the minimum length in bytes.
    Secret {
        bytes_min: usize,
    },
    /// Path of a file.
    Path,
    /// Path of a file that holds a secret.
    SecretFile {
        bytes_min: usize,
    },
    Origins,
    Hosts,
    Networks,
    /// A share from the minimum, in percent, to one.
    Ratio {
        percent_min: u32,
    },
    /// A map from a method to its deadline.
    Deadlines,
    /// A map from the name of a profile to its sizes by wire.
    MessageProfiles,
    /// Name of a profile.
    MessageProfile,
    Commands,
    /// List of absolute paths.
    Folders,
    /// An absolute path.
    Folder,
    /// First and last user id.
    UserRange,
    HttpUrl,
    /// List of tenants and principals.
    Callers,
    /// List of maps.
    Issuers,
    /// List of maps.
    Operators,
}

impl KeyKind {
    /// Returns whether the text of an environment variable is the value itself. Otherwise it is
    /// parsed as a YAML value.
    pub(super) fn is_text(self) -> bool {
        !matches!(
            self,
            Self::Bool
                | Self::Count { .. }
                | Self::Origins
                | Self::Hosts
                | Self::Networks
                | Self::Ratio { .. }
                | Self::Deadlines
                | Self::MessageProfiles
                | Self::Commands
                | Self::Folders
                | Self::Callers
                | Self::Issuers
                | Self::Operators
        )
    }

    pub(super) fn allowed(self) -> String {
        match self {
            Self::Address => "an IP address and a port, such as 127.0.0.1:8080 or [::1]:0".into(),
            Self::Bool => "true or false".into(),
            Self::Count { min, max } => format!("a whole number from {min} to {max}"),
            Self::Duration { min, max } => {
                format!("a duration from {} to {}, such as {}", format_duration(min), format_duration(max), example_durations(min, max))
            }
            Self::Size { min, max } => format!("a size from {} to {}, such as {}", format_size(min), format_size(max), example_sizes(min, max)),
            Self::Choice(choices) => choices.join(", "),
            Self::NodeId => "1 to 64 characters of A-Z a-z 0-9 . _ -".into(),
            Self::HostPort => "a host name or an IP address and a port, such as broker-1.internal:7400 or [fd00::1]:7400".into(),
            Self::StorageUrl => "sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE".into(),
            Self::RedisUrl => {
                "redis://HOST, redis+unix://PATH, redis+sentinel://HOST,HOST/SERVICE or redis+cluster://HOST,HOST; with TLS rediss://, rediss+sentinel:// or rediss+cluster://".into()
            }
            Self::LogFilter => LOG_FILTER_ALLOWED.into(),
            Self::Secret { bytes_min } => {
                format!("text in quotes of {bytes_min} to {SECRET_BYTES_MAX} visible ASCII characters without spaces")
            }
            Self::SecretFile { bytes_min } => {
                format!("the path of a file with one line of {bytes_min} to {SECRET_BYTES_MAX} visible ASCII characters without spaces")
            }
            Self::Path => "the path of a file".into(),
            Self::Origins => "a list of origins, such as [\"https://app.example.com\"]".into(),
            Self::Hosts => "a list of host names without port, such as [\"broker.example.com\"]".into(),
            Self::Ratio { percent_min } => format!("a number from {} to 1", f64::from(percent_min) / 100.0),
            Self::MessageProfiles => "a map from names to sizes by wire (default, http, websocket, tcp, quic, stdio), such as {small: {default: 256KiB, websocket: 64KiB}}".into(),
            Self::MessageProfile => "standard, 1MB, ws-64k, or a name of limits.message_profiles".into(),
            Self::Deadlines => "a map from methods to durations, such as {resources/read: 10s}".into(),
            Self::Folders => "a list of absolute paths, without .., such as [\"/etc/mcp-broker/clients\"]".into(),
            Self::Folder => "an absolute path, without .., such as /var/lib/mcp-broker/homes".into(),
            Self::UserRange => format!("FIRST-LAST, with numbers from {} to {}, such as 200000-265535", USER_MIN, USER_MAX),
            Self::Commands => "a list of commands, and of folders that end with /, such as [\"npx\", \"/opt/mcp/\"], each alone or as {command: npx, env: [names of variables]}".into(),
            Self::HttpUrl => "an http or https URL".into(),
            Self::Callers => "a list of TENANT, TENANT/PRINCIPAL or \"*\"".into(),
            Self::Issuers => "a list of authorization servers, each a map with issuer and tenant at least".into(),
            Self::Operators => "a list of operators, each a map with name, role, and token_file or token".into(),
            Self::Networks => "a list of networks, such as [\"10.1.0.0/16\", \"fd00::/8\"]".into(),
        }
    }
}

impl KeyKind {
    /// Returns the permitted values of an entry of a list.
    pub(super) fn entry_allowed(self) -> String {
        match self {
            Self::Origins => "an origin, such as https://app.example.com".into(),
            Self::Hosts => "a host name without port, such as broker.example.com".into(),
            Self::Networks => "a network, such as 10.1.0.0/16 or fd00::/8".into(),
            Self::Folders => Self::Folder.allowed(),
            Self::Callers => "TENANT, TENANT/PRINCIPAL or \"*\"".into(),
            Self::Commands => "a command, or a folder that ends with /, alone or as {command: npx, env: [names of variables]}".into(),
            other => other.allowed(),
        }
    }
}

pub(super) const SECRET_BYTES_MAX: usize = 4_096;

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const HOUR: Duration = Duration::from_secs(3_600);
pub(super) const DAY: Duration = Duration::from_secs(86_400);
pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const KIB: usize = 1 << 10;
pub(super) const MIB: usize = 1 << 20;
pub(super) const GIB: usize = 1 << 30;

/// Returns examples of durations between two bounds, the short ones first.
fn example_durations(min: Duration, max: Duration) -> String {
    let is_fitting =
        |text: &&str| parse_duration(text).is_ok_and(|duration| (min..=max).contains(&duration));
    let fitting = ["250ms", "30s", "5m", "12h", "7d", "365d"].into_iter().filter(is_fitting);
    alternatives(&fitting.take(3).collect::<Vec<_>>(), format_duration(max))
}

/// Returns examples of sizes between two bounds, the small ones first.
fn example_sizes(min: usize, max: usize) -> String {
    let is_fitting = |text: &&str| parse_size(text).is_ok_and(|size| (min..=max).contains(&size));
    let fitting = ["64KiB", "16MiB", "1GiB", "64GiB"].into_iter().filter(is_fitting);
    alternatives(&fitting.take(2).collect::<Vec<_>>(), format_size(max))
}

/// Returns a text with all examples, or with the bound if there is none.
fn alternatives(examples: &[&str], bound: String) -> String {
    match examples {
        [] => bound,
        [only] => (*only).to_owned(),
        [others @ .., last] => format!("{} or {last}", others.join(", ")),
    }
}

/// Shortest and longest deadline, here and in a backend's own `timeouts`.
pub(super) const DEADLINE_MIN: Duration = MS;
pub(super) const DEADLINE_MAX: Duration = HOUR;
pub(super) const DEADLINE: KeyKind = KeyKind::Duration { min: DEADLINE_MIN, max: DEADLINE_MAX };
/// Range of the total time of a call, which renewed deadlines do not extend.
pub(super) const CALL_MAX: KeyKind = KeyKind::Duration { min: DEADLINE_MIN, max: DAY };
/// Upper bound of counts of things held in memory.
pub(super) const COUNT_MAX: u64 = 1_000_000;
pub(super) const COUNT: KeyKind = KeyKind::Count { min: 1, max: COUNT_MAX };

pub(super) const fn key(
    name: &'static str,
    kind: KeyKind,
    default: &'static str,
    doc: &'static str,
) -> ConfigKey {
    ConfigKey { name, kind, default: KeyDefault::Value(default), doc }
}

pub(super) const fn optional_key(
    name: &'static str,
    kind: KeyKind,
    example: &'static str,
    doc: &'static str,
) -> ConfigKey {
    ConfigKey { name, kind, default: KeyDefault::None { example }, doc }
}

/// Returns whether the text fits into a header: visible ASCII, no spaces.
pub(super) fn is_secret(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= SECRET_BYTES_MAX
        && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_within_their_range() {
        for (min, max, shown) in [
            (MS, HOUR, "a duration from 1ms to 1h, such as 250ms, 30s or 5m"),
            (HOUR, 3_660 * DAY, "a duration from 1h to 87840h, such as 12h, 7d or 365d"),
            (SECOND, 10 * SECOND, "a duration from 1s to 10s, such as 10s"),
        ] {
            assert_eq!(KeyKind::Duration { min, max }.allowed(), shown);
        }
        for (min, max, shown) in [
            (KIB, 64 * MIB, "a size from 1KiB to 64MiB, such as 64KiB or 16MiB"),
            (MIB, GIB, "a size from 1MiB to 1GiB, such as 16MiB or 1GiB"),
            (1, KIB, "a size from 1 to 1KiB, such as 1KiB"),
        ] {
            assert_eq!(KeyKind::Size { min, max }.allowed(), shown);
        }
    }
}
