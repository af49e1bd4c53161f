//! Reload of the configuration file: applies its tenants, its backends and its settings of sign-in
//! while the broker runs.
//!
//! Invariant: a reload applies everything or nothing. It checks everything before the first change,
//! by the rules of start-up ([`super::load`]). An entry that is no longer declared ends as at a
//! restart.

use std::{collections::BTreeMap, sync::Arc};

use config::{AuthConfig, Config, spec::TenantSpec};
use protocol::ids::{DEFAULT_TENANT, TenantId};
use records::{AdminChange, TenantRecord};
use storage::Wakeup;

use super::{
    Control, LoadError,
    catalog_documents::reloaded_documents,
    load::{check_client_files, stored_tenant},
    operators::refuse_stored_names,
    registry::{DECLARED, EntryOrigin, Registry, RegistryEntry, tenant_settings},
    validation::now_us,
};
use crate::broker::BackendChanges;

/// Number of entries that a reload changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReloadSummary {
    pub tenants: usize,
    pub backends: usize,
    pub issuers: usize,
    /// Policies, toolsets and hosted prompts.
    pub documents: usize,
}

impl Control {
    /// Applies the tenants, the backends and the settings of sign-in of `config`, and protects its
    /// files with secrets. Ignores its other sections.
    pub async fn reload(&self, config: &Config) -> Result<ReloadSummary, LoadError> {
        let _turn = self.changing.lock().await;
        let CheckedReload { records, old, next } = self.checked_reload(config).await?;
        self.store_declared(&records, &old, &next).await?;
        // Before a backend of the next configuration starts a child.
        self.broker.shared.confinement.record_reload(config);
        if self.persistence().is_shared() {
            self.persistence().hot.publish(Wakeup::Config);
        }
        let reloaded = self.apply_difference(&old, next);
        self.generation.record_settings(Arc::clone(&config.settings));
        self.reapply_breakers();
        Ok(reloaded)
    }

    /// Returns the error that a reload of `next` would return now.
    pub async fn check_reload(&self, next: &Config) -> Result<(), LoadError> {
        let _turn = self.changing.lock().await;
        self.checked_reload(next).await.map(drop)
    }

    /// Checks a reload. The caller holds the lock `changing`.
    async fn checked_reload(&self, config: &Config) -> Result<CheckedReload, LoadError> {
        // A reload does not apply new message profiles, and an unknown one counts as the default.
        let unknown = self.config.limits.message_sizes.unknown_profiles(config);
        if let Some(fault) = unknown.into_iter().next() {
            return Err(LoadError::Invalid(fault));
        }
        if self.persistence().is_shared() || self.is_in_doubt() {
            // The reload must see the changes that another replica has just made.
            self.apply_store_changes().await?;
        }
        let records = self
            .query_store("list_tenants", self.store().tenants())
            .await?
            .into_iter()
            .map(|record| (record.tenant.clone(), record))
            .collect();
        let operators = self.query_store("list_operators", self.store().operators()).await?;
        refuse_stored_names(&operators, &config.auth)?;
        check_client_files(config).await?;
        let old = self.registry.load_full();
        let mut next = next_registry(&old, &records, config)?;
        self.reveal_stored(&old, &mut next).await?;
        Ok(CheckedReload { records, old, next })
    }

    /// Stores the rows that keys of declared tenants belong to. Also stores the default tenant when
    /// its declaration ends. Replaces no row that an operator changed.
    async fn store_declared(
        &self,
        records: &BTreeMap<TenantId, TenantRecord>,
        old: &Registry,
        next: &Registry,
    ) -> Result<(), LoadError> {
        for (tenant, entry) in &next.tenants {
            let record = records.get(tenant);
            let is_placeholder = record.is_some_and(is_placeholder);
            // Another replica may declare the default tenant: then its placeholder stays.
            let was_declared =
                old.tenants.get(tenant).is_some_and(|old| old.origin == EntryOrigin::Declared);
            let settings = match entry.origin {
                EntryOrigin::Declared if !is_placeholder && record.is_none_or(is_replaceable) => {
                    DECLARED.to_owned()
                }
                EntryOrigin::Stored
                    if tenant.as_str() == DEFAULT_TENANT
                        && (record.is_none() || is_placeholder && was_declared) =>
                {
                    tenant_settings(&entry.spec)
                }
                _ => continue,
            };
            let (created_at_us, updated_at_us) = (entry.created_at_us, entry.updated_at_us);
            let stored =
                TenantRecord { tenant: tenant.clone(), settings, created_at_us, updated_at_us };
            let (operation, change) = match record {
                Some(_) => ("put_tenant", AdminChange::PutTenant(&stored)),
                // If another replica adds the row at the same time, that row stays.
                None => ("add_tenant", AdminChange::AddTenant(&stored)),
            };
            self.query_store(operation, self.store().apply(change, None)).await?;
        }
        Ok(())
    }

    /// Applies the differences between `old` and `next`, in the order of the admin API's changes.
    pub(super) fn apply_difference(&self, old: &Registry, next: Registry) -> ReloadSummary {
        let mut reloaded = ReloadSummary {
            issuers: changed_issuers(&old.auth, &next.auth),
            documents: changed_entries(&old.policies, &next.policies)
                + changed_entries(&old.toolsets, &next.toolsets)
                + changed_entries(&old.prompts, &next.prompts),
            ..ReloadSummary::default()
        };
        // A tenant that goes or closes does so with its policy and its toolsets in force.
        let mut remaining = old.clone();
        for (tenant, before) in &old.tenants {
            let later = next.tenants.get(tenant);
            if later.is_some_and(|later| !before.is_other_row(later)) {
                continue;
            }
            self.keyring.remove_tenant(tenant);
            self.broker.remove_tenant(tenant);
            reloaded.tenants += 1;
            if later.is_some() {
                // Removed and created again: the later one starts as any other.
                remaining.remove_tenant(tenant);
            }
        }
        let old = &remaining;
        let is_changed = |(tenant, entry): &(&TenantId, &Arc<RegistryEntry<TenantSpec>>)| {
            old.tenants.get(*tenant).is_none_or(|before| before.spec != entry.spec)
        };
        let (opened, closed): (Vec<_>, Vec<_>) =
            next.tenants.iter().filter(is_changed).partition(|(_, entry)| entry.spec.enabled);
        reloaded.tenants += opened.len() + closed.len();
        for (tenant, entry) in closed {
            self.apply_tenant(tenant, Arc::clone(entry));
        }
        self.apply_policies(old, &next);
        self.apply_catalogs(old, &next);
        for (tenant, entry) in opened {
            self.apply_tenant(tenant, Arc::clone(entry));
        }
        reloaded.backends = self.apply_backends(old, &next);
        for declared in &old.auth.operators {
            if !next.auth.operators.contains(declared) {
                self.broker.end_trials_of(&declared.operator);
            }
        }
        // Last: the tenants of new issuers are in force.
        self.apply_auth(&next);
        if !old.auth.operator_scopes().eq(next.auth.operator_scopes()) {
            self.warn_of_unused_scopes(&next);
        }
        self.registry.store(Arc::new(next));
        reloaded
    }

    /// Removes, replaces and registers backends. Returns the number of backends that changed.
    fn apply_backends(&self, old: &Registry, next: &Registry) -> usize {
        let mut changed = 0;
        let mut changes = BackendChanges::new(&self.broker);
        for (tenant, backend) in
            old.backends.keys().filter(|name| !next.backends.contains_key(*name))
        {
            changes.remove(tenant, backend);
            changed += 1;
        }
        for ((tenant, backend), entry) in &next.backends {
            let before = old.backends.get(&(tenant.clone(), backend.clone()));
            let is_other = before.is_some_and(|before| before.is_other_row(entry));
            if is_other {
                // Removed and registered again: the new one inherits neither pins nor lists.
                changes.remove(tenant, backend);
            }
            if is_other || before.is_none_or(|before| before.spec != entry.spec) {
                changes.put(tenant, backend, entry.spec.clone());
                changed += 1;
            }
        }
        changes.finish();
        changed
    }
}

/// A reload that can be applied.
struct CheckedReload {
    records: BTreeMap<TenantId, TenantRecord>,
    /// The entries in force.
    old: Arc<Registry>,
    next: Registry,
}

/// Returns whether the row only holds the keys of a declared tenant.
fn is_placeholder(record: &TenantRecord) -> bool {
    record.settings == DECLARED
}

/// Returns whether a declaration may replace the row: no operator changed it.
fn is_replaceable(record: &TenantRecord) -> bool {
    let is_untouched = || {
        record.tenant.as_str() == DEFAULT_TENANT
            && stored_tenant(record).is_ok_and(|entry| entry.spec == TenantSpec::default())
    };
    is_placeholder(record) || is_untouched()
}

/// Returns the entry of a tenant whose declaration has ended.
fn undeclared_tenant(
    tenant: &TenantId,
    declared: &RegistryEntry<TenantSpec>,
    record: Option<&TenantRecord>,
    now: i64,
) -> Arc<RegistryEntry<TenantSpec>> {
    let spec = match record.filter(|record| !is_placeholder(record)).map(stored_tenant) {
        // An operator stored it at a replica that does not declare it.
        Some(Ok(stored)) => return stored.into(),
        None if tenant.as_str() == DEFAULT_TENANT => TenantSpec::default(),
        // Disabled and not dropped until it is declared again, because its keys and backends are
        // still stored.
        None | Some(Err(_)) => TenantSpec { enabled: false, ..TenantSpec::default() },
    };
    // With the time of its row, or the next read would take the row for that of another tenant.
    let created_at_us = record.map_or(declared.created_at_us, |record| record.created_at_us);
    RegistryEntry::stored(spec, Some(created_at_us), now)
}

/// Returns the number of issuers that only one of the two has, by their settings.
fn changed_issuers(old: &AuthConfig, next: &AuthConfig) -> usize {
    let missing = |one: &AuthConfig, other: &AuthConfig| {
        one.issuers.iter().filter(|issuer| !other.issuers.contains(issuer)).count()
    };
    missing(old, next).max(missing(next, old))
}

/// Returns the number of entries that only one of the two has, or that differ.
fn changed_entries<Name: Ord, Spec>(
    old: &BTreeMap<Name, Arc<RegistryEntry<Spec>>>,
    next: &BTreeMap<Name, Arc<RegistryEntry<Spec>>>,
) -> usize {
    let is_same = |name: &Name, entry: &Arc<RegistryEntry<Spec>>| {
        old.get(name).is_some_and(|before| Arc::ptr_eq(before, entry))
    };
    let changed = next.iter().filter(|&(name, entry)| !is_same(name, entry)).count();
    changed + old.keys().filter(|name| !next.contains_key(*name)).count()
}

/// Returns the entries that are in force after a reload of `config`.
fn next_registry(
    old: &Registry,
    records: &BTreeMap<TenantId, TenantRecord>,
    config: &Config,
) -> Result<Registry, LoadError> {
    let now = now_us();
    let mut next =
        Registry { auth: Arc::new(old.auth.reloaded(&config.auth)), ..Registry::default() };
    declare_tenants(&mut next, old, records, config, now)?;
    declare_backends(&mut next, old, config, now)?;
    next.issuers.clone_from(&old.issuers);
    declare_policies(&mut next, old, config, now)?;
    next.toolsets = reloaded_documents(old, &config.toolsets)?;
    next.prompts = reloaded_documents(old, &config.prompts)?;
    Ok(next)
}

/// Adds the stored tenants and those of `config`. An entry that did not change stays the same one.
fn declare_tenants(
    next: &mut Registry,
    old: &Registry,
    records: &BTreeMap<TenantId, TenantRecord>,
    config: &Config,
    now: i64,
) -> Result<(), LoadError> {
    for (tenant, entry) in &old.tenants {
        let entry = match entry.origin {
            EntryOrigin::Stored => Arc::clone(entry),
            EntryOrigin::Declared | EntryOrigin::Bundled => {
                undeclared_tenant(tenant, entry, records.get(tenant), now)
            }
        };
        next.tenants.insert(tenant.clone(), entry);
    }
    for (tenant, spec) in &config.tenants {
        let declared =
            old.tenants.get(tenant).filter(|entry| entry.origin == EntryOrigin::Declared);
        if declared.is_none() && records.get(tenant).is_some_and(|record| !is_replaceable(record)) {
            return Err(LoadError::Twice { what: format!("tenant {tenant}") });
        }
        let unchanged = declared.filter(|entry| entry.spec == *spec);
        next.tenants.insert(
            tenant.clone(),
            unchanged.map_or_else(|| RegistryEntry::declared(spec.clone(), now), Arc::clone),
        );
    }
    Ok(())
}

/// Adds the stored backends and those of `config`, whose tenants `next` has already.
fn declare_backends(
    next: &mut Registry,
    old: &Registry,
    config: &Config,
    now: i64,
) -> Result<(), LoadError> {
    let stored = old.backends.iter().filter(|(_, entry)| entry.origin == EntryOrigin::Stored);
    next.backends = stored.map(|(name, entry)| (name.clone(), Arc::clone(entry))).collect();
    for declared in &config.backends {
        let (tenant, backend) = (declared.tenant.clone(), declared.backend.clone());
        if !next.tenants.contains_key(&tenant) {
            return Err(LoadError::NoTenant { tenant, backend });
        }
        let name = (tenant, backend);
        let unchanged = old.backends.get(&name).filter(|entry| entry.is_of(declared));
        let entry = unchanged.map_or_else(|| RegistryEntry::of_declared(declared, now), Arc::clone);
        if next.backends.contains_key(&name) {
            return Err(LoadError::Twice { what: format!("backend {}/{}", name.0, name.1) });
        }
        next.backends.insert(name, entry);
    }
    Ok(())
}

/// Adds the stored policies and those of `config`.
fn declare_policies(
    next: &mut Registry,
    old: &Registry,
    config: &Config,
    now: i64,
) -> Result<(), LoadError> {
    let stored = old.policies.iter().filter(|(_, entry)| entry.origin == EntryOrigin::Stored);
    next.policies = stored.map(|(tenant, entry)| (tenant.clone(), Arc::clone(entry))).collect();
    for (tenant, document) in &config.policies {
        let unchanged = old
            .policies
            .get(tenant)
            .filter(|entry| entry.origin == EntryOrigin::Declared && entry.spec == *document);
        let entry =
            unchanged.map_or_else(|| RegistryEntry::declared(document.clone(), now), Arc::clone);
        if next.policies.insert(tenant.clone(), entry).is_some() {
            return Err(LoadError::Twice { what: format!("policy of tenant {tenant}") });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use config::{load_from, validation::parse_backend_spec};
    use protocol::ids::BackendId;

    use super::*;
    use crate::{
        auth::Keyring,
        control::{NewKey, tests::Rig},
    };

    const BODY: &str = "{transport: {type: http, url: 'http://127.0.0.1:9/'}}";

    async fn start(folder: &Path, yaml: &str) -> (Arc<Control>, Arc<Keyring>) {
        let Rig { control, keyring } = Rig::start(folder, yaml).await;
        (control, keyring)
    }

    async fn reload(control: &Control, yaml: &str) -> Result<ReloadSummary, String> {
        control.reload(&load_from(yaml, []).unwrap()).await.map_err(|error| error.to_string())
    }

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    fn names(control: &Control) -> Vec<String> {
        let registry = control.registry.load();
        registry.backends.keys().map(|(tenant, backend)| format!("{tenant}/{backend}")).collect()
    }

    #[tokio::test]
    async fn a_reload_adds_changes_and_removes_declared_entries() {
        let folder = tempfile::tempdir().unwrap();
        let (control, _) =
            start(folder.path(), &format!("backends: {{a: {BODY}, b: {BODY}}}")).await;
        let next = format!("tenants: {{acme: {{}}}}\nbackends: {{a: {BODY}, acme/c: {BODY}}}");
        assert_eq!(
            reload(&control, &next).await,
            Ok(ReloadSummary { tenants: 1, backends: 2, ..ReloadSummary::default() })
        );
        assert_eq!(names(&control), ["acme/c", "default/a"]);
        assert!(
            control.broker.backend(&tenant("default"), &BackendId::parse("b").unwrap()).is_none()
        );
        assert_eq!(
            reload(&control, &next).await,
            Ok(ReloadSummary::default()),
            "the same file again changes nothing"
        );
        control.close().await;
    }

    #[tokio::test]
    async fn a_reload_counts_the_documents_that_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let (control, _) = start(folder.path(), "tenants: {acme: {policy: {}}}").await;
        for (tenant, documents) in [
            ("{policy: {}}", 0),
            ("{policy: {default: deny}}", 1),
            ("{policy: {default: deny}, toolsets: {one: {}, two: {}}}", 2),
            ("{toolsets: {one: {}}}", 2),
            ("{toolsets: {one: {}}}", 0),
        ] {
            let reloaded = reload(&control, &format!("tenants: {{acme: {tenant}}}")).await;
            let counted = ReloadSummary { documents, ..ReloadSummary::default() };
            assert_eq!(reloaded, Ok(counted), "{tenant}");
        }
        control.close().await;
    }

    #[tokio::test]
    async fn a_file_that_is_refused_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (control, _) = start(folder.path(), &format!("backends: {{a: {BODY}}}")).await;
        let spec = parse_backend_spec(
            &serde_json::json!({"transport": {"type": "http", "url": "http://127.0.0.1:9/"}}),
        )
        .unwrap();
        control
            .put_tenant(
                tenant("stored"),
                TenantSpec::default(),
                crate::control::Preconditions::default(),
                crate::control::Author::default(),
            )
            .await
            .unwrap();
        control
            .put_backend(
                tenant("default"),
                BackendId::parse("mine").unwrap(),
                spec,
                crate::control::FirstAttempt::InBackground,
                crate::control::Preconditions::default(),
                crate::control::Author::default(),
            )
            .await
            .unwrap();
        let before = names(&control);
        for (yaml, reason) in [
            (
                format!("tenants: {{new: {{}}}}\nbackends: {{mine: {BODY}}}"),
                "both stored and declared",
            ),
            (
                format!("tenants: {{new: {{}}}}\nbackends: {{ghost/x: {BODY}}}"),
                "tenant ghost does not exist",
            ),
            ("tenants: {new: {}, stored: {}}".to_owned(), "both stored and declared"),
            (
                "limits: {message_profiles: {small: {default: 64KiB}}}\ntenants: {new: {limits: {message_profile: small}}}".to_owned(),
                "tenants.new.limits.message_profile: is small, which is not a profile",
            ),
        ] {
            let refused = reload(&control, &yaml).await.unwrap_err();
            assert!(refused.contains(reason), "{yaml}: {refused}");
            assert_eq!(names(&control), before);
            assert!(control.tenant(&tenant("new")).is_err());
        }
        control.close().await;
    }

    #[tokio::test]
    async fn keys_of_a_tenant_are_disabled_while_it_is_not_declared() {
        let folder = tempfile::tempdir().unwrap();
        let (control, keyring) = start(folder.path(), "").await;
        reload(&control, "tenants: {acme: {}}").await.unwrap();
        let key = control
            .create_key(tenant("acme"), NewKey::default(), crate::control::Author::default())
            .await
            .unwrap()
            .key;
        assert!(keyring.verify(&key).is_some());
        reload(&control, "").await.unwrap();
        assert!(
            keyring.verify(&key).is_none(),
            "a tenant that is not declared any more is switched off"
        );
        reload(&control, "tenants: {acme: {weight: 3}}").await.unwrap();
        assert!(keyring.verify(&key).is_some(), "and back on with its keys");
        control.close().await;
        drop(control);
        let (control, keyring) = start(folder.path(), "tenants: {acme: {}}").await;
        assert!(keyring.verify(&key).is_some(), "a restart agrees");
        control.close().await;
    }

    #[tokio::test]
    async fn the_default_tenant_remains_when_its_declaration_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (control, _) = start(folder.path(), "tenants: {default: {weight: 5}}").await;
        reload(&control, "").await.unwrap();
        let entry = Arc::clone(&control.registry.load().tenants[&tenant("default")]);
        assert_eq!((entry.origin, &entry.spec), (EntryOrigin::Stored, &TenantSpec::default()));
        reload(&control, "tenants: {default: {weight: 6}}").await.unwrap();
        assert_eq!(control.registry.load().tenants[&tenant("default")].spec.weight, 6);
        control.close().await;
    }
}
