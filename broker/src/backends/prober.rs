//! Probes a backend whose breaker is open, and one of which nothing is heard while its clients give up, over the link its lists
//! come by. One of these runs for each backend, beside [`super::catalog_refresh`], which owns that link.
//!
//! Any answer will do: a backend that says no is there. One that was started anew and forgot the session is too. What clients do
//! makes the broker look, no more: only what it finds itself counts.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use protocol::{error::Refusal, method::Method};

use super::{
    backend::Backend,
    backend_admission::ProbeReason,
    link::{Link, connection::Failure},
};
use crate::limits::PROBE_ANSWER_MAX;

/// Between two looks at a backend that was found silent.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// What a probe found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbeOutcome {
    Healthy,
    /// It gave no answer.
    NoAnswer,
    /// There is no connection to it, which the link has noted.
    Disconnected,
}

/// Runs until it is dropped.
pub(super) async fn run(backend: &Arc<Backend>, link: &Arc<Link>) {
    loop {
        match backend.wait_for_probe().await {
            ProbeReason::HalfOpen => {
                let found = catch_panic(probe(backend, link)).await;
                backend.record_probe(found == ProbeOutcome::Healthy);
            }
            ProbeReason::Suspicion => resolve_suspicion(backend, link).await,
        }
    }
}

/// A backend that is there is left alone for a while. One that is not is looked at until somebody hears of it, or its breaker
/// opens.
async fn resolve_suspicion(backend: &Arc<Backend>, link: &Arc<Link>) {
    let begun = backend.shared.uptime();
    loop {
        let asked = backend.shared.uptime();
        match catch_panic(probe(backend, link)).await {
            ProbeOutcome::Healthy => break,
            ProbeOutcome::NoAnswer => {
                backend.record_failure(backend.shared.uptime().saturating_sub(asked))
            }
            ProbeOutcome::Disconnected => {}
        }
        if backend.answered_since(begun) || backend.check_breaker().is_err() {
            break;
        }
        tokio::time::sleep(LOOK_AGAIN_AFTER).await;
    }
    backend.clear_suspicion();
}

/// A breaker must not wait for ever for the outcome of a probe that died.
async fn catch_panic(probe: impl Future<Output = ProbeOutcome>) -> ProbeOutcome {
    AssertUnwindSafe(probe).catch_unwind().await.unwrap_or_else(|_told_by_the_panic_hook| {
        tracing::error!("a probe of a backend failed inside the broker");
        ProbeOutcome::NoAnswer
    })
}

async fn probe(backend: &Backend, link: &Arc<Link>) -> ProbeOutcome {
    for attempt in 0..2 {
        let asked = match ask(backend, link).await {
            Ok(asked) => asked,
            Err(_refused) => return ProbeOutcome::Disconnected,
        };
        match asked {
            Ok(()) => return ProbeOutcome::Healthy,
            Err(Failure::SessionGone) if attempt == 0 => {} // on a connection of its own it may know us
            Err(failure) => {
                let _noted = backend.refusal(&failure);
                return if matches!(failure, Failure::Throttled(_)) {
                    ProbeOutcome::Healthy
                } else {
                    ProbeOutcome::NoAnswer
                };
            }
        }
    }
    ProbeOutcome::NoAnswer
}

async fn ask(backend: &Backend, link: &Arc<Link>) -> Result<Result<(), Failure>, Refusal> {
    if link.live().is_none() {
        // Nobody else asks this often: the link's own patience is not needed.
        link.clear_backoff();
    }
    let connection = link.connection().await?;
    let limit = backend.timeouts().control.min(PROBE_ANSWER_MAX);
    let method = [Method::Ping, Method::ToolsList, Method::ResourcesList, Method::PromptsList]
        .into_iter()
        .find(|method| connection.permits(*method).is_ok())
        .unwrap_or(Method::Ping);
    let answer = tokio::time::timeout(limit, connection.ask(link, method, None)).await;
    Ok(answer.unwrap_or(Err(Failure::TimedOut(method))).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_probe_that_dies_has_failed() {
        assert_eq!(catch_panic(async { panic!("as planned") }).await, ProbeOutcome::NoAnswer);
        assert_eq!(catch_panic(async { ProbeOutcome::Healthy }).await, ProbeOutcome::Healthy);
    }
}
