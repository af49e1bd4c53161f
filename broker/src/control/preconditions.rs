//! Preconditions of changes: entity tags, which identify an entry's settings.
//!
//! A tag is a keyed hash of the settings. It is the same on every replica, reveals no secret, and
//! changes with the settings.

use aws_lc_rs::hmac;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Serialize;

use super::{Control, ControlError, registry::RegistryEntry};

/// Number of bytes of the hash in a tag.
const TAG_BYTES: usize = 16;

/// Tags of `If-Match` and `If-None-Match`, with their quotes. `*` matches every tag.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preconditions {
    pub matching: Option<Vec<String>>,
    pub none_matching: Option<Vec<String>>,
}

impl Preconditions {
    /// Checks the conditions. `tag` belongs to the current entry; `None`: the entry does not exist.
    pub(super) fn holds(&self, what: &'static str, tag: Option<&str>) -> Result<(), ControlError> {
        let names = |tags: &[String]| {
            tag.is_some_and(|tag| tags.iter().any(|one| one == "*" || one == tag))
        };
        let matches = self.matching.as_deref().is_none_or(names);
        let none_matches = tag.is_none_or(|tag| !self.is_known(tag));
        if matches && none_matches {
            Ok(())
        } else {
            Err(ControlError::Changed { what, exists: tag.is_some() })
        }
    }

    /// Checks the conditions of a removal. Without an entry, they do not count, and the answer is
    /// `missing` (RFC 9110, section 13.2.1).
    pub(super) fn hold_for_removal(
        &self,
        what: &'static str,
        tag: Option<&str>,
        missing: impl FnOnce() -> ControlError,
    ) -> Result<(), ControlError> {
        if tag.is_none() && self.matching.is_some() {
            return Err(missing());
        }
        self.holds(what, tag)
    }

    /// Returns whether `If-None-Match` names a tag. A weak tag names the strong one with the same
    /// text (RFC 9110, section 13.1.2).
    pub fn is_known(&self, tag: &str) -> bool {
        let strong = |one: &str| one.strip_prefix("W/").unwrap_or(one) == tag;
        self.none_matching.iter().flatten().any(|one| one == "*" || strong(one))
    }
}

impl Control {
    pub(super) fn tag<Spec: Serialize>(&self, entry: &RegistryEntry<Spec>) -> String {
        let settings = serde_json::to_vec(&entry.spec).unwrap_or_default();
        let mut context = hmac::Context::with_key(&self.keys.cursor);
        context.update(b"entity tag\0");
        context.update(&settings);
        format!("\"{}\"", URL_SAFE_NO_PAD.encode(&context.sign().as_ref()[..TAG_BYTES]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(tags: &[&str]) -> Option<Vec<String>> {
        Some(tags.iter().map(|tag| (*tag).to_owned()).collect())
    }

    #[test]
    fn preconditions_follow_http_semantics() {
        let holds = |matching, none_matching, tag| {
            Preconditions { matching, none_matching }.holds("tenant", tag).is_ok()
        };
        assert!(holds(None, None, None) && holds(None, None, Some("\"a\"")));
        assert!(
            holds(list(&["\"b\"", "\"a\""]), None, Some("\"a\""))
                && holds(list(&["*"]), None, Some("\"a\""))
        );
        assert!(!holds(list(&["\"b\""]), None, Some("\"a\"")) && !holds(list(&["*"]), None, None));
        assert!(
            !holds(list(&["W/\"a\""]), None, Some("\"a\"")),
            "a weak tag names nothing exactly"
        );
        assert!(holds(None, list(&["*"]), None) && !holds(None, list(&["*"]), Some("\"a\"")));
        assert!(
            holds(None, list(&["\"b\""]), Some("\"a\""))
                && !holds(None, list(&["\"a\""]), Some("\"a\""))
        );
        assert!(
            !holds(None, list(&["\"b\"", "W/\"a\""]), Some("\"a\""))
                && holds(None, list(&["W/\"b\""]), Some("\"a\"")),
            "If-None-Match compares weakly"
        );
    }
}
