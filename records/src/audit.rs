//! The audit log: a record of each action and its author. Records are added and read. No record is
//! changed, and none is removed before its retention ends.

use crate::named::named;

/// Length of [`AuditRecord::id`].
pub const AUDIT_ID_BYTES: usize = 16;

named! {
    /// Subject of a record.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum AuditKind {
        /// An operator made a change, or tried to make one.
        Admin = "admin",
        /// A client sent a request.
        Call = "call",
    }
}

/// One recorded action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    /// Random id. A record that is sent again because its commit is in doubt is added once.
    pub id: [u8; AUDIT_ID_BYTES],
    pub at_us: i64,
    pub kind: AuditKind,
    /// Never empty. `None` means that the record concerns no tenant.
    pub tenant: Option<String>,
    /// A JSON object, without secrets.
    pub body: String,
}

/// A record and its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAuditRecord {
    pub number: i64,
    pub record: AuditRecord,
}

named! {
    /// Order of records by their numbers.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum AuditOrder {
        #[default]
        OldestFirst = "oldest",
        NewestFirst = "newest",
    }
}

/// Selection of records, and their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    pub tenant: Option<String>,
    pub kind: Option<AuditKind>,
    /// Lower time bound, inclusive.
    pub since_us: Option<i64>,
    /// Upper time bound, exclusive.
    pub until_us: Option<i64>,
    pub order: AuditOrder,
}
