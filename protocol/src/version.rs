//! The five revisions of MCP and the features of each.
//!
//! Used by the handshake, the capability gates and the listeners. Revisions are ordered by release.
//! The first four have sessions, opened by `initialize`. 2026-07-28 is stateless: each request
//! stands alone.

use std::fmt;

/// A released revision of MCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 2024-11-05
    V2024_11_05,
    /// 2025-03-26
    V2025_03_26,
    /// 2025-06-18
    V2025_06_18,
    /// 2025-11-25
    V2025_11_25,
    /// 2026-07-28
    V2026_07_28,
}

/// Whether a body may be a batch of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batches {
    Permitted,
    Refused,
}

impl Version {
    /// All revisions, oldest first.
    pub const ALL: [Self; 5] = [
        Self::V2024_11_05,
        Self::V2025_03_26,
        Self::V2025_06_18,
        Self::V2025_11_25,
        Self::V2026_07_28,
    ];
    /// The newest revision that is opened by `initialize`.
    pub const LATEST_WITH_SESSIONS: Self = Self::V2025_11_25;
    /// Revision of an HTTP request without `MCP-Protocol-Version` (MCP 2025-11-25, Transports).
    pub const HTTP_DEFAULT: Self = Self::V2025_03_26;

    /// Returns the revision with exactly this name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    // Returns the revision to answer to an `initialize` that requests `requested`.
    //
    // MCP 2025-11-25, Lifecycle: a supported version is echoed. Any other is answered with a
    // supported one, never with an error. `initialize` cannot agree on a stateless revision.
    pub fn negotiate(requested: &str) -> Self {
        Self::parse(requested)
            .filter(|version| version.has_sessions())
            .unwrap_or(Self::LATEST_WITH_SESSIONS)
    }

    const fn at_least(self, other: Self) -> bool {
        self as u8 >= other as u8
    }

    const fn between(self, first: Self, last: Self) -> bool {
        self.at_least(first) && last.at_least(self)
    }

    /// Returns whether `initialize` opens a session, as opposed to metadata on each request.
    pub const fn has_sessions(self) -> bool {
        Self::LATEST_WITH_SESSIONS.at_least(self)
    }

    /// Returns whether a body may be a JSON-RPC batch.
    pub const fn batches(self) -> Batches {
        match self {
            Self::V2025_03_26 => Batches::Permitted,
            _ => Batches::Refused,
        }
    }

    /// Returns whether HTTP is Streamable HTTP, not HTTP+SSE.
    pub const fn streamable_http(self) -> bool {
        self.at_least(Self::V2025_03_26)
    }

    /// Returns whether a stream begins with an event that has an id and empty data.
    pub const fn priming_event(self) -> bool {
        self.between(Self::V2025_11_25, Self::V2025_11_25)
    }

    /// Returns whether the server may close a stream's connection, so that the client polls it.
    pub const fn polling(self) -> bool {
        self.priming_event()
    }

    /// Returns whether the `completions` capability exists. Before it, the method needed none.
    pub const fn completions_capability(self) -> bool {
        self.at_least(Self::V2025_03_26)
    }

    /// Returns whether progress notifications carry a `message`.
    pub const fn progress_message(self) -> bool {
        self.at_least(Self::V2025_03_26)
    }

    /// Returns whether there are audio content blocks.
    pub const fn audio(self) -> bool {
        self.at_least(Self::V2025_03_26)
    }

    /// Returns whether there is elicitation by form.
    pub const fn elicitation(self) -> bool {
        self.at_least(Self::V2025_06_18)
    }

    /// Returns whether there is elicitation by URL, with error -32042.
    pub const fn elicitation_url(self) -> bool {
        self.at_least(Self::V2025_11_25)
    }

    /// Returns whether there are `structuredContent`, `outputSchema` and `resource_link`.
    pub const fn structured_content(self) -> bool {
        self.at_least(Self::V2025_06_18)
    }

    /// Returns whether sampling requests may have `tools` and content arrays.
    pub const fn sampling_tools(self) -> bool {
        self.at_least(Self::V2025_11_25)
    }

    /// Returns whether tasks are a part of the core protocol.
    pub const fn tasks(self) -> bool {
        self.between(Self::V2025_11_25, Self::V2025_11_25)
    }

    /// Returns whether there are icons and the longer description of implementations.
    pub const fn icons(self) -> bool {
        self.at_least(Self::V2025_11_25)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
