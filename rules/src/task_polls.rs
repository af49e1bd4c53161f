//! What the answer to one `tasks/get` shows of a backend's task. Plain calls and tasks of the broker
//! follow a backend's task by this rule.

use protocol::envelope::{Kind, Message};

use crate::tasks::{BackendTask, is_unknown_task};

/// A backend's task, as the answer to one `tasks/get` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolledTask {
    /// The state of the task.
    Known(BackendTask),
    /// An error that may pass. The task continues, and is polled again.
    NotShown,
    /// The backend does not know the task.
    Unknown,
    /// Another task, or no task as MCP describes it.
    Unreadable,
}

impl PolledTask {
    /// Reads the answer about the task with this id.
    pub fn read(answer: &Message, id: &str) -> Self {
        if answer.kind == Kind::Error {
            return if is_unknown_task(answer) { Self::Unknown } else { Self::NotShown };
        }
        match answer.bytes(answer.result).and_then(BackendTask::read) {
            Some(now) if now.id == id => Self::Known(now),
            _ => Self::Unreadable,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use records::TaskStatus;

    use super::*;
    use crate::tasks::decoded;

    /// Reads an answer about the task `t` with this member.
    fn polled(member: &str) -> PolledTask {
        let frame = format!(r#"{{"jsonrpc":"2.0","id":1,{member}}}"#);
        PolledTask::read(&decoded(Bytes::from(frame)).unwrap(), "t")
    }

    #[test]
    fn br_04_the_poll_interval_is_read_under_its_new_name() {
        let known = polled(r#""result":{"taskId":"t","status":"working","pollIntervalMs":250}"#);
        let PolledTask::Known(task) = known else { panic!("{known:?}") };
        assert_eq!(task.status, TaskStatus::Working);
        assert_eq!(task.poll_interval, Some(Duration::from_millis(250)));
    }

    #[test]
    fn nb_task_01_only_a_definite_answer_ends_the_wait_for_a_task() {
        for passing in ["-32603", "-32601", "-32000"] {
            let error = format!(r#""error":{{"code":{passing},"message":"m"}}"#);
            assert_eq!(polled(&error), PolledTask::NotShown, "{passing}");
        }
        assert_eq!(polled(r#""error":{"code":-32602,"message":"m"}"#), PolledTask::Unknown);
        for other in [
            r#""result":{"taskId":"u","status":"completed","result":{}}"#,
            r#""result":{"taskId":"t","status":"zzz"}"#,
            r#""result":{}"#,
        ] {
            assert_eq!(polled(other), PolledTask::Unreadable, "{other}");
        }
    }
}
