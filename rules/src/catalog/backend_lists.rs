//! The lists of one backend, as the broker fetched them page by page.

use std::{borrow::Cow, sync::Arc};

use aws_lc_rs::digest;
use bytes::Bytes;
use protocol::{
    envelope::OWN_META,
    handshake::InitializeResult,
    ids::BackendId,
    json::{self, Document, Tape, TapeValue, ValueKind},
    method::Method,
    splice::Splice,
};

use records::PinKind;

use super::{
    Offer, alike,
    fixed_arguments::FixedArguments,
    held::HeldParts,
    marks::CatalogMarks,
    member_types,
    tool_traits::{TaskHost, ToolTraits, with_task_support},
};
use crate::{
    exposed_names, exposure,
    limits::{
        LIST_BYTES_MAX, LIST_ENTRIES_MAX, LIST_ENTRY_VALUES_MAX, LIST_URIS_WITH_FORMS_BYTES_MAX,
    },
    pins::{self, EntryPin, Fingerprint, IgnoredMembers, PinDefinition},
    resource_uri::has_other_readings,
};

/// The four lists of a server.
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

    /// Returns the list that a method requests.
    pub fn of_method(method: Method) -> Option<Self> {
        match method {
            Method::ToolsList => Some(Self::Tools),
            Method::PromptsList => Some(Self::Prompts),
            Method::ResourcesList => Some(Self::Resources),
            Method::ResourcesTemplatesList => Some(Self::ResourceTemplates),
            _ => None,
        }
    }

    /// Returns the member of the list result that holds the entries.
    pub fn member(self) -> &'static str {
        match self {
            ListKind::Tools => "tools",
            ListKind::Prompts => "prompts",
            ListKind::Resources => "resources",
            ListKind::ResourceTemplates => "resourceTemplates",
        }
    }

    /// Returns the member that identifies an entry.
    fn key(self) -> &'static str {
        match self {
            ListKind::Tools | ListKind::Prompts => "name",
            ListKind::Resources => "uri",
            ListKind::ResourceTemplates => "uriTemplate",
        }
    }

    /// Returns the kind of the pins of its entries.
    pub fn pin_kind(self) -> PinKind {
        match self {
            ListKind::Tools => PinKind::Tool,
            ListKind::Prompts => PinKind::Prompt,
            ListKind::Resources => PinKind::Resource,
            ListKind::ResourceTemplates => PinKind::Template,
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
#[derive(Debug, Clone, PartialEq)]
pub struct CatalogEntry {
    /// Name or URI at the backend.
    pub key: String,
    /// Name or URI on the aggregated endpoint.
    pub exposed_key: String,
    /// The backend's own bytes, without members of `_meta` that only the broker sets, and without
    /// members of a wrong type. A tool that the broker runs as a task has another task support.
    pub native: Bytes,
    /// The entry with the exposed name.
    pub exposed: Bytes,
    /// Traits as the backend declares them. Access rules decide by these.
    pub traits: ToolTraits,
    /// Traits as the endpoint lists them. A toolset can make hints stricter.
    pub listed_traits: ToolTraits,
    /// The clients that its backend offers it to.
    pub offer: Offer,
    /// Digest of the backend's own bytes, without the `execution` of a tool and without members of
    /// `_meta` that only the broker sets. It shows whether a tool has changed.
    pub definition: DefinitionDigest,
    pub pin: EntryPin,
    /// Arguments that the broker sets in every call. Only in the catalog of a toolset.
    pub fixed: Option<Arc<FixedArguments>>,
    /// Estimated tokens of a result at most. Only in the catalog of a toolset.
    pub result_tokens: Option<u32>,
    /// Position among the entries of a toolset: lower ones come first.
    pub rank: u32,
}

impl CatalogEntry {
    pub(super) fn identity(&self) -> ToolIdentity {
        ToolIdentity { definition: self.definition, pin: self.pin.fingerprint }
    }

    /// Returns the `inputSchema` of a tool, as its backend wrote it.
    pub fn input_schema(&self) -> Option<Bytes> {
        let document =
            Document::parse(&self.native, &json::Limits::with_bytes_max(self.native.len())).ok()?;
        document.root().get("inputSchema").map(|schema| Bytes::copy_from_slice(schema.raw()))
    }

    /// Returns the URIs of the user interfaces that a tool links, as its backend names them.
    pub fn ui_links(&self) -> Vec<String> {
        if !self.traits.has_ui {
            return Vec::new(); // most tools: their text need not be searched
        }
        let limits = json::Limits::with_bytes_max(self.native.len());
        let Ok(tape) = Tape::parse(&self.native, &limits) else { return Vec::new() };
        let links = tape.root().get("_meta").and_then(|meta| exposure::ui_links(meta).ok());
        links.into_iter().flatten().map(|(_, uri)| uri.into_owned()).collect()
    }

    /// Returns the tool without its links to a user interface. Its text results remain.
    pub fn without_ui_links(&self) -> Self {
        Self {
            native: exposure::without_ui_links(&self.native),
            exposed: exposure::without_ui_links(&self.exposed),
            traits: ToolTraits { has_ui: false, ..self.traits },
            listed_traits: ToolTraits { has_ui: false, ..self.listed_traits },
            ..self.clone()
        }
    }
}

/// SHA-256 of an entry as its backend lists it, without the `execution` of a tool.
pub type DefinitionDigest = [u8; 32];

/// Identifies the definition of a tool that a person looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolIdentity {
    pub definition: DefinitionDigest,
    /// Hash of the tool's pin. `None`: the tool is not pinned.
    pub pin: Option<Fingerprint>,
}

impl ToolIdentity {
    /// Returns whether the tool is as it was with this definition and pin. If both have a pin, the
    /// pins count.
    pub fn is_as(&self, definition: &DefinitionDigest, pin: Option<&str>) -> bool {
        match (pin, self.pin) {
            (Some(before), Some(now)) => before == now.to_string(),
            _ => *definition == self.definition,
        }
    }
}

/// An entry of a backend's list that was left out, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedEntry {
    pub key: String,
    pub reason: &'static str,
}

impl SkippedEntry {
    /// Keeps the beginning of the name, which the log shows.
    pub(super) fn of(key: &str, reason: &'static str) -> Self {
        Self { key: key.chars().take(80).collect(), reason }
    }
}

/// The last good copy of one backend's lists.
#[derive(Debug, Clone, PartialEq)]
pub struct BackendLists {
    /// The result of the handshake.
    pub server: Arc<InitializeResult>,
    pub tools: Vec<CatalogEntry>,
    pub prompts: Vec<CatalogEntry>,
    pub resources: Vec<CatalogEntry>,
    pub resource_templates: Vec<CatalogEntry>,
    /// True if the backend is unreachable and the lists may be outdated.
    pub stale: bool,
    /// What else is kept from clients.
    pub held: HeldParts,
    /// Marks of the catalogs behind the lists, if the backend is a broker.
    pub marks: CatalogMarks,
}

impl BackendLists {
    /// Returns whether any of the lists has an entry.
    pub fn has_entries(&self) -> bool {
        ListKind::ALL.iter().any(|kind| !self.entries(*kind).is_empty())
    }

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

/// A parsed page of a backend's list.
#[derive(Debug, Default)]
pub struct ListPage {
    pub entries: Vec<CatalogEntry>,
    pub skipped: Vec<SkippedEntry>,
    /// Definitions of the entries, if they are pinned.
    pub definitions: Vec<PinDefinition>,
    pub next_cursor: Option<String>,
    /// The page has more than the broker keeps.
    pub is_cut: bool,
    /// What the broker keeps of the following pages.
    pub rest: ListAllowance,
}

/// What the broker still keeps of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListAllowance {
    pub entries: usize,
    pub bytes: usize,
    /// Bytes of URIs that servers may read as other ones. Access rules compute all their forms.
    pub uri_bytes: usize,
}

impl ListAllowance {
    /// The allowance of a list that has not begun.
    pub const WHOLE: Self = Self {
        entries: LIST_ENTRIES_MAX,
        bytes: LIST_BYTES_MAX,
        uri_bytes: LIST_URIS_WITH_FORMS_BYTES_MAX,
    };
}

/// Returns the bytes of an entry's URIs that servers may read as other ones.
fn bytes_of_uris_with_forms(kind: ListKind, entry: &CatalogEntry) -> usize {
    let bytes = |uri: &str| if has_other_readings(uri) { uri.len() } else { 0 };
    match kind {
        ListKind::Tools => entry.ui_links().iter().map(|link| bytes(link)).sum(),
        ListKind::Resources | ListKind::ResourceTemplates => bytes(&entry.key),
        ListKind::Prompts => 0,
    }
}

/// Parses the result of a list request. Invalid entries are left out, each with its reason. Only a
/// result that is not a list is an error.
pub fn read_page(
    kind: ListKind,
    backend: &BackendId,
    host: TaskHost,
    result: &[u8],
) -> Result<ListPage, &'static str> {
    read_page_pinned(kind, backend, host, result, None, ListAllowance::WHOLE)
}

/// Parses a page as [`read_page`] does, and reads the definitions of its entries. `pinned` holds
/// the members that are no part of them. Ends at the first entry that is not within `allowance`.
pub fn read_page_pinned(
    kind: ListKind,
    backend: &BackendId,
    host: TaskHost,
    result: &[u8],
    pinned: Option<&IgnoredMembers>,
    mut allowance: ListAllowance,
) -> Result<ListPage, &'static str> {
    let limits = json::Limits::with_bytes_max(result.len());
    let tape = Tape::parse(result, &limits).map_err(|_| "the list is not valid JSON")?;
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
        if allowance.entries == 0 {
            page.is_cut = true;
            break;
        }
        let mut read = match read_foreign_entry(kind, backend, host, entry) {
            Ok(read) => read,
            Err(left_out) => {
                page.skipped.push(left_out);
                continue;
            }
        };
        let Some(bytes) = allowance.bytes.checked_sub(read.native.len()) else {
            page.is_cut = true;
            break;
        };
        let with_forms = bytes_of_uris_with_forms(kind, &read);
        let Some(uri_bytes) = allowance.uri_bytes.checked_sub(with_forms) else {
            let reason = "too many URIs of the list have other spellings";
            page.skipped.push(SkippedEntry::of(&read.key, reason));
            continue;
        };
        allowance = ListAllowance { entries: allowance.entries - 1, bytes, uri_bytes };
        if let Some(ignored) = pinned {
            let (kind, raw) = (kind.pin_kind(), entry.raw());
            let definition = PinDefinition::of_entry(kind, &read.key, raw, ignored);
            read.pin = definition.entry_pin();
            page.definitions.push(definition);
        }
        page.entries.push(read);
    }
    page.rest = allowance;
    Ok(page)
}

/// Reads an entry without the members of `_meta` that only the broker sets.
fn read_foreign_entry(
    kind: ListKind,
    backend: &BackendId,
    host: TaskHost,
    entry: TapeValue<'_>,
) -> Result<CatalogEntry, SkippedEntry> {
    let is_own = |key: &str| key.starts_with(OWN_META);
    let forged = entry.get("_meta").filter(|meta| meta.members().any(|member| is_own(&member.key)));
    let Some(meta) = forged else { return read_entry(kind, backend, host, entry) };
    let text = Bytes::copy_from_slice(entry.raw());
    let span = exposure::shifted(meta.span(), entry.span().start);
    let text = Splice::new(&text).retain_members(span, |key| !is_own(key)).finish();
    match Tape::parse(&text, &json::Limits::with_bytes_max(text.len())) {
        Ok(tape) => read_entry(kind, backend, host, tape.root()),
        Err(_) => Err(SkippedEntry { key: String::new(), reason: "its _meta cannot be read" }),
    }
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
    let skipped = |reason| SkippedEntry::of(&key, reason);
    // Readers differ in which of two members they use: a second name could pass for another
    // backend's.
    named
        .map_err(|_| skipped("it has two names or URIs, in the same or another letter case"))?
        .filter(|_| !key.is_empty())
        .ok_or_else(|| skipped("it has no name or URI"))?;
    check_entry(kind, &key, entry).map_err(skipped)?;
    let definition = definition_digest(kind, entry);
    let repaired = member_types::repaired(kind, &key, entry).map_err(skipped)?;
    let repaired_tape = repaired.as_ref().and_then(parse_whole);
    let entry = repaired_tape.as_ref().map_or(entry, Tape::root);
    let hosted = hosted_text(kind, host, entry);
    let hosted_tape = hosted.as_ref().and_then(parse_whole);
    let entry = hosted_tape.as_ref().map_or(entry, Tape::root);
    let native = Bytes::copy_from_slice(entry.raw());
    let named = entry.get(kind.key()).ok_or_else(|| skipped("it has no name or URI"))?;
    let exposed_key = kind.exposed_key(backend, &key);
    let exposed = exposure::expose_entry(backend, &native, entry, named, &exposed_key)
        .map_err(|_| skipped(TWO_LINKS))?;
    let traits = ToolTraits::of(entry);
    Ok(CatalogEntry {
        key,
        exposed_key,
        native,
        exposed,
        traits,
        listed_traits: traits,
        offer: Offer::ALL,
        definition,
        pin: EntryPin::default(),
        fixed: None,
        result_tokens: None,
        rank: 0,
    })
}

/// Checks an entry with this name or URI. Returns the reason for which it is left out.
fn check_entry(kind: ListKind, key: &str, entry: TapeValue<'_>) -> Result<(), &'static str> {
    if entry.has_more_values_than(LIST_ENTRY_VALUES_MAX) {
        return Err("it has more JSON values than an entry of a list may have");
    }
    if !alike::is_read_alike(entry) {
        return Err(
            "it, its annotations or its execution have a member twice, or in another letter case",
        );
    }
    if key.len() > 2048 {
        return Err("its name or URI is longer than 2048 bytes");
    }
    if key.chars().any(char::is_control) {
        return Err("its name or URI holds control characters");
    }
    // The broker could not route a request for it, and some clients refuse a whole list for it.
    if kind == ListKind::Resources && !has_scheme(key) {
        return Err("its URI has no scheme");
    }
    if kind == ListKind::Tools
        && entry.get("inputSchema").is_none_or(|schema| schema.kind() != ValueKind::Object)
    {
        return Err("it has no inputSchema object");
    }
    let links = entry.get("_meta").and_then(|meta| exposure::ui_links(meta).ok());
    if links.into_iter().flatten().any(|(_, link)| link.len() > 2048) {
        return Err("the URI of its user interface is longer than 2048 bytes");
    }
    Ok(())
}

fn has_scheme(uri: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let is_scheme = |text: &str| !text.is_empty() && text.bytes().all(is_allowed);
    uri.split_once(':').is_some_and(|(scheme, _)| is_scheme(scheme))
}

/// Returns the digest of an entry's definition. The `execution` of a tool is not part of it.
fn definition_digest(kind: ListKind, entry: TapeValue<'_>) -> DefinitionDigest {
    let defining = match kind {
        ListKind::Tools => pins::without_execution(entry.raw()),
        _ => Cow::Borrowed(entry.raw()),
    };
    let mut definition = DefinitionDigest::default();
    definition.copy_from_slice(digest::digest(&digest::SHA256, &defining).as_ref());
    definition
}

/// Returns the text of a tool that the broker runs as a task. `None` if the backend's text stays
/// as it is.
fn hosted_text(kind: ListKind, host: TaskHost, entry: TapeValue<'_>) -> Option<Bytes> {
    (kind == ListKind::Tools && host == TaskHost::Broker)
        .then(|| with_task_support(entry))
        .flatten()
}

fn parse_whole(text: &Bytes) -> Option<Tape<'_>> {
    Tape::parse(text, &json::Limits::with_bytes_max(text.len())).ok()
}
