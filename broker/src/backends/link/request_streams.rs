//! Streams of single requests to a QUIC backend, if the backend takes them (docs/transports.md,
//! QUIC). A lost packet delays only one of them.
//!
//! A request that finds no free stream uses the control stream. All requests use it before its first
//! answer, because that proves that the backend has read the frames that must come first.

use std::sync::atomic::{AtomicBool, Ordering};

use protocol::{
    envelope::{Kind, Message},
    json,
};
use transport::quic::{QuicClient, RequestStream};

/// Member of `_meta` in the answer to `initialize` or `server/discover`. A server sets it to take
/// requests on streams of their own.
pub(crate) const STREAMS: &str = "dev.mcp-broker/streams";

/// The request streams of one connection.
#[derive(Debug)]
pub(super) struct RequestStreams {
    client: QuicClient,
    /// Setting of the operator. `None`: the backend decides.
    configured: Option<bool>,
    agreed: AtomicBool,
    /// Set when the backend has read the frames that must precede the first request.
    ready: AtomicBool,
}

impl RequestStreams {
    pub(super) fn new(client: QuicClient, configured: Option<bool>) -> Self {
        Self { client, configured, agreed: AtomicBool::new(false), ready: AtomicBool::new(false) }
    }

    /// Enables or disables the streams, by the first answer of the backend.
    pub(super) fn agree(&self, answer: &Message) {
        let agreed = self.configured.unwrap_or_else(|| offers_streams(answer));
        self.ready.store(false, Ordering::Relaxed);
        self.agreed.store(agreed, Ordering::Relaxed);
    }

    pub(super) fn are_agreed(&self) -> bool {
        self.agreed.load(Ordering::Relaxed)
    }

    /// Notes that a request was answered over the control stream.
    pub(super) fn record_ready(&self) {
        if self.are_agreed() {
            self.ready.store(true, Ordering::Relaxed);
        }
    }

    /// Opens a stream for a request. `None`: the request uses the control stream.
    pub(super) fn try_open(&self) -> Option<RequestStream> {
        self.ready.load(Ordering::Relaxed).then(|| self.client.try_open_stream()).flatten()
    }
}

fn offers_streams(answer: &Message) -> bool {
    let result =
        answer.bytes(answer.result).filter(|_| answer.kind == Kind::Result).unwrap_or_default();
    let document = json::Document::parse(result, &json::Limits::with_bytes_max(result.len()));
    document.is_ok_and(|document| {
        document.root().path(&["_meta", STREAMS]).is_some_and(|value| value.raw() == b"true")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: &str) -> Message {
        Message::decode(
            format!(r#"{{"jsonrpc":"2.0","id":1,{body}}}"#).into(),
            &json::Limits::default(),
        )
        .unwrap()
    }

    #[test]
    fn only_a_backend_that_offers_streams_gets_streams() {
        assert!(offers_streams(&answer(r#""result":{"_meta":{"dev.mcp-broker/streams":true}}"#)));
        for other in [
            r#""result":{}"#,
            r#""result":{"_meta":{"dev.mcp-broker/streams":"true"}}"#,
            r#""result":{"_meta":{"dev.mcp-broker/streams":false}}"#,
            r#""error":{"code":1,"message":"m"}"#,
        ] {
            assert!(!offers_streams(&answer(other)), "{other}");
        }
    }
}
