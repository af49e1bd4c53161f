//! Budgets in Redis: one number for each, and one call of a script for many of them.

use redis::{Script, from_redis_value};

use super::{RedisStore, codec::BUDGETS_TAG, server::Request};
use crate::hot::budget::{BudgetGrant, BudgetRequest, OVERDRAWN_US_MAX, SLACK_US};

pub(super) fn script() -> Script {
    Script::new(include_str!("budgets.lua"))
}

pub(super) async fn take(
    store: &RedisStore,
    requests: &[BudgetRequest],
) -> Option<Vec<BudgetGrant>> {
    if requests.is_empty() {
        return Some(Vec::new());
    }
    let mut script = store.budgets.prepare_invoke();
    script.arg(SLACK_US).arg(OVERDRAWN_US_MAX);
    for request in requests {
        script.key(store.codec.budget_key(&request.name));
        script
            .arg(request.per_second.max(1))
            .arg(request.burst.max(1))
            .arg(request.used)
            .arg(request.wanted);
    }
    let answer = store.link.execute(Some(BUDGETS_TAG), Request::Script(&script)).await.ok()?;
    let numbers: Vec<u64> = from_redis_value(answer).ok()?;
    let shares = numbers.as_chunks::<3>().0.iter().map(|[granted, remaining, wait]| BudgetGrant {
        granted: u32::try_from(*granted).unwrap_or(u32::MAX),
        remaining: u32::try_from(*remaining).unwrap_or(u32::MAX),
        wait: std::time::Duration::from_micros(*wait),
    });
    Some(shares.collect()).filter(|shares: &Vec<_>| shares.len() == requests.len())
}
