//! The GET stream of a link: what a backend sends that belongs to no call (MCP 2025-11-25, Transports).
//!
//! Opened before the first call, because some servers lose what they can not deliver at once, and opened again when it
//! ends, for as long as the connection lives.

use std::{sync::Arc, time::Duration};

use http::{Response, StatusCode};
use hyper::body::Incoming;
use tokio::sync::oneshot;

use super::{ContentKind, HttpWire, reading::StreamReading};
use crate::{
    actors::link::{
        Link,
        connection::{Connection, Failure},
    },
    limits::{BACKOFF_FIRST, BACKOFF_MAX},
};

/// What the answer to a GET means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Events follow.
    Open,
    /// This backend has no such stream; calls work without.
    None,
    /// The backend no longer knows the session.
    SessionGone,
    /// Not now.
    Later,
}

impl Outcome {
    /// A refusal of the very first GET means that there is no such stream, whatever its number: many servers know only
    /// POST. Once it was open, the same number means something else.
    fn of(status: StatusCode, is_event_stream: bool, was_open: bool) -> Self {
        match status {
            StatusCode::OK if is_event_stream => Outcome::Open,
            StatusCode::METHOD_NOT_ALLOWED => Outcome::None,
            StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS => Outcome::Later,
            StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST if was_open => Outcome::SessionGone,
            status if status.is_client_error() => Outcome::None,
            _ => Outcome::Later,
        }
    }

    fn of_response(response: &Result<Response<Incoming>, Failure>, was_open: bool) -> Self {
        match response {
            Ok(response) => Self::of(response.status(), ContentKind::of(response) == ContentKind::EventStream, was_open),
            Err(_) => Outcome::Later,
        }
    }
}

/// Reads the GET stream until the connection is closed. `opened` learns when the first attempt is over.
pub(super) async fn listen(wire: Arc<HttpWire>, link: Arc<Link>, connection: Arc<Connection>, opened: oneshot::Sender<()>) {
    tokio::select! {
        () = keep_open(&wire, &link, &connection, opened) => connection.session_forgotten(),
        () = connection.closed() => {}
    }
    link.backend.connection_ended(&link, &connection);
}

/// Ends only when the backend forgot the session.
async fn keep_open(wire: &Arc<HttpWire>, link: &Arc<Link>, connection: &Arc<Connection>, opened: oneshot::Sender<()>) {
    let mut reading = StreamReading::new(wire, link, connection, None, None);
    let mut opened = Some(opened);
    let mut was_open = false;
    let mut failures = 0_u32;
    loop {
        let response = wire.send(wire.get(reading.last_event_id.as_deref())).await;
        let outcome = Outcome::of_response(&response, was_open);
        let _first_only = opened.take().map(|opened| opened.send(()));
        match (outcome, response) {
            (Outcome::Open, Ok(response)) => {
                (was_open, failures) = (true, 0);
                let mut body = response.into_body();
                let _end = reading.read(&mut body).await;
                if link.is_catalog() {
                    link.backend.refresh(); // what was said meanwhile is lost when the backend keeps no log
                }
            }
            (Outcome::None, _) => return std::future::pending().await,
            (Outcome::SessionGone, _) => return,
            _ => failures += 1,
        }
        tokio::time::sleep(pause(failures, reading.retry)).await;
    }
}

fn pause(failures: u32, retry: Duration) -> Duration {
    if failures == 0 { retry } else { BACKOFF_FIRST.saturating_mul(1 << failures.min(10)).min(BACKOFF_MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b_http_07_a_server_without_the_stream_is_left_in_peace() {
        for status in [400, 403, 404, 405] {
            assert_eq!(Outcome::of(StatusCode::from_u16(status).unwrap(), false, false), Outcome::None, "{status}");
        }
    }

    #[test]
    fn once_open_a_refusal_says_something_about_the_session() {
        for (status, expected) in [
            (404, Outcome::SessionGone),
            (400, Outcome::SessionGone),
            (405, Outcome::None),
            (409, Outcome::Later),
            (429, Outcome::Later),
            (500, Outcome::Later),
        ] {
            assert_eq!(Outcome::of(StatusCode::from_u16(status).unwrap(), false, true), expected, "{status}");
        }
    }
}
