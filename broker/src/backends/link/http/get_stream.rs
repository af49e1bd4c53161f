//! The GET stream of a link: messages of a backend outside calls (MCP 2025-11-25, Transports).
//!
//! The stream opens before the first call, because some servers lose messages that they cannot
//! deliver at once. It opens again after each end, until the connection is closed. A backend that
//! refuses to open it again gets another request after [`LISTEN_REFUSED_PAUSE`], because the refusal
//! may pass: credentials can expire while a connection is open for days.

use std::{pin::pin, sync::Arc, time::Duration};

use rules::limits::{BACKOFF_FIRST, BACKOFF_MAX, LISTEN_REFUSED_PAUSE, STABLE_AFTER};
use tokio::{sync::oneshot, time::Instant};

use super::{
    event_stream::{BodyEnd, EventStreamReader},
    get_outcome::{GetOutcome, GetPurpose},
    http_wire::HttpWire,
};
use crate::backends::{
    backend::BackendState,
    fault_lines::RepeatedFault,
    link::{Link, connection::Connection, failure::Failure},
};

/// Reads the GET stream until the connection is closed. `opened` resolves after the first attempt.
pub(super) async fn listen(
    wire: Arc<HttpWire>,
    link: Arc<Link>,
    connection: Arc<Connection>,
    opened: oneshot::Sender<()>,
) {
    tokio::select! {
        () = keep_open(&wire, &link, &connection, opened) => connection.close_forgotten(),
        () = connection.closed() => {}
    }
    link.backend.connection_ended(&link, &connection);
}

/// Keeps the stream open. Returns only when the backend forgot the session.
async fn keep_open(
    wire: &Arc<HttpWire>,
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    opened: oneshot::Sender<()>,
) {
    let mut reading = EventStreamReader::new(wire, link, connection, None, None);
    let mut opened = Some(opened);
    let mut was_open = false;
    let mut failures = 0_u32;
    let mut gaps = GapReports::default();
    loop {
        if reading.last_event_id.is_none() {
            reading.forget_seen();
        }
        let purpose = match &reading.last_event_id {
            Some(_) => GetPurpose::Resume,
            None if was_open => GetPurpose::Reopen,
            None => GetPurpose::Initial,
        };
        let response = wire.send(wire.get(reading.last_event_id.as_deref())).await;
        if let Err(failure) = &response {
            let is_ready = link.backend.health.state() == BackendState::Ready;
            link.backend.early_ping.record_failure(failure, is_ready);
        }
        let outcome = response
            .as_ref()
            .map_or(GetOutcome::RetryLater, |response| GetOutcome::of(response, purpose));
        let is_first = opened.take().map(|opened| opened.send(())).is_some();
        match (outcome, response) {
            (GetOutcome::Open, Ok(response)) => {
                was_open = true;
                if !is_first {
                    gaps.add(purpose);
                }
                let mut body = response.into_body();
                let read = reading.read(&mut body);
                failures = match report_until(read, &mut gaps, link).await {
                    // The backend would send the same event again after the last id.
                    BodyEnd::Broken(failure) if !matches!(failure, Failure::Lost(_)) => {
                        report_unreadable_event(link, &failure);
                        reading.last_event_id = None;
                        failures + 1
                    }
                    _ => 0,
                };
            }
            (GetOutcome::UnknownEvent, _) => {
                reading.last_event_id = None;
                continue;
            }
            (GetOutcome::Unsupported, _) => {
                return report_until(std::future::pending(), &mut gaps, link).await;
            }
            (GetOutcome::Refused, response) => {
                if let Ok(response) = response {
                    let limit = link.backend.timeouts().control;
                    let read = wire.is_refusal_of_session(response);
                    let read = tokio::time::timeout(limit, read);
                    if matches!(report_until(read, &mut gaps, link).await, Ok(true)) {
                        return;
                    }
                }
                report_until(tokio::time::sleep(LISTEN_REFUSED_PAUSE), &mut gaps, link).await;
                continue;
            }
            (GetOutcome::SessionGone, _) => return,
            _ => failures += 1,
        }
        let pause = tokio::time::sleep(pause(failures, reading.retry));
        report_until(pause, &mut gaps, link).await;
    }
}

fn report_unreadable_event(link: &Link, failure: &Failure) {
    let (tenant, backend) = (&link.backend.tenant, &link.backend.id);
    let lines = &link.backend.resources.fault_lines;
    let checked = lines.check(tenant, backend, RepeatedFault::UnreadableEvent);
    if let Some(left_out) = checked {
        tracing::warn!(%tenant, %backend, left_out, %failure, "the broker cannot read an event of the backend and reopens the stream without the missed events");
    }
}

/// Waits for a future. Meanwhile, reports gaps when the report is due.
async fn report_until<T>(
    awaited: impl Future<Output = T>,
    gaps: &mut GapReports,
    link: &Link,
) -> T {
    let mut awaited = pin!(awaited);
    loop {
        tokio::select! {
            biased;
            () = gaps.due() => report(gaps.take(), link),
            output = &mut awaited => return output,
        }
    }
}

/// Reports that messages of the backend may be lost. The lists are read again after a resumption
/// too, which some backends permit without a log.
fn report(missed: MissedMessages, link: &Link) {
    if link.has_no_client() {
        link.backend.refresh();
    }
    if missed == MissedMessages::AlsoUpdates {
        link.subscriptions.notify_all(&link.backend.id);
    }
}

/// What a backend may have sent between two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MissedMessages {
    /// The stream was resumed.
    OnlyWithoutLog,
    AlsoUpdates,
}

/// Reports of gaps between two streams. A backend that ends each stream at once causes one report in
/// [`STABLE_AFTER`], not one for each stream.
#[derive(Default)]
struct GapReports {
    /// Time of the next report. `None`: there was no gap since the last one.
    next_at: Option<Instant>,
    last_at: Option<Instant>,
    /// True if a stream since the last report was not resumed.
    lost_updates: bool,
}

impl GapReports {
    fn add(&mut self, purpose: GetPurpose) {
        let earliest = self.last_at.map_or_else(Instant::now, |last| last + STABLE_AFTER);
        self.next_at.get_or_insert(earliest);
        self.lost_updates |= purpose != GetPurpose::Resume;
    }

    /// Resolves at the time of the next report, if there is one.
    async fn due(&self) {
        match self.next_at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Returns what the report covers. The next one covers only later gaps.
    fn take(&mut self) -> MissedMessages {
        (self.next_at, self.last_at) = (None, Some(Instant::now()));
        match std::mem::take(&mut self.lost_updates) {
            true => MissedMessages::AlsoUpdates,
            false => MissedMessages::OnlyWithoutLog,
        }
    }
}

fn pause(failures: u32, retry: Duration) -> Duration {
    if failures == 0 {
        retry
    } else {
        BACKOFF_FIRST.saturating_mul(1 << failures.min(10)).min(BACKOFF_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn gaps_in_quick_succession_get_one_report() {
        let mut gaps = GapReports::default();
        let started = Instant::now();
        gaps.add(GetPurpose::Resume);
        gaps.due().await;
        assert_eq!(gaps.take(), MissedMessages::OnlyWithoutLog);
        assert_eq!(started.elapsed(), Duration::ZERO, "the first gap is reported at once");
        for purpose in [GetPurpose::Reopen, GetPurpose::Resume, GetPurpose::Resume] {
            tokio::time::advance(Duration::from_secs(1)).await;
            gaps.add(purpose);
        }
        gaps.due().await;
        assert_eq!(gaps.take(), MissedMessages::AlsoUpdates);
        assert_eq!(started.elapsed(), STABLE_AFTER);
        assert_eq!(gaps.next_at, None);
    }
}
