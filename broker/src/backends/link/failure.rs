//! Why a backend gave no answer. Made by connections and their wires; judged by calls and by [`Backend::refusal`].
//!
//! Each kind says whether the backend can have acted: only what it certainly did not look at may be sent again.
//!
//! [`Backend::refusal`]: crate::backends::backend::Backend::refusal

use protocol::{
    error::{ErrorKind, Refusal},
    ids::BackendId,
    method::Method,
};

use crate::rules::retries::AttemptOutcome;

/// Why there is not an answer. Says whether the backend can have acted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No byte of the request left: it may be tried again.
    #[error("nothing was sent: {0}")]
    NotSent(String),
    /// The backend is there and does not want work now.
    #[error("the backend is busy: {0}")]
    Busy(String),
    /// The backend is well and wants fewer requests.
    #[error("the backend wants fewer requests: {0}")]
    Throttled(String),
    /// The backend, or what is before it, will not have this request. Whether it was looked at, nobody says.
    #[error("the backend refuses the request: {0}")]
    Denied(String),
    /// A limit of this broker, or of its machine, leaves nothing to ask the backend with.
    #[error("nothing was sent: {0}")]
    OwnLimit(String),
    /// Something on the way says that the backend gives no answer: it may say so after the backend had the request.
    #[error("the backend gives no answer: {0}")]
    Unclear(String),
    /// The queue towards the backend is full.
    #[error("too many messages wait for the backend")]
    QueueFull,
    /// The backend no longer knows our session; it did not look at the request.
    #[error("the backend forgot the session")]
    SessionGone,
    /// The request went out and its answer will not come.
    #[error("the answer is lost: {0}")]
    Lost(String),
    /// The backend did not answer in time.
    #[error("no answer to {} in time", .0.name())]
    TimedOut(Method),
    /// What came back is not MCP.
    #[error("the backend broke the protocol: {0}")]
    Protocol(String),
    #[error("the answer is larger than {max} bytes")]
    TooLarge { max: usize },
}

impl Failure {
    /// In one word, for spans.
    pub fn name(&self) -> &'static str {
        match self {
            Failure::NotSent(_) => "not_sent",
            Failure::Busy(_) => "busy",
            Failure::Throttled(_) => "throttled",
            Failure::Denied(_) => "denied",
            Failure::OwnLimit(_) => "own_limit",
            Failure::Unclear(_) => "unclear",
            Failure::QueueFull => "queue_full",
            Failure::SessionGone => "session_gone",
            Failure::Lost(_) => "lost",
            Failure::TimedOut(_) => "timeout",
            Failure::Protocol(_) => "protocol",
            Failure::TooLarge { .. } => "too_large",
        }
    }

    /// Nothing was done on account of the request: it may be sent again.
    pub fn was_not_seen(&self) -> bool {
        matches!(
            self,
            Failure::NotSent(_)
                | Failure::OwnLimit(_)
                | Failure::Busy(_)
                | Failure::Throttled(_)
                | Failure::QueueFull
                | Failure::SessionGone
        )
    }

    /// The backend is not well, or cannot be reached: this counts for its breaker. Not what our own side refused, nor what a
    /// backend does that is well.
    pub fn is_the_backends(&self) -> bool {
        match self {
            Failure::NotSent(_) | Failure::Busy(_) | Failure::Unclear(_) => true,
            Failure::Lost(_) | Failure::TimedOut(_) | Failure::Protocol(_) => true,
            Failure::Throttled(_)
            | Failure::QueueFull
            | Failure::SessionGone
            | Failure::TooLarge { .. } => false,
            Failure::Denied(_) | Failure::OwnLimit(_) => false,
        }
    }

    /// Whether to send the request again makes sense, as far as its fate goes.
    pub fn attempt(&self) -> AttemptOutcome {
        match self {
            Failure::NotSent(_) => AttemptOutcome::NotProcessed,
            Failure::Lost(_) | Failure::Unclear(_) => AttemptOutcome::MaybeProcessed,
            // Who says that it is busy shall not be asked once more in the same moment.
            _ => AttemptOutcome::Final,
        }
    }

    /// In the client's terms: no text of the backend, no internals.
    pub fn refusal(&self, backend: &BackendId) -> Refusal {
        let (kind, text) = match self {
            Failure::NotSent(_) | Failure::SessionGone => {
                (ErrorKind::BackendUnavailable, format!("backend {backend} can not be reached"))
            }
            Failure::Busy(_) | Failure::Throttled(_) => {
                (ErrorKind::BackendUnavailable, format!("backend {backend} takes no work now"))
            }
            Failure::Denied(_) => {
                (ErrorKind::BackendProtocolError, format!("backend {backend} refuses the request"))
            }
            Failure::OwnLimit(_) => (
                ErrorKind::Overloaded,
                format!("nothing is left here to reach backend {backend} with"),
            ),
            Failure::Unclear(_) => (
                ErrorKind::OutcomeUnknown,
                format!(
                    "backend {backend} can not be reached through what is before it; it may have acted"
                ),
            ),
            Failure::QueueFull => {
                (ErrorKind::Overloaded, format!("too many messages wait for backend {backend}"))
            }
            Failure::Lost(_) => (
                ErrorKind::OutcomeUnknown,
                format!(
                    "the connection to backend {backend} ended before the answer; it may have acted"
                ),
            ),
            Failure::TimedOut(_) => {
                (ErrorKind::Timeout, format!("backend {backend} did not answer in time"))
            }
            Failure::Protocol(_) => (
                ErrorKind::BackendProtocolError,
                format!("backend {backend} gave an answer that is not MCP"),
            ),
            Failure::TooLarge { max } => (
                ErrorKind::ResultTooLarge,
                format!("the answer of backend {backend} is larger than {max} bytes"),
            ),
        };
        Refusal::new(kind, text)
    }
}
