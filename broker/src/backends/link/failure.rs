//! Failures of requests to backends. Connections and their wires create them. Calls and
//! [`Backend::report_failure`] translate them.
//!
//! Each kind defines whether the backend can have acted. The broker sends a request again only if
//! the backend certainly did not process it.
//!
//! [`Backend::report_failure`]: crate::backends::backend::Backend::report_failure

use std::time::Duration;

use protocol::{
    error::{ErrorKind, Refusal},
    ids::BackendId,
    method::Method,
};
use rules::retries::AttemptOutcome;
use transport::SendError;

use crate::oauth;

/// Reason for which a request has no answer. It defines whether the backend can have acted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No byte of the request was sent, or the backend reported over HTTP/2 that it did not process
    /// the request. A retry is safe.
    #[error("nothing was sent: {0}")]
    NotSent(String),
    /// The backend is reachable but takes no work now.
    #[error("the backend is busy: {reason}")]
    Busy { reason: String, retry_after: Option<Duration> },
    /// The backend works but wants fewer requests.
    #[error("the backend asks for fewer requests: {reason}")]
    Throttled { reason: String, retry_after: Option<Duration> },
    /// The backend, or a proxy in front of it, denied the request. It may have processed the
    /// request.
    #[error("the backend refuses the request: {0}")]
    Denied(String),
    /// The broker has no access token for the backend. Nothing was sent.
    #[error("no access token is available: {0}")]
    NoToken(String),
    /// The user must connect an account first, at this address. Nothing was sent.
    #[error("{reason}")]
    Unconnected { reason: String, url: Option<String> },
    /// The user must come with an access token that can be exchanged. Nothing was sent.
    #[error("{0}")]
    TokenRequired(String),
    /// A limit of the broker or of its machine prevents the request.
    #[error("nothing was sent: {0}")]
    OwnLimit(String),
    /// A proxy reports that the backend gives no answer. The backend may have got the request.
    #[error("the backend did not answer: {0}")]
    Unclear(String),
    /// The queue towards the backend is full.
    #[error("too many messages wait for the backend")]
    QueueFull,
    /// The backend forgot the session. It did not process the request.
    #[error("the backend does not know the session")]
    SessionGone,
    /// The request went out and its answer will not come.
    #[error("the answer is lost: {0}")]
    Lost(String),
    /// A message over the limit ended the connection. It may have been the answer.
    #[error("the answer is lost: a message is longer than the {max} bytes allowed")]
    Overlong { max: usize },
    /// A call broke off after its client got a question of the backend. A repetition would ask the
    /// client again.
    #[error("the call failed after the backend had started it: {0}")]
    Unfinished(Box<Failure>),
    /// The backend did not answer in time.
    #[error("no answer to {} in time", .0.name())]
    TimedOut(Method),
    /// The backend's answer is not valid MCP.
    #[error("the backend violated the protocol: {0}")]
    Protocol(String),
    /// The backend leads back to the catalog of its own tenant.
    #[error(
        "the catalog of the tenant contains itself through this backend, which leads back to it directly or through other brokers"
    )]
    CatalogLoop,
    #[error("the answer is larger than {max} bytes")]
    TooLarge { max: usize },
}

impl Failure {
    /// Returns the failure of a busy backend that does not tell how long it is busy.
    pub(super) fn busy(reason: String) -> Self {
        Failure::Busy { reason, retry_after: None }
    }

    /// Returns the failure of an HTTP request.
    pub(super) fn of_send(error: SendError) -> Self {
        match error {
            error if error.is_safe_to_retry() => Failure::NotSent(error.to_string()),
            SendError::Aborted { reason } => Failure::Lost(reason),
            error => Failure::Lost(error.to_string()),
        }
    }

    /// Returns the name of the kind, for spans.
    pub fn name(&self) -> &'static str {
        match self {
            Failure::NotSent(_) => "not_sent",
            Failure::Busy { .. } => "busy",
            Failure::Throttled { .. } => "throttled",
            Failure::Denied(_) => "denied",
            Failure::NoToken(_) => "no_token",
            Failure::Unconnected { .. } => "unconnected",
            Failure::TokenRequired(_) => "token_required",
            Failure::OwnLimit(_) => "own_limit",
            Failure::Unclear(_) => "unclear",
            Failure::QueueFull => "queue_full",
            Failure::SessionGone => "session_gone",
            Failure::Lost(_) => "lost",
            Failure::Overlong { .. } => "overlong",
            Failure::Unfinished(_) => "unfinished",
            Failure::TimedOut(_) => "timeout",
            Failure::Protocol(_) => "protocol",
            Failure::CatalogLoop => "catalog_loop",
            Failure::TooLarge { .. } => "too_large",
        }
    }

    /// Returns whether the backend certainly did not process the request.
    pub fn was_not_seen(&self) -> bool {
        matches!(
            self,
            Failure::NotSent(_)
                | Failure::NoToken(_)
                | Failure::Unconnected { .. }
                | Failure::TokenRequired(_)
                | Failure::OwnLimit(_)
                | Failure::Busy { .. }
                | Failure::Throttled { .. }
                | Failure::QueueFull
                | Failure::SessionGone
        )
    }

    /// Returns whether the failure counts for the breaker: the backend is unhealthy or unreachable.
    /// Refusals of the broker and requests of a healthy backend for less load do not count.
    pub fn counts_for_breaker(&self) -> bool {
        match self {
            Failure::NotSent(_) | Failure::Busy { .. } | Failure::Unclear(_) => true,
            Failure::Lost(_) | Failure::Overlong { .. } => true,
            Failure::TimedOut(_) | Failure::Protocol(_) => true,
            Failure::Throttled { .. }
            | Failure::QueueFull
            | Failure::SessionGone
            | Failure::TooLarge { .. } => false,
            Failure::Denied(_) | Failure::NoToken(_) | Failure::OwnLimit(_) => false,
            Failure::CatalogLoop => false,
            Failure::Unconnected { .. } | Failure::TokenRequired(_) => false,
            Failure::Unfinished(reason) => reason.counts_for_breaker(),
        }
    }

    /// Returns whether the request went out and its answer will not come.
    pub fn is_lost(&self) -> bool {
        matches!(self, Failure::Lost(_) | Failure::Overlong { .. })
    }

    /// Returns the time after which the backend wants the request again, if it named one.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Failure::Busy { retry_after, .. } | Failure::Throttled { retry_after, .. } => {
                *retry_after
            }
            _ => None,
        }
    }

    /// Returns whether the user lacks something that others may have.
    pub fn needs_user_action(&self) -> bool {
        matches!(self, Failure::Unconnected { .. } | Failure::TokenRequired(_))
    }

    /// Returns whether the outcome of the attempt permits a retry.
    pub fn attempt(&self) -> AttemptOutcome {
        match self {
            Failure::NotSent(_) => AttemptOutcome::NotProcessed,
            Failure::Lost(_) | Failure::Overlong { .. } | Failure::Unclear(_) => {
                AttemptOutcome::MaybeProcessed
            }
            // No immediate retry against a backend that reports that it is busy.
            _ => AttemptOutcome::Final,
        }
    }

    /// Translates the failure for the client, without text of the backend and without internals.
    pub fn refusal(&self, backend: &BackendId) -> Refusal {
        let (kind, text) = match self {
            Failure::Unconnected { url: Some(url), .. } => {
                return connection_required(backend, url);
            }
            Failure::Unconnected { url: None, .. } => (
                ErrorKind::BackendUnavailable,
                format!(
                    "backend {backend} needs a connected user account, but the broker has no address for browsers"
                ),
            ),
            Failure::TokenRequired(_) => (
                ErrorKind::TokenRequired,
                format!(
                    "backend {backend} needs an access token that the broker may exchange: authenticate with a token of an issuer of this broker"
                ),
            ),
            Failure::NotSent(_) | Failure::SessionGone => {
                (ErrorKind::BackendUnavailable, format!("backend {backend} cannot be reached"))
            }
            Failure::Busy { .. } | Failure::Throttled { .. } => (
                ErrorKind::BackendUnavailable,
                format!("backend {backend} accepts no requests now"),
            ),
            Failure::Denied(_) => {
                (ErrorKind::BackendProtocolError, format!("backend {backend} refuses the request"))
            }
            Failure::NoToken(_) => (
                ErrorKind::BackendUnavailable,
                format!("the broker has no access token for backend {backend} now"),
            ),
            Failure::OwnLimit(_) => (
                ErrorKind::Overloaded,
                format!(
                    "a limit of the broker or its host prevents the request to backend {backend}"
                ),
            ),
            Failure::Unclear(_) => (
                ErrorKind::OutcomeUnknown,
                format!(
                    "backend {backend} or a proxy in front of it gave no answer; the backend may have acted"
                ),
            ),
            Failure::QueueFull => {
                (ErrorKind::Overloaded, format!("too many messages wait for backend {backend}"))
            }
            Failure::Lost(_) => (
                ErrorKind::OutcomeUnknown,
                format!(
                    "the connection to backend {backend} ended before the answer; the backend may have acted"
                ),
            ),
            Failure::Overlong { max } => (
                ErrorKind::OutcomeUnknown,
                format!(
                    "a message of backend {backend} was longer than the {max} bytes allowed and ended the connection before the answer; the backend may have acted"
                ),
            ),
            Failure::Unfinished(_) => (
                ErrorKind::OutcomeUnknown,
                format!("backend {backend} began the call and did not end it; it may have acted"),
            ),
            Failure::TimedOut(_) => {
                (ErrorKind::Timeout, format!("backend {backend} did not answer in time"))
            }
            Failure::Protocol(_) => (
                ErrorKind::BackendProtocolError,
                format!("backend {backend} sent an answer that is not valid MCP"),
            ),
            Failure::CatalogLoop => (
                ErrorKind::CatalogLoop,
                format!("the catalog of the tenant contains itself through backend {backend}"),
            ),
            Failure::TooLarge { max } => (
                ErrorKind::ResultTooLarge,
                format!("the answer of backend {backend} is larger than {max} bytes"),
            ),
        };
        let refusal = Refusal::new(kind, text);
        match self.retry_after() {
            Some(after) => refusal.retry_after(after),
            None => refusal,
        }
    }
}

/// Returns the refusal that requests the user to open the connect page.
fn connection_required(backend: &BackendId, url: &str) -> Refusal {
    let message = format!("Connect your account for {backend} at this address, then try again.");
    let text = format!("backend {backend} needs a connected user account: open {url}");
    let id = format!("{}{}", oauth::connect_elicitation(backend), oauth::random_text());
    Refusal::new(ErrorKind::ConnectionRequired, text).with(
        "elicitations",
        serde_json::json!([{
            "mode": "url", "elicitationId": id, "url": url,
            "message": message,
        }]),
    )
}
