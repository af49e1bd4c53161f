//! Arguments that many commands share.

use std::path::PathBuf;

use clap::Args;
use protocol::ids::TenantId;

#[derive(Debug, Clone, Args)]
pub(super) struct OutputOptions {
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Clone, Args)]
pub(super) struct TenantArg {
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = TenantId::parse)]
    pub(super) tenant: TenantId,
}

/// Argument of commands that use the database themselves.
#[derive(Debug, Clone, Args)]
pub(super) struct ConfigFileArg {
    /// The configuration file; without one, every key has its default
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
}

/// Arguments of `backend list`.
#[derive(Debug, Clone, Args)]
pub(super) struct BackendListArgs {
    #[command(flatten)]
    pub(super) of: TenantArg,
    /// List the backends of all tenants
    #[arg(long, conflicts_with = "tenant")]
    pub(super) all: bool,
    /// Only backends in this state
    #[arg(long, value_parser = ["connecting", "ready", "degraded", "failed", "disabled"])]
    pub(super) state: Option<String>,
    #[command(flatten)]
    pub(super) output: OutputOptions,
}
