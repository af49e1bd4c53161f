//! Routes of the audit log's chains: list, and verification one page at a time.

use std::sync::Arc;

use axum::{extract::State, response::IntoResponse};
use rules::operators::Operator;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{input::QueryParams, page::LIMIT_MAX, permissions::SignedIn, problem::Problem};
use crate::control::{ChainList, ChainView, CheckpointView, Control, Verdict};

/// Number of chains, or of records, on a page without a `limit`.
const LIMIT_USUAL: u32 = 500;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ChainParams {
    /// `next` of the page before.
    after: Option<String>,
    /// Maximum number of chains on a page; absent: 500.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct VerifyParams {
    /// Tenant of the chain; absent: the chain of records without a tenant.
    tenant: Option<String>,
    /// `next` of the page before.
    after: Option<String>,
    /// Maximum number of records on a page; absent: 500.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// A checkpoint of this chain from outside the database, as JSON. The chain must still match
    /// it.
    checkpoint: Option<String>,
}

/// Lists the chains of the audit log.
/// Each tenant has one chain, and records without a tenant have one.
#[utoipa::path(get, operation_id = "list_audit_chains", path = "/admin/v1/audit/chains", tag = "audit", params(ChainParams), responses(
    (status = 200, body = ChainList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn chains(
    State(control): State<Arc<Control>>,
    SignedIn(operator): SignedIn,
    QueryParams(query): QueryParams<ChainParams>,
) -> Result<impl IntoResponse, Problem> {
    let limit = chains_per_query(&operator, limit(query.limit)?);
    let mut list = control.audit_chains(query.after.as_deref(), limit).await?;
    if operator.is_broker_wide() {
        return Ok(axum::Json(list));
    }
    // The operator's chains are on one page: a name on which a page ends may be another tenant's.
    let mut chains = Vec::new();
    loop {
        let is_seen = |chain: &ChainView| {
            chain.tenant.as_deref().is_some_and(|tenant| operator.covers_tenant(tenant))
        };
        chains.extend(list.chains.into_iter().filter(is_seen));
        match list.next {
            Some(after) => list = control.audit_chains(Some(&after), limit).await?,
            None => return Ok(axum::Json(ChainList { chains, next: None, ..list })),
        }
    }
}

/// Verifies records of one chain, from its beginning or from the end of the page before.
/// A record that does not match is not an error of the request. The answer names it.
#[utoipa::path(get, operation_id = "verify_audit_chain", path = "/admin/v1/audit/verify", tag = "audit", params(VerifyParams), responses(
    (status = 200, body = Verdict), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn verify(
    State(control): State<Arc<Control>>,
    signed_in: SignedIn,
    QueryParams(mut query): QueryParams<VerifyParams>,
) -> Result<impl IntoResponse, Problem> {
    query.tenant = signed_in.audited_tenant(query.tenant)?;
    let kept = query.checkpoint.as_deref().map(checkpoint).transpose()?;
    if kept.as_ref().is_some_and(|kept| kept.tenant != query.tenant) {
        return Err(Problem::invalid(
            "checkpoint",
            "belongs to another chain; allowed: a checkpoint of the requested chain",
        ));
    }
    let limit = limit(query.limit)?;
    Ok(axum::Json(
        control
            .verify_audit(query.tenant.as_deref(), query.after.as_deref(), limit, kept.as_ref())
            .await?,
    ))
}

/// Returns the number of chains of one query of the store. An operator of tenants gets all its
/// chains on one page, so a small limit would only make more queries.
fn chains_per_query(operator: &Operator, requested: u32) -> u32 {
    if operator.is_broker_wide() { requested } else { LIMIT_MAX }
}

fn checkpoint(text: &str) -> Result<CheckpointView, Problem> {
    let is = "is not a checkpoint; allowed: the JSON object of a line of audit.checkpoint_file";
    serde_json::from_str(text).map_err(|_| Problem::invalid("checkpoint", is))
}

fn limit(limit: Option<u32>) -> Result<u32, Problem> {
    match limit {
        None => Ok(LIMIT_USUAL),
        Some(limit) if (1..=LIMIT_MAX).contains(&limit) => Ok(limit),
        Some(limit) => {
            Err(Problem::invalid("limit", format!("is {limit}; allowed: 1 to {LIMIT_MAX}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_limit_makes_no_more_queries_for_an_operator_of_tenants() {
        assert_eq!(chains_per_query(&Operator::admin(), 1), 1);
        assert_eq!(chains_per_query(&Operator::powerless(), 1), LIMIT_MAX);
    }
}
