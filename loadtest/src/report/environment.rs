//! The machine and the versions that a result is from.

use std::{fmt, fs};

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// Model of the processor, as the system names it.
    pub processor: String,
    pub processors: usize,
    pub kernel: String,
    /// Version of the load tester.
    pub tester: String,
    /// Name and version of the target, as it reported them. Empty if it did not.
    pub server: String,
}

impl Environment {
    /// Returns the environment of this process.
    pub(super) fn here(server: String) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let processor = read("/proc/cpuinfo")
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, model)| model.to_owned());
        Self {
            processor,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            tester: env!("CARGO_PKG_VERSION").to_owned(),
            server,
        }
    }
}

impl fmt::Display for Environment {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processor, processors, kernel, tester, server } = self;
        let server = if server.is_empty() { "a server without a name" } else { server };
        write!(out, "{server}; mcp-loadtest {tester} on {processors} x {processor}, {kernel}")
    }
}
