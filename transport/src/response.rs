//! Response to a request that the broker sent.

use std::sync::Arc;

use http::{HeaderMap, StatusCode, Version, response::Parts};

/// A response with a shared head. Most responses of a server have the same head, and they share it
/// without a copy ([`crate::head_cache`]). Only the body has its length: over HTTP/1.1 without TLS
/// the head has no `Content-Length`.
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
