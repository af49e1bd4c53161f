//! Fetches the lists of a backend over an open connection.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
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
    catalog::{
        self, BackendLists, CatalogEntry, CatalogMarks, ListAllowance, ListKind, SkippedEntry,
        TaskHost,
    },
    limits::{
        CATALOG_MARKS_MAX, CURSOR_BYTES_MAX, LIST_PAGE_BYTES_AT_ONCE_MAX, LIST_PAGES_MAX,
        REFRESH_INTERVAL_MIN, pins::SKIPPED_LOGGED_MAX,
    },
    pins::PinDefinition,
};

use super::{
    backend::Backend,
    link::{Era, EraSupport, Link, connection::Connection, failure::Failure, wire::WireSender},
    tools_read::ToolsRead,
};
use crate::long_work::run_long_work;

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
            format!("the handshake with backend {} is not complete", link.backend.id),
        )
    };
    let agreed = connection.negotiated().ok_or_else(unavailable)?;
    let mut lists = BackendLists::empty(agreed.clone());
    let (mut definitions, mut kept_for) = (Vec::new(), None);
    for kind in ListKind::ALL {
        if offered(kind, &agreed.capabilities) {
            let fetched = fetch_list(link, connection, kind).await?;
            *lists.entries_mut(kind) = fetched.entries;
            definitions.extend(fetched.definitions);
            lists.marks.extend(&fetched.marks);
            kept_for = [kept_for, fetched.ttl].into_iter().flatten().min();
        }
    }
    if link.backend.era.to(link.backend.spec.protocol, Era::Stateless) == Some(Era::Stateless) {
        record_headers(link, connection, &mut lists.tools);
    }
    Ok(FetchedLists { lists, definitions, ttl: kept_for })
}

/// Fetches the tools again for the arguments that they want repeated in headers, or waits for the
/// next read of them. Called after the backend refused the headers of a request.
pub(super) async fn refresh_tools(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
) -> Result<(), Failure> {
    let (backend, refused_at) = (&link.backend, Instant::now());
    let reads = match backend.principal_lists.is_on() {
        true => &link.lists.last_tools_read,
        false => &backend.last_tools_read,
    };
    let mut last = reads.lock().await;
    if let Some(read) = &*last {
        if let Some(outcome) = read.outcome_for(link.principal.as_ref(), refused_at) {
            return outcome;
        }
        tokio::time::sleep(REFRESH_INTERVAL_MIN.saturating_sub(read.started.elapsed())).await;
    }
    let read = last.insert(ToolsRead::start(link.principal.clone()));
    let outcome = read_tools(connection, link).await;
    read.outcome = Some(outcome.clone());
    outcome
}

async fn read_tools(connection: &Arc<Connection>, link: &Arc<Link>) -> Result<(), Failure> {
    let mut fetched = fetch_list(link, connection, ListKind::Tools)
        .await
        .map_err(|refusal| Failure::Protocol(refusal.message))?;
    record_headers(link, connection, &mut fetched.entries);
    link.backend.refresh();
    Ok(())
}

/// Stores the arguments that each tool wants repeated in headers. Over HTTP, a tool with an invalid
/// annotation is not callable and is left out (MCP 2026-07-28, Streamable HTTP).
fn record_headers(link: &Link, connection: &Connection, tools: &mut Vec<CatalogEntry>) {
    if !matches!(connection.wire(), WireSender::Http(_)) {
        return;
    }
    let mut by_tool = HashMap::new();
    tools.retain(|tool| match wanted_headers(tool) {
        Ok(headers) => {
            by_tool.entry(tool.key.clone()).or_insert(headers); // of several, the first counts
            true
        }
        Err(_) if connection.stateless().is_none() => true, // clients of earlier revisions call it
        Err(why) => {
            tracing::warn!(tenant = %link.backend.tenant, backend = %link.backend.id, tool = ?tool.key, %why, "clients cannot call a tool of the backend: the catalog omits it");
            false
        }
    });
    by_tool.retain(|_, headers| !headers.is_empty());
    match &link.principal {
        None => link.backend.param_headers.replace(by_tool),
        // The principal may see a part of the tools.
        Some(_) => link.backend.param_headers.add(&by_tool),
    }
}

fn wanted_headers(tool: &CatalogEntry) -> Result<Vec<ParamHeader>, BadAnnotation> {
    if memchr::memmem::find(&tool.native, b"x-mcp-header").is_none() {
        return Ok(Vec::new());
    }
    let limits = json::Limits::with_bytes_max(tool.native.len());
    let document =
        json::Document::parse(&tool.native, &limits).map_err(|_| BadAnnotation::Schema)?;
    document.root().get("inputSchema").map_or(Ok(Vec::new()), |schema| param_headers(schema.raw()))
}

/// Returns the side that runs calls as tasks.
fn task_host(link: &Link, connection: &Connection) -> TaskHost {
    let has_tasks =
        connection.negotiated().is_some_and(|agreed| agreed.capabilities.tasks_tools_call);
    if link.backend.context.task_settings().enabled && !has_tasks {
        TaskHost::Broker
    } else {
        TaskHost::Backend
    }
}

pub(super) fn offered(kind: ListKind, capabilities: &ServerCapabilities) -> bool {
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
pub(super) struct FetchedList {
    pub(super) entries: Vec<CatalogEntry>,
    /// Definitions of the entries, if they are pinned.
    pub(super) definitions: Vec<PinDefinition>,
    /// Marks of the catalogs behind the list.
    marks: CatalogMarks,
    ttl: Option<Duration>,
}

/// Fetches one list. Of several entries with one name or URI, clients see the first.
pub(super) async fn fetch_list(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    kind: ListKind,
) -> Result<FetchedList, Refusal> {
    let mut fetched = fetch_pages(link, connection, kind).await?;
    let backend = &link.backend;
    warn_of_skipped(backend, kind, &catalog::repeated_entries(&fetched.entries));
    // Pins that hold objects compare all entries, also those that the catalog leaves out.
    if !backend.pins.mode.holds_unknown() {
        catalog::remove_repeated(&mut fetched.entries, &mut fetched.definitions);
    }
    Ok(fetched)
}

/// Fetches every page of one list. Cursors of the backend are returned unchanged (MCP 2025-11-25,
/// Pagination). The limits end an endless or circular list.
async fn fetch_pages(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    kind: ListKind,
) -> Result<FetchedList, Refusal> {
    let backend = &link.backend;
    let host = task_host(link, connection);
    let mut fetched = FetchedList::default();
    let (mut cursor, mut cursors): (Option<String>, _) = (None, SeenCursors::default());
    let mut allowance = ListAllowance::WHOLE;
    for _page in 0..LIST_PAGES_MAX {
        let params = list_params(backend, connection, cursor.as_deref());
        let answer = connection
            .control_request(link, method(kind), params.as_deref().map(str::as_bytes))
            .await
            .map_err(|failure| backend.report_failure(&failure))?;
        fetched.marks.extend(&marks_behind(backend, &answer)?);
        if connection.stateless().is_some() && answer.kind == Kind::Result {
            let ttl = Duration::from_millis(
                CacheHint::read(answer.bytes(answer.result).unwrap_or_default()).ttl_ms,
            );
            fetched.ttl = Some(fetched.ttl.map_or(ttl, |kept| kept.min(ttl)));
        }
        let Some(page) = read_answer(kind, link, host, &answer, allowance)? else {
            return Ok(fetched);
        };
        warn_of_skipped(backend, kind, &page.skipped);
        allowance = page.rest;
        fetched.entries.extend(page.entries);
        fetched.definitions.extend(page.definitions);
        if page.is_cut {
            let entries = fetched.entries.len();
            tracing::warn!(tenant = %backend.tenant, backend = %backend.id, list = kind.member(), entries, "the list is too long and was cut");
            return Ok(fetched);
        }
        let Some(next) = page.next_cursor else { return Ok(fetched) };
        if let Err(why) = cursors.add(&next) {
            tracing::warn!(tenant = %backend.tenant, backend = %backend.id, list = kind.member(), why, "the list was cut");
            return Ok(fetched);
        }
        cursor = Some(next);
    }
    tracing::warn!(tenant = %backend.tenant, backend = %backend.id, list = kind.member(), max = LIST_PAGES_MAX, "the list has too many pages and was cut");
    Ok(fetched)
}

/// Returns the params of a list request. A request of 2026-07-28 gets its `_meta` where it is sent.
fn list_params(backend: &Backend, connection: &Connection, cursor: Option<&str>) -> Option<String> {
    let cursor = cursor.map(|cursor| format!("\"cursor\":{}", json::quote(cursor)));
    let has_meta = connection.stateless().is_none();
    let meta = has_meta.then(|| format!("\"_meta\":{{{}}}", backend.mark.member()));
    let members: Vec<String> = cursor.into_iter().chain(meta).collect();
    (!members.is_empty()).then(|| format!("{{{}}}", members.join(",")))
}

/// Returns the marks of the catalogs behind a list. Refuses a list that contains the catalog of the
/// tenant.
fn marks_behind(backend: &Backend, answer: &Message) -> Result<CatalogMarks, Refusal> {
    let Some(marks) = CatalogMarks::of(answer) else { return Ok(CatalogMarks::default()) };
    let failure = if marks.contains(&backend.context.catalog_marks.of_catalog(&backend.tenant)) {
        Failure::CatalogLoop
    } else if marks.are_too_many() {
        let text =
            format!("more than {CATALOG_MARKS_MAX} catalogs of brokers are behind its lists");
        Failure::Protocol(text)
    } else {
        return Ok(marks);
    };
    Err(backend.report_failure(&failure))
}

/// The cursors of one list so far, as hashes: a backend may send long ones.
#[derive(Default)]
struct SeenCursors {
    hashes: HashSet<u64>,
    hasher: RandomState,
}

impl SeenCursors {
    /// Adds the next cursor. An error is the reason why it ends the list.
    fn add(&mut self, cursor: &str) -> Result<(), &'static str> {
        if cursor.len() > CURSOR_BYTES_MAX {
            return Err("a cursor is too long");
        }
        match self.hashes.insert(self.hasher.hash_one(cursor)) {
            true => Ok(()),
            false => Err("the backend repeats a cursor"),
        }
    }
}

fn warn_of_skipped(backend: &Backend, kind: ListKind, left_out: &[SkippedEntry]) {
    for one in left_out.iter().take(SKIPPED_LOGGED_MAX) {
        let key = backend.redactor.redact(&one.key.escape_debug());
        tracing::warn!(tenant = %backend.tenant, backend = %backend.id, list = kind.member(), key, why = one.reason, "an entry is left out of the catalog");
    }
    if left_out.len() > SKIPPED_LOGGED_MAX {
        tracing::warn!(tenant = %backend.tenant, backend = %backend.id, list = kind.member(), count = left_out.len(), "many entries are left out of the catalog");
    }
}

/// Returns whether the clients of the link have entries of a list.
fn has_entries(link: &Link, kind: ListKind) -> bool {
    let lists = match &link.principal {
        Some(principal) => link.backend.lists_of(principal),
        None => link.backend.lists.load_full(),
    };
    lists.is_some_and(|lists| !lists.entries(kind).is_empty())
}

/// Reads one page. Returns `None` if the backend does not have this list after all.
fn read_answer(
    kind: ListKind,
    link: &Link,
    host: TaskHost,
    answer: &Message,
    allowance: ListAllowance,
) -> Result<Option<catalog::ListPage>, Refusal> {
    let backend = &link.backend;
    let Some(result) = answer.bytes(answer.result) else {
        let code = downgrade::error_code(answer).unwrap_or_default();
        // An error must not empty a list that clients have. A backend that never had it may refuse
        // it, and offers the others.
        if code != ErrorKind::MethodNotFound.code() && has_entries(link, kind) {
            let text = format!("{}: the backend answered with error {code}", method(kind).name());
            return Err(backend.report_failure(&Failure::Protocol(text)));
        }
        tracing::debug!(tenant = %backend.tenant, backend = %backend.id, list = kind.member(), code, "the backend refused a list it announced");
        return Ok(None);
    };
    let converted = downgrade::downgrade_tools_result(result).filter(|_| {
        kind == ListKind::Tools
            && backend.era.known().is_some_and(|known| known != EraSupport::Sessions)
    });
    // The definitions are read from the form that the rest of the broker uses.
    let result = converted.as_deref().unwrap_or(result);
    let ignored = backend.pins.ignored();
    let read = || catalog::read_page_pinned(kind, &backend.id, host, result, ignored, allowance);
    let page = match result.len() > LIST_PAGE_BYTES_AT_ONCE_MAX {
        true => run_long_work(read),
        false => read(),
    };
    page.map(Some).map_err(|why| {
        backend.report_failure(&Failure::Protocol(format!("{}: {why}", method(kind).name())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_or_long_cursor_ends_a_list() {
        let mut cursors = SeenCursors::default();
        let longest = "c".repeat(CURSOR_BYTES_MAX);
        for cursor in ["", "a", "b", &longest] {
            assert_eq!(cursors.add(cursor), Ok(()));
        }
        assert_eq!(cursors.add("a"), Err("the backend repeats a cursor"));
        assert_eq!(cursors.add(&format!("{longest}c")), Err("a cursor is too long"));
    }
}
