//! The five revisions of MCP and what each of them knows.
//!
//! Used by the handshake, the capability gates and the listeners. Revisions are ordered by release; the first four are
//! *legacy* (a session opened by `initialize`), 2026-07-28 is *modern* (each request stands alone).

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
    /// What an HTTP request without `MCP-Protocol-Version` means (MCP 2025-11-25, Transports).
    pub const HTTP_DEFAULT: Self = Self::V2025_03_26;

    /// The revision with exactly this name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    // MCP 2025-11-25, Lifecycle: a supported version is echoed, anything else is answered with one we support, never
    // with an error. A modern revision cannot be agreed on by `initialize`.
    /// What to answer to an `initialize` that asks for `requested`.
    pub fn answer_initialize(requested: &str) -> Self {
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

    /// Opened by `initialize`, as opposed to per-request metadata.
    pub const fn has_sessions(self) -> bool {
        Self::LATEST_WITH_SESSIONS.at_least(self)
    }

    /// JSON-RPC batches may be received.
    pub const fn batches(self) -> bool {
        self.between(Self::V2025_03_26, Self::V2025_03_26)
    }

    /// HTTP is Streamable HTTP, not HTTP+SSE.
    pub const fn streamable_http(self) -> bool {
        self.at_least(Self::V2025_03_26)
    }

    /// `MCP-Protocol-Version` is required on HTTP requests after the handshake.
    pub const fn version_header_required(self) -> bool {
        self.at_least(Self::V2025_06_18)
    }

    /// A stream begins with an event that has an id and empty data.
    pub const fn priming_event(self) -> bool {
        self.between(Self::V2025_11_25, Self::V2025_11_25)
    }

    /// The server may close a stream's connection and be polled.
    pub const fn polling(self) -> bool {
        self.priming_event()
    }

    /// An error response may lack an id.
    pub const fn error_without_id(self) -> bool {
        self.at_least(Self::V2025_11_25)
    }

    /// The `completions` capability exists; before it, the method needed none.
    pub const fn completions_capability(self) -> bool {
        self.at_least(Self::V2025_03_26)
    }

    /// Progress notifications carry a `message`.
    pub const fn progress_message(self) -> bool {
        self.at_least(Self::V2025_03_26)
    }

    /// Audio content blocks.
    pub const fn audio(self) -> bool {
        self.at_least(Self::V2025_03_26)
    }

    /// Elicitation by form.
    pub const fn elicitation(self) -> bool {
        self.at_least(Self::V2025_06_18)
    }

    /// Elicitation by URL, and error -32042.
    pub const fn elicitation_url(self) -> bool {
        self.at_least(Self::V2025_11_25)
    }

    /// `structuredContent`, `outputSchema` and `resource_link`.
    pub const fn structured_content(self) -> bool {
        self.at_least(Self::V2025_06_18)
    }

    /// Sampling requests with `tools` and with content arrays.
    pub const fn sampling_tools(self) -> bool {
        self.at_least(Self::V2025_11_25)
    }

    /// Tasks as part of the core protocol.
    pub const fn tasks(self) -> bool {
        self.between(Self::V2025_11_25, Self::V2025_11_25)
    }

    /// Icons and the longer description of implementations.
    pub const fn icons(self) -> bool {
        self.at_least(Self::V2025_11_25)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
