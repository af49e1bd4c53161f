//! What came in on a wire, known to everything that is done with it: what its requests are named by, and the context its
//! headers bring. Where it becomes a request, [`request`](super::request) goes on.

use std::{fmt, net::IpAddr};

use http::{HeaderMap, HeaderName};

pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
pub const BAGGAGE: HeaderName = HeaderName::from_static("baggage");

/// Names a request in the log, in errors and in the audit log.
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

/// The name of the requests in what came in, and the context its headers bring.
#[derive(Debug, Clone)]
struct InboundContext {
    name: RequestName,
    /// `traceparent`, `tracestate`, `baggage`; kept as they are, and only where traces are on.
    /// Boxed: nearly always there are none, and it is moved about with each turn of whoever works on it.
    headers: Option<Box<HeaderMap>>,
    /// Where it came from, as far as the wire says so.
    client: Option<IpAddr>,
}

tokio::task_local! {
    static ARRIVAL: InboundContext;
}

/// Of a request's headers those that carry context. `None` without a `traceparent`, or where nobody wants to know it.
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

/// Serves what came in, with the context its headers brought.
pub async fn arriving<F: Future>(
    headers: Option<HeaderMap>,
    client: Option<IpAddr>,
    work: F,
) -> F::Output {
    ARRIVAL
        .scope(
            InboundContext { name: RequestName::random(), headers: headers.map(Box::new), client },
            work,
        )
        .await
}

pub fn arrival_name() -> Option<RequestName> {
    ARRIVAL.try_with(|arrival| arrival.name).ok()
}

/// The address of the client that sent it.
pub fn arrival_client() -> Option<IpAddr> {
    ARRIVAL.try_with(|arrival| arrival.client).ok().flatten()
}

pub(super) fn with_arrival_headers<R>(read: impl FnOnce(&HeaderMap) -> Option<R>) -> Option<R> {
    ARRIVAL.try_with(|arrival| arrival.headers.as_deref().and_then(read)).ok().flatten()
}
