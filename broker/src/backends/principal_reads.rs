//! Reads of the lists that a backend shows to one principal, with the token of that principal.
//!
//! Sessions and stateless requests request them. [`PrincipalLists`] holds what was read.
//!
//! [`PrincipalLists`]: super::principal_lists::PrincipalLists

use std::{sync::Arc, time::Instant};

use protocol::{
    capabilities::ClientCapabilities,
    error::ErrorKind,
    ids::{BackendId, PrincipalId},
};
use rules::{
    catalog::BackendLists,
    limits::{
        REFRESH_INTERVAL_MIN,
        oauth::{PRINCIPAL_LISTS_AGE_MAX, PRINCIPAL_LISTS_RETRY},
    },
    link_sharing::LinkScope,
};

use super::{
    backend::{Backend, BackendState, links::CATALOG_CAPABILITIES},
    fault_lines::RepeatedFault,
    link::{Era, Link, LinkParams},
    list_fetch::{self, FetchedLists},
    policy::Policy,
    principal_lists::{PrincipalRead, PrincipalView, ReadFailure, ReadLists},
};

/// Returns whether the lists of a principal have to be read.
pub fn is_due(backend: &Backend, principal: &PrincipalId) -> bool {
    let lists = &backend.principal_lists;
    lists.is_on() && lists.is_due(principal, wants_sessions(backend))
}

fn wants_sessions(backend: &Backend) -> bool {
    backend.era.sessions_wanted() && backend.era.may_support_sessions(backend.spec.protocol)
}

/// Reads the lists of a principal as long as they are due, and hands them to `keep`, which must call
/// [`store`]. One read of a principal runs at a time. `others` returns the lists of the tenant's
/// other backends.
pub async fn read(
    backend: &Arc<Backend>,
    principal: &PrincipalId,
    others: impl Fn() -> Vec<(BackendId, Arc<BackendLists>)>,
    keep: impl Fn(ReadLists),
) {
    let turn = backend.principal_lists.turn(principal);
    let _turn = turn.lock().await;
    while is_due(backend, principal) && !backend.stop.is_cancelled() {
        let read = tokio::select! {
            read = read_due(backend, principal, &others) => read,
            () = backend.stop.cancelled() => return,
        };
        let changes = read.changes;
        keep(read);
        if backend.principal_lists.changes_of(principal) == changes {
            return;
        }
        // Changes come in bursts.
        tokio::time::sleep(REFRESH_INTERVAL_MIN).await;
    }
}

async fn read_due(
    backend: &Arc<Backend>,
    principal: &PrincipalId,
    others: impl Fn() -> Vec<(BackendId, Arc<BackendLists>)>,
) -> ReadLists {
    let _permit = backend.principal_lists.permit().await;
    let changes = backend.principal_lists.changes_of(principal);
    let (at, for_sessions) = (Instant::now(), wants_sessions(backend));
    let (lists, good_for) = match read_once(backend, principal).await {
        Ok(FetchedLists { lists, definitions, ttl }) => {
            let lists = backend.pins.admit_of_principal(lists, definitions, others).await;
            let kept_for = ttl.unwrap_or(PRINCIPAL_LISTS_AGE_MAX);
            (Ok(lists), kept_for.clamp(PRINCIPAL_LISTS_RETRY, PRINCIPAL_LISTS_AGE_MAX))
        }
        Err(failure) => (Err(failure), PRINCIPAL_LISTS_RETRY),
    };
    let is_failure = matches!(&lists, Err(failure) if !needs_user_action(failure));
    let read = PrincipalRead { at, good_for, for_sessions, is_failure };
    ReadLists { lists, read, changes }
}

/// Stores the lists of a principal. Returns whether it sees other ones now.
pub fn store(backend: &Backend, principal: &PrincipalId, read: ReadLists) -> bool {
    let mut noted = read.read;
    let view = match read.lists {
        Ok(lists) => {
            backend.health.set_state(BackendState::Ready);
            let view = view_of(backend, lists, None);
            if view.is_none() {
                // Memory may be free soon.
                noted.good_for = noted.good_for.min(PRINCIPAL_LISTS_RETRY);
            }
            view
        }
        Err(failure) => {
            if failure.counts_for_breaker {
                backend.set_unreachable(BackendState::Degraded, &failure.refusal);
            }
            None
        }
    };
    backend.principal_lists.record(principal, noted, read.changes, view)
}

/// Marks what the pins hold by now in the lists of all principals.
pub fn remark(backend: &Backend) {
    backend
        .principal_lists
        .replace_views(|view| view_of(backend, (*view.lists).clone(), Some(view)));
}

fn view_of(
    backend: &Backend,
    mut lists: BackendLists,
    before: Option<&PrincipalView>,
) -> Option<Arc<PrincipalView>> {
    backend.pins.mark(&mut lists);
    let Backend { tenant, id, spec, context, resources, .. } = backend;
    let policy = || Policy::of(tenant, id, spec, context, resources);
    let view = backend.principal_lists.view_of(lists, before, &backend.own_list_budget, policy);
    if view.is_none()
        && let Some(left_out) =
            resources.fault_lines.check(tenant, id, RepeatedFault::PrincipalListsMemory)
    {
        tracing::warn!(%tenant, backend = %id, left_out, "the memory for lists of principals is full: the principal sees no lists of this backend");
    }
    view
}

/// Opens and closes a connection with the token of a principal. The error is for operators.
pub async fn test(backend: &Arc<Backend>, principal: &PrincipalId) -> Result<(), String> {
    let link = reader_of(backend, principal);
    let connection = link.open_probe().await;
    let connection = connection.map_err(|failure| backend.redactor.redact(&failure))?;
    link.shut();
    connection.close().await;
    Ok(())
}

/// Returns a new link that reads the lists once, with the token of the principal.
fn reader_of(backend: &Arc<Backend>, principal: &PrincipalId) -> Arc<Link> {
    let declared = ClientCapabilities::parse(CATALOG_CAPABILITIES)
        .unwrap_or_else(|_| ClientCapabilities::none());
    let params = LinkParams {
        scope: LinkScope::Probe,
        principal: Some(principal.clone()),
        declared,
        client_era: Era::Sessions,
    };
    Link::new(backend.clone(), params)
}

/// Returns whether the principal lacks an account or a token.
fn needs_user_action(failure: &ReadFailure) -> bool {
    [ErrorKind::ConnectionRequired, ErrorKind::TokenRequired].contains(&failure.refusal.kind)
}

/// Reads the lists with the token of the principal.
async fn read_once(
    backend: &Arc<Backend>,
    principal: &PrincipalId,
) -> Result<FetchedLists, ReadFailure> {
    let link = reader_of(backend, principal);
    let connection = link.open_probe().await.map_err(|failure| ReadFailure {
        counts_for_breaker: failure.counts_for_breaker(),
        refusal: backend.report_failure(&failure),
    })?;
    let lists = list_fetch::fetch(&link, &connection).await;
    link.shut(); // what ends now ends in order
    connection.close().await;
    lists.map_err(|refusal| {
        let failure = ReadFailure { refusal, counts_for_breaker: false };
        ReadFailure { counts_for_breaker: !needs_user_action(&failure), ..failure }
    })
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use config::spec::{BackendSpec, CatalogAuth};
    use rules::limits::own_lists::OWN_LISTS_BYTES_MAX;
    use serde_json::json;

    use super::*;
    use crate::{
        auth::Caller, backends::lists_for_tests::lists_with_tool, broker::Broker,
        persistence::Stores,
    };

    /// Returns a broker with a backend that shows each principal lists of its own.
    async fn with_backend(caller: &Caller, id: &BackendId) -> (Arc<Broker>, Arc<Backend>) {
        let broker = Broker::over(Stores::in_memory().await);
        let transport = json!({"type": "http", "url": "http://127.0.0.1:9/mcp"});
        let spec = json!({"transport": transport});
        let mut spec: BackendSpec = serde_json::from_value(spec).unwrap();
        spec.auth.catalog_auth = CatalogAuth::PerPrincipal;
        broker.put_backend(&caller.tenant, id, spec);
        let backend = broker.tenant(&caller.tenant).unwrap().backend(id).unwrap();
        (broker, backend)
    }

    #[tokio::test]
    async fn a_read_waits_for_the_one_that_runs_and_uses_its_lists() {
        let (caller, id) = (Caller::anonymous(), BackendId::parse("b").unwrap());
        let (_broker, backend) = with_backend(&caller, &id).await;
        let (lists, principal) = (&backend.principal_lists, &caller.principal);
        let turn = lists.turn(principal);
        let running = turn.lock().await;
        assert!(lists.is_reading(principal) && is_due(&backend, principal));
        let kept = AtomicUsize::new(0);
        let keep = |_read: ReadLists| {
            kept.fetch_add(1, Ordering::Relaxed);
        };
        let mut second = pin!(read(&backend, principal, Vec::new, keep));
        assert!(futures_util::poll!(&mut second).is_pending());
        let (at, good_for) = (Instant::now(), PRINCIPAL_LISTS_AGE_MAX);
        let first = PrincipalRead { at, good_for, for_sessions: true, is_failure: false };
        lists.record(principal, first, lists.changes_of(principal), None);
        drop(running);
        second.await;
        assert_eq!(kept.load(Ordering::Relaxed), 0, "the backend was read once");
        assert!(!lists.is_reading(principal) && !is_due(&backend, principal));
    }

    #[tokio::test]
    async fn lists_that_do_not_fit_into_memory_are_read_again_soon() {
        let (caller, id) = (Caller::anonymous(), BackendId::parse("b").unwrap());
        let (_broker, backend) = with_backend(&caller, &id).await;
        let store_read_at = |at: Instant| {
            let good_for = PRINCIPAL_LISTS_AGE_MAX;
            let read = PrincipalRead { at, good_for, for_sessions: true, is_failure: false };
            let lists = Ok(lists_with_tool(&id, r#"{"name":"a","inputSchema":{}}"#));
            store(&backend, &caller.principal, ReadLists { lists, read, changes: 0 })
        };
        let is_due = || backend.principal_lists.is_due(&caller.principal, true);
        let earlier = Instant::now().checked_sub(PRINCIPAL_LISTS_RETRY).unwrap();
        let taken = &backend.context.own_lists_bytes;
        let before = taken.swap(OWN_LISTS_BYTES_MAX, Ordering::Relaxed);
        assert!(!store_read_at(earlier) && is_due(), "memory may be free again");
        assert!(!store_read_at(Instant::now()) && !is_due(), "not at each use");
        taken.store(before, Ordering::Relaxed);
        assert!(store_read_at(earlier) && !is_due(), "lists that fit are good for longer");
    }
}
