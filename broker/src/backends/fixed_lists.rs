//! Backends whose lists are not fetched for all principals: an operator declares them, or each
//! principal has its own.

use std::sync::Arc;

use config::spec::{CatalogAuth, DeclaredCatalog};
use rules::{
    catalog::{BackendLists, ListAllowance, ListKind, TaskHost, read_page_pinned},
    limits::BACKOFF_MAX,
    pins::PinDefinition,
};
use serde_json::{Map, json};

use super::{
    backend::{Backend, BackendState},
    catalog_owner::CatalogOwner,
    catalog_refresh::show_lists,
    placeholder, prober,
};
use crate::oauth::TokenSource;

/// Returns whether [`run`] is for this backend.
pub fn is_for(backend: &Backend) -> bool {
    [CatalogAuth::PerPrincipal, CatalogAuth::Declared].contains(&backend.spec.auth.catalog_auth)
}

/// Publishes the lists until the backend is removed. A link of the catalog carries probes alone.
pub async fn run(backend: Arc<Backend>, owner: impl CatalogOwner) {
    let link = backend.catalog_link();
    let has_accounts = backend.tokens.as_ref().and_then(TokenSource::user).is_some();
    let made = match &backend.spec.auth.catalog {
        Some(catalog) => declared(&backend, catalog),
        None => {
            let lists = placeholder::lists(&backend.id, has_accounts, &backend.pins);
            lists.map(|lists| (lists, None))
        }
    };
    let Some((lists, definitions)) = made else { return };
    let work = async {
        loop {
            backend.list_refresh.read_started();
            let others = || owner.others(&backend.id);
            let (lists, is_pinned) = match &definitions {
                Some(known) => backend.pins.admit(lists.clone(), known.clone(), others).await,
                None => (lists.clone(), true),
            };
            backend.era.set_settled(true);
            show_lists(&owner, &backend, lists).await;
            backend.health.set_state(BackendState::Ready);
            owner.read_principal_lists(&backend.id);
            backend.list_refresh.read_ended();
            tokio::select! {
                () = backend.list_refresh.requested() => backend.principal_lists.expire(),
                () = tokio::time::sleep(BACKOFF_MAX), if !is_pinned => {}
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = prober::run(&backend, &link) => {}
        () = backend.stop.cancelled() => {}
    }
    link.close().await;
}

/// Returns the lists that an operator declares, with the definitions of their entries.
fn declared(
    backend: &Backend,
    catalog: &DeclaredCatalog,
) -> Option<(BackendLists, Option<Vec<PinDefinition>>)> {
    let mut capabilities = Map::new();
    for kind in ListKind::ALL.into_iter().filter(|kind| catalog.has(*kind)) {
        let name = match kind {
            ListKind::Tools => "tools",
            ListKind::Prompts => "prompts",
            ListKind::Resources | ListKind::ResourceTemplates => "resources",
        };
        capabilities.insert(name.to_owned(), json!({"listChanged": true}));
    }
    let host = match backend.context.task_settings().enabled {
        true => TaskHost::Broker,
        false => TaskHost::Backend,
    };
    let mut lists = placeholder::empty(&capabilities, false)?;
    let mut definitions = Vec::new();
    for kind in ListKind::ALL {
        let (text, ignored) = (catalog.result(kind), backend.pins.ignored());
        let page =
            read_page_pinned(kind, &backend.id, host, &text, ignored, ListAllowance::WHOLE).ok()?;
        *lists.entries_mut(kind) = page.entries;
        definitions.extend(page.definitions);
    }
    Some((lists, Some(definitions)))
}
