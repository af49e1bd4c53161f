//! The media type of a response, as far as a link distinguishes it.

use http::header::CONTENT_TYPE;
use transport::{HttpResponse, ResponseBody};

pub(super) const JSON: &str = "application/json";
pub(super) const EVENT_STREAM: &str = "text/event-stream";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentKind {
    Json,
    EventStream,
    Other,
}

impl ContentKind {
    pub(super) fn of(response: &HttpResponse<ResponseBody>) -> Self {
        let text = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        if text == JSON {
            return ContentKind::Json;
        }
        match text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
            JSON => ContentKind::Json,
            EVENT_STREAM => ContentKind::EventStream,
            _ => ContentKind::Other,
        }
    }
}
