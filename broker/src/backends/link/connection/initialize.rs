//! The handshake of a connection with a session.

use std::sync::Arc;

use protocol::{
    envelope::Message,
    error::ErrorKind,
    handshake::{self, InitializeResult},
    ids::RequestId,
    json::{self, Document},
    method::Method,
    version::Version,
};

use super::Connection;
use crate::backends::link::{
    Link, failure::Failure, request::WireRequest, request_streams::RequestStreams, wire::WireSender,
};

impl Connection {
    /// Performs the client's half of the handshake (MCP 2025-11-25, Lifecycle).
    pub(in crate::backends::link) async fn initialize(
        self: &Arc<Self>,
        link: &Arc<Link>,
    ) -> Result<(), Failure> {
        let wire_id = self.next_wire_id();
        let id = RequestId::from_u64(wire_id);
        let frame = handshake::initialize_request(
            &id,
            Version::LATEST_WITH_SESSIONS,
            link.declared.raw(),
            rules::endpoint_info::BROKER_INFO.as_bytes(),
            format!("{{{}}}", link.backend.mark.member()).as_bytes(),
        )
        .into();
        let request = WireRequest { is_initialize: true, ..WireRequest::new(wire_id, frame) };
        let answer = self.send_and_wait(link, request).await;
        // The outcome of a client's request is never unknown here, because none was in flight.
        let answer = answer.map_err(|failure| match failure {
            Failure::Unclear(text) => Failure::busy(text),
            failure => failure,
        })?;
        self.record_first_answer(&answer);
        if is_catalog_loop(&answer) {
            return Err(Failure::CatalogLoop);
        }
        let answer = InitializeResult::parse(&answer)
            .map_err(|error| Failure::Protocol(error.to_string()))?;
        if let WireSender::Http(http) = &self.wire {
            http.agree_on(answer.version);
        }
        let _set_once = self.negotiated.set(Arc::new(answer));
        let initialized = handshake::notification(Method::Initialized, None);
        match &self.wire {
            WireSender::Pipe(queue) => queue.push(initialized)?,
            // Waited for, so that later requests cannot overtake it.
            WireSender::Http(http) => http.post_one_way(initialized).await?,
        }
        if self.streams.get().is_some_and(RequestStreams::are_agreed) {
            // A stream could overtake the control stream. Any answer arrives after `initialized`
            // was read.
            let wire_id = self.next_wire_id();
            let frame =
                handshake::request(&RequestId::from_u64(wire_id), Method::Ping, None).into();
            self.send_and_wait(link, WireRequest::new(wire_id, frame)).await?;
        }
        Ok(())
    }
}

/// Returns whether a broker refused the request because the catalog of the tenant contains itself.
pub(in crate::backends::link) fn is_catalog_loop(answer: &Message) -> bool {
    let Some(data) = answer.bytes(answer.fields.error_data) else { return false };
    Document::parse(data, &json::Limits::with_bytes_max(data.len())).is_ok_and(|document| {
        let kind = document.root().get("kind").and_then(|kind| kind.as_str());
        kind.is_some_and(|kind| kind == ErrorKind::CatalogLoop.name())
    })
}
