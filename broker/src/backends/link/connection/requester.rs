//! The traits by which a connection reaches its users.
//!
//! - An [`Inbound`] receives messages of the backend: sessions, calls and runs of tasks.
//! - A [`Requester`] is an [`Inbound`] that sends requests: calls and runs of tasks.
//!
//! A connection keeps the requester until the answer has come. The answer itself goes to the waiter
//! of its wire id, and to no trait.

use std::{fmt, pin::Pin, sync::Arc, time::Instant};

use bytes::Bytes;
use http::HeaderMap;
use protocol::{
    envelope::Message,
    error::Refusal,
    json::{self, Span},
};
use rules::{event_log::EventKind, log_level::LogLevel, tasks::BackendTask};

use super::Connection;
use crate::backends::link::era::Era;

/// Receives messages of a backend that are not answers. Sessions, calls and runs of tasks implement
/// it.
pub trait Inbound: fmt::Debug + Send + Sync {
    /// Sends a request of the backend to the client. The answer goes back over `connection`, or an
    /// `Err` does.
    fn need_input(
        self: Arc<Self>,
        connection: &Arc<Connection>,
        question: &Message,
    ) -> Result<(), Refusal>;

    /// Withdraws a question, because its answer is not needed any more. `number` is the one that
    /// the connection assigned.
    fn withdraw(&self, number: u64, why: &str);

    /// Sends a notification of the backend to the client.
    fn receive(&self, kind: EventKind, message: &Message);

    /// Reports to the client that an elicitation is complete. Returns false if the client was not
    /// asked for it.
    fn complete_elicitation(&self, id: &str, message: &Message) -> bool;

    /// Returns the lowest level of the log messages that the client wants.
    fn log_level(&self) -> Option<LogLevel>;

    /// Returns the era of the client.
    fn client_era(&self) -> Era;
}

/// Sends requests to a backend on behalf of one client.
pub trait Requester: Inbound {
    /// Notes which connection and wire id carry the request, so that a cancellation finds it.
    fn sent_as(&self, sent: SentRequest, at: Instant);

    /// Restarts the idle clock of the request, because the backend sent something for it.
    fn touch(&self);

    /// Returns the client, as each request of 2026-07-28 names it to the backend.
    fn identity(&self) -> ClientIdentity<'_>;

    /// Returns the headers of the client's request that the broker forwards unchanged.
    fn forwarded_headers(&self) -> HeaderMap;

    /// Sends progress to the client, with the client's token instead of the broker's
    /// (`token`).
    fn progress(&self, message: &Message, token: Span, value: f64);

    /// Returns true for the run of a task. Its client gets notifications through the record of the
    /// task, not on the stream of a request.
    fn is_task(&self) -> bool;

    /// Stores the id of the task that the backend created, as the request demanded (MCP 2025-11-25,
    /// Tasks).
    fn task_created(&self, connection: &Connection, backend_task: &str);

    /// Takes the task that a backend of 2026-07-28 created for the request. Resolves when it is
    /// known which side follows that task.
    fn created_task<'a>(
        &'a self,
        connection: &'a Arc<Connection>,
        task: &'a BackendTask,
    ) -> Pin<Box<dyn Future<Output = TaskFollower> + Send + 'a>>;

    /// Notes that the backend changed the task that it created for the request.
    fn backend_task_changed(&self);
}

/// A request that was sent, by the connection and wire id that carry it.
#[derive(Debug, Clone)]
pub struct SentRequest {
    pub connection: Arc<Connection>,
    pub wire_id: u64,
}

/// The side that follows a task that a backend created for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskFollower {
    /// The link follows it. The outcome of the task is the answer to the request.
    Link,
    /// A task of the broker has taken over the call. The call waits for nothing more.
    TakenOver,
    /// The requester is a task and follows it. The backend's task is the answer.
    Requester,
}

/// The client, as a request of 2026-07-28 declares it.
#[derive(Debug)]
pub struct ClientIdentity<'a> {
    /// The capabilities that the client declared.
    pub capabilities: &'a [u8],
    /// `None` if requests of several clients share the connection. The broker names itself then.
    pub info: Option<Bytes>,
    pub log_level: Option<LogLevel>,
}

/// Returns the `clientInfo` of a client.
pub fn client_info(name: &str, version: &str) -> Bytes {
    Bytes::from(format!("{{\"name\":{},\"version\":{}}}", json::quote(name), json::quote(version)))
}
