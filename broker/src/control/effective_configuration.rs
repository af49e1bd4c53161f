//! The configuration in force, as operators see it: defaults, the file, its included files and the
//! environment merged.
//!
//! Invariant: a secret of the configuration is never in the view. What is not known to be harmless is
//! masked.

use std::collections::BTreeMap;

use config::{
    Exposure, MASK, Setting, SettingOrigin, is_reloaded,
    spec::{BackendSpec, TenantSpec},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::{
    BackendSettings, Control,
    registry::{EntryOrigin, Registry, RegistryEntry},
};
use crate::telemetry::redaction;

/// Members of issuers and of operators that are not secret. Any other member is masked.
const SHOWN_MEMBERS: [&str; 43] = [
    "admin",
    "algorithms",
    "audiences",
    "auth",
    "backends",
    "check",
    "claim",
    "claims",
    "client_id",
    "client_key_file",
    "client_key_id",
    "client_secret_file",
    "endpoint",
    "exchange",
    "front",
    "groups",
    "introspection",
    "issuer",
    "issuers",
    "jwks_url",
    "keys_max_age",
    "login",
    "map",
    "name",
    "preset",
    "principal_claim",
    "prompt",
    "redirect_uris",
    "registration",
    "require_typ",
    "resource",
    "role",
    "scope_prefix",
    "scopes",
    "scopes_append",
    "secret_file",
    "sign_in",
    "tenant",
    "tenant_claim",
    "tenants",
    "token_file",
    "ttl",
    "value",
];

/// The configuration in force at the replica that answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EffectiveConfigurationView {
    /// The replica that answers.
    pub node: String,
    /// Generation of the configuration, as `GET /admin/v1/configuration` shows it.
    pub generation: u64,
    /// Every section with every key, in the form of the configuration file. A secret is `***`. An
    /// absent key without a default is `null`.
    #[schema(value_type = Object)]
    pub configuration: Map<String, Value>,
    /// Source of each key that does not have its default, by the path of the key. Also the source of
    /// each tenant and backend.
    pub sources: BTreeMap<String, SettingSource>,
}

/// Source of a setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SettingSource {
    pub kind: SettingSourceKind,
    /// Name of the environment variable, or of the file of `include.folder`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Kind of the source of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SettingSourceKind {
    /// The configuration file.
    File,
    Environment,
    /// A file of `include.folder`.
    IncludedFile,
}

impl Control {
    /// Returns the configuration in force. Keys that need a restart have their values of the start.
    pub fn effective_configuration(&self) -> EffectiveConfigurationView {
        let (generation, reloaded) = self.generation.in_force();
        let started = &self.config.settings;
        let reloaded = reloaded.as_ref().unwrap_or(started);
        let (mut configuration, mut sources) = (Map::new(), BTreeMap::new());
        for (at_start, now) in started.settings().iter().zip(reloaded.settings()) {
            let path = at_start.path();
            let setting = if is_reloaded(&path) { now } else { at_start };
            let section = configuration.entry(setting.section).or_insert_with(|| json!({}));
            section[setting.name] = shown(setting);
            if let Some(origin) = &setting.origin {
                sources.insert(path, SettingSource::of(origin));
            }
        }
        if configuration["node"]["id"].is_null() {
            configuration["node"]["id"] = self.config.node.id.clone().into();
        }
        for (section, name, body) in declared(&self.registry.load()) {
            let path = format!("{section}.{name}");
            if let Some(origin) = reloaded.entry_origin(&path) {
                sources.insert(path, SettingSource::of(origin));
            }
            configuration.entry(section).or_insert_with(|| json!({}))[name] = body;
        }
        let node = self.persistence().node().to_string();
        EffectiveConfigurationView { node, generation, configuration, sources }
    }
}

impl SettingSource {
    fn of(origin: &SettingOrigin) -> Self {
        let (kind, name) = match origin {
            SettingOrigin::File => (SettingSourceKind::File, None),
            SettingOrigin::Variable(name) => (SettingSourceKind::Environment, Some(name)),
            SettingOrigin::Included(name) => (SettingSourceKind::IncludedFile, Some(name)),
        };
        Self { kind, name: name.cloned() }
    }
}

/// Returns the value of a setting without its secrets.
fn shown(setting: &Setting) -> Value {
    let value = setting.value.clone();
    match setting.exposure {
        Exposure::Whole | Exposure::Hidden => value,
        Exposure::Url => match value {
            Value::String(url) => shown_url(&url).into(),
            Value::Null => Value::Null,
            _ => MASK.into(),
        },
        Exposure::Members => shown_members(value),
    }
}

/// Returns a URL without its secrets. The path of an SQLite file is not one.
fn shown_url(url: &str) -> String {
    let is_file = |path: &str| !path.contains("://") && !path.contains(['?', '#', '@']);
    match url.strip_prefix("sqlite:") {
        Some(path) if is_file(path) => url.to_owned(),
        _ => redaction::url(url),
    }
}

fn shown_members(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let shown = members.into_iter().map(|(name, member)| {
                let is_shown = member.is_null() || SHOWN_MEMBERS.contains(&name.as_str());
                let member = if is_shown { shown_members(member) } else { MASK.into() };
                (name, member)
            });
            Value::Object(shown.collect())
        }
        Value::Array(items) => items.into_iter().map(shown_members).collect(),
        Value::String(text) if text.contains("://") => redaction::url(&text).into(),
        other => other,
    }
}

/// Returns section, name and body of each declared tenant and backend in force.
fn declared(registry: &Registry) -> impl Iterator<Item = (&'static str, String, Value)> {
    fn of<Spec>(entry: &RegistryEntry<Spec>) -> bool {
        entry.origin == EntryOrigin::Declared
    }
    let tenants = registry.tenants.iter().filter(|(_, entry)| of(entry));
    let tenants =
        tenants.map(|(tenant, entry)| ("tenants", tenant.to_string(), tenant_body(&entry.spec)));
    let backends = registry.backends.iter().filter(|(_, entry)| of(entry));
    let backends = backends.map(|((tenant, backend), entry)| {
        ("backends", format!("{tenant}/{backend}"), backend_body(&entry.spec))
    });
    tenants.chain(backends)
}

fn tenant_body(spec: &TenantSpec) -> Value {
    serde_json::to_value(spec).unwrap_or_else(|_| MASK.into())
}

/// Returns the body of a backend with the mask in place of each secret.
fn backend_body(spec: &BackendSpec) -> Value {
    let settings = BackendSettings::new(spec);
    let credentials = &settings.credentials;
    let headers = credentials.headers.iter().map(|name| (name.clone(), MASK.into()));
    let mut masked = Map::new();
    if credentials.bearer {
        masked.insert("bearer".to_owned(), MASK.into());
    }
    if !credentials.headers.is_empty() {
        masked.insert("headers".to_owned(), Value::Object(headers.collect()));
    }
    let Ok(Value::Object(mut body)) = serde_json::to_value(&settings) else { return MASK.into() };
    if !masked.is_empty() {
        body.insert("credentials".to_owned(), Value::Object(masked));
    }
    Value::Object(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_members_of_an_issuer_are_shown() {
        let entry = json!([{"issuer": "https://login.example.com/", "tenant": null, "registration": {
            "client_id": "broker", "secret": "canary", "secret_file": "/run/secret"},
            "metadata_set": {"any": "canary"}, "later": ["canary"], "jwks_url": "https://x.example/keys?k=canary"}]);
        let expected = json!([{"issuer": "https://login.example.com/", "tenant": null, "registration": {
            "client_id": "broker", "secret": "***", "secret_file": "/run/secret"},
            "metadata_set": "***", "later": "***", "jwks_url": "https://x.example/keys?k=***"}]);
        assert_eq!(shown_members(entry), expected);
    }

    #[test]
    fn the_path_of_an_sqlite_file_is_shown() {
        let url = "sqlite:/var/lib/Mcp_broker9x8y7z6w/broker.db";
        assert_eq!(shown_url(url), url);
        assert_eq!(shown_url("sqlite:x?key=canary"), MASK);
    }
}
