//! A link over a child process: newline-delimited JSON on its standard streams (MCP 2025-11-25,
//! stdio).
//!
//! In addition to the tasks of every pipe, one task watches the process and ends it. It closes
//! standard input, then sends SIGTERM and SIGKILL to the whole process group.

use std::{
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::Arc,
    time::{Duration, Instant},
};

use config::{spec::TransportSpec, stdio::EffectiveChildLimits};
use protocol::characters;
use rules::limits::{CHILD_IDLE_CHECK_INTERVAL, CHILD_WRITE_STALL_MAX};
use transport::child_process::{self, Child, ChildLimits, ChildProcess, ChildSpec};

use super::{
    Link,
    connection::Connection,
    connection_guard::ConnectionGuard,
    failure::Failure,
    pipe::{self, LAST_WRITE_WAIT, Pipe},
    stateless,
};
use crate::{
    backends::{
        children::{ChildPermit, PROGRAM},
        provenance,
    },
    sandbox,
};

/// Time between the end of a child's output and the end of the child.
const CHILD_END_WAIT: Duration = Duration::from_millis(200);
/// Characters of a line of standard error in `last_error`.
const CHILD_LINE_CHARS_MAX: usize = 300;

/// Starts the child and performs the handshake.
pub(super) async fn open(link: &Arc<Link>) -> Result<Arc<Connection>, Failure> {
    let TransportSpec::Stdio { command, args, env, cwd, limits } = &link.backend.spec.transport
    else {
        return Err(Failure::NotSent("the backend is not a child process".to_owned()));
    };
    let (context, tenant) = (&link.backend.context, &link.backend.tenant);
    let stdio = &context.config.stdio;
    // The backend may have been stored before the operator restricted the commands.
    stdio
        .check(&link.backend.spec.transport)
        .map_err(|fault| Failure::OwnLimit(fault.to_string()))?;
    let permit = link
        .backend
        .resources
        .children
        .acquire(tenant, stdio.children_per_tenant)
        .map_err(|full| Failure::OwnLimit(full.to_string()))?;
    let effective = stdio.effective_limits(limits);
    let mut spec = ChildSpec::new(command.clone());
    spec.args = args.clone();
    spec.env = env.clone();
    spec.cwd = cwd.as_ref().map(PathBuf::from);
    spec.launcher = Some(Path::new(PROGRAM).to_owned());
    spec.resources = effective.resources.clone();
    spec.guardian = Some(link.backend.resources.children.guardian().clone());
    let spec = confined(link, spec).await?;
    provenance::record_command(&link.backend.pins, command, &spec).await;
    let limits = ChildLimits {
        line_bytes_max: link.backend.message_bytes(),
        write_stall_max: CHILD_WRITE_STALL_MAX,
        ..ChildLimits::default()
    };
    let Child { reader, writer, process } = started(spec, limits).await?;
    tracing::info!(tenant = %link.backend.tenant, backend = %link.backend.id, pid = process.pid(), "child process started");

    let Pipe { connection, writing } = pipe::start(link, reader, writer);
    let running = &link.backend.context.running;
    let child = RunningChild { process, writing, limits: effective, _permit: permit };
    running.spawn(watch(link.clone(), connection.clone(), child));
    let guard = ConnectionGuard::new(&connection, running);
    stateless::handshake::agree(&connection, link).await?;
    guard.disarm();
    Ok(connection)
}

/// Starts the child. A fork of a large process takes a while, in which the runtime has other work.
async fn started(spec: ChildSpec, limits: ChildLimits) -> Result<Child, Failure> {
    let starting = tokio::task::spawn_blocking(move || child_process::spawn(&spec, &limits));
    match starting.await {
        Ok(started) => started.map_err(|error| Failure::NotSent(error.to_string())),
        Err(error) => Err(Failure::NotSent(format!("the child could not be started: {error}"))),
    }
}

/// Adds the confinement to the child. A child that cannot be confined is not started.
async fn confined(link: &Arc<Link>, mut spec: ChildSpec) -> Result<ChildSpec, Failure> {
    let backend = link.backend.clone();
    let confining = tokio::task::spawn_blocking(move || {
        let level = backend.context.confinement.confine(
            &backend.tenant,
            &backend.spec.sandbox,
            &mut spec,
        )?;
        backend.health.record_sandbox(level);
        Ok(spec)
    });
    match confining.await {
        Ok(Ok(spec)) => Ok(spec),
        Ok(Err(sandbox::ConfinementError::Command(error))) => {
            Err(Failure::NotSent(error.to_string()))
        }
        Ok(Err(refused @ sandbox::ConfinementError::Sandbox(_))) => {
            Err(Failure::OwnLimit(refused.to_string()))
        }
        Err(error) => Err(Failure::NotSent(format!("the sandbox could not be prepared: {error}"))),
    }
}

/// A running child.
struct RunningChild {
    process: ChildProcess,
    /// The task that writes to its standard input.
    writing: tokio::task::JoinHandle<()>,
    limits: EffectiveChildLimits,
    /// Held until all processes of the child have ended.
    _permit: ChildPermit,
}

/// Waits for the end of the process or of the link, and ends the whole process group.
async fn watch(link: Arc<Link>, connection: Arc<Connection>, child: RunningChild) {
    let RunningChild { mut process, writing, limits, _permit } = child;
    let pid = process.pid();
    tokio::select! {
        // The end of its output is mostly noticed before the end of the process.
        () = connection.closed() => {
            if !link.is_closed()
                && let Ok(status) = tokio::time::timeout(CHILD_END_WAIT, process.wait()).await
            {
                record_end(&link, &process, status);
            }
        }
        status = process.wait() => {
            record_end(&link, &process, status);
            // Its last answer may still be in the pipe. The reader closes the connection at the end
            // of the pipe, unless a descendant of the child keeps it open.
            let _read_to_its_end = tokio::time::timeout(LAST_WRITE_WAIT, connection.closed()).await;
        }
        why = expired(&link, &connection, &limits) => {
            tracing::info!(tenant = %link.backend.tenant, backend = %link.backend.id, pid, why, "the broker ends a child process; the next request starts another one");
            link.retire(&connection);
            // Requests that took the connection a moment ago still get an answer.
            while !connection.is_closed() && !link.is_closed() {
                tokio::time::sleep(CHILD_IDLE_CHECK_INTERVAL).await;
                if !connection.has_pending() {
                    break;
                }
            }
        }
    }
    connection.close_now();
    if tokio::time::timeout(LAST_WRITE_WAIT, writing).await.is_err() {
        tracing::debug!(pid, "a child process does not read its standard input");
    }
    process.close().await;
    connection.mark_flushed();
    link.backend.connection_ended(&link, &connection);
}

/// Reports the end of a child to operators: its exit status, and a line of its standard error.
fn record_end(link: &Link, process: &ChildProcess, status: ExitStatus) {
    if link.is_probe() {
        return; // the backend works without it
    }
    let stderr = process.stderr_tail();
    let reason = shown_line(&link.backend.redactor.redact(&reason_line(&stderr)));
    let (tenant, backend, pid) = (&link.backend.tenant, &link.backend.id, process.pid());
    tracing::warn!(%tenant, %backend, pid, %status, stderr = reason, "child process ended");
    let end = match reason.as_str() {
        "" => format!("the child process ended ({status})"),
        reason => format!("the child process ended ({status}), on standard error: {reason}"),
    };
    link.backend.health.record_child_end(end);
}

/// Returns the last line that names an error, or else the last line. Interpreters print a trace or
/// their version after the reason.
fn reason_line(stderr: &str) -> &str {
    const MARKS: [&str; 5] = ["error", "exception", "panicked", "fatal", "denied"];
    let lines = || stderr.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let names_an_error = |line: &&str| {
        let lower = line.to_ascii_lowercase();
        !line.starts_with("at ") && MARKS.iter().any(|mark| lower.contains(mark))
    };
    lines().find(names_an_error).or_else(|| lines().next()).unwrap_or_default()
}

/// Returns a line for display: bounded, and without control or invisible characters.
fn shown_line(line: &str) -> String {
    let is_shown = |char: &char| !char.is_control() && !characters::is_unseen(*char);
    line.trim().chars().filter(is_shown).take(CHILD_LINE_CHARS_MAX).collect()
}

/// Waits until a child without requests in flight has reached its idle time or its lifetime. A child
/// with subscribers sends updates, so it is not idle. The catalog's child reports changes and never
/// expires.
async fn expired(
    link: &Link,
    connection: &Connection,
    limits: &EffectiveChildLimits,
) -> &'static str {
    if link.has_no_client() || (limits.idle.is_none() && limits.lifetime.is_none()) {
        return std::future::pending().await;
    }
    let mut idle = IdleTimer { since: Instant::now(), requests_sent: connection.requests_sent() };
    loop {
        tokio::time::sleep(CHILD_IDLE_CHECK_INTERVAL).await;
        let has_tasks = !link.tasks.is_empty();
        let quiet_for = idle.idle_for(connection, has_tasks || !link.subscriptions.is_empty());
        if limits.lifetime.is_some_and(|lifetime| connection.opened.elapsed() >= lifetime)
            && !connection.has_pending()
            && !has_tasks
        {
            return "the child reached its maximum lifetime";
        }
        if limits.idle.is_some_and(|idle| quiet_for >= idle) {
            return "the child reached its idle time";
        }
    }
}

struct IdleTimer {
    since: Instant,
    /// Requests sent so far.
    requests_sent: u64,
}

impl IdleTimer {
    /// Returns the time since the last request, or zero while an answer is pending or the child has
    /// subscribers.
    fn idle_for(&mut self, connection: &Connection, has_subscribers: bool) -> Duration {
        let sent = connection.requests_sent();
        if connection.has_pending() || has_subscribers || sent != self.requests_sent {
            *self = Self { since: Instant::now(), requests_sent: sent };
        }
        self.since.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s14_a_line_of_a_child_is_bounded_and_has_no_hidden_characters() {
        assert_eq!(shown_line("  no\u{202e} such\u{200b}\tfile\u{7f} "), "no suchfile");
        assert_eq!(shown_line(&"x".repeat(1000)).len(), CHILD_LINE_CHARS_MAX);
    }

    #[test]
    fn the_line_with_the_error_is_preferred_to_the_last_line() {
        let node = "node:internal/modules/cjs/loader:1228\n  throw err;\n\nError: Cannot find module 'x'\n    at Error (native)\n  code: 'MODULE_NOT_FOUND'\n}\n\nNode.js v22.1.0\n";
        let python = "Traceback (most recent call last):\n  File \"s.py\"\nModuleNotFoundError: No module named 'x'\n";
        let rust =
            "thread 'main' panicked at src/main.rs:2:5:\nnote: run with `RUST_BACKTRACE=1`\n";
        for (stderr, expected) in [
            (node, "Error: Cannot find module 'x'"),
            (python, "ModuleNotFoundError: No module named 'x'"),
            (rust, "thread 'main' panicked at src/main.rs:2:5:"),
            ("starting\nsh: 1: npx: not found\n\n", "sh: 1: npx: not found"),
            ("", ""),
        ] {
            assert_eq!(reason_line(stderr), expected);
        }
    }
}
