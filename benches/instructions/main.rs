//! How many instructions do the steps take that every message goes through? Counted by callgrind, which says the same on a busy
//! machine as on an idle one, and held against the figures in `figures.json`.
//!
//! With `--check` a step that takes over 5 % more than its figure fails; `--accept` writes the figures anew.

mod steps;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, bail, ensure};
use benches::{Scale, Table};

use crate::steps::{STEPS, Step};

const FIGURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions/figures.json");
/// With this, a step and a number the program carries the step out so many times.
const REPEAT: &str = "--repeat";
/// What the program needs to start cancels out between the two.
const FEW: u64 = 500;
const MANY: u64 = 2500;
const GROWTH_MAX: f64 = 1.05;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, word, name, count] = &arguments[..]
        && word == REPEAT
    {
        return repeat(name, count);
    }
    benches::main("instructions", bench)
}

fn repeat(name: &str, count: &str) -> ExitCode {
    let step = STEPS.iter().find(|step| step.name == name);
    let Some((step, count)) = step.zip(count.parse().ok()) else { return ExitCode::FAILURE };
    let mut carried_out = (step.prepare)();
    (0..count).for_each(|_| carried_out());
    ExitCode::SUCCESS
}

async fn bench(scale: Scale) -> anyhow::Result<()> {
    let known: BTreeMap<String, u64> = serde_json::from_str(&std::fs::read_to_string(FIGURES)?).context("figures.json")?;
    let names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
    ensure!(known.keys().all(|name| names.contains(&name.as_str())), "figures.json names a step there is not: {known:?}");
    if scale == Scale::Quick {
        STEPS.iter().for_each(|step| (step.prepare)()());
        return Ok(());
    }
    let mut table = Table::new(["step", "instructions", "figure", "ratio"]);
    let (mut counted, mut grown) = (BTreeMap::new(), Vec::new());
    for step in &STEPS {
        let instructions = count(step)?;
        let figure = known.get(step.name).copied();
        let ratio = figure.map(|figure| instructions as f64 / figure as f64);
        if ratio.is_none_or(|ratio| ratio > GROWTH_MAX) {
            grown.push(step.name);
        }
        let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        table.row([
            step.name.to_owned(),
            instructions.to_string(),
            shown(figure.map(|figure| figure.to_string())),
            shown(ratio.map(|ratio| format!("{ratio:.3}"))),
        ]);
        counted.insert(step.name, instructions);
    }
    table.print("Instructions of each step");
    let asked = |word: &str| std::env::args().any(|argument| argument == word);
    if asked("--accept") {
        std::fs::write(FIGURES, serde_json::to_string_pretty(&counted)? + "\n")?;
    } else if asked("--check") && !grown.is_empty() {
        bail!(
            "over 5 % more than committed: {}; make them cheaper, or accept with `make bench-check ACCEPT=yes` and say why",
            grown.join(", ")
        );
    }
    Ok(())
}

/// Instructions of carrying the step out once.
fn count(step: &Step) -> anyhow::Result<u64> {
    let [few, many] = [FEW, MANY].map(|count| collected(step.name, count));
    Ok((many? - few?) / (MANY - FEW))
}

fn collected(name: &str, count: u64) -> anyhow::Result<u64> {
    let program: PathBuf = std::env::current_exe()?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program).args([REPEAT, name, &count.to_string()]);
    let output = command.output().context("valgrind is not installed (scripts/install-servers.sh does it)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} under valgrind: {said}");
    let line = said.lines().find_map(|line| line.split_once("Collected : ")).with_context(|| said.to_string())?;
    Ok(line.1.trim().parse()?)
}
