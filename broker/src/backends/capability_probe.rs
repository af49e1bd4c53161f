//! Finds what a backend offers only to clients that can answer its questions.
//!
//! The link that reads the lists declares every capability, so its lists are complete. A probe opens
//! another connection that declares no sampling, elicitation and roots, reads the lists, and closes
//! it again. If something is missing there, one further connection for each of the three shows which
//! of them it needs. A probe that fails changes nothing: its backend then offers all to all.
//!
//! Backends of 2026-07-28 are not probed, because their lists do not depend on the client (MCP
//! 2026-07-28, Tools).

use std::{sync::Arc, time::Instant};

use rules::{
    catalog::{BackendLists, ListKind, OfferTable, QuestionKinds},
    limits::apps::{CAPABILITY_PROBE_INTERVAL_MIN, CAPABILITY_PROBE_WAIT},
};

use super::{
    backend::Backend,
    catalog_refresh,
    link::connection::{Connection, Failure},
};

/// What the probes of a backend found, and when the last one began.
#[derive(Debug, Default)]
pub(super) struct ProbedOffers {
    table: Option<Arc<OfferTable>>,
    began: Option<Instant>,
}

/// Sets what each entry of new lists is offered to. Probes the backend if its tools or prompts are
/// not known yet.
pub(super) async fn complete(
    backend: &Arc<Backend>,
    connection: &Connection,
    lists: &mut BackendLists,
) {
    let is_wanted = backend.shared.config.compat.capability_probe
        && connection.modern().is_none()
        && !(lists.tools.is_empty() && lists.prompts.is_empty());
    if !is_wanted {
        return;
    }
    if begin(backend, lists) {
        let (of, listed) = (backend.clone(), lists.clone());
        let probing = backend.shared.running.spawn(async move { probe(&of, listed).await });
        // A slow backend finishes its probe behind its first lists.
        let _in_time = tokio::time::timeout(CAPABILITY_PROBE_WAIT, probing).await;
    }
    if let Some(table) = backend.offers.lock().table.clone() {
        table.apply(lists);
    }
}

/// Returns whether a probe has to begin now.
fn begin(backend: &Backend, lists: &BackendLists) -> bool {
    let mut offers = backend.offers.lock();
    let is_known = offers.table.as_ref().is_some_and(|table| table.covers(lists));
    let is_recent =
        offers.began.is_some_and(|began| began.elapsed() < CAPABILITY_PROBE_INTERVAL_MIN);
    let begins = !is_known && !is_recent;
    if begins {
        offers.began = Some(Instant::now());
    }
    begins
}

async fn probe(backend: &Arc<Backend>, listed: BackendLists) {
    let begun = Instant::now();
    let found = tokio::select! {
        found = offers(backend, &listed) => found,
        () = backend.stop.cancelled() => return,
    };
    match found {
        Ok(table) => {
            backend.offers.lock().table = Some(Arc::new(table));
            if begun.elapsed() > CAPABILITY_PROBE_WAIT {
                backend.refresh(); // the lists were published without it
            }
        }
        Err(failure) => {
            let told = backend.redactor.redact(&failure);
            tracing::debug!(backend = %backend.id, failure = told, "the capabilities that the backend asks for are not known");
        }
    }
}

async fn offers(backend: &Arc<Backend>, listed: &BackendLists) -> Result<OfferTable, Failure> {
    let plain = lists_for(backend, QuestionKinds::NONE).await?;
    let is_complete = ListKind::ALL.into_iter().all(|kind| {
        let has = |key: &str| plain.entries(kind).iter().any(|entry| entry.key == key);
        listed.entries(kind).iter().all(|entry| has(&entry.key))
    });
    let mut probed = vec![(QuestionKinds::NONE, plain)];
    if !is_complete {
        for (kind, _) in QuestionKinds::EACH {
            probed.push((kind, lists_for(backend, kind).await?));
        }
    }
    Ok(OfferTable::of(listed, &probed))
}

/// Reads the lists as a client sees them that can answer these questions alone.
async fn lists_for(backend: &Arc<Backend>, kinds: QuestionKinds) -> Result<BackendLists, Failure> {
    let link = backend.probe_link(kinds);
    let connection = link.open_probe().await?;
    let lists = catalog_refresh::fetch(&link, &connection).await;
    link.shut(); // what ends now ends in order
    connection.close().await;
    let told = |refusal: protocol::error::Refusal| Failure::Protocol(refusal.message);
    lists.map(|fetched| fetched.lists).map_err(told)
}
