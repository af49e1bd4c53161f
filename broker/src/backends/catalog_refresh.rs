//! Fetches and publishes the lists of one backend, and refreshes them when they may have changed.
//!
//! Runs in the background while the backend is registered, on a link of its own. No client waits
//! for it: the lists of a slow or unreachable backend stay in the catalog and are marked stale.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use protocol::{
    error::{ErrorKind, Refusal},
    method::Method,
};
use rules::{
    catalog::BackendLists,
    limits::{BACKOFF_FIRST, BACKOFF_MAX, LIST_TTL_MIN, REFRESH_DEBOUNCE, REFRESH_INTERVAL_MIN},
};

use super::{
    backend::{Backend, BackendState},
    catalog_owner::CatalogOwner,
    link::{Link, connection::Connection, failure::Failure},
    list_fetch::{FetchedLists, fetch},
    prober,
};
use crate::oauth::TokenSource;

/// Adds to new lists of a backend what a connection alone does not show.
type CompleteLists = for<'a> fn(
    &'a Arc<Backend>,
    &'a Connection,
    &'a mut BackendLists,
) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Runs until the backend is removed. `complete` completes new lists.
pub async fn run(backend: Arc<Backend>, complete: CompleteLists, owner: impl CatalogOwner) {
    let link = backend.catalog_link();
    let work = async {
        let mut failures = 0;
        loop {
            let ended = run_connection(&owner, complete, &backend, &link, &mut failures).await;
            match ended {
                Ok(()) => {}
                Err(refusal) => {
                    failures += 1;
                    // What the attempt lacked came meanwhile. Clients that wait for the first lists
                    // wait for the next attempt.
                    if backend.is_never_reached() && backend.list_refresh.take_request() {
                        link.shorten_backoff();
                        continue;
                    }
                    let lack = [ErrorKind::ConnectionRequired, ErrorKind::TokenRequired];
                    if lack.contains(&refusal.kind) && backend.is_never_reached() {
                        let accounts = backend.tokens.as_ref().and_then(TokenSource::user);
                        backend.placeholder.show(
                            &backend.id,
                            accounts.is_some(),
                            &backend.pins,
                            &backend.lists,
                        );
                        owner.publish().await;
                    }
                    mark_unreachable(&owner, &backend, &refusal).await;
                    backend.list_refresh.read_ended();
                    let ceiling =
                        BACKOFF_FIRST.saturating_mul(1 << failures.min(10)).min(BACKOFF_MAX);
                    let pause = ceiling
                        .mul_f64(rand::random_range(0.5..1.0))
                        .max(refusal.retry_after.unwrap_or_default().min(BACKOFF_MAX));
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = backend.list_refresh.requested() => link.shorten_backoff(), // a probe does not wait for the back-off
                    }
                }
            }
        }
    };
    tokio::select! { () = work => {}, () = prober::run(&backend, &link) => {}, () = backend.stop.cancelled() => {} }
    link.close().await;
}

/// Fetches and publishes the lists over one connection, until the connection ends. A connection with
/// lists ends the row of `failures`.
async fn run_connection(
    owner: &impl CatalogOwner,
    complete: CompleteLists,
    backend: &Arc<Backend>,
    link: &Arc<Link>,
    failures: &mut u32,
) -> Result<(), Refusal> {
    let sessions_were_wanted = backend.era.sessions_wanted();
    backend.list_refresh.read_started();
    let connection = link.connection().await?;
    loop {
        let fetched_at = Instant::now();
        let FetchedLists { mut lists, definitions, ttl: kept_for } =
            fetch(link, &connection).await?;
        complete(backend, &connection, &mut lists).await;
        let others = || owner.others(&backend.id);
        let (lists, is_pinned) = backend.pins.admit(lists, definitions, others).await;
        let may_support_sessions = !sessions_were_wanted
            && connection.stateless().is_some()
            && backend.era.may_support_sessions(backend.spec.protocol);
        backend.era.set_settled(!may_support_sessions);
        publish_lists(owner, backend, lists).await;
        *failures = 0;
        backend.list_refresh.read_ended();
        tokio::select! {
            () = backend.era.first_session_client(), if may_support_sessions => {
                connection.close_forgotten(); // and is opened again
                return Ok(());
            }
            () = backend.list_refresh.requested() => {}
            () = lists_expired(kept_for) => {}
            () = tokio::time::sleep(BACKOFF_MAX), if !is_pinned => {}
            () = connection.closed() => {
                let text = format!("the connection to backend {} ended", backend.id);
                return Err(Refusal::new(ErrorKind::BackendUnavailable, text));
            }
            silent = ping_until_unresponsive(link, &connection) => {
                connection.close_now();
                return Err(silent);
            }
        }
        // Changes come in bursts. Wait for the end of one, and never fetch faster than the limit.
        let pause = REFRESH_DEBOUNCE.max(REFRESH_INTERVAL_MIN.saturating_sub(fetched_at.elapsed()));
        tokio::time::sleep(pause).await;
        let _coalesced = backend.list_refresh.take_request();
        backend.list_refresh.read_started();
    }
}

/// Waits until the lists are older than the time to live that the backend gave (MCP 2026-07-28,
/// Caching).
async fn lists_expired(kept_for: Option<Duration>) {
    match kept_for {
        Some(kept_for) => tokio::time::sleep(kept_for.max(LIST_TTL_MIN)).await,
        None => std::future::pending().await,
    }
}

/// Pings the backend at an interval, and soon after a request that could not be sent. Resolves when
/// it no longer answers (MCP 2025-11-25, Ping). One busy answer is permitted, a second one in a row
/// is not.
async fn ping_until_unresponsive(link: &Arc<Link>, connection: &Arc<Connection>) -> Refusal {
    let mut was_busy = false;
    loop {
        let interval = link.backend.context.config.timeouts.ping_interval;
        let soon = REFRESH_INTERVAL_MIN.min(interval);
        tokio::time::sleep(soon).await;
        tokio::select! {
            () = tokio::time::sleep(interval.saturating_sub(soon)) => {}
            () = link.backend.early_ping.wanted() => {}
        }
        was_busy = match connection.control_request(link, Method::Ping, None).await {
            Ok(_) => false,
            Err(Failure::Busy { .. } | Failure::Throttled { .. } | Failure::Unclear(_))
                if !was_busy =>
            {
                true
            }
            Err(failure) => return link.backend.report_failure(&failure),
        };
    }
}

async fn publish_lists(owner: &impl CatalogOwner, backend: &Arc<Backend>, lists: BackendLists) {
    backend.placeholder.hide();
    show_lists(owner, backend, lists).await;
    let first = backend.health.state() != BackendState::Ready;
    backend.health.set_state(BackendState::Ready);
    if first {
        tracing::info!(tenant = %backend.tenant, backend = %backend.id, "backend ready");
    }
}

/// Shows lists to clients. Lists without a difference cause no new catalog: a backend may announce
/// changes all the time.
pub(super) async fn show_lists(owner: &impl CatalogOwner, backend: &Backend, lists: BackendLists) {
    match backend.pins.publish(&backend.lists, lists) {
        true => owner.publish().await,
        false => owner.read_own_lists(&backend.id),
    }
}

async fn mark_unreachable(owner: &impl CatalogOwner, backend: &Arc<Backend>, refusal: &Refusal) {
    let state = match backend.lists.load_full() {
        Some(lists) => {
            // Lists of a loop contain the tenant's own entries.
            let is_loop = refusal.kind == ErrorKind::CatalogLoop;
            if !lists.stale || (is_loop && lists.has_entries()) {
                let kept = if is_loop { lists.without_entries() } else { (*lists).clone() };
                let stale = BackendLists { stale: true, ..kept };
                backend.pins.publish(&backend.lists, stale);
                owner.publish().await;
            }
            BackendState::Degraded
        }
        None => BackendState::Failed,
    };
    backend.set_unreachable(state, refusal);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use protocol::ids::BackendId;
    use serde_json::json;

    use super::*;
    use crate::{
        auth::Caller, backends::lists_for_tests::lists_with_tool, broker::Broker,
        persistence::Stores,
    };

    /// Counts the catalogs, and the reads of own lists, that it is asked for.
    #[derive(Default)]
    struct CountingOwner {
        catalogs: AtomicUsize,
        own_reads: AtomicUsize,
    }

    impl CountingOwner {
        fn counts(&self) -> [usize; 2] {
            [&self.catalogs, &self.own_reads].map(|count| count.load(Ordering::Relaxed))
        }
    }

    impl CatalogOwner for CountingOwner {
        async fn publish(&self) {
            self.catalogs.fetch_add(1, Ordering::Relaxed);
        }

        fn read_own_lists(&self, _backend: &BackendId) {
            self.own_reads.fetch_add(1, Ordering::Relaxed);
        }

        fn others(&self, _than: &BackendId) -> Vec<(BackendId, Arc<BackendLists>)> {
            Vec::new()
        }

        fn read_principal_lists(&self, _backend: &BackendId) {}
    }

    #[tokio::test]
    async fn lists_without_a_difference_cause_no_new_catalog() {
        let broker = Broker::over(Stores::in_memory().await);
        let (caller, id) = (Caller::anonymous(), BackendId::parse("b").unwrap());
        let spec = json!({"transport": {"type": "http", "url": "http://127.0.0.1:9/mcp"}});
        broker.put_backend(&caller.tenant, &id, serde_json::from_value(spec).unwrap());
        let backend = broker.tenant(&caller.tenant).unwrap().backend(&id).unwrap();
        let owner = CountingOwner::default();
        let read = async |text: &str| {
            let tool = format!(r#"{{"name":"a","description":"{text}","inputSchema":{{}}}}"#);
            publish_lists(&owner, &backend, lists_with_tool(&id, &tool)).await;
            owner.counts()
        };
        assert_eq!([read("old").await, read("old").await], [[1, 0], [1, 1]]);
        assert_eq!([read("new").await, read("new").await], [[2, 1], [2, 2]]);
        let refusal = Refusal::new(ErrorKind::BackendUnavailable, "it ended");
        mark_unreachable(&owner, &backend, &refusal).await;
        assert_eq!(owner.counts(), [3, 2]);
        assert_eq!(read("new").await, [4, 2], "they are not stale any more");
        assert_eq!(read("new").await, [4, 3]);
    }
}
