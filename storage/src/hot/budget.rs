//! Budgets that all replicas take from: so many per second with a burst, held as one number, the time at which everything
//! that was taken will have come back (GCRA). `redis/budgets.lua` does the same where replicas share a Redis.
//!
//! A replica takes ahead of need and tells afterwards what it used beyond that: what was used counts whatever there was.

use std::time::Duration;

/// What one replica wants of one budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetRequest {
    /// The same on every replica. May hold names that clients chose.
    pub name: String,
    pub per_second: u32,
    /// What may be taken at once, after a while without.
    pub burst: u32,
    /// Used already, beyond what was granted before.
    pub used: u32,
    /// To be used soon.
    pub wanted: u32,
}

/// What it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetGrant {
    pub granted: u32,
    /// What could have been granted besides.
    pub left: u32,
    /// Until there is some again; zero while there is.
    pub wait: Duration,
}

/// Replicas look from time to time: what came back between two looks is not lost though the burst is full.
pub(super) const SLACK_US: f64 = 50_000.0;
/// The most a budget can be overdrawn. A clock that jumps, or a foreign value, cannot close it for longer.
pub(super) const OVERDRAWN_US_MAX: f64 = 10_000_000.0;

/// Settles one ask at `now_us`: the new state, and the answer.
pub(super) fn settle(state: Option<f64>, now_us: f64, ask: &BudgetRequest) -> (f64, BudgetGrant) {
    let interval = 1_000_000.0 / f64::from(ask.per_second.max(1));
    let room = interval * f64::from(ask.burst.max(1) - 1) + SLACK_US;
    let (least, most) = (now_us, now_us + room + OVERDRAWN_US_MAX);
    let used = state.unwrap_or(now_us).clamp(least, most) + f64::from(ask.used) * interval;
    let spent = used.min(most) - now_us;
    let free = if spent <= room { ((room - spent) / interval).floor() as u32 + 1 } else { 0 };
    let granted = free.min(ask.wanted);
    let spent = spent + f64::from(granted) * interval;
    let wait = if free > granted { 0.0 } else { (spent - room).max(0.0) };
    (
        now_us + spent,
        BudgetGrant {
            granted,
            left: free - granted,
            wait: Duration::from_micros(wait.ceil() as u64),
        },
    )
}
