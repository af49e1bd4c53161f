//! Finds what a backend offers only to clients that can answer its questions.
//!
//! The link that reads the lists declares every capability, so its lists are complete. A probe opens
//! another connection that declares no sampling, elicitation and roots, reads the lists, and closes
//! it again. If something is missing there, one further connection for each of the three, and then
//! for each two of them, shows what it needs. A probe that fails changes nothing: its backend then
//! offers all to all.
//!
//! Backends of 2026-07-28 are not probed, because their lists do not depend on the client (MCP
//! 2026-07-28, Tools).

use std::{pin::Pin, sync::Arc, time::Instant};

use protocol::capabilities::ClientCapabilities;
use rules::{
    catalog::{BackendLists, OfferTable, QuestionKinds},
    limits::apps::{CAPABILITY_PROBE_INTERVAL_MIN, CAPABILITY_PROBE_WAIT},
    link_sharing::LinkScope,
};

use super::{
    backend::{Backend, links::CATALOG_CAPABILITIES},
    link::{Era, Link, LinkParams, connection::Connection, failure::Failure},
    list_fetch,
};

/// Number of kinds of questions. The link that reads the lists declares them all.
const KINDS: u32 = QuestionKinds::EACH.len() as u32;

/// Sets what each entry of new lists is offered to. Probes the backend if its tools or prompts are
/// not known yet.
pub fn complete<'a>(
    backend: &'a Arc<Backend>,
    connection: &'a Connection,
    lists: &'a mut BackendLists,
) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
    Box::pin(set_offers(backend, connection, lists))
}

async fn set_offers(backend: &Arc<Backend>, connection: &Connection, lists: &mut BackendLists) {
    let is_wanted = backend.context.config.compat.capability_probe
        && connection.stateless().is_none()
        && !(lists.tools.is_empty() && lists.prompts.is_empty());
    if !is_wanted {
        return;
    }
    if should_start(backend, lists) {
        let (of, table) = (backend.clone(), OfferTable::of(lists));
        let probing = backend.context.running.spawn(async move { probe(&of, table).await });
        // A slow backend finishes its probe behind its first lists.
        let _in_time = tokio::time::timeout(CAPABILITY_PROBE_WAIT, probing).await;
    }
    if let Some(table) = backend.offers.lock().table.clone() {
        table.apply(lists);
    }
}

/// Returns whether a probe has to begin now.
fn should_start(backend: &Backend, lists: &BackendLists) -> bool {
    let mut offers = backend.offers.lock();
    let is_known = offers.table.as_ref().is_some_and(|table| table.covers(lists));
    let is_recent =
        offers.began.is_some_and(|began| began.elapsed() < CAPABILITY_PROBE_INTERVAL_MIN);
    let starts = !is_known && !is_recent;
    if starts {
        offers.began = Some(Instant::now());
    }
    starts
}

async fn probe(backend: &Arc<Backend>, listed: OfferTable) {
    let started_at = Instant::now();
    let found = tokio::select! {
        found = offers(backend, listed) => found,
        () = backend.stop.cancelled() => return,
    };
    match found {
        Ok(table) => {
            backend.offers.lock().table = Some(Arc::new(table));
            if started_at.elapsed() > CAPABILITY_PROBE_WAIT {
                backend.refresh(); // the lists were published without it
            }
        }
        Err(failure) => {
            let redacted = backend.redactor.redact(&failure);
            tracing::debug!(tenant = %backend.tenant, backend = %backend.id, failure = redacted, "the broker could not detect which client capabilities the backend uses");
        }
    }
}

/// Adds what probes find to what the backend lists. Drops the lists of each probe: with those of all
/// probes in memory, a large catalog would need several times its size.
async fn offers(backend: &Arc<Backend>, mut table: OfferTable) -> Result<OfferTable, Failure> {
    for count in 0..KINDS {
        for kinds in QuestionKinds::sets_of(count) {
            let lists = lists_for(backend, kinds).await?;
            table.add(kinds, &lists);
        }
        if table.is_complete() {
            break;
        }
    }
    Ok(table)
}

/// Reads the lists as a client sees them that can answer these questions alone.
async fn lists_for(backend: &Arc<Backend>, kinds: QuestionKinds) -> Result<BackendLists, Failure> {
    let link = probe_link(backend, kinds);
    let connection = link.open_probe().await?;
    let lists = list_fetch::fetch_lists(&link, &connection).await;
    link.shut(); // what ends now ends in order
    connection.close().await;
    lists.map_err(|refusal| Failure::Protocol(refusal.message))
}

/// Returns a new link that reads the lists once, as a client that can answer these questions alone.
fn probe_link(backend: &Arc<Backend>, kinds: QuestionKinds) -> Arc<Link> {
    let mut declared: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(CATALOG_CAPABILITIES).unwrap_or_default();
    for (_, name) in QuestionKinds::EACH.iter().filter(|(kind, _)| !kinds.includes(*kind)) {
        declared.remove(*name);
    }
    let declared = serde_json::Value::Object(declared).to_string();
    let declared = ClientCapabilities::parse(declared.as_bytes())
        .unwrap_or_else(|_| ClientCapabilities::none());
    let params = LinkParams {
        scope: LinkScope::Probe,
        principal: None,
        declared,
        client_era: Era::Sessions,
    };
    Link::new(backend.clone(), params)
}
