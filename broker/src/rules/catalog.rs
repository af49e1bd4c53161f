//! What a tenant's backends offer: their lists as fetched, merged into pages that are ready to be sent.
//!
//! [`BackendLists`] is one backend's last good copy. [`Catalog`] is the merged, immutable snapshot all sessions of a
//! tenant read; a list is answered from it without asking anybody. Order is stable (backends by name, then the backend's
//! own order) and pages are built once, so the same list is the same bytes.

mod alike;
mod tool_traits;

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, OnceLock},
};

use aws_lc_rs::{digest, hmac};
use bytes::Bytes;
use memchr::memmem;
use protocol::{
    capabilities::ServerCapabilities,
    error::{ErrorKind, Refusal},
    handshake::InitializeResult,
    ids::{BackendId, TenantId},
    json::{self, Document, Tape, TapeValue, ValueKind},
    stateless::tool_headers::{self, ParamHeader},
};

use self::tool_traits::with_task_support;
pub use self::tool_traits::{TaskHost, TaskSupport, ToolTraits};
use super::{
    cursor::{self, CursorScope},
    endpoint::Endpoint,
    exposed_names, exposure,
};
use crate::{
    limits::{LIST_ENTRIES_MAX, PAGE_ENTRIES},
    maps::FastMap,
};

/// The four lists a server may offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ListKind {
    Tools,
    Prompts,
    Resources,
    ResourceTemplates,
}

impl ListKind {
    pub const ALL: [ListKind; 4] =
        [ListKind::Tools, ListKind::Prompts, ListKind::Resources, ListKind::ResourceTemplates];

    /// The member of the list result that holds the entries.
    pub fn member(self) -> &'static str {
        match self {
            ListKind::Tools => "tools",
            ListKind::Prompts => "prompts",
            ListKind::Resources => "resources",
            ListKind::ResourceTemplates => "resourceTemplates",
        }
    }

    /// The member of an entry that tells it from the others.
    fn key(self) -> &'static str {
        match self {
            ListKind::Tools | ListKind::Prompts => "name",
            ListKind::Resources => "uri",
            ListKind::ResourceTemplates => "uriTemplate",
        }
    }

    fn exposed_key(self, backend: &BackendId, original: &str) -> String {
        match self {
            ListKind::Tools | ListKind::Prompts => exposed_names::exposed_name(backend, original),
            ListKind::Resources | ListKind::ResourceTemplates => {
                exposed_names::exposed_uri(backend, original)
            }
        }
    }
}

/// One tool, prompt, resource or template.
#[derive(Debug, Clone)]
pub struct CatalogEntry {
    /// Name or URI as the backend knows it.
    pub key: String,
    /// Name or URI on the aggregated endpoint.
    pub exposed_key: String,
    /// The backend's own bytes, but for the task support of a tool that the broker runs as a task.
    pub native: Bytes,
    /// The same with the exposed name.
    pub exposed: Bytes,
    pub traits: ToolTraits,
    /// Of the backend's own bytes: tells whether a tool is still the one that somebody looked at.
    pub definition: DefinitionDigest,
}

impl CatalogEntry {
    /// Of a tool, as its backend wrote it.
    pub fn input_schema(&self) -> Option<Bytes> {
        let document = Document::parse(
            &self.native,
            &json::Limits { bytes_max: self.native.len(), ..json::Limits::default() },
        )
        .ok()?;
        document.root().get("inputSchema").map(|schema| Bytes::copy_from_slice(schema.raw()))
    }
}

/// SHA-256 of an entry as its backend lists it.
pub type DefinitionDigest = [u8; 32];

/// An entry of a backend's list that was left out, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedEntry {
    pub key: String,
    pub why: &'static str,
}

/// One backend's lists: the last good copy.
#[derive(Debug, Clone)]
pub struct BackendLists {
    /// What it said at the handshake.
    pub server: Arc<InitializeResult>,
    pub tools: Vec<CatalogEntry>,
    pub prompts: Vec<CatalogEntry>,
    pub resources: Vec<CatalogEntry>,
    pub resource_templates: Vec<CatalogEntry>,
    /// The backend cannot be reached; these lists are older than that.
    pub stale: bool,
}

impl BackendLists {
    pub fn entries(&self, kind: ListKind) -> &[CatalogEntry] {
        match kind {
            ListKind::Tools => &self.tools,
            ListKind::Prompts => &self.prompts,
            ListKind::Resources => &self.resources,
            ListKind::ResourceTemplates => &self.resource_templates,
        }
    }

    pub fn entries_mut(&mut self, kind: ListKind) -> &mut Vec<CatalogEntry> {
        match kind {
            ListKind::Tools => &mut self.tools,
            ListKind::Prompts => &mut self.prompts,
            ListKind::Resources => &mut self.resources,
            ListKind::ResourceTemplates => &mut self.resource_templates,
        }
    }
}

/// A page of a backend's list, taken apart.
#[derive(Debug, Default)]
pub struct ListPage {
    pub entries: Vec<CatalogEntry>,
    pub left_out: Vec<SkippedEntry>,
    pub next_cursor: Option<String>,
}

/// Takes the result of a list call apart. Entries that cannot be offered are left out, each with its reason; only a
/// result that is not a list at all is an error.
pub fn read_page(
    kind: ListKind,
    backend: &BackendId,
    host: TaskHost,
    result: &[u8],
) -> Result<ListPage, &'static str> {
    let tape =
        Tape::parse(result, &json::Limits::default()).map_err(|_| "the list is not valid JSON")?;
    let root = tape.root();
    let entries = root
        .get(kind.member())
        .filter(|v| v.kind() == ValueKind::Array)
        .ok_or("the list result has no array of entries")?;
    let mut page = ListPage {
        next_cursor: root.get("nextCursor").and_then(|v| v.as_str()).map(|c| c.into_owned()),
        ..ListPage::default()
    };
    for entry in entries.elements() {
        match read_entry(kind, backend, host, entry) {
            Ok(entry) => page.entries.push(entry),
            Err(left_out) => page.left_out.push(left_out),
        }
    }
    Ok(page)
}

const TWO_LINKS: &str =
    "its _meta has two links to a user interface, in the same or another letter case";

fn read_entry(
    kind: ListKind,
    backend: &BackendId,
    host: TaskHost,
    entry: TapeValue<'_>,
) -> Result<CatalogEntry, SkippedEntry> {
    let named = entry.unambiguous(kind.key());
    let key = named
        .as_ref()
        .ok()
        .and_then(|v| v.as_ref()?.as_str())
        .map(|k| k.into_owned())
        .unwrap_or_default();
    let refuse = |why| Err(SkippedEntry { key: key.chars().take(80).collect(), why });
    // Readers differ in which of two they take: a second name could pass for another backend's.
    let Ok(value) = named else {
        return refuse("it has two names or URIs, in the same or another letter case");
    };
    let Some(value) = value.filter(|_| !key.is_empty()) else {
        return refuse("it has no name or URI");
    };
    if !alike::is_read_alike(entry) {
        return refuse(
            "it, its annotations or its execution have a member twice, or in another letter case",
        );
    }
    if key.len() > 2048 {
        return refuse("its name or URI is longer than 2048 bytes");
    }
    if key.chars().any(char::is_control) {
        return refuse("its name or URI holds control characters");
    }
    if kind == ListKind::Tools
        && entry.get("inputSchema").is_none_or(|schema| schema.kind() != ValueKind::Object)
    {
        return refuse("it has no inputSchema object");
    }
    let exposed_key = kind.exposed_key(backend, &key);
    let mut definition = DefinitionDigest::default();
    definition.copy_from_slice(digest::digest(&digest::SHA256, entry.raw()).as_ref());
    if kind == ListKind::Tools
        && host == TaskHost::Broker
        && let Some(hosted) = with_task_support(entry)
        && let Ok(tape) = Tape::parse(
            &hosted,
            &json::Limits { bytes_max: hosted.len(), ..json::Limits::default() },
        )
        && let Some(value) = tape.root().get(kind.key())
    {
        let Ok(exposed) =
            exposure::expose_entry(backend, &hosted, tape.root(), value, &exposed_key)
        else {
            return refuse(TWO_LINKS);
        };
        let traits = ToolTraits::of(tape.root());
        return Ok(CatalogEntry {
            key,
            exposed_key,
            exposed,
            traits,
            native: hosted.clone(),
            definition,
        });
    }
    let native = Bytes::copy_from_slice(entry.raw());
    let Ok(exposed) = exposure::expose_entry(backend, &native, entry, value, &exposed_key) else {
        return refuse(TWO_LINKS);
    };
    Ok(CatalogEntry {
        key,
        exposed_key,
        native,
        exposed,
        traits: ToolTraits::of(entry),
        definition,
    })
}

/// One list of one endpoint, in pages.
#[derive(Debug, Default, PartialEq, Eq)]
struct Pages {
    pages: Vec<Bytes>,
    entries: Vec<Bytes>,
    keys: Vec<String>,
    /// Stands before the `}` of each page: the mark of stale backends.
    suffix: String,
    /// Of the entries, once somebody asks.
    digest: OnceLock<u128>,
}

/// What the lists of an endpoint hold, in the order of [`ListKind::ALL`]. Every process computes the same for the same.
pub type ListDigests = [u128; ListKind::ALL.len()];

/// Where an exposed name leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub backend: BackendId,
    /// The name there.
    pub name: String,
}

/// A tenant's merged snapshot.
#[derive(Debug)]
pub struct Catalog {
    pub backends: BTreeMap<BackendId, Arc<BackendLists>>,
    /// What the aggregated endpoint can do: the union of its backends.
    pub capabilities: ServerCapabilities,
    tools: FastMap<String, Target>,
    prompts: FastMap<String, Target>,
    /// By backend and the tool's own name.
    traits: FastMap<BackendId, FastMap<String, (ToolTraits, DefinitionDigest)>>,
    /// Tools that want arguments repeated in headers, by backend and the tool's own name.
    mirrored: FastMap<BackendId, FastMap<String, Vec<ParamHeader>>>,
    lists: FastMap<(Endpoint, ListKind), Pages>,
    tenant: TenantId,
    key: hmac::Key,
}

impl Catalog {
    pub fn build(
        tenant: TenantId,
        key: hmac::Key,
        backends: BTreeMap<BackendId, Arc<BackendLists>>,
    ) -> Self {
        let capabilities =
            ServerCapabilities::merge(backends.values().map(|lists| &lists.server.capabilities));
        let mut catalog = Self {
            capabilities,
            tools: FastMap::default(),
            prompts: FastMap::default(),
            traits: FastMap::default(),
            mirrored: FastMap::default(),
            lists: FastMap::default(),
            backends: BTreeMap::new(),
            tenant,
            key,
        };
        for (backend, lists) in &backends {
            let traits = lists
                .tools
                .iter()
                .map(|tool| (tool.key.clone(), (tool.traits, tool.definition)))
                .collect();
            catalog.traits.insert(backend.clone(), traits);
            let mirrored = mirrored(&lists.tools);
            if !mirrored.is_empty() {
                catalog.mirrored.insert(backend.clone(), mirrored);
            }
            for (kind, map) in
                [(ListKind::Tools, &mut catalog.tools), (ListKind::Prompts, &mut catalog.prompts)]
            {
                for entry in lists.entries(kind) {
                    map.entry(entry.exposed_key.clone()).or_insert_with(|| Target {
                        backend: backend.clone(),
                        name: entry.key.clone(),
                    });
                }
            }
            for kind in ListKind::ALL {
                let endpoint = Endpoint::Single(backend.clone());
                let entries =
                    lists.entries(kind).iter().map(|entry| (entry.key.as_str(), &entry.native));
                let pages = catalog.paginate(
                    &endpoint,
                    kind,
                    entries,
                    lists.stale.then_some(backend).into_iter(),
                );
                catalog.lists.insert((endpoint, kind), pages);
            }
        }
        for kind in ListKind::ALL {
            let entries = backends
                .values()
                .flat_map(|lists| lists.entries(kind))
                .map(|entry| (entry.exposed_key.as_str(), &entry.exposed));
            let stale =
                backends.iter().filter(|(_, lists)| lists.stale).map(|(backend, _)| backend);
            let pages = catalog.paginate(&Endpoint::Aggregated, kind, entries, stale);
            catalog.lists.insert((Endpoint::Aggregated, kind), pages);
        }
        catalog.backends = backends;
        catalog
    }

    pub fn tool(&self, exposed: &str) -> Option<&Target> {
        self.tools.get(exposed)
    }

    pub fn prompt(&self, exposed: &str) -> Option<&Target> {
        self.prompts.get(exposed)
    }

    /// What this tool, named as its backend does, says of itself; `None` for one that is not listed.
    pub fn traits(&self, backend: &BackendId, tool: &str) -> Option<ToolTraits> {
        Some(self.traits.get(backend)?.get(tool)?.0)
    }

    /// Which definition of this tool, named as its backend does, is listed.
    pub fn definition(&self, backend: &BackendId, tool: &str) -> Option<DefinitionDigest> {
        Some(self.traits.get(backend)?.get(tool)?.1)
    }

    /// The arguments that this tool, named as the endpoint does, wants repeated in headers.
    pub fn mirrored(&self, endpoint: &Endpoint, tool: &str) -> &[ParamHeader] {
        if self.mirrored.is_empty() {
            return &[]; // as nearly everywhere
        }
        let (backend, tool) = match endpoint {
            Endpoint::Single(backend) => (backend, tool),
            Endpoint::Aggregated => match self.tools.get(tool) {
                Some(target) => (&target.backend, target.name.as_str()),
                None => return &[],
            },
        };
        self.mirrored.get(backend).and_then(|tools| tools.get(tool)).map_or(&[], Vec::as_slice)
    }

    /// The result object of a list call.
    pub fn list(
        &self,
        endpoint: &Endpoint,
        kind: ListKind,
        cursor: Option<&str>,
    ) -> Result<Bytes, Refusal> {
        let bad_cursor = || {
            Refusal::new(
                ErrorKind::CursorInvalid,
                "the cursor is not one this list gave out, or its place in the list is gone",
            )
        };
        let Some(pages) = self.lists.get(&(endpoint.clone(), kind)) else {
            return Ok(Bytes::from(format!("{{\"{}\":[]}}", kind.member())));
        };
        let Some(cursor) = cursor else { return Ok(pages.pages[0].clone()) };
        let last =
            cursor::open(&self.key, self.scope(endpoint, kind), cursor).ok_or_else(bad_cursor)?;
        let start = pages.keys.iter().position(|key| *key == last).ok_or_else(bad_cursor)? + 1;
        if start % PAGE_ENTRIES == 0 && start / PAGE_ENTRIES < pages.pages.len() {
            return Ok(pages.pages[start / PAGE_ENTRIES].clone());
        }
        Ok(self.page(endpoint, kind, pages, start))
    }

    /// The lists that differ for one endpoint, as `notifications/…/list_changed` needs to know.
    pub fn changed_lists(&self, before: &Catalog, endpoint: &Endpoint) -> Vec<ListKind> {
        ListKind::ALL
            .into_iter()
            .filter(|kind| {
                let slot = (endpoint.clone(), *kind);
                self.entries(&slot) != before.entries(&slot)
            })
            .collect()
    }

    /// Tells whether a list is the one a client was told of, also by another process.
    pub fn digests(&self, endpoint: &Endpoint) -> ListDigests {
        ListKind::ALL.map(|kind| match self.lists.get(&(endpoint.clone(), kind)) {
            Some(pages) => *pages.digest.get_or_init(|| digest_of(&pages.entries)),
            None => digest_of(&[]),
        })
    }

    fn entries(&self, slot: &(Endpoint, ListKind)) -> &[Bytes] {
        self.lists.get(slot).map_or(&[], |pages| &pages.entries)
    }

    fn scope<'a>(&'a self, endpoint: &'a Endpoint, kind: ListKind) -> CursorScope<'a> {
        CursorScope { tenant: self.tenant.as_str(), endpoint: endpoint.name(), list: kind.member() }
    }

    fn paginate<'a>(
        &self,
        endpoint: &Endpoint,
        kind: ListKind,
        entries: impl Iterator<Item = (&'a str, &'a Bytes)>,
        stale: impl Iterator<Item = &'a BackendId>,
    ) -> Pages {
        let mut pages = Pages { suffix: stale_mark(stale), ..Pages::default() };
        let mut seen = HashSet::new();
        for (key, entry) in entries {
            if seen.insert(key) {
                pages.keys.push(key.to_owned());
                pages.entries.push(entry.clone());
            }
        }
        let count = pages.entries.len().div_ceil(PAGE_ENTRIES).max(1);
        pages.pages = (0..count)
            .map(|index| self.page(endpoint, kind, &pages, index * PAGE_ENTRIES))
            .collect();
        pages
    }

    fn page(&self, endpoint: &Endpoint, kind: ListKind, pages: &Pages, start: usize) -> Bytes {
        let end = pages.entries.len().min(start + PAGE_ENTRIES);
        let mut body = Vec::with_capacity(
            64 + pages.entries[start..end].iter().map(|entry| entry.len() + 1).sum::<usize>(),
        );
        body.extend_from_slice(format!("{{\"{}\":[", kind.member()).as_bytes());
        for (index, entry) in pages.entries[start..end].iter().enumerate() {
            if index > 0 {
                body.push(b',');
            }
            body.extend_from_slice(entry);
        }
        body.push(b']');
        if end < pages.entries.len() {
            let cursor = cursor::seal(&self.key, self.scope(endpoint, kind), &pages.keys[end - 1]);
            body.extend_from_slice(format!(",\"nextCursor\":\"{cursor}\"").as_bytes());
        }
        body.extend_from_slice(pages.suffix.as_bytes());
        body.push(b'}');
        body.into()
    }
}

/// What tools want repeated in headers. One that asks for it wrongly is not listed to those who would have to do it.
fn mirrored(tools: &[CatalogEntry]) -> FastMap<String, Vec<ParamHeader>> {
    let asks = |tool: &&CatalogEntry| memmem::find(&tool.native, b"x-mcp-header").is_some();
    let headers = |tool: &CatalogEntry| {
        let document = Document::parse(
            &tool.native,
            &json::Limits { bytes_max: tool.native.len(), ..json::Limits::default() },
        )
        .ok()?;
        tool_headers::param_headers(document.root().get("inputSchema")?.raw()).ok()
    };
    tools.iter().filter(asks).filter_map(|tool| Some((tool.key.clone(), headers(tool)?))).collect()
}

/// `_meta` naming the backends whose part of a list is a last good copy.
fn stale_mark<'a>(stale: impl Iterator<Item = &'a BackendId>) -> String {
    let names: Vec<String> = stale.map(|backend| format!("\"{backend}\"")).collect();
    if names.is_empty() {
        String::new()
    } else {
        format!(",\"_meta\":{{\"dev.mcp-broker/stale\":[{}]}}", names.join(","))
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
    use protocol::version::Version;

    use super::*;

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
        let lists = BackendLists {
            server: Arc::new(InitializeResult {
                version: Version::LATEST_WITH_SESSIONS,
                capabilities: ServerCapabilities::parse(br#"{"tools":{}}"#).unwrap(),
                server_info: Bytes::from_static(b"{}"),
                server_name: name.to_owned(),
                server_version: String::new(),
                instructions: None,
            }),
            tools: page.entries,
            prompts: vec![],
            resources: vec![],
            resource_templates: vec![],
            stale: false,
        };
        (id, Arc::new(lists))
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
    fn page_01_pages_hold_every_entry_once() {
        let catalog = catalog([lists("b", 250), lists("a", 3)]);
        let names = all_names(&catalog, &Endpoint::Aggregated);
        assert_eq!(names.len(), 253);
        assert_eq!((names[0].as_str(), names[3].as_str()), ("a__t0", "b__t0"));
        assert_eq!(all_names(&catalog, &Endpoint::Single(backend("b"))).len(), 250);
    }

    #[test]
    fn a_cursor_goes_on_after_its_entry_when_the_list_grows_before_it() {
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
    fn names_lead_to_their_backend() {
        let catalog = catalog([lists("a", 1), lists("b", 1)]);
        assert_eq!(
            catalog.tool("b__t0"),
            Some(&Target { backend: backend("b"), name: "t0".into() })
        );
        assert_eq!(catalog.tool("t0"), None);
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
    fn only_lists_that_differ_are_reported() {
        let (one, two) = (catalog([lists("b", 1)]), catalog([lists("b", 2)]));
        assert_eq!(two.changed_lists(&one, &Endpoint::Aggregated), vec![ListKind::Tools]);
        assert!(one.changed_lists(&one, &Endpoint::Aggregated).is_empty());
        assert!(two.changed_lists(&one, &Endpoint::Single(backend("other"))).is_empty());
    }

    #[test]
    fn hostile_entries_are_left_out_one_by_one() {
        let page = br#"{"tools":[{"name":"ok","inputSchema":{"type":"object"}},{"name":"","inputSchema":{}},{"name":"no-schema"},
            {"name":"a\r\nb","inputSchema":{}},{"inputSchema":{}},7]}"#;
        let page = read_page(ListKind::Tools, &backend("b"), TaskHost::Backend, page).unwrap();
        assert_eq!((page.entries.len(), page.left_out.len()), (1, 5));
        assert!(read_page(ListKind::Tools, &backend("b"), TaskHost::Backend, b"{}").is_err());
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
}
