//! Metrics of tasks.

use prometheus::{IntCounterVec, IntGaugeVec};
use records::TaskStatus;

use super::{MetricRegistrar, Metrics};

pub(super) struct TaskMetrics {
    stored: IntGaugeVec,
    transitions: IntCounterVec,
    promotions: IntCounterVec,
}

/// Outcome of the promotion of a running call to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromotionOutcome {
    Made,
    /// The task could not be stored, or there are too many: the call continues as a call.
    Refused,
}

impl TaskMetrics {
    pub(super) fn new(declare: &MetricRegistrar<'_>) -> Self {
        let statuses = TaskStatus::ALL.map(TaskStatus::name);
        Self {
            stored: declare.closed_gauges(
                "mcp_tasks",
                "Tasks known to the broker, by last status.",
                [("status", &statuses)],
            ),
            transitions: declare.closed_counters(
                "mcp_task_transitions_total",
                "Changes of a task's status, by the new one.",
                [("to", &statuses)],
            ),
            promotions: declare.closed_counters(
                "mcp_task_promotions_total",
                "Running calls that should become tasks, by outcome.",
                [("outcome", &["made", "refused"])],
            ),
        }
    }
}

impl Metrics {
    pub fn task_transition(&self, to: &'static str) {
        self.tasks.transitions.with_label_values(&[to]).inc();
    }

    /// Sets the number of stored tasks with a status.
    pub fn stored_tasks(&self, status: TaskStatus, count: u64) {
        self.tasks
            .stored
            .with_label_values(&[status.name()])
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Counts the promotion of a running call.
    pub fn promoted(&self, promotion: PromotionOutcome) {
        let label = match promotion {
            PromotionOutcome::Made => "made",
            PromotionOutcome::Refused => "refused",
        };
        self.tasks.promotions.with_label_values(&[label]).inc();
    }
}
