//! The phases of a session and of a link, and the steps between them.
//!
//! A step that is not listed is a bug in the broker. It is reported, not carried out. Names are the
//! label values of `mcp_phase_transitions_total`.

use crate::error::{ErrorKind, Refusal};
use crate::method::Method;

/// A step that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("phase {from} cannot change to {to}")]
pub struct IllegalTransition {
    /// Phase before the step.
    pub from: &'static str,
    /// Phase after the step.
    pub to: &'static str,
}

/// A client's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionPhase {
    /// Connected; `initialize` has not been answered.
    Opening,
    /// `initialize` was answered.
    AwaitingInitialized,
    /// `notifications/initialized` came.
    Ready,
    /// No new requests; calls in flight may finish.
    Closing,
    /// Over.
    Closed,
}

impl SessionPhase {
    /// All phases.
    pub const ALL: [Self; 5] =
        [Self::Opening, Self::AwaitingInitialized, Self::Ready, Self::Closing, Self::Closed];

    /// Returns the name for logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::AwaitingInitialized => "awaiting_initialized",
            Self::Ready => "ready",
            Self::Closing => "closing",
            Self::Closed => "closed",
        }
    }

    /// Returns the next phase, if the step exists.
    pub fn advance(self, to: Self) -> Result<Self, IllegalTransition> {
        let allowed = match self {
            Self::Opening => matches!(to, Self::AwaitingInitialized | Self::Closing | Self::Closed),
            Self::AwaitingInitialized => matches!(to, Self::Ready | Self::Closing | Self::Closed),
            Self::Ready => matches!(to, Self::Closing | Self::Closed),
            Self::Closing => to == Self::Closed,
            Self::Closed => false,
        };
        if allowed { Ok(to) } else { Err(IllegalTransition { from: self.name(), to: to.name() }) }
    }

    // Refuses a method that a client may not send now.
    //
    // MCP 2025-11-25, Lifecycle: the client SHOULD NOT send requests other than pings before the
    // initialize answer. After that answer the broker is lenient: some clients send requests
    // together with `notifications/initialized`.
    pub fn admits(self, method: Method) -> Result<(), Refusal> {
        match self {
            Self::Opening if matches!(method, Method::Initialize | Method::Ping) => Ok(()),
            Self::Opening => Err(Refusal::new(
                ErrorKind::NotInitialized,
                "the first request of a session must be initialize",
            )),
            Self::AwaitingInitialized | Self::Ready if method == Method::Initialize => {
                Err(Refusal::new(ErrorKind::InvalidRequest, "the session is already initialized"))
            }
            Self::AwaitingInitialized | Self::Ready => Ok(()),
            // Messages that end or answer running calls are still accepted.
            Self::Closing
                if matches!(method, Method::Ping | Method::Cancelled | Method::Progress) =>
            {
                Ok(())
            }
            Self::Closing => Err(Refusal::new(ErrorKind::Draining, "the session is closing")),
            Self::Closed => Err(Refusal::new(ErrorKind::SessionNotFound, "the session has ended")),
        }
    }
}

/// A connection to a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkPhase {
    /// Not needed yet.
    Idle,
    /// Opening the connection or starting the process.
    Connecting,
    /// `initialize` was sent.
    Initializing,
    /// Calls may be sent.
    Ready,
    /// Lost; waiting before the next attempt.
    Backoff,
    /// Given up or no longer wanted.
    Closed,
}

impl LinkPhase {
    /// All phases.
    pub const ALL: [Self; 6] = [
        Self::Idle,
        Self::Connecting,
        Self::Initializing,
        Self::Ready,
        Self::Backoff,
        Self::Closed,
    ];

    /// Returns the name for logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Connecting => "connecting",
            Self::Initializing => "initializing",
            Self::Ready => "ready",
            Self::Backoff => "backoff",
            Self::Closed => "closed",
        }
    }

    /// Returns the next phase, if the step exists.
    pub fn advance(self, to: Self) -> Result<Self, IllegalTransition> {
        let allowed = match self {
            Self::Idle => matches!(to, Self::Connecting | Self::Closed),
            Self::Connecting => matches!(to, Self::Initializing | Self::Backoff | Self::Closed),
            Self::Initializing => matches!(to, Self::Ready | Self::Backoff | Self::Closed),
            // A backend that forgot its session is initialised again without a new connection.
            Self::Ready => {
                matches!(to, Self::Initializing | Self::Backoff | Self::Idle | Self::Closed)
            }
            Self::Backoff => matches!(to, Self::Connecting | Self::Idle | Self::Closed),
            Self::Closed => false,
        };
        if allowed { Ok(to) } else { Err(IllegalTransition { from: self.name(), to: to.name() }) }
    }
}
