//! The rates of a backend and of its tools: which of them a request takes from, and in which order.

use std::sync::Arc;

use config::{
    Limits,
    spec::{BackendLimits, TenantLimits},
};
use protocol::error::Refusal;
use rules::{gcra::Rate, shared_rate_limit::SharedRateLimiter};

use super::Backend;
use crate::admission::rate_limiter::RateScope;

impl Backend {
    /// Takes one request from the rate of the tool, and from that of the backend. `tenant` holds the
    /// limits of the tenant's record. A call above the rate of its tool takes nothing from the rate
    /// of the backend, which other tools use. `take` takes from one rate.
    pub fn take_budget(
        &self,
        tenant: &TenantLimits,
        tool: Option<&str>,
        take: impl Fn(RateScope, &Arc<SharedRateLimiter>, Rate) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let (own, common) = (&self.spec.limits, &self.context.config.limits);
        if let Some(tool) = tool
            && let Some(rate) = tool_rate(own, tenant, common, tool)
        {
            let name = || format!("tool/{}/{}/{tool}", self.tenant, self.id);
            let now = self.context.limiters.rates.now();
            let meter = self.rates.part(&tool.to_owned(), now, name);
            take(RateScope::Tool, &meter, rate)?;
        }
        let per_second = own
            .requests_per_second
            .or(tenant.requests_per_second_per_backend)
            .unwrap_or(common.requests_per_second_per_backend);
        let burst = own.burst.or(tenant.burst_per_backend).unwrap_or(common.burst_per_backend);
        match Rate::new(per_second, burst) {
            Some(rate) => take(RateScope::Backend, &self.rates.whole, rate),
            None => Ok(()),
        }
    }
}

/// Returns the rate of a tool: its own, or that of all tools of the backend, of the tenant or of the
/// configuration.
fn tool_rate(
    own: &BackendLimits,
    tenant: &TenantLimits,
    common: &Limits,
    tool: &str,
) -> Option<Rate> {
    let special = own.tools.get(tool);
    let per_second = special
        .and_then(|rate| rate.requests_per_second)
        .or(own.requests_per_second_per_tool)
        .or(tenant.requests_per_second_per_tool)
        .unwrap_or(common.requests_per_second_per_tool);
    let burst = special
        .and_then(|rate| rate.burst)
        .or(own.burst_per_tool)
        .or(tenant.burst_per_tool)
        .unwrap_or(common.burst_per_tool);
    Rate::new(per_second, burst)
}
