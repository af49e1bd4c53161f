//! Reader of a backend's event stream, over one or more responses (MCP 2025-11-25, Transports:
//! Resumability).

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use http_body_util::BodyExt;
use protocol::sse::{SseError, SseEvent, SseParser};
use rules::limits::{
    ERROR_BODY_BYTES_MAX, EVENT_ID_BYTES_MAX, RESUME_ATTEMPTS_MAX, RETRY_DEFAULT, RETRY_MAX,
    RETRY_MIN, STABLE_AFTER, STREAM_DRAIN,
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use transport::ResponseBody;

use super::{
    get_outcome::{GetOutcome, GetPurpose},
    http_wire::HttpWire,
};
use crate::{
    backends::{
        inbound,
        link::{
            Link,
            connection::{Connection, requester::Requester},
            failure::Failure,
        },
    },
    metrics::{Direction, Side},
};

/// Recent event ids that detect repetitions.
const SEEN_EVENTS: usize = 64;

/// Bytes that the fields of an event may have in addition to its message, so that the limit of
/// messages is exact.
const EVENT_FIELDS_BYTES: usize = EVENT_ID_BYTES_MAX + 64;

/// One event stream, with its owner and its position.
pub(super) struct EventStreamReader {
    wire: Arc<HttpWire>,
    link: Arc<Link>,
    connection: Arc<Connection>,
    /// Wire id of the request whose answer ends the stream. `None` on the GET stream.
    answer_to: Option<u64>,
    /// Owner of the questions that arrive on it.
    requester: Option<Arc<dyn Requester>>,
    pub(super) last_event_id: Option<String>,
    /// Wait before a reconnection, as the backend sets it.
    pub(super) retry: Duration,
    seen: VecDeque<String>,
    /// False for a stream of 2026-07-28, which cannot be resumed.
    pub(super) resumable: bool,
    /// Messages from the current response.
    taken: usize,
}

/// The end of a response body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyEnd {
    /// The body held the answer.
    Answered,
    Ended,
    Broken(Failure),
}

impl EventStreamReader {
    pub(super) fn new(
        wire: &Arc<HttpWire>,
        link: &Arc<Link>,
        connection: &Arc<Connection>,
        answer_to: Option<u64>,
        requester: Option<Arc<dyn Requester>>,
    ) -> Self {
        Self {
            wire: wire.clone(),
            link: link.clone(),
            connection: connection.clone(),
            answer_to,
            requester,
            last_event_id: None,
            retry: RETRY_DEFAULT,
            seen: VecDeque::new(),
            resumable: true,
            taken: 0,
        }
    }

    /// Forgets the ids of earlier events, because the next response does not continue them: its ids
    /// may start again.
    pub(super) fn forget_seen(&mut self) {
        self.seen.clear();
    }

    /// Reads until the answer has come. Resumes the stream if the backend permits it.
    pub(super) async fn until_answered(
        mut self,
        body: ResponseBody,
        stop: CancellationToken,
        failed: oneshot::Sender<Failure>,
    ) {
        let connection = self.connection.clone();
        tokio::select! {
            failure = self.read_and_resume(body) => {
                if let Some(failure) = failure {
                    let _receiver_dropped = failed.send(failure);
                }
            }
            () = stop.cancelled() => {}
            () = async { connection.closed().await; connection.grace_of_answers().await } => {
                let _receiver_dropped = failed.send(Failure::Lost("the connection ended".to_owned()));
            }
        }
    }

    /// Reads and resumes. Returns `None` once the answer has come.
    async fn read_and_resume(&mut self, mut body: ResponseBody) -> Option<Failure> {
        let mut attempts = 0;
        loop {
            let opened_at = Instant::now();
            let end = self.read(&mut body).await;
            // A backend that polls ends its streams in order, and may do so as long as its call
            // runs. A proxy cuts long silent streams. Only streams in a row count that broke soon,
            // without a message.
            let was_of_use = self.taken > 0
                || matches!(end, BodyEnd::Ended)
                || opened_at.elapsed() >= STABLE_AFTER;
            attempts = if was_of_use { 0 } else { attempts };
            match end {
                BodyEnd::Answered => {
                    drain_later(&self.link, body);
                    return None;
                }
                // The cause of a broken stream would break the next response too.
                BodyEnd::Broken(failure)
                    if self.last_event_id.is_none() || !matches!(failure, Failure::Lost(_)) =>
                {
                    return Some(failure);
                }
                BodyEnd::Ended if self.last_event_id.is_none() => {
                    return Some(Failure::Lost(
                        "the event stream ended without the answer".to_owned(),
                    ));
                }
                BodyEnd::Ended | BodyEnd::Broken(_) => {}
            }
            body = match self.resumed(&mut attempts).await {
                Ok(body) => body,
                Err(failure) => return Some(failure),
            };
        }
    }

    /// Opens the next response of the stream.
    async fn resumed(&mut self, attempts: &mut u32) -> Result<ResponseBody, Failure> {
        loop {
            if *attempts == RESUME_ATTEMPTS_MAX {
                return Err(Failure::Lost("the event stream could not be resumed".to_owned()));
            }
            *attempts += 1;
            tokio::time::sleep(self.retry).await; // MCP 2025-11-25, Transports: the client waits for `retry`
            let Ok(response) = self.wire.send(self.wire.get(self.last_event_id.as_deref())).await
            else {
                continue;
            };
            match GetOutcome::of(&response, GetPurpose::Resume) {
                GetOutcome::Open => return Ok(response.into_body()),
                GetOutcome::RetryLater => {}
                _ => {
                    return Err(Failure::Lost(format!(
                        "the event stream was not resumed ({})",
                        response.status()
                    )));
                }
            }
        }
    }

    /// Reads one response body to its end or to the answer.
    pub(super) async fn read(&mut self, body: &mut ResponseBody) -> BodyEnd {
        let max = self.wire.limits.bytes_max;
        let mut parser = SseParser::new(max.saturating_add(EVENT_FIELDS_BYTES));
        self.taken = 0;
        loop {
            loop {
                match parser.next_event() {
                    Ok(Some(event)) => {
                        if event.data.as_ref().is_some_and(|data| data.len() > max) {
                            return BodyEnd::Broken(Failure::TooLarge { max });
                        }
                        // Yields, so that a flood of events does not block other tasks.
                        tokio::task::coop::consume_budget().await;
                        if self.take(event) {
                            return BodyEnd::Answered;
                        }
                    }
                    Ok(None) => break,
                    Err(SseError::TooLarge { .. }) => {
                        return BodyEnd::Broken(Failure::TooLarge { max });
                    }
                    Err(error) => return BodyEnd::Broken(Failure::Protocol(error.to_string())),
                }
            }
            match body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.link.backend.context.metrics.bytes(
                            Direction::In,
                            Side::Backend,
                            data.len(),
                        );
                        parser.push(&data);
                    }
                }
                Some(Err(error)) => {
                    return BodyEnd::Broken(Failure::Lost(format!(
                        "the event stream broke: {error}"
                    )));
                }
                None => return BodyEnd::Ended,
            }
        }
    }

    /// Handles one event. Returns `true` for the awaited answer.
    fn take(&mut self, event: SseEvent) -> bool {
        if self.wire.is_one_stream() {
            match event.event.as_deref() {
                Some("endpoint") => {
                    self.wire.record_endpoint(&event.data.unwrap_or_default());
                    return false;
                }
                None | Some("" | "message") => {}
                Some(_) => return false, // such as a ping of the server
            }
        }
        if let Some(retry) = event.retry {
            self.retry = Duration::from_millis(retry).clamp(RETRY_MIN, RETRY_MAX);
        }
        let repeated = event.id.filter(|_| self.resumable).is_some_and(|id| self.record_id(id));
        let Some(data) = event.data.filter(|data| !data.is_empty()) else { return false };
        match inbound::decode(&self.connection, data.clone(), &self.wire.limits) {
            Ok(body) => {
                let awaited = self.answer_to.is_some_and(|wire_id| body.answers(wire_id));
                if !repeated || awaited {
                    self.taken += 1;
                    inbound::receive_body(
                        &self.link,
                        &self.connection,
                        body,
                        self.requester.as_ref(),
                    );
                } else {
                    self.link.backend.context.metrics.dropped_notification("repeated");
                }
                awaited
            }
            Err(rejected) => {
                self.connection.broken_message(&rejected, &data);
                false
            }
        }
    }

    /// Stores an event id. Returns `true` for a repetition: some servers replay more than
    /// requested.
    fn record_id(&mut self, id: String) -> bool {
        // An empty id names no event, and a long one is never sent back. The stream cannot be
        // resumed from here.
        if id.is_empty() || id.len() > EVENT_ID_BYTES_MAX {
            self.last_event_id = None;
            return false;
        }
        let repeated = self.seen.contains(&id);
        if !repeated {
            self.seen.push_back(id.clone());
            if self.seen.len() > SEEN_EVENTS {
                self.seen.pop_front();
            }
        }
        self.last_event_id = Some(id);
        repeated
    }
}

/// Reads the rest of the body after the answer, so that the connection can be reused.
fn drain_later(link: &Link, body: ResponseBody) {
    link.backend.context.running.spawn(async move {
        let _in_time =
            tokio::time::timeout(STREAM_DRAIN, body.read_whole(ERROR_BODY_BYTES_MAX)).await;
    });
}
