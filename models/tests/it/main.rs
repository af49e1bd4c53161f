//! What must hold in every order of threads.
//!
//! Each test runs its model in many orders that a seed decides. A failure prints a schedule, and
//! [`shuttle::replay`] repeats it. `MCP_BROKER_MODEL_RUNS` sets another number of orders.

mod breaker;
mod budgets;
mod concurrency_limit;
mod deadline_list;
mod shared_permits;
mod streams;
mod task_handoff;

use shuttle::{
    Config, Runner,
    scheduler::{PctScheduler, RandomScheduler},
};

const SEED: u64 = 24;
const RUNS: usize = 1_000;
/// Most switches of threads that a fault is assumed to need.
const SWITCHES_MAX: usize = 3;

/// Runs a model in orders of chance, and in orders with few switches, which find faults that need
/// long runs of one thread.
fn in_every_order(model: impl Fn() + Send + Sync + Clone + 'static) {
    let runs = std::env::var("MCP_BROKER_MODEL_RUNS")
        .map_or(RUNS, |runs| runs.parse().expect("a number of runs"));
    let random = RandomScheduler::new_from_seed(SEED, runs);
    Runner::new(random, Config::default()).run(model.clone());
    let few = PctScheduler::new_from_seed(SEED, SWITCHES_MAX, runs);
    Runner::new(few, Config::default()).run(model);
}
