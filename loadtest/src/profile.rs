//! A profile: a load as a YAML file describes it, parsed and checked. The examples are in
//! `loadtest/profiles`.
//!
//! The parser reports every fault of a file, each with its path and a correct form.

mod mix_entry;

use std::{fmt, time::Duration};

use serde::Deserialize;

use self::mix_entry::{METHODS, MixEntry};
use crate::{
    era::Era,
    mix::Mix,
    schedule::{Phase, Schedule},
};

/// Rule for the start of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoopModel {
    /// Calls begin when the schedule requires it, without regard to earlier calls.
    #[default]
    Open,
    /// Each caller begins a call when the call before has its answer.
    Closed,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    pub kind: LoopModel,
    pub era: Era,
    pub sessions: usize,
    /// Requests at the same time in each session.
    pub in_flight: usize,
    /// Rates matter in an open loop only.
    pub schedule: Schedule,
    /// Time at the beginning that the figures leave out.
    pub warm_up: Duration,
    /// Time after which a missing answer is lost.
    pub timeout: Duration,
    pub mix: Mix,
    /// Share of the calls that may be refused before the run fails.
    pub refused_max: f64,
    /// HTTP: each session keeps a GET stream open.
    pub listen: bool,
}

/// All faults of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct ProfileErrors(Vec<String>);

impl std::error::Error for ProfileErrors {}

impl fmt::Display for ProfileErrors {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0.join("\n"))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFile {
    #[serde(default, rename = "loop")]
    kind: LoopModel,
    #[serde(default)]
    era: Era,
    #[serde(default = "one")]
    sessions: usize,
    #[serde(default = "one")]
    in_flight: usize,
    phases: Vec<PhaseEntry>,
    warm_up: Option<String>,
    timeout: Option<String>,
    mix: Vec<MixEntry>,
    #[serde(default)]
    refused_max: f64,
    #[serde(default)]
    listen: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PhaseEntry {
    #[serde(rename = "for")]
    time: String,
    rate: Option<f64>,
    to: Option<f64>,
}

fn one() -> usize {
    1
}

const SESSIONS_MAX: usize = 100_000;
const IN_FLIGHT_MAX: usize = 10_000;
const RATE_MAX: f64 = 10_000_000.0;
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
const NEED_SESSIONS: [&str; 3] = ["ping", "subscription", "task"];

/// Names and texts of the profiles in `loadtest/profiles`.
pub const BUNDLED: [(&str, &str); 7] = [
    ("closed", include_str!("../profiles/closed.yaml")),
    ("mixed", include_str!("../profiles/mixed.yaml")),
    ("quick", include_str!("../profiles/quick.yaml")),
    ("ramp", include_str!("../profiles/ramp.yaml")),
    ("soak", include_str!("../profiles/soak.yaml")),
    ("spike", include_str!("../profiles/spike.yaml")),
    ("steady", include_str!("../profiles/steady.yaml")),
];

/// Returns the text of a bundled profile.
pub fn bundled(name: &str) -> Option<&'static str> {
    BUNDLED.iter().find(|(bundled, _)| *bundled == name).map(|(_, text)| *text)
}

impl Profile {
    /// Parses the text of a file.
    pub fn parse(text: &str) -> Result<Self, ProfileErrors> {
        Self::parse_for(None, text)
    }

    /// Parses the text of a file. `era` overrides the era in the file.
    pub fn parse_for(era: Option<Era>, text: &str) -> Result<Self, ProfileErrors> {
        let mut file: ProfileFile =
            serde_saphyr::from_str(text).map_err(|error| ProfileErrors(vec![error.to_string()]))?;
        file.era = era.unwrap_or(file.era);
        let mut faults = Vec::new();
        let profile = file.checked(&mut faults);
        if faults.is_empty() { Ok(profile) } else { Err(ProfileErrors(faults)) }
    }

    pub fn callers(&self) -> usize {
        self.sessions * self.in_flight
    }
}

impl ProfileFile {
    fn checked(self, faults: &mut Vec<String>) -> Profile {
        if self.era == Era::Stateless {
            self.fits_without_sessions(faults);
        }
        within("sessions", self.sessions, SESSIONS_MAX, faults);
        within("in_flight", self.in_flight, IN_FLIGHT_MAX, faults);
        if !(0.0..=1.0).contains(&self.refused_max) {
            faults.push(format!(
                "refused_max: {} is not a share; 0 to 1 is allowed",
                self.refused_max
            ));
        }
        if self.phases.is_empty() {
            faults.push("phases: the list is empty; at least one phase is needed, for example `- {for: 30s, rate: 100}`".to_owned());
        }
        let phases =
            self.phases.iter().enumerate().map(|(index, phase)| {
                phase.checked(self.kind, &format!("phases[{index}]"), faults)
            });
        let schedule = Schedule::new(phases.collect());
        let warm_up =
            self.warm_up.map_or(Duration::ZERO, |text| duration("warm_up", &text, faults));
        if warm_up > Duration::ZERO && warm_up >= schedule.time() {
            faults.push(format!(
                "warm_up: {warm_up:?} covers the whole load; a part of the load must remain to measure"
            ));
        }
        if self.mix.is_empty() {
            faults.push(format!("mix: the list is empty; allowed methods: {METHODS}"));
        }
        let timeout =
            self.timeout.map_or(TIMEOUT_DEFAULT, |text| duration("timeout", &text, faults));
        let operations = self
            .mix
            .into_iter()
            .enumerate()
            .map(|(index, entry)| entry.checked(&format!("mix[{index}]"), faults));
        Profile {
            kind: self.kind,
            era: self.era,
            sessions: self.sessions,
            in_flight: self.in_flight,
            schedule,
            warm_up,
            timeout,
            mix: Mix::new(operations.collect()),
            refused_max: self.refused_max,
            listen: self.listen,
        }
    }
}

impl ProfileFile {
    fn fits_without_sessions(&self, faults: &mut Vec<String>) {
        for (index, entry) in self
            .mix
            .iter()
            .enumerate()
            .filter(|(_, entry)| NEED_SESSIONS.contains(&entry.method.as_str()))
        {
            faults.push(format!("mix[{index}].method: {} is not in 2026-07-28; leave it out, or say `era: 2025-11-25`", entry.method));
        }
        if self.listen {
            faults.push(
                "listen: 2026-07-28 has no GET stream; leave it out, or set `era: 2025-11-25`"
                    .to_owned(),
            );
        }
    }
}

impl PhaseEntry {
    fn checked(&self, kind: LoopModel, index: &str, faults: &mut Vec<String>) -> Phase {
        let time = duration(&format!("{index}.for"), &self.time, faults);
        if time.is_zero() {
            faults.push(format!("{index}.for: a phase must last longer than zero"));
        }
        if kind == LoopModel::Closed && (self.rate.is_some() || self.to.is_some()) {
            faults.push(format!(
                "{index}: a closed loop has no rate; leave `rate` and `to` out, or say `loop: open`"
            ));
        }
        if kind == LoopModel::Open && self.rate.is_none() {
            faults.push(format!(
                "{index}.rate: missing; an open loop needs a rate in calls per second"
            ));
        }
        for (key, rate) in [("rate", self.rate), ("to", self.to)] {
            if let Some(rate) = rate.filter(|rate| !(0.0..=RATE_MAX).contains(rate)) {
                faults.push(format!(
                    "{index}.{key}: {rate} calls a second; 0 to {RATE_MAX} are allowed"
                ));
            }
        }
        let from = self.rate.unwrap_or_default();
        Phase { time, from, to: self.to.unwrap_or(from) }
    }
}

fn within(key: &str, value: usize, max: usize, faults: &mut Vec<String>) {
    if !(1..=max).contains(&value) {
        faults.push(format!("{key}: {value}; 1 to {max} is allowed"));
    }
}

/// Parses a time such as `250ms`, `30s`, `5m` or `1h`.
fn duration(key: &str, text: &str, faults: &mut Vec<String>) -> Duration {
    let at = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let unit = match &text[at..] {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let millis = text[..at]
        .parse::<u64>()
        .ok()
        .zip(unit)
        .and_then(|(number, unit)| number.checked_mul(unit));
    millis.map(Duration::from_millis).unwrap_or_else(|| {
        faults.push(format!("{key}: {text:?} is not a duration; write 250ms, 30s, 5m or 1h"));
        Duration::from_secs(1)
    })
}

#[cfg(test)]
mod tests;
