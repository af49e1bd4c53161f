//! The route of a client's answer to the backend that requested the input.

use std::sync::Arc;

use bytes::Bytes;
use protocol::ids::RequestId;
use rules::tasks;

use crate::{
    backends::link::connection::Connection,
    sessions::session::{Session, questions},
};

/// Route of the client's answer to the backend.
#[derive(Debug, Clone)]
pub(super) enum ReplyRoute {
    Backend {
        connection: Arc<Connection>,
        id: RequestId,
    },
    /// The answer goes to a question of the session whose call became the task.
    Session {
        session: Arc<Session>,
        number: u64,
    },
}

impl ReplyRoute {
    pub(super) fn id(&self) -> RequestId {
        match self {
            Self::Backend { id, .. } => id.clone(),
            Self::Session { number, .. } => RequestId::from_u64(*number),
        }
    }

    pub(super) fn is_question(&self, wanted: u64) -> bool {
        matches!(self, Self::Session { number, .. } if *number == wanted)
    }

    /// Sends the answer. It must already carry [`ReplyRoute::id`].
    pub(super) fn send(&self, answer: Bytes) {
        match self {
            Self::Backend { connection, .. } => connection.send_later(answer),
            Self::Session { session, .. } => {
                if let Some(answer) = tasks::decoded(answer) {
                    questions::handle_answer(session, &answer);
                }
            }
        }
    }
}
