//! Probes a backend whose breaker is open, over the link its lists come by. One of these runs for each backend, beside
//! [`super::catalog_refresh`], which owns that link.
//!
//! Any answer will do: a backend that says no is there. One that was started anew and forgot the session is too.

use std::sync::Arc;

use protocol::{error::Refusal, method::Method};

use super::{
    backend::Backend,
    link::{Link, connection::Failure},
};
use crate::limits::PROBE_ANSWER_MAX;

/// Runs until it is dropped.
pub(super) async fn run(backend: &Arc<Backend>, link: &Arc<Link>) {
    loop {
        backend.probe_due().await;
        let well = probe(backend, link).await;
        backend.probed(well);
    }
}

async fn probe(backend: &Backend, link: &Arc<Link>) -> bool {
    for attempt in 0..2 {
        let asked = match ask(backend, link).await {
            Ok(asked) => asked,
            Err(_refused) => return false, // the link has noted why
        };
        match asked {
            Ok(()) => return true,
            Err(Failure::SessionGone) if attempt == 0 => {} // on a connection of its own it may know us
            Err(failure) => {
                let _noted = backend.refusal(&failure);
                return matches!(failure, Failure::Throttled(_));
            }
        }
    }
    false
}

async fn ask(backend: &Backend, link: &Arc<Link>) -> Result<Result<(), Failure>, Refusal> {
    if link.live().is_none() {
        // Nobody else asks this often: the link's own patience is not needed.
        link.forgive_at_once();
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
