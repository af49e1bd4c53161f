//! The audit log: who did what. Records are added and read; none is changed, and none is removed before its time.

use async_trait::async_trait;

use crate::{AuditChainStore, StoreError};

/// Length of [`AuditRecord::id`].
pub const AUDIT_ID_BYTES: usize = 16;

/// What a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditKind {
    /// An operator changed something, or tried to.
    Admin,
    /// A client asked for something.
    Call,
}

impl AuditKind {
    pub const ALL: [Self; 2] = [Self::Admin, Self::Call];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Call => "call",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// One thing that was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    /// Drawn by lot: a record that is sent again, because its commit is in doubt, is added once.
    pub id: [u8; AUDIT_ID_BYTES],
    pub at_us: i64,
    pub kind: AuditKind,
    /// `None`: it concerns no tenant. Never empty.
    pub tenant: Option<String>,
    /// A JSON object, without secrets.
    pub body: String,
}

/// A record and its number, in the order of which records are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAuditRecord {
    pub number: i64,
    pub record: AuditRecord,
}

/// Which records are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    pub tenant: Option<String>,
    pub kind: Option<AuditKind>,
    /// From this moment on.
    pub since_us: Option<i64>,
    /// Before this moment.
    pub until_us: Option<i64>,
}

/// An append-only table of hash chains. The database itself refuses to change a record, and to remove one that the retention did
/// not release.
#[async_trait]
pub trait AuditStore: AuditChainStore {
    /// All of them are on disk when this returns, or none. Known ones are passed over.
    async fn append_audit(&self, records: &[AuditRecord]) -> Result<(), StoreError>;

    /// In the order they were added, after this number.
    async fn audit(
        &self,
        filter: &AuditFilter,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Vec<StoredAuditRecord>, StoreError>;

    /// Removes up to `limit` records from before this moment that belong to no chain. Returns how many.
    async fn trim_audit(&self, before_us: i64, limit: u32) -> Result<u64, StoreError>;
}
