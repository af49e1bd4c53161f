//! A GET stream of a session over HTTP. Messages on it are counted, and an answer on it is a
//! finding.

use protocol::sse::SseParser;

use super::{
    LoadTarget, MESSAGE_BYTES_MAX,
    http1::{BodyLength, HttpStream},
};
use crate::{
    answer::{self, Incoming},
    findings::{FindingKind, excerpt},
};

/// Reads until the stream ends.
pub(super) async fn count(
    site: &LoadTarget,
    mut stream: HttpStream,
    length: BodyLength,
) -> anyhow::Result<()> {
    let mut events = SseParser::new(MESSAGE_BYTES_MAX);
    while let Some(chunk) = stream.part(length).await? {
        events.push(&chunk);
        while let Some(event) = events.next_event()? {
            let Some(data) = event.data.filter(|data| !data.is_empty()) else { continue };
            match answer::incoming(&data) {
                Incoming::Notification(_) | Incoming::Request { .. } => site.count_notification(),
                Incoming::Answer(_) | Incoming::Unreadable => {
                    site.findings.record(
                        FindingKind::Unsolicited,
                        &format!("on the GET stream: {}", excerpt(&data)),
                    );
                }
            }
        }
    }
    Ok(())
}
