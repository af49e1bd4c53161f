//! Runs of a target: over its corpus, and over new inputs for some time.

use std::{
    cell::Cell,
    collections::HashSet,
    fmt, panic,
    sync::Once,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::{Corpus, Mutator, NEW_INPUTS_TIME, Outcome, TARGETS_MAX, Target};

/// A reader that takes longer for one input has a fault: inputs are short.
const INPUT_TIME_MAX: Duration = Duration::from_secs(10);
/// Most inputs that a run keeps for further mutation.
const KNOWN_MAX: usize = 20_000;
/// Most attempts to shorten an input that a target failed on.
const ATTEMPTS_MAX: usize = 20_000;
const TIME_VARIABLE: &str = "MCP_BROKER_FUZZ_TIME";
const SEED_VARIABLE: &str = "MCP_BROKER_FUZZ_SEED";

/// Size of a run.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    pub time: Duration,
    /// Decides each input, in order.
    pub seed: u64,
}

/// Result of a run without a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Number of inputs that were tried.
    pub inputs: usize,
    /// Number of outcomes that differ.
    pub outcomes: usize,
}

/// An input that a target failed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub input: Vec<u8>,
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}\ninput: \"{}\"", self.message, self.input.escape_ascii())
    }
}

impl Effort {
    /// Returns the effort that the environment asks for: the share of one target in a run of the
    /// suite, and a seed of the clock, unless the variables say otherwise.
    pub fn from_env() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let seconds = variable(TIME_VARIABLE).map(|text| {
            text.parse()
                .unwrap_or_else(|_| panic!("{TIME_VARIABLE} is not a number of seconds: {text}"))
        });
        let seed = variable(SEED_VARIABLE).map(|text| {
            text.parse().unwrap_or_else(|_| panic!("{SEED_VARIABLE} is not a number: {text}"))
        });
        let share = NEW_INPUTS_TIME / u32::try_from(TARGETS_MAX).unwrap_or(u32::MAX);
        Self {
            time: seconds.map_or(share, Duration::from_secs_f64),
            seed: seed.unwrap_or_else(seed_of_the_clock),
        }
    }
}

fn seed_of_the_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 % 1_000_000_000
}

/// Replays the corpus of a target, then tries new inputs. Panics with everything that repeats a
/// failure. Called by the tests.
pub fn test(target: &Target) {
    let corpus = Corpus::read(target.name)
        .unwrap_or_else(|error| panic!("the corpus of {}: {error}", target.name));
    assert!(!corpus.inputs.is_empty(), "{} has no corpus", target.name);
    if let Err((name, finding)) = replay(target, &corpus) {
        panic!("{} failed on corpus/{}/{name}: {finding}", target.name, target.name);
    }
    let effort = Effort::from_env();
    println!("{}: {SEED_VARIABLE}={} for {:?}", target.name, effort.seed, effort.time);
    match explore(target, &corpus, effort) {
        Ok(summary) => println!("{}: {summary:?}", target.name),
        Err(finding) => {
            let file = corpus.add_found(&finding.input).map(|file| file.display().to_string());
            panic!(
                "{} failed with {SEED_VARIABLE}={}: {finding}\nCommit it after the repair: {}",
                target.name,
                effort.seed,
                file.unwrap_or_else(|error| format!("it could not be written: {error}")),
            );
        }
    }
}

/// Checks every committed input. An error names the input.
pub fn replay(target: &Target, corpus: &Corpus) -> Result<usize, (String, Finding)> {
    for (name, input) in &corpus.inputs {
        check(target, input)
            .map_err(|message| (name.clone(), Finding { input: input.clone(), message }))?;
    }
    Ok(corpus.inputs.len())
}

/// Tries new inputs until the time is over. An error holds a shortened input that the target fails
/// on.
pub fn explore(target: &Target, corpus: &Corpus, effort: Effort) -> Result<Summary, Finding> {
    let mut mutator = Mutator::new(effort.seed, target.tokens, target.bytes_max);
    let mut known: Vec<Vec<u8>> = corpus.inputs.iter().map(|(_, input)| input.clone()).collect();
    let mut outcomes = HashSet::new();
    for input in &known {
        outcomes.extend(check(target, input));
    }
    let (start, mut inputs) = (Instant::now(), 0);
    while start.elapsed() < effort.time {
        let input = mutator.next_input(&known);
        inputs += 1;
        match check(target, &input) {
            Ok(outcome) => {
                if outcomes.insert(outcome) && known.len() < KNOWN_MAX {
                    known.push(input);
                }
            }
            Err(_) => return Err(shortened(target, input)),
        }
    }
    Ok(Summary { inputs, outcomes: outcomes.len() })
}

/// Runs a target on one input. An error is the message of its panic.
fn check(target: &Target, input: &[u8]) -> Result<Outcome, String> {
    let start = Instant::now();
    let outcome = quietly(|| panic::catch_unwind(|| (target.check)(input)));
    let outcome = outcome.map_err(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string))
            .unwrap_or_else(|| "a panic without a text".to_owned())
    })?;
    let taken = start.elapsed();
    if taken > INPUT_TIME_MAX {
        return Err(format!("the input took {taken:?}"));
    }
    Ok(outcome)
}

/// Removes all parts of an input without which the target still fails.
fn shortened(target: &Target, mut input: Vec<u8>) -> Finding {
    let mut message = check(target, &input).err().unwrap_or_default();
    let (mut size, mut attempts) = (input.len().next_power_of_two(), 0);
    while size > 0 && attempts < ATTEMPTS_MAX {
        let mut at = 0;
        while at < input.len() && attempts < ATTEMPTS_MAX {
            attempts += 1;
            let mut shorter = input.clone();
            shorter.drain(at..(at + size).min(input.len()));
            match check(target, &shorter) {
                Err(told) => (input, message) = (shorter, told),
                Ok(_) => at += size,
            }
        }
        size /= 2;
    }
    Finding { input, message }
}

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` without the report of a panic on this thread: the caller reports it.
fn quietly<T>(work: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                usual(info);
            }
        }));
    });
    IS_QUIET.set(true);
    let done = work();
    IS_QUIET.set(false);
    done
}
