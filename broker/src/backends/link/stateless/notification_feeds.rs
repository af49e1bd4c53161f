//! The feeds of one connection to a stateless backend. Each has a stream of its own, which ends and
//! opens again without the others.
//!
//! Servers limit the resources of one stream. So one feed takes [`LISTEN_URIS_MAX`] resources, and
//! further ones get another feed, up to [`LISTEN_STREAMS_MAX`] feeds. Above that, feeds take more
//! resources. The first feed also has the changes of lists.
//!
//! The lock of the feeds is taken before that of a feed.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use protocol::envelope::Message;
use rules::limits::{LISTEN_STREAMS_MAX, LISTEN_URIS_MAX};

use super::notification_feed::{NotificationFeed, stream_id};

#[derive(Debug, Default)]
pub(in crate::backends::link) struct NotificationFeeds {
    state: Mutex<FeedsState>,
}

#[derive(Debug, Default)]
struct FeedsState {
    first: Arc<NotificationFeed>,
    further: Vec<Arc<NotificationFeed>>,
    /// Set once the resources of all clients of the link were added.
    has_link_uris: bool,
}

impl FeedsState {
    fn all(&self) -> impl Iterator<Item = &Arc<NotificationFeed>> {
        std::iter::once(&self.first).chain(&self.further)
    }

    /// Returns the feed that has a resource, or the one that has to take it.
    fn feed_for(&mut self, uri: &str) -> Arc<NotificationFeed> {
        if let Some(known) = self.all().find(|feed| feed.lock().uris.contains(uri)) {
            return known.clone();
        }
        let count = |feed: &Arc<NotificationFeed>| feed.lock().uris.len();
        let smallest = self.all().min_by_key(|feed| count(feed)).unwrap_or(&self.first);
        if count(smallest) < LISTEN_URIS_MAX || self.all().count() >= LISTEN_STREAMS_MAX {
            return smallest.clone();
        }
        let new = Arc::<NotificationFeed>::default();
        self.further.push(new.clone());
        new
    }
}

impl NotificationFeeds {
    /// Returns the feed that also has the changes of lists.
    pub(in crate::backends::link) fn first(&self) -> Arc<NotificationFeed> {
        self.lock().first.clone()
    }

    pub(super) fn all(&self) -> Vec<Arc<NotificationFeed>> {
        self.lock().all().cloned().collect()
    }

    /// Subscribes to a resource. Returns its feed, and the version of the feed's filter with it.
    /// `None`: the backend has agreed to it on the current stream. `link_uris` returns the resources
    /// of all clients of the link. They are in the first filters, because after a loss the broker
    /// restores them one by one.
    pub(super) fn want(
        &self,
        uri: &str,
        link_uris: impl FnOnce() -> Vec<String>,
    ) -> Option<(Arc<NotificationFeed>, u64)> {
        let mut state = self.lock();
        // Once: a client whose resource the backend has just refused may still be listed.
        if !std::mem::replace(&mut state.has_link_uris, true) {
            for uri in link_uris() {
                state.feed_for(&uri).want(&uri);
            }
        }
        let feed = state.feed_for(uri);
        let version = feed.want(uri)?;
        Some((feed, version))
    }

    /// Unsubscribes from a resource.
    pub(super) fn unsubscribe(&self, uri: &str) {
        self.lock().all().for_each(|feed| feed.unsubscribe(uri));
    }

    /// Stores the filter that the backend agreed to.
    pub(super) fn acknowledged(&self, message: &Message) {
        self.lock().all().for_each(|feed| feed.acknowledged(message));
    }

    /// Notes that the backend ends a stream.
    pub(super) fn ended(&self, message: &Message) {
        self.lock().all().for_each(|feed| feed.ended(message));
    }

    /// Returns whether a notification is new, and counts it.
    pub(super) fn admits(&self, message: &Message) -> bool {
        let Some(id) = stream_id(message) else { return false };
        let feed = self.lock().all().find(|feed| feed.counts(id)).cloned();
        feed.is_some_and(|feed| feed.admits(message))
    }

    /// Returns the wire ids of the streams in use.
    pub(in crate::backends::link) fn open_streams(&self) -> Vec<u64> {
        self.lock().all().flat_map(|feed| feed.open_streams()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, FeedsState> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(feeds: &NotificationFeeds, number: usize) {
        feeds.want(&format!("a:{number}"), Vec::new);
    }

    /// Returns the number of resources of each feed.
    fn counts(feeds: &NotificationFeeds) -> Vec<usize> {
        feeds.all().iter().map(|feed| feed.wanted().0.uris.len()).collect()
    }

    #[test]
    fn br_05_a_full_feed_leaves_further_resources_to_another() {
        let feeds = NotificationFeeds::default();
        (0..=LISTEN_URIS_MAX).for_each(|number| want(&feeds, number));
        assert_eq!(counts(&feeds), [LISTEN_URIS_MAX, 1]);
        want(&feeds, 0);
        assert_eq!(counts(&feeds), [LISTEN_URIS_MAX, 1], "a resource stays where it is");
        feeds.unsubscribe("a:0");
        feeds.unsubscribe(&format!("a:{LISTEN_URIS_MAX}"));
        assert_eq!(counts(&feeds), [LISTEN_URIS_MAX - 1, 0]);
        want(&feeds, 0);
        assert_eq!(counts(&feeds), [LISTEN_URIS_MAX - 1, 1], "the smallest feed takes it");
    }

    #[test]
    fn br_05_the_number_of_streams_is_bounded() {
        let feeds = NotificationFeeds::default();
        let fit = LISTEN_URIS_MAX * LISTEN_STREAMS_MAX;
        (0..fit + LISTEN_STREAMS_MAX).for_each(|number| want(&feeds, number));
        assert_eq!(counts(&feeds), [LISTEN_URIS_MAX + 1; LISTEN_STREAMS_MAX]);
    }

    #[test]
    fn br_05_the_resources_of_a_link_are_added_once() {
        let feeds = NotificationFeeds::default();
        let of_link = || -> Vec<String> {
            (0..=LISTEN_URIS_MAX).map(|number| format!("a:{number}")).collect()
        };
        feeds.want("a:1", of_link);
        assert_eq!(counts(&feeds), [LISTEN_URIS_MAX, 1]);
        feeds.unsubscribe("a:0");
        feeds.want("a:2", of_link);
        assert_eq!(counts(&feeds), [LISTEN_URIS_MAX - 1, 1]);
    }
}
