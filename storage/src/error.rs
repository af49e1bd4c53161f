//! Reasons why a store could not carry out a call, with advice for the operator.

use std::path::PathBuf;

use protocol::ids::TenantId;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error(
        "the database cannot be used: {detail}; check that its server runs, or that its path is writable, then try again"
    )]
    Unavailable { detail: String },
    /// Only [`write`](crate::DurableStore::write) and [`apply`](crate::ConfigStore::apply) fail like
    /// this. After any other error of the two, the change was not made.
    #[error("the outcome of a database write is unknown: {0}")]
    OutcomeUnknown(Box<StoreError>),
    #[error("the database is busy: {detail}; try again, and end other programs that hold it open")]
    Busy { detail: String },
    /// The database answers, and refuses the statement.
    #[error(
        "the database refused a request of this broker: {detail}; check the rights of its user, and whether its tables were changed"
    )]
    Refused { detail: String },
    #[error("the disk that holds the database is full; free some space, then try again")]
    Full,
    #[error(
        "the database has schema version {found}, this build knows versions up to {known}; run the newer build or restore an older copy"
    )]
    SchemaNewer { found: i64, known: i64 },
    #[error(
        "the database has schema version {found}, this build needs {known}; run `mcp-broker migrate` or set storage.migrate_on_start: true"
    )]
    SchemaOlder { found: i64, known: i64 },
    #[error(
        "migration {version} could not be applied: {detail}; the database keeps no part of it; fix the cause and start again"
    )]
    Migration { version: i64, detail: String },
    #[error("the database {} is in use by another broker; end that one or choose another storage.url", path.display())]
    InUse { path: PathBuf },
    #[error(
        "the database is damaged or not a database of this broker: {detail}; restore a copy, and move the file of SQLite away before"
    )]
    Corrupt { detail: String },
    #[error("tenant {tenant} does not exist; create it first")]
    UnknownTenant { tenant: TenantId },
    #[error("{what} exists already; choose another name or remove the old one first")]
    Exists { what: String },
    /// Only [`apply_at`](crate::ConfigStore::apply_at) fails like this.
    #[error("another replica changed the configuration at the same time; try again")]
    Outdated,
}

impl StoreError {
    /// Returns whether the database worked as it should: the error is its answer about an entry.
    pub fn is_answer(&self) -> bool {
        matches!(
            self.cause(),
            StoreError::UnknownTenant { .. } | StoreError::Exists { .. } | StoreError::Outdated
        )
    }

    /// Returns the underlying error, also if the outcome of the change is unknown.
    pub fn cause(&self) -> &Self {
        match self {
            Self::OutcomeUnknown(cause) => cause.cause(),
            error => error,
        }
    }
}
