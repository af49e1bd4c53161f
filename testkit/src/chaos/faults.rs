//! Causes faults by a timetable made from the seed, one after the other, and notes their times.

use std::time::{Duration, Instant};

use super::{ChaosPlan, seed::Seed};
use crate::{
    cluster::{Store, TestCluster},
    history::{History, InjectedFault, Observation},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FaultStep {
    Kill { replica: usize, down: Duration },
    PostgresAway { immediate: bool, away: Duration },
    RedisAway { away: Duration },
    RedisFlushed,
    Freeze { replica: usize, for_: Duration },
}

/// Causes the faults of the plan, and returns at its end with everything running again.
pub(super) async fn execute(
    cluster: &mut TestCluster,
    plan: &ChaosPlan,
    seed: &mut Seed,
    history: &History,
) {
    let began = tokio::time::Instant::now();
    for (at, step) in timetable(plan, seed) {
        tokio::time::sleep_until(began + at).await;
        execute_step(cluster, step, history).await;
    }
    tokio::time::sleep_until(began + plan.duration).await;
}

/// Returns the faults in the order of time. Kills come in turn with jitter, each other fault once
/// at its own part of the run.
fn timetable(plan: &ChaosPlan, seed: &mut Seed) -> Vec<(Duration, FaultStep)> {
    let mut table = Vec::new();
    if let Some(every) = plan.kill_every {
        let jitter = every.as_millis() as u64 / 5 + 1;
        let mut at = every;
        while at + every / 4 <= plan.duration {
            let down = seed.millis(200..1_500);
            table.push((
                at + seed.millis(0..jitter),
                FaultStep::Kill { replica: seed.index(plan.replicas), down },
            ));
            at += every;
        }
    }
    let mut part = |wanted: bool, percent: u64, step: FaultStep| {
        let at = plan.duration * (percent as u32 + seed.below(0..8) as u32) / 100;
        if wanted {
            table.push((at, step));
        }
    };
    let stores = plan.store != Store::Sqlite;
    part(stores && plan.flush_redis, 15, FaultStep::RedisFlushed);
    let away = Duration::from_millis(800);
    part(
        stores && plan.restart_postgres,
        35,
        FaultStep::PostgresAway { immediate: plan.seed.is_multiple_of(2), away },
    );
    part(stores && plan.restart_redis, 55, FaultStep::RedisAway { away });
    part(plan.freeze, 70, FaultStep::Freeze { replica: 0, for_: Duration::from_secs(3) });
    part(stores && plan.flush_redis, 85, FaultStep::RedisFlushed);
    table.sort_by_key(|(at, _)| *at);
    table
}

async fn execute_step(cluster: &mut TestCluster, step: FaultStep, history: &History) {
    let from = Instant::now();
    match step {
        FaultStep::Kill { replica, down } => {
            cluster.kill(replica).await;
            history.record_fault(InjectedFault::Kill, from);
            tokio::time::sleep(down).await;
            start_again(cluster, replica, history).await;
        }
        FaultStep::PostgresAway { immediate, away } => {
            let server = cluster.postgres_mut();
            if immediate {
                server.stop_immediate().await;
            } else {
                server.kill().await;
            }
            tokio::time::sleep(away).await;
            server.start_again().await;
            history.record_fault(InjectedFault::PostgresAway, from);
        }
        FaultStep::RedisAway { away } => {
            cluster.redis().kill().await;
            tokio::time::sleep(away).await;
            cluster.redis().start_again().await;
            history.record_fault(InjectedFault::RedisAway, from);
        }
        FaultStep::RedisFlushed => {
            cluster.redis().flush_all().await;
            history.record_fault(InjectedFault::RedisFlushed, from);
        }
        FaultStep::Freeze { replica, for_ } => {
            cluster.freeze(replica);
            tokio::time::sleep(for_).await;
            cluster.thaw(replica);
            history.record_fault(InjectedFault::Freeze, from);
        }
    }
}

/// Starts a replica again. A replica that does not come back is a broken promise, not a failure of
/// the test.
pub(super) async fn start_again(cluster: &mut TestCluster, replica: usize, history: &History) {
    let from = Instant::now();
    if let Err(died) = cluster.try_restart(replica, &[]).await {
        history.record(
            from,
            Observation::Wrong { what: format!("replica {replica} did not start again: {died}") },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timetable_follows_the_seed_and_stays_within_the_run() {
        let plan = |seed| ChaosPlan {
            duration: Duration::from_secs(60),
            kill_every: Some(Duration::from_secs(5)),
            restart_postgres: true,
            restart_redis: true,
            flush_redis: true,
            freeze: true,
            ..ChaosPlan::new("x", seed)
        };
        let table = |seed| timetable(&plan(seed), &mut Seed::new(seed));
        assert_eq!(table(3), table(3));
        assert_ne!(table(3), table(4));
        for seed in 0..50 {
            let table = table(seed);
            assert!(table.iter().all(|(at, _)| *at < Duration::from_secs(60)), "{table:?}");
            assert_eq!(
                table.iter().filter(|(_, step)| matches!(step, FaultStep::Kill { .. })).count(),
                11,
                "{table:?}"
            );
            assert_eq!(table.len(), 16);
        }
        let quiet = ChaosPlan { store: Store::Sqlite, freeze: false, kill_every: None, ..plan(1) };
        assert_eq!(timetable(&quiet, &mut Seed::new(1)), []);
    }
}
