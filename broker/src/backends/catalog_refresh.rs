//! Fetches and publishes the lists of one backend, and refreshes them when they may have changed.
//!
//! Runs in the background while the backend is registered, on a link of its own. No client waits
//! for it: the lists of a slow or unreachable backend stay in the catalog and are marked stale.

use std::{
    collections::{HashMap, HashSet},
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use protocol::{
    capabilities::ServerCapabilities,
    envelope::{Kind, Message},
    error::{ErrorKind, Refusal},
    json,
    method::Method,
    stateless::{
        downgrade,
        results::CacheHint,
        tool_headers::{BadAnnotation, ParamHeader, param_headers},
    },
};
use rules::{
    catalog::{self, BackendLists, CatalogEntry, HeldParts, ListKind, SkippedEntry, TaskHost},
    limits::{
        BACKOFF_FIRST, BACKOFF_MAX, LIST_BYTES_MAX, LIST_ENTRIES_MAX, LIST_PAGES_MAX, LIST_TTL_MIN,
        REFRESH_DEBOUNCE, REFRESH_INTERVAL_MIN, pins::LEFT_OUT_LOGGED_MAX,
    },
    pins::PinDefinition,
};

use super::{
    backend::{Backend, BackendState},
    catalog_owner::CatalogOwner,
    link::{Era, EraSupport, Link, connection::Connection, failure::Failure, wire::WireSender},
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
            let reason = run_connection(&owner, complete, &backend, &link).await;
            match reason {
                Ok(()) => failures = 0,
                Err(refusal) => {
                    failures += 1;
                    // What the attempt lacked came meanwhile. Clients that wait for the first lists
                    // wait for the next attempt.
                    if backend.is_never_reached() && take_refresh_request(&backend).await {
                        link.shorten_backoff().await;
                        continue;
                    }
                    let lack = [ErrorKind::ConnectionRequired, ErrorKind::TokenRequired];
                    if lack.contains(&refusal.kind) && backend.is_never_reached() {
                        let accounts = backend.tokens.as_ref().and_then(TokenSource::user);
                        let of = (&backend.id, accounts.is_some());
                        backend.placeholder.show(of, &backend.pins, &backend.lists);
                        owner.publish();
                    }
                    mark_unreachable(&owner, &backend, &refusal);
                    let ceiling =
                        BACKOFF_FIRST.saturating_mul(1 << failures.min(10)).min(BACKOFF_MAX);
                    let pause = ceiling
                        .mul_f64(rand::random_range(0.5..1.0))
                        .max(refusal.retry_after.unwrap_or_default());
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = backend.refresh_requested() => link.shorten_backoff().await, // a probe does not wait for the back-off
                    }
                }
            }
        }
    };
    tokio::select! { () = work => {}, () = prober::run(&backend, &link) => {}, () = backend.stop.cancelled() => {} }
    link.close().await;
}

/// Fetches and publishes the lists over one connection, until the connection ends.
async fn run_connection(
    owner: &impl CatalogOwner,
    complete: CompleteLists,
    backend: &Arc<Backend>,
    link: &Arc<Link>,
) -> Result<(), Refusal> {
    let was_asked = backend.era.sessions_wanted();
    let connection = link.connection().await?;
    loop {
        let fetched_at = Instant::now();
        let FetchedLists { mut lists, definitions, ttl: kept_for } =
            fetch(link, &connection).await?;
        complete(backend, &connection, &mut lists).await;
        let others = || owner.others(&backend.id);
        let (lists, is_pinned) = backend.pins.admit(lists, definitions, others).await;
        let may_know_sessions = !was_asked
            && connection.modern().is_some()
            && backend.era.may_know_sessions(backend.spec.protocol);
        backend.era.set_settled(!may_know_sessions);
        publish_lists(owner, backend, lists);
        tokio::select! {
            () = backend.era.asked_for_sessions(), if may_know_sessions => {
                connection.close_forgotten(); // and is opened again
                return Ok(());
            }
            () = backend.refresh_requested() => {}
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
        let _coalesced = take_refresh_request(backend).await;
    }
}

/// Takes a request for a refresh. Returns whether there was one.
async fn take_refresh_request(backend: &Backend) -> bool {
    tokio::time::timeout(Duration::ZERO, backend.refresh_requested()).await.is_ok()
}

/// Waits until the lists are older than the time to live that the backend gave (MCP 2026-07-28,
/// Caching).
async fn lists_expired(kept_for: Option<Duration>) {
    match kept_for {
        Some(kept_for) => tokio::time::sleep(kept_for.max(LIST_TTL_MIN)).await,
        None => std::future::pending().await,
    }
}

/// Pings the backend at an interval. Resolves when it no longer answers (MCP 2025-11-25, Ping). One
/// busy answer is permitted, a second one in a row is not.
async fn ping_until_unresponsive(link: &Arc<Link>, connection: &Arc<Connection>) -> Refusal {
    let mut was_busy = false;
    loop {
        tokio::time::sleep(link.backend.shared.config.timeouts.ping_interval).await;
        was_busy = match connection.ask(link, Method::Ping, None).await {
            Ok(_) => false,
            Err(Failure::Busy(_) | Failure::Throttled(_) | Failure::Unclear(_)) if !was_busy => {
                true
            }
            Err(failure) => return link.backend.refusal(&failure),
        };
    }
}

fn publish_lists(owner: &impl CatalogOwner, backend: &Arc<Backend>, lists: BackendLists) {
    backend.pins.publish(&backend.lists, lists);
    backend.placeholder.hide();
    let first = backend.state() != BackendState::Ready;
    owner.publish();
    backend.set_state(BackendState::Ready);
    if first {
        tracing::info!(tenant = %backend.tenant, backend = %backend.id, "backend ready");
    }
}

fn mark_unreachable(owner: &impl CatalogOwner, backend: &Arc<Backend>, refusal: &Refusal) {
    let state = match backend.lists.load_full() {
        Some(lists) => {
            if !lists.stale {
                let stale = BackendLists { stale: true, ..(*lists).clone() };
                backend.pins.publish(&backend.lists, stale);
                owner.publish();
            }
            BackendState::Degraded
        }
        None => BackendState::Failed,
    };
    backend.set_unreachable(state, refusal);
}

/// The lists of a backend, with their time to live. `None`: until the backend announces a change.
pub(super) struct FetchedLists {
    pub(super) lists: BackendLists,
    pub(super) definitions: Vec<PinDefinition>,
    pub(super) ttl: Option<Duration>,
}

/// Fetches all lists that the backend offers on a connection.
pub(super) async fn fetch_lists(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
) -> Result<BackendLists, Refusal> {
    fetch(link, connection).await.map(|fetched| fetched.lists)
}

pub(super) async fn fetch(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
) -> Result<FetchedLists, Refusal> {
    let unavailable = || {
        Refusal::new(
            ErrorKind::BackendUnavailable,
            format!("the handshake with backend {} is not over", link.backend.id),
        )
    };
    let agreed = connection.negotiated().ok_or_else(unavailable)?;
    let mut lists = BackendLists {
        server: agreed.clone(),
        tools: Vec::new(),
        prompts: Vec::new(),
        resources: Vec::new(),
        resource_templates: Vec::new(),
        stale: false,
        held: HeldParts::default(),
    };
    let (mut definitions, mut kept_for) = (Vec::new(), None);
    for kind in ListKind::ALL {
        if offered(kind, &agreed.capabilities) {
            let fetched = fetch_list(link, connection, kind).await?;
            *lists.entries_mut(kind) = fetched.entries;
            definitions.extend(fetched.definitions);
            kept_for = [kept_for, fetched.ttl].into_iter().flatten().min();
        }
    }
    if link.backend.era.to(link.backend.spec.protocol, Era::Stateless) == Some(Era::Stateless) {
        note_headers(link, connection, &mut lists.tools);
    }
    Ok(FetchedLists { lists, definitions, ttl: kept_for })
}

impl Link {
    /// Reads lists that the backend announced as changed on this link. If they differ from the
    /// shared ones, the clients of the link get them.
    pub fn read_own_lists(self: &Arc<Self>, kinds: &[ListKind]) {
        let has_sessions = || self.clients().iter().any(|one| one.client_era() == Era::Sessions);
        if self.backend.principal_lists.is_on() {
            return self.principal_lists_changed();
        }
        if self.is_catalog() || !has_sessions() || !self.lists.want(kinds) {
            return;
        }
        let link = self.clone();
        self.backend.shared.running.spawn(async move {
            loop {
                let kinds = link.lists.take_wanted();
                if kinds.is_empty() {
                    return;
                }
                link.wait_or_closed(REFRESH_DEBOUNCE).await;
                if let Some(connection) = link.live() {
                    read_own(&link, &connection, &kinds).await;
                }
                link.wait_or_closed(REFRESH_INTERVAL_MIN).await;
            }
        });
    }

    /// Makes the lists of the link's principal due, because the backend announced a change to it.
    fn principal_lists_changed(&self) {
        let Some(principal) = &self.principal else { return };
        self.backend.principal_lists.expire_of(principal);
        if let Some(client) = self.clients().first() {
            client.on_principal_lists_due();
        }
    }

    /// Reads every list over this link, which may open. Used for a session whose backend may show
    /// it lists of its own.
    pub async fn read_all_lists(self: &Arc<Self>) {
        if let Ok(connection) = self.connection().await {
            read_own(self, &connection, &ListKind::ALL).await;
        }
    }
}

async fn read_own(link: &Arc<Link>, connection: &Arc<Connection>, kinds: &[ListKind]) {
    let Some(agreed) = connection.negotiated().filter(|_| connection.modern().is_none()) else {
        return;
    };
    let mut has_changed = false;
    for kind in kinds.iter().copied().filter(|kind| offered(*kind, &agreed.capabilities)) {
        let read = fetch_list(link, connection, kind).await;
        let Ok(FetchedList { entries, definitions, .. }) = read else { continue };
        let entries = link.backend.pins.admit_own(kind, entries, definitions).await;
        let Some(shared) = link.backend.lists.load_full() else { continue };
        let total = &link.backend.shared.own_lists_bytes;
        has_changed |= link.lists.store(kind, entries, &shared, total).unwrap_or_else(|| {
            tracing::warn!(backend = %link.backend.id, list = kind.member(), "a list of one session finds no room, the shared one applies");
            true
        });
    }
    if connection.is_closed() {
        has_changed |= link.lists.clear();
    }
    if has_changed {
        link.clients().iter().for_each(|client| client.on_own_lists_changed());
    }
}

/// Fetches the tools again for the arguments that they want repeated in headers. Called after the
/// backend rejected the headers of a request.
pub(super) async fn refresh_tools(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
) -> Result<(), Failure> {
    let mut fetched = fetch_list(link, connection, ListKind::Tools)
        .await
        .map_err(|refusal| Failure::Protocol(refusal.message))?;
    note_headers(link, connection, &mut fetched.entries);
    link.backend.refresh();
    Ok(())
}

/// Stores the arguments that each tool wants repeated in headers. Over HTTP, a tool with an invalid
/// annotation is not callable and is left out (MCP 2026-07-28, Streamable HTTP).
fn note_headers(link: &Link, connection: &Connection, tools: &mut Vec<CatalogEntry>) {
    if !matches!(connection.wire(), WireSender::Http(_)) {
        return;
    }
    let mut by_tool = HashMap::new();
    tools.retain(|tool| match wanted_headers(tool) {
        Ok(headers) if headers.is_empty() => true,
        Ok(headers) => {
            by_tool.insert(tool.key.clone(), headers);
            true
        }
        Err(_) if connection.modern().is_none() => true, // clients of earlier revisions call it
        Err(why) => {
            tracing::warn!(backend = %link.backend.id, tool = ?tool.key, %why, "a tool cannot be called and is left out of the catalog");
            false
        }
    });
    link.backend.note_param_headers(by_tool, link.principal.is_none());
}

fn wanted_headers(tool: &CatalogEntry) -> Result<Vec<ParamHeader>, BadAnnotation> {
    if memchr::memmem::find(&tool.native, b"x-mcp-header").is_none() {
        return Ok(Vec::new());
    }
    let limits = json::Limits { bytes_max: tool.native.len(), ..json::Limits::default() };
    let document =
        json::Document::parse(&tool.native, &limits).map_err(|_| BadAnnotation::Schema)?;
    document.root().get("inputSchema").map_or(Ok(Vec::new()), |schema| param_headers(schema.raw()))
}

/// Returns the side that runs calls as tasks.
fn task_host(link: &Link, connection: &Connection) -> TaskHost {
    let has_tasks =
        connection.negotiated().is_some_and(|agreed| agreed.capabilities.tasks_tools_call);
    if link.backend.shared.task_settings().enabled && !has_tasks {
        TaskHost::Broker
    } else {
        TaskHost::Backend
    }
}

fn offered(kind: ListKind, capabilities: &ServerCapabilities) -> bool {
    match kind {
        ListKind::Tools => capabilities.tools,
        ListKind::Prompts => capabilities.prompts,
        ListKind::Resources | ListKind::ResourceTemplates => capabilities.resources,
    }
}

fn method(kind: ListKind) -> Method {
    match kind {
        ListKind::Tools => Method::ToolsList,
        ListKind::Prompts => Method::PromptsList,
        ListKind::Resources => Method::ResourcesList,
        ListKind::ResourceTemplates => Method::ResourcesTemplatesList,
    }
}

/// One list as it was read.
#[derive(Default)]
struct FetchedList {
    entries: Vec<CatalogEntry>,
    /// Definitions of the entries, if they are pinned.
    definitions: Vec<PinDefinition>,
    ttl: Option<Duration>,
}

/// Fetches every page of one list. Cursors of the backend are returned unchanged (MCP 2025-11-25,
/// Pagination). The limits end an endless or circular list.
async fn fetch_list(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    kind: ListKind,
) -> Result<FetchedList, Refusal> {
    let backend = &link.backend;
    let host = task_host(link, connection);
    let mut fetched = FetchedList::default();
    let mut cursor: Option<String> = None;
    let mut seen = HashSet::new();
    for _page in 0..LIST_PAGES_MAX {
        let params =
            cursor.as_ref().map(|cursor| format!("{{\"cursor\":{}}}", json::quote(cursor)));
        let answer = connection
            .ask(link, method(kind), params.as_deref().map(str::as_bytes))
            .await
            .map_err(|failure| backend.refusal(&failure))?;
        if connection.modern().is_some() && answer.kind == Kind::Result {
            let ttl = Duration::from_millis(
                CacheHint::read(answer.bytes(answer.result).unwrap_or_default()).ttl_ms,
            );
            fetched.ttl = Some(fetched.ttl.map_or(ttl, |kept| kept.min(ttl)));
        }
        let Some(page) = read_answer(kind, backend, host, &answer)? else {
            return Ok(fetched);
        };
        warn_of_left_out(backend, kind, &page.skipped);
        fetched.entries.extend(page.entries);
        fetched.definitions.extend(page.definitions);
        let (entries, bytes) = (fetched.entries.len(), size(&fetched.entries));
        if entries > LIST_ENTRIES_MAX || bytes > LIST_BYTES_MAX {
            tracing::warn!(backend = %backend.id, list = kind.member(), entries, bytes, "the list is too long and was cut");
            cut(&mut fetched);
            return Ok(fetched);
        }
        match page.next_cursor {
            None => return Ok(fetched),
            Some(next) if !seen.insert(next.clone()) => {
                tracing::warn!(backend = %backend.id, list = kind.member(), "the list repeats a cursor and was cut");
                return Ok(fetched);
            }
            next => cursor = next,
        }
    }
    tracing::warn!(backend = %backend.id, list = kind.member(), max = LIST_PAGES_MAX, "the list has too many pages and was cut");
    Ok(fetched)
}

fn size(entries: &[CatalogEntry]) -> usize {
    entries.iter().map(|entry| entry.native.len()).sum()
}

/// Keeps the entries that fit the limits.
fn cut(fetched: &mut FetchedList) {
    let mut bytes = 0;
    let fitting = fetched.entries.iter().take(LIST_ENTRIES_MAX).take_while(|entry| {
        bytes += entry.native.len();
        bytes <= LIST_BYTES_MAX
    });
    let fitting = fitting.count();
    fetched.entries.truncate(fitting);
    fetched.definitions.truncate(fitting);
}

fn warn_of_left_out(backend: &Backend, kind: ListKind, left_out: &[SkippedEntry]) {
    for one in left_out.iter().take(LEFT_OUT_LOGGED_MAX) {
        tracing::warn!(backend = %backend.id, list = kind.member(), key = ?one.key, why = one.reason, "an entry is left out of the catalog");
    }
    if left_out.len() > LEFT_OUT_LOGGED_MAX {
        tracing::warn!(backend = %backend.id, list = kind.member(), count = left_out.len(), "many entries are left out of the catalog");
    }
}

/// Reads one page. Returns `None` if the backend does not have this list after all.
fn read_answer(
    kind: ListKind,
    backend: &Backend,
    host: TaskHost,
    answer: &Message,
) -> Result<Option<catalog::ListPage>, Refusal> {
    let Some(result) = answer.bytes(answer.result) else {
        if answer.kind == Kind::Error {
            tracing::debug!(backend = %backend.id, list = kind.member(), "the backend refused a list it announced");
        }
        return Ok(None);
    };
    let told = downgrade::downgrade_tools_result(result).filter(|_| {
        kind == ListKind::Tools
            && backend.era.known().is_some_and(|known| known != EraSupport::Sessions)
    });
    // The definitions are read from the words that the rest of the broker uses.
    let result = told.as_deref().unwrap_or(result);
    catalog::read_page_pinned(kind, &backend.id, host, result, backend.pins.ignored())
        .map(Some)
        .map_err(|why| {
            backend.refusal(&Failure::Protocol(format!("{}: {why}", method(kind).name())))
        })
}
