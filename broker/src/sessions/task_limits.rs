//! The refusal for a tenant whose tasks have reached a limit. A client gets it for a call that would
//! become a task, and for its answer to a question of a task. A backend gets it for its question.

use protocol::error::{ErrorKind, Refusal};
use records::TaskLimit;

/// Returns the refusal for a tenant that has reached this limit.
pub(super) fn task_limit_refusal(limit: TaskLimit, settings: &config::TaskConfig) -> Refusal {
    let text = match limit {
        TaskLimit::Running => format!(
            "the tenant has {} tasks running, which is its limit",
            settings.running_per_tenant
        ),
        TaskLimit::Stored => {
            format!("the tenant has {} tasks, which is its limit", settings.stored_per_tenant)
        }
        TaskLimit::Bytes => format!(
            "the tenant's tasks have {} bytes, which is its limit",
            settings.bytes_per_tenant
        ),
    };
    Refusal::new(ErrorKind::TaskLimit, text)
}
