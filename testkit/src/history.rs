//! Observations of clients during faults, and the check whether a broker that keeps its promises
//! could have caused them.
//!
//! Clients note each operation with the time it began: it succeeded, it was refused, or its outcome
//! is unknown ([`Observation`]). The code that causes a fault notes it too ([`InjectedFault`]).
//! [`History::check`] then compares with the backend's ledger. The check does not depend on how the
//! broker works, only on the meaning of an acknowledgement.

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

/// Kind of an error that leaves open whether the call was carried out.
pub const OUTCOME_UNKNOWN: &str = "outcome_unknown";

/// Outcome of a task or a call, as its client received it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The text of its result.
    Completed(String),
    /// The kind of its error.
    Failed(String),
    Cancelled,
}

impl Outcome {
    /// Returns the status of a task that ended like this.
    pub fn status(&self) -> &'static str {
        match self {
            Self::Completed(_) => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Observation of a client from one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observation {
    /// The task that was requested with this key exists from now on.
    Created { key: String, task: String },
    /// The task does not exist and never will.
    Refused { key: String, kind: String },
    /// No answer came, or one that reports an unknown outcome.
    Lost { key: String },
    /// The answer to `tasks/get`.
    Status { task: String, status: String },
    /// The answer to `tasks/result`.
    Ended { task: String, outcome: Outcome },
    /// The broker reports that the task does not exist.
    Absent { task: String },
    /// The client cancelled the task.
    CancelAsked { task: String },
    /// One listing of all tasks.
    Listed { tasks: Vec<String> },
    /// Outcome of the task after the run; `None`: it still has not ended.
    Finally { task: String, outcome: Option<Outcome> },
    /// A plain call; `None`: no answer.
    Called { key: String, outcome: Option<Outcome> },
    /// The broker reports that an open session does not exist.
    SessionLost { session: String },
    /// Something that must never happen, in words.
    Wrong { what: String },
    /// An event with its id, and its number among the sent events if that is known.
    Event { stream: String, id: String, number: Option<u64> },
    /// The broker reported that events of this stream are missing.
    Gap { stream: String },
}

/// Fault that a test caused at the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedFault {
    Kill,
    /// Stopped and continued, or cut from the database: to the others it looks dead.
    Freeze,
    PostgresAway,
    RedisAway,
    RedisFlushed,
    /// A connection of a client, of a backend or between replicas.
    ConnectionCut,
}

impl InjectedFault {
    /// Returns whether calls in flight may be lost by it.
    const fn loses_calls(self) -> bool {
        matches!(self, Self::Kill | Self::Freeze | Self::ConnectionCut)
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

/// A history, shared by all tasks that note observations.
#[derive(Debug, Clone, Default)]
pub struct History(Arc<Mutex<HistoryLog>>);

impl History {
    fn notes(&self) -> MutexGuard<'_, HistoryLog> {
        self.0.lock()
    }

    /// Notes an observation of an operation that began at this time.
    pub fn record(&self, began: Instant, saw: Observation) {
        let ended = Instant::now();
        self.notes().entries.push(Entry { began, ended, saw });
    }

    /// Notes a fault that began at this time and is over now.
    pub fn record_fault(&self, fault: InjectedFault, from: Instant) {
        let to = Instant::now();
        self.notes().faults.push(FaultInterval { fault, from, to });
    }

    /// Returns the tasks that were acknowledged, in the order of their acknowledgement.
    pub fn acknowledged(&self) -> Vec<String> {
        let notes = self.notes();
        let created = notes.entries.iter().filter_map(|entry| match &entry.saw {
            Observation::Created { task, .. } => Some(task.clone()),
            _ => None,
        });
        created.collect()
    }

    /// Returns the first calls without a result, and their errors.
    pub fn failed_calls(&self) -> Vec<String> {
        let notes = self.notes();
        let failed = notes.entries.iter().filter_map(|entry| match &entry.saw {
            Observation::Called { outcome: Some(Outcome::Completed(_)), .. } => None,
            Observation::Called { key, outcome } => Some(format!("{key}: {outcome:?}")),
            _ => None,
        });
        failed.take(rules::VIOLATIONS_SHOWN).collect()
    }

    /// Returns how many faults of this kind there were.
    pub fn faults(&self, fault: InjectedFault) -> usize {
        self.notes().faults.iter().filter(|broke| broke.fault == fault).count()
    }

    /// Compares with the ledger. `slack`: time after a fault in which its consequences may still
    /// show.
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
    pub fn assert_passed(&self) {
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
