//! The handshake of a connection with a session.

use std::sync::Arc;

use protocol::{
    envelope::{Kind, Message},
    error::ErrorKind,
    handshake::{self, InitializeResult},
    ids::RequestId,
    json::{self, Document},
    method::Method,
    stateless::downgrade,
    version::Version,
};

use super::Connection;
use crate::backends::link::{
    Link, failure::Failure, request::WireRequest, request_streams::RequestStreams, wire::WireSender,
};

impl Connection {
    /// Performs the client's half of the handshake (MCP 2025-11-25, Lifecycle). Some servers, such as
    /// those with an older Java SDK, refuse members of capabilities that they do not know. Such a
    /// server gets the declaration of 2025-06-18.
    pub(in crate::backends::link) async fn initialize(
        self: &Arc<Self>,
        link: &Arc<Link>,
    ) -> Result<(), Failure> {
        let mut answer = self.request_session(link, link.declared.raw()).await;
        if self.may_be_about_capabilities(&answer)
            && let Some(plain) = link.declared.without_modes()
        {
            let second = self.request_session(link, &plain).await;
            if second.as_ref().is_ok_and(|second| second.kind == Kind::Result) {
                tracing::debug!(tenant = %link.backend.tenant, backend = %link.backend.id, "the backend accepts only the capabilities of 2025-06-18");
                answer = second;
            }
        }
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

    /// Sends `initialize` with these capabilities.
    async fn request_session(
        self: &Arc<Self>,
        link: &Arc<Link>,
        capabilities: &[u8],
    ) -> Result<Message, Failure> {
        let wire_id = self.next_wire_id();
        let id = RequestId::from_u64(wire_id);
        let frame = handshake::initialize_request(
            &id,
            Version::LATEST_WITH_SESSIONS,
            capabilities,
            rules::endpoint_info::BROKER_INFO.as_bytes(),
            format!("{{{}}}", link.backend.mark.member()).as_bytes(),
        )
        .into();
        let request = WireRequest { is_initialize: true, ..WireRequest::new(wire_id, frame) };
        self.send_and_wait(link, request).await
    }

    /// Returns whether the backend may have refused `initialize` because of a capability. A backend
    /// that issued a session with its refusal would get another `initialize` in that session.
    fn may_be_about_capabilities(&self, answer: &Result<Message, Failure>) -> bool {
        match (answer, &self.wire) {
            (_, WireSender::Http(http)) if http.has_session() => false,
            (Ok(answer), _) => is_bad_request(answer),
            (Err(Failure::Denied(_)), WireSender::Http(http)) => http.refused_as_bad_request(),
            (Err(_), _) => false,
        }
    }
}

/// Returns whether an error is one of JSON-RPC about the request itself. An unknown method is none:
/// it comes from a server without sessions.
fn is_bad_request(answer: &Message) -> bool {
    matches!(downgrade::error_code(answer), Some(-32700 | -32603 | -32602 | -32600))
}

/// Returns whether a broker refused the request because the catalog of the tenant contains itself.
pub(in crate::backends::link) fn is_catalog_loop(answer: &Message) -> bool {
    let Some(data) = answer.bytes(answer.fields.error_data) else { return false };
    Document::parse(data, &json::Limits::with_bytes_max(data.len())).is_ok_and(|document| {
        let kind = document.root().get("kind").and_then(|kind| kind.as_str());
        kind.is_some_and(|kind| kind == ErrorKind::CatalogLoop.name())
    })
}
