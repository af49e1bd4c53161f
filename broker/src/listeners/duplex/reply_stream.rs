//! The messages that a stateless request is answered with, one after the other.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    auth::CredentialExpiry,
    listeners::replicas::proxied_request::ProxiedRequest,
    sessions::{
        stateless::{
            exchange::{Exchange, ExchangeEvent},
            notification_stream::NotificationStream,
        },
        stream::EventStream,
    },
};

/// What a request is answered with.
pub(super) enum ReplyStream {
    Single(Bytes),
    Exchange(Box<Exchange>),
    Notifications(Box<NotificationStream>),
    Proxied(Box<ProxiedRequest>),
    Over,
}

/// A request that was begun.
pub(super) struct StartedRequest {
    pub(super) answering: ReplyStream,
    /// Until when it may go on.
    pub(super) until: Option<CredentialExpiry>,
}

impl ReplyStream {
    /// The next message; `None` when there is no more. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        let step = match self {
            Self::Over => return None,
            Self::Single(frame) => ExchangeEvent::Answer(frame.clone(), None),
            Self::Exchange(exchange) => exchange.next().await,
            Self::Notifications(listening) => listening.next().await,
            Self::Proxied(led) => match led.next().await {
                Some((frame, true)) => ExchangeEvent::Answer(frame, None),
                Some((frame, false)) => ExchangeEvent::Frame(frame),
                None => ExchangeEvent::Ended,
            },
        };
        match step {
            ExchangeEvent::Frame(frame) => Some(frame),
            ExchangeEvent::Answer(frame, _) => {
                *self = Self::Over;
                Some(frame)
            }
            ExchangeEvent::Ended => {
                let given_up = match self {
                    Self::Exchange(exchange) => Some(exchange.given_up()),
                    _ => None,
                };
                *self = Self::Over;
                given_up
            }
        }
    }

    /// The same. What was begun ends when what was shown for it is good no longer; an answer that waits at another replica comes.
    pub(super) async fn next_until(&mut self, until: Option<CredentialExpiry>) -> Option<Bytes> {
        let Some(until) = until else { return self.next().await };
        if !until.is_past() {
            tokio::select! {
                biased;
                frame = self.next() => return frame,
                () = until.passed() => {}
            }
        }
        match self {
            Self::Exchange(exchange) => {
                let given_up = exchange.given_up();
                *self = Self::Over;
                return Some(given_up);
            }
            Self::Notifications(listening) => listening.end(),
            Self::Single(_) | Self::Proxied(_) | Self::Over => {}
        }
        self.next().await
    }

    /// What the next messages wait in, where there is such a place.
    pub(super) fn stream(&self) -> Option<&Arc<EventStream>> {
        match self {
            Self::Exchange(exchange) => exchange.stream(),
            Self::Notifications(listening) => Some(listening.stream()),
            Self::Single(_) | Self::Proxied(_) | Self::Over => None,
        }
    }
}
