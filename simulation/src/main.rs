//! Deterministic simulation: clients, replicas, stores and backends in one process, on one thread,
//! in virtual time. One seed decides about everything that happens. `make simulate`.
//!
//! Each seed runs in a process of its own, forked from this one, so that no run sees anything of
//! another. A run ends with a line: the seed, the verdict, and the number of its trace. The same
//! seed gives the same number.
//!
//! Modules: `shim` replaces functions of libc, `scheduler` runs the runtimes, `run` builds the world of a
//! seed and judges it.

mod choices;
mod network;
mod plan;
mod process;
mod redis;
mod replica;
mod run;
mod scheduler;
mod shim;
mod store;
mod strangers;
mod trace;
mod weather;

use std::{path::PathBuf, process::ExitCode, time::Instant};

use process::SeedEnd;

const USAGE: &str =
    "simulate [--seed N] [--count N] [--times N] [--reports yes] [--log FILTER] [--trace FILE]

--seed N       the first seed (1)
--count N      so many seeds, one after the other (1)
--times N      each seed so many times (1)
--reports yes  prints what clients saw in good runs, too
--log FILTER   prints the broker's log with virtual times
--trace FILE   writes each step of the last seed";

/// What the command line asks for.
#[derive(Debug, Clone)]
struct Arguments {
    seed: u64,
    count: u64,
    times: u64,
    reports: bool,
    log: Option<String>,
    trace: Option<PathBuf>,
}

fn arguments() -> Result<Arguments, String> {
    let mut read =
        Arguments { seed: 1, count: 1, times: 1, reports: false, log: None, trace: None };
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        let value = given.next().ok_or(USAGE)?;
        let number = || value.parse().map_err(|_| USAGE.to_owned());
        match argument.as_str() {
            "--seed" => read.seed = number()?,
            "--count" => read.count = number()?,
            "--times" => read.times = number()?,
            "--reports" => read.reports = value == "yes",
            "--log" => read.log = Some(value),
            "--trace" => read.trace = Some(value.into()),
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok(read)
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(usage) => {
            eprintln!("{usage}");
            return ExitCode::from(2);
        }
    };
    process::fix_addresses();
    let began = Instant::now();
    let (mut simulated, mut failed) = (0.0, 0_u64);
    let seeds = arguments.seed..arguments.seed + arguments.count;
    for seed in seeds.flat_map(|seed| (0..arguments.times).map(move |_| seed)) {
        let SeedEnd { passed, seconds } = process::run_seed(seed, &arguments);
        simulated += seconds;
        if !passed {
            failed += 1;
            println!("  again: make simulate SEED={seed}");
        }
    }
    let real = began.elapsed().as_secs_f64();
    println!(
        "{} runs, {failed} failed; {:.1} simulated minutes in {real:.1} s, {:.0} to one",
        arguments.count * arguments.times,
        simulated / 60.0,
        simulated / real
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
