//! The `mcp-broker` program. What each command does is in [`broker::cli`], the life of a broker process in
//! [`broker::serve`].

use std::process::ExitCode;

/// Messages are made on one thread and freed on another, which this allocator is good at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    broker::cli::main()
}
