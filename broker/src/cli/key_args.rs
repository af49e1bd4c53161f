//! Arguments of the commands about API keys, operators, issuers, revocations of tokens, access
//! policies, and pins.

use std::path::PathBuf;

use clap::{Args, Subcommand, builder::PossibleValuesParser};
use protocol::ids::BackendId;
use records::ApprovalState;
use rules::pins::PinState;

use super::common_args::{OutputOptions, TenantArg};

/// Name of the lock file, if none is given.
const LOCK_FILE: &str = "mcp-broker.lock";

#[derive(Debug, Subcommand)]
pub(super) enum PinCommand {
    /// List the pins of a backend, or of all backends
    List {
        #[arg(value_parser = BackendId::parse)]
        backend: Option<BackendId>,
        /// Only pins in this state
        #[arg(long, value_parser = PossibleValuesParser::new(PinState::ALL.map(PinState::name)))]
        state: Option<String>,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Show what is new in an object since an operator accepted it, and what the scanner found
    Diff {
        /// BACKEND/KIND/NAME, or BACKEND/NAME of a tool
        object: String,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Approve definitions; a definition that changed after the review is refused
    Approve {
        /// BACKEND/KIND/NAME, or BACKEND/NAME of a tool
        object: Option<String>,
        /// The reviewed hash; without it, the hash that is listed now
        #[arg(long, requires = "object")]
        hash: Option<String>,
        /// Approve everything that the backend lists, except what is blocked
        #[arg(long, requires = "backend", conflicts_with_all = ["object", "locked"])]
        all: bool,
        #[arg(long, value_name = "NAME", value_parser = BackendId::parse, conflicts_with = "object")]
        backend: Option<BackendId>,
        /// Approve what a lock file holds
        #[arg(long, value_name = "FILE", conflicts_with = "object")]
        locked: Option<PathBuf>,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Block an object for clients, whatever its definition, until an operator approves it
    Block {
        /// BACKEND/KIND/NAME, or BACKEND/NAME of a tool
        object: String,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Print the accepted definitions as a lock file
    Export {
        /// Only this backend
        #[arg(long, value_name = "NAME", value_parser = BackendId::parse)]
        backend: Option<BackendId>,
        #[command(flatten)]
        of: TenantArg,
    },
    /// Compare what backends list now with a lock file; print what differs, and exit with 1
    Verify {
        #[arg(default_value = LOCK_FILE)]
        file: PathBuf,
        /// Only this backend
        #[arg(long, value_name = "NAME", value_parser = BackendId::parse)]
        backend: Option<BackendId>,
        #[command(flatten)]
        of: TenantArg,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Store the policy of a file (JSON), or replace the stored one
    Put {
        /// The file, or - for standard input
        file: PathBuf,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Print the policy as JSON
    Get {
        #[command(flatten)]
        of: TenantArg,
    },
    /// Remove the policy: everything is allowed then
    Remove {
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Show what the policy decides about one use of an object, and why
    Check {
        /// A subject: principal=P, group=G, scope=S, client=C or key=K, separated by commas
        #[arg(long = "as", value_name = "ATTRIBUTES", value_delimiter = ',', value_parser = pair)]
        subject: Vec<(String, String)>,
        /// A method such as tools/call, prompts/get or resources/read
        method: String,
        /// BACKEND/NAME or BACKEND/URI, by the backend's own name; a tool may be BACKEND__NAME
        object: String,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Show what the policy refused, and what rules in shadow mode would change
    Report {
        /// A time such as 2026-01-31T12:00:00Z, or an age such as 1h; 24h at most
        #[arg(long, default_value = "1h")]
        since: String,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum IssuerCommand {
    /// Store the issuer of a file (JSON) under a name, or replace the stored one
    Put {
        #[arg(value_parser = BackendId::parse)]
        name: BackendId,
        /// The file, or - for standard input
        file: PathBuf,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// List the issuers of a tenant
    List {
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Remove an issuer: its tokens are refused at once
    Remove {
        #[arg(value_parser = BackendId::parse)]
        name: BackendId,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum ConnectionCommand {
    /// List the accounts that principals connected at backends
    List {
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Print a one-time address at which a principal connects an account
    Link(AccountArgs),
    /// Test whether the backend accepts the account of a principal
    Test(AccountArgs),
    /// End a connection
    Revoke(AccountArgs),
}

#[derive(Debug, Args)]
pub(super) struct AccountArgs {
    /// The principal, as `session list` shows it
    pub(super) principal: String,
    #[arg(value_parser = BackendId::parse)]
    pub(super) backend: BackendId,
    #[command(flatten)]
    pub(super) of: TenantArg,
    #[command(flatten)]
    pub(super) output: OutputOptions,
}

#[derive(Debug, Subcommand)]
pub(super) enum ApprovalCommand {
    /// List calls that wait, or waited, for a person
    List {
        /// Only approvals in this state
        #[arg(long, value_parser = PossibleValuesParser::new(ApprovalState::ALL.map(ApprovalState::name)))]
        state: Option<String>,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Show one approval, with the arguments of the call
    Show {
        id: String,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Approve one execution of a call
    Approve {
        id: String,
        /// Text for other operators
        #[arg(long)]
        reason: Option<String>,
        /// Time for which calls of this tool by this principal need no other approval, such as 10m
        #[arg(long = "for", value_name = "DURATION")]
        window: Option<String>,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Deny a call
    Deny {
        id: String,
        /// Text that the caller sees
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum OperatorCommand {
    /// Create an operator; its token is shown only once
    Create {
        /// Its name in the audit log
        name: String,
        /// viewer, operator, tenant_admin, auditor, admin, backend_owner or scraper
        #[arg(long)]
        role: String,
        /// A tenant that the operator sees; without one, all tenants and the broker itself
        #[arg(long = "tenant", value_name = "TENANT")]
        tenants: Vec<String>,
        /// A backend of a backend_owner
        #[arg(long = "backend", value_name = "TENANT/BACKEND")]
        backends: Vec<String>,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// List the operators
    List {
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Revoke an operator
    Revoke {
        id: String,
        #[command(flatten)]
        output: OutputOptions,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Create an API key; it is shown only once
    Create {
        #[command(flatten)]
        of: TenantArg,
        /// Its name
        #[arg(long)]
        name: Option<String>,
        /// The principal of the key; several keys may have the same one
        #[arg(long)]
        principal: Option<String>,
        /// A group that access rules look at
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<String>,
        /// A scope that access rules look at
        #[arg(long = "scope", value_name = "SCOPE")]
        scopes: Vec<String>,
        /// A label for operators
        #[arg(long = "label", value_name = "NAME=VALUE", value_parser = pair)]
        labels: Vec<(String, String)>,
        /// Time until the key expires, such as 30d
        #[arg(long, value_name = "DURATION")]
        expires_in: Option<String>,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// List the API keys of a tenant
    List {
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Revoke an API key
    Revoke {
        id: String,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Revoke the tokens of a principal, or one token; their sessions and streams end at once
    Revoke {
        #[command(flatten)]
        subject: RevokedTokens,
        /// Only tokens issued until this time, such as 2026-01-31T12:00:00Z [default: now]
        #[arg(long, value_name = "TIME", requires = "principal")]
        issued_before: Option<String>,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// List the revocations of a tenant
    List {
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Remove a revocation: the tokens are valid again
    Restore {
        /// The id of the revocation
        id: String,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct RevokedTokens {
    /// The principal as sessions show it: "ISSUER SUB"
    #[arg(long)]
    pub(super) principal: Option<String>,
    /// The id of one token, its claim jti
    #[arg(long)]
    pub(super) jti: Option<String>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    pair.ok_or_else(|| "expected NAME=VALUE".to_owned())
}
