//! Reads `text/event-stream` bodies event by event, as the bytes came.
//!
//! [`crate::client`] uses it, and so do tests that read one stream themselves. Events without data
//! (priming events, `retry`) are returned too: they have a meaning in MCP.

use std::{sync::Arc, time::Duration};

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::timeout;

use crate::{abort_on_drop::AbortOnDrop, deadline::DEADLINE, judge::JudgedExchange};

/// Comment by which the broker reports that events before this point are lost.
const GAP: &str = ": events lost";

/// One event. `data` is the joined data lines, `None` when there was no data field at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    pub id: Option<String>,
    pub event: Option<String>,
    pub data: Option<String>,
    pub retry: Option<u64>,
}

impl Event {
    /// Returns the JSON message in the event, if any.
    pub fn message(&self) -> Option<Value> {
        self.data
            .as_deref()
            .filter(|data| !data.is_empty())
            .and_then(|data| serde_json::from_str(data).ok())
    }

    /// Returns whether the event has an id and empty data. A client may resume from it before any
    /// message was sent.
    pub fn is_priming(&self) -> bool {
        self.id.is_some() && self.data.as_deref() == Some("")
    }
}

/// Splits bytes into events.
#[derive(Debug, Default)]
pub struct EventParser {
    buffer: Vec<u8>,
    started: bool,
    pub comments: usize,
    /// Comments that report missing events.
    pub gaps: usize,
}

impl EventParser {
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        if !self.started && self.buffer.len() >= 3 {
            self.started = true;
            if self.buffer.starts_with(b"\xef\xbb\xbf") {
                self.buffer.drain(..3);
            }
        }
    }

    /// Returns the next whole event, if its terminating blank line has arrived. Our broker ends
    /// lines with LF or CR LF.
    pub fn pop(&mut self) -> Option<Event> {
        loop {
            let block = self.take_block()?;
            if let Some(event) = self.parse(&block) {
                return Some(event);
            }
        }
    }

    /// Takes the lines up to the next blank line, if that has arrived.
    fn take_block(&mut self) -> Option<String> {
        let (mut start, mut end) = (0, None);
        for at in memchr::memchr_iter(b'\n', &self.buffer) {
            if matches!(&self.buffer[start..at], b"" | b"\r") {
                end = Some((start, at + 1));
                break;
            }
            start = at + 1;
        }
        let (length, whole) = end?;
        let mut block: Vec<u8> = self.buffer.drain(..whole).collect();
        block.truncate(length);
        Some(String::from_utf8(block).expect("an event stream is UTF-8"))
    }

    fn parse(&mut self, block: &str) -> Option<Event> {
        let mut event = Event::default();
        let mut any = false;
        for line in block.lines() {
            if line.starts_with(':') {
                self.comments += 1;
                self.gaps += usize::from(line == GAP);
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            any = true;
            match field {
                "id" => event.id = Some(value.to_owned()),
                "event" => event.event = Some(value.to_owned()),
                "retry" => event.retry = value.parse().ok(),
                "data" => match &mut event.data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(value);
                    }
                    None => event.data = Some(value.to_owned()),
                },
                other => panic!("unknown event-stream field {other:?} in {block:?}"),
            }
        }
        any.then_some(event)
    }
}

/// An open event stream. Dropping it closes its connection.
#[derive(Debug)]
pub struct EventReader {
    body: Incoming,
    parser: EventParser,
    _connection: Option<Arc<AbortOnDrop>>,
    hearing: Option<JudgedExchange>,
    /// Set when an error ended the stream.
    pub broken: bool,
}

impl EventReader {
    pub(crate) fn new(
        body: Incoming,
        connection: Option<Arc<AbortOnDrop>>,
        hearing: Option<JudgedExchange>,
    ) -> Self {
        Self {
            body,
            parser: EventParser::default(),
            _connection: connection,
            hearing,
            broken: false,
        }
    }

    /// Returns the next event, or `None` at the end of the stream; panics after [`DEADLINE`].
    pub async fn next(&mut self) -> Option<Event> {
        self.next_event(DEADLINE).await.unwrap_or_else(|()| panic!("no event within {DEADLINE:?}"))
    }

    /// Returns the next event within `deadline`; `Err` when it passed.
    pub async fn next_event(&mut self, deadline: Duration) -> Result<Option<Event>, ()> {
        timeout(deadline, self.advance()).await.map_err(|_| ())
    }

    /// Waits without a deadline of its own, for readers that run in a task.
    pub async fn advance(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.parser.pop() {
                if let (Some(hearing), Some(text)) =
                    (&self.hearing, event.data.as_deref().filter(|text| !text.is_empty()))
                {
                    hearing.check_broker_message(text.as_bytes());
                }
                return Some(event);
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.parser.push(data);
                    }
                }
                Some(Err(_)) => {
                    self.broken = true;
                    return None;
                }
                None => return None,
            }
        }
    }

    /// Returns the next event that carries a message, as `(event id, message)`.
    pub async fn next_message(&mut self) -> Option<(Option<String>, Value)> {
        loop {
            let event = self.next().await?;
            if let Some(message) = event.message() {
                return Some((event.id, message));
            }
        }
    }

    /// Reads until `wanted` accepts a message; earlier messages are dropped.
    pub async fn find(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let (_, message) =
                self.next_message().await.expect("the stream ended before the message looked for");
            if wanted(&message) {
                return message;
            }
        }
    }

    /// Reads all events up to the end of the stream.
    pub async fn rest(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }

    /// Returns how often the broker reported missing events.
    pub fn gaps(&self) -> usize {
        self.parser.gaps
    }

    /// Returns how many comments (keep-alives) came so far.
    pub fn comments(&self) -> usize {
        self.parser.comments
    }
}
