//! A store for tests: SQLite in memory, behind a wrapper that records calls and may let them fail.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use protocol::ids::{ApprovalId, BackendId, PrincipalId, TaskId, TenantId};
use records::{
    AdminChange, ApprovalFilter, ApprovalLimits, ApprovalListPosition, ApprovalOpening,
    ApprovalRecord, ApprovalState, AuditChain, AuditChainPage, AuditCheckpoint, AuditFilter,
    AuditRecord, AuditRetentionTerms, AuditTruncation, BackendRecord, CatalogDocumentRecord,
    FullTask, GrantError, GrantKey, GrantRecord, GrantState, KeptResult, KeyRecord, LeaseRenewal,
    NodeName, NodeRecord, OperatorRecord, PinDefinitions, PinKey, PinSighting, PolicyRecord,
    RestoreSummary, ResultKey, ResultLimits, RevocationRecord, RootSecretId, SealedValue,
    SecretKey, SessionClaimOutcome, SessionIdentity, SessionKey, SessionListPosition,
    StoredApproval, StoredAuditRecord, StoredGrant, StoredPin, StoredRoot, StoredSession,
    StoredTask, StoredTaskSnapshot, SubscriptionCount, TaskAudience, TaskClaimScope, TaskInput,
    TaskLimits, TaskListPosition, TaskRecord, TaskStatus, TaskTransition, TenantRecord,
    TokenIssuerRecord, UnchainedAudit, WeakGrants, WriteOp, WriteOutcome,
};
use storage::{
    ApprovalStore, AuditChainStore, AuditStore, ConfigStore, DurableStore, GrantStore, NodeStore,
    PinStore, ResultStore, SealStore, SessionStore, SqliteStore, StoreError, TaskStore,
    hot::MemoryHotStore,
};

use super::{Persistence, Stores};
use crate::{auth::Keys, metrics::Metrics};

/// Returns the persistence of a process that has not joined.
pub fn persistence_over(store: &Arc<Meddled>) -> Arc<Persistence> {
    let stores =
        Stores { durable: store.clone(), events: None, hot: Arc::new(MemoryHotStore::new()) };
    let seal = Keys::from_root(b"root").seal;
    Persistence::new(stores, NodeName::new("test/0"), seal, Arc::new(Metrics::new(false)))
}

/// Returns the record of a task that `ada` of the tenant `default` created at the backend `b`.
pub fn task_record(name: &str) -> TaskRecord {
    TaskRecord {
        task: TaskId::new(name),
        tenant: TenantId::parse("default").expect("a valid name"),
        principal: PrincipalId::new("ada"),
        session: SessionKey::new([1; 32]),
        private: false,
        backend: BackendId::parse("b").expect("a valid name"),
        request: Vec::new(),
        details: Vec::new(),
        idempotency: None,
        ttl: Some(Duration::from_secs(60)),
    }
}

/// Returns the creation of a task, without limits of its tenant.
pub fn task_creation(record: TaskRecord, owner: NodeName) -> WriteOp {
    let limits = TaskLimits { running: u64::MAX, stored: u64::MAX, bytes: u64::MAX };
    WriteOp::CreateTask { record: Box::new(record), owner, limits }
}

/// Fate of a call.
pub enum Verdict {
    Pass,
    Fail(StoreError),
    /// The call is carried out, and its answer is lost.
    LoseAnswer(StoreError),
}

type OnWrite = Box<dyn FnMut(&[WriteOp]) -> Verdict + Send>;
type OnClaim = Box<dyn FnMut() -> Verdict + Send>;
type OnApply = Box<dyn FnMut(AdminChange<'_>) -> Verdict + Send>;

pub struct Meddled {
    pub inner: SqliteStore,
    /// The engine that the store claims to be.
    engine: &'static str,
    on_write: Mutex<OnWrite>,
    on_claim: Mutex<OnClaim>,
    on_apply: Mutex<OnApply>,
    /// Names of calls in the order they came.
    calls: Mutex<Vec<&'static str>>,
    /// Microseconds by which the clock of the store is ahead of that of the process.
    clock_ahead_us: AtomicI64,
    /// Set when the list of nodes gets no answer.
    is_silent_about_nodes: AtomicBool,
    /// Tasks that no read returns.
    unreadable_tasks: Mutex<HashSet<TaskId>>,
    /// Root keys that another process stores before the next list of API keys.
    late_roots: Mutex<Vec<StoredRoot>>,
    /// Tenants that another process removes before the next list of policies.
    late_removals: Mutex<Vec<TenantId>>,
}

impl Meddled {
    pub async fn start(engine: &'static str) -> Arc<Self> {
        let inner = SqliteStore::in_memory().await.expect("a database in memory needs nothing");
        let (on_write, on_claim): (OnWrite, OnClaim) =
            (Box::new(|_| Verdict::Pass), Box::new(|| Verdict::Pass));
        let (on_write, on_claim) = (Mutex::new(on_write), Mutex::new(on_claim));
        let on_apply: Mutex<OnApply> = Mutex::new(Box::new(|_| Verdict::Pass));
        Arc::new(Self {
            inner,
            engine,
            on_write,
            on_claim,
            on_apply,
            calls: Mutex::default(),
            clock_ahead_us: AtomicI64::new(0),
            is_silent_about_nodes: AtomicBool::new(false),
            unreadable_tasks: Mutex::default(),
            late_roots: Mutex::default(),
            late_removals: Mutex::default(),
        })
    }

    /// Lets no further call return the live nodes.
    pub fn silence_live_nodes(&self) {
        self.is_silent_about_nodes.store(true, Ordering::Relaxed);
    }

    /// Lets no further read return this task.
    pub fn make_unreadable(&self, task: TaskId) {
        self.unreadable_tasks.lock().insert(task);
    }

    /// Lets another process store a root key before the next list of API keys.
    pub fn add_root_late(&self, root: StoredRoot) {
        self.late_roots.lock().push(root);
    }

    /// Lets another process remove a tenant before the next list of policies.
    pub fn remove_late(&self, tenant: TenantId) {
        self.late_removals.lock().push(tenant);
    }

    /// Sets the time by which the clock of the store is ahead of that of the process.
    pub fn set_clock_ahead(&self, ahead: Duration) {
        let ahead_us = i64::try_from(ahead.as_micros()).expect("a short time");
        self.clock_ahead_us.store(ahead_us, Ordering::Relaxed);
    }

    pub fn on_write(&self, meddle: impl FnMut(&[WriteOp]) -> Verdict + Send + 'static) {
        *self.on_write.lock() = Box::new(meddle);
    }

    pub fn on_claim(&self, meddle: impl FnMut() -> Verdict + Send + 'static) {
        *self.on_claim.lock() = Box::new(meddle);
    }

    pub fn on_apply(&self, meddle: impl FnMut(AdminChange<'_>) -> Verdict + Send + 'static) {
        *self.on_apply.lock() = Box::new(meddle);
    }

    /// Returns how often this was called.
    pub fn count(&self, call: &str) -> usize {
        self.calls.lock().iter().filter(|one| **one == call).count()
    }

    fn record(&self, call: &'static str) {
        self.calls.lock().push(call);
    }
}

/// Implements a trait of the store. It has the given functions, and one for each signature: that
/// function records the call and forwards it to the database.
macro_rules! forward {
    (
        $trait:ident { $($own:tt)* }
        $(fn $name:ident($($arg:ident: $of:ty),* $(,)?) -> $out:ty;)*
    ) => {
        #[async_trait]
        impl $trait for Meddled {
            $($own)*
            $(async fn $name(&self, $($arg: $of),*) -> Result<$out, StoreError> {
                self.record(stringify!($name));
                self.inner.$name($($arg),*).await
            })*
        }
    };
}

forward! {
    ConfigStore {
        async fn apply_at(
            &self,
            version: Option<i64>,
            change: AdminChange<'_>,
            audit: Option<&AuditRecord>,
        ) -> Result<bool, StoreError> {
            self.record(change.name());
            let verdict = (self.on_apply.lock())(change);
            match verdict {
                Verdict::Pass => self.inner.apply_at(version, change, audit).await,
                Verdict::Fail(error) => Err(error),
                Verdict::LoseAnswer(error) => {
                    self.inner.apply_at(version, change, audit).await.and(Err(error))
                }
            }
        }
        async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
            self.record("keys");
            let late = std::mem::take(&mut *self.late_roots.lock());
            for root in &late {
                self.inner.add_root(root).await?;
            }
            self.inner.keys().await
        }
        async fn policies(&self) -> Result<Vec<PolicyRecord>, StoreError> {
            self.record("policies");
            let late = std::mem::take(&mut *self.late_removals.lock());
            for tenant in &late {
                self.inner.apply(AdminChange::DeleteTenant(tenant), None).await?;
            }
            self.inner.policies().await
        }
        async fn close(&self) {
            self.record("close");
            self.inner.close().await
        }
    }
    fn clear_tenant(tenant: &TenantId) -> ();
    fn tenants() -> Vec<TenantRecord>;
    fn keys_of(tenant: &TenantId) -> Vec<KeyRecord>;
    fn backends() -> Vec<BackendRecord>;
    fn catalog_documents() -> Vec<CatalogDocumentRecord>;
    fn operators() -> Vec<OperatorRecord>;
    fn revocations() -> Vec<RevocationRecord>;
    fn token_issuers() -> Vec<TokenIssuerRecord>;
    fn held_breakers() -> Vec<(TenantId, BackendId)>;
    fn config_version() -> i64;
}

forward! {
    AuditStore {}
    fn append_audit(records: &[AuditRecord]) -> ();
    fn audit_records(
        filter: &AuditFilter, after: Option<i64>, limit: u32,
    ) -> Vec<StoredAuditRecord>;
    fn trim_unchained_audit(before_us: i64, limit: u32) -> u64;
}

forward! {
    AuditChainStore {}
    fn audit_chains(after: Option<&str>, limit: u32) -> Vec<AuditChain>;
    fn audit_chain_page(name: &str, after: i64, limit: u32) -> AuditChainPage;
    fn unchained_audit() -> UnchainedAudit;
    fn audit_chains_to_checkpoint(by: i64, after: Option<&str>, limit: u32) -> Vec<AuditChain>;
    fn put_audit_checkpoints(checkpoints: &[(String, AuditCheckpoint)]) -> Vec<String>;
    fn audit_chains_to_truncate(before_us: i64, after: Option<&str>, limit: u32) -> Vec<String>;
    fn truncate_audit_chain(name: &str, cut: &AuditTruncation) -> u64;
    fn audit_terms() -> Option<AuditRetentionTerms>;
}

#[async_trait]
impl DurableStore for Meddled {
    fn engine(&self) -> &'static str {
        self.engine
    }
    fn is_exclusive(&self) -> bool {
        self.engine == self.inner.engine() && self.inner.is_exclusive()
    }
    async fn write(&self, batch: &[WriteOp]) -> Result<Vec<WriteOutcome>, StoreError> {
        self.record("write");
        let verdict = (self.on_write.lock())(batch);
        match verdict {
            Verdict::Pass => self.inner.write(batch).await,
            Verdict::Fail(error) => Err(error),
            Verdict::LoseAnswer(error) => self.inner.write(batch).await.and(Err(error)),
        }
    }
    async fn end_restored_state(&self) -> Result<RestoreSummary, StoreError> {
        self.record("end_restored_state");
        self.inner.end_restored_state().await
    }
}

forward! {
    PinStore {}
    fn record_sightings(
        tenant: &TenantId, backend: &BackendId, seen: &[PinSighting], gone: &[PinKey],
        pins_max: u32,
    ) -> Vec<StoredPin>;
    fn pins_of(tenant: &TenantId, backend: &BackendId) -> Vec<StoredPin>;
    fn pin_definitions(
        tenant: &TenantId, backend: &BackendId, key: &PinKey,
    ) -> Option<PinDefinitions>;
    fn pin_decisions() -> Vec<(TenantId, BackendId, i64)>;
}

forward! {
    SealStore {}
    fn roots() -> Vec<StoredRoot>;
    fn add_root(root: &StoredRoot) -> ();
    fn keep_root(secret: &RootSecretId) -> ();
    fn sealed_before(number: u8, skip: u32, limit: u32) -> Vec<SealedValue>;
    fn reseal(value: &SealedValue, sealed: &[u8]) -> ();
}

forward! {
    GrantStore {
        async fn clock_us(&self) -> Result<i64, StoreError> {
            Ok(self.inner.clock_us().await? + self.clock_ahead_us.load(Ordering::Relaxed))
        }
    }
    fn grant(key: &GrantKey) -> Option<StoredGrant>;
    fn put_grant(record: &GrantRecord, expected: Option<i64>) -> Option<i64>;
    fn lease_grant(key: &GrantKey, version: i64, lease: Duration) -> bool;
    fn record_grant_error(
        key: &GrantKey, version: i64, error: GrantError, lease_ends_in: Option<Duration>,
    ) -> ();
    fn remove_grant(key: &GrantKey) -> Option<StoredGrant>;
    fn grants_of(tenant: &TenantId) -> Vec<StoredGrant>;
    fn oldest_grants(
        tenant: &TenantId, backend: &BackendId, skip: u32, limit: u32,
    ) -> Vec<StoredGrant>;
    fn weak_grants() -> Vec<(TenantId, WeakGrants)>;
    fn grant_counts() -> Vec<(GrantState, u64)>;
    fn put_secret(key: &SecretKey, sealed: &[u8], life: Duration) -> ();
    fn add_secret(key: &SecretKey, sealed: &[u8], life: Duration) -> ();
    fn secret(key: &SecretKey) -> Option<Vec<u8>>;
    fn take_secret(key: &SecretKey) -> Option<Vec<u8>>;
    fn remove_secret(key: &SecretKey, sealed: &[u8]) -> ();
}

forward! {
    ResultStore {}
    fn put_result(result: &KeptResult, life: Duration, limits: ResultLimits) -> bool;
    fn result(key: &ResultKey) -> Option<KeptResult>;
    fn remove_results(limit: u32) -> u64;
}

forward! {
    ApprovalStore {}
    fn open_approval(record: &ApprovalRecord, limits: ApprovalLimits) -> ApprovalOpening;
    fn approval(id: &ApprovalId) -> Option<StoredApproval>;
    fn use_approval(id: &ApprovalId, user: &str) -> bool;
    fn void_approval(id: &ApprovalId) -> bool;
    fn pending_approvals() -> Vec<(TenantId, u64)>;
    fn settled_approvals(ids: &[ApprovalId]) -> Vec<ApprovalId>;
    fn approvals_of(
        tenant: &TenantId, filter: &ApprovalFilter, after: Option<&ApprovalListPosition>,
        limit: u32,
    ) -> Vec<StoredApproval>;
    fn approval_counts() -> Vec<(ApprovalState, u64)>;
    fn expire_approvals(limit: u32) -> u64;
    fn remove_approvals(age: Duration, expired_age: Duration, limit: u32) -> u64;
}

forward! {
    NodeStore {
        async fn live_nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
            self.record("live_nodes");
            if self.is_silent_about_nodes.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            self.inner.live_nodes().await
        }
    }
    fn join(node: &NodeName, address: Option<&str>, lease: Duration) -> ();
    fn renew_lease(node: &NodeName, lease: Duration, draining: bool) -> LeaseRenewal;
    fn leave(node: &NodeName) -> ();
    fn reclaim_sessions(
        from: &NodeName, to: &NodeName, keys: &[SessionKey],
    ) -> Vec<(SessionKey, i64)>;
    fn reclaim_tasks(from: &NodeName, to: &NodeName) -> Vec<(TaskId, i64)>;
}

forward! {
    SessionStore {}
    fn claim_session(
        key: &SessionKey, identity: &SessionIdentity, node: &NodeName, idle: Duration,
    ) -> SessionClaimOutcome;
    fn list_sessions(
        tenant: Option<&TenantId>, after: Option<&SessionListPosition>, limit: u32,
    ) -> Vec<StoredSession>;
    fn sessions_by_digest(digest: &str) -> Vec<StoredSession>;
    fn sweep_sessions(idle: Duration, limit: u32) -> Vec<SessionKey>;
    fn subscription_counts(tenant: Option<&TenantId>) -> Vec<SubscriptionCount>;
}

forward! {
    TaskStore {
        async fn full_task(&self, task: &TaskId) -> Result<Option<FullTask>, StoreError> {
            self.record("full_task");
            if self.unreadable_tasks.lock().contains(task) {
                return Err(StoreError::Corrupt { detail: "test".into() });
            }
            self.inner.full_task(task).await
        }
        async fn claim_tasks(
            &self,
            node: &NodeName,
            scope: TaskClaimScope,
            limit: u32,
            except: &[TaskId],
        ) -> Result<Vec<FullTask>, StoreError> {
            self.record("claim_tasks");
            let verdict = (self.on_claim.lock())();
            match verdict {
                Verdict::Pass => self.inner.claim_tasks(node, scope, limit, except).await,
                Verdict::Fail(error) => Err(error),
                Verdict::LoseAnswer(error) => {
                    self.inner.claim_tasks(node, scope, limit, except).await.and(Err(error))
                }
            }
        }
    }
    fn task(task: &TaskId) -> Option<StoredTask>;
    fn task_snapshots(tasks: &[TaskId]) -> Vec<StoredTaskSnapshot>;
    fn task_of_key(tenant: &TenantId, principal: &PrincipalId, key: &[u8]) -> Option<TaskId>;
    fn task_outcome(task: &TaskId) -> Option<Vec<u8>>;
    fn tasks_visible_to(
        audience: &TaskAudience, after: Option<&TaskListPosition>, limit: u32,
    ) -> Vec<StoredTask>;
    fn list_tasks(
        tenant: Option<&TenantId>, status: Option<TaskStatus>, after: Option<&TaskListPosition>,
        limit: u32,
    ) -> Vec<StoredTask>;
    fn unfinished_tasks_of(nodes: &[NodeName]) -> Vec<TaskId>;
    fn open_task_inputs(task: &TaskId) -> Vec<TaskInput>;
    fn task_transitions(task: &TaskId) -> Vec<TaskTransition>;
    fn expire_tasks(limit: u32) -> Vec<TaskId>;
    fn task_counts() -> Vec<(TaskStatus, u64)>;
}
