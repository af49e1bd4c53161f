//! `pins` of a backend: whether its definitions are pinned, and which members they leave out.

use std::collections::BTreeMap;

use rules::pins::{IgnoredMembers, PinMode, ResultScan};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::field_error::{FieldError, element, join};

/// Largest number of patterns of ignored members, and of pointers for each.
const IGNORED_MAX: usize = 100;

/// Pins of a backend: a mode, or settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum PinSettings {
    Mode(PinMode),
    Rules(PinRules),
}

/// Settings of pins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PinRules {
    #[serde(default)]
    pub mode: PinMode,
    /// Members that change without a reason for a look, as JSON pointers, by the pattern of
    /// `KIND/NAME`, such as `tool/now`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ignore: BTreeMap<String, Vec<String>>,
    /// What happens to hidden characters in the results of tools.
    #[serde(default, skip_serializing_if = "is_off")]
    pub results: ResultScan,
}

fn is_off(scan: &ResultScan) -> bool {
    *scan == ResultScan::Off
}

impl Default for PinSettings {
    fn default() -> Self {
        Self::Mode(PinMode::default())
    }
}

impl PinSettings {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns what happens to hidden characters in the results of tools.
    pub fn results(&self) -> ResultScan {
        match self {
            Self::Mode(_) => ResultScan::Off,
            Self::Rules(rules) => rules.results,
        }
    }

    /// Returns the mode, and the members that are no part of definitions.
    pub fn rules(&self) -> (PinMode, IgnoredMembers) {
        let mut ignored = IgnoredMembers::default();
        match self {
            Self::Mode(mode) => (*mode, ignored),
            Self::Rules(rules) => {
                for (pattern, pointers) in &rules.ignore {
                    ignored.add(pattern, pointers);
                }
                (rules.mode, ignored)
            }
        }
    }
}

/// Checks what the types do not express.
pub(super) fn check(settings: &PinSettings, faults: &mut Vec<FieldError>) {
    let PinSettings::Rules(PinRules { ignore, .. }) = settings else { return };
    if ignore.len() > IGNORED_MAX {
        let allowed = format!("at most {IGNORED_MAX}");
        faults.push(FieldError::new("pins.ignore", "has too many entries", allowed));
    }
    for (pattern, pointers) in ignore {
        let path = join("pins.ignore", pattern);
        let kinds = ["tool", "prompt", "resource", "template", "*"];
        let kind = pattern.split_once('/').map(|(kind, _)| kind);
        if !kind.is_some_and(|kind| kinds.contains(&kind)) {
            let allowed = "KIND/NAME with tool, prompt, resource, template or *, such as tool/now";
            faults.push(FieldError::new(&path, "is not a pattern of objects", allowed));
        }
        if pointers.is_empty() || pointers.len() > IGNORED_MAX {
            let allowed = format!("1 to {IGNORED_MAX}");
            faults.push(FieldError::new(&path, "has no or too many pointers", allowed));
        }
        for (at, pointer) in pointers.iter().enumerate() {
            if !pointer.starts_with('/') || pointer.len() < 2 || is_name(pointer) {
                let allowed = "a JSON pointer to a member, such as /description, but not the name";
                let path = element(&path, at);
                faults.push(FieldError::new(path, "cannot be ignored", allowed));
            }
        }
    }
}

/// Returns whether a pointer leads to what names the object.
fn is_name(pointer: &str) -> bool {
    ["/name", "/uri", "/uriTemplate"].contains(&pointer)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::spec_parser::parse_backend_spec;

    fn read(pins: Value) -> Result<PinSettings, Vec<String>> {
        let body = json!({"transport": {"type": "http", "url": "http://a.example/"}, "pins": pins});
        match parse_backend_spec(&body) {
            Ok(spec) => Ok(spec.pins),
            Err(faults) => Err(faults.iter().map(ToString::to_string).collect()),
        }
    }

    #[test]
    fn pins_are_a_mode_or_settings() {
        for (text, mode) in [
            ("off", PinMode::Off),
            ("observe", PinMode::Observe),
            ("hold_changed", PinMode::HoldChanged),
            ("hold_all", PinMode::HoldAll),
        ] {
            assert_eq!(read(json!(text)), Ok(PinSettings::Mode(mode)));
            assert_eq!(read(json!({"mode": text})).unwrap().rules().0, mode);
        }
        let strip = read(json!({"results": "strip"})).unwrap();
        assert_eq!((strip.results(), strip.rules().0), (ResultScan::Strip, PinMode::Observe));
        let ignore = json!({"ignore": {"tool/now": ["/description"], "*/x": ["/a/b"]}});
        assert_eq!(read(ignore).unwrap().rules().0, PinMode::Observe);
        let body = json!({"transport": {"type": "http", "url": "http://a.example/"}});
        assert!(parse_backend_spec(&body).unwrap().pins.is_default());
    }

    #[test]
    fn every_fault_names_its_field() {
        for (pins, start) in [
            (json!("hold"), "pins: "),
            (json!(5), "pins: is a number"),
            (json!({"mode": "hold"}), "pins.mode: "),
            (json!({"modes": "off"}), "pins.modes: is not a known key"),
            (json!({"results": "drop"}), "pins.results: "),
            (json!({"ignore": {"now": ["/description"]}}), "pins.ignore.now: is not a pattern"),
            (json!({"ignore": {"tool/now": []}}), "pins.ignore.tool/now: has no or too many"),
            (json!({"ignore": {"tool/now": ["description"]}}), "pins.ignore.tool/now[0]: cannot"),
            (json!({"ignore": {"tool/now": ["/name"]}}), "pins.ignore.tool/now[0]: cannot"),
        ] {
            let faults = read(pins.clone()).unwrap_err();
            assert!(faults.iter().any(|fault| fault.starts_with(start)), "{pins}: {faults:?}");
        }
    }
}
