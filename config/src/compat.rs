//! Protocol revisions that clients may use, the cache hints for lists of 2026-07-28 clients, and the
//! names that apps use.
//! Read with the rest by [`super::validation`].

use std::time::Duration;

use protocol::{
    stateless::results::{CacheHint, CacheScope},
    version::Version,
};

use super::{
    config_key::{ConfigKey, DAY, KeyKind, key},
    config_reader::ConfigReader,
    field_error::invalid_value,
};

/// The keys of the section `compat`.
pub(super) const COMPAT: &[ConfigKey] = &[
    key(
        "eras",
        KeyKind::Choice(&["both", "legacy", "modern"]),
        "both",
        "Which clients the broker serves. `legacy`: clients that open a session with `initialize` (2024-11-05 to 2025-11-25). `modern`: clients without a session (2026-07-28).",
    ),
    key(
        "list_ttl",
        KeyKind::Duration { min: Duration::ZERO, max: DAY },
        "0s",
        "How long a client of 2026-07-28 can keep a list without a new request (`ttlMs`). The broker announces changes only to clients that listen for them.",
    ),
    key(
        "list_scope",
        KeyKind::Choice(&["private", "public"]),
        "private",
        "Which clients can share a kept list (`cacheScope`). Use `public` only where every caller may see the same list.",
    ),
    key(
        "strict",
        KeyKind::Bool,
        "false",
        "Removes the members that the client's revision does not have, such as `title`, `icons`, `outputSchema` and `structuredContent` (which the broker sends as text). Only clients that refuse unknown members need it; MCP does not require them to refuse.",
    ),
    key(
        "capability_probe",
        KeyKind::Bool,
        "true",
        "Detects tools that a backend offers only to clients that declare roots, sampling or elicitation, with a further connection that declares none. Sessions of clients without the capability do not list it.",
    ),
    key(
        "app_names",
        KeyKind::Bool,
        "true",
        "Resolves the own name of a tool on `/mcp`. Of the backends with apps that the caller sees, exactly one must have a tool for apps with that name. An app (MCP Apps) uses only the names of its own server. If several backends have the name, the broker refuses the call (`tool_ambiguous`).",
    ),
];

/// Supported revisions and their options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompatConfig {
    pub eras: Eras,
    /// Time for which clients may keep a list. Only clients that listen for changes learn of them.
    pub list_ttl: Duration,
    /// True if the lists are the same for every caller.
    pub lists_are_public: bool,
    /// True if clients get no members that their revision does not define.
    pub strict: bool,
    /// True if the broker finds out what backends offer only to clients with a capability.
    pub capability_probe: bool,
    /// True if apps find tools by their own names.
    pub app_names: bool,
}

/// Supported revisions: those with `initialize`, and the stateless one.
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

    pub fn has_stateless(self) -> bool {
        self != Eras::Sessions
    }
}

impl CompatConfig {
    /// Returns the revisions that clients may use, oldest first.
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
            _ => Err(invalid_value(value)),
        });
        let lists_are_public = self.value("compat.list_scope", |value, _| match value.as_str() {
            Some("private") => Ok(false),
            Some("public") => Ok(true),
            _ => Err(invalid_value(value)),
        });
        CompatConfig {
            eras,
            list_ttl: self.duration("compat.list_ttl"),
            lists_are_public,
            strict: self.bool("compat.strict"),
            capability_probe: self.bool("compat.capability_probe"),
            app_names: self.bool("compat.app_names"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_served_versions_follow_from_the_eras() {
        let of = |eras| CompatConfig {
            eras,
            list_ttl: Duration::from_secs(1),
            lists_are_public: false,
            strict: false,
            capability_probe: true,
            app_names: true,
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
