//! The configuration as written: a tree of YAML values, overlaid with the environment. Read by
//! [`super::validation`], which defines the meaning of each key.
//!
//! A tree replaces a `Deserialize` mirror of the sections, because serde stops at the first fault
//! and an operator needs all of them. Unknown keys are refused as strictly as with
//! `deny_unknown_fields`, and every one is reported.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{
    config_key::{ConfigKey, KeySection, KeyTable},
    field_error::{FieldError, describe, join, nearest, not_available, unknown},
    included::{IncludedFile, MAPS, declared_twice, short_name},
    settings::SettingOrigin,
    yaml::parse_yaml,
};

/// Largest configuration file. A larger one is a mistake.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 20;
const ENV_PREFIX: &str = "MCP_BROKER__";
/// Variables that commands for operators read.
const ENV_OF_COMMANDS: [&str; 2] = ["MCP_BROKER_ADMIN_URL", "MCP_BROKER_ADMIN_TOKEN"];
/// Values by section. Every section is an object, and every key in it is known.
pub(super) struct RawConfig {
    /// Known sections and keys.
    pub(super) table: &'static KeyTable,
    sections: Map<String, Value>,
    /// Environment variables of values, by dotted path.
    origins: BTreeMap<String, String>,
    /// Names of the files of the folder that declare entries, by path.
    files: BTreeMap<String, String>,
}

impl RawConfig {
    /// Parses the file's text and overlays the environment. Adds faults to `faults`, and leaves out
    /// the faulty values.
    pub(super) fn read(
        table: &'static KeyTable,
        text: &str,
        environment: impl IntoIterator<Item = (String, String)>,
        faults: &mut Vec<FieldError>,
    ) -> Self {
        let mut raw =
            Self { table, sections: Map::new(), origins: BTreeMap::new(), files: BTreeMap::new() };
        match parse_yaml(text) {
            Ok(Value::Null) => {}
            Ok(Value::Object(sections)) => raw.take_sections(sections, faults),
            Ok(other) => faults.push(FieldError::new(
                "",
                format!("is {}", describe(&other)),
                "a map of sections",
            )),
            Err(reason) => faults.push(FieldError::new("", format!("is not YAML: {reason}"), "")),
        }
        raw.overlay(environment, faults);
        raw
    }

    /// Adds the tenants and backends of a file of the folder. An entry that is there already is a
    /// fault.
    pub(super) fn include(&mut self, file: &IncludedFile, faults: &mut Vec<FieldError>) {
        for (section, name, body) in file.entries() {
            let map = self.sections.entry(section).or_insert_with(|| Value::Object(Map::new()));
            let Some(map) = map.as_object_mut() else { continue };
            let path = join(section, &name);
            // Two lookups: a comparison with each of a thousand names would be slow.
            let short = short_name(section, &name);
            if map.contains_key(&name) || short.is_some_and(|short| map.contains_key(short)) {
                let other = self.files.get(&path).map_or("the configuration file", String::as_str);
                faults.push(declared_twice(path, other));
                continue;
            }
            self.files.insert(path, file.name.clone());
            map.insert(name, body.clone());
        }
    }

    /// Returns the key at a dotted path.
    pub(super) fn key(&self, path: &str) -> &'static ConfigKey {
        self.table
            .find(path)
            .expect("every key that is read stands in the table, which a test checks")
    }

    /// Returns every key with its dotted path.
    pub(super) fn keys(&self) -> impl Iterator<Item = (String, &'static ConfigKey)> {
        self.table
            .sections
            .iter()
            .flat_map(|section| section.keys.iter().map(|key| (join(section.name, key.name), key)))
    }

    /// Returns the value at a dotted path. Absent and `null` are the same.
    pub(super) fn value(&self, path: &str) -> Option<&Value> {
        let (section, key) = path.split_once('.')?;
        self.sections.get(section)?.get(key).filter(|value| !value.is_null())
    }

    fn section_names(&self) -> impl Iterator<Item = &'static str> + Clone {
        self.table.sections.iter().map(|section| section.name).chain(MAPS)
    }

    /// Returns a section.
    pub(super) fn map(&self, section: &str) -> Option<&Map<String, Value>> {
        self.sections.get(section)?.as_object()
    }

    /// Returns the name of a key, or of an entry of its list, for a fault. It has the variable that
    /// set the key, if any.
    pub(super) fn source_name(&self, path: &str) -> String {
        let key = path.split_once('[').map_or(path, |(key, _)| key);
        match self.origins.get(key) {
            Some(variable) => format!("{path} ({variable})"),
            None => path.to_owned(),
        }
    }

    /// Returns the source of the value at a path, which is not a default.
    pub(super) fn origin(&self, path: &str) -> SettingOrigin {
        let variable = self.origins.get(path).cloned();
        variable.map_or(SettingOrigin::File, SettingOrigin::Variable)
    }

    /// Returns the file of the folder that declares the entry at a path.
    pub(super) fn included_file(&self, path: &str) -> Option<String> {
        self.files.get(path).cloned()
    }

    fn take_sections(&mut self, sections: Map<String, Value>, faults: &mut Vec<FieldError>) {
        for (name, value) in sections {
            if self.table.unavailable(&name) {
                refuse_unavailable_section(&name, &value, faults);
                continue;
            }
            if self.table.section(&name).is_none() && !MAPS.contains(&name.as_str()) {
                faults.push(unknown("", &name, self.section_names()));
                continue;
            }
            match value {
                Value::Null => {}
                Value::Object(members) => self.take_members(name, members, faults),
                other => {
                    faults.push(FieldError::new(&name, format!("is {}", describe(&other)), "a map"))
                }
            }
        }
    }

    fn take_members(
        &mut self,
        section_name: String,
        mut members: Map<String, Value>,
        faults: &mut Vec<FieldError>,
    ) {
        if let Some(section) = self.table.section(&section_name) {
            flatten(section, &mut members);
            members.retain(|name, value| {
                let path = join(&section_name, name);
                if section.keys.iter().any(|key| key.name == name) {
                    return true;
                }
                if !self.table.unavailable(&path) {
                    faults.push(unknown(
                        &section_name,
                        name,
                        section.keys.iter().map(|key| key.name),
                    ));
                } else if !value.is_null() {
                    faults.push(not_available(path));
                }
                false
            });
        }
        self.sections.insert(section_name, Value::Object(members));
    }

    fn overlay(
        &mut self,
        environment: impl IntoIterator<Item = (String, String)>,
        faults: &mut Vec<FieldError>,
    ) {
        let mut given: Vec<(String, String)> =
            environment.into_iter().filter(|(name, _)| name.starts_with(ENV_PREFIX)).collect();
        given.sort();
        for (variable, text) in given {
            if let Err(fault) = self.overlay_one(&variable, &text) {
                faults.push(fault);
            }
        }
    }

    fn overlay_one(&mut self, variable: &str, text: &str) -> Result<(), FieldError> {
        let path = variable[ENV_PREFIX.len()..].to_ascii_lowercase().replace("__", ".");
        if self.table.unavailable(&path) {
            return Err(not_available(format!("{path} ({variable})")));
        }
        if MAPS.contains(&path.as_str()) {
            let wrong = match parse_yaml(text) {
                Ok(value @ Value::Object(_)) => {
                    self.sections.insert(path.clone(), value);
                    self.origins.insert(path, variable.to_owned());
                    return Ok(());
                }
                Ok(Value::Null) => "is empty".to_owned(),
                Ok(other) => format!("is {}", describe(&other)),
                Err(reason) => format!("is neither YAML nor JSON: {reason}"),
            };
            let allowed = "a map from names to bodies in YAML or JSON, which replaces the file's";
            return Err(FieldError::new(variable, wrong, allowed));
        }
        let (Some(key), Some((section, name))) = (self.table.find(&path), path.split_once('.'))
        else {
            let known: Vec<String> = self
                .table
                .sections
                .iter()
                .flat_map(|section| {
                    section.keys.iter().map(|key| variable_name(section.name, key.name))
                })
                .collect();
            let hint = nearest(variable, known.iter().map(String::as_str))
                .map(|name| format!(", perhaps {name} was meant"))
                .unwrap_or_default();
            return Err(FieldError::new(
                variable,
                format!("is not the name of a configuration key{hint}"),
                "MCP_BROKER__SECTION__KEY with a section and key of `mcp-broker config-example`",
            ));
        };
        let value = if key.kind.is_text() {
            Value::String(text.to_owned())
        } else {
            parse_yaml(text).unwrap_or_else(|_| Value::String(text.to_owned()))
        };
        // A variable that is set and empty must not be read as an absent key.
        let value = if value.is_null() { Value::String(text.to_owned()) } else { value };
        self.drop_alias(&path);
        if let Some(members) = self
            .sections
            .entry(section)
            .or_insert_with(|| Value::Object(Map::new()))
            .as_object_mut()
        {
            members.insert(name.to_owned(), value);
        }
        self.origins.insert(path, variable.to_owned());
        Ok(())
    }

    /// Removes the other spelling of a setting from the file's values, because the environment has
    /// precedence.
    fn drop_alias(&mut self, path: &str) {
        let twin = self.table.alias(path);
        let Some((section, key)) = twin
            .filter(|twin| !self.origins.contains_key(*twin))
            .and_then(|twin| twin.split_once('.'))
        else {
            return;
        };
        if let Some(members) = self.sections.get_mut(section).and_then(Value::as_object_mut) {
            members.remove(key);
        }
    }
}

/// Returns the environment variable of a key.
pub(super) fn variable_name(section: &str, key: &str) -> String {
    format!(
        "{ENV_PREFIX}{}__{}",
        section.to_ascii_uppercase(),
        key.to_ascii_uppercase().replace('.', "__")
    )
}

/// Returns the variables that look like those of keys but are ignored, as they have one underscore
/// where two are needed. Each has the name that was probably meant.
pub(super) fn misspelt_variables<'n>(
    table: &KeyTable,
    names: impl IntoIterator<Item = &'n str>,
) -> Vec<(String, String)> {
    let with_one = |name: &str| name.replace("__", "_");
    let known: BTreeMap<String, String> = table
        .sections
        .iter()
        .flat_map(|section| section.keys.iter().map(|key| variable_name(section.name, key.name)))
        .chain(MAPS.map(|map| format!("{ENV_PREFIX}{}", map.to_ascii_uppercase())))
        .map(|name| (with_one(&name), name))
        .collect();
    let ignored = names.into_iter().filter(|name| {
        name.starts_with(ENV_PREFIX.trim_end_matches('_'))
            && !name.starts_with(ENV_PREFIX)
            && !ENV_OF_COMMANDS.contains(name)
    });
    let meant = |name: &str| {
        nearest(&with_one(name), known.keys().map(String::as_str)).map(|near| known[near].clone())
    };
    ignored.filter_map(|name| Some((name.to_owned(), meant(name)?))).collect()
}

/// Flattens a group of keys within a section: `traces: {ratio: 1}` is `traces.ratio: 1`.
fn flatten(section: &KeySection, members: &mut Map<String, Value>) {
    let groups =
        section.keys.iter().filter_map(|key| key.name.split_once('.')).map(|(group, _)| group);
    for group in groups.collect::<BTreeSet<_>>() {
        match members.remove(group) {
            Some(Value::Object(inner)) => {
                members.extend(inner.into_iter().map(|(name, value)| (join(group, &name), value)))
            }
            Some(Value::Null) | None => {}
            Some(other) => {
                members.insert(group.to_owned(), other);
            }
        }
    }
}

fn refuse_unavailable_section(name: &str, value: &Value, faults: &mut Vec<FieldError>) {
    match value {
        Value::Null => {}
        Value::Object(members) if !members.is_empty() => {
            faults.extend(members.keys().map(|key| not_available(join(name, key))))
        }
        _ => faults.push(not_available(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_table::TABLE;

    fn read(text: &str, environment: &[(&str, &str)]) -> (RawConfig, Vec<String>) {
        let mut faults = Vec::new();
        let environment =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let raw = RawConfig::read(&TABLE, text, environment, &mut faults);
        (raw, faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn an_empty_file_is_a_valid_configuration() {
        for text in ["", "# only a comment\n", "---\n", "listen:\n", "tls:\nlisten:\n  tcp:\n"] {
            assert_eq!(read(text, &[]).1, Vec::<String>::new(), "{text:?}");
        }
    }

    #[test]
    fn every_unknown_key_is_reported_with_the_allowed_keys() {
        let (_, faults) = read("limits: {brust: 1, zzz: 2}\nlisen: {}\n", &[]);
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(
            faults.iter().any(|fault| fault.starts_with(
                "limits.brust: is not a known key, perhaps `burst` was meant; allowed: message_bytes, "
            )),
            "{faults:?}"
        );
        assert!(
            faults
                .iter()
                .any(|fault| fault.starts_with("lisen: is not a known key, perhaps `listen`")),
            "{faults:?}"
        );
    }

    #[test]
    fn a_key_of_a_later_build_is_reported_as_not_available() {
        let (_, faults) = read("errors: {a: 1, b: 2}\n", &[("MCP_BROKER__ERRORS__STYLE", "plain")]);
        for path in ["errors.a", "errors.b", "errors.style (MCP_BROKER__ERRORS__STYLE)"] {
            assert!(
                faults.contains(&format!(
                    "{path}: not available in this build; allowed: leaving it out"
                )),
                "{path}: {faults:?}"
            );
        }
        assert_eq!(faults.len(), 3);
    }

    #[test]
    fn text_that_is_not_yaml_and_trees_of_the_wrong_shape_are_refused() {
        for text in [
            "a: [",
            "- a\n",
            "plain",
            "listen: 5",
            "listen: {http: a, http: b}",
            "a: 1\n---\nb: 2\n",
            "\u{0}",
            "x: &a [*a]",
        ] {
            assert!(!read(text, &[]).1.is_empty(), "{text:?}");
        }
        let bomb = (0..40).fold("a0: &a0 [x]\n".to_owned(), |text, level| {
            format!("{text}a{0}: &a{0} [*a{level}, *a{level}]\n", level + 1)
        });
        assert!(!read(&bomb, &[]).1.is_empty());
    }

    #[test]
    fn the_environment_overrides_the_file_and_is_typed_by_the_key() {
        let environment = [
            ("MCP_BROKER__LIMITS__BURST", "7"),
            ("MCP_BROKER__NODE__SECRET", "12345678901234567890"),
            ("MCP_BROKER__EGRESS__ALLOW", "[10.0.0.0/8]"),
            ("MCP_BROKER__AUTH__REQUIRED", "true"),
            ("MCP_BROKER__TENANTS", "{acme: {weight: 2}}"),
            ("MCP_BROKER_ADMIN_URL", "unrelated"),
        ];
        let (raw, faults) = read("limits: {burst: 1}\nnode: {secret_file: /x}\n", &environment);
        assert_eq!(faults, Vec::<String>::new());
        assert_eq!(raw.value("limits.burst"), Some(&Value::from(7)));
        assert_eq!(raw.value("node.secret"), Some(&Value::from("12345678901234567890")));
        assert_eq!(
            raw.value("node.secret_file"),
            None,
            "the variable replaces the other spelling too"
        );
        assert_eq!(raw.value("auth.required"), Some(&Value::from(true)));
        assert!(
            raw.value("egress.allow").unwrap().is_array()
                && raw.map("tenants").unwrap().contains_key("acme")
        );
        assert_eq!(raw.source_name("limits.burst"), "limits.burst (MCP_BROKER__LIMITS__BURST)");
    }

    #[test]
    fn a_variable_that_names_no_key_is_a_fault() {
        let (_, faults) = read(
            "",
            &[
                ("MCP_BROKER__LIMITS__BRUST", "7"),
                ("MCP_BROKER__", ""),
                ("MCP_BROKER__TENANTS", "5"),
                ("MCP_BROKER__LIMITS", "{}"),
            ],
        );
        assert_eq!(faults.len(), 4, "{faults:?}");
        assert!(
            faults.iter().any(|fault| fault.starts_with("MCP_BROKER__TENANTS: is a number; ")),
            "{faults:?}"
        );
        assert!(
            faults
                .iter()
                .any(|fault| fault.contains("perhaps MCP_BROKER__LIMITS__BURST was meant")),
            "{faults:?}"
        );
    }

    #[test]
    fn a_map_that_cannot_be_parsed_is_named_with_the_position_and_what_is_expected() {
        for (text, position) in
            [("{\"x\": ", "line 1, column "), ("x:\n  y: {\n  z: 1", "line 2, column 6")]
        {
            let (_, faults) = read("", &[("MCP_BROKER__BACKENDS", text)]);
            let [fault] = &faults[..] else { panic!("{faults:?}") };
            assert!(
                fault.starts_with("MCP_BROKER__BACKENDS: is neither YAML nor JSON: ")
                    && fault.contains(position)
                    && fault.ends_with(
                        "; allowed: a map from names to bodies in YAML or JSON, which replaces the file's"
                    ),
                "{fault}"
            );
        }
    }

    #[test]
    fn a_variable_with_one_underscore_is_likely_a_mistake() {
        let hints = |names: &[&str]| misspelt_variables(&TABLE, names.iter().copied());
        assert_eq!(
            hints(&[
                "MCP_BROKER_LISTEN_HTTP",
                "MCP_BROKER_LISTEN__HTTP",
                "MCP_BROKER_AUTH_ADMIN_TOKN",
                "MCP_BROKER_TELEMETRY_TRACES_RATIO",
                "MCP_BROKER_BACKENDS",
            ]),
            [
                ("MCP_BROKER_LISTEN_HTTP", "MCP_BROKER__LISTEN__HTTP"),
                ("MCP_BROKER_LISTEN__HTTP", "MCP_BROKER__LISTEN__HTTP"),
                ("MCP_BROKER_AUTH_ADMIN_TOKN", "MCP_BROKER__AUTH__ADMIN_TOKEN"),
                ("MCP_BROKER_TELEMETRY_TRACES_RATIO", "MCP_BROKER__TELEMETRY__TRACES__RATIO"),
                ("MCP_BROKER_BACKENDS", "MCP_BROKER__BACKENDS"),
            ]
            .map(|(name, meant)| (name.to_owned(), meant.to_owned()))
        );
        // Variables of the command line, of tests, and of Kubernetes for a service of this name.
        let others = [
            "MCP_BROKER_ADMIN_URL",
            "MCP_BROKER_ADMIN_TOKEN",
            "MCP_BROKER_FAULT",
            "MCP_BROKER_FAULT_LOG",
            "MCP_BROKER_DISABLED_CHECK",
            "MCP_BROKER_TEST_ON",
            "MCP_BROKER_CACHE",
            "MCP_BROKER_HEALTH_ADDRESS",
            "MCP_BROKER_SERVICE_HOST",
            "MCP_BROKER_SERVICE_PORT_ADMIN",
            "MCP_BROKER_PORT",
            "MCP_BROKER_PORT_8080_TCP_ADDR",
            "MCP_BROKER__LISTEN__HTTP",
            "LISTEN_HTTP",
        ];
        assert_eq!(hints(&others), []);
    }

    #[test]
    fn an_empty_variable_is_not_an_absent_key() {
        let (raw, _) =
            read("", &[("MCP_BROKER__AUTH__REQUIRED", ""), ("MCP_BROKER__AUTH__ADMIN_TOKEN", "")]);
        assert_eq!(raw.value("auth.required"), Some(&Value::from("")));
        assert_eq!(raw.value("auth.admin_token"), Some(&Value::from("")));
    }
}
