//! Runs the program: the same seed takes the same steps, seeds keep all promises, and a fault that
//! is there is found.
//!
//! Seeds below 1,000 have small runs, which the tests take. A seed that fails here fails again in
//! `make simulate SEED=N`.

use std::{
    collections::BTreeSet,
    process::{Command, Output},
    thread,
};

/// Returns what the program prints, by line, and whether it found nothing.
fn simulate(arguments: &str, environment: &[(&str, &str)]) -> (Vec<String>, bool) {
    let program = env!("CARGO_BIN_EXE_simulate");
    let mut command = Command::new(program);
    command.args(arguments.split(' ')).envs(environment.iter().copied());
    let Output { status, stdout, stderr } = command.output().expect("the program runs");
    let lines = String::from_utf8_lossy(&stdout).lines().map(str::to_owned).collect();
    eprint!("{}", String::from_utf8_lossy(&stderr));
    (lines, status.success())
}

/// Runs so many seeds, each of which must keep all promises.
fn all_keep(first: u64, count: u64) {
    let (lines, passed) = simulate(&format!("--seed {first} --count {count}"), &[]);
    assert!(passed, "{}", lines.join("\n"));
    let kept = lines.iter().filter(|line| line.starts_with("KEPT seed ")).count();
    assert_eq!(kept as u64, count, "{}", lines.join("\n"));
}

#[test]
fn a_seed_repeats_the_same_steps_in_one_process_and_in_two() {
    let (twice, _) = simulate("--seed 7 --times 2", &[]);
    let (again, _) = simulate("--seed 7", &[]);
    assert!(twice[0].contains(" steps, trace "), "{twice:?}");
    assert_eq!((&twice[0], &twice[0]), (&twice[1], &again[0]));
    let (other, _) = simulate("--seed 8", &[]);
    let trace = |line: &str| line.split("trace ").nth(1).map(str::to_owned);
    assert_ne!(trace(&twice[0]), trace(&other[0]));
}

/// Each process gives its temporary files names of the same seed, which must not change a step.
#[test]
fn a_seed_repeats_the_same_steps_in_processes_at_the_same_time() {
    let runs = (0..6).map(|_| thread::spawn(|| simulate("--seed 9", &[])));
    let runs: Vec<_> = runs.collect::<Vec<_>>().into_iter().map(thread::JoinHandle::join).collect();
    let first_lines: BTreeSet<_> = runs
        .into_iter()
        .map(|run| run.expect("a run"))
        .map(|(lines, _)| lines[0].clone())
        .collect();
    assert_eq!(first_lines.len(), 1, "{first_lines:?}");
}

#[test]
fn the_log_changes_no_step() {
    let (plain, _) = simulate("--seed 9", &[]);
    let (logged, _) = simulate("--seed 9 --log debug", &[]);
    assert_eq!(plain[0], logged[0]);
}

/// A debug build does not evaluate the access policy at this step.
#[test]
fn a_hidden_tool_that_is_listed_is_found() {
    let (lines, passed) =
        simulate("--seed 1 --count 8", &[("MCP_BROKER_DISABLED_CHECK", "tools/list")]);
    assert!(!passed);
    assert!(lines.iter().any(|line| line.contains("bob: a hidden tool is listed")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("again: make simulate SEED=")), "{lines:?}");
}

#[test]
fn seeds_1_to_50_keep_all_promises() {
    all_keep(1, 50);
}

#[test]
fn seeds_51_to_100_keep_all_promises() {
    all_keep(51, 50);
}

#[test]
fn seeds_101_to_150_keep_all_promises() {
    all_keep(101, 50);
}

#[test]
fn seeds_151_to_200_keep_all_promises() {
    all_keep(151, 50);
}
