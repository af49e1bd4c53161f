//! The scripted stdio backend (`stdio-backend`, the second binary of this crate), described by a
//! test.
//!
//! Its tools:
//!
//! - `echo`, `pid`, `env`
//! - `progress`: three steps
//! - `sample`, `elicit`, `roots`: each sends a request to its client and returns the answer
//! - `add_tool`: list changed
//! - `log`
//! - `exit`: dies mid-call
//! - `hang`
//! - `twice`: two answers
//! - `stray`: a wrong id first
//! - `garbage`: noise first

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::programs::executable_by_all;

/// Behaviour of the child; [`Self::spec`] turns it into the admin API's body.
#[derive(Debug, Clone)]
pub struct StdioScript {
    program: PathBuf,
    arguments: Vec<String>,
    env: Vec<(String, String)>,
    /// Files outside its home that it may write.
    write: Vec<PathBuf>,
}

impl StdioScript {
    /// Creates a script. The argument is any path in the folder that holds the built binaries, such
    /// as that of the broker.
    pub fn new(beside: impl AsRef<Path>) -> Self {
        let program = beside.as_ref().with_file_name("stdio-backend");
        assert!(
            program.exists(),
            "{} is missing: build it with `cargo build -p testkit --bins`",
            program.display()
        );
        Self {
            program: executable_by_all(&program),
            arguments: Vec::new(),
            env: Vec::new(),
            write: Vec::new(),
        }
    }

    fn flag(mut self, flag: &str) -> Self {
        self.arguments.push(flag.to_owned());
        self
    }

    fn option(self, name: &str, value: impl ToString) -> Self {
        let value = value.to_string();
        self.flag(name).flag(&value)
    }

    /// Appends every byte received on standard input to this file.
    pub fn record(self, file: &Path) -> Self {
        self.writes(file).option("--record", file.display())
    }

    /// Appends one line per process start (its pid) to this file.
    pub fn record_starts(self, file: &Path) -> Self {
        self.writes(file).option("--record-starts", file.display())
    }

    /// Allows the child to write this file, whatever its user: the file is made, and open to all.
    fn writes(mut self, file: &Path) -> Self {
        let folder = file.parent().expect("a file lies in a folder");
        std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .expect("the folder is writable");
        for (path, mode) in [(file, 0o666), (folder, 0o711)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
                .expect("the test owns what it made");
        }
        self.write.push(file.to_owned());
        self
    }

    /// Starts this many grandchildren that ignore SIGTERM and keep the pipes open.
    pub fn grandchildren(self, count: usize) -> Self {
        self.option("--grandchildren", count)
    }

    pub fn ignore_sigterm(self) -> Self {
        self.flag("--ignore-sigterm")
    }

    /// Keeps the child alive after standard input was closed.
    pub fn ignore_stdin_close(self) -> Self {
        self.flag("--ignore-stdin-close")
    }

    /// Writes a banner that is not JSON on standard output before anything else.
    pub fn banner(self) -> Self {
        self.flag("--banner")
    }

    /// Writes `ERROR` lines to standard error at start and at each call.
    pub fn noisy_stderr(self) -> Self {
        self.flag("--noisy-stderr")
    }

    /// Sets the version that `initialize` is answered with.
    pub fn version(self, version: &str) -> Self {
        self.option("--version", version)
    }

    /// Exits at once with a line on standard error.
    pub fn broken(self) -> Self {
        self.flag("--broken")
    }

    /// Adds a text to the command line by which the processes of this script are found in the
    /// process table.
    pub fn marker(self, marker: &str) -> Self {
        self.option("--marker", marker)
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the command of the process, for code that starts it instead of the broker.
    pub(crate) fn command(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(&self.program);
        command.args(&self.arguments).envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Returns the admin API's body for this backend.
    pub fn spec(&self) -> Value {
        let env: serde_json::Map<String, Value> =
            self.env.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let mut spec = json!({"transport": {"type": "stdio", "command": self.program, "args": self.arguments, "env": env}});
        if !self.write.is_empty() {
            spec["sandbox"] = json!({"write": self.write});
        }
        spec
    }
}

/// Returns the pids of the living processes whose command line holds `marker`. Zombies do not count
/// as living.
pub fn processes_with(marker: &str) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
        .filter(|pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|argument| argument == marker.as_bytes())
        })
        .collect()
}

/// Returns the number of children of a process that ended and were never waited for.
pub fn zombies_of(parent: u32) -> usize {
    let Ok(entries) = std::fs::read_dir("/proc") else { return 0 };
    entries
        .flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok())
        .filter(|stat| {
            let fields: Vec<&str> =
                stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
            fields.first() == Some(&"Z")
                && fields.get(1).and_then(|pid| pid.parse().ok()) == Some(parent)
        })
        .count()
}
