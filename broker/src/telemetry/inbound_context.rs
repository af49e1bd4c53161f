//! Context of received messages, available to all code that handles them: the name of the requests,
//! and the trace context of their headers. The module [`request`](super::request) covers the
//! requests themselves.

use std::{fmt, net::IpAddr};

use http::{HeaderMap, HeaderName};

pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
pub const BAGGAGE: HeaderName = HeaderName::from_static("baggage");

/// Name of a request in the log, in errors and in the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestName(pub u64);

impl RequestName {
    pub fn random() -> Self {
        Self(rand::random())
    }

    pub fn parse(text: &str) -> Option<Self> {
        u64::from_str_radix(text, 16).ok().map(Self)
    }
}

impl fmt::Display for RequestName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

/// Name of the received requests, and the trace context of their headers.
#[derive(Debug, Clone)]
struct InboundContext {
    name: RequestName,
    /// `traceparent`, `tracestate`, `baggage` as received. `None` if traces are off. Boxed: nearly
    /// always absent, and moved with each poll of the task.
    headers: Option<Box<HeaderMap>>,
    /// Address of the client, if the wire has one.
    client: Option<IpAddr>,
}

tokio::task_local! {
    static ARRIVAL: InboundContext;
}

/// Returns the headers with trace context. Returns `None` without a `traceparent`, or if traces are
/// off.
pub fn header_context(headers: &HeaderMap, traced: bool) -> Option<HeaderMap> {
    if !traced || !headers.contains_key(TRACEPARENT) {
        return None;
    }
    let mut kept = HeaderMap::with_capacity(3);
    for name in [TRACEPARENT, TRACESTATE, BAGGAGE] {
        for value in headers.get_all(&name) {
            kept.append(name.clone(), value.clone());
        }
    }
    Some(kept)
}

/// Returns `work` with the context of the received messages that this task works for.
pub fn in_inbound_context<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let context = ARRIVAL.try_with(Clone::clone).ok();
    async move {
        match context {
            Some(context) => ARRIVAL.scope(context, work).await,
            None => work.await,
        }
    }
}

/// Returns `work` for received messages, with the context of their headers.
pub fn with_inbound_context<F: Future>(
    headers: Option<HeaderMap>,
    client: Option<IpAddr>,
    work: F,
) -> impl Future<Output = F::Output> {
    let context =
        InboundContext { name: RequestName::random(), headers: headers.map(Box::new), client };
    ARRIVAL.scope(context, work)
}

pub fn inbound_request_name() -> Option<RequestName> {
    ARRIVAL.try_with(|arrival| arrival.name).ok()
}

/// Returns the address of the client that sent the current message.
pub fn inbound_client() -> Option<IpAddr> {
    ARRIVAL.try_with(|arrival| arrival.client).ok().flatten()
}

pub(super) fn with_inbound_headers<R>(read: impl FnOnce(&HeaderMap) -> Option<R>) -> Option<R> {
    ARRIVAL.try_with(|arrival| arrival.headers.as_deref().and_then(read)).ok().flatten()
}
