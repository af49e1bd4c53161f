//! The command line. `main` calls [`main`]. A command calls the part of the broker that implements
//! it. The commands for operators call the admin API of a running broker.
//!
//! Exit codes: 0 success, 1 refused by the broker, 64 wrong usage, 69 the broker or another server
//! is unreachable, 70 internal error.

mod admin;
mod approval;
mod args;
mod audit;
mod audit_verify;
mod bodies;
mod catalog;
mod catalog_args;
mod client;
mod common_args;
mod connection;
mod counts;
#[cfg(test)]
mod doc_commands;
mod import;
mod input_files;
mod issuer;
mod key_args;
mod operator;
mod output;
mod pins;
mod policy;
mod process;
mod process_args;
mod prompt;
mod root;
mod server_json;
mod server_json_faults;
mod table;
mod tenant;
#[cfg(test)]
mod tests;
mod token;

use std::{
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;
use transport::{child_guardian, child_launcher};

use self::{
    args::{Cli, Command},
    client::{AdminClient, ClientError},
};
use crate::{demo, listeners, serve};

const EXIT_REFUSED: u8 = 1;
const EXIT_USAGE: u8 = 64;
const EXIT_UNREACHABLE: u8 = 69;
const EXIT_INTERNAL: u8 = 70;

/// Runs the command from the arguments of this process.
pub fn main() -> ExitCode {
    // First of all: these arguments are a child's command line, and this process is about to become
    // the child.
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(first) if first == child_launcher::COMMAND => return child_launcher::run(arguments),
        Some(first) if first == child_guardian::COMMAND => return child_guardian::run(),
        _ => {}
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version were requested. Everything else is wrong usage. A closed terminal
            // changes neither.
            let error = with_tip(error, std::env::args_os().collect());
            let _ = error.print();
            return if error.use_stderr() { EXIT_USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    match cli.command {
        Command::Serve { config } => serve::run(serve::ServeOptions { config, demo: false }),
        Command::Demo => serve::run(serve::ServeOptions { config: None, demo: true }),
        Command::CheckConfig { file, locked } => serve::check_config(&file, locked.as_deref()),
        Command::Migrate(file) => serve::migrate(file.config.as_deref()),
        Command::AfterRestore(file) => serve::after_restore(file.config.as_deref()),
        Command::ConfigExample => print(&config::example::yaml()),
        Command::Openapi => {
            match serde_json::to_string_pretty(&listeners::admin::openapi::document()) {
                Ok(text) => print(&format!("{text}\n")),
                Err(error) => complain(EXIT_INTERNAL, &error.to_string()),
            }
        }
        Command::DemoBackend => demo::run(),
        Command::Admin(command) => administer(command),
    }
}

/// Returns the error about an unknown command after `help`, with the tip that the same error has
/// without `help`.
fn with_tip(error: clap::Error, mut arguments: Vec<OsString>) -> clap::Error {
    let is_of_help = arguments.get(1).is_some_and(|first| first == "help");
    if error.kind() != clap::error::ErrorKind::InvalidSubcommand || !is_of_help {
        return error;
    }
    arguments.remove(1);
    match Cli::try_parse_from(arguments) {
        Err(better) if better.kind() == error.kind() => better,
        _ => error,
    }
}

/// Calls the admin API and prints the answer.
fn administer(command: args::AdminCommand) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return complain(
                EXIT_INTERNAL,
                &format!("the operating system refused an event loop: {error}"),
            );
        }
    };
    let result = runtime.block_on(async {
        let client = AdminClient::from_environment()?;
        admin::run(&client, command).await
    });
    match result {
        Ok(output) => {
            let printed = print(&output.out);
            complain_softly(&output.note);
            printed
        }
        Err(error) => {
            let code = error.exit_code();
            complain_in_lines(error.lines());
            code.into()
        }
    }
}

impl ClientError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(_) | Self::Exists | Self::TooLarge { .. } => EXIT_REFUSED,
            Self::Partial { cause, .. } => cause.exit_code(),
            Self::Usage(_) | Self::Faults(_) => EXIT_USAGE,
            Self::Unreachable { .. }
            | Self::Unavailable(_)
            | Self::Certificate { .. }
            | Self::NoTls { .. }
            | Self::TimedOut { .. }
            | Self::Foreign { .. } => EXIT_UNREACHABLE,
            Self::Internal(_) => EXIT_INTERNAL,
        }
    }

    fn lines(self) -> Vec<String> {
        match self {
            Self::Faults(lines) | Self::Refused(lines) => lines,
            Self::Partial { cause, done } => cause.lines().into_iter().chain([done]).collect(),
            other => vec![other.to_string()],
        }
    }
}

/// Prints to standard output. Fails if it could not be written, unless its reader closed it: a key
/// may be shown this once only.
fn print(text: &str) -> ExitCode {
    match write_output(text) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => complain(error.exit_code(), &error.to_string()),
    }
}

/// Writes to standard output. Returns false if its reader closed it.
fn write_output(text: &str) -> Result<bool, ClientError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            Err(ClientError::Internal(format!("the answer could not be written: {error}")))
        }
    }
}

fn complain(code: u8, text: &str) -> ExitCode {
    complain_softly(text);
    code.into()
}

fn complain_softly(text: &str) {
    if !text.is_empty() {
        complain_in_lines(vec![text.to_owned()]);
    }
}

/// Prints to standard error. The texts of others have no line ends here.
fn complain_in_lines(lines: Vec<String>) {
    let lines: Vec<String> = lines.iter().map(|line| table::clean(line)).collect();
    let _ = writeln!(io::stderr(), "mcp-broker: {}", lines.join("\n  "));
}
