//! The lists of a session as its client was notified of them.

use std::{collections::HashSet, time::Instant};

use protocol::method::Method;
use rules::catalog::{ListDigests, ListKind};

/// The lists that the client has received or was notified of.
#[derive(Debug)]
pub(in crate::sessions) struct ListAnnouncements {
    /// The lists as they were last announced to the client.
    announced: ListDigests,
    /// Lists that changed before the client was ready for notifications.
    held_changes: HashSet<Method>,
    /// Set after an adoption. The lists are compared once the backends have had time to answer.
    unchecked: bool,
    /// Earliest next write of the announced lists. It is set when the event log did not hold their
    /// announcements yet.
    retry_at: Option<Instant>,
    /// Set once the event log had a GET stream with announcements.
    were_logged: bool,
}

impl ListAnnouncements {
    pub(in crate::sessions) fn new(announced: ListDigests) -> Self {
        Self {
            announced,
            held_changes: HashSet::new(),
            unchecked: false,
            retry_at: None,
            were_logged: false,
        }
    }

    pub(in crate::sessions) fn announced(&self) -> ListDigests {
        self.announced
    }

    /// Notes that lists of these kinds are announced to the client now, or as soon as it is ready.
    /// Lists of other kinds still differ, so that their own notification follows.
    pub(in crate::sessions) fn announce(&mut self, kinds: &[ListKind], now: ListDigests) {
        let pairs = ListKind::ALL.iter().zip(self.announced.iter_mut().zip(now));
        for (_, (announced, now)) in pairs.filter(|(kind, _)| kinds.contains(kind)) {
            *announced = now;
        }
    }

    /// Holds notifications back until the client is ready for them.
    pub(in crate::sessions) fn hold(&mut self, methods: &HashSet<Method>) {
        self.held_changes.extend(methods);
    }

    /// Returns the notifications that were held back.
    pub(in crate::sessions) fn take_held(&mut self) -> HashSet<Method> {
        std::mem::take(&mut self.held_changes)
    }

    /// Makes the next comparison necessary: the lists may have changed under an earlier owner.
    pub(in crate::sessions) fn set_unchecked(&mut self) {
        self.unchecked = true;
    }

    pub(in crate::sessions) fn is_unchecked(&self) -> bool {
        self.unchecked
    }

    /// Compares the announced lists with those of now, once after an adoption. Returns the lists
    /// that differ. `None` if they were compared already.
    pub(in crate::sessions) fn compare(&mut self, now: ListDigests) -> Option<Vec<ListKind>> {
        if !std::mem::take(&mut self.unchecked) {
            return None;
        }
        let changed = self.differing(now);
        self.announce(&changed, now);
        Some(changed)
    }

    /// Returns the lists that differ from the announced ones.
    pub(in crate::sessions) fn differing(&self, now: ListDigests) -> Vec<ListKind> {
        let pairs = ListKind::ALL.into_iter().zip(now.into_iter().zip(self.announced));
        pairs.filter(|(_, (now, announced))| now != announced).map(|(kind, _)| kind).collect()
    }

    /// Notes that the event log has a GET stream with announcements, or had one under an earlier
    /// owner.
    pub(in crate::sessions) fn set_logged(&mut self) {
        self.were_logged = true;
    }

    /// Returns whether the event log had a GET stream with announcements. If it has none any more,
    /// the client may have missed them.
    pub(in crate::sessions) fn were_logged(&self) -> bool {
        self.were_logged
    }

    /// Returns whether the announced lists may be written at `now`.
    pub(in crate::sessions) fn may_write(&self, now: Instant) -> bool {
        self.retry_at.is_none_or(|moment| moment <= now)
    }

    /// Delays the next write of the announced lists.
    pub(in crate::sessions) fn delay_write(&mut self, until: Instant) {
        self.retry_at = Some(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_compared_once_after_an_adoption() {
        let mut lists = ListAnnouncements::new([1, 2, 3, 4]);
        assert_eq!(lists.compare([0; 4]), None, "they are known from the start");
        lists.set_unchecked();
        let changed = lists.compare([1, 9, 3, 4]);
        assert_eq!(changed, Some(vec![ListKind::ALL[1]]));
        assert_eq!((lists.announced(), lists.is_unchecked()), ([1, 9, 3, 4], false));
    }

    #[test]
    fn a_list_that_changes_during_an_announcement_is_announced_after_it() {
        let mut lists = ListAnnouncements::new([1, 2, 3, 4]);
        let tools = lists.differing([9, 2, 3, 4]);
        assert_eq!(tools, [ListKind::Tools]);
        // Prompts change before the tools are announced.
        let now = [9, 8, 3, 4];
        lists.announce(&tools, now);
        assert_eq!(lists.announced(), [9, 2, 3, 4]);
        assert_eq!(lists.differing(now), [ListKind::Prompts]);
    }

    #[test]
    fn held_changes_are_sent_once_each() {
        let mut lists = ListAnnouncements::new([0; 4]);
        lists.hold(&HashSet::from([Method::ToolsListChanged]));
        lists.hold(&HashSet::from([Method::ToolsListChanged, Method::PromptsListChanged]));
        assert_eq!(lists.take_held().len(), 2);
        assert!(lists.take_held().is_empty());
    }

    #[test]
    fn a_delayed_write_waits_until_its_time() {
        let (mut lists, now) = (ListAnnouncements::new([0; 4]), Instant::now());
        assert!(lists.may_write(now));
        lists.delay_write(now + std::time::Duration::from_secs(1));
        assert!(!lists.may_write(now));
        assert!(lists.may_write(now + std::time::Duration::from_secs(1)));
    }
}
