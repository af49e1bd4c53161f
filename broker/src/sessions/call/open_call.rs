//! Implementation of the session's view of a call.

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use protocol::{error::Refusal, method::Method};

use super::{Call, TaskHandoff};
use crate::{
    sessions::{session::OpenCall, stream::EventStream},
    telemetry::request::RequestTelemetry,
};

impl OpenCall for Call {
    fn method(&self) -> Method {
        self.method
    }

    fn stream(&self) -> &Arc<EventStream> {
        &self.stream
    }

    fn observed(&self) -> Option<&Arc<RequestTelemetry>> {
        self.observed.as_ref()
    }

    fn recheck_access(&self, check_name: &str) -> Result<(), Refusal> {
        let Some(admitted) = &self.admitted else { return Ok(()) };
        self.session.recheck_access(&self.session.subject(), admitted, check_name)
    }

    fn cancel(&self, reason: Option<Bytes>) {
        self.interrupt.cancel(reason);
        // The backend gets the cancellation now, because the end of a session closes the link. If
        // the request is being sent at this moment, the call sends it when it settles.
        if !self.settled.load(Ordering::Acquire) {
            self.send_cancelled();
        }
    }

    fn is_cancelled(&self) -> bool {
        self.interrupt.is_cancelled()
    }

    fn question_opened(&self) {
        self.clock.question_opened();
    }

    fn question_closed(&self) {
        self.clock.question_closed();
    }

    fn take_slot_release(&self) -> bool {
        self.task_handoff.as_ref().is_none_or(TaskHandoff::take_slot_release)
    }
}
