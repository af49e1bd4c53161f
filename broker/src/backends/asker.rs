//! The sender of a request, as a link knows it. Calls of sessions and runs of tasks implement the trait.
//!
//! A connection keeps the sender until the answer has come. Answers do not pass the trait: they end by wire id.

use std::{pin::Pin, sync::Arc, time::Instant};

use bytes::Bytes;
use http::HeaderMap;
use protocol::{
    envelope::Message,
    json::{self, Span},
};

use super::{
    inbound::Inbound,
    link::{Link, connection::Connection},
};
use crate::rules::{log_level::LogLevel, tasks::BackendTask};

/// Sends requests to a backend on behalf of one client.
pub trait Asker: Inbound {
    /// Notes which connection and wire id carry the request, so that a cancellation finds it.
    fn sent_as(&self, sent: SentRequest, at: Instant);

    /// Starts the clock of the request again, because something of it moved.
    fn touch(&self);

    /// Returns the client, as each request of 2026-07-28 names it to the backend.
    fn identity(&self) -> ClientIdentity<'_>;

    /// Returns the headers of the client's request that the backend gets as they came.
    fn forwarded_headers(&self) -> HeaderMap;

    /// Sends progress to the client, with the client's token in the place of ours (`token`).
    fn progress(&self, message: &Message, token: Span, value: f64);

    /// True for the run of a task. Its client hears of it in the record, and not on the stream of a request.
    fn is_task(&self) -> bool;

    /// Takes the id of the task that the backend made, as the request asked for (MCP 2025-11-25, Tasks).
    fn task_created(&self, link: &Arc<Link>, connection: &Connection, backend_task: &str);

    /// Takes the task that a backend of 2026-07-28 made of the request. Resolves when it is known who follows that task.
    fn created_task<'a>(
        &'a self,
        link: &'a Arc<Link>,
        connection: &'a Arc<Connection>,
        task: &'a BackendTask,
    ) -> Pin<Box<dyn Future<Output = TaskFollower> + Send + 'a>>;

    /// Notes that the backend changed the task that it made of the request.
    fn backend_task_changed(&self);
}

/// A request that was sent, by the connection and wire id that carry it.
#[derive(Debug, Clone)]
pub struct SentRequest {
    pub link: Arc<Link>,
    pub connection: Arc<Connection>,
    pub wire_id: u64,
}

/// The one that follows the task that a backend made of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskFollower {
    /// The link follows it. The task's outcome is the answer to the request.
    Link,
    /// A task of the broker has taken the call over. The call waits for nothing more.
    TakenOver,
    /// The asker is a task and follows it. The backend's task is the answer.
    Asker,
}

/// What a request of 2026-07-28 says of its client.
#[derive(Debug)]
pub struct ClientIdentity<'a> {
    /// The capabilities that the client declared.
    pub capabilities: &'a [u8],
    /// `None` where requests of several clients go the same way. The broker names itself then.
    pub info: Option<Bytes>,
    pub log_level: Option<LogLevel>,
}

/// Returns a client's `clientInfo`.
pub fn client_info(name: &str, version: &str) -> Bytes {
    Bytes::from(format!("{{\"name\":{},\"version\":{}}}", json::quote(name), json::quote(version)))
}
