//! Calls as sessions know them.

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use protocol::method::Method;

use super::{Call, TaskHandoff};
use crate::{
    backends::asker::Asker as _,
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

    fn cancel(&self, reason: Option<Bytes>) {
        *self.cancel_reason.lock() = reason;
        self.interrupt.cancel();
        // At once, so that it is on its way before a session's end closes the link. What is only being sent now is told of
        // when the call settles.
        if !self.settled.load(Ordering::Acquire) {
            self.send_cancelled();
        }
    }

    fn is_cancelled(&self) -> bool {
        self.interrupt.is_cancelled()
    }

    fn question_opened(&self) {
        self.open_questions.fetch_add(1, Ordering::Relaxed);
    }

    fn question_closed(&self) {
        self.open_questions.fetch_sub(1, Ordering::Relaxed);
        self.touch();
    }

    fn take_slot_release(&self) -> bool {
        self.task_handoff.as_ref().is_none_or(TaskHandoff::take_slot_release)
    }
}
