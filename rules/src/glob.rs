//! Patterns in which `*` stands for any text.

/// A pattern, split at its stars.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glob {
    parts: Vec<Box<str>>,
}

impl Glob {
    pub(crate) fn new(pattern: &str) -> Self {
        Self { parts: pattern.split('*').map(Into::into).collect() }
    }

    /// Returns whether the pattern is a text without a star.
    pub(crate) fn is_literal(&self) -> bool {
        self.parts.len() == 1
    }

    /// Returns whether the pattern matches every text.
    pub(crate) fn matches_all(&self) -> bool {
        !self.is_literal() && self.parts.iter().all(|part| part.is_empty())
    }

    /// Returns the number of stars.
    pub(crate) fn stars(&self) -> usize {
        self.parts.len() - 1
    }

    /// Returns the text before the first star.
    pub(crate) fn prefix(&self) -> &str {
        &self.parts[0]
    }

    /// Returns whether the whole text matches. Each part takes its first match, so the time grows
    /// with the product of text and pattern at most.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let Some(rest) = text.strip_prefix(self.prefix()) else { return false };
        let Some((last, middle)) = self.parts[1..].split_last() else { return rest.is_empty() };
        let Some(mut rest) = rest.strip_suffix(&**last) else { return false };
        for part in middle {
            match rest.find(&**part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_star_matches_any_text() {
        for (pattern, yes, no) in [
            ("read", &["read"][..], &["", "reads", "xread"][..]),
            ("read*", &["read", "read_file"], &["rea", "xread"]),
            ("*_file", &["_file", "read_file"], &["read_files", "file"]),
            ("a*b*c", &["abc", "axbxc", "abbc"], &["ab", "ac", "abcx"]),
            ("*", &["", "anything"], &[]),
            ("a*a", &["aa", "aba"], &["a"]),
        ] {
            let glob = Glob::new(pattern);
            assert_eq!(glob.matches_all(), pattern == "*", "{pattern}");
            for text in yes {
                assert!(glob.matches(text), "{pattern} {text}");
            }
            for text in no {
                assert!(!glob.matches(text), "{pattern} {text}");
            }
        }
    }

    /// Matches by trying every length for each star.
    fn slowly(pattern: &[char], text: &[char]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some(('*', rest)) => (0..=text.len()).any(|taken| slowly(rest, &text[taken..])),
            Some((letter, rest)) => text
                .split_first()
                .is_some_and(|(first, text)| first == letter && slowly(rest, text)),
        }
    }

    proptest! {
        #[test]
        fn matching_at_the_first_position_equals_an_exhaustive_search(pattern in "[ab*]{0,6}", text in "[ab]{0,8}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(Glob::new(&pattern).matches(&text), slowly(&chars(&pattern), &chars(&text)));
        }
    }
}
