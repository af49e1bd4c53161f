//! Verification of the audit log for operators, one page of a chain at a time.

use config::FieldError;
use records::{AuditChain, UnchainedAudit};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Control, ControlError,
    audit_chain::{ChainMismatch, ChainPosition, verify_page},
    audit_seal::{CheckpointView, hash_bytes, hash_text, tenant},
};

/// A chain of the audit log: the records of a tenant, or those without a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChainView {
    /// Tenant of the records; `null`: records without a tenant.
    pub tenant: Option<String>,
    /// Number of records that were ever added.
    pub count: i64,
    /// Number of records that the retention removed.
    pub removed: i64,
    /// Number of records that the newest checkpoint covers.
    pub covered: i64,
}

/// Chains of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChainList {
    pub chains: Vec<ChainView>,
    /// Records up to this number are older than the chains, and nothing protects them.
    pub unchained_until: i64,
    /// Value of `after` for the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Result of the verification of a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
// The decision of an access policy is a verdict too.
#[schema(as = AuditVerdict)]
pub struct Verdict {
    /// Number of valid records on this page.
    pub records: usize,
    /// Number of the last valid record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<i64>,
    /// The first invalid record, if any. The verification stops there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misfit: Option<MisfitView>,
    /// Value of `after` for the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MisfitView {
    /// Number of the record. Absent if the chain has no such record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<i64>,
    pub detail: String,
}

impl ChainView {
    fn new(chain: &AuditChain) -> Self {
        Self {
            tenant: tenant(&chain.name),
            count: chain.length,
            removed: chain.start.position,
            covered: chain.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.count),
        }
    }
}

impl Control {
    /// Returns the chains, ordered by name. The chain of records without a tenant has an empty name
    /// and is first.
    pub async fn audit_chains(
        &self,
        after: Option<&str>,
        limit: u32,
    ) -> Result<ChainList, ControlError> {
        let mut chains =
            self.query_store("list_audit_chains", self.store().audit_chains(after, limit)).await?;
        let next =
            chains.last().filter(|_| chains.len() >= limit as usize).map(|last| last.name.clone());
        // This chain also has the records outside every chain, so it is listed even if
        // it is empty.
        if after.is_none() && chains.first().is_none_or(|first| !first.name.is_empty()) {
            chains.insert(0, AuditChain::empty(""));
        }
        let outside =
            self.query_store("get_unchained_audit", self.store().unchained_audit()).await?;
        Ok(ChainList {
            next,
            chains: chains.iter().map(ChainView::new).collect(),
            unchained_until: outside.until,
        })
    }

    /// Verifies up to `limit` records of a chain, from the end of the page before. `kept` is a
    /// checkpoint from outside the database.
    pub async fn verify_audit(
        &self,
        of: Option<&str>,
        after: Option<&str>,
        limit: u32,
        kept: Option<&CheckpointView>,
    ) -> Result<Verdict, ControlError> {
        let name = of.unwrap_or_default();
        let after = after
            .map(|text| {
                read_position(text)
                    .ok_or_else(|| invalid("after", "is not the `next` value of a page"))
            })
            .transpose()?;
        let kept = kept
            .map(|view| {
                view.to_stored()
                    .ok_or_else(|| invalid("checkpoint", "has a value that cannot be read"))
            })
            .transpose()?;
        let page = self
            .query_store(
                "list_audit_links",
                self.store().audit_chain_page(
                    name,
                    after.as_ref().map_or(0, |position| position.position),
                    limit,
                ),
            )
            .await?;
        let seal = self.audit_seal();
        let judge = || {
            let verified_start = seal.verified_start(&page.chain)?;
            let checkpoints: Vec<_> = page.chain.checkpoint.iter().chain(&kept).collect();
            checkpoints
                .iter()
                .try_for_each(|checkpoint| seal.checks_checkpoint(name, checkpoint))?;
            // The retention may have removed the last record of the page before.
            let position = after
                .clone()
                .filter(|position| position.position >= verified_start.position)
                .unwrap_or(verified_start);
            verify_page(position, &page, page.records.len() < limit as usize, &checkpoints)
        };
        let is_last = page.records.len() < limit as usize;
        let judged = match judge() {
            Ok(position) if is_last && name.is_empty() => {
                self.verify_unchained().await?.map(|()| position)
            }
            judged => judged,
        };
        Ok(match judged {
            Ok(position) => Verdict {
                records: page.records.len(),
                last: Some(position.number).filter(|number| *number > 0),
                misfit: None,
                next: (!is_last).then(|| write_position(&position)),
            },
            Err(ChainMismatch { number, detail }) => Verdict {
                records: 0,
                last: None,
                misfit: Some(MisfitView { number, detail }),
                next: None,
            },
        })
    }

    /// Checks the data outside the chains: inserted records without a chain, and the retention
    /// terms.
    async fn verify_unchained(&self) -> Result<Result<(), ChainMismatch>, ControlError> {
        let UnchainedAudit { first_unchained, .. } =
            self.query_store("get_unchained_audit", self.store().unchained_audit()).await?;
        if first_unchained.is_some() {
            return Ok(Err(ChainMismatch {
                number: first_unchained,
                detail: "the record belongs to no chain".to_owned(),
            }));
        }
        let terms = self.query_store("get_audit_terms", self.store().audit_terms()).await?;
        let is_known = terms.as_ref().is_none_or(|terms| self.retention(terms).is_some());
        Ok(is_known.then_some(()).ok_or_else(|| ChainMismatch::unsigned("the stored retention")))
    }
}

fn invalid(field: &'static str, wrong: &str) -> ControlError {
    ControlError::Invalid(FieldError::new(field, wrong, ""))
}

/// Formats a position as `POSITION.NUMBER.HASH`.
fn write_position(position: &ChainPosition) -> String {
    format!("{}.{}.{}", position.position, position.number, hash_text(&position.hash))
}

fn read_position(text: &str) -> Option<ChainPosition> {
    let mut parts = text.splitn(3, '.');
    let mut number = || parts.next()?.parse().ok().filter(|number: &i64| *number >= 0);
    let (position, number) = (number()?, number()?);
    Some(ChainPosition { position, number, hash: hash_bytes(parts.next()?)? })
}
