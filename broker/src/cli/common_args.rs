//! Arguments that many commands share.

use clap::Args;
use protocol::ids::TenantId;

#[derive(Debug, Clone, Args)]
pub(super) struct OutputOptions {
    /// Print JSON instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Clone, Args)]
pub(super) struct TenantArg {
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = TenantId::parse)]
    pub(super) tenant: TenantId,
}
