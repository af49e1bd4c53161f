//! The GET stream of a link: messages of a backend outside calls (MCP 2025-11-25, Transports).
//!
//! The stream opens before the first call, because some servers lose messages that they cannot
//! deliver at once. It opens again after each end, until the connection is closed.

use std::{sync::Arc, time::Duration};

use rules::limits::{BACKOFF_FIRST, BACKOFF_MAX};
use tokio::sync::oneshot;

use super::{
    event_stream::{BodyEnd, EventStreamReader},
    get_outcome::{GetOutcome, GetPurpose},
    http_wire::HttpWire,
};
use crate::backends::{
    fault_lines::RepeatedFault,
    link::{Link, connection::Connection, failure::Failure},
};

/// Reads the GET stream until the connection is closed. `opened` resolves after the first attempt.
pub(super) async fn listen(
    wire: Arc<HttpWire>,
    link: Arc<Link>,
    connection: Arc<Connection>,
    opened: oneshot::Sender<()>,
) {
    tokio::select! {
        () = keep_open(&wire, &link, &connection, opened) => connection.close_forgotten(),
        () = connection.closed() => {}
    }
    link.backend.connection_ended(&link, &connection);
}

/// Keeps the stream open. Returns only when the backend forgot the session.
async fn keep_open(
    wire: &Arc<HttpWire>,
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    opened: oneshot::Sender<()>,
) {
    let mut reading = EventStreamReader::new(wire, link, connection, None, None);
    let mut opened = Some(opened);
    let mut was_open = false;
    let mut failures = 0_u32;
    loop {
        if reading.last_event_id.is_none() {
            reading.forget_seen();
        }
        let purpose = match &reading.last_event_id {
            Some(_) => GetPurpose::Resume,
            None if was_open => GetPurpose::Reopen,
            None => GetPurpose::Initial,
        };
        let response = wire.send(wire.get(reading.last_event_id.as_deref())).await;
        let outcome = response
            .as_ref()
            .map_or(GetOutcome::RetryLater, |response| GetOutcome::of(response, purpose));
        let is_first = opened.take().map(|opened| opened.send(())).is_some();
        match (outcome, response) {
            (GetOutcome::Open, Ok(response)) => {
                was_open = true;
                if link.has_no_client() && !is_first {
                    link.backend.refresh(); // messages sent meanwhile are lost when the backend keeps no log
                }
                failures = match reading.read(&mut response.into_body()).await {
                    // The backend would send the same event again after the last id.
                    BodyEnd::Broken(failure) if !matches!(failure, Failure::Lost(_)) => {
                        let (tenant, backend) = (&link.backend.tenant, &link.backend.id);
                        let lines = &link.backend.resources.fault_lines;
                        let checked = lines.check(tenant, backend, RepeatedFault::UnreadableEvent);
                        if let Some(left_out) = checked {
                            tracing::warn!(%tenant, %backend, left_out, %failure, "the broker cannot read an event of the backend and reopens the stream without the missed events");
                        }
                        reading.last_event_id = None;
                        failures + 1
                    }
                    _ => 0,
                };
            }
            (GetOutcome::UnknownEvent, _) => {
                reading.last_event_id = None;
                continue;
            }
            (GetOutcome::Unsupported, _) => return std::future::pending().await,
            (GetOutcome::SessionGone, _) => return,
            _ => failures += 1,
        }
        tokio::time::sleep(pause(failures, reading.retry)).await;
    }
}

fn pause(failures: u32, retry: Duration) -> Duration {
    if failures == 0 {
        retry
    } else {
        BACKOFF_FIRST.saturating_mul(1 << failures.min(10)).min(BACKOFF_MAX)
    }
}
