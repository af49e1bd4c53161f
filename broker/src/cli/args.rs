//! Every command and its arguments. The help texts here are the command line's documentation.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, builder::PossibleValuesParser};
use protocol::ids::{BackendId, TenantId};
use records::{AuditKind, AuditOrder};

pub(super) use super::{
    catalog_args::{CatalogCommand, PromptCommand, ToolsetCommand},
    key_args::{
        ApprovalCommand, ConnectionCommand, IssuerCommand, KeyCommand, OperatorCommand, PinCommand,
        PolicyCommand, TokenCommand,
    },
    process_args::{ConfigCommand, DrainArgs, LogCommand, NodeCommand},
    root::RootCommand,
};
use super::{
    common_args::{BackendListArgs, ConfigFileArg, OutputOptions, TenantArg},
    counts::{backend_limit, count, tenant_limit, weight},
    import::ServerImport,
};

const ENVIRONMENT: &str = "Environment:
  MCP_BROKER_ADMIN_URL    where the admin API listens [default: http://127.0.0.1:9090]
  MCP_BROKER_ADMIN_TOKEN  an operator's token or the admin token, if the admin API requires one";

/// A broker between many MCP clients and many MCP servers.
#[derive(Debug, Parser)]
#[command(name = "mcp-broker", version, after_help = ENVIRONMENT, max_term_width = 100)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the broker
    Serve {
        /// The configuration file; without one, every key has its default
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Run the broker with the default settings and a demo backend
    Demo,
    /// Check a configuration file: exit code 0, or 64 and one line per fault
    CheckConfig {
        file: PathBuf,
        /// Also compare the backends of the file with a lock file of `pins export`
        #[arg(long, value_name = "FILE")]
        locked: Option<PathBuf>,
    },
    /// Bring the database schema up to date and exit
    Migrate(ConfigFileArg),
    /// End sessions and approvals of a database that was restored from an older copy, and exit
    AfterRestore(ConfigFileArg),
    /// Print a commented configuration with every key and its default
    ConfigExample,
    /// Print the admin API's OpenAPI document
    Openapi,
    /// An MCP server on standard input and output, for `demo`
    #[command(hide = true)]
    DemoBackend,
    #[command(flatten)]
    Admin(AdminCommand),
}

/// Commands for a running broker.
#[derive(Debug, Subcommand)]
pub(super) enum AdminCommand {
    /// Manage the MCP servers of a tenant
    #[command(subcommand)]
    Backend(BackendCommand),
    /// Manage tenants
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// Manage the API keys of a tenant
    #[command(subcommand)]
    Key(KeyCommand),
    /// Revoke tokens of issuers
    #[command(subcommand)]
    Token(TokenCommand),
    /// Manage the operators of the admin API
    #[command(subcommand)]
    Operator(OperatorCommand),
    /// Show, store and check the access policy of a tenant
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Show, approve and block the definitions that backends show
    #[command(subcommand)]
    Pins(PinCommand),
    /// Store, show, list and remove toolsets: bundles of tools with an endpoint of their own
    #[command(subcommand)]
    Toolset(ToolsetCommand),
    /// Store, show, list and remove prompts that the broker hosts
    #[command(subcommand)]
    Prompt(PromptCommand),
    /// Show what the lists of a tenant cost
    #[command(subcommand)]
    Catalog(CatalogCommand),
    /// Store, list and remove the issuers of a tenant: authorization servers of its clients
    #[command(subcommand)]
    Issuer(IssuerCommand),
    /// List and end the accounts that users connected at backends
    #[command(subcommand)]
    Connection(ConnectionCommand),
    /// List calls that wait for a person, and approve or deny them
    #[command(subcommand)]
    Approval(ApprovalCommand),
    /// List, show and end client sessions
    #[command(subcommand)]
    Session(SessionCommand),
    /// List, show and cancel tasks
    #[command(subcommand)]
    Task(TaskCommand),
    /// See which sessions are subscribed to which resources
    #[command(subcommand)]
    Subscription(SubscriptionCommand),
    /// Read the audit log: records of operators' changes and clients' requests
    #[command(subcommand)]
    Audit(AuditCommand),
    /// List the replicas that share the database
    #[command(subcommand)]
    Node(NodeCommand),
    /// Show the configuration in force
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Show and change the log filter of a replica
    #[command(subcommand)]
    Log(LogCommand),
    /// Stop taking new work, finish the work in progress, then end the broker
    Drain(DrainArgs),
}

#[derive(Debug, Clone, Args)]
pub(super) struct TenantFilter {
    /// Only this tenant
    #[arg(long, value_name = "NAME", value_parser = TenantId::parse)]
    pub(super) tenant: Option<TenantId>,
}

#[derive(Debug, Subcommand)]
pub(super) enum BackendCommand {
    /// Register an MCP server
    // The generated line names the command before the name, and without the `--` that it needs.
    #[command(
        override_usage = "mcp-broker backend add <NAME> [OPTIONS] <--url <URL>|--spec <FILE>|--server-json <FILE>|--registry <NAME[@VERSION]>|-- <COMMAND>...>"
    )]
    Add(Box<BackendAdd>),
    /// List the backends of a tenant, or of all
    List(BackendListArgs),
    /// Show one backend
    Show {
        #[arg(value_parser = BackendId::parse)]
        name: BackendId,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Connect to a backend or read its lists again, and probe one whose breaker is open
    Probe {
        #[arg(value_parser = BackendId::parse)]
        name: BackendId,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Hold the circuit breaker of a backend open on every replica, or release it
    Breaker {
        #[arg(value_parser = BackendId::parse)]
        name: BackendId,
        /// Open: it gets no calls until closed; closed: it gets calls, and its breakers open by
        /// their rules
        #[arg(value_enum)]
        state: BreakerState,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Add and remove the roots that operators give a backend
    #[command(subcommand)]
    Root(RootCommand),
    /// Remove a backend
    Remove {
        #[arg(value_parser = BackendId::parse)]
        name: BackendId,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
}

#[derive(Debug, Args)]
#[group(id = "kind", required = true, multiple = false, args = ["url", "spec", "command", "server_json", "registry"])]
pub(super) struct BackendAdd {
    #[arg(value_parser = BackendId::parse)]
    pub(super) name: BackendId,
    #[command(flatten)]
    pub(super) of: TenantArg,
    /// URL of a Streamable HTTP server, or with ws:// or wss:// of a WebSocket server
    #[arg(long)]
    pub(super) url: Option<String>,
    /// The URL is the event stream of an HTTP+SSE server (2024-11-05)
    #[arg(long, requires = "url", conflicts_with_all = ["command", "spec"])]
    pub(super) sse: bool,
    /// The whole body for the admin API, as JSON; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["links", "protocol", "call_timeout", "initialize_timeout"])]
    pub(super) spec: Option<PathBuf>,
    /// After `--`: a program that speaks MCP on its standard streams, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
    #[command(flatten)]
    pub(super) import: ServerImport,
    /// An environment variable of the program: NAME=VALUE, or NAME to pass on this shell's own
    #[arg(long, value_name = "NAME[=VALUE]", conflicts_with_all = ["url", "spec", "server_json", "registry"])]
    pub(super) env: Vec<String>,
    /// The program's working directory
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["url", "spec", "server_json", "registry"])]
    pub(super) cwd: Option<String>,
    /// A file or folder that the program may read and execute, in addition to those of its sandbox
    #[arg(long, value_name = "PATH", conflicts_with_all = ["url", "spec"])]
    pub(super) read: Vec<String>,
    /// A file or folder that the program may change too
    #[arg(long, value_name = "PATH", conflicts_with_all = ["url", "spec"])]
    pub(super) write: Vec<String>,
    /// Forbid the program to open sockets of the internet protocols
    #[arg(long, conflicts_with_all = ["url", "spec"])]
    pub(super) no_network: bool,
    /// A file with the bearer token for the server
    #[arg(long, value_name = "FILE", conflicts_with_all = ["command", "spec", "server_json", "registry"])]
    pub(super) bearer_file: Option<PathBuf>,
    /// A further request header for the server: NAME:VALUE, or NAME=VARIABLE for the value of a
    /// variable of this shell
    #[arg(long, value_name = "NAME:VALUE", conflicts_with_all = ["command", "spec", "server_json", "registry"])]
    pub(super) header: Vec<String>,
    /// Which sessions share a link to the server
    #[arg(long, value_enum)]
    pub(super) links: Option<Links>,
    /// The era of MCP that the broker uses with the server
    #[arg(long, value_enum)]
    pub(super) protocol: Option<Protocol>,
    /// Deadline of a call, such as 30s
    #[arg(long, value_name = "DURATION")]
    pub(super) call_timeout: Option<String>,
    /// Deadline of the handshake
    #[arg(long, value_name = "DURATION")]
    pub(super) initialize_timeout: Option<String>,
    /// A limit by its name in the body, such as requests_per_second=20 or burst_per_tool=5
    #[arg(long, value_name = "NAME=COUNT", value_parser = backend_limit, conflicts_with = "spec")]
    pub(super) limit: Vec<(String, u32)>,
    /// Answer at once instead of after the first handshake
    #[arg(long)]
    pub(super) no_wait: bool,
    /// Replace the backend if it exists
    #[arg(long)]
    pub(super) replace: bool,
    #[command(flatten)]
    pub(super) output: OutputOptions,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Protocol {
    /// The broker detects it
    Auto,
    /// A revision with initialize, up to 2025-11-25
    Legacy,
    /// 2026-07-28
    Modern,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Links {
    /// Shared links where that is safe
    Auto,
    /// One link for the whole tenant
    Shared,
    /// One link per session
    PerSession,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum BreakerState {
    Open,
    Closed,
}

impl BreakerState {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum TenantCommand {
    /// Create a tenant
    Add(TenantAdd),
    /// Change some settings of a tenant, and keep the others
    Set(TenantSet),
    /// Show one tenant
    Show {
        #[arg(value_parser = TenantId::parse)]
        name: TenantId,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// List all tenants
    List(OutputOptions),
    /// Remove a tenant with its keys and backends
    Remove {
        #[arg(value_parser = TenantId::parse)]
        name: TenantId,
        #[command(flatten)]
        output: OutputOptions,
    },
}

#[derive(Debug, Args)]
pub(super) struct TenantAdd {
    #[arg(value_parser = TenantId::parse)]
    pub(super) name: TenantId,
    /// Refuse the tenant's requests for now
    #[arg(long)]
    pub(super) disabled: bool,
    /// Replace all settings of a tenant that exists
    #[arg(long)]
    pub(super) replace: bool,
    #[command(flatten)]
    pub(super) settings: TenantSettings,
    #[command(flatten)]
    pub(super) output: OutputOptions,
}

#[derive(Debug, Args)]
#[group(id = "change", required = true, multiple = true, args = ["enabled", "disabled", "weight", "requests_per_second", "burst", "sessions", "calls_in_flight", "limit"])]
pub(super) struct TenantSet {
    #[arg(value_parser = TenantId::parse)]
    pub(super) name: TenantId,
    /// Serve the tenant's requests again
    #[arg(long, conflicts_with = "disabled")]
    pub(super) enabled: bool,
    /// Refuse the tenant's requests for now
    #[arg(long)]
    pub(super) disabled: bool,
    #[command(flatten)]
    pub(super) settings: TenantSettings,
    #[command(flatten)]
    pub(super) output: OutputOptions,
}

#[derive(Debug, Args)]
pub(super) struct TenantSettings {
    /// Share of the tenant in a busy broker, 1 to 1000
    #[arg(long, value_parser = weight)]
    pub(super) weight: Option<u32>,
    /// Requests per second; 0 for no limit
    #[arg(long, value_name = "COUNT", value_parser = count::<u32>)]
    pub(super) requests_per_second: Option<u32>,
    /// Requests above that rate before the broker refuses one
    #[arg(long, value_name = "COUNT", value_parser = count::<u32>)]
    pub(super) burst: Option<u32>,
    /// Open sessions
    #[arg(long, value_name = "COUNT", value_parser = count::<u32>)]
    pub(super) sessions: Option<u32>,
    /// Requests that wait for an answer
    #[arg(long, value_name = "COUNT", value_parser = count::<u32>)]
    pub(super) calls_in_flight: Option<u32>,
    /// Any limit that is a count, by its name in the body, such as requests_per_second_per_principal=10
    #[arg(long, value_name = "NAME=COUNT", value_parser = tenant_limit)]
    pub(super) limit: Vec<(String, u32)>,
}

/// Filter for records of the audit log.
#[derive(Debug, Args)]
pub(super) struct AuditFilter {
    /// Only this tenant, even if it no longer exists
    #[arg(long)]
    pub(super) tenant: Option<String>,
    /// admin (changes by operators) or call (requests by clients)
    #[arg(long, value_parser = PossibleValuesParser::new(AuditKind::ALL.map(AuditKind::name)))]
    pub(super) kind: Option<String>,
    /// Start time such as 2026-01-31T12:00:00Z, or an age such as 24h
    #[arg(long, value_name = "TIME")]
    pub(super) since: Option<String>,
    /// End time (exclusive), in the format of --since
    #[arg(long, value_name = "TIME")]
    pub(super) until: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// List records of the audit log
    List {
        #[command(flatten)]
        filter: AuditFilter,
        /// Order of the records
        #[arg(
            long,
            value_parser = PossibleValuesParser::new(AuditOrder::ALL.map(AuditOrder::name)),
            default_value = AuditOrder::default().name(),
        )]
        order: String,
        /// Begin after the record with this number, in the order of the list
        #[arg(long, value_name = "NUMBER", value_parser = count::<i64>)]
        after: Option<i64>,
        /// Maximum number of records
        #[arg(long, value_name = "COUNT", value_parser = count::<u32>)]
        limit: Option<u32>,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Verify the chains of the audit log and their checkpoints; print the first record that does
    /// not match, and exit with 1
    Verify {
        /// A file with checkpoints from outside the database: audit.checkpoint_file, or the
        /// broker's log
        #[arg(long, value_name = "FILE")]
        checkpoint: Option<PathBuf>,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Print records of the audit log as JSON, one per line, to its end
    Export {
        #[command(flatten)]
        filter: AuditFilter,
        /// Begin after the record with this number
        #[arg(long, value_name = "NUMBER", value_parser = count::<i64>)]
        after: Option<i64>,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum SessionCommand {
    /// List client sessions
    List {
        #[command(flatten)]
        of: TenantFilter,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Show one session
    Show {
        id: String,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// End a session on any replica
    End {
        id: String,
        #[command(flatten)]
        output: OutputOptions,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum TaskCommand {
    /// List tasks
    List {
        #[command(flatten)]
        of: TenantFilter,
        /// Only tasks with this status, such as working
        #[arg(long)]
        status: Option<String>,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Show one task with its history
    Show {
        id: String,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Cancel a task
    Cancel {
        id: String,
        #[command(flatten)]
        output: OutputOptions,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum SubscriptionCommand {
    /// List the resources that sessions are subscribed to
    List {
        #[command(flatten)]
        of: TenantFilter,
        #[command(flatten)]
        output: OutputOptions,
    },
}
