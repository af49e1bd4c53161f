//! Requests of the broker itself over a connection.

use std::sync::Arc;

use protocol::{envelope::Message, handshake, ids::RequestId, method::Method};

use super::Connection;
use crate::backends::link::{
    Link, failure::Failure, request::WireRequest, stateless::control_request,
};

impl Connection {
    /// Sends a request of the broker and waits for its answer within the control timeout.
    pub async fn control_request(
        self: &Arc<Self>,
        link: &Arc<Link>,
        method: Method,
        params: Option<&[u8]>,
    ) -> Result<Message, Failure> {
        let limit = link.backend.timeouts().control;
        if self.stateless().is_some() {
            let exchange = Box::pin(control_request::control_request(self, link, method, params));
            return tokio::time::timeout(limit, exchange)
                .await
                .unwrap_or(Err(Failure::TimedOut(method)));
        }
        let wire_id = self.next_wire_id();
        let frame = handshake::request(&RequestId::from_u64(wire_id), method, params).into();
        let request = WireRequest::new(wire_id, frame);
        tokio::time::timeout(limit, self.send_and_wait(link, request))
            .await
            .unwrap_or(Err(Failure::TimedOut(method)))
    }
}
