//! Budgets that all replicas share: a rate per second with a burst. The state is one number, the
//! time at which the whole budget is available again (GCRA). `redis/budgets.lua` computes the same
//! for replicas that share a Redis.
//!
//! A replica takes ahead of need and reports later what it used beyond its grant. The reported use
//! counts even if the budget did not allow it.

use std::time::Duration;

/// Request of one replica for part of one budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetRequest {
    /// Same name on every replica. May contain names that clients chose.
    pub name: String,
    pub per_second: u32,
    /// Most that may be taken at once after a pause.
    pub burst: u32,
    /// Amount already used beyond earlier grants.
    pub used: u32,
    /// Amount to be used soon.
    pub wanted: u32,
}

/// Answer to a [`BudgetRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetGrant {
    pub granted: u32,
    /// Amount that could have been granted in addition.
    pub remaining: u32,
    /// Time until the budget allows more, or zero if it allows more now.
    pub wait: Duration,
}

/// Extra capacity for the time between two requests of a replica. Without it, the refill between
/// them would be lost while the burst is full.
pub(super) const SLACK_US: f64 = 50_000.0;
/// The most a budget can be overdrawn. It bounds the effect of a clock jump or of a foreign value.
pub(super) const OVERDRAWN_US_MAX: f64 = 10_000_000.0;

/// Settles one request at `now_us`. Returns the new state and the answer.
pub(super) fn settle(
    state: Option<f64>,
    now_us: f64,
    request: &BudgetRequest,
) -> (f64, BudgetGrant) {
    let interval = 1_000_000.0 / f64::from(request.per_second.max(1));
    let capacity = interval * f64::from(request.burst.max(1) - 1) + SLACK_US;
    let (least, most) = (now_us, now_us + capacity + OVERDRAWN_US_MAX);
    let used = state.unwrap_or(now_us).clamp(least, most) + f64::from(request.used) * interval;
    let spent = used.min(most) - now_us;
    let free =
        if spent <= capacity { ((capacity - spent) / interval).floor() as u32 + 1 } else { 0 };
    let granted = free.min(request.wanted);
    let spent = spent + f64::from(granted) * interval;
    let wait = if free > granted { 0.0 } else { (spent - capacity).max(0.0) };
    (
        now_us + spent,
        BudgetGrant {
            granted,
            remaining: free - granted,
            wait: Duration::from_micros(wait.ceil() as u64),
        },
    )
}
