//! Signatures about the audit log: checkpoints, removals by the retention, and the retention terms.
//!
//! A signed text is a JSON array that begins with its kind, so no signature is valid for two
//! purposes. Every published checkpoint contains the public key. An operator who stored that key
//! can verify a checkpoint without the broker.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use records::{
    AUDIT_HASH_BYTES, AuditChain, AuditCheckpoint, AuditRetentionTerms, AuditTruncation,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::audit_chain::{ChainMismatch, ChainPosition};
use crate::auth::SigningKey;

const HASH_KIND: &str = "sha256:";

/// A checkpoint as it is published: in the log, in the checkpoint file, and by the admin API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointView {
    /// Tenant of the chain; `null`: the chain of records without a tenant.
    pub tenant: Option<String>,
    /// Number of records that were ever added to the chain.
    pub count: i64,
    /// Hash of the last of these records.
    pub head: String,
    pub at: String,
    /// Ed25519 signature of the JSON array `["mcp-broker audit checkpoint 1", tenant, count, head,
    /// at]` without spaces.
    pub signature: String,
    /// Public key of the signature.
    pub key: String,
}

/// Signing key, with the texts that it signs.
pub(super) struct AuditSeal<'k>(pub(super) &'k SigningKey);

impl AuditSeal<'_> {
    pub(super) fn signed_checkpoint(
        &self,
        name: &str,
        position: &ChainPosition,
        at_us: i64,
    ) -> AuditCheckpoint {
        let checkpoint = AuditCheckpoint {
            count: position.position,
            head: position.hash.clone(),
            at_us,
            signature: Vec::new(),
        };
        AuditCheckpoint {
            signature: self.0.sign(&checkpoint_text(name, &checkpoint)),
            ..checkpoint
        }
    }

    pub(super) fn signed_cut(
        &self,
        name: &str,
        position: &ChainPosition,
        before_us: i64,
    ) -> AuditTruncation {
        let cut = AuditTruncation {
            position: position.position,
            hash: position.hash.clone(),
            before_us,
            signature: Vec::new(),
        };
        AuditTruncation { signature: self.0.sign(&cut_text(name, &cut)), ..cut }
    }

    pub(super) fn signed_terms(&self, version: i64, terms: String) -> AuditRetentionTerms {
        AuditRetentionTerms { version, signature: self.0.sign(&terms_text(version, &terms)), terms }
    }

    pub(super) fn checks_terms(&self, terms: &AuditRetentionTerms) -> bool {
        self.0.verify(&terms_text(terms.version, &terms.terms), &terms.signature)
    }

    pub(super) fn checks_checkpoint(
        &self,
        name: &str,
        checkpoint: &AuditCheckpoint,
    ) -> Result<(), ChainMismatch> {
        let signed = self.0.verify(&checkpoint_text(name, checkpoint), &checkpoint.signature);
        signed.then_some(()).ok_or_else(|| ChainMismatch::unsigned("the checkpoint"))
    }

    /// Returns the first position of a chain, from the signed removal.
    pub(super) fn verified_start(
        &self,
        chain: &AuditChain,
    ) -> Result<ChainPosition, ChainMismatch> {
        let cut = &chain.start;
        let signed = *cut == AuditTruncation::none()
            || self.0.verify(&cut_text(&chain.name, cut), &cut.signature);
        signed
            .then(|| ChainPosition::after_cut(cut))
            .ok_or_else(|| ChainMismatch::unsigned("the beginning of the chain"))
    }

    /// Returns the last signed position. Records up to it need no further check.
    pub(super) fn last_signed(&self, chain: &AuditChain) -> Result<ChainPosition, ChainMismatch> {
        let verified_start = self.verified_start(chain)?;
        let Some(checkpoint) = &chain.checkpoint else { return Ok(verified_start) };
        self.checks_checkpoint(&chain.name, checkpoint)?;
        Ok(if checkpoint.count < verified_start.position {
            verified_start
        } else {
            ChainPosition::at_checkpoint(checkpoint)
        })
    }

    pub(super) fn published(&self, name: &str, checkpoint: &AuditCheckpoint) -> CheckpointView {
        CheckpointView {
            tenant: tenant(name),
            count: checkpoint.count,
            head: hash_text(&checkpoint.head),
            at: moment(checkpoint.at_us),
            signature: URL_SAFE_NO_PAD.encode(&checkpoint.signature),
            key: URL_SAFE_NO_PAD.encode(self.0.public()),
        }
    }
}

impl CheckpointView {
    /// Converts the checkpoint into the store's type. Returns `None` if a value cannot be parsed.
    pub(super) fn to_stored(&self) -> Option<AuditCheckpoint> {
        Some(AuditCheckpoint {
            count: self.count,
            head: hash_bytes(&self.head)?,
            at_us: self.at.parse::<jiff::Timestamp>().ok()?.as_microsecond(),
            signature: URL_SAFE_NO_PAD.decode(&self.signature).ok()?,
        })
    }
}

/// Returns the tenant of a chain.
pub(super) fn tenant(name: &str) -> Option<String> {
    Some(name.to_owned()).filter(|name| !name.is_empty())
}

pub(super) fn hash_text(hash: &[u8]) -> String {
    format!("{HASH_KIND}{}", URL_SAFE_NO_PAD.encode(hash))
}

pub(super) fn hash_bytes(text: &str) -> Option<Vec<u8>> {
    let bytes = URL_SAFE_NO_PAD.decode(text.strip_prefix(HASH_KIND)?).ok()?;
    (bytes.len() == AUDIT_HASH_BYTES).then_some(bytes)
}

fn moment(at_us: i64) -> String {
    jiff::Timestamp::from_microsecond(at_us).unwrap_or_default().to_string()
}

fn checkpoint_text(name: &str, checkpoint: &AuditCheckpoint) -> String {
    let AuditCheckpoint { count, head, at_us, .. } = checkpoint;
    serde_json::json!([
        "mcp-broker audit checkpoint 1",
        tenant(name),
        count,
        hash_text(head),
        moment(*at_us)
    ])
    .to_string()
}

fn cut_text(name: &str, cut: &AuditTruncation) -> String {
    let AuditTruncation { position, hash, before_us, .. } = cut;
    serde_json::json!([
        "mcp-broker audit cut 1",
        tenant(name),
        position,
        hash_text(hash),
        moment(*before_us)
    ])
    .to_string()
}

fn terms_text(version: i64, terms: &str) -> String {
    serde_json::json!(["mcp-broker audit retention 1", version, terms]).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Keys;

    #[test]
    fn s15_a_published_checkpoint_is_the_one_that_was_signed() {
        let key = Keys::from_root(b"root").audit;
        let seal = AuditSeal(&key);
        let position = ChainPosition { position: 7, number: 9, hash: vec![3; 32] };
        let made = seal.signed_checkpoint("acme", &position, 1_800_000_000_123_456);
        let shown = seal.published("acme", &made);
        let text = serde_json::to_string(&shown).unwrap();
        let read: CheckpointView = serde_json::from_str(&text).unwrap();
        assert_eq!(read.to_stored(), Some(made.clone()));
        seal.checks_checkpoint("acme", &made).unwrap();
        seal.checks_checkpoint("other", &made).unwrap_err();
        seal.checks_checkpoint("acme", &AuditCheckpoint { count: 8, ..made.clone() }).unwrap_err();
        AuditSeal(&Keys::from_root(b"toor").audit).checks_checkpoint("acme", &made).unwrap_err();
        assert_eq!(CheckpointView { head: "sha256:AA".into(), ..shown }.to_stored(), None);
    }

    #[test]
    fn s15_a_chain_start_that_was_moved_manually_is_refused() {
        let key = Keys::from_root(b"root").audit;
        let seal = AuditSeal(&key);
        let mut chain = AuditChain::empty("acme");
        assert_eq!(seal.verified_start(&chain).unwrap().position, 0);
        chain.start = seal.signed_cut(
            "acme",
            &ChainPosition { position: 4, number: 4, hash: vec![1; 32] },
            5,
        );
        assert_eq!(seal.verified_start(&chain).unwrap().position, 4);
        chain.start.position = 5;
        seal.verified_start(&chain).unwrap_err();
        chain.start = AuditTruncation { before_us: 1, ..AuditTruncation::none() };
        seal.verified_start(&chain).unwrap_err();
    }
}
