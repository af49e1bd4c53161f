//! The side of a request that a link knows: who asks a backend for a client. A call of a session is one, the run of a task another.
//!
//! A connection keeps it for as long as the answer is awaited. Answers do not come this way: they end by wire id.

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

    /// Something of the request moved: its clock starts again.
    fn touch(&self);

    /// The client, as a backend of 2026-07-28 is told with each request.
    fn identity(&self) -> ClientIdentity<'_>;

    /// Headers of the client's request that the backend gets as they came.
    fn forwarded_headers(&self) -> HeaderMap;

    /// Sends progress to the client. `token`: where our token stands, to be replaced by the client's.
    fn progress(&self, message: &Message, token: Span, value: f64);

    /// True for the run of a task: its client hears of it in the record, and not on the stream of a request.
    fn is_task(&self) -> bool;

    /// The answer to its request says that the backend made the task that was asked for (MCP 2025-11-25, Tasks).
    fn task_created(&self, link: &Arc<Link>, connection: &Connection, backend_task: &str);

    /// A backend of 2026-07-28 has made a task of the request. Resolves when it is known who follows that task.
    fn created_task<'a>(
        &'a self,
        link: &'a Arc<Link>,
        connection: &'a Arc<Connection>,
        task: &'a BackendTask,
    ) -> Pin<Box<dyn Future<Output = TaskFollower> + Send + 'a>>;

    /// The backend says that the task it made of the request changed.
    fn backend_task_changed(&self);
}

/// What carries a request.
#[derive(Debug, Clone)]
pub struct SentRequest {
    pub link: Arc<Link>,
    pub connection: Arc<Connection>,
    pub wire_id: u64,
}

/// Who follows the task that a backend made of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskFollower {
    /// The link: the request is answered with the task's outcome.
    Link,
    /// A task of the broker that has taken the call over: nobody waits for more of the call itself.
    TakenOver,
    /// The asker, which is a task itself: the answer is the backend's task.
    Asker,
}

/// A client in the terms of a request of 2026-07-28.
#[derive(Debug)]
pub struct ClientIdentity<'a> {
    /// What it declared.
    pub capabilities: &'a [u8],
    /// `None`: requests of several clients go this way, and the broker names itself.
    pub info: Option<Bytes>,
    pub log_level: Option<LogLevel>,
}

/// A client's `clientInfo`.
pub fn client_info(name: &str, version: &str) -> Bytes {
    Bytes::from(format!("{{\"name\":{},\"version\":{}}}", json::quote(name), json::quote(version)))
}
