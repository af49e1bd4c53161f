//! Reads members of a body, each of its kind. Used by [`super::spec_parser`] and by the files that read parts of bodies.
//!
//! Invariant: what is not of its kind is a fault and read as absent; every fault is reported, with the path of its field.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Map, Value};

use super::{
    config_key::{DEADLINE_MAX, DEADLINE_MIN},
    field_error::{FieldError, describe, join, not_available, unknown},
    units::{format_duration, parse_duration, parse_size},
};

/// A member that is there; `null` is the same as absent.
pub(super) fn given<'a>(members: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    members.get(name).filter(|value| !value.is_null())
}

/// Reads members of the expected kind and reports those that are not.
pub(super) struct SpecReader<'f> {
    pub(super) faults: &'f mut Vec<FieldError>,
}

impl SpecReader<'_> {
    pub(super) fn fault(&mut self, path: &str, wrong: &str, allowed: &str) {
        self.faults.push(FieldError::new(path, wrong, allowed));
    }

    /// The members, after a fault for each that is not known and each that only a later build honours.
    pub(super) fn object<'v>(
        &mut self,
        path: &str,
        value: &'v Value,
        known: &[&'static str],
        later: &[&str],
    ) -> Option<&'v Map<String, Value>> {
        let Some(members) = value.as_object() else {
            self.fault(
                path,
                &format!("is {}", describe(value)),
                &format!("a map with {}", known.join(", ")),
            );
            return None;
        };
        for (name, value) in members.iter().filter(|(name, _)| !known.contains(&name.as_str())) {
            if !later.contains(&name.as_str()) {
                self.faults.push(unknown(path, name, known.iter().copied()));
            } else if !value.is_null() {
                self.faults.push(not_available(join(path, name)));
            }
        }
        Some(members)
    }

    pub(super) fn text(
        &mut self,
        parent: &str,
        members: &Map<String, Value>,
        name: &str,
    ) -> Option<String> {
        let value = given(members, name)?;
        if value.as_str().is_none() {
            self.fault(&join(parent, name), &format!("is {}", describe(value)), "text");
        }
        value.as_str().map(str::to_owned)
    }

    pub(super) fn required_text(
        &mut self,
        parent: &str,
        members: &Map<String, Value>,
        name: &str,
    ) -> Option<String> {
        if given(members, name).is_none() {
            self.fault(&join(parent, name), "is missing", "text");
        }
        self.text(parent, members, name)
    }

    pub(super) fn text_list(
        &mut self,
        parent: &str,
        members: &Map<String, Value>,
        name: &str,
    ) -> Vec<String> {
        let path = join(parent, name);
        match given(members, name) {
            None => Vec::new(),
            Some(Value::Array(values)) => {
                let mut texts = Vec::with_capacity(values.len());
                for (index, value) in values.iter().enumerate() {
                    match value.as_str() {
                        Some(text) => texts.push(text.to_owned()),
                        None => self.fault(
                            &format!("{path}.{index}"),
                            &format!("is {}", describe(value)),
                            "text (in quotes)",
                        ),
                    }
                }
                texts
            }
            Some(other) => {
                self.fault(&path, &format!("is {}", describe(other)), "a list of texts");
                Vec::new()
            }
        }
    }

    pub(super) fn texts(
        &mut self,
        parent: &str,
        members: &Map<String, Value>,
        name: &str,
    ) -> BTreeMap<String, String> {
        let path = join(parent, name);
        match given(members, name) {
            None => BTreeMap::new(),
            Some(Value::Object(values)) => {
                let mut texts = BTreeMap::new();
                for (key, value) in values {
                    match value.as_str() {
                        Some(text) => drop(texts.insert(key.clone(), text.to_owned())),
                        None => self.fault(
                            &join(&path, key),
                            &format!("is {}", describe(value)),
                            "text (in quotes)",
                        ),
                    }
                }
                texts
            }
            Some(other) => {
                self.fault(&path, &format!("is {}", describe(other)), "a map from name to text");
                BTreeMap::new()
            }
        }
    }

    pub(super) fn duration(
        &mut self,
        parent: &str,
        members: &Map<String, Value>,
        name: &str,
    ) -> Option<Duration> {
        let value = given(members, name)?;
        let parsed = value.as_str().map(parse_duration);
        match parsed {
            Some(Ok(duration)) => return Some(duration),
            Some(Err(error)) => {
                self.fault(&join(parent, name), &error.to_string(), &deadline_allowed())
            }
            None => self.fault(
                &join(parent, name),
                &format!("is {}", describe(value)),
                &deadline_allowed(),
            ),
        }
        None
    }

    /// A size as text, or a number of bytes.
    pub(super) fn size(&mut self, parent: &str, value: &Value, name: &str) -> Option<usize> {
        let parsed = match value {
            Value::String(text) => parse_size(text).map_err(|error| error.to_string()),
            value => value
                .as_u64()
                .and_then(|bytes| usize::try_from(bytes).ok())
                .ok_or_else(|| format!("is {}", describe(value))),
        };
        parsed
            .map_err(|wrong| self.fault(&join(parent, name), &wrong, "a size, such as 512MiB"))
            .ok()
    }

    pub(super) fn count(
        &mut self,
        parent: &str,
        members: &Map<String, Value>,
        name: &str,
    ) -> Option<u32> {
        let value = given(members, name)?;
        let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
        if count.is_none() {
            let wrong = if value.is_number() {
                format!("is {value}")
            } else {
                format!("is {}", describe(value))
            };
            self.fault(&join(parent, name), &wrong, "a whole number");
        }
        count
    }
}

pub(super) fn check_count(
    path: &str,
    value: u64,
    min: u64,
    max: u64,
    faults: &mut Vec<FieldError>,
) {
    if value < min || value > max {
        faults.push(FieldError::new(
            path,
            format!("is {value}"),
            format!("a whole number from {min} to {max}"),
        ));
    }
}

pub(super) fn deadline_allowed() -> String {
    format!(
        "a duration from {} to {}, such as 250ms, 30s or 5m",
        format_duration(DEADLINE_MIN),
        format_duration(DEADLINE_MAX)
    )
}
