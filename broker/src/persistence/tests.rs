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
    ResultKey, ResultLimits, RevocationRecord, RootSecretId, SealedValue, SecretKey,
    SessionClaimOutcome, SessionIdentity, SessionKey, SessionListPosition, StoredApproval,
    StoredAuditRecord, StoredGrant, StoredPin, StoredRoot, StoredSession, StoredTask,
    StoredTaskSnapshot, SubscriptionCount, TaskAudience, TaskClaimScope, TaskInput, TaskLimits,
    TaskListPosition, TaskRecord, TaskStatus, TaskTransition, TenantRecord, TokenIssuerRecord,
    UnchainedAudit, WeakGrants, WriteOp, WriteOutcome,
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

#[async_trait]
impl ConfigStore for Meddled {
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
    async fn clear_tenant(&self, tenant: &TenantId) -> Result<(), StoreError> {
        self.record("clear_tenant");
        self.inner.clear_tenant(tenant).await
    }
    async fn tenants(&self) -> Result<Vec<TenantRecord>, StoreError> {
        self.record("tenants");
        self.inner.tenants().await
    }
    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        self.record("keys");
        let late = std::mem::take(&mut *self.late_roots.lock());
        for root in &late {
            self.inner.add_root(root).await?;
        }
        self.inner.keys().await
    }
    async fn keys_of(&self, tenant: &TenantId) -> Result<Vec<KeyRecord>, StoreError> {
        self.record("keys_of");
        self.inner.keys_of(tenant).await
    }
    async fn backends(&self) -> Result<Vec<BackendRecord>, StoreError> {
        self.record("backends");
        self.inner.backends().await
    }
    async fn policies(&self) -> Result<Vec<PolicyRecord>, StoreError> {
        self.record("policies");
        self.inner.policies().await
    }

    async fn catalog_documents(&self) -> Result<Vec<CatalogDocumentRecord>, StoreError> {
        self.record("catalog_documents");
        self.inner.catalog_documents().await
    }

    async fn operators(&self) -> Result<Vec<OperatorRecord>, StoreError> {
        self.record("operators");
        self.inner.operators().await
    }
    async fn revocations(&self) -> Result<Vec<RevocationRecord>, StoreError> {
        self.record("revocations");
        self.inner.revocations().await
    }
    async fn token_issuers(&self) -> Result<Vec<TokenIssuerRecord>, StoreError> {
        self.record("token_issuers");
        self.inner.token_issuers().await
    }
    async fn held_breakers(&self) -> Result<Vec<(TenantId, BackendId)>, StoreError> {
        self.record("held_breakers");
        self.inner.held_breakers().await
    }
    async fn config_version(&self) -> Result<i64, StoreError> {
        self.record("config_version");
        self.inner.config_version().await
    }
    async fn close(&self) {
        self.record("close");
        self.inner.close().await
    }
}

#[async_trait]
impl AuditStore for Meddled {
    async fn append_audit(&self, records: &[AuditRecord]) -> Result<(), StoreError> {
        self.record("append_audit");
        self.inner.append_audit(records).await
    }
    async fn audit_records(
        &self,
        filter: &AuditFilter,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Vec<StoredAuditRecord>, StoreError> {
        self.record("audit");
        self.inner.audit_records(filter, after, limit).await
    }
    async fn trim_unchained_audit(&self, before_us: i64, limit: u32) -> Result<u64, StoreError> {
        self.record("trim_audit");
        self.inner.trim_unchained_audit(before_us, limit).await
    }
}

#[async_trait]
impl AuditChainStore for Meddled {
    async fn audit_chains(
        &self,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<AuditChain>, StoreError> {
        self.record("audit_chains");
        self.inner.audit_chains(after, limit).await
    }
    async fn audit_chain_page(
        &self,
        name: &str,
        after: i64,
        limit: u32,
    ) -> Result<AuditChainPage, StoreError> {
        self.record("audit_links");
        self.inner.audit_chain_page(name, after, limit).await
    }
    async fn unchained_audit(&self) -> Result<UnchainedAudit, StoreError> {
        self.record("audit_outside");
        self.inner.unchained_audit().await
    }
    async fn audit_chains_to_checkpoint(
        &self,
        by: i64,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<AuditChain>, StoreError> {
        self.record("audit_chains_ahead");
        self.inner.audit_chains_to_checkpoint(by, after, limit).await
    }
    async fn put_audit_checkpoints(
        &self,
        checkpoints: &[(String, AuditCheckpoint)],
    ) -> Result<Vec<String>, StoreError> {
        self.record("put_audit_checkpoints");
        self.inner.put_audit_checkpoints(checkpoints).await
    }
    async fn audit_chains_to_truncate(
        &self,
        before_us: i64,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        self.record("audit_chains_older");
        self.inner.audit_chains_to_truncate(before_us, after, limit).await
    }
    async fn truncate_audit_chain(
        &self,
        name: &str,
        cut: &AuditTruncation,
    ) -> Result<u64, StoreError> {
        self.record("cut_audit_chain");
        self.inner.truncate_audit_chain(name, cut).await
    }
    async fn audit_terms(&self) -> Result<Option<AuditRetentionTerms>, StoreError> {
        self.record("audit_terms");
        self.inner.audit_terms().await
    }
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
}

#[async_trait]
impl PinStore for Meddled {
    async fn record_sightings(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
        seen: &[PinSighting],
        gone: &[PinKey],
        pins_max: u32,
    ) -> Result<Vec<StoredPin>, StoreError> {
        self.inner.record_sightings(tenant, backend, seen, gone, pins_max).await
    }
    async fn pins_of(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
    ) -> Result<Vec<StoredPin>, StoreError> {
        self.inner.pins_of(tenant, backend).await
    }
    async fn pin_definitions(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
        key: &PinKey,
    ) -> Result<Option<PinDefinitions>, StoreError> {
        self.inner.pin_definitions(tenant, backend, key).await
    }
    async fn pin_decisions(&self) -> Result<Vec<(TenantId, BackendId, i64)>, StoreError> {
        self.inner.pin_decisions().await
    }
}

#[async_trait]
impl SealStore for Meddled {
    async fn roots(&self) -> Result<Vec<StoredRoot>, StoreError> {
        self.inner.roots().await
    }
    async fn add_root(&self, root: &StoredRoot) -> Result<(), StoreError> {
        self.inner.add_root(root).await
    }
    async fn keep_root(&self, secret: &RootSecretId) -> Result<(), StoreError> {
        self.inner.keep_root(secret).await
    }
    async fn sealed_before(
        &self,
        number: u8,
        skip: u32,
        limit: u32,
    ) -> Result<Vec<SealedValue>, StoreError> {
        self.inner.sealed_before(number, skip, limit).await
    }
    async fn reseal(&self, value: &SealedValue, sealed: &[u8]) -> Result<(), StoreError> {
        self.inner.reseal(value, sealed).await
    }
}

#[async_trait]
impl GrantStore for Meddled {
    async fn grant(&self, key: &GrantKey) -> Result<Option<StoredGrant>, StoreError> {
        self.inner.grant(key).await
    }
    async fn put_grant(
        &self,
        record: &GrantRecord,
        expected: Option<i64>,
    ) -> Result<Option<i64>, StoreError> {
        self.inner.put_grant(record, expected).await
    }
    async fn lease_grant(
        &self,
        key: &GrantKey,
        version: i64,
        lease: Duration,
    ) -> Result<bool, StoreError> {
        self.inner.lease_grant(key, version, lease).await
    }
    async fn record_grant_error(
        &self,
        key: &GrantKey,
        version: i64,
        error: GrantError,
        lease_ends_in: Option<Duration>,
    ) -> Result<(), StoreError> {
        self.inner.record_grant_error(key, version, error, lease_ends_in).await
    }
    async fn remove_grant(&self, key: &GrantKey) -> Result<Option<StoredGrant>, StoreError> {
        self.inner.remove_grant(key).await
    }
    async fn grants_of(&self, tenant: &TenantId) -> Result<Vec<StoredGrant>, StoreError> {
        self.inner.grants_of(tenant).await
    }
    async fn oldest_grants(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
        skip: u32,
        limit: u32,
    ) -> Result<Vec<StoredGrant>, StoreError> {
        self.inner.oldest_grants(tenant, backend, skip, limit).await
    }
    async fn weak_grants(&self) -> Result<Vec<(TenantId, WeakGrants)>, StoreError> {
        self.inner.weak_grants().await
    }
    async fn grant_counts(&self) -> Result<Vec<(GrantState, u64)>, StoreError> {
        self.inner.grant_counts().await
    }
    async fn put_secret(
        &self,
        key: &SecretKey,
        sealed: &[u8],
        life: Duration,
    ) -> Result<(), StoreError> {
        self.inner.put_secret(key, sealed, life).await
    }
    async fn add_secret(
        &self,
        key: &SecretKey,
        sealed: &[u8],
        life: Duration,
    ) -> Result<(), StoreError> {
        self.inner.add_secret(key, sealed, life).await
    }
    async fn secret(&self, key: &SecretKey) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.secret(key).await
    }
    async fn take_secret(&self, key: &SecretKey) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.take_secret(key).await
    }
    async fn clock_us(&self) -> Result<i64, StoreError> {
        Ok(self.inner.clock_us().await? + self.clock_ahead_us.load(Ordering::Relaxed))
    }
    async fn remove_secret(&self, key: &SecretKey, sealed: &[u8]) -> Result<(), StoreError> {
        self.inner.remove_secret(key, sealed).await
    }
}

#[async_trait]
impl ResultStore for Meddled {
    async fn put_result(
        &self,
        result: &KeptResult,
        life: Duration,
        limits: ResultLimits,
    ) -> Result<bool, StoreError> {
        self.inner.put_result(result, life, limits).await
    }
    async fn result(&self, key: &ResultKey) -> Result<Option<KeptResult>, StoreError> {
        self.inner.result(key).await
    }
    async fn remove_results(&self, limit: u32) -> Result<u64, StoreError> {
        self.inner.remove_results(limit).await
    }
}

#[async_trait]
impl ApprovalStore for Meddled {
    async fn open_approval(
        &self,
        record: &ApprovalRecord,
        limits: ApprovalLimits,
    ) -> Result<ApprovalOpening, StoreError> {
        self.inner.open_approval(record, limits).await
    }
    async fn approval(&self, id: &ApprovalId) -> Result<Option<StoredApproval>, StoreError> {
        self.inner.approval(id).await
    }
    async fn use_approval(&self, id: &ApprovalId, user: &str) -> Result<bool, StoreError> {
        self.inner.use_approval(id, user).await
    }
    async fn void_approval(&self, id: &ApprovalId) -> Result<bool, StoreError> {
        self.inner.void_approval(id).await
    }
    async fn pending_approvals(&self) -> Result<Vec<(TenantId, u64)>, StoreError> {
        self.inner.pending_approvals().await
    }
    async fn settled_approvals(&self, ids: &[ApprovalId]) -> Result<Vec<ApprovalId>, StoreError> {
        self.inner.settled_approvals(ids).await
    }
    async fn approvals_of(
        &self,
        tenant: &TenantId,
        filter: &ApprovalFilter,
        after: Option<&ApprovalListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredApproval>, StoreError> {
        self.inner.approvals_of(tenant, filter, after, limit).await
    }
    async fn approval_counts(&self) -> Result<Vec<(ApprovalState, u64)>, StoreError> {
        self.inner.approval_counts().await
    }
    async fn expire_approvals(&self, limit: u32) -> Result<u64, StoreError> {
        self.inner.expire_approvals(limit).await
    }
    async fn remove_approvals(
        &self,
        age: Duration,
        expired_age: Duration,
        limit: u32,
    ) -> Result<u64, StoreError> {
        self.inner.remove_approvals(age, expired_age, limit).await
    }
}

#[async_trait]
impl NodeStore for Meddled {
    async fn join(
        &self,
        node: &NodeName,
        address: Option<&str>,
        lease: Duration,
    ) -> Result<(), StoreError> {
        self.record("join");
        self.inner.join(node, address, lease).await
    }
    async fn renew_lease(
        &self,
        node: &NodeName,
        lease: Duration,
        draining: bool,
    ) -> Result<LeaseRenewal, StoreError> {
        self.record("renew_lease");
        self.inner.renew_lease(node, lease, draining).await
    }
    async fn leave(&self, node: &NodeName) -> Result<(), StoreError> {
        self.record("leave");
        self.inner.leave(node).await
    }
    async fn live_nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        self.record("live_nodes");
        if self.is_silent_about_nodes.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        self.inner.live_nodes().await
    }
    async fn reclaim_sessions(
        &self,
        from: &NodeName,
        to: &NodeName,
        keys: &[SessionKey],
    ) -> Result<Vec<(SessionKey, i64)>, StoreError> {
        self.record("reclaim_sessions");
        self.inner.reclaim_sessions(from, to, keys).await
    }
    async fn reclaim_tasks(
        &self,
        from: &NodeName,
        to: &NodeName,
    ) -> Result<Vec<(TaskId, i64)>, StoreError> {
        self.record("reclaim_tasks");
        self.inner.reclaim_tasks(from, to).await
    }
}

#[async_trait]
impl SessionStore for Meddled {
    async fn claim_session(
        &self,
        key: &SessionKey,
        identity: &SessionIdentity,
        node: &NodeName,
        idle: Duration,
    ) -> Result<SessionClaimOutcome, StoreError> {
        self.record("claim_session");
        self.inner.claim_session(key, identity, node, idle).await
    }
    async fn list_sessions(
        &self,
        tenant: Option<&TenantId>,
        after: Option<&SessionListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredSession>, StoreError> {
        self.record("list_sessions");
        self.inner.list_sessions(tenant, after, limit).await
    }
    async fn sessions_by_digest(&self, digest: &str) -> Result<Vec<StoredSession>, StoreError> {
        self.record("sessions_by_digest");
        self.inner.sessions_by_digest(digest).await
    }
    async fn sweep_sessions(
        &self,
        idle: Duration,
        limit: u32,
    ) -> Result<Vec<SessionKey>, StoreError> {
        self.record("sweep_sessions");
        self.inner.sweep_sessions(idle, limit).await
    }
    async fn subscription_counts(
        &self,
        tenant: Option<&TenantId>,
    ) -> Result<Vec<SubscriptionCount>, StoreError> {
        self.record("subscription_counts");
        self.inner.subscription_counts(tenant).await
    }
}

#[async_trait]
impl TaskStore for Meddled {
    async fn task(&self, task: &TaskId) -> Result<Option<StoredTask>, StoreError> {
        self.record("task");
        self.inner.task(task).await
    }
    async fn task_snapshots(
        &self,
        tasks: &[TaskId],
    ) -> Result<Vec<StoredTaskSnapshot>, StoreError> {
        self.record("task_snapshots");
        self.inner.task_snapshots(tasks).await
    }
    async fn full_task(&self, task: &TaskId) -> Result<Option<FullTask>, StoreError> {
        self.record("full_task");
        if self.unreadable_tasks.lock().contains(task) {
            return Err(StoreError::Corrupt { detail: "test".into() });
        }
        self.inner.full_task(task).await
    }
    async fn task_of_key(
        &self,
        tenant: &TenantId,
        principal: &PrincipalId,
        key: &[u8],
    ) -> Result<Option<TaskId>, StoreError> {
        self.record("task_of_key");
        self.inner.task_of_key(tenant, principal, key).await
    }
    async fn task_outcome(&self, task: &TaskId) -> Result<Option<Vec<u8>>, StoreError> {
        self.record("task_outcome");
        self.inner.task_outcome(task).await
    }
    async fn tasks_visible_to(
        &self,
        audience: &TaskAudience,
        after: Option<&TaskListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredTask>, StoreError> {
        self.record("tasks_visible_to");
        self.inner.tasks_visible_to(audience, after, limit).await
    }
    async fn list_tasks(
        &self,
        tenant: Option<&TenantId>,
        status: Option<TaskStatus>,
        after: Option<&TaskListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredTask>, StoreError> {
        self.record("list_tasks");
        self.inner.list_tasks(tenant, status, after, limit).await
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
    async fn unfinished_tasks_of(&self, nodes: &[NodeName]) -> Result<Vec<TaskId>, StoreError> {
        self.record("unfinished_tasks_of");
        self.inner.unfinished_tasks_of(nodes).await
    }
    async fn open_task_inputs(&self, task: &TaskId) -> Result<Vec<TaskInput>, StoreError> {
        self.record("open_task_inputs");
        self.inner.open_task_inputs(task).await
    }
    async fn task_transitions(&self, task: &TaskId) -> Result<Vec<TaskTransition>, StoreError> {
        self.record("task_transitions");
        self.inner.task_transitions(task).await
    }
    async fn expire_tasks(&self, limit: u32) -> Result<Vec<TaskId>, StoreError> {
        self.record("expire_tasks");
        self.inner.expire_tasks(limit).await
    }
    async fn task_counts(&self) -> Result<Vec<(TaskStatus, u64)>, StoreError> {
        self.record("task_counts");
        self.inner.task_counts().await
    }
}
