//! Arguments of the commands about the process itself: its configuration, its log, the replicas and
//! the drain.

use clap::{Args, Subcommand};

use super::common_args::OutputOptions;

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Print the configuration in force as YAML, with defaults and sources and without secrets
    Show(OutputOptions),
}

#[derive(Debug, Subcommand)]
pub(super) enum LogCommand {
    /// Show the log filter of the replica that answers
    Show(OutputOptions),
    /// Set the log filter of the replica that answers, for a time
    Set {
        /// A level, or directives such as info,broker::backends=debug
        filter: String,
        /// Time until the configured filter is in force again, at most 24h [default: 10m]
        #[arg(long = "for", value_name = "DURATION")]
        time: Option<String>,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Return to the configured log filter
    Reset(OutputOptions),
}

#[derive(Debug, Subcommand)]
pub(super) enum NodeCommand {
    /// List replicas
    List(OutputOptions),
}

#[derive(Debug, Args)]
pub(super) struct DrainArgs {
    /// Another replica than the one that answers: its name of `node list`, or its node.id
    #[arg(long, value_name = "NODE")]
    pub(super) node: Option<String>,
    #[command(flatten)]
    pub(super) output: OutputOptions,
}
