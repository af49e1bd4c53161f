//! The audit log's hash chains as rows: one chain for each tenant, and one for records without a
//! tenant.
//!
//! The hash of a record covers the record, its position and the previous hash. The SQLite store
//! computes it here. The PostgreSQL store computes the same hash in the function `audit_hash` of
//! its schema, so that several replicas extend one chain. Reads return the stored values unchecked:
//! the broker verifies them.

use aws_lc_rs::digest;

use crate::AuditRecord;

pub const AUDIT_HASH_BYTES: usize = 32;
/// Stands for the hash before the first record of a chain.
pub const AUDIT_GENESIS: [u8; AUDIT_HASH_BYTES] = [0; AUDIT_HASH_BYTES];

/// A chain, without its records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditChain {
    /// The tenant, or an empty name for records without one.
    pub name: String,
    /// Number of records that were ever added.
    pub length: i64,
    /// Hash of the last record.
    pub head: Vec<u8>,
    pub start: AuditTruncation,
    pub checkpoint: Option<AuditCheckpoint>,
}

impl AuditChain {
    /// Returns a chain to which no record was added.
    pub fn empty(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            length: 0,
            head: AUDIT_GENESIS.to_vec(),
            start: AuditTruncation::none(),
            checkpoint: None,
        }
    }
}

/// The part that the retention removed from the beginning of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditTruncation {
    /// Position of the last removed record, or 0 if none was removed.
    pub position: i64,
    /// Hash of that record.
    pub hash: Vec<u8>,
    /// Time before which all removed records were made.
    pub before_us: i64,
    pub signature: Vec<u8>,
}

impl AuditTruncation {
    pub fn none() -> Self {
        Self { position: 0, hash: AUDIT_GENESIS.to_vec(), before_us: 0, signature: Vec::new() }
    }
}

/// A broker's signature over the state of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditCheckpoint {
    /// Number of records that had been added to the chain.
    pub count: i64,
    /// Hash of the last of them.
    pub head: Vec<u8>,
    pub at_us: i64,
    pub signature: Vec<u8>,
}

/// A record in its chain as stored. No field is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainedAuditRecord {
    pub number: i64,
    pub position: i64,
    pub id: Vec<u8>,
    pub at_us: i64,
    pub kind: String,
    pub tenant: Option<String>,
    pub body: Vec<u8>,
    pub hash: Vec<u8>,
}

impl ChainedAuditRecord {
    /// Returns the hash that this record must have after a record with the given hash.
    pub fn hash_after(&self, previous: &[u8]) -> [u8; AUDIT_HASH_BYTES] {
        let mut context = digest::Context::new(&digest::SHA256);
        let text = |text: Option<&str>| {
            let length = text.map_or(-1, |text| i32::try_from(text.len()).unwrap_or(i32::MAX));
            [&length.to_be_bytes(), text.unwrap_or_default().as_bytes()].concat()
        };
        let (kind, tenant) = (text(Some(&self.kind)), text(self.tenant.as_deref()));
        context.update(previous);
        for number in [self.position, self.number, self.at_us] {
            context.update(&number.to_be_bytes());
        }
        for part in [&self.id, &kind, &tenant, &self.body] {
            context.update(part);
        }
        let mut hash = AUDIT_GENESIS;
        hash.copy_from_slice(context.finish().as_ref());
        hash
    }

    /// Creates a record at its position, without a hash.
    pub fn of(record: &AuditRecord, position: i64, number: i64) -> Self {
        Self {
            number,
            position,
            id: record.id.to_vec(),
            at_us: record.at_us,
            kind: record.kind.name().to_owned(),
            tenant: record.tenant.clone(),
            body: record.body.clone().into_bytes(),
            hash: Vec::new(),
        }
    }
}

/// A chain and some of its records, read at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditChainPage {
    pub chain: AuditChain,
    pub records: Vec<ChainedAuditRecord>,
}

/// The retention of records, as a text that a broker signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRetentionTerms {
    /// Grows by one with every change.
    pub version: i64,
    pub terms: String,
    pub signature: Vec<u8>,
}

/// Records of the audit log that belong to no chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnchainedAudit {
    /// Records up to this number are older than the chains.
    pub until: i64,
    /// First later record without a chain. It exists only if the database was edited by hand.
    pub first_unchained: Option<i64>,
}
