//! Spellings of a member name that some JSON reader takes for the same name.
//!
//! RFC 8259 compares names byte by byte, but common readers do not: Go's `encoding/json` and others
//! match them under Unicode simple case folding. A message in which such a reader finds another
//! `name` than the broker did must not be forwarded. The envelope and the readers of nested URIs
//! therefore refuse these spellings. Names that nothing here reads are not checked.

use std::borrow::Cow;

/// Longest name in a [`NameIndex`] table; a longer key matches none of them.
const NAME_BYTES_MAX: usize = 63;
/// Most names in a [`NameIndex`] table: one bit of a [`Seen`] stands for each.
const NAMES_MAX: usize = 64;
/// Slots of the hash table of a [`NameIndex`].
const SLOTS: usize = 512;
/// Spreads the bytes of a key over the slots: 2^32 divided by the golden ratio.
const HASH_FACTOR: u32 = 0x9e37_79b1;
/// Marks a slot without a name.
const EMPTY: u8 = u8::MAX;

/// The member names of one level of a message, indexed so that a key is looked up in a few
/// instructions.
#[derive(Debug)]
pub struct NameIndex {
    names: &'static [&'static str],
    /// Hash table of positions in `names`. A name lies in its [`slot`] or, if that is taken, in the next free one.
    slots: [u8; SLOTS],
    /// For each length, the first letters of the names of that length, a bit each.
    initials: [u64; NAME_BYTES_MAX + 1],
    /// Positions in `names`, by the length of the name.
    by_length: [u8; NAMES_MAX],
    /// Index in `by_length` at which the names of each length begin. Those of the next length end
    /// them.
    starts: [u8; NAME_BYTES_MAX + 2],
}

/// The names of one table that an object was found to hold.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen(u64);

/// A member that two readers of the same object would read differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MemberFault {
    /// The member occurs twice: some readers take the first, some the last.
    #[error("member `{0}` occurs twice")]
    Duplicate(&'static str),
    /// Readers that ignore case take it for the member.
    #[error("a member differs from `{0}` in letter case only, write `{0}`")]
    Misspelled(&'static str),
}

impl NameIndex {
    /// Builds the index at compile time.
    pub const fn new(names: &'static [&'static str]) -> Self {
        assert!(names.len() <= NAMES_MAX, "a table has at most one name for each bit");
        let mut initials = [0; NAME_BYTES_MAX + 1];
        let mut by_length = [0; NAMES_MAX];
        let mut starts = [0; NAME_BYTES_MAX + 2];
        let (mut length, mut filled) = (0, 0);
        while length <= NAME_BYTES_MAX {
            let mut at = 0;
            while at < names.len() {
                let name = names[at].as_bytes();
                assert!(name.len() <= NAME_BYTES_MAX, "a name is longer than the index knows");
                if name.len() == length {
                    initials[length] |= initial(name[0]);
                    by_length[filled] = at as u8;
                    filled += 1;
                }
                at += 1;
            }
            length += 1;
            starts[length] = filled as u8;
        }
        Self { names, slots: hash_table(names), initials, by_length, starts }
    }

    /// Refuses a key that some reader takes for another name of the table, or for a name that `seen` holds already.
    #[inline]
    pub(crate) fn admit(&self, key: &[u8], seen: &mut Seen) -> Result<(), MemberFault> {
        if let Some(at) = self.position(key) {
            let bit = 1 << at;
            if seen.0 & bit != 0 {
                return Err(MemberFault::Duplicate(self.name(at)));
            }
            seen.0 |= bit;
            return Ok(());
        }
        if !self.may_hold(key) && key.is_ascii() {
            return Ok(());
        }
        match self.misspelled(key) {
            None => Ok(()),
            Some(name) => Err(MemberFault::Misspelled(name)),
        }
    }

    /// The position of the name that is `key`, byte by byte.
    #[inline]
    fn position(&self, key: &[u8]) -> Option<u8> {
        let mut slot = slot(key)?;
        loop {
            let at = self.slots[slot];
            let name = self.names.get(usize::from(at))?;
            if name.as_bytes() == key {
                return Some(at);
            }
            slot = (slot + 1) % SLOTS;
        }
    }

    /// Whether a name has the length of `key` and its first letter, in either case.
    fn may_hold(&self, key: &[u8]) -> bool {
        match (self.initials.get(key.len()), key.first()) {
            (Some(initials), Some(first)) => initials & initial(*first) != 0,
            _ => false,
        }
    }

    /// The name for which readers that ignore case take a key that is none of the names itself.
    #[cold]
    fn misspelled(&self, key: &[u8]) -> Option<&'static str> {
        let folded = without_case(key)?;
        let mut alike = self.of_length(folded.len()).iter().map(|at| self.name(*at));
        alike.find(|name| name.as_bytes().eq_ignore_ascii_case(&folded))
    }

    /// Returns the positions of the names of a length.
    fn of_length(&self, length: usize) -> &[u8] {
        match (self.starts.get(length), self.starts.get(length + 1)) {
            (Some(from), Some(to)) => &self.by_length[usize::from(*from)..usize::from(*to)],
            _ => &[],
        }
    }

    fn name(&self, at: u8) -> &'static str {
        self.names[usize::from(at)]
    }
}

/// The slot in which the search for a key begins, by its length and three of its bytes. The empty key has none.
#[inline]
const fn slot(key: &[u8]) -> Option<usize> {
    let (Some(first), Some(last)) = (key.first(), key.last()) else { return None };
    let middle = key[key.len() / 2];
    let bytes = u32::from_le_bytes([*first, middle, *last, key.len() as u8]);
    Some((bytes.wrapping_mul(HASH_FACTOR) >> (u32::BITS - SLOTS.ilog2())) as usize)
}

const fn hash_table(names: &[&str]) -> [u8; SLOTS] {
    let mut slots = [EMPTY; SLOTS];
    let mut at = 0;
    while at < names.len() {
        let Some(mut slot) = slot(names[at].as_bytes()) else { panic!("a name is empty") };
        while slots[slot] != EMPTY {
            slot = (slot + 1) % SLOTS;
        }
        slots[slot] = at as u8;
        at += 1;
    }
    slots
}

/// Returns one bit for the first byte of a name; both cases of a letter share it.
const fn initial(first: u8) -> u64 {
    1 << (first.to_ascii_lowercase() & 63)
}

/// Returns whether some reader takes `key` for `name`: the texts are equal, or differ only in case.
pub(super) fn matches_ignoring_case(key: &[u8], name: &str) -> bool {
    key.len() >= name.len()
        && without_case(key).is_some_and(|folded| folded.eq_ignore_ascii_case(name.as_bytes()))
}

/// Returns the ASCII text, in lower case, that readers without regard to case take a key for. A key
/// matches the names with this text in lower case, and no other. `None`: it matches no name.
pub(super) fn folded(key: &[u8]) -> Option<Vec<u8>> {
    without_case(key).map(|folded| folded.to_ascii_lowercase())
}

/// Replaces the letters of `key` beyond ASCII that fold to an ASCII letter. `None`: it holds any
/// other, so it folds to no name of the protocol, which are all ASCII.
fn without_case(key: &[u8]) -> Option<Cow<'_, [u8]>> {
    if key.is_ascii() {
        return Some(Cow::Borrowed(key));
    }
    // Each of these letters takes two or three bytes.
    if key.len() > 3 * NAME_BYTES_MAX {
        return None;
    }
    let folded: Option<Vec<u8>> =
        std::str::from_utf8(key).ok()?.chars().map(ascii_letter).collect();
    folded.map(Cow::Owned)
}

/// Returns the ASCII letter that some reader takes `letter` for. Unicode CaseFolding.txt has two
/// letters beyond ASCII that fold to an ASCII letter. The dotless and the dotted i fold to `i` for
/// readers that compare by upper or lower case instead.
fn ascii_letter(letter: char) -> Option<u8> {
    match letter {
        '\u{17f}' => Some(b's'),
        '\u{212a}' => Some(b'k'),
        '\u{130}' | '\u{131}' => Some(b'i'),
        _ => u8::try_from(letter).ok().filter(u8::is_ascii),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static NAMES: NameIndex =
        NameIndex::new(&["id", "method", "params", "progressToken", "_meta", "task"]);

    #[test]
    fn a_name_in_another_case_is_found_and_the_name_itself_is_not() {
        for (key, name) in [
            ("ID", "id"),
            ("Id", "id"),
            ("\u{131}d", "id"),
            ("\u{130}D", "id"),
            ("Method", "method"),
            ("PARAM\u{17f}", "params"),
            ("progresstoken", "progressToken"),
            ("progressTo\u{212a}en", "progressToken"),
            ("_META", "_meta"),
            ("ta\u{17f}\u{212a}", "task"),
        ] {
            assert_eq!(
                NAMES.admit(key.as_bytes(), &mut Seen::default()),
                Err(MemberFault::Misspelled(name)),
                "{key}"
            );
            assert!(matches_ignoring_case(key.as_bytes(), name), "{key}");
        }
        let mut seen = Seen::default();
        for name in NAMES.names {
            assert_eq!(NAMES.admit(name.as_bytes(), &mut seen), Ok(()), "{name}");
            assert_eq!(
                NAMES.admit(name.as_bytes(), &mut seen),
                Err(MemberFault::Duplicate(name)),
                "{name}"
            );
            assert!(matches_ignoring_case(name.as_bytes(), name), "{name}");
        }
    }

    #[test]
    fn other_names_are_not_reported() {
        let long = "m".repeat(300);
        let long_beyond_ascii = "\u{212a}".repeat(300);
        for key in [
            "",
            "ids",
            "i",
            "metho",
            "methods",
            "\u{e9}d",
            "meta",
            "p\u{430}rams",
            "progress_token",
            &long,
            &long_beyond_ascii,
        ] {
            let mut seen = Seen::default();
            let twice =
                [NAMES.admit(key.as_bytes(), &mut seen), NAMES.admit(key.as_bytes(), &mut seen)];
            assert_eq!(twice, [Ok(()), Ok(())], "{key}");
        }
    }
}
