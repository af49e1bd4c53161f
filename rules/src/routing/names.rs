//! Names of tools and prompts: which backend they lead to, and the refusal of those that lead
//! nowhere or that pins keep from clients.

use std::borrow::Cow;

use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::BackendId,
    json,
    method::Method,
};

use super::{Plan, quoted, required_text, supported};
use crate::{
    access::AccessCheck,
    catalog::{Catalog, FoundCall, ListKind, SearchTool, Target},
    endpoint::Endpoint,
    exposed_names,
};

/// Returns the backend of a request, as far as its names show it.
pub fn backend_of(message: &Message, endpoint: &Endpoint, catalog: &Catalog) -> Option<BackendId> {
    if let Endpoint::Single(backend) = endpoint {
        return Some(backend.clone());
    }
    match message.method {
        Method::ToolsCall => Some(called_target(message, catalog)?.backend.clone()),
        Method::PromptsGet => {
            Some(catalog.prompt(&message.text(message.fields.name)?)?.backend.clone())
        }
        Method::ResourcesRead => exposed_names::native_uri(&message.text(message.fields.uri)?)
            .map(|(backend, _)| backend),
        _ => None,
    }
}

/// Returns the target of the tool that is called at an endpoint of several backends. Where clients
/// search the tools, this is the tool that they found.
pub(super) fn called_target<'a>(call: &Message, catalog: &'a Catalog) -> Option<Cow<'a, Target>> {
    let name = call.text(call.fields.name)?;
    let Some(search) = catalog.search() else { return catalog.tool(&name) };
    SearchTool::parse(&name).filter(|tool| tool.calls_tools())?;
    let found = FoundCall::read(call.bytes(call.fields.arguments)).ok()?;
    search.target(&found.name).map(|(target, _)| Cow::Borrowed(target))
}

/// Returns the target of a name of a tool or prompt on the aggregated endpoint.
fn lookup<'a>(catalog: &'a Catalog, kind: ListKind, name: &str) -> Option<Cow<'a, Target>> {
    match kind {
        ListKind::Prompts => catalog.prompt(name).map(Cow::Borrowed),
        _ => catalog.tool(name),
    }
}

/// Returns the refusal of an object that pins keep from clients.
pub fn held() -> Refusal {
    Refusal::new(
        ErrorKind::ToolHeld,
        "clients cannot use this until an operator approves its definition",
    )
}

/// Refuses a name of a backend that pins keep from clients: `unknown` for one that no list shows.
pub(super) fn check_held(
    catalog: &Catalog,
    backend: &BackendId,
    kind: ListKind,
    name: &str,
    unknown: impl FnOnce() -> Refusal,
) -> Result<(), Refusal> {
    if catalog.is_held(backend, kind, name) {
        return Err(held());
    }
    match catalog.holds_unlisted(backend) && !catalog.has(backend, kind, name) {
        true => Err(unknown()),
        false => Ok(()),
    }
}

/// Returns the refusal of a tool that an app calls by its own name, if tools of several backends have
/// that name.
pub(super) fn ambiguous_tool(message: &Message, catalog: &Catalog) -> Option<Refusal> {
    let name = message.text(message.fields.name)?;
    let meant = catalog.app_tools(&name);
    let least = if catalog.is_app_tool_held(&name) { 1 } else { 2 };
    (meant.len() >= least).then(|| {
        let text = format!("several servers with apps have a tool {}", quoted(&name));
        Refusal::new(ErrorKind::ToolAmbiguous, text).with("tools", meant)
    })
}

/// Returns the refusal of a name that does not exist, or that the caller may not see.
pub(super) fn unknown_name(message: &Message, missing: ErrorKind) -> Refusal {
    let name = message.text(message.fields.name).unwrap_or_default();
    Refusal::new(missing, format!("unknown name {}", quoted(&name)))
}

pub(super) fn by_name(
    message: &Message,
    endpoint: &Endpoint,
    catalog: &Catalog,
    access: Option<&AccessCheck<'_>>,
    kind: ListKind,
) -> Result<(Plan, String), Refusal> {
    let missing = match kind {
        ListKind::Prompts => ErrorKind::PromptNotFound,
        _ => ErrorKind::ToolNotFound,
    };
    let (span, name) = required_text(message, message.fields.name, "params.name")?;
    let (plan, native) = match endpoint {
        // The backend resolves its own names, listed or not.
        Endpoint::Single(backend) => {
            check_held(catalog, backend, kind, &name, || unknown_name(message, missing))?;
            (Plan::new(backend.clone(), Vec::new()), name.into_owned())
        }
        Endpoint::Aggregated | Endpoint::Toolset(_) => {
            let target = lookup(catalog, kind, &name).ok_or_else(|| {
                if catalog.is_exposed_held(kind, &name) {
                    return held();
                }
                if let Some(access) = access
                    && let Some(hidden) = lookup(access.full_catalog(), kind, &name)
                {
                    access.record_hidden(message.method, &hidden);
                }
                unknown_name(message, missing)
            })?;
            let named = vec![(span, json::quote(&target.name).into_bytes())];
            let mut plan = Plan::new(target.backend.clone(), named);
            plan.result_tokens = target.result_tokens;
            if let Some(fixed) = &target.fixed {
                plan.fix_arguments(message, fixed)?;
            }
            (plan, target.name.clone())
        }
    };
    supported(catalog, &plan.backend, message.method)?;
    Ok((plan, native))
}
