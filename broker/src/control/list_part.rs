//! Parts of the lists of sessions and tasks, which are too long for one answer. A part begins after a
//! key and is complete up to another one, after which the next part begins.
//!
//! Keys sort like the times of creation. A stored row and the view of it may have different times,
//! so a part omits the views behind its end: the next part has them.

use jiff::Timestamp;

/// Sorts after every id of an entry.
const AFTER_IDS: &str = "~";

/// Requested part of a list.
#[derive(Debug, Clone, Copy)]
pub struct ListRange<'a> {
    /// Key of the last entry of the part before.
    pub after: Option<&'a str>,
    /// Entries after which the reading of the store ends.
    pub entries_max: usize,
}

impl ListRange<'_> {
    /// Returns the time after which the first rows of the part were stored, in microseconds.
    pub(super) fn after_us(&self) -> Option<i64> {
        let (created_at, _) = self.after?.split_once('/')?;
        let created_at: Timestamp = created_at.parse().ok()?;
        // Rows of the same time may be in the part.
        Some(created_at.as_microsecond().saturating_sub(1))
    }
}

/// Returns the key of an entry.
pub fn creation_key(created_at: &str, id: &str) -> String {
    // The times of views are valid. Nine digits of the second make all keys comparable.
    let created_at: Timestamp = created_at.parse().unwrap_or_default();
    format!("{created_at:.9}/{id}")
}

/// Returns the key after all entries of a time, in microseconds.
fn end_key(us: i64) -> String {
    let end = Timestamp::from_microsecond(us).unwrap_or_default();
    format!("{end:.9}/{AFTER_IDS}")
}

/// Part of a list, in any order.
#[derive(Debug)]
pub struct ListPart<View> {
    pub entries: Vec<View>,
    /// Key up to which the entries are complete. `None`: to the end of the list.
    pub complete_to: Option<String>,
}

impl<View> Default for ListPart<View> {
    fn default() -> Self {
        Self { entries: Vec::new(), complete_to: None }
    }
}

impl<View> ListPart<View> {
    /// Adds the part of another tenant. The whole is complete up to the nearer end of the two.
    pub fn add(&mut self, other: Self) {
        self.entries.extend(other.entries);
        self.complete_to = match (self.complete_to.take(), other.complete_to) {
            (Some(one), Some(another)) => Some(one.min(another)),
            (one, another) => one.or(another),
        };
    }
}

/// Collects a part from rows in the order of their creation.
pub(super) struct PartReader<'a, View> {
    range: ListRange<'a>,
    key: fn(&View) -> String,
    part: ListPart<View>,
    /// Time of the row with which the part had enough entries. All rows of this time are in it.
    enough_at_us: Option<i64>,
}

impl<'a, View> PartReader<'a, View> {
    pub(super) fn new(range: ListRange<'a>, key: fn(&View) -> String) -> Self {
        Self { range, key, part: ListPart::default(), enough_at_us: None }
    }

    /// Adds the view of the next row, if it has one. Returns false if the part needs no more rows.
    pub(super) fn add(&mut self, created_at_us: i64, view: Option<View>) -> bool {
        if let Some(end) = self.enough_at_us.filter(|end| created_at_us > *end) {
            self.part.complete_to = Some(end_key(end));
            // The view may be of an earlier time than the row.
            self.add_view(view);
            return false;
        }
        self.add_view(view);
        let is_enough =
            self.enough_at_us.is_none() && self.part.entries.len() >= self.range.entries_max;
        // Views may be later than their rows. A part that ends where it begins would come again.
        let advances =
            || self.range.after.is_none_or(|after| end_key(created_at_us).as_str() > after);
        if is_enough && advances() {
            self.enough_at_us = Some(created_at_us);
        }
        true
    }

    /// Adds views without a row.
    pub(super) fn finish(mut self, views: impl IntoIterator<Item = View>) -> ListPart<View> {
        views.into_iter().for_each(|view| self.add_view(Some(view)));
        if let Some(end) = &self.part.complete_to {
            self.part.entries.retain(|view| (self.key)(view) <= *end);
        }
        self.part
    }

    fn add_view(&mut self, view: Option<View>) {
        let is_in =
            |view: &View| self.range.after.is_none_or(|after| (self.key)(view).as_str() > after);
        self.part.entries.extend(view.filter(is_in));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_like_the_times() {
        let key = |created_at| creation_key(created_at, "a");
        let times = [
            "2026-01-31T12:00:00Z",
            "2026-01-31T12:00:00.12Z",
            "2026-01-31T12:00:00.123Z",
            "2026-01-31T12:00:00.123000001Z",
        ];
        assert!(times.map(key).is_sorted());
        let after = key("2026-01-31T12:00:00.123000001Z");
        let range = ListRange { after: Some(&after), entries_max: 1 };
        let stored: Timestamp = "2026-01-31T12:00:00.122999Z".parse().unwrap();
        assert_eq!(range.after_us(), Some(stored.as_microsecond()));
        assert_eq!(ListRange { after: Some("text"), entries_max: 1 }.after_us(), None);
    }

    #[test]
    fn a_part_has_all_rows_of_its_last_time_and_ends_before_views_of_later_ones() {
        let text = |us| Timestamp::from_microsecond(us).unwrap().to_string();
        let key: fn(&(String, &'static str)) -> String = |(at, id)| creation_key(at, id);
        let mut reader = PartReader::new(ListRange { after: None, entries_max: 2 }, key);
        assert!(reader.add(1, Some((text(1), "a"))));
        assert!(reader.add(2, None), "a hidden row");
        assert!(reader.add(3, Some((text(3), "b"))));
        assert!(reader.add(3, Some((text(9), "late"))));
        assert!(!reader.add(4, Some((text(2), "early"))));
        let part = reader.finish([(text(2), "own"), (text(4), "own and later")]);
        let ids: Vec<&str> = part.entries.iter().map(|(_, id)| *id).collect();
        assert_eq!(ids, ["a", "b", "early", "own"]);
        assert_eq!(part.complete_to, Some(creation_key(&text(3), AFTER_IDS)));
    }

    #[test]
    fn each_part_ends_behind_the_one_before() {
        let text = |us| Timestamp::from_microsecond(us).unwrap().to_string();
        let key: fn(&(String, &'static str)) -> String = |(at, id)| creation_key(at, id);
        // The views are later than their rows.
        let rows = [(100, (text(110), "a")), (200, (text(210), "b"))];
        let (mut after, mut ids, mut parts) = (None, Vec::new(), 0);
        loop {
            let range = ListRange { after: after.as_deref(), entries_max: 1 };
            let after_us = range.after_us().unwrap_or_default();
            let mut reader = PartReader::new(range, key);
            let mut stored = rows.iter().filter(|(at, _)| *at > after_us);
            while stored.next().is_some_and(|(at, view)| reader.add(*at, Some(view.clone()))) {}
            let part = reader.finish(rows.iter().map(|(_, view)| view.clone()));
            let mut entries = part.entries;
            entries.sort();
            entries.dedup();
            ids.extend(entries.into_iter().map(|(_, id)| id));
            parts += 1;
            assert!(parts <= 4, "the list never ends");
            match part.complete_to {
                Some(end) => after = Some(end),
                None => break,
            }
        }
        assert_eq!(ids, ["a", "b"]);
    }

    #[test]
    fn the_parts_of_two_tenants_are_complete_up_to_the_nearer_end() {
        let part =
            |end: Option<&str>| ListPart { entries: vec![0], complete_to: end.map(str::to_owned) };
        let mut whole = ListPart::default();
        for (end, complete_to) in
            [(None, None), (Some("b"), Some("b")), (None, Some("b")), (Some("a"), Some("a"))]
        {
            whole.add(part(end));
            assert_eq!(whole.complete_to.as_deref(), complete_to);
        }
        assert_eq!(whole.entries.len(), 4);
    }
}
