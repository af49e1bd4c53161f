//! The settings of the sections as they were read, with the source of each: defaults, the file, its
//! included files and the environment are merged. Operators see them through `control`, which masks
//! the rest of what may be secret.
//!
//! Invariant: a value of a kind that is a secret never gets here.

use std::{collections::BTreeMap, fmt};

use serde_json::Value;

use super::{
    MASK,
    config_key::{ConfigKey, KeyDefault, KeyKind},
    config_reader::as_value,
    field_error::join,
    included::{MAPS, full_name},
    raw_config::RawConfig,
};

/// All settings of the sections, in the order of the table of keys.
pub struct ConfigSettings {
    settings: Vec<Setting>,
    /// Sources of the tenants and backends, by dotted path.
    entries: BTreeMap<String, SettingOrigin>,
}

/// One key with its value.
pub struct Setting {
    pub section: &'static str,
    pub name: &'static str,
    /// `null` for an absent key without a default.
    pub value: Value,
    pub exposure: Exposure,
    /// `None`: the default.
    pub origin: Option<SettingOrigin>,
}

/// How much of a value operators may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposure {
    /// All of it.
    Whole,
    /// A URL, which may hold a password.
    Url,
    /// Maps whose members may be secret.
    Members,
    /// Nothing: the value is the mask.
    Hidden,
}

/// Source of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingOrigin {
    /// The configuration file.
    File,
    /// An environment variable.
    Variable(String),
    /// A file of `include.folder`.
    Included(String),
}

impl fmt::Debug for ConfigSettings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ConfigSettings({} keys)", self.settings.len())
    }
}

impl ConfigSettings {
    pub(super) fn of(raw: &RawConfig) -> Self {
        let keys = raw.table.sections.iter().flat_map(|section| {
            section.keys.iter().map(move |key| setting(raw, section.name, key))
        });
        Self { settings: keys.collect(), entries: entry_origins(raw) }
    }

    pub fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// Returns the source of a tenant or a backend at a path such as `backends.acme/files`.
    pub fn entry_origin(&self, path: &str) -> Option<&SettingOrigin> {
        self.entries.get(path)
    }
}

impl Setting {
    /// Returns the dotted path of the key.
    pub fn path(&self) -> String {
        join(self.section, self.name)
    }
}

fn setting(raw: &RawConfig, section: &'static str, key: &ConfigKey) -> Setting {
    let path = join(section, key.name);
    let other = raw.table.second_spelling(&path).filter(|other| raw.value(other).is_some());
    let (written_at, exposure) = match other {
        _ if raw.value(&path).is_some() => (Some(path.as_str()), exposure_of(key.kind)),
        // An absent key has the value of its other spelling, or of the file that this one names.
        Some(other) => match raw.key(other).kind {
            KeyKind::SecretFile { .. } => (Some(other), Exposure::Hidden),
            kind => (Some(other), exposure_of(kind)),
        },
        None => (None, exposure_of(key.kind)),
    };
    let value = match (written_at, key.default) {
        (Some(_), _) if exposure == Exposure::Hidden => Value::from(MASK),
        (Some(path), _) => raw.value(path).cloned().unwrap_or_default(),
        (None, KeyDefault::Value(default)) => as_value(key.kind, default),
        (None, KeyDefault::None { .. }) => Value::Null,
    };
    let origin = written_at.map(|path| raw.origin(path));
    Setting { section, name: key.name, value, exposure, origin }
}

/// Returns how much of a value of a kind operators may see.
fn exposure_of(kind: KeyKind) -> Exposure {
    match kind {
        KeyKind::Address
        | KeyKind::Bool
        | KeyKind::Count { .. }
        | KeyKind::Duration { .. }
        | KeyKind::Size { .. }
        | KeyKind::Choice(_)
        | KeyKind::NodeId
        | KeyKind::HostPort
        | KeyKind::LogFilter
        | KeyKind::Path
        // The path of the file.
        | KeyKind::SecretFile { .. }
        | KeyKind::Origins
        | KeyKind::Hosts
        | KeyKind::Networks
        | KeyKind::Ratio { .. }
        | KeyKind::Deadlines
        | KeyKind::MessageProfiles
        | KeyKind::MessageProfile
        | KeyKind::Commands
        | KeyKind::Folders
        | KeyKind::Folder
        | KeyKind::UserRange
        | KeyKind::Callers => Exposure::Whole,
        KeyKind::StorageUrl | KeyKind::RedisUrl | KeyKind::HttpUrl => Exposure::Url,
        KeyKind::Issuers | KeyKind::Operators => Exposure::Members,
        KeyKind::Secret { .. } => Exposure::Hidden,
    }
}

fn entry_origins(raw: &RawConfig) -> BTreeMap<String, SettingOrigin> {
    let names = |section| raw.map(section).into_iter().flat_map(|map| map.keys());
    let paths = MAPS.into_iter().flat_map(|section| {
        names(section).map(move |name| (section, join(section, &full_name(section, name))))
    });
    let origin = |(section, path): (&str, String)| {
        let included = raw.included_file(&path).map(SettingOrigin::Included);
        let origin = included.unwrap_or_else(|| raw.origin(section));
        (path, origin)
    };
    paths.map(origin).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_from;

    fn settings(text: &str, environment: &[(&str, &str)]) -> std::sync::Arc<ConfigSettings> {
        let variables =
            environment.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        load_from(text, variables).unwrap_or_else(|faults| panic!("{faults}")).settings
    }

    fn of<'s>(settings: &'s ConfigSettings, path: &str) -> &'s Setting {
        settings.settings.iter().find(|setting| setting.path() == path).unwrap()
    }

    #[test]
    fn a_setting_has_its_value_and_its_source() {
        let variables = [("MCP_BROKER__LIMITS__BURST", "7")];
        let file = "limits: {burst: 1, batch_calls: 3}\ntimeouts: {idle_session: 5m}\ntenants: {acme: {}}\nbackends: {acme/x: {transport: {type: http, url: 'http://127.0.0.1:9/'}}}";
        let settings = settings(file, &variables);
        let shown = |path: &str| {
            let setting = of(&settings, path);
            (setting.value.clone(), setting.origin.clone())
        };
        let variable = SettingOrigin::Variable("MCP_BROKER__LIMITS__BURST".to_owned());
        assert_eq!(shown("limits.burst"), (7.into(), Some(variable)));
        assert_eq!(shown("limits.batch_calls"), (3.into(), Some(SettingOrigin::File)));
        assert_eq!(shown("shutdown.grace"), ("25s".into(), None));
        assert_eq!(shown("listen.tcp"), (Value::Null, None));
        let idle = ("5m".into(), Some(SettingOrigin::File));
        assert_eq!(shown("session.idle"), idle, "the other spelling counts");
        for path in ["tenants.acme", "backends.acme/x"] {
            assert_eq!(settings.entry_origin(path), Some(&SettingOrigin::File), "{path}");
        }
    }

    #[test]
    fn a_setting_that_a_file_holds_is_hidden() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "canary-canary-canary").unwrap();
        let path = path.to_str().unwrap();
        let settings = settings(&format!("node: {{secret_file: '{path}'}}"), &[]);
        let secret = of(&settings, "node.secret");
        assert_eq!((&secret.value, secret.exposure), (&Value::from(MASK), Exposure::Hidden));
        assert_eq!(of(&settings, "node.secret_file").value, path);
        assert!(!format!("{settings:?}").contains("canary"));
    }
}
