//! A client's request, decided: answered here, or forwarded to one backend with these edits.
//!
//! [`decide`] is the way from client to backend, top to bottom. The same parse decides policy, route and what is sent on
//! (nothing is read twice from different places), and a name is only ever resolved by the catalog's map.

use bytes::Bytes;
use protocol::{
    capabilities::ServerCapabilities,
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::BackendId,
    json::{self, Span},
    method::{Direction, MessageKind, Method, Route},
    uri,
    version::Version,
};

use super::{
    catalog::{Catalog, ListKind, Target, TaskSupport, ToolTraits},
    endpoint::Endpoint,
    exposed_names,
    log_level::LogLevel,
};
use crate::limits::URI_BYTES_MAX;

/// What is to be done with a request.
#[derive(Debug)]
pub enum Decision {
    /// The result is known.
    Answer(Bytes),
    SetLevel(LogLevel),
    Subscribe(ResourceTarget),
    Unsubscribe(ResourceTarget),
    /// Goes to one backend.
    Forward(Plan),
    /// Goes to one backend, as a task.
    CreateTask(Plan, TaskTarget),
    /// About a task.
    Task(TaskQuestion),
    ListTasks,
}

impl Decision {
    /// The backend it goes to.
    pub fn goes_to(&self) -> Option<&BackendId> {
        match self {
            Self::Forward(plan) | Self::CreateTask(plan, _) => Some(&plan.backend),
            Self::Subscribe(target) | Self::Unsubscribe(target) => Some(&target.backend),
            Self::Answer(_) | Self::SetLevel(_) | Self::Task(_) | Self::ListTasks => None,
        }
    }

    /// The tool that is called there, as the backend knows it.
    pub fn tool(&self) -> Option<&str> {
        match self {
            Self::Forward(plan) | Self::CreateTask(plan, _) => {
                plan.names.tool().map(|tool| tool.name.as_str())
            }
            _ => None,
        }
    }
}

/// What is asked about one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskQuestion {
    State,
    Result,
    Cancel,
}

/// The tool that is to run as a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskTarget {
    /// As the client calls it.
    pub tool: String,
    pub traits: ToolTraits,
}

/// A resource of one backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceTarget {
    pub backend: BackendId,
    pub uri: String,
    /// As the client names it.
    pub exposed_uri: String,
}

/// Where a request goes and what changes in its bytes on the way, beside id and progress token.
#[derive(Debug)]
pub struct Plan {
    pub backend: BackendId,
    pub edits: Vec<(Span, Vec<u8>)>,
    /// `params.task` means nothing to this client's session: it must not go to the backend.
    pub drop_task: bool,
    /// What of the backend is named, in its own words.
    pub names: Named,
}

/// What of a backend a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    Tool(ToolCalled),
    Resource(String),
    Other,
}

impl Named {
    pub fn tool(&self) -> Option<&ToolCalled> {
        match self {
            Self::Tool(tool) => Some(tool),
            Self::Resource(_) | Self::Other => None,
        }
    }
}

/// The tool that is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCalled {
    /// As the backend knows it.
    pub name: String,
    pub traits: ToolTraits,
}

impl Plan {
    fn new(backend: BackendId, edits: Vec<(Span, Vec<u8>)>) -> Self {
        Self { backend, edits, drop_task: false, names: Named::Other }
    }
}

/// Decides about one request of an open session.
pub fn decide(
    message: &Message,
    endpoint: &Endpoint,
    advertised: &ServerCapabilities,
    version: Version,
    catalog: &Catalog,
) -> Result<Decision, Refusal> {
    let method = message.method;
    let info = method.info();
    let askable = info.kind == MessageKind::Request
        && info.direction != Direction::ServerToClient
        && method.served(version);
    if !askable || matches!(info.route, Route::Handshake | Route::None) {
        return Err(unknown_method(message, version));
    }
    // Before any look at names: what was not offered does not exist. Only the list of tools is a question that common clients
    // (the conformance suite's among them) ask every server unseen: its answer is then the empty list, which is true.
    if method != Method::ToolsList {
        advertised.permits(method, version)?;
    }
    match info.route {
        Route::ByTool => tool_call(message, endpoint, advertised, catalog),
        Route::ByPrompt => {
            let (plan, _) =
                by_name(message, endpoint, catalog, ErrorKind::PromptNotFound, catalog_prompt)?;
            Ok(Decision::Forward(plan))
        }
        Route::ByUri => by_uri(message, endpoint, catalog),
        Route::ByReference => by_reference(message, endpoint, catalog),
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

type Lookup = fn(&Catalog, &str) -> Option<Target>;

fn catalog_tool(catalog: &Catalog, name: &str) -> Option<Target> {
    catalog.tool(name).cloned()
}

fn catalog_prompt(catalog: &Catalog, name: &str) -> Option<Target> {
    catalog.prompt(name).cloned()
}

fn by_name(
    message: &Message,
    endpoint: &Endpoint,
    catalog: &Catalog,
    missing: ErrorKind,
    lookup: Lookup,
) -> Result<(Plan, String), Refusal> {
    let (span, name) = required_text(message, message.fields.name, "params.name")?;
    let (plan, native) = match endpoint {
        // One backend, its own names: it knows best which exist, listed or not.
        Endpoint::Single(backend) => (Plan::new(backend.clone(), Vec::new()), name.into_owned()),
        Endpoint::Aggregated => {
            let target = lookup(catalog, &name)
                .ok_or_else(|| Refusal::new(missing, format!("unknown name {}", quoted(&name))))?;
            (
                Plan::new(target.backend, vec![(span, json::quote(&target.name).into_bytes())]),
                target.name,
            )
        }
    };
    supported(catalog, &plan.backend, message.method)?;
    Ok((plan, native))
}

fn tool_call(
    message: &Message,
    endpoint: &Endpoint,
    advertised: &ServerCapabilities,
    catalog: &Catalog,
) -> Result<Decision, Refusal> {
    let (mut plan, tool) =
        by_name(message, endpoint, catalog, ErrorKind::ToolNotFound, catalog_tool)?;
    let backend_has_tasks = catalog
        .backends
        .get(&plan.backend)
        .is_some_and(|lists| lists.server.capabilities.tasks_tools_call);
    let traits = catalog.traits(&plan.backend, &tool);
    let asked = message.fields.task.is_some();
    let used = task_use(
        asked,
        advertised.tasks_tools_call,
        traits.map(|traits| traits.task_support),
        backend_has_tasks,
    )?;
    let traits = traits.unwrap_or_default();
    let target = (used == TaskUse::Task).then(|| {
        let named = message.text(message.fields.name).map(|name| name.into_owned());
        TaskTarget { tool: named.unwrap_or_else(|| tool.clone()), traits }
    });
    plan.names = Named::Tool(ToolCalled { name: tool, traits });
    plan.drop_task = used == TaskUse::Ignored;
    Ok(match target {
        Some(target) => Decision::CreateTask(plan, target),
        None => Decision::Forward(plan),
    })
}

/// What the `task` member of a call, or its absence, means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskUse {
    None,
    /// Such a call runs normally.
    Ignored,
    Task,
}

/// MCP 2025-11-25, Tasks: a call is a task only where client, server and tool agree. `offered`: this session was told of
/// tasks.
fn task_use(
    asked: bool,
    offered: bool,
    support: Option<TaskSupport>,
    backend_has_tasks: bool,
) -> Result<TaskUse, Refusal> {
    let refuse = |text: &str| Err(Refusal::new(ErrorKind::CapabilityMissing, text));
    match (asked, support) {
        (true, _) if !offered => Ok(TaskUse::Ignored),
        (true, Some(TaskSupport::Forbidden)) => {
            refuse("this tool does not run as a task, leave out params.task")
        }
        (true, _) => Ok(TaskUse::Task),
        (false, Some(TaskSupport::Required)) if backend_has_tasks => {
            refuse("this tool only runs as a task, params.task is missing")
        }
        (false, _) => Ok(TaskUse::None),
    }
}

/// How the tool that is called runs, where its backend has tasks of its own (MCP 2025-11-25, Tasks). `None`: it has not, or
/// nothing is known of the tool.
pub fn task_support(call: &Message, endpoint: &Endpoint, catalog: &Catalog) -> Option<TaskSupport> {
    let name = call.text(call.fields.name)?;
    let (backend, native) = match endpoint {
        Endpoint::Single(backend) => (backend, &*name),
        Endpoint::Aggregated => {
            catalog.tool(&name).map(|target| (&target.backend, target.name.as_str()))?
        }
    };
    let has_tasks = catalog.backends.get(backend)?.server.capabilities.tasks_tools_call;
    has_tasks.then(|| catalog.traits(backend, native))?.map(|traits| traits.task_support)
}

fn about_task(message: &Message, version: Version) -> Result<Decision, Refusal> {
    let question = match message.method {
        Method::TasksGet => TaskQuestion::State,
        Method::TasksResult => TaskQuestion::Result,
        Method::TasksCancel => TaskQuestion::Cancel,
        _ => return Err(unknown_method(message, version)),
    };
    Ok(Decision::Task(question))
}

fn by_uri(message: &Message, endpoint: &Endpoint, catalog: &Catalog) -> Result<Decision, Refusal> {
    let (span, uri) = required_text(message, message.fields.uri, "params.uri")?;
    let target = resource_target(&uri, endpoint, catalog)?;
    supported(catalog, &target.backend, message.method)?;
    Ok(match message.method {
        Method::ResourcesSubscribe => Decision::Subscribe(target),
        Method::ResourcesUnsubscribe => Decision::Unsubscribe(target),
        _ => {
            let edits = if target.uri == uri {
                Vec::new()
            } else {
                vec![(span, json::quote(&target.uri).into_bytes())]
            };
            let names = Named::Resource(target.uri);
            Decision::Forward(Plan { names, ..Plan::new(target.backend, edits) })
        }
    })
}

fn by_reference(
    message: &Message,
    endpoint: &Endpoint,
    catalog: &Catalog,
) -> Result<Decision, Refusal> {
    let fields = &message.fields;
    let plan = if fields.reference_uri.is_some() {
        let (span, uri) = required_text(message, fields.reference_uri, "params.ref.uri")?;
        let target = resource_target(&uri, endpoint, catalog)?;
        let edits = if target.uri == uri {
            Vec::new()
        } else {
            vec![(span, json::quote(&target.uri).into_bytes())]
        };
        Plan { names: Named::Resource(target.uri), ..Plan::new(target.backend, edits) }
    } else {
        let (span, name) = required_text(message, fields.reference_name, "params.ref.name")?;
        match endpoint {
            Endpoint::Single(backend) => Plan::new(backend.clone(), Vec::new()),
            Endpoint::Aggregated => {
                let target = catalog.prompt(&name).ok_or_else(|| {
                    Refusal::new(
                        ErrorKind::ReferenceNotFound,
                        format!("unknown prompt {}", quoted(&name)),
                    )
                })?;
                Plan::new(
                    target.backend.clone(),
                    vec![(span, json::quote(&target.name).into_bytes())],
                )
            }
        }
    };
    supported(catalog, &plan.backend, message.method)?;
    Ok(Decision::Forward(plan))
}

/// The resource a client wants to hear of.
pub fn subscription(
    uri: &str,
    endpoint: &Endpoint,
    catalog: &Catalog,
) -> Result<ResourceTarget, Refusal> {
    let target = resource_target(uri, endpoint, catalog)?;
    supported(catalog, &target.backend, Method::ResourcesSubscribe)?;
    Ok(target)
}

fn resource_target(
    uri: &str,
    endpoint: &Endpoint,
    catalog: &Catalog,
) -> Result<ResourceTarget, Refusal> {
    if uri.len() > URI_BYTES_MAX || uri.chars().any(char::is_control) || !uri.contains(':') {
        let text =
            format!("a URI has a scheme, no control characters and at most {URI_BYTES_MAX} bytes");
        return Err(Refusal::new(ErrorKind::UriInvalid, text));
    }
    let climbs =
        |_| Refusal::new(ErrorKind::PathTraversal, "the path of a resource URI does not climb");
    match endpoint {
        Endpoint::Single(backend) => {
            uri::check(uri).map_err(climbs)?;
            Ok(ResourceTarget {
                backend: backend.clone(),
                uri: uri.to_owned(),
                exposed_uri: uri.to_owned(),
            })
        }
        Endpoint::Aggregated => exposed_names::native_uri(uri)
            .filter(|(backend, _)| catalog.backends.contains_key(backend))
            .map(|(backend, native)| ResourceTarget {
                backend,
                uri: native.to_owned(),
                exposed_uri: uri.to_owned(),
            })
            .ok_or_else(|| {
                Refusal::new(ErrorKind::ResourceNotFound, "resource not found").with("uri", uri)
            })
            .and_then(|target| uri::check(&target.uri).map(|()| target).map_err(climbs)),
    }
}

/// A backend that lacks the feature is not bothered (MCP 2025-11-25, Lifecycle: only negotiated capabilities).
fn supported(catalog: &Catalog, backend: &BackendId, method: Method) -> Result<(), Refusal> {
    match catalog.backends.get(backend) {
        Some(lists) => lists.server.capabilities.permits(method, lists.server.version),
        None => Ok(()), // never reached so far: the link tells
    }
}

fn required_text<'a>(
    message: &'a Message,
    span: Option<Span>,
    path: &str,
) -> Result<(Span, std::borrow::Cow<'a, str>), Refusal> {
    span.zip(message.text(span))
        .ok_or_else(|| Refusal::new(ErrorKind::InvalidParams, format!("{path} must be a string")))
}

fn unknown_method(message: &Message, version: Version) -> Refusal {
    let text = format!(
        "method {} is not one a client may call in {}",
        quoted(&message.method_text()),
        version.as_str()
    );
    Refusal::new(ErrorKind::MethodNotFound, text)
}

/// Somebody's text inside a message of ours: short, and visibly a quotation.
fn quoted(text: &str) -> String {
    json::quote(&text.chars().take(100).collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use aws_lc_rs::hmac;
    use protocol::{handshake::InitializeResult, ids::TenantId, splice::Splice};

    use super::*;
    use crate::rules::catalog::{BackendLists, TaskHost, read_page};

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
            server: Arc::new(InitializeResult {
                version: Version::LATEST_WITH_SESSIONS,
                capabilities: ServerCapabilities::parse(capabilities.as_bytes()).unwrap(),
                server_info: Bytes::from_static(b"{}"),
                server_name: name.to_owned(),
                server_version: String::new(),
                instructions: None,
            }),
            tools: entries(ListKind::Tools, tools),
            prompts: entries(ListKind::Prompts, prompts),
            resources: vec![],
            resource_templates: vec![],
            stale: false,
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
        ) {
            Ok(Decision::Answer(result)) => format!("answer {}", String::from_utf8_lossy(&result)),
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
    fn the_transcript_holds() {
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
    fn the_endpoint_of_one_backend_changes_nothing() {
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
    fn task_02_task_03_a_call_is_a_task_only_where_all_agree() {
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
    fn task_03_a_task_is_made_where_tasks_were_offered() {
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
        )
        .unwrap();
        let Decision::CreateTask(plan, target) = decision else { panic!("{decision:?}") };
        assert_eq!(
            (plan.backend.as_str(), target.tool.as_str(), target.traits.task_support),
            ("files", "files__read", TaskSupport::Optional)
        );
    }
}
