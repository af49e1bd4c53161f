//! A call without an answer yet, as its session sees it. Calls implement the trait.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use protocol::{error::Refusal, method::Method};

use crate::{sessions::stream::EventStream, telemetry::request::RequestTelemetry};

/// A call in flight. The session keeps it until the answer is on its way.
pub trait OpenCall: fmt::Debug + Send + Sync {
    fn method(&self) -> Method;

    /// Returns the stream that the answer goes to.
    fn stream(&self) -> &Arc<EventStream>;

    /// Returns the telemetry of the request, if it has any.
    fn observed(&self) -> Option<&Arc<RequestTelemetry>>;

    /// Refuses the call if the access policy would refuse it now, by the latest credential.
    /// `check_name` is the name of this check, which a test can disable.
    fn recheck_access(&self, check_name: &str) -> Result<(), Refusal>;

    /// Cancels the call, because its client does not want an answer any more.
    fn cancel(&self, reason: Option<Bytes>);

    fn is_cancelled(&self) -> bool;

    /// Stops the clock of the call, because its backend waits for input of the client.
    fn question_opened(&self);

    /// Starts the clock again, because the question is over.
    fn question_closed(&self);

    /// Returns true once: the caller then gives back the call's permit among the open requests.
    fn take_slot_release(&self) -> bool;
}
