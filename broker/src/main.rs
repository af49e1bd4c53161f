//! The `mcp-broker` program. [`broker::cli`] implements the commands, and [`broker::serve`] the
//! life of a broker process.

use std::process::ExitCode;

/// Messages are often allocated on one thread and freed on another, a strength of this allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    broker::cli::main()
}
