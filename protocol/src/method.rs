//! Every request and notification of the five revisions of MCP, in one table.
//!
//! The envelope names a message's method once. The rules then look up the method's row: sender,
//! capability, route and revisions. A new method is a new row.

use std::fmt;

use Direction::{Both, ClientToServer, ServerToClient};
use MessageKind::{Notification, Request};
use Version::{V2024_11_05, V2025_06_18, V2025_11_25, V2026_07_28};

use crate::json;
use crate::version::Version;

/// Kind of a message, which decides whether its sender expects an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageKind {
    /// Message that is answered.
    Request,
    /// Message that is never answered.
    Notification,
}

/// Side that sends a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The party that opened the connection.
    ClientToServer,
    /// The other one.
    ServerToClient,
    /// Either.
    Both,
}

/// A capability that a server must have declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServerCapability {
    /// `tools`
    Tools,
    /// `tools.listChanged`
    ToolsListChanged,
    /// `prompts`
    Prompts,
    /// `prompts.listChanged`
    PromptsListChanged,
    /// `resources`
    Resources,
    /// `resources.subscribe`
    ResourcesSubscribe,
    /// `resources.listChanged`
    ResourcesListChanged,
    /// `logging`
    Logging,
    /// `completions`
    Completions,
    /// `tasks`
    Tasks,
    /// `tasks.list`
    TasksList,
    /// `tasks.cancel`
    TasksCancel,
}

impl ServerCapability {
    /// Returns the member as it is written in the documentation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::ToolsListChanged => "tools.listChanged",
            Self::Prompts => "prompts",
            Self::PromptsListChanged => "prompts.listChanged",
            Self::Resources => "resources",
            Self::ResourcesSubscribe => "resources.subscribe",
            Self::ResourcesListChanged => "resources.listChanged",
            Self::Logging => "logging",
            Self::Completions => "completions",
            Self::Tasks => "tasks",
            Self::TasksList => "tasks.list",
            Self::TasksCancel => "tasks.cancel",
        }
    }
}

/// A capability that a client must have declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientCapability {
    /// `roots`
    Roots,
    /// `roots.listChanged`
    RootsListChanged,
    /// `sampling`
    Sampling,
    /// `elicitation`
    Elicitation,
    /// `elicitation.url`
    ElicitationUrl,
    /// `tasks`
    Tasks,
    /// `tasks.list`
    TasksList,
    /// `tasks.cancel`
    TasksCancel,
}

impl ClientCapability {
    /// Returns the member as it is written in the documentation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Roots => "roots",
            Self::RootsListChanged => "roots.listChanged",
            Self::Sampling => "sampling",
            Self::Elicitation => "elicitation",
            Self::ElicitationUrl => "elicitation.url",
            Self::Tasks => "tasks",
            Self::TasksList => "tasks.list",
            Self::TasksCancel => "tasks.cancel",
        }
    }
}

/// Rule by which the broker finds the receiver of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// The broker answers it.
    Local,
    /// The backend whose tool is named.
    ByTool,
    /// The backend whose prompt is named.
    ByPrompt,
    /// The backend, or the subscribers, of the URI.
    ByUri,
    /// The backend of the prompt or resource a completion refers to.
    ByReference,
    /// The party that runs the task, or that requested it.
    ByTask,
    /// The client of the call that caused it.
    ToCaller,
    /// The peer of the request it refers to.
    Correlated,
    /// Every peer on the other side that is concerned.
    Broadcast,
    /// Part of opening a session or a link.
    Handshake,
    /// No receiver: the method is unknown.
    None,
}

impl Route {
    /// Returns the rule in words, for the documentation.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Local => "answered by the broker",
            Self::ByTool => "backend of the tool",
            Self::ByPrompt => "backend of the prompt",
            Self::ByUri => "backend or subscribers of the URI",
            Self::ByReference => "backend of the reference",
            Self::ByTask => "owner of the task",
            Self::ToCaller => "client of the call that caused it",
            Self::Correlated => "peer of the request it names",
            Self::Broadcast => "every peer it concerns",
            Self::Handshake => "handshake",
            Self::None => "none",
        }
    }
}

/// One row of the table of methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodInfo {
    /// The name on the wire.
    pub name: &'static str,
    /// Request or notification.
    pub kind: MessageKind,
    /// Side that sends it.
    pub direction: Direction,
    /// Capability that the server must have declared.
    pub server_capability: Option<ServerCapability>,
    /// Capability that the client must have declared.
    pub client_capability: Option<ClientCapability>,
    /// Rule by which its receiver is found.
    pub route: Route,
    /// First revision that has it.
    pub since: Version,
    /// Last revision that has it, when it was removed.
    pub until: Option<Version>,
    /// Set for methods that well-behaved peers answer from memory: the broker waits for
    /// `timeouts.control`, not `timeouts.call`.
    pub control: bool,
    /// Summary for the documentation.
    pub summary: &'static str,
}

const CONTROL: bool = true;
const SLOW: bool = false;

macro_rules! methods {
    ($($variant:ident $name:literal $kind:ident $direction:ident, $server:expr, $client:expr, $route:ident, $since:ident, $until:expr, $control:ident, $summary:literal;)*) => {
        /// A method of MCP, or `Unknown`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Method {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
            /// A name that no revision defines.
            Unknown,
        }

        impl Method {
            /// All known methods, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the method with this name.
            pub fn parse(name: &str) -> Self {
                Self::parse_bytes(name.as_bytes())
            }

            #[allow(non_upper_case_globals, reason = "named like the variants, as the macro cannot build names")]
            fn parse_bytes(name: &[u8]) -> Self {
                $(const $variant: &[u8] = $name.as_bytes();)*
                match name {
                    $($variant => Self::$variant,)*
                    _ => Self::Unknown,
                }
            }
        }

        static TABLE: &[MethodInfo] = &[
            $(MethodInfo {
                name: $name, kind: $kind, direction: $direction, server_capability: $server, client_capability: $client,
                route: Route::$route, since: $since, until: $until, control: $control, summary: $summary,
            },)*
            UNKNOWN,
        ];
    };
}

const UNKNOWN: MethodInfo = MethodInfo {
    name: "unknown",
    kind: Request,
    direction: Both,
    server_capability: None,
    client_capability: None,
    route: Route::None,
    since: V2024_11_05,
    until: None,
    control: false,
    summary: "",
};

// sender, capability of the server, capability of the client, route, first and last revision, timeout, meaning
methods! {
    Initialize "initialize" Request ClientToServer, None, None, Handshake, V2024_11_05, Some(V2025_11_25), SLOW, "Opens a session";
    Initialized "notifications/initialized" Notification ClientToServer, None, None, Handshake, V2024_11_05, Some(V2025_11_25), SLOW, "The client is ready";
    Ping "ping" Request Both, None, None, Local, V2024_11_05, Some(V2025_11_25), CONTROL, "Checks that the peer is alive";
    Cancelled "notifications/cancelled" Notification Both, None, None, Correlated, V2024_11_05, None, SLOW, "Cancels a request";
    Progress "notifications/progress" Notification Both, None, None, Correlated, V2024_11_05, None, SLOW, "Reports the progress of a request";
    ToolsList "tools/list" Request ClientToServer, Some(ServerCapability::Tools), None, Local, V2024_11_05, None, CONTROL, "Lists tools";
    ToolsCall "tools/call" Request ClientToServer, Some(ServerCapability::Tools), None, ByTool, V2024_11_05, None, SLOW, "Runs a tool";
    ToolsListChanged "notifications/tools/list_changed" Notification ServerToClient, Some(ServerCapability::ToolsListChanged), None, Broadcast, V2024_11_05, None, SLOW, "The list of tools changed";
    ResourcesList "resources/list" Request ClientToServer, Some(ServerCapability::Resources), None, Local, V2024_11_05, None, CONTROL, "Lists resources";
    ResourcesTemplatesList "resources/templates/list" Request ClientToServer, Some(ServerCapability::Resources), None, Local, V2024_11_05, None, CONTROL, "Lists resource templates";
    ResourcesRead "resources/read" Request ClientToServer, Some(ServerCapability::Resources), None, ByUri, V2024_11_05, None, SLOW, "Reads a resource";
    ResourcesSubscribe "resources/subscribe" Request ClientToServer, Some(ServerCapability::ResourcesSubscribe), None, ByUri, V2024_11_05, Some(V2025_11_25), CONTROL, "Subscribes to updates of a resource";
    ResourcesUnsubscribe "resources/unsubscribe" Request ClientToServer, Some(ServerCapability::ResourcesSubscribe), None, ByUri, V2024_11_05, Some(V2025_11_25), CONTROL, "Unsubscribes from updates of a resource";
    ResourcesUpdated "notifications/resources/updated" Notification ServerToClient, Some(ServerCapability::ResourcesSubscribe), None, ByUri, V2024_11_05, None, SLOW, "A resource changed";
    ResourcesListChanged "notifications/resources/list_changed" Notification ServerToClient, Some(ServerCapability::ResourcesListChanged), None, Broadcast, V2024_11_05, None, SLOW, "The list of resources changed";
    PromptsList "prompts/list" Request ClientToServer, Some(ServerCapability::Prompts), None, Local, V2024_11_05, None, CONTROL, "Lists prompts";
    PromptsGet "prompts/get" Request ClientToServer, Some(ServerCapability::Prompts), None, ByPrompt, V2024_11_05, None, SLOW, "Fills in a prompt";
    PromptsListChanged "notifications/prompts/list_changed" Notification ServerToClient, Some(ServerCapability::PromptsListChanged), None, Broadcast, V2024_11_05, None, SLOW, "The list of prompts changed";
    CompletionComplete "completion/complete" Request ClientToServer, Some(ServerCapability::Completions), None, ByReference, V2024_11_05, None, SLOW, "Completes an argument";
    LoggingSetLevel "logging/setLevel" Request ClientToServer, Some(ServerCapability::Logging), None, Broadcast, V2024_11_05, Some(V2025_11_25), CONTROL, "Sets the lowest severity of log messages";
    LogMessage "notifications/message" Notification ServerToClient, Some(ServerCapability::Logging), None, Broadcast, V2024_11_05, None, SLOW, "A log message";
    SamplingCreateMessage "sampling/createMessage" Request ServerToClient, None, Some(ClientCapability::Sampling), ToCaller, V2024_11_05, Some(V2025_11_25), SLOW, "Requests a completion of the client's model";
    ElicitationCreate "elicitation/create" Request ServerToClient, None, Some(ClientCapability::Elicitation), ToCaller, V2025_06_18, Some(V2025_11_25), SLOW, "Requests input of the client's user";
    ElicitationComplete "notifications/elicitation/complete" Notification ServerToClient, None, Some(ClientCapability::ElicitationUrl), ToCaller, V2025_11_25, Some(V2025_11_25), SLOW, "The step behind a URL is done";
    RootsList "roots/list" Request ServerToClient, None, Some(ClientCapability::Roots), ToCaller, V2024_11_05, Some(V2025_11_25), SLOW, "Lists the client's roots";
    RootsListChanged "notifications/roots/list_changed" Notification ClientToServer, None, Some(ClientCapability::RootsListChanged), Broadcast, V2024_11_05, Some(V2025_11_25), SLOW, "The roots changed";
    TasksGet "tasks/get" Request Both, Some(ServerCapability::Tasks), Some(ClientCapability::Tasks), ByTask, V2025_11_25, None, CONTROL, "Reads the state of a task";
    TasksResult "tasks/result" Request Both, Some(ServerCapability::Tasks), Some(ClientCapability::Tasks), ByTask, V2025_11_25, Some(V2025_11_25), SLOW, "Waits for a task's result";
    TasksList "tasks/list" Request Both, Some(ServerCapability::TasksList), Some(ClientCapability::TasksList), Local, V2025_11_25, Some(V2025_11_25), CONTROL, "Lists the tasks of the requestor";
    TasksCancel "tasks/cancel" Request Both, Some(ServerCapability::TasksCancel), Some(ClientCapability::TasksCancel), ByTask, V2025_11_25, None, CONTROL, "Ends a task";
    TasksStatus "notifications/tasks/status" Notification Both, Some(ServerCapability::Tasks), Some(ClientCapability::Tasks), ByTask, V2025_11_25, Some(V2025_11_25), SLOW, "A task's state changed";
    ServerDiscover "server/discover" Request ClientToServer, None, None, Local, V2026_07_28, None, CONTROL, "Lists revisions and capabilities of the server";
    SubscriptionsListen "subscriptions/listen" Request ClientToServer, None, None, Local, V2026_07_28, None, SLOW, "Opens a stream of notifications";
    SubscriptionsAcknowledged "notifications/subscriptions/acknowledged" Notification ServerToClient, None, None, Correlated, V2026_07_28, None, SLOW, "Confirms what the stream carries";
    TasksUpdate "tasks/update" Request ClientToServer, Some(ServerCapability::Tasks), None, ByTask, V2026_07_28, None, CONTROL, "Answers the questions of a task";
    TasksNotification "notifications/tasks" Notification ServerToClient, Some(ServerCapability::Tasks), None, ByTask, V2026_07_28, None, SLOW, "A task changed (extension)";
}

impl Method {
    /// Returns the method that a JSON string names. The text was checked before, so a name without
    /// escapes is compared directly.
    pub(crate) fn from_json(raw: &[u8]) -> Self {
        match raw {
            [b'"', name @ .., b'"'] if !name.contains(&b'\\') => Self::parse_bytes(name),
            _ => json::unquote(raw).map_or(Self::Unknown, |name| Self::parse(&name)),
        }
    }

    /// Returns the name on the wire; `unknown` for `Unknown`.
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// Returns the method's row.
    pub fn info(self) -> &'static MethodInfo {
        &TABLE[self as usize]
    }

    /// Returns whether the revision has this method.
    pub fn exists_in(&self, version: Version) -> bool {
        let info = self.info();
        *self != Self::Unknown
            && info.since <= version
            && info.until.is_none_or(|last| version <= last)
    }

    /// Returns whether a second request has no more effect than one, so that it may be sent again
    /// if no answer came.
    pub fn is_idempotent(self) -> bool {
        !matches!(
            self,
            Self::Initialize
                | Self::ToolsCall
                | Self::SamplingCreateMessage
                | Self::ElicitationCreate
                | Self::TasksCancel
                | Self::TasksUpdate
                | Self::SubscriptionsListen
                | Self::Unknown
        )
    }

    /// Returns whether a server may send it.
    pub fn from_server(self) -> bool {
        self.info().direction != ClientToServer
    }

    /// Returns whether a client may send it.
    pub fn from_client(self) -> bool {
        self.info().direction != ServerToClient
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the table as Markdown.
pub fn methods_markdown() -> String {
    let mut out = String::from(
        "| method | kind | sent by | server capability | client capability | route | revisions | meaning |\n|---|---|---|---|---|---|---|---|\n",
    );
    for method in Method::ALL {
        let info = method.info();
        let kind = match info.kind {
            Request => "request",
            Notification => "notification",
        };
        let sender = match info.direction {
            ClientToServer => "client",
            ServerToClient => "server",
            Both => "both",
        };
        let server = info.server_capability.map_or("", ServerCapability::name);
        let client = info.client_capability.map_or("", ClientCapability::name);
        let revisions = match info.until {
            Some(last) if last == info.since => last.to_string(),
            Some(last) => format!("{} to {last}", info.since),
            None => format!("from {}", info.since),
        };
        let (name, route, summary) = (info.name, info.route.meaning(), info.summary);
        out.push_str(&format!("| `{name}` | {kind} | {sender} | {server} | {client} | {route} | {revisions} | {summary} |\n"));
    }
    out
}
