//! What the backend has of one call: the link that carries it, and the last request over it.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::backends::link::{Link, connection::requester::SentRequest};

/// The link of a call and its last request.
#[derive(Debug, Default)]
pub(super) struct SentCall {
    link: Mutex<Option<Arc<Link>>>,
    last: Mutex<LastRequest>,
}

#[derive(Debug, Default)]
struct LastRequest {
    /// The last request, unless the backend certainly did not process it.
    request: Option<SentRequest>,
    /// True if the backend got the cancellation of that request.
    is_cancelled: bool,
}

impl SentCall {
    pub(super) fn set_link(&self, link: Arc<Link>) {
        *self.link.lock() = Some(link);
    }

    pub(super) fn link(&self) -> Option<Arc<Link>> {
        self.link.lock().clone()
    }

    pub(super) fn record(&self, request: SentRequest) {
        *self.last.lock() = LastRequest { request: Some(request), is_cancelled: false };
    }

    /// Removes the last request, which the backend did not process.
    pub(super) fn forget(&self) {
        self.last.lock().request = None;
    }

    /// Returns whether the backend may have processed the request.
    pub(super) fn was_sent(&self) -> bool {
        self.last.lock().request.is_some()
    }

    /// Returns the link that carries the request, if the request was sent.
    pub(super) fn link_of_request(&self) -> Option<Arc<Link>> {
        if self.was_sent() { self.link() } else { None }
    }

    /// Returns the last request once, for its cancellation.
    pub(super) fn take_for_cancellation(&self) -> Option<SentRequest> {
        let mut last = self.last.lock();
        let LastRequest { request: Some(request), is_cancelled: false } = &*last else {
            return None;
        };
        let request = request.clone();
        last.is_cancelled = true;
        Some(request)
    }
}
