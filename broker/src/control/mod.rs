//! Changes by operators: each is checked, committed to the store, and then applied to the running
//! broker.
//!
//! The admin API calls this module, and start-up calls [`Control::load`]. Invariants:
//! - An acknowledged change is on disk.
//! - Changes run one at a time, in the order of their storage. [`change`] repeats a change that was
//!   checked before a change of another replica.
//! - A started change completes even if its client disconnects, so the store and the running broker
//!   never differ. After a change with an unknown outcome, the broker applies what the store has.
//!
//! Entries of the configuration file exist alongside the stored ones. They can only be changed in
//! the file.

mod approvals;
mod audit;
mod audit_chain;
mod audit_maintenance;
mod audit_retention;
mod audit_seal;
mod audit_verify;
mod backends;
mod breakers;
mod catalog_documents;
mod catalog_views;
mod change;
mod config_generation;
mod connections;
mod console_logins;
mod effective_configuration;
mod error;
mod hidden_entries;
mod issuers;
mod key_attributes;
mod list_part;
mod live;
mod load;
mod log;
mod operators;
mod overview;
mod pins;
mod policies;
mod preconditions;
mod readiness;
mod registry;
mod reload;
mod resealing;
mod resource_views;
mod revocations;
mod revoked_sessions;
mod store_sync;
#[cfg(test)]
pub(crate) mod tests;
mod unused_settings;
mod validation;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use config::{
    Config, FieldError,
    spec::{TenantSpec, TransportSpec},
};
use parking_lot::Mutex;
use protocol::ids::{DEFAULT_TENANT, KeyId, PrincipalId, TenantId};
use records::{AdminChange, KeyRecord, TenantRecord};
use storage::{DurableStore, StoreError};
use tokio::sync::Notify;

pub(crate) use self::overview::kind_name;
pub use self::{
    approvals::{ApprovalView, NewDecision},
    audit::{AuditedAction, Author, restore_record},
    audit_seal::CheckpointView,
    audit_verify::{ChainList, ChainView, MisfitView, Verdict},
    backends::FirstAttempt,
    catalog_views::{CatalogCostView, HostedPromptView, ToolsetView},
    config_generation::{
        ConfigGeneration, ConfigurationView, IncludedFileState, IncludedFileView, now_text,
    },
    connections::{ConnectLinkView, ConnectionTestView, ConnectionView},
    effective_configuration::{EffectiveConfigurationView, SettingSource, SettingSourceKind},
    error::ControlError,
    issuers::IssuerView,
    key_attributes::{KeyAttributes, NewKey},
    list_part::{ListPart, ListRange, creation_key},
    load::{LoadError, LoadSummary},
    log::{LogFilterView, NewLogFilter},
    operators::{NewOperator, OperatorShown, OperatorView},
    overview::CatalogFilter,
    pins::{
        PinApprovalItem, PinApprovalRequest, PinBlockItem, PinBlockRequest, PinDiffView, PinView,
    },
    policies::{PolicyCheck, PolicyCheckView, PolicyReportView, PolicyView},
    preconditions::Preconditions,
    readiness::Readiness,
    reload::ReloadSummary,
    resource_views::{
        BackendSettings, BackendView, CredentialsView, KeyShown, KeyView, TenantView,
    },
    revocations::{NewRevocation, RevocationView},
};
use self::{
    key_attributes::key_entry,
    registry::{EntryOrigin, Registry, RegistryEntry, UnreadableBackends},
    validation::{
        check_key_life, check_label, check_principal, no_tenant, refuse_declared, refuse_more,
    },
};
use crate::{
    auth::{ApiKey, Keyring, Keys, OperatorTokens},
    broker::Broker,
    metrics::Metrics,
    persistence::Persistence,
    telemetry::LogFilterHandle,
};

pub const TENANTS_MAX: usize = 10_000;
pub const KEYS_PER_TENANT_MAX: usize = 1_000;
pub const BACKENDS_PER_TENANT_MAX: usize = 500;
/// Operators that the admin API stored.
pub const OPERATORS_MAX: usize = 1_000;
const NAME_CHARS_MAX: usize = 128;

/// Components that [`Control`] uses.
pub struct ControlParts {
    pub broker: Arc<Broker>,
    pub keyring: Arc<Keyring>,
    pub keys: Keys,
    pub config: Arc<Config>,
    pub metrics: Arc<Metrics>,
    /// `None`: the log is the caller's own affair.
    pub log: Option<LogFilterHandle>,
    /// Maximum number of sessions or tasks in one answer.
    pub list_max: usize,
}

/// Entry point of all changes by operators.
pub struct Control {
    pub broker: Arc<Broker>,
    pub config: Arc<Config>,
    pub metrics: Arc<Metrics>,
    /// Generation of the configuration in force.
    pub generation: ConfigGeneration,
    /// Maximum number of sessions or tasks in one answer.
    pub list_max: usize,
    log: Option<LogFilterHandle>,
    /// Tokens of the named operators.
    operators: OperatorTokens,
    keyring: Arc<Keyring>,
    keys: Keys,
    /// Tenants and backends in force.
    registry: ArcSwap<Registry>,
    /// Stored backends that cannot be read, with the times of their creation.
    unreadable_backends: Mutex<UnreadableBackends>,
    /// Stored issuers whose lack of effect was logged. Locked only briefly.
    unused_issuers: Mutex<issuers::UnusedIssuers>,
    /// Held while one change is stored and applied.
    changing: tokio::sync::Mutex<()>,
    loaded: AtomicBool,
    /// True once the settings without an effect were logged.
    warns_of_unused: AtomicBool,
    /// Version of the store's entries in force, or an older one.
    applied: AtomicI64,
    /// True after a change with an unknown outcome, until the store's entries are applied.
    in_doubt: AtomicBool,
    /// Notified when the store has another version.
    changed: Arc<Notify>,
    /// Held while checkpoints of the audit log are signed, or records are removed.
    keeping_audit: tokio::sync::Mutex<()>,
    /// Backends whose breakers operators hold open. Locked only briefly.
    held: Mutex<breakers::HeldBreakers>,
}

/// Result of a `put`.
pub struct PutOutcome<View> {
    pub entry: Tagged<View>,
    /// False if the entry replaced an existing one.
    pub created: bool,
}

/// View of an entry, and the entity tag of exactly these settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Tagged<View> {
    pub view: View,
    pub tag: String,
}

impl Control {
    pub fn new(parts: ControlParts) -> Arc<Self> {
        let ControlParts { broker, keyring, keys, config, metrics, log, list_max } = parts;
        Arc::new(Self {
            broker,
            config,
            metrics,
            generation: ConfigGeneration::default(),
            list_max,
            log,
            operators: OperatorTokens::new(keys.operator.clone()),
            keyring,
            keys,
            registry: ArcSwap::default(),
            changing: tokio::sync::Mutex::default(),
            loaded: AtomicBool::new(false),
            warns_of_unused: AtomicBool::new(false),
            applied: AtomicI64::new(0),
            in_doubt: AtomicBool::new(false),
            unreadable_backends: Mutex::default(),
            unused_issuers: Mutex::default(),
            changed: Arc::default(),
            keeping_audit: tokio::sync::Mutex::default(),
            held: Mutex::default(),
        })
    }

    fn persistence(&self) -> &Persistence {
        &self.broker.shared.persistence
    }

    fn store(&self) -> &dyn DurableStore {
        &*self.broker.shared.persistence.store
    }

    async fn query_store<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.persistence().run(operation, work).await
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
        Ok(self.tagged_tenant(tenant, entry))
    }

    fn tagged_tenant(
        &self,
        tenant: &TenantId,
        entry: &RegistryEntry<TenantSpec>,
    ) -> Tagged<TenantView> {
        Tagged { view: TenantView::new(tenant, entry), tag: self.tag(entry) }
    }

    /// Returns an error unless the tenant exists.
    pub fn check_tenant(&self, tenant: &TenantId) -> Result<(), ControlError> {
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
        self.change(
            (tenant, spec, condition, author),
            |attempt, (tenant, spec, condition, author)| async move {
                let registry = attempt.registry.load_full();
                let old = registry.tenants.get(&tenant);
                refuse_declared(old.map(|entry| entry.origin), "tenant", &tenant)?;
                condition.holds("tenant", old.map(|entry| attempt.tag(entry)).as_deref())?;
                refuse_more(old.is_none(), registry.tenants.len(), "tenants", TENANTS_MAX)?;
                // Operators of the tenant read the audit log from its creation on, at every replica.
                let now = attempt.query_store("read_clock", attempt.store().clock_us()).await?;
                let entry = RegistryEntry::stored(spec, old.map(|entry| entry.created_at_us), now);
                let record = TenantRecord {
                    tenant: tenant.clone(),
                    settings: registry::tenant_settings(&entry.spec),
                    created_at_us: entry.created_at_us,
                    updated_at_us: entry.updated_at_us,
                };
                attempt.commit(AdminChange::PutTenant(&record), &author).await?;
                let (tagged, created) = (attempt.tagged_tenant(&tenant, &entry), old.is_none());
                attempt.apply_tenant(&tenant, entry);
                tracing::info!(%tenant, created, "tenant stored");
                Ok(PutOutcome { entry: tagged, created })
            },
        )
        .await
    }

    pub async fn delete_tenant(
        self: &Arc<Self>,
        tenant: TenantId,
        condition: Preconditions,
        author: Author,
    ) -> Result<(), ControlError> {
        // The checks have a turn of their own, so that they see the changes of other replicas. A
        // removal that they refuse removes nothing.
        self.change(
            (tenant.clone(), condition.clone()),
            |attempt, (tenant, condition)| async move {
                attempt.check_removal(&tenant, &condition).await
            },
        )
        .await?;
        // Before the turn of the change, because the changes of others cannot wait that long.
        self.query_store("clear_tenant", self.store().clear_tenant(&tenant)).await?;
        self.change(
            (tenant, condition, author),
            |attempt, (tenant, condition, author)| async move {
                attempt.check_removal(&tenant, &condition).await?;
                if !attempt.commit(AdminChange::DeleteTenant(&tenant), &author).await? {
                    return Err(no_tenant(&tenant));
                }
                attempt.keyring.remove_tenant(&tenant);
                attempt.broker.remove_tenant(&tenant);
                attempt.forget_breakers(&tenant, None);
                attempt.edit(|registry| registry.remove_tenant(&tenant));
                attempt.apply_auth(&attempt.registry.load());
                tracing::info!(%tenant, "tenant removed with its keys and backends");
                Ok(())
            },
        )
        .await
    }

    /// Returns an error if the tenant cannot be removed.
    async fn check_removal(
        &self,
        tenant: &TenantId,
        condition: &Preconditions,
    ) -> Result<(), ControlError> {
        let registry = self.registry.load_full();
        let entry = registry.tenants.get(tenant);
        if tenant.as_str() == DEFAULT_TENANT {
            return Err(ControlError::DefaultTenant);
        }
        refuse_declared(entry.map(|entry| entry.origin), "tenant", tenant)?;
        let tag = entry.map(|entry| self.tag(entry));
        condition.hold_for_removal("tenant", tag.as_deref(), || no_tenant(tenant))?;
        let mut declared =
            registry.backends_of(tenant).filter(|(_, entry)| entry.origin != EntryOrigin::Stored);
        if let Some((backend, _)) = declared.next() {
            // The next start would be refused, because a declared backend would have no tenant.
            return Err(ControlError::Declared {
                what: "backend",
                name: format!("{backend} of this tenant"),
            });
        }
        self.check_without_operators(tenant).await
    }

    pub async fn keys_of(&self, tenant: &TenantId) -> Result<Vec<KeyView>, ControlError> {
        self.check_tenant(tenant)?;
        Ok(self
            .query_store("list_tenant_keys", self.store().keys_of(tenant))
            .await?
            .iter()
            .map(KeyView::new)
            .collect())
    }

    /// Creates a key. Only this answer ever contains it.
    pub async fn create_key(
        self: &Arc<Self>,
        tenant: TenantId,
        wanted: NewKey,
        author: Author,
    ) -> Result<KeyShown, ControlError> {
        check_label("name", wanted.name.as_deref())?;
        check_key_life(wanted.expires_in)?;
        check_principal(wanted.principal.as_deref())?;
        wanted.attributes.check().map_err(ControlError::Invalid)?;
        self.change((tenant, wanted, author), |attempt, (tenant, wanted, author)| async move {
            let count = attempt.keys_of(&tenant).await?.len();
            refuse_more(true, count, "keys of this tenant", KEYS_PER_TENANT_MAX)?;
            let key =
                ApiKey::mint(&attempt.keys.api_key).map_err(|_| ControlError::NoRandomness)?;
            // A wrong clock of this replica must not prolong the life of a key at the others.
            let now = attempt.query_store("read_clock", attempt.store().clock_us()).await?;
            let lifetime = |life: Duration| i64::try_from(life.as_micros()).unwrap_or(i64::MAX);
            let attributes = KeyAttributes {
                expires_at_us: wanted.expires_in.map(|life| now.saturating_add(lifetime(life))),
                ..wanted.attributes
            };
            let record = KeyRecord {
                key: key.id.clone(),
                tenant: tenant.clone(),
                principal: PrincipalId::new(
                    wanted.principal.unwrap_or_else(|| key.id.as_str().to_owned()),
                ),
                name: wanted.name.unwrap_or_default(),
                hash: key.hash.clone(),
                attributes: attributes.to_json(),
                created_at_us: now,
            };
            attempt.commit(AdminChange::PutKey(&record), &author).await?;
            attempt.keyring.insert(key_entry(record.clone()));
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
        self.change((tenant, key, author), |attempt, (tenant, key, author)| async move {
            attempt.check_tenant(&tenant)?;
            if !attempt.commit(AdminChange::DeleteKey(&tenant, &key), &author).await? {
                return Err(ControlError::NotFound { what: "key", name: key.as_str().to_owned() });
            }
            attempt.keyring.remove(&key);
            attempt.broker.end_sessions_of_key(&key);
            tracing::info!(%tenant, %key, "key revoked");
            attempt.end_stored_sessions(tenant, move |_, stored| {
                stored.record.api_key.as_ref() == Some(&key)
            });
            Ok(())
        })
        .await
    }

    /// Waits for a running change and closes the store. Called last, when no client is served any
    /// more.
    pub async fn close(&self) {
        let _turn = self.changing.lock().await;
        self.broker.shutdown_traces().await;
        self.broker.report_sign_in_failures();
        self.seal_audit().await;
        self.persistence().close().await;
    }

    fn apply_tenant(&self, tenant: &TenantId, entry: Arc<RegistryEntry<TenantSpec>>) {
        // Keys are disabled before the tenant's sessions end, and enabled after the tenant is
        // ready.
        if !entry.spec.enabled {
            self.keyring.set_enabled(tenant, false);
        }
        self.broker.put_tenant(tenant, entry.spec.clone(), entry.row_created_at_us());
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

    /// Checks an IP address now. Host names are resolved and checked at every connect.
    fn check_egress(&self, transport: &TransportSpec) -> Result<(), ControlError> {
        let Some((address, field)) = transport.address() else { return Ok(()) };
        self.config.egress.check(address).map_err(|denied| {
            ControlError::Invalid(FieldError {
                path: field.to_owned(),
                problem: format!("points to a refused address: {denied}"),
                allowed: String::new(),
            })
        })
    }
}
