//! Why a store could not do what it was asked, in words that tell an operator what to do next.

use std::path::PathBuf;

use protocol::ids::TenantId;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error(
        "the database can not be used: {detail}; check that its server runs, or that its path is writable, then try again"
    )]
    Unavailable { detail: String },
    /// Only writes fail like this; after any other error of one, it was not carried out.
    #[error("whether the database did as it was asked is not known: {0}")]
    OutcomeUnknown(Box<StoreError>),
    #[error("the database is busy: {detail}; try again, and end other programs that hold it open")]
    Busy { detail: String },
    /// It is there and answers, and will not do this.
    #[error(
        "the database refuses what this broker asked of it: {detail}; check the rights of its user, and whether somebody changed its tables"
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
        "migration {version} could not be applied: {detail}; nothing of it was kept, so solve the cause and start again"
    )]
    Migration { version: i64, detail: String },
    #[error("the database {} is in use by another broker; end that one or choose another storage.url", path.display())]
    InUse { path: PathBuf },
    #[error(
        "the database is damaged or not a database of this broker: {detail}; move the file away and restore a copy"
    )]
    Corrupt { detail: String },
    #[error("tenant {tenant} does not exist; create it first")]
    UnknownTenant { tenant: TenantId },
    #[error("{what} exists already; choose another name or remove the old one first")]
    Exists { what: String },
}

impl StoreError {
    /// What went wrong, whatever came of the change that was asked for.
    pub fn cause(&self) -> &Self {
        match self {
            Self::OutcomeUnknown(cause) => cause.cause(),
            error => error,
        }
    }
}
