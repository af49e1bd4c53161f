//! Spellings of a member name that some JSON reader takes for the same name.
//!
//! RFC 8259 compares names byte by byte, but common readers do not: Go's `encoding/json` and others match them under Unicode
//! simple case folding. A message in which such a reader finds another `name` than the broker did must not be forwarded, so the
//! envelope and the readers of nested URIs refuse these spellings. Names that nothing here reads are not looked at.

use std::borrow::Cow;

/// Longest name in a [`NameIndex`] table; a longer key matches none of them.
const NAME_BYTES_MAX: usize = 63;

/// The names that one level of a message knows, indexed so that an unknown key is told apart in a few instructions.
pub(crate) struct NameIndex {
    names: &'static [&'static str],
    /// For each length, the first letters of the names of that length, a bit each.
    initials: [u64; NAME_BYTES_MAX + 1],
}

impl NameIndex {
    /// Builds the index at compile time.
    pub(crate) const fn new(names: &'static [&'static str]) -> Self {
        let mut initials = [0; NAME_BYTES_MAX + 1];
        let mut at = 0;
        while at < names.len() {
            let name = names[at].as_bytes();
            initials[name.len()] |= initial(name[0]);
            at += 1;
        }
        Self { names, initials }
    }

    /// The name that `key` spells differently: they are equal under case folding, and not equal. `None` for the name itself.
    #[inline]
    pub(crate) fn misspelled(&self, key: &[u8]) -> Option<&'static str> {
        if key.is_ascii() && !self.may_hold(key) {
            return None;
        }
        self.search(key)
    }

    fn may_hold(&self, key: &[u8]) -> bool {
        match (self.initials.get(key.len()), key.first()) {
            (Some(initials), Some(first)) => initials & initial(*first) != 0,
            _ => false,
        }
    }

    #[cold]
    fn search(&self, key: &[u8]) -> Option<&'static str> {
        let folded = without_case(key)?;
        let name = self.names.iter().find(|name| name.as_bytes().eq_ignore_ascii_case(&folded))?;
        (name.as_bytes() != key).then_some(name)
    }
}

/// One bit for the first byte of a name; both cases of a letter share it.
const fn initial(first: u8) -> u64 {
    1 << (first.to_ascii_lowercase() & 63)
}

/// Whether some reader takes `key` for `name`: the same text, or the same but for case.
pub(super) fn reads_as(key: &[u8], name: &str) -> bool {
    key.len() >= name.len()
        && without_case(key).is_some_and(|folded| folded.eq_ignore_ascii_case(name.as_bytes()))
}

/// `key` with the letters beyond ASCII replaced that fold to an ASCII letter. `None`: it holds any other, so it folds to no name
/// of the protocol, which are all ASCII.
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

/// Unicode CaseFolding.txt has two letters beyond ASCII that fold to an ASCII letter. The dotless and the dotted i fold to `i` for
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
            assert_eq!(NAMES.misspelled(key.as_bytes()), Some(name), "{key}");
            assert!(reads_as(key.as_bytes(), name), "{key}");
        }
        for name in NAMES.names {
            assert_eq!(NAMES.misspelled(name.as_bytes()), None, "{name}");
            assert!(reads_as(name.as_bytes(), name), "{name}");
        }
    }

    #[test]
    fn other_names_are_left_alone() {
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
            assert_eq!(NAMES.misspelled(key.as_bytes()), None, "{key}");
        }
    }
}
