//! Kills under load in small counts; `make chaos` has the large ones. A verdict that is not kept
//! shows its seed.
//!
//! The seeds are fixed, so that a difference between two runs comes from a change of the broker and
//! not from luck.

use std::time::Duration;

use testkit::{
    chaos::{self, ChaosPlan, KillPointPlan, RollingPlan},
    cluster::Store,
    soak::{self, SoakPlan},
};

use crate::binary;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_02_tasks_survive_kills_of_replicas_and_restarts_of_both_stores() {
    let plan = ChaosPlan {
        kill_every: Some(Duration::from_secs(2)),
        restart_postgres: true,
        restart_redis: true,
        flush_redis: true,
        duration: Duration::from_secs(6),
        ..ChaosPlan::new(binary(), 2)
    };
    chaos::run(plan).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_02_tasks_survive_kills_of_a_broker_with_its_own_database() {
    let plan = ChaosPlan {
        kill_every: Some(Duration::from_secs(2)),
        store: Store::Sqlite,
        replicas: 1,
        ..ChaosPlan::new(binary(), 3)
    };
    chaos::run(plan).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_03_nothing_acknowledged_is_lost_at_any_step_on_postgres() {
    chaos::kill_at_points(KillPointPlan { named: 8, random: 1, ..KillPointPlan::new(binary(), 5) })
        .await
        .assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_03_nothing_acknowledged_is_lost_at_any_step_on_sqlite() {
    let points = KillPointPlan {
        store: Store::Sqlite,
        replicas: 1,
        named: 8,
        random: 1,
        ..KillPointPlan::new(binary(), 7)
    };
    chaos::kill_at_points(points).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r6_a_rolling_restart_fails_no_call_and_loses_no_event() {
    chaos::rolling_restart(RollingPlan::new(binary(), 11)).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r7_a_killed_replica_loses_only_its_calls_in_flight() {
    // A debug build on a busy machine takes longer than the promise, which `make chaos` measures.
    let recovered_within = Duration::from_secs(8);
    chaos::rolling_restart(RollingPlan {
        kill: true,
        recovered_within,
        ..RollingPlan::new(binary(), 13)
    })
    .await
    .assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_load_on_every_wire_is_answered_without_leaks() {
    let plan = SoakPlan {
        time: Duration::from_secs(15),
        // No measured time: what is flat shows in an hour.
        warm_up: Duration::from_secs(15),
        clients: 2,
        sample_every: Duration::from_secs(3),
        forgotten_after: "8s",
        ..SoakPlan::new(binary())
    };
    let verdict = soak::run(plan, |_, _| {}).await;
    assert!(verdict.is_passed(), "{verdict}");
    assert_eq!(verdict.answered.len(), 6, "every wire was used: {verdict}");
    assert!(verdict.series.len() > 40, "{verdict}");
}
