//! Stream of the messages that answer a stateless request.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    auth::{CredentialExpiry, until_ended},
    listeners::replicas::proxied_request::ProxiedRequest,
    sessions::{
        stateless::{
            exchange::{Exchange, ExchangeEvent},
            notification_stream::NotificationStream,
        },
        stream::EventStream,
    },
};

/// Messages that answer a request.
pub(super) enum ReplyStream {
    Single(Bytes),
    Exchange(Box<Exchange>),
    Notifications(Box<NotificationStream>),
    Proxied(Box<ProxiedRequest>),
    Over,
}

/// A request that has started.
pub(super) struct StartedRequest {
    pub(super) answering: ReplyStream,
    /// Expiry time of the client's credential.
    pub(super) until: Option<CredentialExpiry>,
}

impl ReplyStream {
    /// Returns the next message, or `None` at the end. Cancel-safe.
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

    /// Returns the next message until the credential expires. The request then ends with an answer.
    pub(super) async fn next_until(&mut self, until: Option<CredentialExpiry>) -> Option<Bytes> {
        if let Some(frame) = until_ended(until.as_ref(), self.next()).await {
            return frame;
        }
        match self {
            Self::Exchange(exchange) => {
                let given_up = exchange.given_up();
                *self = Self::Over;
                return Some(given_up);
            }
            // The drop cancels the request at the other replica.
            Self::Proxied(proxied) => {
                let given_up = proxied.given_up();
                *self = Self::Over;
                return Some(given_up);
            }
            Self::Notifications(listening) => listening.end(),
            Self::Single(_) | Self::Over => {}
        }
        self.next().await
    }

    /// Returns the stream that buffers the next messages, if there is one.
    pub(super) fn stream(&self) -> Option<&Arc<EventStream>> {
        match self {
            Self::Exchange(exchange) => exchange.stream(),
            Self::Notifications(listening) => Some(listening.stream()),
            Self::Single(_) | Self::Proxied(_) | Self::Over => None,
        }
    }
}
