//! Outcome of a GET, for the GET stream and for resuming the stream of a call.

use http::StatusCode;
use transport::{HttpResponse, ResponseBody};

use super::content_kind::ContentKind;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GetOutcome {
    /// The response is an event stream.
    Open,
    /// The backend has no GET stream. Calls work without it.
    Unsupported,
    /// The backend had a GET stream and refuses another one, perhaps for a while only.
    Refused,
    /// The backend cannot resume from the event id. The session may still exist.
    UnknownEvent,
    /// The backend forgot the session.
    SessionGone,
    /// A later attempt may succeed.
    RetryLater,
}

/// Purpose of a GET.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GetPurpose {
    /// The first GET stream of the connection.
    Initial,
    /// Another GET stream, from now on.
    Reopen,
    /// The events after an event id.
    Resume,
}

impl GetOutcome {
    pub(super) fn of(response: &HttpResponse<ResponseBody>, purpose: GetPurpose) -> Self {
        Self::judge(
            response.status(),
            ContentKind::of(response) == ContentKind::EventStream,
            purpose,
        )
    }

    /// Judges a response. An error to the first GET means that the server has no GET stream,
    /// whatever its status: many servers support only POST. After a stream was open, the same
    /// status has another meaning.
    fn judge(status: StatusCode, is_event_stream: bool, purpose: GetPurpose) -> Self {
        match (status, purpose) {
            (StatusCode::OK, _) if is_event_stream => GetOutcome::Open,
            (StatusCode::METHOD_NOT_ALLOWED, _) => GetOutcome::Unsupported,
            (
                StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS,
                _,
            ) => GetOutcome::RetryLater,
            (status, _) if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED => {
                GetOutcome::RetryLater
            }
            (_, GetPurpose::Initial) => GetOutcome::Unsupported,
            (_, GetPurpose::Resume) => GetOutcome::UnknownEvent,
            (StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST, GetPurpose::Reopen) => {
                GetOutcome::SessionGone
            }
            (status, GetPurpose::Reopen) if status.is_client_error() => GetOutcome::Refused,
            (_, GetPurpose::Reopen) => GetOutcome::RetryLater,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b_http_07_an_answer_without_events_is_judged_by_the_kind_of_get() {
        use GetOutcome::{Refused, RetryLater, SessionGone, UnknownEvent, Unsupported};
        for (status, first, again, to_resume) in [
            (200, Unsupported, RetryLater, UnknownEvent),
            (204, Unsupported, RetryLater, UnknownEvent),
            (302, Unsupported, RetryLater, UnknownEvent),
            (400, Unsupported, SessionGone, UnknownEvent),
            (401, Unsupported, Refused, UnknownEvent),
            (403, Unsupported, Refused, UnknownEvent),
            (404, Unsupported, SessionGone, UnknownEvent),
            (405, Unsupported, Unsupported, Unsupported),
            (409, RetryLater, RetryLater, RetryLater),
            (429, RetryLater, RetryLater, RetryLater),
            (500, RetryLater, RetryLater, RetryLater),
            (501, Unsupported, RetryLater, UnknownEvent),
            (503, RetryLater, RetryLater, RetryLater),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let judged = [GetPurpose::Initial, GetPurpose::Reopen, GetPurpose::Resume]
                .map(|purpose| GetOutcome::judge(status, false, purpose));
            assert_eq!(judged, [first, again, to_resume], "{status}");
        }
    }

    #[test]
    fn only_an_event_stream_with_status_200_is_open() {
        for purpose in [GetPurpose::Initial, GetPurpose::Reopen, GetPurpose::Resume] {
            assert_eq!(GetOutcome::judge(StatusCode::OK, true, purpose), GetOutcome::Open);
            assert_ne!(GetOutcome::judge(StatusCode::NOT_FOUND, true, purpose), GetOutcome::Open);
        }
    }
}
