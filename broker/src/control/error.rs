//! Errors of changes by operators. The admin API makes a problem document of each.

use config::FieldError;
use rules::access::{ApprovalRefused, PolicyFault};
use storage::StoreError;

use protocol::ids::{BackendId, DEFAULT_TENANT};

/// Reason why a change or a query was refused.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("{what} {name} does not exist")]
    NotFound { what: &'static str, name: String },
    #[error("{what} {name} comes from the configuration file; change it there")]
    Declared { what: &'static str, name: String },
    #[error("{what} {name} belongs to `mcp-broker demo`; `mcp-broker serve` runs without it")]
    Bundled { what: &'static str, name: String },
    #[error("tenant {DEFAULT_TENANT} always exists; disable it instead: {{\"enabled\": false}}")]
    DefaultTenant,
    #[error(
        "these operators are limited to it or cannot be read, and a later tenant of that name would be theirs: {}; revoke them first, or remove them from the configuration file", .operators.join(", ")
    )]
    NamedByOperators { operators: Vec<String> },
    #[error(
        "principals connect no accounts at the backend {backend}: its auth is not of the type oauth_user or enterprise"
    )]
    NoAccounts { backend: BackendId },
    #[error("the {what} {}", if *.exists { "does not match If-Match or If-None-Match; GET shows its ETag" } else { "does not exist, but If-Match requires that it does" })]
    Changed { what: &'static str, exists: bool },
    #[error("the definition of {object} has changed and now has the hash {hash}; review it first")]
    PinMoved { object: String, hash: String },
    #[error("approval {id} is {state} already{}", .by.as_ref().map(|by| format!(", decided by {by}")).unwrap_or_default())]
    Decided { id: String, state: &'static str, by: Option<String> },
    #[error(transparent)]
    NotApprover(ApprovalRefused),
    #[error("the limit of {max} {what} is reached")]
    TooMany { what: &'static str, max: usize },
    #[error(
        "no task has the id {digest}, and none of {compared} tasks has it as its digest; the broker compares no more, so use the id that the client of the task has"
    )]
    TooManyTasks { digest: String, compared: usize },
    #[error("{} {}{}{}", .0.path, .0.problem, if .0.allowed.is_empty() { "" } else { "; allowed: " }, .0.allowed)]
    Invalid(FieldError),
    #[error("{} {}; allowed: {}", .0.path, .0.problem, .0.allowed)]
    Reserved(FieldError),
    #[error("{} {}", .0.first().map_or("", |fault| &fault.path), .0.first().map_or("", |fault| &fault.problem))]
    Policy(Vec<PolicyFault>),
    #[error("{} {}", .0.first().map_or("", |fault| &fault.path), .0.first().map_or("", |fault| &fault.problem))]
    Toolset(Vec<PolicyFault>),
    #[error("{}", .0.first().map_or_else(String::new, ToString::to_string))]
    Faults(Vec<FieldError>),
    #[error("{holder} already has the URL of this issuer; each issuer is accepted only once")]
    IssuerTaken { holder: String },
    #[error("auth.resource of the configuration file is missing, and issuers need it")]
    NoResource,
    #[error("several replicas have the id {id}; name one of them: {}", .nodes.join(", "))]
    ManyNodes { id: String, nodes: Vec<String> },
    #[error("the log of this broker belongs to the program that contains it")]
    NoLog,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the operating system returned no random numbers")]
    NoRandomness,
    #[error("an internal fault stopped the change; see the broker's log")]
    Internal,
}
