//! Operations on the issuers of a tenant: list, show, store and remove.
//!
//! Invariants:
//! - A stored issuer names its own tenant only.
//! - An issuer is in force once. Its URL is a part of the names of its principals, so a second entry
//!   with the same URL is refused, in whichever tenant. The configuration file has precedence: a
//!   stored entry with a URL of the file is kept, and is not in force.
//! - Settings are sealed in the store, because they can hold the secret of a client.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    net::IpAddr,
    sync::Arc,
};

use config::{AuthConfig, FieldError, IssuerConfig, TenantMapping, parse_stored_issuer};
use protocol::ids::{BackendId, TenantId};
use records::{AdminChange, TokenIssuerRecord};
use rules::limits::tokens::ISSUERS_PER_TENANT_MAX;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    Author, Control, ControlError, LoadError, Preconditions, PutOutcome, Tagged,
    registry::{EntryOrigin, Issuers, Registry, RegistryEntry, StoredIssuer, first_name, of_owner},
    resource_views::moment,
    validation::{now_us, refuse_more},
};
use crate::auth::adapted::authorization_server;

/// An issuer of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IssuerView {
    /// Absent for an issuer of the configuration file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Issuer exactly as in `iss`.
    pub issuer: String,
    /// Authorization server that clients use: the issuer, or the broker in front of it.
    pub authorization_server: String,
    /// Settings as stored, without secrets. Absent for an issuer of the configuration file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub settings: Option<Value>,
    /// True if the secret of a client is stored. A `PUT` without it removes it.
    pub secret: bool,
    /// False if another entry with the same URL is in force instead. The configuration file has
    /// precedence.
    pub in_force: bool,
    /// Number of keys that this replica can verify tokens with.
    pub keys: usize,
    /// Why the entry is not in force, or why this replica cannot stand in front of the issuer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// `api`, or `config` for an issuer of the configuration file, which can only be changed there.
    pub source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
}

/// Stored issuers that are not in force, with their URLs and the reasons.
pub(super) type UnusedIssuers = BTreeMap<(TenantId, BackendId), (String, &'static str)>;

impl Control {
    /// Returns the issuers whose tokens are of this tenant alone.
    pub fn issuers(&self, tenant: &TenantId) -> Result<Vec<IssuerView>, ControlError> {
        self.check_tenant(tenant)?;
        let registry = self.registry.load();
        let of_file = registry
            .auth
            .issuers
            .iter()
            .filter(|issuer| issuer.tenant == TenantMapping::Fixed(tenant.clone()))
            .map(|issuer| self.issuer_view(&registry, issuer));
        let unused = registry.unused_issuers();
        let stored = registry.issuers_of(tenant).map(|(name, entry)| {
            let key = (tenant.clone(), name.clone());
            self.stored_issuer_view(&registry, &unused, &key, entry)
        });
        Ok(stored.chain(of_file).collect())
    }

    pub fn issuer(
        &self,
        tenant: &TenantId,
        name: &BackendId,
    ) -> Result<Tagged<IssuerView>, ControlError> {
        self.check_tenant(tenant)?;
        let registry = self.registry.load();
        let key = (tenant.clone(), name.clone());
        let entry = registry.issuers.get(&key).ok_or_else(|| no_issuer(name))?;
        Ok(self.tagged_issuer(&registry, &key, entry))
    }

    /// Stores an issuer. It is in force when this returns. Its keys may not be fetched yet.
    pub async fn put_issuer(
        self: &Arc<Self>,
        tenant: TenantId,
        name: BackendId,
        body: Value,
        condition: Preconditions,
        author: Author,
    ) -> Result<PutOutcome<IssuerView>, ControlError> {
        let config = parse_stored_issuer(&tenant, &body).map_err(ControlError::Faults)?;
        self.check_issuer_egress(&config)?;
        let spec = StoredIssuer { body: without_nulls(body), config: Arc::new(config) };
        self.change(
            (tenant, name, spec, condition, author),
            |attempt, (tenant, name, spec, condition, author)| async move {
                attempt.check_tenant(&tenant)?;
                let registry = attempt.registry.load_full();
                let key = (tenant.clone(), name.clone());
                let old = registry.issuers.get(&key);
                condition.holds("issuer", old.map(|entry| attempt.tag(entry)).as_deref())?;
                let count = registry.issuers_of(&tenant).count();
                refuse_more(old.is_none(), count, "issuers of this tenant", ISSUERS_PER_TENANT_MAX)?;
                if registry.auth.resource.is_none() {
                    return Err(ControlError::NoResource);
                }
                if let Some(holder) = registry.holder_of(&spec.config.issuer, &key) {
                    return Err(ControlError::IssuerTaken { holder });
                }
                let entry = RegistryEntry::stored(spec, old.map(|entry| entry.created_at_us), now_us());
                let text = serde_json::to_vec(&entry.spec.body).map_err(|_| ControlError::Internal)?;
                let sealed = attempt.keys.seal.seal(&issuer_seal_context(&tenant, name.as_str()), &text);
                let record = TokenIssuerRecord {
                    tenant: tenant.clone(),
                    issuer: name.as_str().to_owned(),
                    settings: sealed.map_err(|_| ControlError::Internal)?,
                    created_at_us: entry.created_at_us,
                    updated_at_us: entry.updated_at_us,
                };
                attempt.commit(AdminChange::PutTokenIssuer(&record), &author).await?;
                let created = old.is_none();
                attempt.edit(|registry| {
                    registry.issuers.insert(key.clone(), Arc::clone(&entry));
                });
                let registry = attempt.registry.load();
                attempt.apply_auth(&registry);
                tracing::info!(%tenant, name = %name, issuer = entry.spec.config.issuer, created, "issuer stored");
                Ok(PutOutcome { entry: attempt.tagged_issuer(&registry, &key, &entry), created })
            },
        )
        .await
    }

    pub async fn delete_issuer(
        self: &Arc<Self>,
        tenant: TenantId,
        name: BackendId,
        condition: Preconditions,
        author: Author,
    ) -> Result<(), ControlError> {
        self.change(
            (tenant, name, condition, author),
            |attempt, (tenant, name, condition, author)| async move {
                attempt.check_tenant(&tenant)?;
                let registry = attempt.registry.load_full();
                let key = (tenant.clone(), name.clone());
                let old = registry.issuers.get(&key);
                let tag = old.map(|entry| attempt.tag(entry));
                condition.hold_for_removal("issuer", tag.as_deref(), || no_issuer(&name))?;
                let change = AdminChange::DeleteTokenIssuer(&tenant, name.as_str());
                if !attempt.commit(change, &author).await? {
                    return Err(no_issuer(&name));
                }
                attempt.edit(|registry| {
                    registry.issuers.remove(&key);
                });
                attempt.apply_auth(&attempt.registry.load());
                tracing::info!(%tenant, name = %name, "issuer removed");
                Ok(())
            },
        )
        .await
    }

    /// Puts the settings of sign-in of both sources into force.
    pub(super) fn apply_auth(&self, registry: &Registry) {
        let (auth, unused) = registry.auth_in_force();
        for ((tenant, name), (issuer, reason)) in self.newly_unused_issuers(unused) {
            tracing::warn!(%tenant, name = %name, issuer, reason, "a stored issuer is not in force");
        }
        self.broker.set_auth(auth);
    }

    /// Notes the stored issuers that are not in force. Returns those that were in force before, or
    /// had another reason or URL.
    fn newly_unused_issuers(&self, unused: UnusedIssuers) -> UnusedIssuers {
        let mut known = self.unused_issuers.lock();
        let mut newly = unused.clone();
        newly.retain(|key, state| known.get(key) != Some(&*state));
        *known = unused;
        newly
    }

    /// Checks IP addresses now. Host names are resolved and checked at every connect.
    fn check_issuer_egress(&self, config: &IssuerConfig) -> Result<(), ControlError> {
        let issuer = config.issuer.parse::<http::Uri>().ok();
        let urls = [("issuer", issuer.as_ref()), ("jwks_url", config.jwks_url.as_ref())];
        for (field, url) in urls {
            let host = url.and_then(|url| url.host()).unwrap_or_default();
            let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() else { continue };
            self.config.egress.check(address).map_err(|denied| {
                let problem = format!("points to a refused address: {denied}");
                ControlError::Invalid(FieldError::new(field, problem, ""))
            })?;
        }
        Ok(())
    }

    fn tagged_issuer(
        &self,
        registry: &Registry,
        key: &(TenantId, BackendId),
        entry: &RegistryEntry<StoredIssuer>,
    ) -> Tagged<IssuerView> {
        let view = self.stored_issuer_view(registry, &registry.unused_issuers(), key, entry);
        Tagged { view, tag: self.tag(entry) }
    }

    fn stored_issuer_view(
        &self,
        registry: &Registry,
        unused: &UnusedIssuers,
        key: &(TenantId, BackendId),
        entry: &RegistryEntry<StoredIssuer>,
    ) -> IssuerView {
        let mut settings = entry.spec.body.clone();
        let registration = settings.get_mut("registration").and_then(Value::as_object_mut);
        registration.map(|registration| registration.remove("secret"));
        let view = self.issuer_view(registry, &entry.spec.config);
        let unused = unused.get(key);
        let in_force = unused.is_none();
        IssuerView {
            name: Some(key.1.as_str().to_owned()),
            in_force,
            // The keys and the fault are those of the entry in force.
            keys: if in_force { view.keys } else { 0 },
            fault: unused
                .map(|(_, reason)| format!("not in force: {reason}"))
                .or(view.fault.filter(|_| in_force)),
            settings: Some(settings),
            source: entry.origin.name().to_owned(),
            created_at: Some(moment(entry.created_at_us)),
            updated_at: Some(moment(entry.updated_at_us)),
            ..view
        }
    }

    fn issuer_view(&self, registry: &Registry, config: &IssuerConfig) -> IssuerView {
        let state = self.broker.issuer_state(&config.issuer);
        let registration = config.front.as_ref().and_then(|front| front.registration.as_ref());
        let resource = registry.auth.resource.as_deref().unwrap_or_default();
        IssuerView {
            name: None,
            issuer: config.issuer.clone(),
            authorization_server: authorization_server(resource, config),
            settings: None,
            in_force: true,
            secret: registration.is_some_and(|client| client.secret.is_some()),
            keys: state.as_ref().map_or(0, |state| state.keys),
            fault: state.and_then(|state| state.fault),
            source: EntryOrigin::Declared.name().to_owned(),
            created_at: None,
            updated_at: None,
        }
    }

    /// Returns the stored entry of an issuer.
    pub(super) fn stored_issuer(
        &self,
        record: &TokenIssuerRecord,
    ) -> Result<RegistryEntry<StoredIssuer>, LoadError> {
        let TokenIssuerRecord { tenant, issuer, settings, created_at_us, updated_at_us } = record;
        let unreadable = |detail: String| LoadError::Settings {
            what: format!("issuer {tenant}/{issuer}"),
            detail,
        };
        let text = self.keys.seal.open(&issuer_seal_context(tenant, issuer), settings);
        let text = text.map_err(|error| unreadable(error.to_string()))?;
        let body: Value =
            serde_json::from_slice(&text).map_err(|_| unreadable("no JSON".to_owned()))?;
        let config = parse_stored_issuer(tenant, &body).map_err(|faults| {
            unreadable(faults.first().map(|fault| fault.path.clone()).unwrap_or_default())
        })?;
        Ok(RegistryEntry {
            spec: StoredIssuer { body, config: Arc::new(config) },
            origin: EntryOrigin::Stored,
            created_at_us: *created_at_us,
            updated_at_us: *updated_at_us,
        })
    }

    /// Returns the readable issuers of tenants that exist.
    pub(super) fn load_issuers(
        &self,
        tenants: &super::registry::Tenants,
        records: Vec<TokenIssuerRecord>,
    ) -> Issuers {
        let mut issuers = Issuers::new();
        for record in records.into_iter().filter(|record| tenants.contains_key(&record.tenant)) {
            match (self.stored_issuer(&record), BackendId::parse(&record.issuer)) {
                (Ok(entry), Ok(name)) => drop(issuers.insert((record.tenant, name), entry.into())),
                (Err(error), _) => self.skip_unreadable(&error),
                (_, Err(_)) => {}
            }
        }
        issuers
    }
}

impl Registry {
    pub(super) fn issuers_of(
        &self,
        tenant: &TenantId,
    ) -> impl Iterator<Item = (&BackendId, &Arc<RegistryEntry<StoredIssuer>>)> {
        of_owner(&self.issuers, tenant, first_name())
    }

    /// Returns the settings of sign-in of both sources, and the stored issuers that are not in
    /// force.
    fn auth_in_force(&self) -> (AuthConfig, UnusedIssuers) {
        let (mut auth, unused) = (AuthConfig::clone(&self.auth), self.unused_issuers());
        let in_force = self.issuers.iter().filter(|(key, _)| !unused.contains_key(*key));
        auth.issuers.extend(in_force.map(|(_, entry)| Arc::clone(&entry.spec.config)));
        (auth, unused)
    }

    /// Returns the stored issuers that are not in force. The configuration file decides about an
    /// issuer of both, and of two stored ones the first does.
    fn unused_issuers(&self) -> UnusedIssuers {
        let of_file = self.auth.issuers.iter().map(|known| known.issuer.as_str());
        let reason = "the configuration file has the same issuer";
        let mut taken: HashMap<&str, &'static str> = of_file.map(|url| (url, reason)).collect();
        let mut unused = UnusedIssuers::new();
        for (key, entry) in &self.issuers {
            let issuer = entry.spec.config.issuer.as_str();
            let reason = match taken.entry(issuer) {
                _ if self.auth.resource.is_none() => "auth.resource is missing",
                Entry::Occupied(taken) => *taken.get(),
                Entry::Vacant(free) => {
                    free.insert("another entry has the same issuer");
                    continue;
                }
            };
            unused.insert(key.clone(), (issuer.to_owned(), reason));
        }
        unused
    }

    /// Returns the entry that has the URL already, other than the one at `key`.
    fn holder_of(&self, issuer: &str, key: &(TenantId, BackendId)) -> Option<String> {
        if self.auth.issuers.iter().any(|known| known.issuer == issuer) {
            return Some("the configuration file".to_owned());
        }
        let (holder, _) = self
            .issuers
            .iter()
            .find(|(known, entry)| *known != key && entry.spec.config.issuer == issuer)?;
        // The answer to an operator of one tenant does not name another.
        Some(match holder.0 == key.0 {
            true => format!("issuer {} of this tenant", holder.1),
            false => "another tenant".to_owned(),
        })
    }
}

/// Returns the name of the row, without which its settings do not open.
pub(super) fn issuer_seal_context(tenant: &TenantId, name: &str) -> String {
    // A slash is invalid in both names.
    format!("issuer/{tenant}/{name}")
}

fn no_issuer(name: &BackendId) -> ControlError {
    ControlError::NotFound { what: "issuer", name: name.to_string() }
}

/// Removes members that are `null`, which are absent.
fn without_nulls(mut body: Value) -> Value {
    if let Some(members) = body.as_object_mut() {
        members.retain(|_, value| !value.is_null());
    }
    body
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::control::tests::Rig;

    /// Returns a registry with an issuer of each of these tenants, all at one URL.
    fn registry_of(tenants: &[&str], resource: Option<&str>) -> Registry {
        let resource = resource.map(str::to_owned);
        let auth = Arc::new(AuthConfig { resource, ..AuthConfig::default() });
        let mut registry = Registry { auth, ..Registry::default() };
        for tenant in tenants {
            let tenant = TenantId::parse(tenant).unwrap();
            let body = json!({"issuer": "https://login.example.com"});
            let config = Arc::new(parse_stored_issuer(&tenant, &body).unwrap());
            let entry = RegistryEntry::stored(StoredIssuer { body, config }, None, 1);
            registry.issuers.insert((tenant, BackendId::parse("login").unwrap()), entry);
        }
        registry
    }

    #[tokio::test]
    async fn a_stored_issuer_without_an_effect_is_reported_once_per_reason() {
        let folder = tempfile::tempdir().unwrap();
        let control = Rig::start(folder.path(), "").await.control;
        let newly = |registry: &Registry| -> Vec<(String, &'static str)> {
            let newly = control.newly_unused_issuers(registry.auth_in_force().1).into_iter();
            newly.map(|((tenant, _), (_, reason))| (tenant.to_string(), reason)).collect()
        };
        let missing = "auth.resource is missing";
        let one = registry_of(&["acme"], None);
        assert_eq!(newly(&one), [("acme".to_owned(), missing)]);
        assert_eq!(newly(&one), [], "at the next change");
        let two = registry_of(&["acme", "zoo"], None);
        assert_eq!(newly(&two), [("zoo".to_owned(), missing)]);
        let two = registry_of(&["acme", "zoo"], Some("https://mcp.example.com"));
        let taken = [("zoo".to_owned(), "another entry has the same issuer")];
        assert_eq!(newly(&two), taken, "the first is in force");
        assert_eq!(newly(&two), []);
        assert_eq!(newly(&one), [("acme".to_owned(), missing)], "it was in force in between");
    }

    #[test]
    fn a_tenant_has_its_own_issuers_alone() {
        let registry = registry_of(&["a", "a-b", "ab"], None);
        let counts = ["a", "a-a", "a-b", "ab", "b"]
            .map(|tenant| registry.issuers_of(&TenantId::parse(tenant).unwrap()).count());
        assert_eq!(counts, [1, 0, 1, 1, 0]);
    }
}
