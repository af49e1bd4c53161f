//! The streams behind the feed of notifications of a stateless backend (MCP 2026-07-28,
//! Subscriptions). Each connection has one open, for all clients behind it.
//!
//! A filter cannot change. When the wanted resources change, the broker opens another stream. It
//! closes the old one [`LISTEN_OVERLAP`] after the backend acknowledged the new one. After a lost
//! stream is open again, each listener gets a notification, because updates may have been missed.

use std::{sync::Arc, time::Duration};

use protocol::{
    envelope::{Kind, Message},
    method::Method,
    stateless::{downgrade, results::SubscriptionFilter},
};
use rules::limits::{BACKOFF_FIRST, BACKOFF_MAX, LISTEN_OVERLAP};
use tokio::{sync::oneshot, task::JoinHandle};

use super::{
    notification_feed::NotificationFeed,
    requests::{self, RequestIdentity},
};
use crate::backends::link::{Link, connection::Connection, failure::Failure};

/// An open stream. Dropping it ends it.
struct FeedStream {
    id: u64,
    reading: JoinHandle<()>,
    end: oneshot::Receiver<Result<Message, Failure>>,
}

impl Drop for FeedStream {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

/// Adds changes of the lists to the wanted notifications, if the backend announces any.
pub(in crate::backends::link) fn watch_lists(connection: &Arc<Connection>, link: &Arc<Link>) {
    let (Some(stateless), Some(agreed)) = (connection.stateless(), connection.negotiated()) else {
        return;
    };
    let offered = &agreed.capabilities;
    let lists = SubscriptionFilter {
        tools: offered.tools_list_changed,
        prompts: offered.prompts_list_changed,
        resources: offered.resources_list_changed,
        ..SubscriptionFilter::default()
    };
    if lists == SubscriptionFilter::default() {
        return;
    }
    {
        let mut state = stateless.listening.lock();
        state.lists = lists;
        state.version += 1;
    }
    run(&stateless.listening, connection, link);
}

/// Subscribes to updates of a resource. Returns `true` if the backend agreed.
pub(super) async fn subscribe(
    feed: &NotificationFeed,
    connection: &Arc<Connection>,
    link: &Arc<Link>,
    uri: &str,
) -> bool {
    let version = {
        let mut state = feed.lock();
        if state.current.is_some() && state.accepted.contains(uri) {
            return true;
        }
        // All wanted resources in one filter: after a loss, they are restored one by one.
        state.uris.extend(link.subscriptions.counts().into_iter().map(|(uri, _)| uri));
        state.uris.insert(uri.to_owned());
        state.version += 1;
        state.version
    };
    let mut subscribing = Subscribing { feed, uri, is_applied: false };
    run(feed, connection, link);
    let mut applied_versions = feed.applied.subscribe();
    let _closed = applied_versions.wait_for(|applied| *applied >= version).await;
    subscribing.is_applied = true;
    feed.lock().accepted.contains(uri)
}

/// A subscription that waits for the backend. Dropping it removes the resource from the wanted ones,
/// unless the backend has agreed.
struct Subscribing<'a> {
    feed: &'a NotificationFeed,
    uri: &'a str,
    /// Set once the backend has answered the filter with the resource.
    is_applied: bool,
}

impl Drop for Subscribing<'_> {
    fn drop(&mut self) {
        let mut state = self.feed.lock();
        if state.accepted.contains(self.uri) || !state.uris.remove(self.uri) {
            return;
        }
        if !self.is_applied {
            // The answer may still come, and would agree to an unwanted resource.
            state.version += 1;
            drop(state);
            self.feed.changed.notify_one();
        }
    }
}

/// Starts the task that keeps the stream open, or notifies it of a change.
fn run(feed: &NotificationFeed, connection: &Arc<Connection>, link: &Arc<Link>) {
    let starts = !std::mem::replace(&mut feed.lock().running, true);
    feed.changed.notify_one();
    if starts {
        link.backend.context.running.spawn(keep_open(link.clone(), connection.clone()));
    }
}

/// Keeps a stream with the wanted filter open until the connection closes.
async fn keep_open(link: Arc<Link>, connection: Arc<Connection>) {
    let Some(stateless) = connection.stateless().cloned() else { return };
    let follower = FilterFollower {
        link: &link,
        connection: &connection,
        listening: &stateless.listening,
        stream: None,
        applied: None,
        has_gap: false,
        failures: 0,
    };
    tokio::select! {
        () = follower.run() => {}
        () = connection.closed() => {}
    }
    stateless.listening.lost();
    stateless.listening.mark_applied(u64::MAX); // an answer that will not come has no waiter
}

/// The stream of one connection, as it follows the wanted filter.
struct FilterFollower<'a> {
    link: &'a Arc<Link>,
    connection: &'a Arc<Connection>,
    listening: &'a NotificationFeed,
    stream: Option<FeedStream>,
    /// Version of the last filter for which a stream was requested.
    applied: Option<u64>,
    /// True if a stream ended, so that updates may have been missed.
    has_gap: bool,
    /// Number of failures to open a stream since the last success.
    failures: u32,
}

impl FilterFollower<'_> {
    async fn run(mut self) {
        loop {
            let (filter, version) = self.listening.wanted();
            let is_wanted = filter != SubscriptionFilter::default();
            if !is_wanted {
                self.close(version);
            } else if self.applied != Some(version) || self.stream.is_none() {
                match open(self.link, self.connection, self.listening, &filter).await {
                    Ok(opened) => self.switch_to(opened, version).await,
                    Err(error) => {
                        self.record_failure(&error.failure, version);
                        // An equal request would get an equal refusal.
                        if error.refused && self.stream.is_none() {
                            self.wait_for_another_filter(version).await;
                            continue;
                        }
                    }
                }
            }
            if let Some(gracefully) = self.wait_for_end_or_change().await {
                self.record_end(gracefully).await;
            }
        }
    }

    /// Closes the stream, because nothing is wanted.
    fn close(&mut self, version: u64) {
        self.stream = None;
        self.listening.lost();
        (self.applied, self.has_gap, self.failures) = (Some(version), false, 0);
        self.listening.mark_applied(version);
    }

    /// Replaces the stream. The previous one stays open for a time, so that no notification is
    /// missed.
    async fn switch_to(&mut self, opened: FeedStream, version: u64) {
        self.listening.switch(opened.id);
        let former = self.stream.replace(opened);
        (self.applied, self.failures) = (Some(version), 0);
        self.listening.mark_applied(version);
        if std::mem::take(&mut self.has_gap) {
            notify_gap(self.link);
        }
        if former.is_some() {
            tokio::time::sleep(LISTEN_OVERLAP).await;
        }
        self.listening.forget_former();
    }

    fn record_failure(&mut self, failure: &Failure, version: u64) {
        self.applied = Some(version);
        self.failures += 1;
        if self.failures == 1 {
            let backend = &self.link.backend;
            let redacted = backend.redactor.redact(failure);
            tracing::info!(backend = %backend.id, failure = redacted, "the broker could not open the notification stream of the backend");
        }
        self.listening.mark_applied(version);
    }

    async fn wait_for_another_filter(&self, version: u64) {
        while self.listening.wanted().1 == version {
            self.listening.changed.notified().await;
        }
    }

    /// Waits until the stream ends, the filter changes, or the next attempt is due. Returns whether
    /// the stream ended gracefully, if it ended.
    async fn wait_for_end_or_change(&mut self) -> Option<bool> {
        let changed = self.listening.changed.notified();
        let Some(stream) = &mut self.stream else {
            if self.failures == 0 {
                changed.await;
            } else {
                let _sooner = tokio::time::timeout(retry_pause(self.failures), changed).await;
            }
            return None;
        };
        tokio::select! {
            end = &mut stream.end => Some(end.is_ok_and(|end| end.is_ok_and(|answer| answer.kind == Kind::Result))),
            () = changed => self.listening.is_ended(stream.id).then_some(true),
        }
    }

    async fn record_end(&mut self, gracefully: bool) {
        tracing::debug!(backend = %self.link.backend.id, gracefully, "the backend's notification stream ended");
        self.stream = None;
        self.listening.lost();
        self.has_gap = true;
        tokio::time::sleep(BACKOFF_FIRST).await;
    }
}

fn retry_pause(failures: u32) -> Duration {
    BACKOFF_FIRST
        .saturating_mul(1 << failures.min(10))
        .min(BACKOFF_MAX)
        .mul_f64(rand::random_range(0.5..1.0))
}

/// Reason for which no stream was opened. `refused` is set if the backend refused it.
struct FeedOpenError {
    failure: Failure,
    refused: bool,
}

/// Opens a stream and waits for the backend's acknowledgement.
async fn open(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    listening: &NotificationFeed,
    filter: &SubscriptionFilter,
) -> Result<FeedStream, FeedOpenError> {
    let params = format!("{{\"notifications\":{}}}", filter.to_json());
    let identity = RequestIdentity::broker(connection, link);
    let request = requests::own(
        connection,
        link,
        Method::SubscriptionsListen,
        Some(params.as_bytes()),
        &identity,
        None,
    );
    let id = request.wire_id;
    listening.lock().opening = Some((id, None));
    let (end_tx, end) = oneshot::channel();
    let (to, over) = (connection.clone(), link.clone());
    let reading = link.backend.context.running.spawn(async move {
        let _receiver_dropped = end_tx.send(requests::send(&to, &over, request).await);
    });
    let mut stream = FeedStream { id, reading, end };
    let limit = link.backend.timeouts().control;
    let outcome = tokio::time::timeout(limit, agreed(listening, &mut stream)).await;
    let failure = match outcome {
        Ok(Ok(())) => return Ok(stream),
        Ok(Err(unopened)) => unopened,
        Err(_) => FeedOpenError {
            failure: Failure::TimedOut(Method::SubscriptionsListen),
            refused: false,
        },
    };
    listening.lock().opening = None;
    Err(failure)
}

async fn agreed(
    listening: &NotificationFeed,
    stream: &mut FeedStream,
) -> Result<(), FeedOpenError> {
    loop {
        if listening.lock().opening.as_ref().is_some_and(|(_, agreed)| agreed.is_some()) {
            return Ok(());
        }
        tokio::select! {
            () = listening.acknowledged.notified() => {}
            end = &mut stream.end => {
                return Err(match end {
                    Ok(Err(failure)) => FeedOpenError { failure, refused: false },
                    Ok(Ok(answer)) if answer.kind == Kind::Error => {
                        let failure = Failure::Protocol(format!("the backend refused the notification stream with error {}", downgrade::error_code(&answer).unwrap_or_default()));
                        FeedOpenError { failure, refused: true }
                    }
                    _ => FeedOpenError { failure: Failure::Protocol("the notification stream ended before the backend acknowledged it".to_owned()), refused: false },
                });
            }
        }
    }
}

/// Reports to the listeners that updates may have been missed.
fn notify_gap(link: &Arc<Link>) {
    link.subscriptions.notify_gaps(&link.backend.id);
    if link.has_no_client() {
        link.backend.refresh();
    }
}

/// The wait after a loss bounds the shortest time between two streams.
const _: () = assert!(LISTEN_OVERLAP.as_millis() < Duration::from_secs(1).as_millis());
