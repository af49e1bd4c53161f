//! Verifies the audit log for operators, a page of one chain at a time.

use serde::{Deserialize, Serialize};
use storage::{AuditChain, UnchainedAudit};
use utoipa::ToSchema;

use super::{
    Control, ControlError,
    audit_chain::{ChainMismatch, ChainPosition, inspect},
    audit_seal::{CheckpointView, hash_bytes, hash_text, tenant},
};
use crate::config::FieldError;

/// A chain of the audit log: the records of a tenant, or those without one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChainView {
    /// Whose records; `null`: those without a tenant.
    pub tenant: Option<String>,
    /// Records that were ever added.
    pub count: i64,
    /// Records that the retention removed.
    pub removed: i64,
    /// Records that the newest checkpoint covers.
    pub covered: i64,
}

/// The chains of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChainList {
    pub chains: Vec<ChainView>,
    /// Records up to this number are older than the chains, and nothing protects them.
    pub unchained_until: i64,
    /// What to send as `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// What was found out about a page of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Verdict {
    /// Records of this page that fit.
    pub records: usize,
    /// Number of the last of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<i64>,
    /// The first record that does not fit. The chain is not read any further then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misfit: Option<MisfitView>,
    /// What to send as `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MisfitView {
    /// Number of the record. Absent where the chain has no record that could be named.
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
    /// The chains in the order of their names. That of records without a tenant is called by an empty name, and is first.
    pub async fn audit_chains(
        &self,
        after: Option<&str>,
        limit: u32,
    ) -> Result<ChainList, ControlError> {
        let mut chains = self.ask("audit_chains", self.store().audit_chains(after, limit)).await?;
        let next =
            chains.last().filter(|_| chains.len() >= limit as usize).map(|last| last.name.clone());
        // Records that belong to no chain are told of with this one, also while it is empty.
        if after.is_none() && chains.first().is_none_or(|first| !first.name.is_empty()) {
            chains.insert(0, AuditChain::empty(""));
        }
        let outside = self.ask("audit_outside", self.store().audit_outside()).await?;
        Ok(ChainList {
            next,
            chains: chains.iter().map(ChainView::new).collect(),
            unchained_until: outside.until,
        })
    }

    /// Verifies up to `limit` records of a chain from where the page before ended. `kept`: a checkpoint from outside the database.
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
                read_place(text).ok_or_else(|| invalid("after", "is not the next of a page"))
            })
            .transpose()?;
        let kept = kept
            .map(|view| {
                view.to_stored()
                    .ok_or_else(|| invalid("checkpoint", "has a value that cannot be read"))
            })
            .transpose()?;
        let page = self
            .ask(
                "audit_links",
                self.store().audit_links(
                    name,
                    after.as_ref().map_or(0, |place| place.position),
                    limit,
                ),
            )
            .await?;
        let seal = self.audit_seal();
        let judge = || {
            let beginning = seal.beginning(&page.chain)?;
            let checkpoints: Vec<_> = page.chain.checkpoint.iter().chain(&kept).collect();
            checkpoints
                .iter()
                .try_for_each(|checkpoint| seal.checks_checkpoint(name, checkpoint))?;
            // The retention may have removed what the page before ended with.
            let place = after
                .clone()
                .filter(|place| place.position >= beginning.position)
                .unwrap_or(beginning);
            inspect(place, &page, page.links.len() < limit as usize, &checkpoints)
        };
        let is_last = page.links.len() < limit as usize;
        let judged = match judge() {
            Ok(place) if is_last && name.is_empty() => self.judge_the_rest().await?.map(|()| place),
            judged => judged,
        };
        Ok(match judged {
            Ok(place) => Verdict {
                records: page.links.len(),
                last: Some(place.number).filter(|number| *number > 0),
                misfit: None,
                next: (!is_last).then(|| write_place(&place)),
            },
            Err(ChainMismatch { number, detail }) => Verdict {
                records: 0,
                last: None,
                misfit: Some(MisfitView { number, detail }),
                next: None,
            },
        })
    }

    /// What belongs to no chain: records that were put in beside them, and the retention.
    async fn judge_the_rest(&self) -> Result<Result<(), ChainMismatch>, ControlError> {
        let UnchainedAudit { stray, .. } =
            self.ask("audit_outside", self.store().audit_outside()).await?;
        if stray.is_some() {
            return Ok(Err(ChainMismatch {
                number: stray,
                detail: "it belongs to no chain".to_owned(),
            }));
        }
        let terms = self.ask("audit_terms", self.store().audit_terms()).await?;
        let is_known = terms.as_ref().is_none_or(|terms| self.retention(terms).is_some());
        Ok(is_known.then_some(()).ok_or_else(|| ChainMismatch::unsigned("the stored retention")))
    }
}

fn invalid(field: &'static str, wrong: &str) -> ControlError {
    ControlError::Invalid(FieldError::new(field, wrong, ""))
}

/// `POSITION.NUMBER.HASH`
fn write_place(place: &ChainPosition) -> String {
    format!("{}.{}.{}", place.position, place.number, hash_text(&place.hash))
}

fn read_place(text: &str) -> Option<ChainPosition> {
    let mut parts = text.splitn(3, '.');
    let mut number = || parts.next()?.parse().ok().filter(|number: &i64| *number >= 0);
    let (position, number) = (number()?, number()?);
    Some(ChainPosition { position, number, hash: hash_bytes(parts.next()?)? })
}
