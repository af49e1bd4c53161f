//! Start-up: activates the stored entries together with the entries of the configuration file.
//!
//! Invariant: no name occurs in both. The broker refuses to start with such a name, and reports it.
//! The only exception is the tenant `default`, which the store contains from the first start on. An
//! unchanged one yields to a declaration.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use config::{
    Config, DeclaredBackend, FieldError,
    spec::{BackendSpec, TenantSpec},
};
use protocol::ids::{BackendId, DEFAULT_TENANT, KeyId, TenantId};
use records::{AdminChange, BackendRecord, KeyRecord, PolicyRecord, TenantRecord};
use storage::StoreError;

use super::{
    Control,
    key_attributes::key_entry,
    operators::refuse_stored_names,
    registry::{
        self, Backends, DECLARED, EntryOrigin, Policies, Registry, RegistryEntry, Tenants,
        UnreadableBackends,
    },
    validation::{client_files, now_us},
};
use crate::auth::{Caller, RootSecrets, SealError, reserved_reason};

/// Reason why stored and declared entries cannot be activated.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(
        "the database holds keys and backends, but the secret.key they were stored with is missing; restore it next to the database"
    )]
    SecretMissing,
    #[error("backend {tenant}/{backend}: {source}")]
    Sealed { tenant: TenantId, backend: BackendId, source: SealError },
    #[error("stored settings of {what} cannot be read: {detail}; they may come from a newer build")]
    Settings { what: String, detail: String },
    #[error("{what} is both stored and declared in the configuration file; remove one of the two")]
    Twice { what: String },
    #[error(
        "backends.{tenant}/{backend} of the configuration file: tenant {tenant} does not exist; declare it under tenants"
    )]
    NoTenant { tenant: TenantId, backend: BackendId },
    #[error("backend {tenant}/{backend}: {fault}")]
    Refused { tenant: TenantId, backend: BackendId, fault: FieldError },
    #[error("{0}")]
    Invalid(FieldError),
}

/// Checks that the client certificates of declared backends are usable.
pub(super) async fn check_client_files(config: &Config) -> Result<(), LoadError> {
    for DeclaredBackend { tenant, backend, spec, .. } in &config.backends {
        let refused =
            |fault| LoadError::Refused { tenant: tenant.clone(), backend: backend.clone(), fault };
        client_files(spec).await.map_err(refused)?;
    }
    Ok(())
}

/// Number of loaded entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadSummary {
    pub tenants: usize,
    pub keys: usize,
    pub backends: usize,
}

impl Control {
    /// Loads all entries. Called once, before any listener opens.
    pub async fn load(&self) -> Result<LoadSummary, LoadError> {
        let _turn = self.changing.lock().await;
        // Without a deadline: there may be many rows, and no request waits for them. The version is
        // read first, so that later changes are read again.
        let version = self.store().config_version().await?;
        let (tenants, keys, backends) = (
            self.store().tenants().await?,
            self.store().keys().await?,
            self.store().backends().await?,
        );
        let operators = self.store().operators().await?;
        let is_empty = keys.is_empty() && backends.is_empty() && operators.is_empty();
        if self.keys.newly_created && !is_empty {
            RootSecrets::remove_new_file(&self.config);
            return Err(LoadError::SecretMissing);
        }
        refuse_stored_names(&operators, &self.config.auth)?;
        let tenants = self.load_tenants(tenants).await?;
        let backends = self.load_backends(&tenants, backends)?;
        let policies = self.load_policies(&tenants, self.store().policies().await?)?;
        let documents = self.store().catalog_documents().await?;
        let is_tenant = |tenant: &TenantId| tenants.contains_key(tenant);
        let toolsets = self.load_documents(&documents, &self.config.toolsets, is_tenant)?;
        let prompts = self.load_documents(&documents, &self.config.prompts, is_tenant)?;
        let issuers = self.load_issuers(&tenants, self.store().token_issuers().await?);
        let revocations = self.store().revocations().await?;
        check_client_files(&self.config).await?;
        let held = self.store().held_breakers().await?.into_iter().collect();
        let loaded =
            LoadSummary { tenants: tenants.len(), keys: keys.len(), backends: backends.len() };
        self.apply_revocations(revocations);
        let auth = Arc::new(self.config.auth.clone());
        self.apply(
            Registry { tenants, backends, policies, toolsets, prompts, issuers, auth },
            keys,
        );
        self.apply_operators(operators);
        self.apply_breakers(held);
        self.applied.store(version, Ordering::Release);
        self.loaded.store(true, Ordering::Release);
        Ok(loaded)
    }

    async fn load_tenants(&self, records: Vec<TenantRecord>) -> Result<Tenants, LoadError> {
        let now = now_us();
        let mut stored: BTreeMap<TenantId, TenantRecord> =
            records.into_iter().map(|record| (record.tenant.clone(), record)).collect();
        let mut tenants = Tenants::new();
        for (tenant, spec) in &self.config.tenants {
            match stored.remove(tenant) {
                Some(record) if record.settings == DECLARED => {}
                Some(record) if !is_untouched_default(&record) => {
                    return Err(LoadError::Twice { what: format!("tenant {tenant}") });
                }
                // The row that the keys of the declared tenant belong to.
                Some(_) => {
                    let record = tenant_record(tenant, DECLARED.to_owned(), now);
                    self.store().apply(AdminChange::PutTenant(&record), None).await?;
                }
                None => {
                    let record = tenant_record(tenant, DECLARED.to_owned(), now);
                    self.store().apply(AdminChange::AddTenant(&record), None).await?;
                }
            }
            tenants.insert(tenant.clone(), RegistryEntry::declared(spec.clone(), now));
        }
        let default = Caller::anonymous().tenant;
        let is_missing = stored.get(&default).is_none_or(|record| record.settings == DECLARED);
        if is_missing && !tenants.contains_key(&default) {
            let record =
                tenant_record(&default, registry::tenant_settings(&TenantSpec::default()), now);
            let change = match stored.contains_key(&default) {
                true => AdminChange::PutTenant(&record),
                // Another replica may have created the tenant at the same time, or an operator may
                // have changed it since: it stays.
                false => AdminChange::AddTenant(&record),
            };
            self.store().apply(change, None).await?;
            // As the row is: it may be older, or that of another replica.
            let rows = self.store().tenants().await?;
            let row = rows.into_iter().find(|row| row.tenant == default);
            stored.extend(row.map(|row| (default, row)));
        }
        for (tenant, record) in stored {
            match stored_tenant(&record) {
                Ok(entry) => drop(tenants.insert(tenant, entry.into())),
                Err(error) => self.skip_unreadable(&error),
            }
        }
        Ok(tenants)
    }

    fn load_backends(
        &self,
        tenants: &Tenants,
        records: Vec<BackendRecord>,
    ) -> Result<Backends, LoadError> {
        let mut backends = Backends::new();
        let (mut unreadable, mut created_at) = (Vec::new(), UnreadableBackends::new());
        // Backends of a skipped tenant wait until its row is repaired.
        for record in records.into_iter().filter(|record| tenants.contains_key(&record.tenant)) {
            let read = self.stored_backend(&record);
            let name = (record.tenant, record.backend);
            match read {
                Ok(entry) => drop(backends.insert(name, entry.into())),
                Err(error) => {
                    unreadable.push(error);
                    created_at.insert(name, record.created_at_us);
                }
            }
        }
        *self.unreadable_backends.lock() = created_at;
        // If no backend opens, the secret is wrong and not the rows.
        let is_sealed = |error: &LoadError| matches!(error, LoadError::Sealed { .. });
        match unreadable.iter().position(is_sealed) {
            Some(first) if backends.is_empty() => return Err(unreadable.swap_remove(first)),
            _ => unreadable.iter().for_each(|error| self.skip_unreadable(error)),
        }
        for declared in &self.config.backends {
            let (tenant, backend) = (declared.tenant.clone(), declared.backend.clone());
            if !tenants.contains_key(&tenant) {
                return Err(LoadError::NoTenant { tenant, backend });
            }
            let what = format!("backend {tenant}/{backend}");
            if backends
                .insert((tenant, backend), RegistryEntry::of_declared(declared, now_us()))
                .is_some()
            {
                return Err(LoadError::Twice { what });
            }
        }
        Ok(backends)
    }

    /// Skips an unreadable row, so that the broker still serves the others.
    pub(super) fn skip_unreadable(&self, error: &LoadError) {
        self.metrics.row_unreadable();
        tracing::error!(%error, "the broker cannot use a stored entry and leaves it out");
    }

    pub(super) fn stored_backend(
        &self,
        record: &BackendRecord,
    ) -> Result<RegistryEntry<BackendSpec>, LoadError> {
        let BackendRecord { tenant, backend, settings, created_at_us, updated_at_us } = record;
        let text = registry::open_backend(&self.keys.seal, tenant, backend, settings);
        let text = text.map_err(|source| LoadError::Sealed {
            tenant: tenant.clone(),
            backend: backend.clone(),
            source,
        })?;
        let spec: BackendSpec =
            serde_json::from_slice(&text).map_err(|error| LoadError::Settings {
                what: format!("backend {tenant}/{backend}"),
                detail: error_position(&error),
            })?;
        let refused =
            |fault| LoadError::Refused { tenant: tenant.clone(), backend: backend.clone(), fault };
        // The permitted files may have changed since the backend was stored.
        self.config.tls.check_stored(&spec.tls).map_err(refused)?;
        Ok(RegistryEntry {
            spec,
            origin: EntryOrigin::Stored,
            created_at_us: *created_at_us,
            updated_at_us: *updated_at_us,
        })
    }

    fn load_policies(
        &self,
        tenants: &Tenants,
        records: Vec<PolicyRecord>,
    ) -> Result<Policies, LoadError> {
        let mut policies = Policies::new();
        for record in records.into_iter().filter(|record| tenants.contains_key(&record.tenant)) {
            let entry = self.stored_policy(&record);
            policies.insert(record.tenant, entry.into());
        }
        for (tenant, document) in &self.config.policies {
            let entry = RegistryEntry::declared(document.clone(), now_us());
            if policies.insert(tenant.clone(), entry).is_some() {
                return Err(LoadError::Twice { what: format!("policy of tenant {tenant}") });
            }
        }
        Ok(policies)
    }

    fn apply(&self, registry: Registry, keys: Vec<KeyRecord>) {
        self.apply_policies(&Registry::default(), &registry);
        self.apply_catalogs(&Registry::default(), &registry);
        for (tenant, entry) in &registry.tenants {
            self.broker.put_tenant(tenant, entry.spec.clone(), entry.row_created_at_us());
        }
        self.replace_keys(&registry, keys);
        for ((tenant, backend), entry) in &registry.backends {
            self.broker.put_backend(tenant, backend, entry.spec.clone());
        }
        self.apply_auth(&registry);
        self.registry.store(registry.into());
    }

    /// Replaces the keys. Returns the keys that no longer exist.
    pub(super) fn replace_keys(&self, registry: &Registry, keys: Vec<KeyRecord>) -> Vec<KeyId> {
        // A row may be older than the check at creation, or another program may have written it.
        let usable = |record: &KeyRecord| {
            let Some(reason) = reserved_reason(record.principal.as_str()) else { return true };
            tracing::warn!(tenant = %record.tenant, key = %record.key, reason, "the broker ignores a stored API key, because its principal is reserved");
            false
        };
        let keys = keys.into_iter().filter(usable).map(key_entry);
        let enabled = registry.tenants.iter().filter(|(_, entry)| entry.spec.enabled);
        self.keyring.replace(keys, enabled.map(|(tenant, _)| tenant.clone()))
    }
}

/// Returns the position of an error, without the parser's text, which may repeat a credential.
fn error_position(error: &serde_json::Error) -> String {
    format!("{:?} error at line {} column {}", error.classify(), error.line(), error.column())
        .to_lowercase()
}

pub(super) fn tenant_record(tenant: &TenantId, settings: String, now_us: i64) -> TenantRecord {
    TenantRecord { tenant: tenant.clone(), settings, created_at_us: now_us, updated_at_us: now_us }
}

fn is_untouched_default(record: &TenantRecord) -> bool {
    record.tenant.as_str() == DEFAULT_TENANT
        && record.settings == registry::tenant_settings(&TenantSpec::default())
}

pub(super) fn stored_tenant(record: &TenantRecord) -> Result<RegistryEntry<TenantSpec>, LoadError> {
    let spec = if record.settings == DECLARED {
        // Disabled and not dropped: its keys and backends are still stored, and a repaired file
        // enables it again.
        TenantSpec { enabled: false, ..TenantSpec::default() }
    } else {
        serde_json::from_str(&record.settings).map_err(|error| LoadError::Settings {
            what: format!("tenant {}", record.tenant),
            detail: error_position(&error),
        })?
    };
    Ok(RegistryEntry {
        spec,
        origin: EntryOrigin::Stored,
        created_at_us: record.created_at_us,
        updated_at_us: record.updated_at_us,
    })
}
