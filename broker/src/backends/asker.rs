//! Whoever asks a backend something on behalf of a client: a call of a session, or a task that runs by itself.
//!
//! A link needs little of them: whose messages they are, and where the way back begins. Kept by a connection for as long
//! as the answer is awaited.

use std::{sync::Arc, time::Instant};

use super::link::{Link, connection::Connection};
use crate::sessions::{call::Call, session::Session, tasks::run::TaskRun};

#[derive(Debug, Clone)]
pub enum Asker {
    Call(Arc<Call>),
    Task(Arc<TaskRun>),
}

/// What carries a request.
#[derive(Debug, Clone)]
pub struct SentRequest {
    pub link: Arc<Link>,
    pub connection: Arc<Connection>,
    pub wire_id: u64,
}

impl Asker {
    /// Notes which connection and wire id carry the request, so that a cancellation finds it.
    pub fn sent_as(&self, carried: SentRequest, at: Instant) {
        match self {
            Self::Call(call) => call.sent_as(carried, at),
            Self::Task(run) => run.sent_as(carried),
        }
    }

    /// Whether what comes back may be for this session.
    pub fn belongs_to(&self, session: &Arc<Session>) -> bool {
        match self {
            Self::Call(call) => Arc::ptr_eq(&call.session, session),
            Self::Task(run) => run.record.session == session.key,
        }
    }

    pub fn is_task(&self) -> bool {
        matches!(self, Self::Task(_))
    }
}
