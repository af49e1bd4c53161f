//! The rates of a tenant: which of them a request takes from, and in which order.

use std::sync::Arc;

use config::spec::TenantLimits;
use protocol::{error::Refusal, ids::PrincipalId};
use rules::{gcra::Rate, shared_rate_limit::SharedRateLimiter};

use super::Tenant;
use crate::{
    admission::rate_limiter::RateScope,
    backends::backend::Backend,
    telemetry::request::{self, RequestTelemetry},
};

impl Tenant {
    /// Takes one request from the principal's rate, then from the tenant's.
    pub fn take_budget(&self, principal: &PrincipalId) -> Result<(), Refusal> {
        let limits = &self.spec.load().limits;
        // The principal comes first, so that one over its rate takes nothing from others of the
        // tenant.
        let own = self.principal_rate(limits).map(|rate| (self.principal_meter(principal), rate));
        if let Some((meter, rate)) = &own {
            self.take_rate(RateScope::Principal, meter, *rate)?;
        }
        if let Some(rate) = self.rate(limits) {
            self.take_rate(RateScope::Tenant, &self.rates.whole, rate).inspect_err(|_| {
                if let Some((meter, rate)) = &own {
                    self.shared.limiters.rates.give_back(meter, *rate);
                }
            })?;
        }
        let _outside = request::with_current(RequestTelemetry::record_charge);
        Ok(())
    }

    /// Takes one notification of the principal from the same rates. A refused one is dropped and
    /// counted, because a notification has no answer.
    pub fn take_notification_budget(&self, principal: &PrincipalId) -> Result<(), Refusal> {
        self.take_budget(principal)
            .inspect_err(|_| self.shared.metrics.dropped_notification("rate_limited"))
    }

    /// Gives back what [`Tenant::take_budget`] took.
    pub fn give_back_budget(&self, principal: &PrincipalId) {
        let limits = &self.spec.load().limits;
        if let Some(rate) = self.principal_rate(limits) {
            self.shared.limiters.rates.give_back(&self.principal_meter(principal), rate);
        }
        if let Some(rate) = self.rate(limits) {
            self.shared.limiters.rates.give_back(&self.rates.whole, rate);
        }
    }

    /// Takes one request from the rates of this backend and of its tool.
    pub fn take_backend_budget(
        &self,
        backend: &Backend,
        tool: Option<&str>,
    ) -> Result<(), Refusal> {
        let take = |scope, meter: &_, rate| self.take_rate(scope, meter, rate);
        backend.take_budget(&self.spec.load().limits, tool, take)
    }

    fn take_rate(
        &self,
        scope: RateScope,
        meter: &Arc<SharedRateLimiter>,
        rate: Rate,
    ) -> Result<(), Refusal> {
        let taken = self.shared.limiters.rates.take(scope, meter, rate);
        taken.inspect_err(|_| self.counts.refused(scope.name()))
    }

    fn rate(&self, own: &TenantLimits) -> Option<Rate> {
        let common = &self.shared.config.limits;
        Rate::new(
            own.requests_per_second.unwrap_or(common.requests_per_second),
            own.burst.unwrap_or(common.burst),
        )
    }

    fn principal_rate(&self, own: &TenantLimits) -> Option<Rate> {
        let common = &self.shared.config.limits;
        let per_second = own
            .requests_per_second_per_principal
            .unwrap_or(common.requests_per_second_per_principal);
        Rate::new(per_second, own.burst_per_principal.unwrap_or(common.burst_per_principal))
    }

    fn principal_meter(&self, principal: &PrincipalId) -> Arc<SharedRateLimiter> {
        let name = || format!("principal/{}/{}", self.id, principal.as_str());
        self.rates.part(principal, self.shared.limiters.rates.now(), name)
    }
}
