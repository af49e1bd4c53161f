//! Routing of a client's request: answered by the broker, or forwarded to one backend with edits.
//!
//! [`decide`] is the path from client to backend, from top to bottom. One parse serves policy,
//! route and the forwarded request, so nothing is read twice from different spans. Only the map of
//! the catalog resolves names.

mod names;
mod resources;
mod search;
mod template_values;

use std::borrow::Cow;

use bytes::Bytes;
use protocol::{
    capabilities::ServerCapabilities,
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::BackendId,
    json::{self, Span},
    method::{Direction, MessageKind, Method, Route},
    version::Version,
};

use super::{
    access::{AccessCheck, ApprovalTerms, Object},
    batch::{BATCH_TOOL, Batch},
    catalog::{Catalog, FixedArguments, ListKind, TaskSupport, ToolTraits},
    endpoint::Endpoint,
    log_level::LogLevel,
    result_budget::ResultPage,
};

use self::{
    names::{ambiguous_tool, by_name, called_target, check_held, unknown_name},
    resources::{by_reference, by_uri, kept_result},
    search::{Searched, searched},
};
pub use self::{
    names::{backend_of, held},
    resources::{resource_not_found, subscription},
};

/// The decision about a request.
#[derive(Debug)]
pub enum Decision {
    /// The broker answers with this result.
    Answer(Bytes),
    /// The broker answers with a page of a stored result.
    KeptResult(ResultPage),
    /// The broker makes several calls of the request.
    Batch(Box<Batch>),
    SetLevel(LogLevel),
    Subscribe(ResourceTarget),
    Unsubscribe(ResourceTarget),
    /// The request goes to one backend.
    Forward(Plan),
    /// The request goes to one backend, as a task.
    CreateTask(Plan, TaskTarget),
    /// The request is about a task.
    Task(TaskOperation),
    ListTasks,
}

impl Decision {
    /// Returns the backend that gets the request.
    pub fn goes_to(&self) -> Option<&BackendId> {
        match self {
            Self::Forward(plan) | Self::CreateTask(plan, _) => Some(&plan.backend),
            Self::Subscribe(target) | Self::Unsubscribe(target) => Some(&target.backend),
            Self::Answer(_)
            | Self::KeptResult(_)
            | Self::Batch(_)
            | Self::SetLevel(_)
            | Self::Task(_)
            | Self::ListTasks => None,
        }
    }

    /// Sets the terms of an approval. An earlier decision about the same request found them.
    pub fn set_approval(&mut self, terms: Option<Box<ApprovalTerms>>) {
        if let Self::Forward(plan) | Self::CreateTask(plan, _) = self {
            plan.approval = terms;
        }
    }

    /// Returns the called tool, by the backend's name.
    pub fn tool(&self) -> Option<&str> {
        match self {
            Self::Forward(plan) | Self::CreateTask(plan, _) => {
                plan.target.tool().map(|tool| tool.name.as_str())
            }
            _ => None,
        }
    }
}

/// The subject of a request about one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskOperation {
    State,
    Result,
    Cancel,
}

/// The tool that is to run as a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskTarget {
    /// The client's name of the tool.
    pub tool: String,
    /// The backend's name of the tool.
    pub native: String,
    pub traits: ToolTraits,
    /// As in [`CalledTool`].
    pub is_repeatable: bool,
}

/// A resource of one backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceTarget {
    pub backend: BackendId,
    pub uri: String,
    /// The client's URI of the resource.
    pub exposed_uri: String,
}

/// The target of a request and its edits, in addition to id and progress token.
#[derive(Debug)]
pub struct Plan {
    pub backend: BackendId,
    pub edits: Vec<(Span, Vec<u8>)>,
    /// Set when the session does not support `params.task`, which must not reach the backend.
    pub drop_task: bool,
    /// The target at the backend, by the backend's name.
    pub target: BackendTarget,
    /// The arguments that the backend gets, if they differ from those that the client sent.
    pub arguments: Option<Bytes>,
    /// Estimated tokens of the result at most.
    pub result_tokens: Option<u32>,
    /// Terms on which a person must approve the request before it leaves.
    pub approval: Option<Box<ApprovalTerms>>,
}

/// The target of a request at a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendTarget {
    Tool(CalledTool),
    Resource(String),
    Other,
}

impl BackendTarget {
    pub fn tool(&self) -> Option<&CalledTool> {
        match self {
            Self::Tool(tool) => Some(tool),
            Self::Resource(_) | Self::Other => None,
        }
    }
}

/// The called tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalledTool {
    /// The backend's name of the tool.
    pub name: String,
    /// Traits as the backend declares them.
    pub traits: ToolTraits,
    /// Whether a second call has no further effect, by the hints that the endpoint lists.
    pub is_repeatable: bool,
}

impl Plan {
    fn new(backend: BackendId, edits: Vec<(Span, Vec<u8>)>) -> Self {
        Self {
            backend,
            edits,
            drop_task: false,
            target: BackendTarget::Other,
            arguments: None,
            result_tokens: None,
            approval: None,
        }
    }
}

/// Text before the value of `arguments`, where a call without them gets some.
const ARGUMENTS_MEMBER: &[u8] = b"\"arguments\":";

impl Plan {
    /// Sets the arguments that an operator fixed.
    fn fix_arguments(&mut self, message: &Message, fixed: &FixedArguments) -> Result<(), Refusal> {
        let sent = message.fields.arguments;
        let text = fixed.apply(sent.map(|span| span.of(&message.frame)))?;
        match (sent, message.params) {
            (Some(span), _) => self.edits.push((span, text.to_vec())),
            // A call has a name, so another member follows.
            (None, Some(params)) => {
                let first = Span { start: params.start + 1, end: params.start + 1 };
                self.edits.push((first, [ARGUMENTS_MEMBER, &text, b","].concat()));
            }
            (None, None) => {}
        }
        self.arguments = Some(text);
        Ok(())
    }
}

/// Returns the arguments of a call as the backend gets them with these edits.
pub fn sent_arguments<'a>(message: &'a Message, edits: &'a [(Span, Vec<u8>)]) -> Option<&'a [u8]> {
    match message.fields.arguments {
        Some(span) => {
            let edited = edits.iter().find(|(edited, _)| *edited == span);
            Some(edited.map_or_else(|| span.of(&message.frame), |(_, text)| text))
        }
        None => edits
            .iter()
            .filter(|(span, _)| span.is_empty())
            .find_map(|(_, text)| text.strip_prefix(ARGUMENTS_MEMBER)?.strip_suffix(b",")),
    }
}

/// Decides about one request of an open session. `catalog` is what the caller sees; `access` decides
/// about objects that no list shows.
pub fn decide(
    message: &Message,
    endpoint: &Endpoint,
    advertised: &ServerCapabilities,
    version: Version,
    catalog: &Catalog,
    access: Option<&AccessCheck<'_>>,
) -> Result<Decision, Refusal> {
    let method = message.method;
    let info = method.info();
    let askable = info.kind == MessageKind::Request
        && info.direction != Direction::ServerToClient
        && method.exists_in(version);
    if !askable || matches!(info.route, Route::Handshake | Route::None) {
        return Err(unknown_method(message, version));
    }
    message.check_progress_token()?;
    if method == Method::ResourcesRead
        && endpoint.is_merged()
        && let Some(page) = kept_result(message)
    {
        return Ok(Decision::KeptResult(page));
    }
    // Before names are resolved: a feature that was not declared does not exist. Only the list of
    // tools is exempt. Common clients (the conformance suite's among them) request it of every
    // server. The empty list is then the correct answer.
    if method != Method::ToolsList {
        advertised.permits(method, version)?;
    }
    match info.route {
        Route::ByTool => tool_call(message, endpoint, advertised, catalog, access),
        Route::ByPrompt => {
            let (plan, prompt) = by_name(message, endpoint, catalog, access, ListKind::Prompts)?;
            if let Some(access) = access {
                let object = Object::Prompt { backend: &plan.backend, name: &prompt };
                access
                    .check(method, &object, || unknown_name(message, ErrorKind::PromptNotFound))?;
            }
            if plan.backend == BackendId::hosted() {
                let hosted = catalog.hosted_prompt(&prompt);
                let absent = || unknown_name(message, ErrorKind::PromptNotFound);
                let arguments = message.bytes(message.fields.arguments);
                return hosted.ok_or_else(absent)?.fill(arguments).map(Decision::Answer);
            }
            Ok(Decision::Forward(plan))
        }
        Route::ByUri => by_uri(message, endpoint, catalog, access),
        Route::ByReference => by_reference(message, endpoint, catalog, access),
        Route::ByTask => about_task(message, version),
        _ => locally(message, endpoint, catalog, version),
    }
}

fn locally(
    message: &Message,
    endpoint: &Endpoint,
    catalog: &Catalog,
    version: Version,
) -> Result<Decision, Refusal> {
    let list = |kind| {
        let cursor = message.text(message.fields.cursor);
        if message.fields.cursor.is_some() && cursor.is_none() {
            return Err(Refusal::new(ErrorKind::InvalidParams, "params.cursor must be a string"));
        }
        catalog.list(endpoint, kind, cursor.as_deref()).map(Decision::Answer)
    };
    match message.method {
        Method::Ping => Ok(Decision::Answer(Bytes::from_static(b"{}"))),
        Method::ToolsList => list(ListKind::Tools),
        Method::PromptsList => list(ListKind::Prompts),
        Method::ResourcesList => list(ListKind::Resources),
        Method::ResourcesTemplatesList => list(ListKind::ResourceTemplates),
        Method::TasksList => Ok(Decision::ListTasks),
        Method::LoggingSetLevel => {
            let level = message.text(message.fields.level).and_then(|text| LogLevel::parse(&text));
            level.map(Decision::SetLevel).ok_or_else(|| {
                let allowed = LogLevel::ALL.map(|(name, _)| name).join(", ");
                Refusal::new(
                    ErrorKind::InvalidParams,
                    format!("params.level must be one of {allowed}"),
                )
            })
        }
        _ => Err(unknown_method(message, version)),
    }
}

fn tool_call(
    message: &Message,
    endpoint: &Endpoint,
    advertised: &ServerCapabilities,
    catalog: &Catalog,
    access: Option<&AccessCheck<'_>>,
) -> Result<Decision, Refusal> {
    if let Some(batch) = called_batch(message, endpoint, advertised, catalog)? {
        return Ok(Decision::Batch(Box::new(batch)));
    }
    let (mut plan, tool) = match catalog.search().filter(|_| endpoint.is_merged()) {
        None => {
            let found = by_name(message, endpoint, catalog, access, ListKind::Tools);
            found.map_err(|refusal| match refusal.kind {
                ErrorKind::ToolNotFound => ambiguous_tool(message, catalog).unwrap_or(refusal),
                _ => refusal,
            })?
        }
        Some(search) => {
            match searched(message, catalog, access, search, advertised.tasks_tools_call)? {
                Searched::Answered(answer) => return Ok(answer),
                Searched::Called(plan, tool) => (plan, tool),
            }
        }
    };
    let backend_has_tasks = catalog
        .backends
        .get(&plan.backend)
        .is_some_and(|lists| lists.server.capabilities.tasks_tools_call);
    let facts = catalog.tool_facts(&plan.backend, &tool);
    let traits = facts.map(|facts| facts.traits);
    if let Some(access) = access {
        let traits = traits.unwrap_or_default();
        let object = Object::Tool { backend: &plan.backend, name: &tool, traits };
        let terms =
            access.check_call(&object, || unknown_name(message, ErrorKind::ToolNotFound))?;
        plan.approval = terms.map(Box::new);
    }
    let requested = message.fields.task.is_some();
    let used = task_use(
        requested,
        advertised.tasks_tools_call,
        traits.map(|traits| traits.task_support),
        backend_has_tasks,
    )?;
    let traits = traits.unwrap_or_default();
    let is_repeatable = facts.is_some_and(|facts| facts.is_repeatable);
    let target = (used == TaskUse::Task).then(|| {
        let named = message.text(message.fields.name).map(|name| name.into_owned());
        let native = tool.clone();
        TaskTarget { tool: named.unwrap_or_else(|| tool.clone()), native, traits, is_repeatable }
    });
    plan.target = BackendTarget::Tool(CalledTool { name: tool, traits, is_repeatable });
    plan.drop_task = used == TaskUse::Ignored;
    Ok(match target {
        Some(target) => Decision::CreateTask(plan, target),
        None => Decision::Forward(plan),
    })
}

/// Returns whether a request is a call of `execute_batch`.
pub fn is_batch(message: &Message, endpoint: &Endpoint, catalog: &Catalog) -> bool {
    catalog.batch_calls_max(endpoint).is_some()
        && message.method == Method::ToolsCall
        && message.text(message.fields.name).as_deref() == Some(BATCH_TOOL)
}

/// Reads a call of `execute_batch`. `None` for another tool.
fn called_batch(
    message: &Message,
    endpoint: &Endpoint,
    advertised: &ServerCapabilities,
    catalog: &Catalog,
) -> Result<Option<Batch>, Refusal> {
    let Some(calls_max) = catalog.batch_calls_max(endpoint) else { return Ok(None) };
    if !is_batch(message, endpoint, catalog) {
        return Ok(None);
    }
    refuse_task(message, advertised.tasks_tools_call)?;
    Batch::read(message.bytes(message.fields.arguments), calls_max).map(Some)
}

const NO_TASK: &str = "this tool does not run as a task, leave out params.task";

/// Refuses a tool of the broker as a task, if tasks were offered.
fn refuse_task(message: &Message, offers_tasks: bool) -> Result<(), Refusal> {
    match offers_tasks && message.fields.task.is_some() {
        true => Err(Refusal::new(ErrorKind::CapabilityMissing, NO_TASK)),
        false => Ok(()),
    }
}

/// The meaning of the `task` member of a call, or of its absence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskUse {
    None,
    /// The call runs normally.
    Ignored,
    Task,
}

/// Decides by MCP 2025-11-25, Tasks: a call is a task only if client, server and tool agree.
/// `offered`: the broker declared tasks to this session.
fn task_use(
    requested: bool,
    offered: bool,
    support: Option<TaskSupport>,
    backend_has_tasks: bool,
) -> Result<TaskUse, Refusal> {
    let refuse = |text: &str| Err(Refusal::new(ErrorKind::CapabilityMissing, text));
    match (requested, support) {
        (true, _) if !offered => Ok(TaskUse::Ignored),
        (true, Some(TaskSupport::Forbidden)) => refuse(NO_TASK),
        (true, _) => Ok(TaskUse::Task),
        (false, Some(TaskSupport::Required)) if backend_has_tasks => {
            refuse("this tool only runs as a task, params.task is missing")
        }
        (false, _) => Ok(TaskUse::None),
    }
}

/// Returns the backend of the called tool and the backend's name of it. `None` for an unknown tool.
pub fn called_tool(
    call: &Message,
    endpoint: &Endpoint,
    catalog: &Catalog,
) -> Option<(BackendId, String)> {
    match endpoint {
        Endpoint::Single(backend) => {
            Some((backend.clone(), call.text(call.fields.name)?.into_owned()))
        }
        Endpoint::Aggregated | Endpoint::Toolset(_) => {
            let target = called_target(call, catalog)?;
            Some((target.backend.clone(), target.name.clone()))
        }
    }
}

/// Returns the task support of the called tool if its backend has tasks (MCP 2025-11-25, Tasks).
/// `None` if the backend has none, or if the tool is unknown.
pub fn task_support(call: &Message, endpoint: &Endpoint, catalog: &Catalog) -> Option<TaskSupport> {
    let (backend, native) = called_tool(call, endpoint, catalog)?;
    let has_tasks = catalog.backends.get(&backend)?.server.capabilities.tasks_tools_call;
    has_tasks.then(|| catalog.traits(&backend, &native))?.map(|traits| traits.task_support)
}

fn about_task(message: &Message, version: Version) -> Result<Decision, Refusal> {
    let question = match message.method {
        Method::TasksGet => TaskOperation::State,
        Method::TasksResult => TaskOperation::Result,
        Method::TasksCancel => TaskOperation::Cancel,
        _ => return Err(unknown_method(message, version)),
    };
    Ok(Decision::Task(question))
}

/// Returns an error if the backend lacks the feature (MCP 2025-11-25, Lifecycle: only negotiated
/// capabilities).
fn supported(catalog: &Catalog, backend: &BackendId, method: Method) -> Result<(), Refusal> {
    match catalog.backends.get(backend) {
        Some(lists) => lists.server.capabilities.permits(method, lists.server.version),
        None => Ok(()), // never reached so far: the link refuses
    }
}

fn required_text<'a>(
    message: &'a Message,
    span: Option<Span>,
    path: &str,
) -> Result<(Span, Cow<'a, str>), Refusal> {
    span.zip(message.text(span))
        .ok_or_else(|| Refusal::new(ErrorKind::InvalidParams, format!("{path} must be a string")))
}

fn unknown_method(message: &Message, version: Version) -> Refusal {
    let text = format!(
        "clients must not call method {} in {}",
        quoted(&message.method_text()),
        version.as_str()
    );
    Refusal::new(ErrorKind::MethodNotFound, text)
}

/// Returns text of a peer for a message of the broker: short, and in quotes.
fn quoted(text: &str) -> String {
    json::quote(&text.chars().take(100).collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use aws_lc_rs::hmac;
    use protocol::{
        ids::{TenantId, ToolsetId},
        splice::Splice,
    };

    use super::*;
    use crate::catalog::{BackendLists, TaskHost, read_page};

    fn backend(
        name: &str,
        capabilities: &str,
        tools: &str,
        prompts: &str,
    ) -> (BackendId, Arc<BackendLists>) {
        let id = BackendId::parse(name).unwrap();
        let entries = |kind, list: &str| {
            read_page(kind, &id, TaskHost::Broker, list.as_bytes()).unwrap().entries
        };
        let lists = BackendLists {
            tools: entries(ListKind::Tools, tools),
            prompts: entries(ListKind::Prompts, prompts),
            ..BackendLists::declaring(capabilities.as_bytes()).unwrap()
        };
        (id, Arc::new(lists))
    }

    fn catalog() -> Catalog {
        let everything = r#"{"tools":{},"prompts":{},"resources":{"subscribe":true},"completions":{},"logging":{}}"#;
        let tools =
            r#"{"tools":[{"name":"read","inputSchema":{}},{"name":"write.all","inputSchema":{}}]}"#;
        let files = backend("files", everything, tools, r#"{"prompts":[{"name":"review"}]}"#);
        let forecast = r#"{"tools":[{"name":"forecast","inputSchema":{}}]}"#;
        let weather = backend("weather", r#"{"tools":{}}"#, forecast, r#"{"prompts":[]}"#);
        let key = hmac::Key::new(hmac::HMAC_SHA256, &[1; 32]);
        Catalog::build(TenantId::parse("acme").unwrap(), key, BTreeMap::from([files, weather]))
    }

    fn decided(request: &str, endpoint: &Endpoint) -> String {
        let message =
            Message::decode(Bytes::from(request.to_owned()), &json::Limits::default()).unwrap();
        let catalog = catalog();
        match decide(
            &message,
            endpoint,
            &catalog.capabilities,
            Version::LATEST_WITH_SESSIONS,
            &catalog,
            None,
        ) {
            Ok(Decision::Answer(result)) => format!("answer {}", String::from_utf8_lossy(&result)),
            Ok(Decision::KeptResult(page)) => format!("page {} of {}", page.page, page.id),
            Ok(Decision::Batch(batch)) => format!("batch of {}", batch.calls.len()),
            Ok(Decision::SetLevel(level)) => format!("level {}", level.name()),
            Ok(Decision::Subscribe(target)) => {
                format!("subscribe {} {}", target.backend, target.uri)
            }
            Ok(Decision::Unsubscribe(target)) => {
                format!("unsubscribe {} {}", target.backend, target.uri)
            }
            Ok(Decision::Forward(plan)) => {
                let mut splice = Splice::new(&message.frame);
                for (span, text) in &plan.edits {
                    splice.replace(*span, text.clone());
                }
                let task = if plan.drop_task { " without task" } else { "" };
                format!(
                    "forward {}{task} {}",
                    plan.backend,
                    String::from_utf8_lossy(&splice.finish())
                )
            }
            Ok(Decision::CreateTask(plan, target)) => {
                format!("task {} {} {:?}", plan.backend, target.tool, target.traits.task_support)
            }
            Ok(Decision::Task(question)) => format!("{question:?}"),
            Ok(Decision::ListTasks) => "list tasks".to_owned(),
            Err(refusal) => format!("refuse {}", refusal.kind.name()),
        }
    }

    #[test]
    fn the_routing_transcript_is_correct() {
        let transcript = include_str!("transcripts/routing.txt");
        let mut request = "";
        let mut checked = 0;
        for line in transcript.lines() {
            if let Some(text) = line.strip_prefix("> ") {
                request = text;
            } else if let Some(expected) = line.strip_prefix("< ") {
                assert_eq!(decided(request, &Endpoint::Aggregated), expected, "{request}");
                checked += 1;
            }
        }
        assert!(checked > 25, "the transcript was read");
    }

    #[test]
    fn the_endpoint_of_one_backend_forwards_requests_unchanged() {
        let endpoint = Endpoint::Single(BackendId::parse("files").unwrap());
        for request in [
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a tool that is not listed"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"review"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///a"}}"#,
        ] {
            assert_eq!(decided(request, &endpoint), format!("forward files {request}"));
        }
    }

    #[test]
    fn a_call_of_an_app_is_routed_only_to_its_own_server() {
        let app = |name| {
            let tools = r#"{"tools":[{"name":"show","inputSchema":{},"_meta":{"ui":{"resourceUri":"ui://a"}}},{"name":"poll","inputSchema":{}}]}"#;
            backend(name, r#"{"tools":{}}"#, tools, r#"{"prompts":[]}"#)
        };
        let key = || hmac::Key::new(hmac::HMAC_SHA256, &[1; 32]);
        let tenant = TenantId::parse("acme").unwrap();
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"poll"}}"#;
        let message = Message::decode(Bytes::from(call), &json::Limits::default()).unwrap();
        let decided = |catalog: &Catalog| {
            let (version, offered) = (Version::LATEST_WITH_SESSIONS, &catalog.capabilities);
            decide(&message, &Endpoint::Aggregated, offered, version, catalog, None)
        };
        let one = Catalog::build(tenant.clone(), key(), BTreeMap::from([app("one")]));
        let Ok(Decision::Forward(plan)) = decided(&one) else { panic!("{:?}", decided(&one)) };
        assert_eq!(
            (plan.backend.as_str(), plan.target.tool().unwrap().name.as_str()),
            ("one", "poll")
        );
        assert_eq!(decided(&one.without_app_names()).unwrap_err().kind, ErrorKind::ToolNotFound);
        let two = Catalog::build(tenant, key(), BTreeMap::from([app("one"), app("two")]));
        let refusal = decided(&two).unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::ToolAmbiguous);
        assert_eq!(refusal.data, [("tools", serde_json::json!(["one__poll", "two__poll"]))]);
    }

    #[test]
    fn task_02_task_03_a_call_is_a_task_only_if_all_sides_support_tasks() {
        use TaskSupport::{Forbidden, Optional, Required};
        for (support, as_task, as_call) in [
            (Some(Optional), Some(TaskUse::Task), Some(TaskUse::None)),
            (Some(Required), Some(TaskUse::Task), None),
            (Some(Forbidden), None, Some(TaskUse::None)),
            (None, Some(TaskUse::Task), Some(TaskUse::None)),
        ] {
            for backend_has_tasks in [true, false] {
                let plain = if backend_has_tasks { as_call } else { Some(TaskUse::None) };
                assert_eq!(
                    task_use(true, true, support, backend_has_tasks).ok(),
                    as_task,
                    "{support:?}"
                );
                assert_eq!(
                    task_use(false, true, support, backend_has_tasks).ok(),
                    plain,
                    "{support:?}"
                );
                let ignored = task_use(true, false, support, backend_has_tasks).ok();
                assert_eq!(
                    ignored,
                    Some(TaskUse::Ignored),
                    "a client that was not offered tasks: {support:?}"
                );
            }
        }
    }

    #[test]
    fn a_call_in_a_searched_toolset_depends_on_the_found_tool() {
        let tools = r#"{"tools":[{"name":"must","inputSchema":{},"execution":{"taskSupport":"required"}},{"name":"never","inputSchema":{}}]}"#;
        let capabilities = r#"{"tools":{},"tasks":{"requests":{"tools":{"call":{}}}}}"#;
        let (id, lists) = backend("b", capabilities, r#"{"tools":[]}"#, r#"{"prompts":[]}"#);
        let page = read_page(ListKind::Tools, &id, TaskHost::Backend, tools.as_bytes()).unwrap();
        let lists = BackendLists { tools: page.entries, ..(*lists).clone() };
        let set = ToolsetId::parse("set").unwrap();
        let backends = BTreeMap::from([(id.clone(), Arc::new(lists))]);
        let searched = catalog().of_toolset(set.clone(), true, backends);
        let endpoint = Endpoint::Toolset(set);
        for (tool, arguments, expected) in [
            ("call_tool_destructive", r#"{"name":"b__must"}"#, Some(TaskSupport::Required)),
            ("call_tool_destructive", r#"{"name":"b__never"}"#, Some(TaskSupport::Forbidden)),
            ("call_tool_destructive", r#"{"name":"b__none"}"#, None),
            ("call_tool_destructive", "[]", None),
            ("describe_tool", r#"{"name":"b__must"}"#, None),
            ("b__must", "{}", None),
        ] {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments}}}}}"#
            );
            let call = Message::decode(Bytes::from(text), &json::Limits::default()).unwrap();
            assert_eq!(task_support(&call, &endpoint, &searched), expected, "{tool} {arguments}");
            let of = expected.is_some().then(|| id.clone());
            assert_eq!(backend_of(&call, &endpoint, &searched), of, "{tool} {arguments}");
            let called = called_tool(&call, &endpoint, &searched).map(|(backend, _)| backend);
            assert_eq!(called, of, "{tool} {arguments}");
        }
    }

    #[test]
    fn task_03_a_task_is_created_only_if_tasks_were_offered() {
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"files__read","task":{"ttl":1}}}"#;
        let message = Message::decode(Bytes::from(call), &json::Limits::default()).unwrap();
        let offered = ServerCapabilities::parse(
            br#"{"tools":{},"tasks":{"requests":{"tools":{"call":{}}}}}"#,
        )
        .unwrap();
        let decision = decide(
            &message,
            &Endpoint::Aggregated,
            &offered,
            Version::LATEST_WITH_SESSIONS,
            &catalog(),
            None,
        )
        .unwrap();
        let Decision::CreateTask(plan, target) = decision else { panic!("{decision:?}") };
        assert_eq!(
            (plan.backend.as_str(), target.tool.as_str(), target.traits.task_support),
            ("files", "files__read", TaskSupport::Optional)
        );
    }
}
