//! A response to a request of the broker's own.

use std::sync::Arc;

use http::{HeaderMap, StatusCode, Version, response::Parts};

/// Its head is shared with all that say the same, as the responses of a server mostly do ([`crate::head_cache`]): nothing of it is
/// copied for each. How long the body is, the body alone knows; over HTTP/1.1 without TLS no header says it.
#[derive(Debug)]
pub struct HttpResponse<B> {
    head: Arc<Parts>,
    body: B,
}

impl<B> HttpResponse<B> {
    pub(crate) fn new(head: Arc<Parts>, body: B) -> Self {
        Self { head, body }
    }

    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    pub fn version(&self) -> Version {
        self.head.version
    }

    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    pub fn into_body(self) -> B {
        self.body
    }

    pub fn into_parts(self) -> (Parts, B) {
        (Arc::unwrap_or_clone(self.head), self.body)
    }

    pub(crate) fn map<C>(self, change: impl FnOnce(B) -> C) -> HttpResponse<C> {
        HttpResponse { head: self.head, body: change(self.body) }
    }
}
