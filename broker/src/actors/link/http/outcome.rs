//! What the answer to a GET means, on the GET stream and when the stream of a call is resumed.

use http::StatusCode;
use transport::{HttpResponse, ResponseBody};

use super::ContentKind;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Events follow.
    Open,
    /// This backend has no such stream; calls work without.
    None,
    /// The backend can not go on from the event id; it says nothing about the session.
    UnknownEvent,
    /// The backend no longer knows the session.
    SessionGone,
    /// Not now.
    Later,
}

/// What the GET asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// The GET stream, which was never open so far.
    First,
    /// The GET stream again, from now on.
    Again,
    /// What follows an event id.
    ToResume,
}

impl Outcome {
    pub(super) fn of(response: &HttpResponse<ResponseBody>, asked: Asked) -> Self {
        Self::judge(response.status(), ContentKind::of(response) == ContentKind::EventStream, asked)
    }

    /// A refusal of the very first GET means that there is no such stream, whatever its number: many servers know only
    /// POST. Once it was open, the same number means something else.
    fn judge(status: StatusCode, is_event_stream: bool, asked: Asked) -> Self {
        match (status, asked) {
            (StatusCode::OK, _) if is_event_stream => Outcome::Open,
            (StatusCode::METHOD_NOT_ALLOWED, _) => Outcome::None,
            (StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS, _) => Outcome::Later,
            (status, _) if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED => Outcome::Later,
            (_, Asked::First) => Outcome::None,
            (_, Asked::ToResume) => Outcome::UnknownEvent,
            (StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST, Asked::Again) => Outcome::SessionGone,
            (status, Asked::Again) if status.is_client_error() => Outcome::None,
            (_, Asked::Again) => Outcome::Later,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b_http_07_what_an_answer_without_events_means_depends_on_what_was_asked() {
        use Outcome::{Later, None, SessionGone, UnknownEvent};
        for (status, first, again, to_resume) in [
            (200, None, Later, UnknownEvent),
            (204, None, Later, UnknownEvent),
            (302, None, Later, UnknownEvent),
            (400, None, SessionGone, UnknownEvent),
            (403, None, None, UnknownEvent),
            (404, None, SessionGone, UnknownEvent),
            (405, None, None, None),
            (409, Later, Later, Later),
            (429, Later, Later, Later),
            (500, Later, Later, Later),
            (501, None, Later, UnknownEvent),
            (503, Later, Later, Later),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let judged = [Asked::First, Asked::Again, Asked::ToResume].map(|asked| Outcome::judge(status, false, asked));
            assert_eq!(judged, [first, again, to_resume], "{status}");
        }
    }

    #[test]
    fn only_an_event_stream_with_status_200_is_open() {
        for asked in [Asked::First, Asked::Again, Asked::ToResume] {
            assert_eq!(Outcome::judge(StatusCode::OK, true, asked), Outcome::Open);
            assert_ne!(Outcome::judge(StatusCode::NOT_FOUND, true, asked), Outcome::Open);
        }
    }
}
