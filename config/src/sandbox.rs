//! Confinement of child processes: the keys `stdio.sandbox`, `stdio.uid_range` and `stdio.homes`,
//! and the rules of one backend for its children (`sandbox`). Read with the rest by
//! [`super::stdio`] and [`super::spec_parser`].

use std::{
    ops::RangeInclusive,
    path::{Component, Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    config_key::{KeyKind, USER_MAX, USER_MIN},
    config_reader::{ConfigReader, text},
    field_error::{FieldError, InvalidReason, element, invalid_value, join},
    transport_spec::TransportSpec,
};

pub(super) const MODES: &[&str] = &["auto", "uid", "landlock", "off"];

const PATH: &str = "sandbox";
const PATHS_MAX: usize = 64;
const PATHS_ALLOWED: &str = "an absolute path without .., such as /srv/files";

/// `stdio.sandbox`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxMode {
    /// Users and Landlock, if the host supports them. At least one is required.
    Auto,
    /// One user per tenant.
    Uid,
    Landlock,
    /// Children run as the broker's user, with all its rights.
    Off,
}

/// Access of one backend's children, in addition to the default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxRules {
    /// Files and folders that may be read and executed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(example = json!(["/srv/reference"]))]
    pub read: Vec<String>,
    /// Files and folders that may be changed too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(example = json!(["/srv/files"]))]
    pub write: Vec<String>,
    /// True if sockets of the internet protocols may be opened.
    #[serde(skip_serializing_if = "is_true")]
    pub network: bool,
}

impl Default for SandboxRules {
    fn default() -> Self {
        Self { read: Vec::new(), write: Vec::new(), network: true }
    }
}

impl SandboxRules {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn is_true(value: &bool) -> bool {
    *value
}

impl ConfigReader<'_> {
    pub(super) fn sandbox_mode(&mut self) -> SandboxMode {
        self.value("stdio.sandbox", |value, _| match text(value) {
            Some("auto") => Ok(SandboxMode::Auto),
            Some("uid") => Ok(SandboxMode::Uid),
            Some("landlock") => Ok(SandboxMode::Landlock),
            Some("off") => Ok(SandboxMode::Off),
            _ => Err(invalid_value(value)),
        })
    }

    pub(super) fn user_range(&mut self) -> RangeInclusive<u32> {
        self.value("stdio.uid_range", user_range)
    }

    pub(super) fn homes(&mut self) -> Option<PathBuf> {
        self.optional("stdio.homes", |value, _| {
            text(value)
                .filter(|text| is_path(text))
                .map(PathBuf::from)
                .ok_or_else(|| invalid_value(value))
        })
    }
}

fn user_range(value: &Value, _: KeyKind) -> Result<RangeInclusive<u32>, InvalidReason> {
    let parsed = || {
        let (first, last) = text(value)?.split_once('-')?;
        Some((first.parse::<u32>().ok()?, last.parse::<u32>().ok()?))
    };
    let range =
        parsed().filter(|(first, last)| (USER_MIN..=*last).contains(first) && *last <= USER_MAX);
    range.map(|(first, last)| first..=last).ok_or_else(|| invalid_value(value))
}

/// Checks the rules that the types do not express.
pub(super) fn check(rules: &SandboxRules, transport: &TransportSpec, faults: &mut Vec<FieldError>) {
    if !rules.is_empty() && !matches!(transport, TransportSpec::Stdio { .. }) {
        let wrong =
            format!("is for child processes, which a {} backend does not have", transport.kind());
        faults.push(FieldError::new(PATH, wrong, "leaving it out"));
    }
    for (name, paths) in [("read", &rules.read), ("write", &rules.write)] {
        let path = join(PATH, name);
        if paths.len() > PATHS_MAX {
            faults.push(FieldError::new(
                &path,
                "has too many entries",
                format!("at most {PATHS_MAX}"),
            ));
        }
        for (at, _) in paths.iter().enumerate().filter(|(_, path)| !is_path(path)) {
            faults.push(FieldError::new(element(&path, at), "is not a path", PATHS_ALLOWED));
        }
    }
}

fn is_path(text: &str) -> bool {
    const BYTES_MAX: usize = 4_096;
    let climbs = Path::new(text).components().any(|part| part == Component::ParentDir);
    text.starts_with('/') && text.len() < BYTES_MAX && !text.contains('\0') && !climbs
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{load_from, spec_parser::parse_backend_spec};

    #[test]
    fn s03_children_are_confined_unless_the_sandbox_is_off() {
        let mode = |yaml: &str| load_from(yaml, []).unwrap().stdio.sandbox;
        assert_eq!(mode(""), SandboxMode::Auto);
        for (mode_name, expected) in [
            ("uid", SandboxMode::Uid),
            ("landlock", SandboxMode::Landlock),
            ("off", SandboxMode::Off),
        ] {
            assert_eq!(mode(&format!("stdio: {{sandbox: {mode_name}}}")), expected);
        }
        let faults = load_from("stdio: {sandbox: none}", []).unwrap_err().to_string();
        assert!(
            faults.contains("stdio.sandbox: is \"none\"; allowed: auto, uid, landlock, off"),
            "{faults}"
        );
    }

    #[test]
    fn s03_a_uid_range_must_not_include_system_users() {
        let range = |text: &str| {
            load_from(&format!("stdio: {{uid_range: '{text}'}}"), [])
                .map(|config| config.stdio.uid_range)
        };
        assert_eq!(range("200000-200000").unwrap(), 200_000..=200_000);
        for text in ["0-10", "999-2000", "2000-1999", "2000", "a-b", "5000-4294967295", "-5"] {
            assert!(range(text).is_err(), "{text}");
        }
    }

    #[test]
    fn s03_the_rules_of_a_backend_are_checked() {
        let body = |sandbox: Value| json!({"transport": {"type": "stdio", "command": "x"}, "sandbox": sandbox});
        let good = json!({"read": ["/srv/a"], "write": ["/srv/b"], "network": false});
        let spec = parse_backend_spec(&body(good.clone())).unwrap();
        assert_eq!(serde_json::to_value(&spec).unwrap()["sandbox"], good);
        let plain = parse_backend_spec(&body(json!({"network": true}))).unwrap();
        assert!(serde_json::to_value(&plain).unwrap().get("sandbox").is_none());
        for (sandbox, path) in [
            (json!({"read": "x"}), "sandbox.read"),
            (json!({"read": ["srv"]}), "sandbox.read[0]"),
            (json!({"write": ["/srv/../etc"]}), "sandbox.write[0]"),
            (json!({"network": "no"}), "sandbox.network"),
            (json!({"exec": []}), "sandbox.exec"),
            (json!([]), "sandbox"),
        ] {
            let faults = parse_backend_spec(&body(sandbox.clone())).unwrap_err();
            assert!(faults.iter().any(|fault| fault.path == path), "{sandbox}: {faults:?}");
        }
        let remote = json!({"transport": {"type": "http", "url": "http://a.example/"}, "sandbox": {"network": false}});
        assert_eq!(parse_backend_spec(&remote).unwrap_err()[0].path, "sandbox");
    }
}
