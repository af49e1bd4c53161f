//! What the stores keep, as plain values: tenants, API keys, backends, sessions, subscriptions, tasks, event streams, nodes and
//! the audit log. No database and no runtime: `storage` reads and writes these values, the rest of the broker only names them.

mod admin_change;
mod approval;
mod audit;
mod audit_chain;
mod config;
mod event;
mod grant;
mod kept_result;
mod named;
mod node;
mod pin;
mod restore;
mod seal;
mod session;
mod task;
mod write;

pub use admin_change::AdminChange;
pub use approval::{
    ApprovalBinding, ApprovalDecision, ApprovalFilter, ApprovalLimit, ApprovalLimits,
    ApprovalListPosition, ApprovalOpening, ApprovalRecord, ApprovalState, StoredApproval,
};
pub use audit::{
    AUDIT_ID_BYTES, AuditFilter, AuditKind, AuditOrder, AuditRecord, StoredAuditRecord,
};
pub use audit_chain::{
    AUDIT_GENESIS, AUDIT_HASH_BYTES, AuditChain, AuditChainPage, AuditCheckpoint,
    AuditRetentionTerms, AuditTruncation, ChainedAuditRecord, UnchainedAudit,
};
pub use config::{
    BackendRecord, CatalogDocumentKind, CatalogDocumentRecord, HASH_BYTES, KeyRecord,
    OperatorRecord, PolicyRecord, RevocationRecord, RevokedSubject, TenantRecord,
    TokenIssuerRecord,
};
pub use event::{LogEntry, LoggedEvent, StoredStream, StreamRecord};
pub use grant::{
    GrantError, GrantKey, GrantRecord, GrantState, SecretKey, SecretKind, StoredGrant, WeakGrants,
};
pub use kept_result::{KeptResult, ResultKey, ResultLimits};
pub use node::{LeaseRenewal, NodeName, NodeRecord};
pub use pin::{
    PIN_APPROVED_MAX, PIN_HASH_CHARS, PinApproval, PinBlock, PinDefinitions, PinKey, PinKind,
    PinSighting, StoredPin, approved_hashes,
};
pub use restore::RestoreSummary;
pub use seal::{ROOT_SECRET_ID_BYTES, RootSecretId, SealedLocation, SealedValue, StoredRoot};
pub use session::{
    SESSION_KEY_BYTES, SessionClaimOutcome, SessionIdentity, SessionKey, SessionListPosition,
    SessionRecord, StoredSession, SubscriptionCount, SubscriptionRecord,
};
pub use task::{
    FullTask, InputCounts, StoredTask, StoredTaskSnapshot, TaskAudience, TaskClaimScope, TaskInput,
    TaskLimit, TaskLimits, TaskListPosition, TaskRecord, TaskStatus, TaskStep, TaskTransition,
};
pub use write::{RowKey, WriteOp, WriteOutcome};
