//! One feed of notifications of a stateless backend: what is wanted, and which streams count (MCP
//! 2026-07-28, Subscriptions). [`super::feed_streams`] opens the streams.
//!
//! A stream counts from its acknowledgement on. While one stream replaces another, a notification on
//! both counts once.
//!
//! Invariant: a notification with the id of another stream is dropped.

use std::collections::{BTreeSet, HashMap};

use parking_lot::{Mutex, MutexGuard};
use protocol::{
    envelope::Message,
    ids::RequestId,
    stateless::{downgrade, results::SubscriptionFilter},
};
use tokio::sync::{Notify, watch};

use crate::backends::link::failure::Failure;

#[derive(Debug)]
pub(in crate::backends::link) struct NotificationFeed {
    state: Mutex<FeedState>,
    /// Notified when the wanted lists or resources change.
    pub(super) changed: Notify,
    /// Notified when a stream is acknowledged.
    pub(super) acknowledged: Notify,
    /// The last attempt to open a stream.
    pub(super) applied: watch::Sender<FeedAttempt>,
}

/// An attempt to open a stream with the wanted filter.
#[derive(Debug, Default)]
pub(super) struct FeedAttempt {
    pub(super) version: u64,
    /// Resources that the backend had agreed to after the attempt. The stream may have ended since.
    pub(super) accepted: BTreeSet<String>,
    /// The failure of the request. `None`: the backend answered it.
    pub(super) failure: Option<Failure>,
}

#[derive(Debug, Default)]
pub(super) struct FeedState {
    pub(super) uris: BTreeSet<String>,
    pub(super) lists: SubscriptionFilter,
    /// Version of the wanted filter. Each change increments it.
    pub(super) version: u64,
    /// Resources that the backend agreed to on the current stream. Some may not be wanted any more.
    pub(super) accepted: BTreeSet<String>,
    current: Option<u64>,
    /// The previous stream, while its notifications still count.
    former: Option<u64>,
    /// Notifications on both streams, with the number of times that each stream carried them.
    overlap: HashMap<String, OverlapCounts>,
    /// A stream that is being opened, and the wanted resources that the backend agreed to.
    opening: Option<(u64, Option<BTreeSet<String>>)>,
    /// Streams that the backend announced to end.
    ended: BTreeSet<u64>,
    pub(super) running: bool,
    /// Set once a list was requested on the connection.
    pub(super) has_read_lists: bool,
}

/// Number of times that a notification was taken, and that each stream carried it.
#[derive(Debug, Default)]
struct OverlapCounts {
    taken: u32,
    newer: u32,
    older: u32,
}

impl FeedState {
    /// Returns the newest acknowledged stream, and the one that it replaces. Notifications on both
    /// count.
    fn counted_streams(&self) -> (Option<u64>, Option<u64>) {
        match &self.opening {
            Some((opening, Some(_))) => (Some(*opening), self.current),
            _ => (self.current, self.former),
        }
    }
}

impl Default for NotificationFeed {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            changed: Notify::new(),
            acknowledged: Notify::new(),
            applied: watch::Sender::default(),
        }
    }
}

impl NotificationFeed {
    /// Subscribes to a resource. Returns the version of the filter with it. `None`: the backend has
    /// agreed to it on the current stream.
    pub(super) fn want(&self, uri: &str) -> Option<u64> {
        let mut state = self.lock();
        if state.current.is_some() && state.accepted.contains(uri) && state.uris.contains(uri) {
            return None;
        }
        state.uris.insert(uri.to_owned());
        state.version += 1;
        Some(state.version)
    }

    /// Unsubscribes from a resource. The current stream keeps it until the filter is applied.
    pub(super) fn unsubscribe(&self, uri: &str) {
        let mut state = self.lock();
        if state.uris.remove(uri) {
            state.version += 1;
            self.changed.notify_one();
        }
    }

    /// Notes the stream that is being opened.
    pub(super) fn start_opening(&self, id: u64) {
        self.lock().opening = Some((id, None));
    }

    /// Forgets the stream that could not be opened.
    pub(super) fn stop_opening(&self) {
        let mut state = self.lock();
        state.opening = None;
        state.overlap.clear();
    }

    /// Returns the resources that the backend agreed to on the stream that is being opened. `None`:
    /// the backend has not acknowledged it yet.
    pub(super) fn agreed_uris(&self) -> Option<BTreeSet<String>> {
        self.lock().opening.as_ref().and_then(|(_, agreed)| agreed.clone())
    }

    /// Stores the filter that the backend agreed to. Resources that are not wanted are left out, so
    /// that the backend does not decide about their number.
    pub(super) fn acknowledged(&self, message: &Message) {
        let Some(id) = stream_id(message) else { return };
        let filter = message
            .bytes(message.fields.notifications)
            .and_then(|text| SubscriptionFilter::parse(text).ok());
        let mut state = self.lock();
        let FeedState { opening, uris, overlap, .. } = &mut *state;
        if let Some((opening, agreed @ None)) = opening
            && *opening == id
        {
            let given = filter.unwrap_or_default().uris.into_iter();
            *agreed = Some(given.filter(|uri| uris.contains(uri)).collect());
            overlap.clear();
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

    /// Returns whether the notifications of this stream count.
    pub(super) fn counts(&self, id: u64) -> bool {
        let (newer, older) = self.lock().counted_streams();
        [newer, older].contains(&Some(id))
    }

    /// Returns whether a notification is new, and counts it.
    pub(super) fn admits(&self, message: &Message) -> bool {
        let Some(id) = stream_id(message) else { return false };
        let mut state = self.lock();
        let (newer, older) = state.counted_streams();
        let is_newer = newer == Some(id);
        if !is_newer && older != Some(id) {
            return false;
        }
        if older.is_none() {
            return true;
        }
        let what = format!(
            "{} {}",
            message.method.name(),
            message.text(message.fields.uri).unwrap_or_default()
        );
        let counts = state.overlap.entry(what).or_default();
        let carried = if is_newer { &mut counts.newer } else { &mut counts.older };
        *carried += 1;
        let is_new = *carried > counts.taken;
        counts.taken = counts.taken.max(*carried);
        is_new
    }

    /// Returns the wanted filter and its version.
    pub(super) fn wanted(&self) -> (SubscriptionFilter, u64) {
        let state = self.lock();
        (
            SubscriptionFilter {
                uris: state.uris.iter().cloned().collect(),
                ..state.lists.clone()
            },
            state.version,
        )
    }

    pub(super) fn mark_applied(&self, version: u64, failure: Option<Failure>) {
        let accepted = self.lock().accepted.clone();
        self.applied.send_modify(|applied| {
            if version >= applied.version {
                *applied = FeedAttempt { version, accepted, failure };
            }
        });
    }

    /// Makes the opened stream the current one. Returns whether a list was requested before.
    pub(super) fn switch(&self, id: u64) -> bool {
        let mut state = self.lock();
        let agreed = state.opening.take().and_then(|(_, agreed)| agreed);
        state.accepted = agreed.unwrap_or_default();
        state.former = state.current.replace(id);
        state.has_read_lists
    }

    pub(super) fn forget_former(&self) {
        let mut state = self.lock();
        state.former = None;
        state.overlap.clear();
    }

    pub(super) fn lost(&self) {
        let mut state = self.lock();
        state.current = None;
        state.accepted.clear();
        state.ended.clear();
    }

    /// Returns the wire ids of the streams in use.
    pub(in crate::backends::link) fn open_streams(&self) -> Vec<u64> {
        let state = self.lock();
        [state.current, state.former].into_iter().flatten().collect()
    }

    /// Returns whether the backend announced the end of this stream.
    pub(super) fn is_ended(&self, id: u64) -> bool {
        self.lock().ended.contains(&id)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, FeedState> {
        self.state.lock()
    }
}

/// Returns the wire id of the stream of a notification.
pub(super) fn stream_id(message: &Message) -> Option<u64> {
    downgrade::subscription_id(message)?.as_u64()
}

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

    /// Lets the backend agree to `a:b` and to a resource that was not requested.
    fn acknowledge(listening: &NotificationFeed, id: u64) {
        listening.start_opening(id);
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"notifications":{{"resourceSubscriptions":["a:b","a:other","a:b"]}},"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}}}"#
        );
        listening.acknowledged(&decoded(Bytes::from(text)).unwrap());
    }

    fn opened(listening: &NotificationFeed, id: u64) {
        acknowledge(listening, id);
        listening.switch(id);
    }

    #[test]
    fn nb_sub_02_a_notification_of_an_unknown_stream_is_dropped() {
        let listening = NotificationFeed::default();
        listening.want("a:b");
        assert!(!listening.admits(&updated(1)), "no stream is open");
        opened(&listening, 7);
        assert!(
            listening.admits(&updated(7))
                && listening.admits(&updated(7))
                && !listening.admits(&updated(8))
        );
        assert_eq!(listening.lock().accepted, BTreeSet::from(["a:b".to_owned()]), "as requested");
    }

    #[test]
    fn nb_sub_02_a_notification_right_behind_the_acknowledgement_counts() {
        let listening = NotificationFeed::default();
        listening.start_opening(1);
        assert!(!listening.admits(&updated(1)), "the stream is not acknowledged");
        acknowledge(&listening, 1);
        assert!(listening.admits(&updated(1)), "before the stream is in use");
        listening.switch(1);
        acknowledge(&listening, 2);
        assert!(listening.admits(&updated(2)) && !listening.admits(&updated(1)), "the same, twice");
        listening.switch(2);
        assert!(listening.admits(&updated(1)) && !listening.admits(&updated(2)), "the next, twice");
        listening.forget_former();
        acknowledge(&listening, 3);
        listening.stop_opening();
        assert!(listening.admits(&updated(2)) && !listening.admits(&updated(3)), "it failed");
    }

    #[test]
    fn br_05_a_resource_is_wanted_again_while_its_stream_is_open() {
        let listening = NotificationFeed::default();
        assert_eq!(listening.want("a:b"), Some(1));
        opened(&listening, 7);
        assert_eq!(listening.want("a:b"), None, "the backend has agreed");
        listening.unsubscribe("a:b");
        let version = listening.want("a:b");
        assert_eq!((version, listening.wanted().1), (Some(3), 3));
        // The filter is that of the stream again, so the backend does not answer it once more.
        assert!(listening.lock().accepted.contains("a:b"));
    }

    #[test]
    fn nb_sub_01_a_stream_that_ended_at_once_was_agreed_to() {
        let listening = NotificationFeed::default();
        let version = listening.want("a:b").unwrap();
        opened(&listening, 7);
        listening.mark_applied(version, None);
        listening.lost();
        let attempt = listening.applied.borrow();
        assert!(attempt.version == version && attempt.accepted.contains("a:b"));
        assert!(!listening.lock().accepted.contains("a:b"), "no stream has it now");
    }

    #[test]
    fn br_05_a_notification_on_two_streams_is_accepted_once() {
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
