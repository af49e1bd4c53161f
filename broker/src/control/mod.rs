//! Every change an operator makes: checked, committed to the store, then applied to the running broker.
//!
//! The admin API calls this, and start-up through [`Control::load`]. Invariants: what was acknowledged is on disk; changes
//! happen one at a time and in the order they were stored; once begun, a change is finished even when the caller who asked
//! for it is gone, so the store and the running broker never disagree. Entries of the configuration file live beside the
//! stored ones and can only be changed there.

mod audit;
mod audit_chain;
mod audit_maintenance;
mod audit_retention;
mod audit_seal;
mod audit_verify;
mod backends;
mod breakers;
mod config_generation;
mod live;
mod load;
mod preconditions;
mod registry;
mod reload;
mod resource_views;
mod store_sync;
#[cfg(test)]
pub(crate) mod tests;
mod validation;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI64, Ordering},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use protocol::ids::{KeyId, PrincipalId, TenantId};
use storage::{AdminChange, DurableStore, KeyRecord, StoreError, TenantRecord, Wakeup};
use tokio::sync::Notify;

pub use self::{
    audit::{AuditedAction, Author},
    audit_seal::CheckpointView,
    audit_verify::{ChainList, ChainView, MisfitView, Verdict},
    config_generation::{ConfigGeneration, ConfigurationView},
    load::{LoadError, LoadSummary},
    preconditions::Preconditions,
    reload::ReloadSummary,
    resource_views::{
        BackendSettings, BackendView, CredentialsView, KeyShown, KeyView, TenantView,
    },
};
use self::{
    registry::{EntryOrigin, Registry, RegistryEntry},
    validation::{check_label, check_principal, no_tenant, now_us, refuse_declared, refuse_more},
};
use crate::{
    auth::{ApiKey, DEFAULT_TENANT, Keyring, Keys},
    broker::Broker,
    config::{
        Config, FieldError,
        spec::{TenantSpec, TransportSpec},
    },
    limits::LEASE_LOST_READY,
    metrics::Metrics,
    persistence::Persistence,
};

pub const TENANTS_MAX: usize = 10_000;
pub const KEYS_PER_TENANT_MAX: usize = 1_000;
pub const BACKENDS_PER_TENANT_MAX: usize = 500;
const NAME_CHARS_MAX: usize = 128;

/// Why a change or a question was refused.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("there is no {what} {name}")]
    NotFound { what: &'static str, name: String },
    #[error("{what} {name} comes from the configuration file; change it there")]
    Declared { what: &'static str, name: String },
    #[error("tenant {DEFAULT_TENANT} always exists; disable it instead: {{\"enabled\": false}}")]
    DefaultTenant,
    #[error("the {what} {}", if *.exists { "is not what If-Match or If-None-Match names; GET shows its ETag" } else { "does not exist, and If-Match asks for one that does" })]
    Changed { what: &'static str, exists: bool },
    #[error("there are {max} {what} already, and no more are allowed")]
    TooMany { what: &'static str, max: usize },
    #[error("{} {}{}{}", .0.path, .0.wrong, if .0.allowed.is_empty() { "" } else { "; allowed: " }, .0.allowed)]
    Invalid(FieldError),
    #[error("{} {}; allowed: {}", .0.path, .0.wrong, .0.allowed)]
    Reserved(FieldError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the operating system gives no random numbers")]
    NoRandomness,
    #[error("the change was stopped by an internal fault; see the broker's log")]
    Internal,
}

/// What [`Control`] works with.
pub struct ControlParts {
    pub broker: Arc<Broker>,
    pub keyring: Arc<Keyring>,
    pub keys: Keys,
    pub config: Arc<Config>,
    pub metrics: Arc<Metrics>,
}

/// The operator's hand on the broker.
pub struct Control {
    pub broker: Arc<Broker>,
    pub config: Arc<Config>,
    pub metrics: Arc<Metrics>,
    /// Which reading of the configuration file is in force.
    pub generation: ConfigGeneration,
    keyring: Arc<Keyring>,
    keys: Keys,
    /// Tenants and backends as they are in force.
    registry: ArcSwap<Registry>,
    /// Held while one change is stored and applied.
    changing: tokio::sync::Mutex<()>,
    loaded: AtomicBool,
    /// The version of the store's entries that is in force, or an older one.
    applied: AtomicI64,
    /// Told when another version is in the store.
    changed: Arc<Notify>,
    /// Held while checkpoints of the audit log are signed, or records removed.
    keeping_audit: tokio::sync::Mutex<()>,
    /// Backends whose breakers operators hold open. Locked for a look.
    held: Mutex<breakers::HeldBreakers>,
}

/// Whether new work is welcome, and why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    Starting,
    Draining,
    /// The database is out of reach for longer than this process can be sure of what it owns.
    StoreUnavailable,
}

/// What a `put` did.
pub struct PutOutcome<View> {
    pub shown: Tagged<View>,
    /// False: it was there and was replaced.
    pub created: bool,
}

/// An entry as it is shown, and the tag that names the very settings that are shown.
#[derive(Debug, Clone, PartialEq)]
pub struct Tagged<View> {
    pub view: View,
    pub tag: String,
}

/// What is asked of a new API key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewKey {
    pub name: Option<String>,
    /// Whom the key speaks for; several keys may speak for one principal. The key's own id when absent.
    pub principal: Option<String>,
}

impl Control {
    pub fn new(parts: ControlParts) -> Arc<Self> {
        let ControlParts { broker, keyring, keys, config, metrics } = parts;
        Arc::new(Self {
            broker,
            config,
            metrics,
            generation: ConfigGeneration::default(),
            keyring,
            keys,
            registry: ArcSwap::default(),
            changing: tokio::sync::Mutex::default(),
            loaded: AtomicBool::new(false),
            applied: AtomicI64::new(0),
            changed: Arc::default(),
            keeping_audit: tokio::sync::Mutex::default(),
            held: Mutex::default(),
        })
    }

    /// Whether new work is welcome: everything was loaded, no drain has begun, and what is committed is this process's own.
    pub fn readiness(&self) -> Readiness {
        if self.broker.draining() {
            Readiness::Draining
        } else if !self.loaded.load(Ordering::Acquire) {
            Readiness::Starting
        } else if self.durable().lease.lost_for() >= LEASE_LOST_READY {
            Readiness::StoreUnavailable
        } else {
            Readiness::Ready
        }
    }

    fn durable(&self) -> &Persistence {
        &self.broker.shared.durable
    }

    fn store(&self) -> &dyn DurableStore {
        &*self.broker.shared.durable.store
    }

    async fn ask<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.durable().ask(operation, work).await
    }

    pub fn tenants(&self) -> Vec<TenantView> {
        self.registry
            .load()
            .tenants
            .iter()
            .map(|(tenant, entry)| TenantView::new(tenant, entry))
            .collect()
    }

    pub fn tenant(&self, tenant: &TenantId) -> Result<Tagged<TenantView>, ControlError> {
        let registry = self.registry.load();
        let entry = registry.tenants.get(tenant).ok_or_else(|| no_tenant(tenant))?;
        Ok(self.tenant_shown(tenant, entry))
    }

    fn tenant_shown(
        &self,
        tenant: &TenantId,
        entry: &RegistryEntry<TenantSpec>,
    ) -> Tagged<TenantView> {
        Tagged { view: TenantView::new(tenant, entry), tag: self.tag(entry) }
    }

    /// Whether there is such a tenant.
    pub fn knows(&self, tenant: &TenantId) -> Result<(), ControlError> {
        if self.registry.load().tenants.contains_key(tenant) {
            Ok(())
        } else {
            Err(no_tenant(tenant))
        }
    }

    pub async fn put_tenant(
        self: &Arc<Self>,
        tenant: TenantId,
        spec: TenantSpec,
        condition: Preconditions,
        author: Author,
    ) -> Result<PutOutcome<TenantView>, ControlError> {
        self.config
            .limits
            .message_sizes
            .check(spec.limits.message_profile.as_deref())
            .map_err(ControlError::Invalid)?;
        self.change(|control| async move {
            let registry = control.registry.load_full();
            let old = registry.tenants.get(&tenant);
            condition.holds("tenant", old.map(|entry| control.tag(entry)).as_deref())?;
            refuse_declared(old.map(|entry| entry.origin), "tenant", &tenant)?;
            refuse_more(old.is_none(), registry.tenants.len(), "tenants", TENANTS_MAX)?;
            let entry = RegistryEntry::stored(spec, old.map(|entry| entry.created_at_us), now_us());
            let record = TenantRecord {
                tenant: tenant.clone(),
                settings: registry::tenant_settings(&entry.spec),
                created_at_us: entry.created_at_us,
                updated_at_us: entry.updated_at_us,
            };
            control.commit(AdminChange::PutTenant(&record), &author).await?;
            let (shown, created) = (control.tenant_shown(&tenant, &entry), old.is_none());
            control.apply_tenant(&tenant, entry);
            tracing::info!(%tenant, created, "tenant stored");
            Ok(PutOutcome { shown, created })
        })
        .await
    }

    pub async fn delete_tenant(
        self: &Arc<Self>,
        tenant: TenantId,
        condition: Preconditions,
        author: Author,
    ) -> Result<(), ControlError> {
        self.change(|control| async move {
            let tag = control.registry.load().tenants.get(&tenant).map(|entry| control.tag(entry));
            condition.holds("tenant", tag.as_deref())?;
            if tenant.as_str() == DEFAULT_TENANT {
                return Err(ControlError::DefaultTenant);
            }
            let registry = control.registry.load_full();
            refuse_declared(
                registry.tenants.get(&tenant).map(|entry| entry.origin),
                "tenant",
                &tenant,
            )?;
            let mut declared = registry
                .backends_of(&tenant)
                .filter(|(_, entry)| entry.origin == EntryOrigin::Declared);
            if let Some((backend, _)) = declared.next() {
                // Its next start would be refused: a declared backend without its tenant.
                return Err(ControlError::Declared {
                    what: "backend",
                    name: format!("{backend} of this tenant"),
                });
            }
            if !control.commit(AdminChange::DeleteTenant(&tenant), &author).await? {
                return Err(no_tenant(&tenant));
            }
            control.keyring.remove_tenant(&tenant);
            control.broker.remove_tenant(&tenant);
            control.forget_breakers(&tenant, None);
            control.edit(|registry| registry.remove_tenant(&tenant));
            tracing::info!(%tenant, "tenant removed with its keys and backends");
            Ok(())
        })
        .await
    }

    pub async fn keys_of(&self, tenant: &TenantId) -> Result<Vec<KeyView>, ControlError> {
        self.knows(tenant)?;
        Ok(self
            .ask("keys_of", self.store().keys_of(tenant))
            .await?
            .iter()
            .map(KeyView::new)
            .collect())
    }

    /// Makes a key; the answer is the only place that ever shows it.
    pub async fn create_key(
        self: &Arc<Self>,
        tenant: TenantId,
        wanted: NewKey,
        author: Author,
    ) -> Result<KeyShown, ControlError> {
        check_label("name", wanted.name.as_deref())?;
        check_principal(wanted.principal.as_deref())?;
        self.change(|control| async move {
            control.knows(&tenant)?;
            refuse_more(
                true,
                control.ask("keys_of", control.store().keys_of(&tenant)).await?.len(),
                "keys of this tenant",
                KEYS_PER_TENANT_MAX,
            )?;
            let key =
                ApiKey::mint(&control.keys.api_key).map_err(|_| ControlError::NoRandomness)?;
            let record = KeyRecord {
                key: key.id.clone(),
                tenant: tenant.clone(),
                principal: PrincipalId::new(
                    wanted.principal.unwrap_or_else(|| key.id.as_str().to_owned()),
                ),
                name: wanted.name.unwrap_or_default(),
                hash: key.hash.clone(),
                created_at_us: now_us(),
            };
            control.commit(AdminChange::PutKey(&record), &author).await?;
            control.keyring.insert(key.entry(tenant.clone(), record.principal.clone()));
            tracing::info!(%tenant, key = %key.id, principal = %record.principal, "key created");
            Ok(KeyShown { info: KeyView::new(&record), key: key.text })
        })
        .await
    }

    pub async fn delete_key(
        self: &Arc<Self>,
        tenant: TenantId,
        key: KeyId,
        author: Author,
    ) -> Result<(), ControlError> {
        self.change(|control| async move {
            control.knows(&tenant)?;
            if !control.commit(AdminChange::DeleteKey(&tenant, &key), &author).await? {
                return Err(ControlError::NotFound { what: "key", name: key.as_str().to_owned() });
            }
            control.keyring.remove(&key);
            control.broker.end_sessions_of_key(&key);
            tracing::info!(%tenant, %key, "key revoked");
            Ok(())
        })
        .await
    }

    /// Waits for a change under way and closes the store. Called last, when nobody is served any more.
    pub async fn close(&self) {
        let _turn = self.changing.lock().await;
        self.broker.end_traces().await;
        self.broker.tell_sign_in_failures();
        self.seal_audit().await;
        self.durable().close().await;
    }

    /// Runs one change on a task of its own: a client that hangs up must not stop it half way.
    async fn change<T, Work>(
        self: &Arc<Self>,
        change: impl FnOnce(Arc<Self>) -> Work,
    ) -> Result<T, ControlError>
    where
        T: Send + 'static,
        Work: Future<Output = Result<T, ControlError>> + Send + 'static,
    {
        let (control, work) = (Arc::clone(self), change(Arc::clone(self)));
        let task = tokio::spawn(async move {
            let _turn = control.changing.lock().await;
            let is_shared = control.durable().is_shared();
            if is_shared {
                // What another replica changed a moment ago is to be known to this change.
                control.take_over_changes().await?;
            }
            let done = work.await;
            control.keep_breakers();
            if is_shared {
                control.durable().hot.wake(Wakeup::Config);
            }
            done
        });
        task.await.unwrap_or_else(|fault| {
            tracing::error!(%fault, "a change was stopped by a fault of the broker");
            Err(ControlError::Internal)
        })
    }

    fn apply_tenant(&self, tenant: &TenantId, entry: Arc<RegistryEntry<TenantSpec>>) {
        // A tenant's door is shut before its rooms are closed, and opened after they are ready.
        if !entry.spec.enabled {
            self.keyring.set_enabled(tenant, false);
        }
        self.broker.put_tenant(tenant, entry.spec.clone());
        if entry.spec.enabled {
            self.keyring.set_enabled(tenant, true);
        }
        self.edit(|registry| {
            registry.tenants.insert(tenant.clone(), Arc::clone(&entry));
        });
    }

    fn edit(&self, edit: impl Fn(&mut Registry)) {
        self.registry.rcu(|current| {
            let mut next = Registry::clone(current);
            edit(&mut next);
            next
        });
    }

    /// Names are resolved and judged at every connect; an address can be judged right now.
    fn check_egress(&self, transport: &TransportSpec) -> Result<(), ControlError> {
        let Some((address, field)) = transport.address() else { return Ok(()) };
        self.config.egress.check(address).map_err(|denied| {
            ControlError::Invalid(FieldError {
                path: field.to_owned(),
                wrong: format!("leads to a refused address: {denied}"),
                allowed: String::new(),
            })
        })
    }
}
