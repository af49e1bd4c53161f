//! The audit log's hash chains as rows: one chain for each tenant, and one of records without a tenant.
//!
//! The hash of a record covers the record, its place and the hash before it. SQLite's store computes it here; PostgreSQL's
//! computes the same in the function `audit_hash` of its schema, so that several replicas extend one chain. What is read here is
//! as it is stored: whether it fits is for the broker to judge.

use async_trait::async_trait;
use aws_lc_rs::digest;

use crate::{AuditRecord, StoreError};

pub const AUDIT_HASH_BYTES: usize = 32;
/// Stands for the hash before the first record of a chain.
pub const AUDIT_GENESIS: [u8; AUDIT_HASH_BYTES] = [0; AUDIT_HASH_BYTES];

/// A chain, without its records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditChain {
    /// The tenant; empty for records without one.
    pub name: String,
    /// Records that were ever added.
    pub length: i64,
    /// Hash of the last one.
    pub head: Vec<u8>,
    pub start: AuditTruncation,
    pub checkpoint: Option<AuditCheckpoint>,
}

impl AuditChain {
    /// A chain that no record was added to.
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

/// What the retention removed from the beginning of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditTruncation {
    /// Place of the last record that was removed; 0: none was.
    pub position: i64,
    /// Hash of that record.
    pub hash: Vec<u8>,
    /// All of them were older than this.
    pub before_us: i64,
    pub signature: Vec<u8>,
}

impl AuditTruncation {
    pub fn none() -> Self {
        Self { position: 0, hash: AUDIT_GENESIS.to_vec(), before_us: 0, signature: Vec::new() }
    }
}

/// What a broker signed about a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditCheckpoint {
    /// So many records were added to the chain.
    pub count: i64,
    /// Hash of the last of them.
    pub head: Vec<u8>,
    pub at_us: i64,
    pub signature: Vec<u8>,
}

/// A record in its chain, as it is stored: nothing about it is certain.
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
    /// The hash it must have after a record of this hash.
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

    /// A record at its place, without a hash yet.
    pub(crate) fn of(record: &AuditRecord, position: i64, number: i64) -> Self {
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
    pub links: Vec<ChainedAuditRecord>,
}

/// How long records are kept, as a text that a broker signed.
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
    /// The first later record without a chain. There is none unless somebody edited the database.
    pub stray: Option<i64>,
}

/// The chains of an [`AuditStore`](crate::AuditStore), for checkpoints, for the retention and for those who verify them.
#[async_trait]
pub trait AuditChainStore: Send + Sync {
    /// In the order of their names, after this one. A name that only records have is a chain, too.
    async fn audit_chains(
        &self,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<AuditChain>, StoreError>;

    /// Records of a chain in their order, after this place.
    async fn audit_links(
        &self,
        name: &str,
        after: i64,
        limit: u32,
    ) -> Result<AuditChainPage, StoreError>;

    async fn audit_outside(&self) -> Result<UnchainedAudit, StoreError>;

    /// Chains with at least so many records that no checkpoint covers, in the order of their names, after this one.
    async fn audit_chains_ahead(
        &self,
        by: i64,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<AuditChain>, StoreError>;

    /// Keeps the newer checkpoints of those given. Returns the names of the chains that took one.
    async fn put_audit_checkpoints(
        &self,
        checkpoints: &[(String, AuditCheckpoint)],
    ) -> Result<Vec<String>, StoreError>;

    /// Names of chains whose oldest record is from before this moment.
    async fn audit_chains_older(
        &self,
        before_us: i64,
        limit: u32,
    ) -> Result<Vec<String>, StoreError>;

    /// Removes the records up to a place. Nothing is removed where the record there has another hash, or is gone already.
    async fn cut_audit_chain(&self, name: &str, cut: &AuditTruncation) -> Result<u64, StoreError>;

    async fn audit_terms(&self) -> Result<Option<AuditRetentionTerms>, StoreError>;
}
