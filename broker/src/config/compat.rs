//! Which revisions of MCP clients may speak, and what those of 2026-07-28 are told about keeping lists.
//! Read with the rest by [`super::validation`].

use std::time::Duration;

use protocol::{
    stateless::results::{CacheHint, CacheScope},
    version::Version,
};

use super::{
    config_key::{ConfigKey, DAY, KeyKind, key},
    config_reader::{ConfigReader, wrong},
};

/// The keys of the section `compat`.
pub(super) const COMPAT: &[ConfigKey] = &[
    key(
        "eras",
        KeyKind::Choice(&["both", "legacy", "modern"]),
        "both",
        "Which clients are served. `legacy`: those that open a session with `initialize` (2024-11-05 to 2025-11-25); `modern`: those whose requests stand alone (2026-07-28).",
    ),
    key(
        "list_ttl",
        KeyKind::Duration { min: Duration::ZERO, max: DAY },
        "0s",
        "How long clients of 2026-07-28 may keep a list without asking again (`ttlMs`). They hear of changes only where they listen for them.",
    ),
    key(
        "list_scope",
        KeyKind::Choice(&["private", "public"]),
        "private",
        "Who may share a kept list (`cacheScope`). `public` only where every caller may see the same.",
    ),
    key(
        "strict",
        KeyKind::Bool,
        "false",
        "Leave out of what clients are told the members that their revision does not know, such as `title`, `icons`, `outputSchema` and `structuredContent` (which is told as text). Needed only for clients that refuse unknown members, which MCP does not ask of them.",
    ),
];

/// What is served to clients of which kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompatConfig {
    pub eras: Eras,
    /// How long clients may keep a list. They are told of changes only where they listen for them.
    pub list_ttl: Duration,
    /// The lists are the same for every caller.
    pub lists_are_public: bool,
    /// Clients get no members that their revision does not know.
    pub strict: bool,
}

/// Revisions that are opened by `initialize`, and the one whose requests stand alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eras {
    Both,
    Sessions,
    Stateless,
}

impl Eras {
    pub fn has_sessions(self) -> bool {
        self != Eras::Stateless
    }

    pub fn has_modern(self) -> bool {
        self != Eras::Sessions
    }
}

impl CompatConfig {
    /// What clients may speak, oldest first.
    pub fn versions(&self) -> &'static [Version] {
        const LEGACY: usize = Version::ALL.len() - 1;
        match self.eras {
            Eras::Both => &Version::ALL,
            Eras::Sessions => &Version::ALL[..LEGACY],
            Eras::Stateless => &Version::ALL[LEGACY..],
        }
    }

    pub fn list_hint(&self) -> CacheHint {
        CacheHint {
            ttl_ms: u64::try_from(self.list_ttl.as_millis()).unwrap_or(u64::MAX),
            scope: if self.lists_are_public { CacheScope::Public } else { CacheScope::Private },
        }
    }
}

impl ConfigReader<'_> {
    pub(super) fn compat(&mut self) -> CompatConfig {
        let eras = self.value("compat.eras", |value, _| match value.as_str() {
            Some("both") => Ok(Eras::Both),
            Some("legacy") => Ok(Eras::Sessions),
            Some("modern") => Ok(Eras::Stateless),
            _ => Err(wrong(value)),
        });
        let lists_are_public = self.value("compat.list_scope", |value, _| match value.as_str() {
            Some("private") => Ok(false),
            Some("public") => Ok(true),
            _ => Err(wrong(value)),
        });
        CompatConfig {
            eras,
            list_ttl: self.duration("compat.list_ttl"),
            lists_are_public,
            strict: self.bool("compat.strict"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_served_follows_from_the_eras() {
        let of = |eras| CompatConfig {
            eras,
            list_ttl: Duration::from_secs(1),
            lists_are_public: false,
            strict: false,
        };
        assert_eq!(of(Eras::Both).versions().len(), 5);
        assert_eq!(of(Eras::Sessions).versions().last(), Some(&Version::LATEST_WITH_SESSIONS));
        assert_eq!(of(Eras::Stateless).versions(), [Version::V2026_07_28]);
        assert_eq!(
            of(Eras::Both).list_hint(),
            CacheHint { ttl_ms: 1_000, scope: CacheScope::Private }
        );
    }
}
