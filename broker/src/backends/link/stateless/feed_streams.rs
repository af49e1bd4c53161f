//! The streams behind the feeds of notifications of a stateless backend (MCP 2026-07-28,
//! Subscriptions). Each feed of a connection has one open, for all clients behind it.
//!
//! A filter cannot change. When the wanted resources change, the broker opens another stream. It
//! closes the old one [`LISTEN_OVERLAP`] after the backend acknowledged the new one.
//!
//! The broker tries again to open a stream until it is open. Then each listener gets a notification
//! and the lists are read again, if changes may have been missed before. A stream that ends is opened
//! again. The wait before that grows while streams end early.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use protocol::{
    envelope::{Kind, Message},
    error::ErrorKind,
    method::Method,
    stateless::{MISSING_CLIENT_CAPABILITY, downgrade, results::SubscriptionFilter},
};
use rules::{
    limits::{BACKOFF_FIRST, BACKOFF_MAX, LISTEN_OVERLAP, LISTEN_REFUSED_PAUSE, STABLE_AFTER},
    link_sharing::LinkScope,
};
use tokio::{sync::oneshot, task::JoinHandle};

use super::{
    notification_feed::NotificationFeed,
    notification_feeds::NotificationFeeds,
    requests::{self, RequestIdentity},
};
use crate::backends::{
    backend::BackendState,
    link::{Link, connection::Connection, failure::Failure},
};

/// An open stream. Dropping it ends it.
struct FeedStream {
    id: u64,
    /// The filter, without the resources that the backend did not agree to.
    filter: SubscriptionFilter,
    opened_at: Instant,
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
    let feed = stateless.listening.first();
    {
        let mut state = feed.lock();
        state.lists = lists;
        state.version += 1;
    }
    run(&feed, connection, link);
}

/// Subscribes to updates of a resource. Returns `true` if the backend agreed, and `false` if it
/// refused.
pub(super) async fn subscribe(
    feeds: &NotificationFeeds,
    connection: &Arc<Connection>,
    link: &Arc<Link>,
    uri: &str,
) -> Result<bool, Failure> {
    let link_uris =
        || link.subscriptions.counts().into_iter().map(|(uri, _)| uri).collect::<Vec<String>>();
    let Some((feed, version)) = feeds.want(uri, link_uris) else { return Ok(true) };
    let mut subscribing = Subscribing { feed: &feed, uri, agreed: None };
    // The resources of the link may be in several feeds.
    feeds.all().iter().for_each(|feed| run(feed, connection, link));
    let mut applied = feed.applied.subscribe();
    let attempt = applied.wait_for(|applied| applied.version >= version).await;
    let answer = attempt.map(|attempt| (attempt.accepted.contains(uri), attempt.failure.clone()));
    let (is_agreed, failure) = answer.unwrap_or_default();
    subscribing.agreed = Some(is_agreed);
    match failure {
        Some(failure) if !is_agreed => Err(failure),
        _ => Ok(is_agreed),
    }
}

/// A subscription that waits for the backend. Dropping it removes the resource from the wanted ones,
/// unless the wait has ended with the agreement of the backend.
struct Subscribing<'a> {
    feed: &'a NotificationFeed,
    uri: &'a str,
    /// Whether the backend agreed. `None`: it has not answered the filter with the resource, and no
    /// attempt has failed.
    agreed: Option<bool>,
}

impl Drop for Subscribing<'_> {
    fn drop(&mut self) {
        if self.agreed == Some(true) {
            return;
        }
        let mut state = self.feed.lock();
        if state.uris.remove(self.uri) && self.agreed.is_none() {
            // The answer may still come, and would agree to an unwanted resource.
            state.version += 1;
            drop(state);
            self.feed.changed.notify_one();
        }
    }
}

/// Starts the task that keeps the stream of a feed open, or notifies it of a change.
fn run(feed: &Arc<NotificationFeed>, connection: &Arc<Connection>, link: &Arc<Link>) {
    let starts = !std::mem::replace(&mut feed.lock().running, true);
    feed.changed.notify_one();
    if starts {
        let keeping = keep_open(link.clone(), connection.clone(), feed.clone());
        link.backend.context.running.spawn(keeping);
    }
}

/// Keeps a stream with the wanted filter open until the connection closes.
async fn keep_open(link: Arc<Link>, connection: Arc<Connection>, listening: Arc<NotificationFeed>) {
    let feed = OpenFeed {
        link: &link,
        connection: &connection,
        listening: &listening,
        stream: None,
        failures: 0,
        early_ends: 0,
        retry_after: None,
        missed: false,
        is_first: true,
    };
    tokio::select! {
        () = feed.follow_filter() => {}
        () = connection.closed() => {}
    }
    listening.lost();
    let lost = Failure::Lost("the connection ended before the backend answered".to_owned());
    listening.mark_applied(u64::MAX, Some(lost)); // an answer that will not come has no waiter
}

/// The stream of a feed, and the attempts to open it.
struct OpenFeed<'a> {
    link: &'a Arc<Link>,
    connection: &'a Arc<Connection>,
    listening: &'a NotificationFeed,
    stream: Option<FeedStream>,
    /// Failed attempts since the last open stream.
    failures: u32,
    /// Streams in a row that the backend ended early.
    early_ends: u32,
    /// The wait before the next attempt, after a failed one.
    retry_after: Option<Duration>,
    /// Set while no stream is open, if one was wanted.
    missed: bool,
    /// Set until the first stream is open.
    is_first: bool,
}

impl OpenFeed<'_> {
    async fn follow_filter(mut self) {
        let listening = self.listening;
        loop {
            let (filter, version) = listening.wanted();
            if filter == SubscriptionFilter::default() {
                self.stream = None;
                listening.lost();
                self.missed = false;
                self.applied(version);
            } else if self.stream.as_ref().is_some_and(|stream| stream.filter == filter) {
                self.applied(version);
            } else {
                match open(self.link, self.connection, listening, &filter).await {
                    Ok(opened) => self.opened(opened, version).await,
                    Err(error) => self.failed(error, version),
                }
            }
            let due = self.retry_after;
            let retry_is_due = async move {
                match due {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            let ended = match &mut self.stream {
                Some(stream) => tokio::select! {
                    end = &mut stream.end => Some(end.is_ok_and(|end| end.is_ok_and(|answer| answer.kind == Kind::Result))),
                    () = until_changed(listening, version, Some(stream.id)) => listening.is_ended(stream.id).then_some(true),
                    () = retry_is_due => None,
                },
                None => tokio::select! {
                    () = until_changed(listening, version, None) => None,
                    () = retry_is_due => None,
                },
            };
            if let Some(gracefully) = ended {
                tracing::debug!(tenant = %self.link.backend.tenant, backend = %self.link.backend.id, gracefully, "the backend's notification stream ended");
                listening.lost();
                self.missed = true;
                self.wait_after_end(version).await;
            }
        }
    }

    /// Waits after the backend ended the stream. Another filter shortens the wait, but not below its
    /// first part.
    async fn wait_after_end(&mut self, version: u64) {
        let stream = self.stream.take();
        let is_early = stream.is_some_and(|stream| stream.opened_at.elapsed() < STABLE_AFTER);
        self.early_ends = if is_early { self.early_ends + 1 } else { 0 };
        tokio::time::sleep(BACKOFF_FIRST).await;
        let rest = backoff(self.early_ends).saturating_sub(BACKOFF_FIRST);
        let _sooner =
            tokio::time::timeout(rest, until_changed(self.listening, version, None)).await;
    }

    fn applied(&mut self, version: u64) {
        (self.failures, self.retry_after) = (0, None);
        self.listening.mark_applied(version, None);
    }

    async fn opened(&mut self, opened: FeedStream, version: u64) {
        let lists_are_older = self.listening.switch(opened.id);
        let former = self.stream.replace(opened);
        self.applied(version);
        let is_first = std::mem::replace(&mut self.is_first, false);
        if std::mem::take(&mut self.missed) {
            notify_gap(self.link, self.listening);
        } else if is_first && lists_are_older && self.link.scope == LinkScope::Catalog {
            self.link.backend.refresh();
        }
        if former.is_some() {
            tokio::time::sleep(LISTEN_OVERLAP).await;
        }
        self.listening.forget_former();
    }

    fn failed(&mut self, FeedOpenError { failure, refused }: FeedOpenError, version: u64) {
        let backend = &self.link.backend;
        self.missed |= self.stream.is_none();
        self.failures += 1;
        backend.early_ping.record_failure(&failure, backend.health.state() == BackendState::Ready);
        if self.failures == 1 {
            let redacted = backend.redactor.redact(&failure);
            tracing::info!(tenant = %backend.tenant, backend = %backend.id, failure = redacted, "the broker could not open the notification stream of the backend");
        }
        let pause =
            backoff(self.failures).max(failure.retry_after().unwrap_or_default().min(BACKOFF_MAX));
        // An equal request gets an equal refusal, until the backend is changed.
        self.retry_after = Some(if refused { LISTEN_REFUSED_PAUSE } else { pause });
        self.listening.mark_applied(version, (!refused).then_some(failure));
    }
}

/// Returns the wait after this number of failures in a row.
fn backoff(failures: u32) -> Duration {
    let ceiling = BACKOFF_FIRST.saturating_mul(1 << failures.min(10)).min(BACKOFF_MAX);
    ceiling.mul_f64(rand::random_range(0.5..1.0))
}

/// Waits until another filter is wanted, or until the backend announces the end of the stream.
async fn until_changed(listening: &NotificationFeed, version: u64, stream: Option<u64>) {
    loop {
        listening.changed.notified().await;
        if listening.wanted().1 != version || stream.is_some_and(|id| listening.is_ended(id)) {
            return;
        }
    }
}

/// Reason for which no stream was opened. `refused` is set if the backend does not support the
/// stream.
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
    let request = requests::broker_request(
        connection,
        link,
        Method::SubscriptionsListen,
        Some(params.as_bytes()),
        &identity,
        None,
    );
    let id = request.wire_id;
    listening.start_opening(id);
    let (end_tx, end) = oneshot::channel();
    let (to, over) = (connection.clone(), link.clone());
    let reading = link.backend.context.running.spawn(async move {
        let _receiver_dropped = end_tx.send(requests::send(&to, &over, request).await);
    });
    let opened_at = Instant::now();
    let mut stream = FeedStream { id, filter: filter.clone(), opened_at, reading, end };
    let limit = link.backend.timeouts().control;
    let outcome = tokio::time::timeout(limit, agreed(listening, &mut stream)).await;
    let failure = match outcome {
        Ok(Ok(agreed)) => {
            stream.filter.uris.retain(|uri| agreed.contains(uri));
            return Ok(stream);
        }
        Ok(Err(unopened)) => unopened,
        Err(_) => FeedOpenError {
            failure: Failure::TimedOut(Method::SubscriptionsListen),
            refused: false,
        },
    };
    listening.stop_opening();
    Err(failure)
}

/// Errors of a backend that does not support the stream. Any other error may pass.
const PERMANENT_ERRORS: [i64; 3] =
    [ErrorKind::MethodNotFound.code(), ErrorKind::InvalidParams.code(), MISSING_CLIENT_CAPABILITY];

/// Waits for the acknowledgement. Returns the resources that the backend agreed to.
async fn agreed(
    listening: &NotificationFeed,
    stream: &mut FeedStream,
) -> Result<BTreeSet<String>, FeedOpenError> {
    loop {
        if let Some(agreed) = listening.agreed_uris() {
            return Ok(agreed);
        }
        tokio::select! {
            biased; // the stream may end right behind its acknowledgement
            () = listening.acknowledged.notified() => {}
            end = &mut stream.end => {
                return Err(match end {
                    Ok(Err(failure)) => FeedOpenError { failure, refused: false },
                    Ok(Ok(answer)) if answer.kind == Kind::Error => {
                        let code = downgrade::error_code(&answer).unwrap_or_default();
                        let failure = Failure::busy(format!("the backend refused the notification stream with error {code}"));
                        FeedOpenError { failure, refused: PERMANENT_ERRORS.contains(&code) }
                    }
                    _ => FeedOpenError { failure: Failure::Protocol("the notification stream ended before the backend acknowledged it".to_owned()), refused: false },
                });
            }
        }
    }
}

/// Reports to the listeners of a feed that updates may have been missed.
fn notify_gap(link: &Arc<Link>, feed: &NotificationFeed) {
    for uri in &feed.wanted().0.uris {
        link.subscriptions.notify_listeners(&link.backend.id, uri);
    }
    if link.scope == LinkScope::Catalog {
        link.backend.refresh();
    }
}

/// The wait after a loss bounds the shortest time between two streams.
const _: () = assert!(LISTEN_OVERLAP.as_millis() < Duration::from_secs(1).as_millis());
