//! A call that is with a backend, as its session knows it.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use protocol::method::Method;

use crate::{sessions::stream::EventStream, telemetry::request::RequestTelemetry};

/// Kept by the session for as long as its client waits for the answer.
pub trait OpenCall: fmt::Debug + Send + Sync {
    fn method(&self) -> Method;

    /// The way back to the client.
    fn stream(&self) -> &Arc<EventStream>;

    /// As the log, its trace and the audit log know it.
    fn observed(&self) -> Option<&Arc<RequestTelemetry>>;

    /// The client wants no answer any more.
    fn cancel(&self, reason: Option<Bytes>);

    fn is_cancelled(&self) -> bool;

    /// Its backend asks the client something: its clock stands still.
    fn question_opened(&self);

    /// That question is over.
    fn question_closed(&self);

    /// True once, for who gives back its place among the requests that wait for an answer.
    fn take_slot_release(&self) -> bool;
}
