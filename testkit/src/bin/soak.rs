//! A long run of mixed load on two replicas, which must leave nothing behind. `make soak`.
//!
//! Prints the trend of each measure and exits with 1 if one grows or an answer was wrong. Writes
//! the measures to `soak.csv` while it runs, and draws them into `soak.svg` at its end.

use std::{io::Write as _, path::PathBuf, process::ExitCode, time::Duration};

use testkit::soak::{self, Sample, SoakPlan};

const USAGE: &str = "soak [--time 1h] [--warm-up 10m] [--rate OPERATIONS_A_SECOND] [--clients PER_WIRE] [--out FOLDER] [--broker PATH]";
/// Samples between two lines of progress.
const SAMPLES_PER_LINE: usize = 6;

fn duration(text: &str) -> Result<Duration, String> {
    let unit = match text.trim_start_matches(|char: char| char.is_ascii_digit()) {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3_600,
        _ => return Err(format!("{text} is not a time such as 90s, 10m or 1h")),
    };
    let number = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let number: u64 = number.parse().map_err(|_| format!("{text} is not a time"))?;
    Ok(Duration::from_secs(number * unit))
}

fn arguments() -> Result<(SoakPlan, PathBuf), String> {
    let neighbour =
        std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("mcp-broker");
    let mut plan =
        SoakPlan::new(std::env::var_os("MCP_BROKER_BIN").map_or(neighbour, PathBuf::from));
    let (mut out, mut warm_up) = (PathBuf::from("."), None);
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        let value = given.next().ok_or(format!("{argument} needs a value\n{USAGE}"))?;
        let number = || value.parse::<f64>().map_err(|_| format!("{value} is not a number"));
        match argument.as_str() {
            "--time" => plan.time = duration(&value)?,
            "--warm-up" => warm_up = Some(duration(&value)?),
            "--rate" => plan.rate = number()?,
            "--clients" => plan.clients = number()? as usize,
            "--out" => out = value.into(),
            "--broker" => plan.binary = value.into(),
            _ => return Err(USAGE.to_owned()),
        }
    }
    // A sixth of the time, as in a run of an hour.
    plan.warm_up = warm_up.unwrap_or(plan.time / 6);
    Ok((plan, out))
}

#[tokio::main]
async fn main() -> ExitCode {
    match execute().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::from(64)
        }
    }
}

async fn execute() -> Result<bool, String> {
    let (plan, out) = arguments()?;
    let at = |name: &str| out.join(name);
    let fault = |error: std::io::Error| format!("{}: {error}", out.display());
    std::fs::create_dir_all(&out).map_err(fault)?;
    let mut csv = std::fs::File::create(at("soak.csv")).map_err(fault)?;
    writeln!(csv, "seconds,measure,line,value").map_err(fault)?;
    let mut samples = 0;
    let on_sample = |seconds: Duration, sample: &Sample| {
        for (measure, value) in sample {
            let seconds = seconds.as_secs();
            let _full = writeln!(csv, "{seconds},{},{},{value}", measure.chart, measure.line);
        }
        if samples % SAMPLES_PER_LINE == 0 {
            let sum = |chart: &str| {
                sample
                    .iter()
                    .filter(|(measure, _)| measure.chart == chart)
                    .map(|(_, v)| v)
                    .sum::<f64>()
            };
            println!(
                "{:5} s: {:.0} MiB, {} descriptors, {} sessions",
                seconds.as_secs(),
                sum("memory") / 1024.0 / 1024.0,
                sum("descriptors"),
                sum("sessions")
            );
        }
        samples += 1;
    };
    let verdict = soak::run(plan, on_sample).await;
    std::fs::write(at("soak.svg"), verdict.svg()).map_err(fault)?;
    println!("{verdict}");
    Ok(verdict.is_passed())
}
