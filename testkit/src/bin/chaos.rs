//! The full counts of the chaos tests: kills under load, kills at every step, rolling restarts.
//! `make chaos`.
//!
//! Prints one verdict a line and exits with 1 if a promise was broken. The same `--seed` makes the
//! same choices.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use testkit::{
    chaos::{self, ChaosPlan, ChaosVerdict, KillPointPlan, RollingPlan},
    cluster::Store,
};

const USAGE: &str = "chaos [--seed N] [--broker PATH] [--quick] [tasks | points | rolling | all]

tasks    1,000 tasks over three replicas, one killed every 5 s for a minute, both stores restarted; then one on SQLite
points   200 kills on PostgreSQL and 200 on SQLite: 150 at named steps of what is written, 50 at random times
rolling  restarts of two replicas with 500 live sessions and 100 calls a second, in an orderly way and by kill
--quick  a tenth of it";

struct Arguments {
    seed: u64,
    broker: PathBuf,
    quick: bool,
    what: String,
}

fn arguments() -> Result<Arguments, String> {
    let beside =
        std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("mcp-broker");
    let broker = std::env::var_os("MCP_BROKER_BIN").map_or(beside, PathBuf::from);
    let mut read = Arguments {
        seed: rand::random_range(0..1_000_000),
        broker,
        quick: false,
        what: "all".to_owned(),
    };
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        let mut value = || given.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--seed" => {
                read.seed = value()?.parse().map_err(|_| "a seed is a number".to_owned())?
            }
            "--broker" => read.broker = value()?.into(),
            "--quick" => read.quick = true,
            "tasks" | "points" | "rolling" | "all" => read.what = argument,
            _ => return Err(USAGE.to_owned()),
        }
    }
    if read.broker.exists() {
        Ok(read)
    } else {
        Err(format!("{} is missing: cargo build", read.broker.display()))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(64);
        }
    };
    let wanted = |what: &str| arguments.what == what || arguments.what == "all";
    let mut kept = true;
    let mut record = |verdict: ChaosVerdict| {
        kept &= verdict.is_passed();
        println!("{verdict}");
    };
    println!("seed {}", arguments.seed);
    if wanted("tasks") {
        for plan in task_plans(&arguments) {
            record(chaos::run(plan).await);
        }
    }
    if wanted("points") {
        for points in point_plans(&arguments) {
            record(chaos::kill_at_points(points).await);
        }
    }
    if wanted("rolling") {
        for rolling in rolling_plans(&arguments) {
            record(chaos::rolling_restart(rolling).await);
        }
    }
    println!("{}", if kept { "KEPT" } else { "BROKEN" });
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn part(arguments: &Arguments, full: usize) -> usize {
    if arguments.quick { full / 10 } else { full }
}

fn task_plans(arguments: &Arguments) -> [ChaosPlan; 2] {
    let full = ChaosPlan {
        tasks: part(arguments, 1_000),
        calls: part(arguments, 300),
        streams: part(arguments, 60),
        sessions: part(arguments, 200),
        duration: Duration::from_secs(if arguments.quick { 20 } else { 60 }),
        kill_every: Some(Duration::from_secs(5)),
        store: Store::DurablePostgres,
        restart_postgres: true,
        restart_redis: true,
        flush_redis: true,
        freeze: true,
        ..ChaosPlan::new(&arguments.broker, arguments.seed)
    };
    let embedded = ChaosPlan { store: Store::Sqlite, replicas: 1, freeze: false, ..full.clone() };
    [full, embedded]
}

fn point_plans(arguments: &Arguments) -> [KillPointPlan; 2] {
    let named = part(arguments, 150);
    let random = part(arguments, 50);
    let full = KillPointPlan {
        named,
        random,
        tasks: 6,
        ..KillPointPlan::new(&arguments.broker, arguments.seed)
    };
    let embedded = KillPointPlan { store: Store::Sqlite, replicas: 1, ..full.clone() };
    [full, embedded]
}

fn rolling_plans(arguments: &Arguments) -> [RollingPlan; 2] {
    let (sessions, calls_per_second) = (part(arguments, 500), part(arguments, 100));
    let orderly = RollingPlan {
        sessions,
        calls_per_second,
        pause: Duration::from_secs(5),
        ..RollingPlan::new(&arguments.broker, arguments.seed)
    };
    let killed = RollingPlan { kill: true, ..orderly.clone() };
    [orderly, killed]
}
