//! The making of a snapshot from the lists of its backends.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use memchr::memmem;
use protocol::{
    capabilities::ServerCapabilities,
    ids::BackendId,
    json::{self, Document},
    stateless::tool_headers::{self, ParamHeader},
};

use super::{
    BackendLists, Catalog, CatalogEntry, CatalogOrigin, ListKind, SearchTool, Target,
    app_tools::AppTools, held::HeldEntries, offers::LimitedCatalogs, tool_traits::ToolFacts,
};
use crate::{endpoint::Endpoint, maps::FastMap};

impl Catalog {
    pub(super) fn build_at(
        origin: CatalogOrigin,
        mut backends: BTreeMap<BackendId, Arc<BackendLists>>,
    ) -> Self {
        for lists in backends.values_mut() {
            if let Some(unique) = lists.without_repeated() {
                *lists = Arc::new(unique);
            }
        }
        let mut catalog = Self {
            capabilities: merged_capabilities(&backends),
            tools: FastMap::default(),
            prompts: FastMap::default(),
            facts: FastMap::default(),
            mirrored: FastMap::default(),
            apps: AppTools::of(&backends),
            limited: LimitedCatalogs::of(
                backends
                    .values()
                    .flat_map(|lists| ListKind::ALL.map(|kind| lists.entries(kind)))
                    .flatten(),
            ),
            lists: FastMap::default(),
            held: HeldEntries::of(&backends),
            backends: BTreeMap::new(),
            search: OnceLock::new(),
            batching: Vec::new(),
            origin,
        };
        for (backend, lists) in &backends {
            catalog.add_names(backend, lists);
            // The endpoint of a backend shows the tenant's snapshot.
            if catalog.origin.merged == Endpoint::Aggregated {
                catalog.add_own_pages(backend, lists);
            }
        }
        for kind in ListKind::ALL {
            catalog.add_merged_pages(kind, &backends);
        }
        catalog.backends = backends;
        catalog
    }

    /// Adds the names of a backend's tools and prompts, and the facts about its tools.
    fn add_names(&mut self, backend: &BackendId, lists: &BackendLists) {
        let facts = lists
            .listed(ListKind::Tools)
            .map(|tool| (tool.key.clone(), ToolFacts::of(tool)))
            .collect();
        self.facts.insert(backend.clone(), facts);
        let mirrored = mirrored(lists.listed(ListKind::Tools));
        if !mirrored.is_empty() {
            self.mirrored.insert(backend.clone(), mirrored);
        }
        for (kind, map) in
            [(ListKind::Tools, &mut self.tools), (ListKind::Prompts, &mut self.prompts)]
        {
            for entry in lists.listed(kind) {
                map.entry(entry.exposed_key.clone())
                    .or_insert_with(|| Target::of_entry(backend, entry));
            }
        }
    }

    /// Adds the lists of the backend's own endpoint.
    fn add_own_pages(&mut self, backend: &BackendId, lists: &BackendLists) {
        for kind in ListKind::ALL {
            let endpoint = Endpoint::Single(backend.clone());
            let entries = lists.listed(kind).map(|entry| (entry.key.as_str(), &entry.native));
            let stale = lists.stale.then_some(backend).into_iter();
            let own = entries.collect();
            let pages = self.paginate_with_batch(&endpoint, kind, own, stale);
            self.lists.insert((endpoint, kind), pages);
        }
    }

    /// Adds a list of the endpoint that shows all of the backends.
    fn add_merged_pages(
        &mut self,
        kind: ListKind,
        backends: &BTreeMap<BackendId, Arc<BackendLists>>,
    ) {
        let merged = self.origin.merged.clone();
        let mut entries: Vec<&CatalogEntry> =
            backends.values().flat_map(|lists| lists.listed(kind)).collect();
        if merged != Endpoint::Aggregated {
            entries.sort_by_key(|entry| entry.rank); // stable: then by backend and name
        }
        let entries = entries.into_iter().map(|entry| (entry.exposed_key.as_str(), &entry.exposed));
        let stale = backends.iter().filter(|(_, lists)| lists.stale).map(|(backend, _)| backend);
        let pages = if kind == ListKind::Tools && self.origin.is_searched {
            let entries = SearchTool::entries();
            let entries = entries.iter().map(|(name, entry)| (*name, entry)).collect();
            self.paginate_with_batch(&merged, kind, entries, stale)
        } else {
            self.paginate_with_batch(&merged, kind, entries.collect(), stale)
        };
        self.lists.insert((merged, kind), pages);
    }
}

/// Returns the capabilities of the endpoint that shows all of the backends.
fn merged_capabilities(backends: &BTreeMap<BackendId, Arc<BackendLists>>) -> ServerCapabilities {
    let capabilities =
        ServerCapabilities::merge(backends.values().map(|lists| &lists.server.capabilities));
    // The rest of a result is read as a resource.
    if backends.values().flat_map(|lists| &lists.tools).any(|tool| tool.result_tokens.is_some())
        && let Ok(resources) = ServerCapabilities::parse(br#"{"resources":{}}"#)
    {
        return ServerCapabilities::merge([&capabilities, &resources].into_iter());
    }
    capabilities
}

/// Returns the arguments that tools want repeated in headers. A tool with an invalid annotation is
/// left out of the map.
fn mirrored<'a>(
    tools: impl Iterator<Item = &'a CatalogEntry>,
) -> FastMap<String, Vec<ParamHeader>> {
    let has_param_headers =
        |tool: &&CatalogEntry| memmem::find(&tool.exposed, b"x-mcp-header").is_some();
    let headers = |tool: &CatalogEntry| {
        let document =
            Document::parse(&tool.exposed, &json::Limits::with_bytes_max(tool.exposed.len()))
                .ok()?;
        tool_headers::param_headers(document.root().get("inputSchema")?.raw()).ok()
    };
    tools
        .filter(has_param_headers)
        .filter_map(|tool| Some((tool.key.clone(), headers(tool)?)))
        .collect()
}
