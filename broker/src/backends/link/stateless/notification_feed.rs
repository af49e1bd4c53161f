//! The stream of notifications of a stateless backend (MCP 2026-07-28, Subscriptions). Each
//! connection has one, for all clients behind it.
//!
//! A filter cannot change. When the wanted resources change, the broker opens another stream. It
//! closes the old one [`LISTEN_OVERLAP`] after the backend acknowledged the new one. A notification
//! on both streams counts once. After a lost stream is open again, each listener gets a
//! notification, because updates may have been missed.
//!
//! Invariant: a notification with the id of another stream is dropped.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use protocol::{
    envelope::{Kind, Message},
    ids::RequestId,
    method::Method,
    stateless::{downgrade, results::SubscriptionFilter},
};
use rules::limits::{BACKOFF_FIRST, BACKOFF_MAX, LISTEN_OVERLAP};
use tokio::{
    sync::{Notify, oneshot, watch},
    task::JoinHandle,
};

use super::requests::{self, RequestIdentity};
use crate::backends::link::{Link, connection::Connection, failure::Failure};

#[derive(Debug)]
pub(in crate::backends::link) struct NotificationFeed {
    state: Mutex<FeedState>,
    /// Notified when the wanted lists or resources change.
    changed: Notify,
    /// Notified when a stream is acknowledged.
    acknowledged: Notify,
    /// Number of the last wish that the backend knows.
    told: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct FeedState {
    uris: BTreeSet<String>,
    lists: SubscriptionFilter,
    /// Number of the last wish.
    wish: u64,
    /// Resources that the backend agreed to on the current stream.
    accepted: BTreeSet<String>,
    current: Option<u64>,
    /// The previous stream, while its notifications still count.
    former: Option<u64>,
    /// Notifications on both streams, with the number of times that each stream carried them.
    overlap: HashMap<String, OverlapCounts>,
    /// A stream that is being opened, and the filter that the backend agreed to.
    opening: Option<(u64, Option<SubscriptionFilter>)>,
    /// Streams that the backend announced to end.
    ended: BTreeSet<u64>,
    running: bool,
}

#[derive(Debug, Default)]
struct OverlapCounts {
    taken: u32,
    current: u32,
    former: u32,
}

impl Default for NotificationFeed {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            changed: Notify::new(),
            acknowledged: Notify::new(),
            told: watch::Sender::new(0),
        }
    }
}

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

impl NotificationFeed {
    /// Adds changes of these lists to the wanted notifications.
    pub(in crate::backends::link) fn watch_lists(
        &self,
        connection: &Arc<Connection>,
        link: &Arc<Link>,
        lists: SubscriptionFilter,
    ) {
        {
            let mut state = self.lock();
            state.lists = lists;
            state.wish += 1;
        }
        self.run(connection, link);
    }

    /// Subscribes to updates of a resource. Returns `true` if the backend agreed.
    pub(in crate::backends::link) async fn subscribe(
        &self,
        connection: &Arc<Connection>,
        link: &Arc<Link>,
        uri: &str,
    ) -> bool {
        let wish = {
            let mut state = self.lock();
            if state.current.is_some() && state.accepted.contains(uri) {
                return true;
            }
            // All wanted resources in one filter: after a loss, they are restored one by one.
            state.uris.extend(link.subscriptions.counts().into_iter().map(|(uri, _)| uri));
            state.uris.insert(uri.to_owned());
            state.wish += 1;
            state.wish
        };
        self.run(connection, link);
        let mut told = self.told.subscribe();
        let _closed = told.wait_for(|told| *told >= wish).await;
        let mut state = self.lock();
        let accepted = state.accepted.contains(uri);
        if !accepted {
            state.uris.remove(uri);
        }
        accepted
    }

    /// Unsubscribes from a resource.
    pub(in crate::backends::link) fn unsubscribe(&self, uri: &str) {
        let mut state = self.lock();
        if state.uris.remove(uri) {
            state.accepted.remove(uri);
            state.wish += 1;
            self.changed.notify_one();
        }
    }

    /// Stores the filter that the backend agreed to.
    pub(super) fn acknowledged(&self, message: &Message) {
        let Some(id) = stream_id(message) else { return };
        let filter = message
            .bytes(message.fields.notifications)
            .and_then(|text| SubscriptionFilter::parse(text).ok());
        let mut state = self.lock();
        if let Some((opening, agreed)) = &mut state.opening
            && *opening == id
        {
            *agreed = Some(filter.unwrap_or_default());
            self.acknowledged.notify_one();
        }
    }

    /// Notes that the backend ends a stream (MCP 2026-07-28, Cancellation: only streams).
    pub(super) fn ended(&self, message: &Message) {
        let Some(span) = message.fields.request_id else { return };
        let Some(id) = RequestId::from_raw(span.slice(&message.frame)).as_u64() else { return };
        let mut state = self.lock();
        if state.current == Some(id)
            || state.opening.as_ref().is_some_and(|(opening, _)| *opening == id)
        {
            state.ended.insert(id);
            self.changed.notify_one();
        }
    }

    /// Returns whether a notification is new, and counts it.
    pub(super) fn admits(&self, message: &Message) -> bool {
        let Some(id) = stream_id(message) else { return false };
        let mut state = self.lock();
        let is_current = state.current == Some(id);
        if !is_current && state.former != Some(id) {
            return false;
        }
        if state.former.is_none() {
            return true;
        }
        let what = format!(
            "{} {}",
            message.method.name(),
            message.text(message.fields.uri).unwrap_or_default()
        );
        let counts = state.overlap.entry(what).or_default();
        let said = if is_current { &mut counts.current } else { &mut counts.former };
        *said += 1;
        let is_news = *said > counts.taken;
        counts.taken = counts.taken.max(*said);
        is_news
    }

    fn run(&self, connection: &Arc<Connection>, link: &Arc<Link>) {
        let begins = !std::mem::replace(&mut self.lock().running, true);
        self.changed.notify_one();
        if begins {
            link.backend.shared.running.spawn(keep_open(link.clone(), connection.clone()));
        }
    }

    /// Returns the wanted filter and the number of its wish.
    fn wanted(&self) -> (SubscriptionFilter, u64) {
        let state = self.lock();
        (
            SubscriptionFilter {
                uris: state.uris.iter().cloned().collect(),
                ..state.lists.clone()
            },
            state.wish,
        )
    }

    fn settle(&self, wish: u64) {
        self.told.send_modify(|told| *told = (*told).max(wish));
    }

    /// Makes the opened stream the current one.
    fn switch(&self, id: u64) {
        let mut state = self.lock();
        let agreed = state.opening.take().and_then(|(_, agreed)| agreed).unwrap_or_default();
        state.accepted = agreed.uris.into_iter().collect();
        state.former = state.current.replace(id);
        state.overlap.clear();
    }

    fn forget_former(&self) {
        let mut state = self.lock();
        state.former = None;
        state.overlap.clear();
    }

    fn lost(&self) {
        let mut state = self.lock();
        state.current = None;
        state.accepted.clear();
        state.ended.clear();
    }

    /// Returns whether the backend announced the end of this stream.
    fn is_ended(&self, id: u64) -> bool {
        self.lock().ended.contains(&id)
    }

    fn lock(&self) -> MutexGuard<'_, FeedState> {
        self.state.lock()
    }
}

fn stream_id(message: &Message) -> Option<u64> {
    downgrade::subscription_id(message)?.as_u64()
}

/// Keeps a stream with the wanted filter open until the connection closes.
async fn keep_open(link: Arc<Link>, connection: Arc<Connection>) {
    let Some(modern) = connection.modern().cloned() else { return };
    tokio::select! {
        () = follow_wishes(&link, &connection, &modern.listening) => {}
        () = connection.closed() => {}
    }
    modern.listening.lost();
    modern.listening.settle(u64::MAX); // an answer that will not come has no waiter
}

async fn follow_wishes(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    listening: &NotificationFeed,
) {
    let mut stream: Option<FeedStream> = None;
    let mut told = None;
    let mut missed = false;
    let mut failures = 0_u32;
    loop {
        let (filter, wish) = listening.wanted();
        if filter == SubscriptionFilter::default() {
            stream = None;
            listening.lost();
            (told, missed, failures) = (Some(wish), false, 0);
            listening.settle(wish);
        }
        if told != Some(wish) || (stream.is_none() && filter != SubscriptionFilter::default()) {
            match open(link, connection, listening, &filter).await {
                Ok(opened) => {
                    listening.switch(opened.id);
                    let former = stream.replace(opened);
                    (told, failures) = (Some(wish), 0);
                    listening.settle(wish);
                    if std::mem::take(&mut missed) {
                        tell_gap(link);
                    }
                    if former.is_some() {
                        tokio::time::sleep(LISTEN_OVERLAP).await;
                    }
                    listening.forget_former();
                }
                Err(FeedOpenError { failure, refused }) => {
                    told = Some(wish);
                    failures += 1;
                    if failures == 1 {
                        let told = link.backend.redactor.redact(&failure);
                        tracing::info!(backend = %link.backend.id, failure = told, "the backend does not announce changes");
                    }
                    listening.settle(wish);
                    // An equal request would get an equal refusal.
                    if refused && stream.is_none() {
                        while listening.wanted().1 == wish {
                            listening.changed.notified().await;
                        }
                        continue;
                    }
                }
            }
        }
        let ended = match &mut stream {
            Some(stream) => {
                tokio::select! {
                    end = &mut stream.end => Some(end.is_ok_and(|end| end.is_ok_and(|answer| answer.kind == Kind::Result))),
                    () = listening.changed.notified() => listening.is_ended(stream.id).then_some(true),
                }
            }
            None if failures > 0 => {
                let pause = BACKOFF_FIRST
                    .saturating_mul(1 << failures.min(10))
                    .min(BACKOFF_MAX)
                    .mul_f64(rand::random_range(0.5..1.0));
                let _sooner = tokio::time::timeout(pause, listening.changed.notified()).await;
                None
            }
            None => {
                listening.changed.notified().await;
                None
            }
        };
        if let Some(gracefully) = ended {
            tracing::debug!(backend = %link.backend.id, gracefully, "the backend's notifications ended");
            stream = None;
            listening.lost();
            missed = true;
            tokio::time::sleep(BACKOFF_FIRST).await;
        }
    }
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
    let speaker = RequestIdentity::broker(connection, link);
    let request = requests::own(
        connection,
        link,
        Method::SubscriptionsListen,
        Some(params.as_bytes()),
        &speaker,
        None,
    );
    let id = request.wire_id;
    listening.lock().opening = Some((id, None));
    let (tell, end) = oneshot::channel();
    let (to, over) = (connection.clone(), link.clone());
    let reading = link.backend.shared.running.spawn(async move {
        let _nobody_waits = tell.send(requests::send(&to, &over, request).await);
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
                        let failure = Failure::Protocol(format!("it refused with error {}", downgrade::error_code(&answer).unwrap_or_default()));
                        FeedOpenError { failure, refused: true }
                    }
                    _ => FeedOpenError { failure: Failure::Protocol("it ended before it was acknowledged".to_owned()), refused: false },
                });
            }
        }
    }
}

/// Reports to the listeners that updates may have been missed.
fn tell_gap(link: &Arc<Link>) {
    link.subscriptions.notify_gaps(link);
    if link.is_catalog() {
        link.backend.refresh();
    }
}

/// The wait after a loss bounds the shortest time between two streams.
const _: () = assert!(LISTEN_OVERLAP.as_millis() < Duration::from_secs(1).as_millis());

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rules::tasks::decoded;

    use super::*;

    fn updated(stream: u64) -> Message {
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"a:b","_meta":{{"io.modelcontextprotocol/subscriptionId":{stream}}}}}}}"#
        );
        decoded(Bytes::from(text)).unwrap()
    }

    fn opened(listening: &NotificationFeed, id: u64) {
        listening.lock().opening = Some((id, None));
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"notifications":{{"resourceSubscriptions":["a:b"]}},"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}}}"#
        );
        listening.acknowledged(&decoded(Bytes::from(text)).unwrap());
        listening.switch(id);
    }

    #[test]
    fn nb_sub_02_what_comes_on_no_stream_of_ours_is_dropped() {
        let listening = NotificationFeed::default();
        assert!(!listening.admits(&updated(1)), "no stream is open");
        opened(&listening, 7);
        assert!(
            listening.admits(&updated(7))
                && listening.admits(&updated(7))
                && !listening.admits(&updated(8))
        );
        assert!(listening.lock().accepted.contains("a:b"));
    }

    #[test]
    fn br_05_what_two_streams_bring_is_taken_once() {
        let listening = NotificationFeed::default();
        opened(&listening, 1);
        opened(&listening, 2);
        assert!(listening.admits(&updated(2)) && !listening.admits(&updated(1)), "the same, twice");
        assert!(listening.admits(&updated(1)) && !listening.admits(&updated(2)), "the next, twice");
        assert!(listening.admits(&updated(1)), "on its way before the other stream was there");
        listening.forget_former();
        assert!(listening.admits(&updated(2)) && !listening.admits(&updated(1)));
    }
}
