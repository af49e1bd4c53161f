//! The rules: each takes the whole history and reports observations that are impossible.
//!
//! Reads of different clients overlap, so two of them are in an order only if one began after the
//! other had ended.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, Instant},
};

use super::{Entry, HistoryLog, InjectedFault, OUTCOME_UNKNOWN, Observation, Outcome, Report};
use crate::ledger::Effect;

pub(super) const VIOLATIONS_SHOWN: usize = 20;

/// The tool whose effects may be repeated.
const REPEATABLE: &str = "put";

/// All observations of one acknowledged task.
#[derive(Default)]
struct TaskHistory<'a> {
    key: &'a str,
    acknowledged: Option<(Instant, Instant)>,
    /// Statuses, each with the times of its request and its answer.
    statuses: Vec<(&'a str, Instant, Instant)>,
    outcomes: BTreeSet<&'a Outcome>,
    finally: Option<&'a Option<Outcome>>,
    absent: bool,
    cancel_asked: bool,
}

impl TaskHistory<'_> {
    fn first_end(&self) -> Option<Instant> {
        self.statuses.iter().filter(|(status, ..)| is_over(status)).map(|(_, _, at)| *at).min()
    }
}

fn is_over(status: &str) -> bool {
    matches!(status, "completed" | "failed" | "cancelled")
}

pub(super) fn check(notes: &HistoryLog, ledger: &[Effect], slack: Duration) -> Report {
    let mut report = Report { effects: ledger.len(), ..Report::default() };
    let stories = stories(&notes.entries, &mut report);
    let effects = by_key(ledger);
    for (task, story) in &stories {
        task_rules(task, story, &effects, &mut report);
        if story.outcomes.iter().any(|outcome| is_unknown(outcome))
            && !task_explained(story, &effects, notes, slack)
        {
            report.violations.push(format!(
                "{task} ({}) ended as outcome_unknown, and nothing was killed meanwhile",
                story.key
            ));
        }
    }
    effect_rules(&notes.entries, &effects, &mut report);
    call_rules(notes, &effects, slack, &mut report);
    stream_rules(&notes.entries, &mut report);
    report
}

fn is_unknown(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failed(kind) if kind == OUTCOME_UNKNOWN)
}

fn by_key(ledger: &[Effect]) -> HashMap<&str, Vec<&Effect>> {
    let mut effects = HashMap::<&str, Vec<&Effect>>::new();
    ledger.iter().for_each(|effect| effects.entry(&effect.key).or_default().push(effect));
    effects
}

/// Collects observations by task. An id is acknowledged once, for one key.
fn stories<'a>(entries: &'a [Entry], report: &mut Report) -> BTreeMap<&'a str, TaskHistory<'a>> {
    let mut stories = BTreeMap::<&str, TaskHistory<'_>>::new();
    let mut keys = HashMap::<&str, &str>::new();
    for entry in entries {
        let Observation::Created { key, task } = &entry.saw else { continue };
        report.acknowledged += 1;
        if let Some(other) = keys.insert(key, task) {
            report
                .violations
                .push(format!("{key} was acknowledged twice, as {other} and as {task}"));
        }
        let story = TaskHistory {
            key,
            acknowledged: Some((entry.began, entry.ended)),
            ..TaskHistory::default()
        };
        if let Some(other) = stories.insert(task, story) {
            report
                .violations
                .push(format!("the id {task} was given twice, for {} and for {key}", other.key));
        }
    }
    for entry in entries {
        record(entry, &mut stories, report);
    }
    stories
}

fn record<'a>(
    entry: &'a Entry,
    stories: &mut BTreeMap<&'a str, TaskHistory<'a>>,
    report: &mut Report,
) {
    let mut of = |task: &str, change: &mut dyn FnMut(&mut TaskHistory<'a>)| {
        if let Some(story) = stories.get_mut(task) {
            change(story);
        }
    };
    match &entry.saw {
        Observation::Status { task, status } => {
            of(task, &mut |story| story.statuses.push((status, entry.began, entry.ended)))
        }
        Observation::Ended { task, outcome } => of(task, &mut |story| {
            story.outcomes.insert(outcome);
            story.statuses.push((outcome.status(), entry.began, entry.ended));
        }),
        Observation::Finally { task, outcome } => of(task, &mut |story| {
            story.finally = Some(outcome);
            story.outcomes.extend(outcome);
            story.statuses.extend(
                outcome.as_ref().map(|outcome| (outcome.status(), entry.began, entry.ended)),
            );
        }),
        Observation::Absent { task } => of(task, &mut |story| story.absent = true),
        Observation::CancelAsked { task } => of(task, &mut |story| story.cancel_asked = true),
        Observation::Listed { tasks } => {
            let once: BTreeSet<&String> = tasks.iter().collect();
            if once.len() != tasks.len() {
                report.violations.push(format!(
                    "a list of {} tasks names only {} different ones",
                    tasks.len(),
                    once.len()
                ));
            }
        }
        Observation::SessionLost { session } => report
            .violations
            .push(format!("the session {session} is gone, and no request ended it")),
        Observation::Wrong { what } => report.violations.push(what.clone()),
        Observation::Refused { .. } => report.refused += 1,
        Observation::Lost { .. } => report.lost += 1,
        Observation::Created { .. }
        | Observation::Called { .. }
        | Observation::Event { .. }
        | Observation::Gap { .. } => {}
    }
}

/// Checks that an acknowledged task stays, moves only forward, and ends as in the ledger.
fn task_rules(
    task: &str,
    story: &TaskHistory<'_>,
    effects: &HashMap<&str, Vec<&Effect>>,
    report: &mut Report,
) {
    let name = format!("{task} ({})", story.key);
    if story.absent {
        report.violations.push(format!("{name} was acknowledged, and then unknown to the broker"));
    }
    match story.finally {
        None => {
            report.violations.push(format!("{name} was acknowledged and never read at the end"))
        }
        Some(None) => report.violations.push(format!("{name} did not end")),
        Some(Some(_)) => {}
    }
    forward(&name, story, report);
    if story.outcomes.len() > 1 {
        report.violations.push(format!("the outcome of {name} changed: {:?}", story.outcomes));
    }
    let done = effects.get(story.key).map_or(&[][..], Vec::as_slice);
    match story.outcomes.first() {
        Some(Outcome::Completed(text)) => {
            report.completed += 1;
            if !done.iter().any(|effect| effect.result == *text) {
                let given: Vec<&str> = done.iter().map(|effect| effect.result.as_str()).collect();
                report
                    .violations
                    .push(format!("{name} completed with {text:?}; the backend gave {given:?}"));
            }
        }
        Some(Outcome::Failed(kind)) if kind == OUTCOME_UNKNOWN => report.unknown += 1,
        Some(Outcome::Failed(kind)) => {
            report.violations.push(format!("{name} failed with {kind}; its backend never does"))
        }
        Some(Outcome::Cancelled) => {
            report.cancelled += 1;
            if !story.cancel_asked {
                report
                    .violations
                    .push(format!("{name} was cancelled, and no request asked for it"));
            }
        }
        None => {}
    }
    if let (Some((_, acknowledged)), Some(end)) = (story.acknowledged, story.first_end()) {
        let took = end.saturating_duration_since(acknowledged);
        if report.slowest.as_ref().is_none_or(|(slowest, _)| took > *slowest) {
            report.slowest = Some((took, task.to_owned()));
        }
    }
}

fn forward(name: &str, story: &TaskHistory<'_>, report: &mut Report) {
    let ends: BTreeSet<&str> = story
        .statuses
        .iter()
        .map(|(status, ..)| *status)
        .filter(|status| is_over(status))
        .collect();
    if ends.len() > 1 {
        report.violations.push(format!("{name} ended in several ways: {ends:?}"));
    }
    let Some(first_end) = story.first_end() else { return };
    if let Some((status, ..)) = story
        .statuses
        .iter()
        .find(|(status, requested, _)| !is_over(status) && *requested > first_end)
    {
        report.violations.push(format!("{name} was over and then {status} again"));
    }
}

/// Checks that each effect was requested, was not refused, and happened once.
fn effect_rules(entries: &[Entry], effects: &HashMap<&str, Vec<&Effect>>, report: &mut Report) {
    let mut refused = BTreeSet::new();
    let mut requested = BTreeSet::new();
    for entry in entries {
        match &entry.saw {
            Observation::Created { key, .. }
            | Observation::Lost { key }
            | Observation::Called { key, .. } => requested.insert(key.as_str()),
            Observation::Refused { key, .. } => refused.insert(key.as_str()),
            _ => continue,
        };
    }
    for (key, done) in effects {
        if done.len() > 1 && done.iter().any(|effect| effect.tool != REPEATABLE) {
            report.violations.push(format!("the effect of {key} was done {} times", done.len()));
        }
        if refused.contains(key) {
            report.violations.push(format!("{key} was refused, and its effect was done"));
        } else if !requested.contains(key) {
            report.violations.push(format!("no request asked for the effect of {key}"));
        }
    }
}

/// Checks plain calls: an answer is the ledger's, and a refusal had no effect. Only a fault leaves
/// a call without an answer.
fn call_rules(
    notes: &HistoryLog,
    effects: &HashMap<&str, Vec<&Effect>>,
    slack: Duration,
    report: &mut Report,
) {
    for entry in &notes.entries {
        let Observation::Called { key, outcome } = &entry.saw else { continue };
        let done = effects.get(key.as_str()).map_or(&[][..], Vec::as_slice);
        match outcome {
            Some(Outcome::Completed(text)) => {
                report.calls_answered += 1;
                if !done.iter().any(|effect| effect.result == *text) {
                    report.violations.push(format!(
                        "the call {key} was answered with {text:?}, which the backend did not say"
                    ));
                }
            }
            Some(Outcome::Failed(kind)) if kind != OUTCOME_UNKNOWN => {
                report.calls_refused += 1;
                if !done.is_empty() {
                    report.violations.push(format!(
                        "the call {key} was refused with {kind}, and its effect was done"
                    ));
                }
            }
            _ => {
                report.calls_unanswered += 1;
                if !lost_between(notes, entry.began, entry.ended, slack) {
                    report.violations.push(format!("the call {key} got no answer ({outcome:?}), and nothing was killed meanwhile"));
                }
            }
        }
    }
}

/// Returns whether a process died (or seemed to) between the begin of the effect and the time its
/// end should have been stored.
fn task_explained(
    story: &TaskHistory<'_>,
    effects: &HashMap<&str, Vec<&Effect>>,
    notes: &HistoryLog,
    slack: Duration,
) -> bool {
    let Some((requested, _)) = story.acknowledged else { return false };
    let done = effects.get(story.key).map_or(&[][..], Vec::as_slice);
    let from = done.iter().map(|effect| effect.began).min().unwrap_or(requested);
    let ended = done.iter().map(|effect| effect.ended).max().flatten();
    // An unrecorded answer counts as being as late as the first sight of the task's end.
    let to = ended.or_else(|| story.first_end()).unwrap_or(from);
    lost_between(notes, from, to, slack)
}

/// Returns whether a fault explains a loss in this time. An outage of the database delays
/// everything that would have been stored in it.
fn lost_between(notes: &HistoryLog, from: Instant, to: Instant, slack: Duration) -> bool {
    let overlaps = |from: Instant, to: Instant, broke: &super::FaultInterval| {
        broke.from <= to + slack && broke.to + slack >= from
    };
    let held_up = notes
        .faults
        .iter()
        .filter(|broke| broke.fault == InjectedFault::PostgresAway && overlaps(from, to, broke));
    let to = held_up.map(|broke| broke.to).fold(to, Instant::max);
    notes
        .faults
        .iter()
        .any(|broke| broke.fault.loses_calls() && broke.from <= to + slack && broke.to >= from)
}

/// Checks that no event comes twice, and none is missing without a report.
fn stream_rules(entries: &[Entry], report: &mut Report) {
    let mut seen = BTreeSet::<(&str, &str)>::new();
    let mut at = HashMap::<&str, u64>::new();
    let mut gap_reported = BTreeSet::<&str>::new();
    for entry in entries {
        match &entry.saw {
            Observation::Gap { stream } => {
                report.gaps += 1;
                gap_reported.insert(stream);
            }
            Observation::Event { stream, id, number } => {
                report.events += 1;
                if !seen.insert((stream, id)) {
                    report.violations.push(format!("the event {id} came twice on {stream}"));
                }
                let Some(number) = *number else { continue };
                let before = at.insert(stream, number).unwrap_or(0);
                let reported = gap_reported.remove(stream.as_str());
                if number <= before {
                    report
                        .violations
                        .push(format!("on {stream} event {number} came after {before}"));
                } else if number > before + 1 && !reported {
                    report.violations.push(format!(
                        "on {stream} the events {} to {} are missing, and no gap was reported",
                        before + 1,
                        number - 1
                    ));
                }
            }
            _ => {}
        }
    }
}
