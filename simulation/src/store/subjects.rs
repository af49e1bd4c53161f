//! The subjects of the store, each operation passed on to the engine.

use std::time::Duration;

use async_trait::async_trait;
use protocol::ids::{ApprovalId, BackendId, PrincipalId, TaskId, TenantId};
use records::*;
use storage::{
    ApprovalStore, AuditChainStore, AuditStore, ConfigStore, DurableStore, EventStore, GrantStore,
    NodeStore, PinStore, ResultStore, SealStore, SessionStore, StoreError, TaskStore,
};

use super::{OperationKind, SimulatedStore};

/// Label of metrics: the database that the engine stands for.
const ENGINE: &str = "postgres";

/// Passes operations on. Those that differ stand at the end.
macro_rules! pass_on {
    ($subject:ident: $($name:ident($($argument:ident: $type:ty),*) -> $out:ty;)* $({ $($more:tt)* })?) => {
        #[async_trait]
        impl $subject for SimulatedStore {
            $($($more)*)?

            $(async fn $name(&self, $($argument: $type),*) -> Result<$out, StoreError> {
                let work = $subject::$name(&self.engine.store, $($argument),*);
                self.execute(stringify!($name), OperationKind::Any, work).await
            })*
        }
    };
}

pass_on! { ConfigStore:
    clear_tenant(tenant: &TenantId) -> ();
    tenants() -> Vec<TenantRecord>;
    keys() -> Vec<KeyRecord>;
    keys_of(tenant: &TenantId) -> Vec<KeyRecord>;
    backends() -> Vec<BackendRecord>;
    policies() -> Vec<PolicyRecord>;
    catalog_documents() -> Vec<CatalogDocumentRecord>;
    operators() -> Vec<OperatorRecord>;
    revocations() -> Vec<RevocationRecord>;
    token_issuers() -> Vec<TokenIssuerRecord>;
    held_breakers() -> Vec<(TenantId, BackendId)>;
    config_version() -> i64;
    {
        async fn apply_at(
            &self,
            version: Option<i64>,
            change: AdminChange<'_>,
            audit: Option<&AuditRecord>,
        ) -> Result<bool, StoreError> {
            let work = self.engine.store.apply_at(version, change, audit);
            self.execute("apply", OperationKind::Write, work).await
        }

        // The engine outlives its replicas.
        async fn close(&self) {}
    }
}

pass_on! { GrantStore:
    grant(key: &GrantKey) -> Option<StoredGrant>;
    put_grant(record: &GrantRecord, expected: Option<i64>) -> Option<i64>;
    lease_grant(key: &GrantKey, version: i64, lease: Duration) -> bool;
    record_grant_error(key: &GrantKey, version: i64, error: GrantError, lease_ends_in: Option<Duration>) -> ();
    remove_grant(key: &GrantKey) -> Option<StoredGrant>;
    grants_of(tenant: &TenantId) -> Vec<StoredGrant>;
    oldest_grants(tenant: &TenantId, backend: &BackendId, skip: u32, limit: u32) -> Vec<StoredGrant>;
    grant_counts() -> Vec<(GrantState, u64)>;
    weak_grants() -> Vec<(TenantId, WeakGrants)>;
    put_secret(key: &SecretKey, sealed: &[u8], life: Duration) -> ();
    add_secret(key: &SecretKey, sealed: &[u8], life: Duration) -> ();
    secret(key: &SecretKey) -> Option<Vec<u8>>;
    take_secret(key: &SecretKey) -> Option<Vec<u8>>;
    clock_us() -> i64;
    remove_secret(key: &SecretKey, sealed: &[u8]) -> ();
}

pass_on! { PinStore:
    record_sightings(tenant: &TenantId, backend: &BackendId, seen: &[PinSighting], gone: &[PinKey], pins_max: u32) -> Vec<StoredPin>;
    pins_of(tenant: &TenantId, backend: &BackendId) -> Vec<StoredPin>;
    pin_definitions(tenant: &TenantId, backend: &BackendId, key: &PinKey) -> Option<PinDefinitions>;
    pin_decisions() -> Vec<(TenantId, BackendId, i64)>;
}

pass_on! { SealStore:
    roots() -> Vec<StoredRoot>;
    add_root(root: &StoredRoot) -> ();
    keep_root(secret: &RootSecretId) -> ();
    sealed_before(number: u8, skip: u32, limit: u32) -> Vec<SealedValue>;
    reseal(value: &SealedValue, sealed: &[u8]) -> ();
}

pass_on! { ResultStore:
    put_result(result: &KeptResult, life: Duration, limits: ResultLimits) -> bool;
    result(key: &ResultKey) -> Option<KeptResult>;
    remove_results(limit: u32) -> u64;
}

pass_on! { ApprovalStore:
    open_approval(record: &ApprovalRecord, limits: ApprovalLimits) -> ApprovalOpening;
    approval(id: &ApprovalId) -> Option<StoredApproval>;
    use_approval(id: &ApprovalId, user: &str) -> bool;
    void_approval(id: &ApprovalId) -> bool;
    settled_approvals(ids: &[ApprovalId]) -> Vec<ApprovalId>;
    approvals_of(tenant: &TenantId, filter: &ApprovalFilter, after: Option<&ApprovalListPosition>, limit: u32) -> Vec<StoredApproval>;
    pending_approvals() -> Vec<(TenantId, u64)>;
    approval_counts() -> Vec<(ApprovalState, u64)>;
    expire_approvals(limit: u32) -> u64;
    remove_approvals(age: Duration, expired_age: Duration, limit: u32) -> u64;
}

pass_on! { AuditStore:
    append_audit(records: &[AuditRecord]) -> ();
    audit_records(filter: &AuditFilter, after: Option<i64>, limit: u32) -> Vec<StoredAuditRecord>;
    trim_unchained_audit(before_us: i64, limit: u32) -> u64;
}

pass_on! { AuditChainStore:
    audit_chains(after: Option<&str>, limit: u32) -> Vec<AuditChain>;
    audit_chain_page(name: &str, after: i64, limit: u32) -> AuditChainPage;
    unchained_audit() -> UnchainedAudit;
    audit_chains_to_checkpoint(by: i64, after: Option<&str>, limit: u32) -> Vec<AuditChain>;
    put_audit_checkpoints(checkpoints: &[(String, AuditCheckpoint)]) -> Vec<String>;
    audit_chains_to_truncate(before_us: i64, after: Option<&str>, limit: u32) -> Vec<String>;
    truncate_audit_chain(name: &str, cut: &AuditTruncation) -> u64;
    audit_terms() -> Option<AuditRetentionTerms>;
}

pass_on! { NodeStore:
    join(node: &NodeName, address: Option<&str>, lease: Duration) -> ();
    renew_lease(node: &NodeName, lease: Duration, draining: bool) -> LeaseRenewal;
    leave(node: &NodeName) -> ();
    live_nodes() -> Vec<NodeRecord>;
    reclaim_sessions(from: &NodeName, to: &NodeName, keys: &[SessionKey]) -> Vec<(SessionKey, i64)>;
    reclaim_tasks(from: &NodeName, to: &NodeName) -> Vec<(TaskId, i64)>;
}

pass_on! { SessionStore:
    claim_session(key: &SessionKey, identity: &SessionIdentity, node: &NodeName, idle: Duration) -> SessionClaimOutcome;
    list_sessions(tenant: Option<&TenantId>, after: Option<&SessionListPosition>, limit: u32) -> Vec<StoredSession>;
    sessions_by_digest(digest: &str) -> Vec<StoredSession>;
    sweep_sessions(idle: Duration, limit: u32) -> Vec<SessionKey>;
    subscription_counts(tenant: Option<&TenantId>) -> Vec<SubscriptionCount>;
}

pass_on! { TaskStore:
    task(task: &TaskId) -> Option<StoredTask>;
    task_snapshots(tasks: &[TaskId]) -> Vec<StoredTaskSnapshot>;
    full_task(task: &TaskId) -> Option<FullTask>;
    task_of_key(tenant: &TenantId, principal: &PrincipalId, key: &[u8]) -> Option<TaskId>;
    task_outcome(task: &TaskId) -> Option<Vec<u8>>;
    tasks_visible_to(audience: &TaskAudience, after: Option<&TaskListPosition>, limit: u32) -> Vec<StoredTask>;
    list_tasks(tenant: Option<&TenantId>, status: Option<TaskStatus>, after: Option<&TaskListPosition>, limit: u32) -> Vec<StoredTask>;
    unfinished_tasks_of(nodes: &[NodeName]) -> Vec<TaskId>;
    open_task_inputs(task: &TaskId) -> Vec<TaskInput>;
    task_transitions(task: &TaskId) -> Vec<TaskTransition>;
    expire_tasks(limit: u32) -> Vec<TaskId>;
    task_counts() -> Vec<(TaskStatus, u64)>;
    {
        async fn claim_tasks(
            &self,
            node: &NodeName,
            scope: TaskClaimScope,
            limit: u32,
            except: &[TaskId],
        ) -> Result<Vec<FullTask>, StoreError> {
            self.claim(node, self.engine.store.claim_tasks(node, scope, limit, except)).await
        }
    }
}

pass_on! { EventStore:
    append(entries: &[LogEntry]) -> ();
    streams(session: &SessionKey) -> Vec<StreamRecord>;
    stream(session: &SessionKey, number: u64, position: u64) -> Option<StoredStream>;
    forget_session(session: &SessionKey) -> ();
    expire_events(age: Duration, limit: u32) -> u64;
    {
        fn engine(&self) -> &'static str {
            ENGINE
        }
    }
}

#[async_trait]
impl DurableStore for SimulatedStore {
    fn engine(&self) -> &'static str {
        ENGINE
    }

    fn is_exclusive(&self) -> bool {
        false
    }

    fn unreadable_rows(&self) -> u64 {
        self.engine.store.unreadable_rows()
    }

    async fn write(&self, batch: &[WriteOp]) -> Result<Vec<WriteOutcome>, StoreError> {
        let work = self.engine.store.write(batch);
        self.execute("write", OperationKind::Write, work).await
    }

    async fn end_restored_state(&self) -> Result<RestoreSummary, StoreError> {
        let work = self.engine.store.end_restored_state();
        self.execute("end_restored_state", OperationKind::Any, work).await
    }
}
