//! Start-up: brings what is stored and what the configuration file declares into force, together.
//!
//! Invariant: no name is in both. A broker that would have to choose refuses to start and says which name it is. The one
//! exception is the tenant `default`, which the store holds from the first start on: untouched, it yields to a declaration.

use std::{collections::BTreeMap, sync::atomic::Ordering};

use protocol::ids::{BackendId, KeyId, TenantId};
use storage::{AdminChange, BackendRecord, KeyRecord, StoreError, TenantRecord};

use super::{
    Control, now_us,
    registry::{self, Backends, DECLARED, EntryOrigin, Registry, RegistryEntry, Tenants},
    validation::client_files,
};
use crate::{
    auth::{Caller, DEFAULT_TENANT, KeyEntry, SealError, reserved},
    config::{
        Config, DeclaredBackend, FieldError,
        spec::{BackendSpec, TenantSpec},
    },
};

/// Why stored and declared entries could not be brought into force.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(
        "the database holds keys and backends, but the secret.key they were stored with is missing; restore it beside the database"
    )]
    SecretMissing,
    #[error("backend {tenant}/{backend}: {source}")]
    Sealed { tenant: TenantId, backend: BackendId, source: SealError },
    #[error(
        "stored settings of {what} can not be read: {detail}; they may come from a newer build"
    )]
    Settings { what: String, detail: String },
    #[error("{what} is both stored and declared in the configuration file; remove one of the two")]
    Twice { what: String },
    #[error(
        "backends.{tenant}.{backend} of the configuration file: there is no tenant {tenant}; declare it under tenants"
    )]
    NoTenant { tenant: TenantId, backend: BackendId },
    #[error("backend {tenant}/{backend}: {fault}")]
    Refused { tenant: TenantId, backend: BackendId, fault: FieldError },
}

/// Whether the certificates that declared backends are to be shown can be used.
pub(super) async fn check_client_files(config: &Config) -> Result<(), LoadError> {
    for DeclaredBackend { tenant, backend, spec } in &config.backends {
        let refused =
            |fault| LoadError::Refused { tenant: tenant.clone(), backend: backend.clone(), fault };
        client_files(spec).await.map_err(refused)?;
    }
    Ok(())
}

/// How much was loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadSummary {
    pub tenants: usize,
    pub keys: usize,
    pub backends: usize,
}

impl Control {
    /// Called once, before any listener opens.
    pub async fn load(&self) -> Result<LoadSummary, LoadError> {
        let _turn = self.changing.lock().await;
        // Without a deadline of ours: there may be a lot to read, and nobody waits for an answer. The version comes first, so
        // that what changes meanwhile is read again.
        let version =
            if self.durable().is_shared() { self.store().config_version().await? } else { 0 };
        let (tenants, keys, backends) = (
            self.store().tenants().await?,
            self.store().keys().await?,
            self.store().backends().await?,
        );
        if self.keys.made_now && !(keys.is_empty() && backends.is_empty()) {
            self.keys.take_back(&self.config);
            return Err(LoadError::SecretMissing);
        }
        let tenants = self.load_tenants(tenants).await?;
        let backends = self.load_backends(&tenants, backends)?;
        check_client_files(&self.config).await?;
        let held = self.store().held_breakers().await?.into_iter().collect();
        let loaded =
            LoadSummary { tenants: tenants.len(), keys: keys.len(), backends: backends.len() };
        self.apply(Registry { tenants, backends }, keys);
        self.take_over_breakers(held);
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
                // The row its keys belong to.
                Some(_) => {
                    let record = tenant_record(tenant, DECLARED.to_owned(), now);
                    self.store().change(AdminChange::PutTenant(&record), None).await?;
                }
                None => {
                    let record = tenant_record(tenant, DECLARED.to_owned(), now);
                    self.store().change(AdminChange::AddTenant(&record), None).await?;
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
                // Another replica may have made it at the same time, or an operator may have changed it since: it stays.
                false => AdminChange::AddTenant(&record),
            };
            self.store().change(change, None).await?;
            stored.insert(default, record);
        }
        for (tenant, record) in stored {
            if record.settings == DECLARED {
                tracing::warn!(%tenant, "the configuration file does not declare this tenant: it is kept, disabled");
            }
            match stored_tenant(&record) {
                Ok(entry) => drop(tenants.insert(tenant, entry.into())),
                Err(error) => self.leave_out(&error),
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
        let mut unreadable = Vec::new();
        // Those of a tenant that was left out wait for it to be mended.
        for record in records.into_iter().filter(|record| tenants.contains_key(&record.tenant)) {
            match self.stored_backend(&record) {
                Ok(entry) => drop(backends.insert((record.tenant, record.backend), entry.into())),
                Err(error) => unreadable.push(error),
            }
        }
        // When none opens it is the secret that is wrong, and not the rows.
        let is_sealed = |error: &LoadError| matches!(error, LoadError::Sealed { .. });
        match unreadable.iter().position(is_sealed) {
            Some(first) if backends.is_empty() => return Err(unreadable.swap_remove(first)),
            _ => unreadable.iter().for_each(|error| self.leave_out(error)),
        }
        for declared in &self.config.backends {
            let (tenant, backend) = (declared.tenant.clone(), declared.backend.clone());
            if !tenants.contains_key(&tenant) {
                return Err(LoadError::NoTenant { tenant, backend });
            }
            let what = format!("backend {tenant}/{backend}");
            if backends
                .insert((tenant, backend), RegistryEntry::declared(declared.spec.clone(), now_us()))
                .is_some()
            {
                return Err(LoadError::Twice { what });
            }
        }
        Ok(backends)
    }

    /// One row that cannot be read does not keep the rest from being served.
    fn leave_out(&self, error: &LoadError) {
        self.metrics.row_unreadable();
        tracing::error!(%error, "left out: everything else is served");
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
                detail: place_of(&error),
            })?;
        let refused =
            |fault| LoadError::Refused { tenant: tenant.clone(), backend: backend.clone(), fault };
        // What may be named can have changed since.
        self.config.tls.check_stored(&spec.tls).map_err(refused)?;
        Ok(RegistryEntry {
            spec,
            origin: EntryOrigin::Stored,
            created_at_us: *created_at_us,
            updated_at_us: *updated_at_us,
        })
    }

    fn apply(&self, registry: Registry, keys: Vec<KeyRecord>) {
        for (tenant, entry) in &registry.tenants {
            self.broker.put_tenant(tenant, entry.spec.clone());
        }
        self.replace_keys(&registry, keys);
        for ((tenant, backend), entry) in &registry.backends {
            self.broker.put_backend(tenant, backend, entry.spec.clone());
        }
        self.registry.store(registry.into());
    }

    /// Returns the keys that are good no longer.
    pub(super) fn replace_keys(&self, registry: &Registry, keys: Vec<KeyRecord>) -> Vec<KeyId> {
        // A row may be older than the check at creation, or written by other hands.
        let usable = |record: &KeyRecord| {
            let Some(reason) = reserved(record.principal.as_str()) else { return true };
            tracing::warn!(tenant = %record.tenant, key = %record.key, reason, "a stored API key is not taken: its principal is reserved");
            false
        };
        let keys = keys.into_iter().filter(usable).map(|record| KeyEntry {
            caller: Caller {
                tenant: record.tenant,
                principal: record.principal,
                key: Some(record.key),
            },
            hash: record.hash,
        });
        let enabled = registry.tenants.iter().filter(|(_, entry)| entry.spec.enabled);
        self.keyring.replace(keys, enabled.map(|(tenant, _)| tenant.clone()))
    }
}

/// Without the parser's own words, which may repeat a credential.
fn place_of(error: &serde_json::Error) -> String {
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
        // Switched off rather than dropped: its keys and backends are somebody's, and a mended file brings it back.
        TenantSpec { enabled: false, ..TenantSpec::default() }
    } else {
        serde_json::from_str(&record.settings).map_err(|error| LoadError::Settings {
            what: format!("tenant {}", record.tenant),
            detail: place_of(&error),
        })?
    };
    Ok(RegistryEntry {
        spec,
        origin: EntryOrigin::Stored,
        created_at_us: record.created_at_us,
        updated_at_us: record.updated_at_us,
    })
}
