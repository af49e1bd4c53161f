//! What clients saw while things broke, and whether a broker that keeps its word could have shown it to them.
//!
//! Clients note each operation with the time it began: it went well, it was refused, or nobody knows ([`Observation`]). Whoever
//! breaks things notes that too ([`InjectedFault`]). [`History::check`] then compares with the backend's ledger. It knows nothing
//! of how the broker works: only of what an acknowledgement is worth.

mod rules;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};

use crate::ledger::Effect;

/// The kind of an error that leaves open whether the call was carried out.
pub const OUTCOME_UNKNOWN: &str = "outcome_unknown";

/// How a task or a call ended, as its client was told.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The text of its result.
    Completed(String),
    /// The kind of its error.
    Failed(String),
    Cancelled,
}

impl Outcome {
    /// The status of a task that ended like this.
    pub fn status(&self) -> &'static str {
        match self {
            Self::Completed(_) => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What a client learnt from one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observation {
    /// The task that was asked for with this key exists from now on.
    Created { key: String, task: String },
    /// There is no such task, and there will be none.
    Refused { key: String, kind: String },
    /// No answer, or one that says that nobody knows.
    Lost { key: String },
    /// `tasks/get`.
    Status { task: String, status: String },
    /// `tasks/result`.
    Ended { task: String, outcome: Outcome },
    /// The broker says that there is no such task.
    Absent { task: String },
    /// The client asked for the task's end.
    CancelAsked { task: String },
    /// One listing of all tasks.
    Listed { tasks: Vec<String> },
    /// What the task looks like when all is over; `None`: it still has not ended.
    Finally { task: String, outcome: Option<Outcome> },
    /// A plain call; `None`: no answer.
    Called { key: String, outcome: Option<Outcome> },
    /// A session that was open is said to be none.
    SessionLost { session: String },
    /// Something that must never be seen, in words.
    Wrong { what: String },
    /// An event with its id, and its place among the events it was said with if that is known.
    Event { stream: String, id: String, number: Option<u64> },
    /// The broker said that events of this stream are missing.
    Gap { stream: String },
}

/// What was done to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedFault {
    Kill,
    /// Stopped and continued, or cut from the database: to the others it looks dead.
    Freeze,
    PostgresAway,
    RedisAway,
    RedisFlushed,
}

impl InjectedFault {
    /// Whether calls in flight may be lost by it.
    const fn loses_calls(self) -> bool {
        matches!(self, Self::Kill | Self::Freeze)
    }
}

#[derive(Debug, Clone)]
struct Entry {
    began: Instant,
    ended: Instant,
    saw: Observation,
}

#[derive(Debug, Clone, Copy)]
struct FaultInterval {
    fault: InjectedFault,
    from: Instant,
    to: Instant,
}

#[derive(Debug, Default)]
struct HistoryLog {
    entries: Vec<Entry>,
    faults: Vec<FaultInterval>,
}

/// Shared by everybody who notes.
#[derive(Debug, Clone, Default)]
pub struct History(Arc<Mutex<HistoryLog>>);

impl History {
    fn notes(&self) -> MutexGuard<'_, HistoryLog> {
        self.0.lock()
    }

    /// Notes what an operation that began then has just shown.
    pub fn saw(&self, began: Instant, saw: Observation) {
        let ended = Instant::now();
        self.notes().entries.push(Entry { began, ended, saw });
    }

    /// Notes a fault that began then and is over now.
    pub fn broke(&self, fault: InjectedFault, from: Instant) {
        let to = Instant::now();
        self.notes().faults.push(FaultInterval { fault, from, to });
    }

    /// The tasks that were acknowledged, in the order of their acknowledgement.
    pub fn acknowledged(&self) -> Vec<String> {
        let notes = self.notes();
        let created = notes.entries.iter().filter_map(|entry| match &entry.saw {
            Observation::Created { task, .. } => Some(task.clone()),
            _ => None,
        });
        created.collect()
    }

    /// The first calls without a result, and what came instead.
    pub fn failed_calls(&self) -> Vec<String> {
        let notes = self.notes();
        let failed = notes.entries.iter().filter_map(|entry| match &entry.saw {
            Observation::Called { outcome: Some(Outcome::Completed(_)), .. } => None,
            Observation::Called { key, outcome } => Some(format!("{key}: {outcome:?}")),
            _ => None,
        });
        failed.take(rules::VIOLATIONS_SHOWN).collect()
    }

    /// How many faults of this kind there were.
    pub fn faults(&self, fault: InjectedFault) -> usize {
        self.notes().faults.iter().filter(|broke| broke.fault == fault).count()
    }

    /// Compares with the ledger. `slack`: how long after a fault what it caused may still show.
    pub fn check(&self, ledger: &[Effect], slack: Duration) -> Report {
        rules::check(&self.notes(), ledger, slack)
    }
}

/// The outcome of a check.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub acknowledged: usize,
    pub refused: usize,
    pub lost: usize,
    pub completed: usize,
    /// Tasks that ended with [`OUTCOME_UNKNOWN`]; all of them explained unless there are violations.
    pub unknown: usize,
    pub cancelled: usize,
    pub calls_answered: usize,
    pub calls_refused: usize,
    pub calls_unanswered: usize,
    pub events: usize,
    pub gaps: usize,
    pub effects: usize,
    /// The longest time from an acknowledgement to the first sight of the task's end.
    pub slowest: Option<(Duration, String)>,
    pub violations: Vec<String>,
}

impl Report {
    /// Panics with the violations, if there are any.
    #[track_caller]
    pub fn assert_kept(&self) {
        assert!(self.violations.is_empty(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "tasks {} acknowledged, {} refused, {} unanswered; {} completed, {} unknown, {} cancelled; {} effects; ",
            self.acknowledged,
            self.refused,
            self.lost,
            self.completed,
            self.unknown,
            self.cancelled,
            self.effects
        )?;
        write!(
            out,
            "calls {} answered, {} refused, {} unanswered; {} events, {} gaps said; ",
            self.calls_answered, self.calls_refused, self.calls_unanswered, self.events, self.gaps
        )?;
        match &self.slowest {
            Some((time, task)) => {
                write!(out, "slowest task {:.1} s ({task}); ", time.as_secs_f64())?
            }
            None => write!(out, "no task ended; ")?,
        }
        write!(out, "{} violations", self.violations.len())?;
        self.violations
            .iter()
            .take(rules::VIOLATIONS_SHOWN)
            .try_for_each(|violation| write!(out, "\n  {violation}"))
    }
}
