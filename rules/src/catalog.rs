//! The lists of a tenant's backends, merged into pages that are ready to be sent.
//!
//! [`BackendLists`] is the last good copy of one backend. [`Catalog`] is the merged, immutable
//! snapshot that all sessions of a tenant read. A list request is answered from it. The order is
//! stable: backends by name, then the backend's own order. A page is a function of the list, so
//! equal lists have equal bytes.

mod alike;
mod app_tools;
mod backend_lists;
mod build;
mod empty_lists;
mod fixed_arguments;
mod held;
mod hosted_prompt;
mod list_difference;
mod marks;
mod member_types;
mod offers;
mod pages;
mod repeated;
mod tool_search;
mod tool_traits;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use aws_lc_rs::{digest, hmac};
use bytes::Bytes;
use protocol::{
    capabilities::ServerCapabilities,
    error::{ErrorKind, Refusal},
    ids::{BackendId, TenantId, ToolsetId},
    stateless::tool_headers::ParamHeader,
};

use self::{
    app_tools::AppTools, held::HeldEntries, offers::LimitedCatalogs, pages::Pages,
    tool_traits::ToolFacts,
};
pub use self::{
    backend_lists::{
        BackendLists, CatalogEntry, DefinitionDigest, ListAllowance, ListKind, ListPage,
        SkippedEntry, ToolIdentity, read_page, read_page_pinned,
    },
    fixed_arguments::FixedArguments,
    held::{HeldParts, mark_held},
    hosted_prompt::{
        HostedPrompt, HostedPromptDocument, HostedPrompts, PROMPT_NAME_ALLOWED, PromptArgument,
        PromptFault, PromptMessage, PromptRole, parse_prompt_name,
    },
    list_difference::ListDifference,
    marks::{CatalogMark, CatalogMarks, MarkKey, VIA},
    offers::{Offer, OfferTable, QuestionKinds},
    repeated::{remove_repeated, repeated_entries},
    tool_search::{FoundCall, SearchTool, ToolSearch},
    tool_traits::{TaskHost, TaskSupport, ToolTraits},
};
use super::{
    cursor::{self, CursorScope},
    endpoint::Endpoint,
    exposed_names,
};
use crate::{
    limits::{LIST_ENTRIES_MAX, PAGE_ENTRIES},
    maps::FastMap,
};

/// Digests of an endpoint's lists, in the order of [`ListKind::ALL`]. Every process computes equal
/// digests for equal lists.
pub type ListDigests = [u128; ListKind::ALL.len()];

/// The target of an exposed name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub backend: BackendId,
    /// The name at the backend.
    pub name: String,
    /// Arguments that every call of the tool has.
    pub fixed: Option<Arc<FixedArguments>>,
    /// Estimated tokens of a result at most.
    pub result_tokens: Option<u32>,
}

impl Target {
    fn of(backend: BackendId, name: String) -> Self {
        Self { backend, name, fixed: None, result_tokens: None }
    }

    fn of_entry(backend: &BackendId, entry: &CatalogEntry) -> Self {
        let (fixed, result_tokens) = (entry.fixed.clone(), entry.result_tokens);
        Self { fixed, result_tokens, ..Self::of(backend.clone(), entry.key.clone()) }
    }
}

/// The merged snapshot of a tenant.
#[derive(Debug)]
pub struct Catalog {
    pub backends: BTreeMap<BackendId, Arc<BackendLists>>,
    /// Capabilities of the aggregated endpoint: the union of its backends.
    pub capabilities: ServerCapabilities,
    tools: FastMap<String, Target>,
    prompts: FastMap<String, Target>,
    /// By backend and the tool's own name.
    facts: FastMap<BackendId, FastMap<String, ToolFacts>>,
    /// Tools that want arguments repeated in headers, by backend and the tool's own name.
    mirrored: FastMap<BackendId, FastMap<String, Vec<ParamHeader>>>,
    apps: AppTools,
    limited: LimitedCatalogs,
    lists: FastMap<(Endpoint, ListKind), Pages>,
    held: HeldEntries,
    /// The tools by their words, made at the first search.
    search: OnceLock<ToolSearch>,
    /// The endpoints that list `execute_batch`.
    batching: Vec<Endpoint>,
    origin: CatalogOrigin,
}

/// What a snapshot is of, in addition to the lists.
#[derive(Debug, Clone)]
struct CatalogOrigin {
    /// The endpoint that shows all of the backends: that of the tenant, or of a toolset.
    merged: Endpoint,
    tenant: TenantId,
    key: hmac::Key,
    hosted: Arc<HostedPrompts>,
    /// Whether clients search the tools and do not list them.
    is_searched: bool,
    /// Calls of one `execute_batch`. 0: no endpoint has this tool.
    batch_calls_max: usize,
}

impl Catalog {
    pub fn build(
        tenant: TenantId,
        key: hmac::Key,
        backends: BTreeMap<BackendId, Arc<BackendLists>>,
    ) -> Self {
        Self::with_hosted(tenant, key, backends, Arc::default(), 0)
    }

    /// Builds the snapshot of a tenant for which the broker hosts prompts, and calls several tools at
    /// once (0: it does not).
    pub fn with_hosted(
        tenant: TenantId,
        key: hmac::Key,
        mut backends: BTreeMap<BackendId, Arc<BackendLists>>,
        hosted: Arc<HostedPrompts>,
        batch_calls_max: usize,
    ) -> Self {
        backends.extend(hosted.lists().map(|lists| (BackendId::hosted(), Arc::new(lists))));
        let (merged, is_searched) = (Endpoint::Aggregated, false);
        let origin = CatalogOrigin { merged, tenant, key, hosted, is_searched, batch_calls_max };
        Self::build_at(origin, backends)
    }

    /// Builds the snapshot of the same tenant and endpoint with other lists.
    pub fn rebuilt(&self, backends: BTreeMap<BackendId, Arc<BackendLists>>) -> Self {
        let other = Self::build_at(self.origin.clone(), backends);
        if self.apps.is_off() { other.without_app_names() } else { other }
    }

    /// Builds the snapshot as a caller sees it, from whom access rules hide entries of this one.
    pub fn seen(&self, kept: BTreeMap<BackendId, Arc<BackendLists>>) -> Self {
        let mut seen = self.rebuilt(kept);
        if !seen.apps.is_off() {
            seen.apps = std::mem::take(&mut seen.apps).seen(&seen.backends, &self.backends);
        }
        seen
    }

    /// Builds the snapshot of a toolset of the same tenant, whose lists are given as it shows them.
    /// `is_searched`: clients search the tools and do not list them.
    pub fn of_toolset(
        &self,
        toolset: ToolsetId,
        is_searched: bool,
        backends: BTreeMap<BackendId, Arc<BackendLists>>,
    ) -> Self {
        let merged = Endpoint::Toolset(toolset);
        Self::build_at(CatalogOrigin { merged, is_searched, ..self.origin.clone() }, backends)
    }

    /// Returns the search over the tools. `None`: clients list them.
    pub fn search(&self) -> Option<&ToolSearch> {
        self.origin.is_searched.then(|| self.search.get_or_init(|| ToolSearch::of(&self.backends)))
    }

    /// Returns whether the next call of [`Catalog::search`] reads all tools, which can take a second.
    pub fn lacks_search(&self) -> bool {
        self.origin.is_searched && self.search.get().is_none()
    }

    /// Returns how many calls `execute_batch` takes at an endpoint, if the endpoint lists it.
    pub fn batch_calls_max(&self, endpoint: &Endpoint) -> Option<usize> {
        self.batching.contains(endpoint).then_some(self.origin.batch_calls_max)
    }

    /// Returns the prompt that the broker hosts under this name.
    pub fn hosted_prompt(&self, name: &str) -> Option<&HostedPrompt> {
        self.origin.hosted.get(name)
    }

    /// Returns the snapshot in which no app finds a tool by its own name.
    pub fn without_app_names(mut self) -> Self {
        self.apps = AppTools::off();
        self
    }

    /// Returns the bytes that all pages have when they are made, which are most of what the snapshot
    /// holds alone.
    pub fn bytes(&self) -> usize {
        self.lists.values().flat_map(|pages| &pages.entries).map(Bytes::len).sum()
    }

    /// Returns whether a backend lists a tool or prompt with this own name.
    pub fn has(&self, backend: &BackendId, kind: ListKind, name: &str) -> bool {
        match kind {
            ListKind::Tools => self.traits(backend, name).is_some(),
            _ => self
                .backends
                .get(backend)
                .is_some_and(|lists| lists.listed(kind).any(|entry| entry.key == name)),
        }
    }

    /// Returns whether pins keep a tool, prompt or template of a backend from clients, by its own
    /// name.
    pub fn is_held(&self, backend: &BackendId, kind: ListKind, name: &str) -> bool {
        self.held.has(backend, kind, name)
    }

    /// Returns whether pins hold the tool or prompt of this name on the aggregated endpoint. The
    /// name is an exposed one, or the own name of a tool that an app calls.
    pub fn is_exposed_held(&self, kind: ListKind, exposed: &str) -> bool {
        self.held.has_exposed(kind, exposed)
            || (kind == ListKind::Tools
                && self.apps.is_held(exposed)
                && self.apps.backends_with(exposed).is_empty())
    }

    /// Returns whether the own name of an app's tool can mean one that pins keep from clients.
    pub fn is_app_tool_held(&self, name: &str) -> bool {
        self.apps.is_held(name)
    }

    /// Returns whether pins keep a resource from clients, under this or another spelling of its
    /// URI. A resource that no list shows is held if only held templates can have made its URI.
    pub fn is_resource_held(&self, backend: &BackendId, uri: &str) -> bool {
        let lists = self.backends.get(backend).map(|lists| &**lists);
        self.held.has_resource(backend, lists, uri)
    }

    /// Returns whether pins keep anything of a list from clients.
    pub fn holds_any(&self) -> bool {
        self.held.is_any()
    }

    /// Returns whether pins keep tools and prompts from clients that no list of a backend shows.
    pub fn holds_unlisted(&self, backend: &BackendId) -> bool {
        self.backends.get(backend).is_some_and(|lists| lists.held.unlisted)
    }

    /// Returns the tool of this name on the aggregated endpoint: an exposed name, or the own name of
    /// a tool that an app calls.
    pub fn tool(&self, name: &str) -> Option<Cow<'_, Target>> {
        match self.tools.get(name) {
            Some(target) => Some(Cow::Borrowed(target)),
            None => self.apps.only_tool(name).map(Cow::Owned),
        }
    }

    /// Returns the exposed names that the own name of an app's tool can mean.
    pub fn app_tools(&self, name: &str) -> Vec<String> {
        let backends = self.apps.backends_with(name);
        backends.iter().map(|backend| exposed_names::exposed_name(backend, name)).collect()
    }

    pub fn prompt(&self, exposed: &str) -> Option<&Target> {
        self.prompts.get(exposed)
    }

    /// Returns the traits of a tool by the backend's name for it. `None` for one that is not
    /// listed.
    pub fn traits(&self, backend: &BackendId, tool: &str) -> Option<ToolTraits> {
        self.tool_facts(backend, tool).map(|facts| facts.traits)
    }

    /// Returns the digest of a listed tool by the backend's name for it.
    pub fn definition(&self, backend: &BackendId, tool: &str) -> Option<DefinitionDigest> {
        self.tool_identity(backend, tool).map(|identity| identity.definition)
    }

    pub fn tool_identity(&self, backend: &BackendId, tool: &str) -> Option<ToolIdentity> {
        self.tool_facts(backend, tool).map(|facts| facts.identity)
    }

    /// Returns the facts about a listed tool by the backend's name for it.
    pub(crate) fn tool_facts(&self, backend: &BackendId, tool: &str) -> Option<&ToolFacts> {
        self.facts.get(backend)?.get(tool)
    }

    /// Returns the arguments that a tool wants repeated in headers, by the endpoint's name for it.
    pub fn param_headers(&self, endpoint: &Endpoint, tool: &str) -> &[ParamHeader] {
        if self.mirrored.is_empty() {
            return &[]; // as nearly everywhere
        }
        let (backend, tool) = match endpoint {
            Endpoint::Single(backend) => (backend, tool),
            Endpoint::Aggregated | Endpoint::Toolset(_) => match self.tools.get(tool) {
                Some(target) => (&target.backend, target.name.as_str()),
                None => match self.apps.backends_with(tool) {
                    [only] => (only, tool),
                    _ => return &[],
                },
            },
        };
        self.mirrored.get(backend).and_then(|tools| tools.get(tool)).map_or(&[], Vec::as_slice)
    }

    /// Returns the result object of a list request.
    pub fn list(
        &self,
        endpoint: &Endpoint,
        kind: ListKind,
        cursor: Option<&str>,
    ) -> Result<Bytes, Refusal> {
        let bad_cursor = || {
            Refusal::new(
                ErrorKind::CursorInvalid,
                "the broker did not issue the cursor for this list, or its position in the list was removed",
            )
        };
        let Some(pages) = self.lists.get(&(endpoint.clone(), kind)) else {
            return Ok(Bytes::from(format!("{{\"{}\":[]}}", kind.member())));
        };
        let Some(cursor) = cursor else { return Ok(self.page(endpoint, kind, pages, 0)) };
        let last = cursor::open(&self.origin.key, self.scope(&endpoint.name(), kind), cursor)
            .ok_or_else(bad_cursor)?;
        let start = pages.position_after(&last).ok_or_else(bad_cursor)?;
        Ok(self.page(endpoint, kind, pages, start))
    }

    /// Returns the lists that differ for one endpoint, for `notifications/…/list_changed`.
    pub fn changed_lists(&self, before: &Catalog, endpoint: &Endpoint) -> Vec<ListKind> {
        ListKind::ALL
            .into_iter()
            .filter(|kind| {
                let slot = (endpoint.clone(), *kind);
                self.entries(&slot) != before.entries(&slot)
            })
            .collect()
    }

    /// Returns digests that show, also to another process, whether a client has the current
    /// lists.
    pub fn digests(&self, endpoint: &Endpoint) -> ListDigests {
        ListKind::ALL.map(|kind| match self.lists.get(&(endpoint.clone(), kind)) {
            Some(pages) => *pages.digest.get_or_init(|| digest_of(&pages.entries)),
            None => digest_of(&[]),
        })
    }

    fn entries(&self, slot: &(Endpoint, ListKind)) -> &[Bytes] {
        self.lists.get(slot).map_or(&[], |pages| &pages.entries)
    }

    fn scope<'a>(&'a self, endpoint: &'a str, kind: ListKind) -> CursorScope<'a> {
        CursorScope { tenant: self.origin.tenant.as_str(), endpoint, list: kind.member() }
    }
}

const _: () = assert!(PAGE_ENTRIES > 0 && PAGE_ENTRIES <= LIST_ENTRIES_MAX);

fn digest_of(entries: &[Bytes]) -> u128 {
    let mut hash = digest::Context::new(&digest::SHA256);
    for entry in entries {
        hash.update(&(entry.len() as u64).to_le_bytes());
        hash.update(entry);
    }
    let hash = hash.finish();
    hash.as_ref().iter().take(16).fold(0, |number, byte| number << 8 | u128::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{limits::LIST_ENTRY_VALUES_MAX, pins};

    fn backend(name: &str) -> BackendId {
        BackendId::parse(name).unwrap()
    }

    fn lists(name: &str, tools: usize) -> (BackendId, Arc<BackendLists>) {
        let id = backend(name);
        let body: Vec<String> = (0..tools)
            .map(|n| format!(r#"{{"name":"t{n}","inputSchema":{{"type":"object"}}}}"#))
            .collect();
        let page = read_page(
            ListKind::Tools,
            &id,
            TaskHost::Backend,
            format!(r#"{{"tools":[{}]}}"#, body.join(",")).as_bytes(),
        )
        .unwrap();
        let none = BackendLists::declaring(br#"{"tools":{}}"#).unwrap();
        (id, Arc::new(BackendLists { tools: page.entries, ..none }))
    }

    fn catalog(backends: impl IntoIterator<Item = (BackendId, Arc<BackendLists>)>) -> Catalog {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &[1; 32]);
        Catalog::build(TenantId::parse("acme").unwrap(), key, backends.into_iter().collect())
    }

    fn all_names(catalog: &Catalog, endpoint: &Endpoint) -> Vec<String> {
        let (mut names, mut cursor) = (Vec::new(), None);
        loop {
            let page = catalog.list(endpoint, ListKind::Tools, cursor.as_deref()).unwrap();
            let page: serde_json::Value = serde_json::from_slice(&page).unwrap();
            names.extend(
                page["tools"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|tool| tool["name"].as_str().unwrap().to_owned()),
            );
            match page["nextCursor"].as_str() {
                Some(next) => cursor = Some(next.to_owned()),
                None => return names,
            }
        }
    }

    #[test]
    fn an_entry_loses_the_members_of_meta_that_only_the_broker_sets() {
        let page = br#"{"tools":[{"_meta":{"dev.mcp-brok\u0065r/x":1,"own":[1.0]},"name":"a","inputSchema":{}},{"name":"b","inputSchema":{},"_meta":{"dev.mcp-brokers/x":1}}]}"#;
        for host in [TaskHost::Backend, TaskHost::Broker] {
            let read = read_page(ListKind::Tools, &backend("b"), host, page).unwrap();
            let meta_of = |text: &[u8]| {
                let entry: serde_json::Value = serde_json::from_slice(text).unwrap();
                entry["_meta"].to_string()
            };
            for (entry, meta) in
                read.entries.iter().zip([r#"{"own":[1.0]}"#, r#"{"dev.mcp-brokers/x":1}"#])
            {
                assert_eq!(meta_of(&entry.native), meta);
                assert_eq!(meta_of(&entry.exposed), meta);
            }
        }
    }

    #[test]
    fn page_01_pages_hold_every_entry_once() {
        let catalog = catalog([lists("b", 250), lists("a", 3)]);
        let names = all_names(&catalog, &Endpoint::Aggregated);
        assert_eq!(names.len(), 253);
        assert_eq!((names[0].as_str(), names[3].as_str()), ("a__t0", "b__t0"));
        assert_eq!(all_names(&catalog, &Endpoint::Single(backend("b"))).len(), 250);
    }

    #[test]
    fn a_page_ends_before_it_has_too_many_bytes() {
        let (id, mut lists) = lists("b", 0);
        let tool = |(n, kib): (usize, usize)| {
            let text = "x".repeat(kib * 1024);
            format!(r#"{{"name":"t{n}","description":"{text}","inputSchema":{{}}}}"#)
        };
        let tools: Vec<String> =
            [200, 200, 200, 700, 1, 1].into_iter().enumerate().map(tool).collect();
        let page = format!(r#"{{"tools":[{}]}}"#, tools.join(","));
        let page = read_page(ListKind::Tools, &id, TaskHost::Backend, page.as_bytes()).unwrap();
        Arc::get_mut(&mut lists).unwrap().tools = page.entries;
        let catalog = catalog([(id, lists)]);
        let (mut counts, mut cursor) = (Vec::new(), None);
        loop {
            let page = catalog.list(&Endpoint::Aggregated, ListKind::Tools, cursor.as_deref());
            let page: serde_json::Value = serde_json::from_slice(&page.unwrap()).unwrap();
            counts.push(page["tools"].as_array().unwrap().len());
            match page["nextCursor"].as_str() {
                Some(next) => cursor = Some(next.to_owned()),
                None => break,
            }
        }
        assert_eq!(counts, [2, 1, 1, 2]);
        assert_eq!(all_names(&catalog, &Endpoint::Aggregated).len(), 6);
    }

    #[test]
    fn a_cursor_continues_after_its_entry_when_earlier_entries_are_added() {
        let before = catalog([lists("b", 150)]);
        let page: serde_json::Value = serde_json::from_slice(
            &before.list(&Endpoint::Aggregated, ListKind::Tools, None).unwrap(),
        )
        .unwrap();
        let after = catalog([lists("a", 5), lists("b", 150)]);
        let rest = after
            .list(&Endpoint::Aggregated, ListKind::Tools, page["nextCursor"].as_str())
            .unwrap();
        let rest: serde_json::Value = serde_json::from_slice(&rest).unwrap();
        assert_eq!(rest["tools"][0]["name"], "b__t100");
        assert_eq!(rest["tools"].as_array().unwrap().len(), 50);
    }

    #[test]
    fn foreign_cursors_are_refused() {
        let catalog = catalog([lists("b", 150)]);
        let page: serde_json::Value = serde_json::from_slice(
            &catalog.list(&Endpoint::Aggregated, ListKind::Tools, None).unwrap(),
        )
        .unwrap();
        let cursor = page["nextCursor"].as_str();
        assert!(catalog.list(&Endpoint::Single(backend("b")), ListKind::Tools, cursor).is_err());
        assert!(catalog.list(&Endpoint::Aggregated, ListKind::Prompts, cursor).is_err());
    }

    #[test]
    fn exposed_names_identify_their_backend() {
        let catalog = catalog([lists("a", 1), lists("b", 1)]);
        assert_eq!(catalog.tool("b__t0").as_deref(), Some(&Target::of(backend("b"), "t0".into())));
        assert_eq!(catalog.tool("t0"), None);
    }

    #[test]
    fn the_first_of_several_entries_with_one_name_counts() {
        let (id, mut lists) = lists("b", 0);
        let page = br#"{"tools":[{"name":"t","title":"first","inputSchema":{},"annotations":{"readOnlyHint":true}},
            {"name":"t","title":"second","inputSchema":{}}]}"#;
        let page = read_page(ListKind::Tools, &id, TaskHost::Backend, page).unwrap();
        let first = page.entries[0].identity();
        Arc::get_mut(&mut lists).unwrap().tools = page.entries;
        let catalog = catalog([(id.clone(), lists)]);
        for endpoint in [Endpoint::Aggregated, Endpoint::Single(id.clone())] {
            let page = catalog.list(&endpoint, ListKind::Tools, None).unwrap();
            let page: serde_json::Value = serde_json::from_slice(&page).unwrap();
            assert_eq!(page["tools"].as_array().unwrap().len(), 1, "{page}");
            assert_eq!(page["tools"][0]["title"], "first");
        }
        assert!(catalog.traits(&id, "t").unwrap().read_only);
        assert_eq!(catalog.tool_identity(&id, "t"), Some(first));
        assert_eq!(catalog.backends[&id].tools.len(), 1, "rules and toolsets read the first alone");
    }

    #[test]
    fn a_stale_backend_is_named() {
        let (id, fresh) = lists("b", 1);
        let stale = Arc::new(BackendLists { stale: true, ..(*fresh).clone() });
        let catalog = catalog([(id, stale)]);
        let page: serde_json::Value = serde_json::from_slice(
            &catalog.list(&Endpoint::Aggregated, ListKind::Tools, None).unwrap(),
        )
        .unwrap();
        assert_eq!(page["_meta"]["dev.mcp-broker/stale"][0], "b");
    }

    #[test]
    fn marks_are_those_behind_what_an_endpoint_shows() {
        let key = MarkKey::new(hmac::Key::new(hmac::HMAC_SHA256, &[1; 32]));
        let mark = |name: &str| key.of_catalog(&TenantId::parse(name).unwrap());
        let marked = |name: &str, tools| {
            let (id, lists) = lists(name, tools);
            let mut marks = CatalogMarks::default();
            marks.add(mark(name));
            (id, Arc::new(BackendLists { marks, ..(*lists).clone() }))
        };
        let catalog = catalog([marked("a", 1), marked("b", 1), marked("c", 0)]);
        let shown = |endpoint: Endpoint| {
            let marks = catalog.marks(&endpoint);
            ["a", "b", "c"].map(|name| marks.contains(&mark(name)))
        };
        assert_eq!(shown(Endpoint::Aggregated), [true, true, false]);
        assert_eq!(shown(Endpoint::Single(backend("b"))), [false, true, false]);
    }

    #[test]
    fn only_lists_that_differ_are_reported() {
        let (one, two) = (catalog([lists("b", 1)]), catalog([lists("b", 2)]));
        assert_eq!(two.changed_lists(&one, &Endpoint::Aggregated), vec![ListKind::Tools]);
        assert!(one.changed_lists(&one, &Endpoint::Aggregated).is_empty());
        assert!(two.changed_lists(&one, &Endpoint::Single(backend("other"))).is_empty());
    }

    #[test]
    fn hostile_entries_are_skipped_individually() {
        let page = br#"{"tools":[{"name":"ok","inputSchema":{"type":"object"}},{"name":"","inputSchema":{}},{"name":"no-schema"},
            {"name":"a\r\nb","inputSchema":{}},{"inputSchema":{}},7]}"#;
        let page = read_page(ListKind::Tools, &backend("b"), TaskHost::Backend, page).unwrap();
        assert_eq!((page.entries.len(), page.skipped.len()), (1, 5));
        assert!(read_page(ListKind::Tools, &backend("b"), TaskHost::Backend, b"{}").is_err());
    }

    #[test]
    fn a_resource_without_a_scheme_is_skipped() {
        let entry = |uri: &str| format!(r#"{{"uri":"{uri}","name":"n"}}"#);
        let uris = ["README.md", ":a", "/srv/a:b", "urn:a", "x-1.y+z://a", "1x:a", "{a}:b"];
        let page = format!(r#"{{"resources":[{}]}}"#, uris.map(entry).join(","));
        let read =
            read_page(ListKind::Resources, &backend("b"), TaskHost::Backend, page.as_bytes());
        let read = read.unwrap();
        let kept: Vec<&str> = read.entries.iter().map(|entry| entry.key.as_str()).collect();
        assert_eq!(kept, ["urn:a", "x-1.y+z://a", "1x:a"]);
        assert!(read.skipped.iter().all(|skipped| skipped.reason == "its URI has no scheme"));
        let template = r#"{"resourceTemplates":[{"uriTemplate":"{+uri}","name":"n"}]}"#;
        let kind = ListKind::ResourceTemplates;
        let read = read_page(kind, &backend("b"), TaskHost::Backend, template.as_bytes());
        assert_eq!(read.unwrap().entries.len(), 1, "its expansion has a scheme");
    }

    #[test]
    fn a_tool_with_a_long_link_to_a_user_interface_is_skipped() {
        let entry = |name: &str, bytes: usize| {
            let uri = format!("ui://{}", "a".repeat(bytes - 5));
            format!(
                r#"{{"name":"{name}","inputSchema":{{}},"_meta":{{"ui":{{"resourceUri":"{uri}"}}}}}}"#
            )
        };
        let page = format!(r#"{{"tools":[{},{}]}}"#, entry("most", 2048), entry("more", 2049));
        let page = read_page(ListKind::Tools, &backend("b"), TaskHost::Backend, page.as_bytes());
        let page = page.unwrap();
        assert_eq!((page.entries[0].key.as_str(), page.skipped[0].key.as_str()), ("most", "more"));
    }

    #[test]
    fn an_entry_with_too_many_values_is_skipped_and_its_neighbours_are_kept() {
        // The entry, its three members and this number of elements.
        let entry = |name: &str, elements: usize| {
            let examples = vec!["0"; elements].join(",");
            format!(r#"{{"name":"{name}","inputSchema":{{}},"examples":[{examples}]}}"#)
        };
        let most = LIST_ENTRY_VALUES_MAX - 4;
        let page = format!(
            r#"{{"tools":[{},{},{}]}}"#,
            entry("most", most),
            entry("more", most + 1),
            entry("few", 1)
        );
        for host in [TaskHost::Backend, TaskHost::Broker] {
            let read = read_page(ListKind::Tools, &backend("b"), host, page.as_bytes()).unwrap();
            let kept: Vec<&str> = read.entries.iter().map(|entry| entry.key.as_str()).collect();
            let skipped: Vec<&str> = read.skipped.iter().map(|entry| entry.key.as_str()).collect();
            assert_eq!((kept, skipped), (vec!["most", "few"], vec!["more"]));
        }
    }

    #[test]
    fn a_page_above_the_usual_size_is_read() {
        let note = "x".repeat(protocol::json::MESSAGE_BYTES_MAX);
        let page = format!(r#"{{"tools":[{{"name":"t","inputSchema":{{}}}}],"note":"{note}"}}"#);
        let read = read_page(ListKind::Tools, &backend("b"), TaskHost::Backend, page.as_bytes());
        assert_eq!(read.unwrap().entries.len(), 1);
    }

    #[test]
    fn a_tool_is_the_same_one_with_and_without_execution() {
        let identity = |tool: &str| {
            let page = format!(r#"{{"tools":[{tool}]}}"#);
            let read = read_page(ListKind::Tools, &backend("b"), TaskHost::Broker, page.as_bytes());
            read.unwrap().entries[0].identity()
        };
        let plain = r#"{"name":"a","description":"d","inputSchema":{}}"#;
        let with = |value: &str| {
            plain.replace("\"inputSchema\"", &format!("\"execution\":{value},\"inputSchema\""))
        };
        assert_eq!(identity(&with(r#"{"taskSupport":"forbidden"}"#)), identity(plain));
        assert_eq!(identity(&with(r#"{"taskSupport":"optional"}"#)), identity(plain));
        assert_ne!(identity(&plain.replace("\"d\"", "\"e\"")), identity(plain));
    }

    #[test]
    fn task_02_tools_of_a_backend_without_tasks_are_offered_as_tasks() {
        let page = br#"{"tools":[{"name":"plain","inputSchema":{}},{"name":"never","inputSchema":{},"execution":{"taskSupport":"forbidden"}},
            { "name":"must","inputSchema":{},"execution":{"taskSupport":"required","x":1}},{"name":"other","inputSchema":{},"execution":{}}]}"#;
        let read = |host| read_page(ListKind::Tools, &backend("b"), host, page).unwrap().entries;
        let supports = |entries: &[CatalogEntry]| {
            entries.iter().map(|entry| entry.traits.task_support).collect::<Vec<_>>()
        };
        let (own, hosted) = (read(TaskHost::Backend), read(TaskHost::Broker));
        use TaskSupport::{Forbidden, Optional, Required};
        assert_eq!(supports(&own), [Forbidden, Forbidden, Required, Forbidden]);
        assert_eq!(supports(&hosted), [Optional, Forbidden, Optional, Optional]);
        assert_eq!(hosted[1].native, own[1].native, "what says something is left alone");
        for entry in &hosted {
            let shown: serde_json::Value = serde_json::from_slice(&entry.exposed).unwrap();
            assert_eq!(shown["name"], format!("b__{}", entry.key));
            let support = if entry.key == "never" { "forbidden" } else { "optional" };
            assert_eq!(shown["execution"]["taskSupport"], support);
        }
        let must: serde_json::Value = serde_json::from_slice(&hosted[2].native).unwrap();
        assert_eq!(
            (&must["name"], &must["execution"]["x"]),
            (&serde_json::json!("must"), &serde_json::json!(1))
        );
    }

    #[test]
    fn a_resource_is_held_under_every_spelling_of_its_uri() {
        let (id, mut lists) = lists("files", 0);
        let read = |kind, page: &str| {
            read_page(kind, &id, TaskHost::Backend, page.as_bytes()).unwrap().entries
        };
        let filled = Arc::get_mut(&mut lists).unwrap();
        filled.resources = read(
            ListKind::Resources,
            r#"{"resources":[{"uri":"file:///srv/secret"},{"uri":"FILE:///srv/h%65ld"},{"uri":"file:///srv/my%20doc"},{"uri":"https://H.example/a"}]}"#,
        );
        filled.resource_templates = read(
            ListKind::ResourceTemplates,
            r#"{"resourceTemplates":[{"uriTemplate":"file:///srv/{+path}"},{"uriTemplate":"file:///srv/pub/{name}"},{"uriTemplate":"https://t.example:443/my%20docs/{name}"}]}"#,
        );
        for entry in filled.resources.iter_mut().filter(|entry| !entry.key.ends_with("doc")) {
            entry.pin.is_held = true;
        }
        filled.resource_templates[0].pin.is_held = true;
        filled.resource_templates[2].pin.is_held = true;
        let catalog = catalog([(id.clone(), lists)]);
        for uri in [
            "file:///srv/secret",
            "FILE:///srv/secret",
            "file:///srv/./secret",
            "file:///srv/s%65cret",
            "file:///srv/s%2565cret",
            "file://localhost/srv/secret",
            "file://host/srv/secret",
            "file:///srv/pub/../secret",
            "FILE:///srv/h%65ld",
            "file:///srv/held",
            "file:///other/../srv/unlisted",
            "FILE:///srv/my%20doc",
            "https://h.example:443/a",
            "https:h.example/a#b",
            "https://me@h.example/%61",
            "https://t.example/my docs/a",
            "file:///srv/pub/a/b",
            "https:/t.example/my%20docs/a",
        ] {
            assert!(catalog.is_resource_held(&id, uri), "{uri}");
        }
        for uri in [
            "file:///srv/my%20doc",
            "file:///srv/pub/a",
            "file:///srv/pub/a%20b",
            "file:///other",
            "https://h.example:444/a",
        ] {
            assert!(!catalog.is_resource_held(&id, uri), "{uri}");
        }
        assert!(!catalog.is_resource_held(&backend("other"), "FILE:///srv/secret"));
    }

    #[test]
    fn a_page_is_read_up_to_what_is_still_kept() {
        let entry =
            |name: &str| format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#);
        let page = format!(r#"{{"tools":[{},{},{{}},{}]}}"#, entry("a"), entry("b"), entry("c"));
        let ignored = pins::IgnoredMembers::default();
        let read = |allowance| {
            let (kind, host) = (ListKind::Tools, TaskHost::Backend);
            let pinned = Some(&ignored);
            let page =
                read_page_pinned(kind, &backend("b"), host, page.as_bytes(), pinned, allowance)
                    .unwrap();
            assert_eq!(page.entries.len(), page.definitions.len());
            (page.entries.len(), page.skipped.len(), page.is_cut, page.rest)
        };
        let bytes = 2 * entry("a").len();
        let allowance = |entries, bytes, uri_bytes| ListAllowance { entries, bytes, uri_bytes };
        assert_eq!(read(allowance(9, 2 * bytes, 7)), (3, 1, false, allowance(6, bytes / 2, 7)));
        assert_eq!(read(allowance(2, 2 * bytes, 7)), (2, 0, true, allowance(0, bytes, 7)));
        assert_eq!(read(allowance(3, bytes + 1, 7)), (2, 1, true, allowance(1, 1, 7)));
        assert_eq!(read(ListAllowance::default()), (0, 0, true, ListAllowance::default()));
        assert_eq!(read(ListAllowance::WHOLE).0, 3);
    }

    #[test]
    fn a_list_has_a_limited_number_of_uris_that_have_other_spellings() {
        let id = backend("b");
        let read = |kind, page: &str, uri_bytes| {
            let (host, allowance) =
                (TaskHost::Backend, ListAllowance { uri_bytes, ..ListAllowance::WHOLE });
            let page = read_page_pinned(kind, &id, host, page.as_bytes(), None, allowance).unwrap();
            let keys: Vec<String> = page.entries.into_iter().map(|entry| entry.key).collect();
            (keys.join(" "), page.skipped.len(), page.rest.uri_bytes)
        };
        let resources = r#"{"resources":[{"uri":"f:/a%20b"},{"uri":"f:/c"},{"uri":"f:/d%20e"}]}"#;
        assert_eq!(
            read(ListKind::Resources, resources, 20),
            ("f:/a%20b f:/c f:/d%20e".into(), 0, 4)
        );
        assert_eq!(read(ListKind::Resources, resources, 10), ("f:/a%20b f:/c".into(), 1, 2));
        let tools =
            r#"{"tools":[{"name":"t","inputSchema":{},"_meta":{"ui":{"resourceUri":"UI://a"}}}]}"#;
        assert_eq!(read(ListKind::Tools, tools, 6), ("t".into(), 0, 0));
        assert_eq!(read(ListKind::Tools, tools, 5), (String::new(), 1, 5));
    }
}
