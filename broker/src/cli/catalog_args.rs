//! Arguments of the commands about toolsets, hosted prompts and the cost of lists.

use std::path::PathBuf;

use clap::Subcommand;
use protocol::ids::ToolsetId;
use rules::catalog::parse_prompt_name;

use super::{
    common_args::{OutputOptions, TenantArg},
    counts::count,
};

#[derive(Debug, Subcommand)]
pub(super) enum ToolsetCommand {
    /// Store the toolset of a file (JSON), or replace the stored one
    Put {
        #[arg(value_parser = ToolsetId::parse)]
        name: ToolsetId,
        /// The file, or - for standard input
        file: PathBuf,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Print a toolset as JSON
    Get {
        #[arg(value_parser = ToolsetId::parse)]
        name: ToolsetId,
        #[command(flatten)]
        of: TenantArg,
    },
    /// List the toolsets of a tenant
    List {
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Remove a toolset, its endpoint and its limits for callers
    Remove {
        #[arg(value_parser = ToolsetId::parse)]
        name: ToolsetId,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum PromptCommand {
    /// Store the prompt of a file (JSON), or replace the stored one
    Put {
        #[arg(value_parser = parse_prompt_name)]
        name: String,
        /// The file, or - for standard input
        file: PathBuf,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Print a prompt as JSON
    Get {
        #[arg(value_parser = parse_prompt_name)]
        name: String,
        #[command(flatten)]
        of: TenantArg,
    },
    /// List the prompts that the broker hosts for a tenant
    List {
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Remove a prompt
    Remove {
        #[arg(value_parser = parse_prompt_name)]
        name: String,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum CatalogCommand {
    /// Estimate the tokens that the tools cost the context of a model
    Cost {
        /// A published toolset, instead of all backends
        #[arg(long, value_name = "NAME", value_parser = ToolsetId::parse)]
        toolset: Option<ToolsetId>,
        /// Number of tools to name, the most expensive ones first
        #[arg(long, default_value_t = 20, value_parser = count::<usize>)]
        limit: usize,
        #[command(flatten)]
        of: TenantArg,
        #[command(flatten)]
        output: OutputOptions,
    },
}
