//! A request in flight, from the view of the test that sent it.

use serde_json::Value;
use tokio::sync::mpsc;

use super::ReceivedMessage;
use crate::{abort_on_drop::AbortOnDrop, deadline::within, events::Event};

/// Event that a call's reader saw.
#[derive(Debug)]
pub(super) enum CallEvent {
    Head { status: u16, stream: bool },
    Message(ReceivedMessage),
    Bare(Event),
    Broken(String),
}

/// A request in flight.
#[derive(Debug)]
pub struct Call {
    pub id: Value,
    pub(super) messages: mpsc::Receiver<CallEvent>,
    pub(super) _reader: AbortOnDrop,
    /// Messages that came before the response, as [`Self::response`] read them.
    pub before: Vec<ReceivedMessage>,
    /// Status, and whether the answer is an event stream, once the head was read.
    pub status: Option<(u16, bool)>,
}

impl Call {
    /// Returns the next message, or `None` at the end; panics when the connection broke.
    pub async fn next(&mut self) -> Option<ReceivedMessage> {
        loop {
            match within("the next message of a call", self.messages.recv()).await? {
                CallEvent::Head { status, stream } => self.status = Some((status, stream)),
                CallEvent::Message(message) => return Some(message),
                CallEvent::Bare(_) => {}
                CallEvent::Broken(reason) => panic!("the call's connection broke: {reason}"),
            }
        }
    }

    /// Returns the next message, or `None` when the stream ended or its connection broke.
    pub async fn next_or_end(&mut self) -> Option<ReceivedMessage> {
        loop {
            match within("the next message of a call", self.messages.recv()).await? {
                CallEvent::Head { status, stream } => self.status = Some((status, stream)),
                CallEvent::Message(message) => return Some(message),
                CallEvent::Bare(_) => {}
                CallEvent::Broken(_) => return None,
            }
        }
    }

    /// Returns the id of the first event (the priming event where there is one).
    pub async fn first_event_id(&mut self) -> String {
        loop {
            match within("the first event of a call", self.messages.recv())
                .await
                .expect("the call has events")
            {
                CallEvent::Bare(event) if event.id.is_some() => {
                    return event.id.expect("just looked at");
                }
                CallEvent::Message(message) if message.event_id.is_some() => {
                    let id = message.event_id.clone().expect("just looked at");
                    self.before.push(message);
                    return id;
                }
                CallEvent::Head { status, stream } => self.status = Some((status, stream)),
                CallEvent::Message(message) => {
                    panic!("a message without an event id: {}", message.text)
                }
                CallEvent::Bare(_) => {}
                CallEvent::Broken(reason) => panic!("the call's connection broke: {reason}"),
            }
        }
    }

    /// Returns the response; earlier messages are in `before`.
    pub async fn response(mut self) -> ReceivedMessage {
        self.finish().await
    }

    /// Does the same as [`Self::response`], for callers that read `before` or `status` afterwards.
    pub async fn finish(&mut self) -> ReceivedMessage {
        while let Some(message) = self.next().await {
            let same_id = message.value.get("id").is_none_or(|id| *id == self.id);
            if message.is_response() && same_id {
                return message;
            }
            self.before.push(message);
        }
        panic!(
            "the stream of request {} ended without a response; before: {:?}",
            self.id, self.before
        );
    }

    /// Returns the result; panics on an error.
    pub async fn result(self) -> Value {
        let message = self.response().await;
        message
            .value
            .get("result")
            .cloned()
            .unwrap_or_else(|| panic!("the call failed: {}", message.text))
    }

    /// Returns the error; panics on a result.
    pub async fn error(self) -> Value {
        let message = self.response().await;
        message
            .value
            .get("error")
            .cloned()
            .unwrap_or_else(|| panic!("the call did not fail: {}", message.text))
    }
}
