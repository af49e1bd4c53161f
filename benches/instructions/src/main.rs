//! Counts the instructions of the steps that every message passes. Callgrind counts them, with the
//! same result on a busy machine as on an idle one. The counts are compared with `figures.json`.
//!
//! With `--check` a step that takes over 5 % more than its figure fails; `--accept` replaces the
//! figures.

mod steps;

use std::{
    collections::BTreeMap,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, bail, ensure};

use crate::steps::{STEPS, Step};

/// The product's allocator: it is part of the cost of a message.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const FIGURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/figures.json");
/// Argument before a step and a number: the program runs the step so many times.
const REPEAT: &str = "--repeat";
/// Runs of a step in two counts, whose difference leaves out the start of the program.
const FEW: u64 = 500;
const MANY: u64 = 2500;
const GROWTH_MAX: f64 = 1.05;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [REPEAT, name, count] => repeat(name, count),
        [] | ["--check"] => compared(!arguments.is_empty()),
        ["--accept"] => accepted(),
        _ => Err(anyhow::anyhow!("arguments are --check, --accept or none")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instructions: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn repeat(name: &str, count: &str) -> anyhow::Result<()> {
    let step = STEPS.iter().find(|step| step.name == name).context("unknown step")?;
    let mut executed = (step.prepare)();
    (0..count.parse::<u64>()?).for_each(|_| executed());
    Ok(())
}

fn known() -> anyhow::Result<BTreeMap<String, u64>> {
    serde_json::from_str(&std::fs::read_to_string(FIGURES)?).context("figures.json")
}

fn compared(is_strict: bool) -> anyhow::Result<()> {
    let (known, mut grown) = (known()?, Vec::new());
    println!(
        "| {:<13} | {:>12} | {:>12} | {:>5} |\n|{:-<15}|{:->13}:|{:->13}:|{:->6}:|",
        "step", "instructions", "figure", "ratio", "", "", "", ""
    );
    for step in &STEPS {
        let counted = count(step)?;
        let figure = *known
            .get(step.name)
            .with_context(|| format!("figures.json does not know {:?}", step.name))?;
        let ratio = counted as f64 / figure as f64;
        println!("| {:<13} | {counted:>12} | {figure:>12} | {ratio:>5.3} |", step.name);
        if ratio > GROWTH_MAX {
            grown.push(step.name);
        }
    }
    if is_strict && !grown.is_empty() {
        bail!(
            "over 5 % more than committed: {}; make them cheaper, or `make bench-check ACCEPT=yes` and say why",
            grown.join(", ")
        );
    }
    Ok(())
}

fn accepted() -> anyhow::Result<()> {
    let counted = STEPS
        .iter()
        .map(|step| Ok((step.name, count(step)?)))
        .collect::<anyhow::Result<BTreeMap<_, _>>>()?;
    let text = serde_json::to_string_pretty(&counted)? + "\n";
    print!("{text}");
    Ok(std::fs::write(FIGURES, text)?)
}

/// Returns the instructions of one run of the step.
fn count(step: &Step) -> anyhow::Result<u64> {
    let [few, many] = [FEW, MANY].map(|count| collected(step.name, count));
    Ok((many? - few?) / (MANY - FEW))
}

fn collected(name: &str, count: u64) -> anyhow::Result<u64> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(std::env::current_exe()?).args([REPEAT, name, &count.to_string()]);
    let output = command
        .output()
        .context("valgrind is not installed (scripts/install-servers.sh does it)")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} under valgrind: {stderr}");
    let (_, counted) = stderr
        .lines()
        .find_map(|line| line.split_once("Collected : "))
        .with_context(|| stderr.to_string())?;
    Ok(counted.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_runs_and_has_a_recorded_count() {
        let names: Vec<&str> = known()
            .unwrap()
            .into_keys()
            .map(|name| STEPS.iter().find(|step| step.name == name).unwrap().name)
            .collect();
        assert_eq!(names.len(), STEPS.len(), "{names:?}");
        STEPS.iter().for_each(|step| (step.prepare)()());
    }
}
