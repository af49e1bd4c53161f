//! Calls at the endpoint of a toolset whose tools are searched and not listed.
//!
//! A call of `call_tool_…` becomes the call that it stands for, before the access policy is asked.
//! Everything that follows sees only that call: schemas, rates, tasks, progress and the audit log.

use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    json::{self, Span},
};

use super::{Decision, Plan, held, quoted, refuse_task, required_text, supported};
use crate::{
    access::AccessCheck,
    catalog::{Catalog, FoundCall, ListKind, SearchTool, Target, ToolSearch},
};

/// What a call of one of the five tools leads to.
pub(super) enum Searched {
    Answered(Decision),
    /// The call of the found tool, and its name at the backend.
    Called(Plan, String),
}

pub(super) fn searched(
    message: &Message,
    catalog: &Catalog,
    access: Option<&AccessCheck<'_>>,
    search: &ToolSearch,
    offers_tasks: bool,
) -> Result<Searched, Refusal> {
    let (span, name) = required_text(message, message.fields.name, "params.name")?;
    let unknown = |name: &str| {
        Refusal::new(ErrorKind::ToolNotFound, format!("unknown name {}", quoted(name)))
    };
    let tool = SearchTool::parse(&name).ok_or_else(|| unknown(&name))?;
    let arguments = message.bytes(message.fields.arguments);
    if !tool.calls_tools() {
        refuse_task(message, offers_tasks)?;
        let answer = match tool {
            SearchTool::Search => search.search(arguments)?,
            _ if is_held(catalog, search, &FoundCall::read(arguments)?.name) => return Err(held()),
            _ => search.describe(arguments)?,
        };
        return Ok(Searched::Answered(Decision::Answer(answer)));
    }
    let call = FoundCall::read(arguments)?;
    let Some((target, traits)) = search.target(&call.name) else {
        if is_held(catalog, search, &call.name) {
            return Err(held());
        }
        if let Some(access) = access
            && let Some(hidden) = access.full_catalog().tool(&call.name)
        {
            access.record_hidden(message.method, &hidden);
        }
        return Err(unknown(&call.name));
    };
    let wanted = SearchTool::caller_of(traits);
    if wanted != tool {
        let text = format!("this tool must be called with {}", wanted.name());
        return Err(Refusal::new(ErrorKind::InvalidParams, text).with("call_with", wanted.name()));
    }
    supported(catalog, &target.backend, message.method)?;
    let plan = found_plan(message, span, target, &call)?;
    Ok(Searched::Called(plan, target.name.clone()))
}

/// Returns whether pins keep a tool from clients, and no other tool has its name.
fn is_held(catalog: &Catalog, search: &ToolSearch, name: &str) -> bool {
    search.target(name).is_none() && catalog.is_exposed_held(ListKind::Tools, name)
}

fn found_plan(
    message: &Message,
    span: Span,
    target: &Target,
    call: &FoundCall,
) -> Result<Plan, Refusal> {
    let named = vec![(span, json::quote(&target.name).into_bytes())];
    let mut plan = Plan::new(target.backend.clone(), named);
    plan.result_tokens = target.result_tokens;
    let arguments = match &target.fixed {
        Some(fixed) => fixed.apply(call.arguments.as_deref())?,
        None => call.arguments.clone().unwrap_or_else(|| "{}".into()),
    };
    // The calling tool has arguments, in which the name was.
    if let Some(span) = message.fields.arguments {
        plan.edits.push((span, arguments.to_vec()));
    }
    plan.arguments = Some(arguments);
    Ok(plan)
}
