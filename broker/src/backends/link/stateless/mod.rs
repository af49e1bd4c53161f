//! Links to backends of 2026-07-28, with stateless requests.
//!
//! The rest of the broker uses a backend as if it had a session: it calls, subscribes and answers
//! requests. A connection to a stateless backend translates this into self-contained requests:
//!
//! - [`handshake`] negotiates the era of the backend.
//! - [`exchange`] carries calls.
//! - [`inputs`] sends the inputs that a backend needs to the client.
//! - [`tasks`] follows the tasks that a backend creates.
//! - [`feed_streams`] maintains the streams of notifications.
//!
//! Invariant: only requests, and notifications that cancel one, are sent on a stateless connection.
//! Other messages (answers to the backend's requests, notifications of the client) end in
//! [`take_reply`](state::StatelessConnection::take_reply).

pub(super) mod control_request;
pub(super) mod exchange;
pub(super) mod feed_streams;
pub(super) mod handshake;
mod inputs;
mod notification_feed;
mod notification_feeds;
mod requests;
pub(super) mod state;
mod tasks;
