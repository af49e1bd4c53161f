//! Lists that the broker does not fetch: those that an operator declares, and the one tool that
//! stands for lists which no user has shown yet.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    envelope::Message,
    handshake::InitializeResult,
    json::{self, quote},
};
use rules::{
    catalog::{BackendLists, CatalogEntry, HeldParts, ListKind, TaskHost, read_page_pinned},
    limits::BACKOFF_MAX,
    pins::PinDefinition,
};
use serde_json::{Map, Value, json};

use super::{
    backend::{Backend, BackendState},
    catalog_owner::CatalogOwner,
    link::Link,
    prober,
};
use crate::{
    config::spec::{CatalogAuth, DeclaredCatalog},
    oauth::TokenSource,
};

/// Runs until the backend is removed, if its lists are not fetched for all principals. Returns false
/// at once for any other backend.
pub(super) async fn run(
    backend: &Arc<Backend>,
    link: &Arc<Link>,
    owner: &impl CatalogOwner,
) -> bool {
    let auth = &backend.spec.auth;
    let made = match (&auth.catalog_auth, &auth.catalog) {
        (CatalogAuth::PerPrincipal, _) => {
            placeholder(backend).map(|lists| (lists, Vec::new(), false))
        }
        (CatalogAuth::Declared, Some(catalog)) => {
            declared(backend, catalog).map(|(lists, definitions)| (lists, definitions, true))
        }
        _ => return false,
    };
    let Some((lists, definitions, is_declared)) = made else { return false };
    let work = async {
        loop {
            let mut lists = lists.clone();
            let mut is_pinned = true;
            if is_declared {
                let others = || owner.others(&backend.id);
                (lists, is_pinned) = backend.pins.admit(lists, definitions.clone(), others).await;
            }
            backend.era.set_settled(true);
            backend.pins.publish(&backend.lists, lists);
            owner.publish();
            backend.set_state(BackendState::Ready);
            owner.read_principal_lists(&backend.id);
            if is_pinned {
                backend.refresh_requested().await;
                backend.principal_lists.expire();
            } else {
                tokio::time::sleep(BACKOFF_MAX).await;
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = prober::run(backend, link) => {}
        () = backend.stop.cancelled() => {}
    }
    true
}

/// Returns the lists of a backend whose lists are unknown for want of a user: one tool. A call of it
/// tells its user what to do.
pub(super) fn placeholder(backend: &Backend) -> Option<BackendLists> {
    let is_connected = backend.tokens.as_ref().and_then(TokenSource::user).is_some();
    let description = match is_connected {
        true => {
            "Returns the address at which you connect your account. The tools of this server appear after that."
        }
        false => {
            "Tells what this server needs: an access token of yours that the broker may exchange. The tools of this server appear when you come with one."
        }
    };
    let capabilities: Map<String, Value> = ["tools", "prompts", "resources"]
        .map(|list| (list.to_owned(), json!({"listChanged": true})))
        .into_iter()
        .collect();
    let tools = format!(
        r#"{{"tools":[{{"name":"connect","description":{},"inputSchema":{{"type":"object"}}}}]}}"#,
        quote(description)
    );
    let mut lists = empty(&capabilities, true)?;
    lists.tools = read(backend, TaskHost::Backend, ListKind::Tools, tools.as_bytes())?.0;
    lists.tools.iter_mut().for_each(|tool| tool.pin.is_own = true);
    Some(lists)
}

/// Returns the lists that an operator declares, with the definitions of their entries.
fn declared(
    backend: &Backend,
    catalog: &DeclaredCatalog,
) -> Option<(BackendLists, Vec<PinDefinition>)> {
    let mut capabilities = Map::new();
    for kind in ListKind::ALL.into_iter().filter(|kind| catalog.has(*kind)) {
        let name = match kind {
            ListKind::Tools => "tools",
            ListKind::Prompts => "prompts",
            ListKind::Resources | ListKind::ResourceTemplates => "resources",
        };
        capabilities.insert(name.to_owned(), json!({"listChanged": true}));
    }
    let host = match backend.shared.task_settings().enabled {
        true => TaskHost::Broker,
        false => TaskHost::Backend,
    };
    let mut lists = empty(&capabilities, false)?;
    let mut definitions = Vec::new();
    for kind in ListKind::ALL {
        let (entries, pinned) = read(backend, host, kind, &catalog.result(kind))?;
        *lists.entries_mut(kind) = entries;
        definitions.extend(pinned);
    }
    Some((lists, definitions))
}

type ReadEntries = (Vec<CatalogEntry>, Vec<PinDefinition>);

fn read(backend: &Backend, host: TaskHost, kind: ListKind, result: &[u8]) -> Option<ReadEntries> {
    let page = read_page_pinned(kind, &backend.id, host, result, backend.pins.ignored()).ok()?;
    Some((page.entries, page.definitions))
}

fn empty(capabilities: &Map<String, Value>, stale: bool) -> Option<BackendLists> {
    let text = json!({"jsonrpc": "2.0", "id": 0, "result": {
        "protocolVersion": "2025-11-25", "capabilities": capabilities,
        "serverInfo": {"name": "unknown", "version": "0"},
    }});
    let answer = Message::decode(Bytes::from(text.to_string()), &json::Limits::default()).ok()?;
    Some(BackendLists {
        server: Arc::new(InitializeResult::parse(&answer).ok()?),
        tools: Vec::new(),
        prompts: Vec::new(),
        resources: Vec::new(),
        resource_templates: Vec::new(),
        stale,
        held: HeldParts::default(),
    })
}
