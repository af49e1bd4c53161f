//! The place of a text in a document, while a scanner walks through it.

use std::borrow::Cow;

use crate::limits::pins::FINDING_POINTER_BYTES_MAX;

/// A JSON pointer (RFC 6901) as the steps from the root. Only a finding needs its text.
#[derive(Debug, Default)]
pub(super) struct Pointer<'a>(Vec<Step<'a>>);

#[derive(Debug)]
pub(super) enum Step<'a> {
    Member(Cow<'a, str>),
    Element(usize),
}

impl<'a> Pointer<'a> {
    pub(super) fn enter(&mut self, step: Step<'a>) {
        self.0.push(step);
    }

    pub(super) fn leave(&mut self) {
        self.0.pop();
    }

    /// Returns whether it leads to the root.
    pub(super) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether it leads to a member of the root.
    pub(super) fn is_member(&self, name: &str) -> bool {
        matches!(self.0.as_slice(), [Step::Member(member)] if member == name)
    }

    /// Returns whether it leads to a part of a member of the root.
    pub(super) fn is_in_member(&self, name: &str) -> bool {
        matches!(self.0.as_slice(), [Step::Member(member), _, ..] if member == name)
    }

    /// Returns the pointer as text. A long one is cut.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for step in &self.0 {
            text.push('/');
            match step {
                Step::Element(at) => text.push_str(&at.to_string()),
                Step::Member(name) => {
                    for char in name.chars().take(FINDING_POINTER_BYTES_MAX) {
                        match char {
                            '~' => text.push_str("~0"),
                            '/' => text.push_str("~1"),
                            char => text.push(char),
                        }
                    }
                }
            }
            if text.len() > FINDING_POINTER_BYTES_MAX {
                text.truncate(text.floor_char_boundary(FINDING_POINTER_BYTES_MAX));
                break;
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_escapes_names_and_is_cut() {
        let mut pointer = Pointer::default();
        assert!(pointer.is_root() && pointer.text().is_empty());
        pointer.enter(Step::Member("a/b~c".into()));
        assert!(pointer.is_member("a/b~c") && !pointer.is_in_member("a/b~c"));
        pointer.enter(Step::Element(7));
        assert!(!pointer.is_member("a/b~c") && pointer.is_in_member("a/b~c"));
        assert_eq!(pointer.text(), "/a~1b~0c/7");
        pointer.leave();
        pointer.enter(Step::Member("\u{e4}".repeat(FINDING_POINTER_BYTES_MAX).into()));
        let text = pointer.text();
        assert!(text.len() <= FINDING_POINTER_BYTES_MAX && text.starts_with("/a~1b~0c/\u{e4}"));
    }
}
