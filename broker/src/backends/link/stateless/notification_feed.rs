//! The notifications of a stateless backend: what is wanted, and which streams count (MCP
//! 2026-07-28, Subscriptions). [`super::feed_streams`] opens the streams.
//!
//! While one stream replaces another, a notification on both counts once.
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
    /// The failure of the request. `None`: the backend answered it.
    pub(super) failure: Option<Failure>,
}

#[derive(Debug, Default)]
pub(super) struct FeedState {
    pub(super) uris: BTreeSet<String>,
    pub(super) lists: SubscriptionFilter,
    /// Version of the wanted filter. Each change increments it.
    pub(super) version: u64,
    /// Resources that the backend agreed to on the current stream.
    pub(super) accepted: BTreeSet<String>,
    pub(super) current: Option<u64>,
    /// The previous stream, while its notifications still count.
    former: Option<u64>,
    /// Notifications on both streams, with the number of times that each stream carried them.
    overlap: HashMap<String, OverlapCounts>,
    /// A stream that is being opened, and the filter that the backend agreed to.
    pub(super) opening: Option<(u64, Option<SubscriptionFilter>)>,
    /// Streams that the backend announced to end.
    ended: BTreeSet<u64>,
    pub(super) running: bool,
    /// Set once a list was requested on the connection.
    pub(super) has_read_lists: bool,
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
            applied: watch::Sender::default(),
        }
    }
}

impl NotificationFeed {
    /// Unsubscribes from a resource.
    pub(super) fn unsubscribe(&self, uri: &str) {
        let mut state = self.lock();
        if state.uris.remove(uri) {
            state.accepted.remove(uri);
            state.version += 1;
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
        let carried = if is_current { &mut counts.current } else { &mut counts.former };
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
        self.applied.send_modify(|applied| {
            if version >= applied.version {
                *applied = FeedAttempt { version, failure };
            }
        });
    }

    /// Makes the opened stream the current one. Returns whether a list was requested before.
    pub(super) fn switch(&self, id: u64) -> bool {
        let mut state = self.lock();
        let agreed = state.opening.take().and_then(|(_, agreed)| agreed).unwrap_or_default();
        state.accepted = agreed.uris.into_iter().collect();
        state.former = state.current.replace(id);
        state.overlap.clear();
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

    /// Returns whether the backend announced the end of this stream.
    pub(super) fn is_ended(&self, id: u64) -> bool {
        self.lock().ended.contains(&id)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, FeedState> {
        self.state.lock()
    }
}

fn stream_id(message: &Message) -> Option<u64> {
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

    fn opened(listening: &NotificationFeed, id: u64) {
        listening.lock().opening = Some((id, None));
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"notifications":{{"resourceSubscriptions":["a:b"]}},"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}}}"#
        );
        listening.acknowledged(&decoded(Bytes::from(text)).unwrap());
        listening.switch(id);
    }

    #[test]
    fn nb_sub_02_a_notification_of_an_unknown_stream_is_dropped() {
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
