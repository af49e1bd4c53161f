//! A link over a child process: newline-delimited JSON on its standard streams (MCP 2025-11-25, stdio).
//!
//! Beside the tasks of every pipe, one watches the process and says goodbye (standard input closed, SIGTERM, SIGKILL of the
//! whole group).

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use transport::child_process::{self, Child, ChildLimits, ChildProcess, ChildSpec};

use super::{
    Link,
    connection::{Connection, Failure},
    handshake_guard::HandshakeGuard,
    pipe::{self, LAST_WRITE_WAIT, Pipe},
    stateless,
};
use crate::{
    backends::children::{ChildPermit, PROGRAM},
    config::{spec::TransportSpec, stdio::EffectiveChildLimits},
    limits::CHILD_IDLE_CHECK_INTERVAL,
    sandbox,
};

/// Starts the child and performs the handshake.
pub(super) async fn open(link: &Arc<Link>) -> Result<Arc<Connection>, Failure> {
    let TransportSpec::Stdio { command, args, env, cwd, limits } = &link.backend.spec.transport
    else {
        return Err(Failure::NotSent("the backend is not a child process".to_owned()));
    };
    let (shared, tenant) = (&link.backend.shared, &link.backend.tenant);
    let stdio = &shared.config.stdio;
    // It may have been stored before the operator listed what may be run.
    stdio
        .check(&link.backend.spec.transport)
        .map_err(|fault| Failure::OwnLimit(fault.to_string()))?;
    let place = shared
        .children
        .acquire(tenant, stdio.children_per_tenant)
        .map_err(|full| Failure::OwnLimit(full.to_string()))?;
    let rules = stdio.rules(limits);
    let mut spec = ChildSpec::new(command.clone());
    spec.args = args.clone();
    spec.env = env.clone();
    spec.cwd = cwd.as_ref().map(PathBuf::from);
    spec.launcher = Some(Path::new(PROGRAM).to_owned());
    spec.resources = rules.resources.clone();
    spec.guardian = Some(shared.children.guardian().clone());
    let spec = confined(link, spec).await?;
    let limits =
        ChildLimits { line_bytes_max: link.backend.message_bytes(), ..ChildLimits::default() };
    let Child { reader, writer, process } = child_process::spawn(&spec, &limits)
        .map_err(|error| Failure::NotSent(error.to_string()))?;
    tracing::info!(backend = %link.backend.id, pid = process.pid(), "child process started");

    let Pipe { connection, writing } = pipe::start(link, reader, writer);
    let running = &link.backend.shared.running;
    running.spawn(watch(link.clone(), connection.clone(), process, writing, rules, place));
    let guard = HandshakeGuard::new(&connection, running);
    stateless::handshake::agree(&connection, link).await?;
    guard.disarm();
    Ok(connection)
}

/// What confines the child, added to what is started. A child that cannot be confined is not started.
async fn confined(link: &Arc<Link>, mut spec: ChildSpec) -> Result<ChildSpec, Failure> {
    let backend = link.backend.clone();
    let confining = tokio::task::spawn_blocking(move || {
        let level = backend.shared.confinement.confine(
            &backend.tenant,
            &backend.spec.sandbox,
            &mut spec,
        )?;
        backend.note_sandbox(level);
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

/// Waits for the process to end, or for the link to be closed, and leaves nothing of its group behind.
async fn watch(
    link: Arc<Link>,
    connection: Arc<Connection>,
    mut process: ChildProcess,
    writing: tokio::task::JoinHandle<()>,
    rules: EffectiveChildLimits,
    _place: ChildPermit,
) {
    let pid = process.pid();
    tokio::select! {
        () = connection.closed() => {}
        status = process.wait() => {
            let stderr = process.stderr_tail();
            let last = link.backend.redactor.redacted(&stderr.lines().last().unwrap_or_default());
            tracing::warn!(backend = %link.backend.id, pid, %status, stderr = last, "child process ended");
            // Its last answer may still be in the pipe. The reader closes the connection at the end of that, unless a descendant
            // of the child holds it open.
            let _read_to_its_end = tokio::time::timeout(LAST_WRITE_WAIT, connection.closed()).await;
        }
        why = expired(&link, &connection, &rules) => {
            tracing::info!(backend = %link.backend.id, pid, why, "child process is ended, the next request starts another");
            link.retire(&connection);
            // Whoever took the connection a moment ago still gets an answer.
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

/// Resolves when a child that nobody waits for was idle, or lived, for as long as it may. The catalog's child tells of
/// changes and stays.
async fn expired(
    link: &Link,
    connection: &Connection,
    rules: &EffectiveChildLimits,
) -> &'static str {
    if link.is_catalog() || (rules.idle.is_none() && rules.lifetime.is_none()) {
        return std::future::pending().await;
    }
    let mut idle = IdleTimer { since: Instant::now(), requests_sent: connection.requests_sent() };
    loop {
        tokio::time::sleep(CHILD_IDLE_CHECK_INTERVAL).await;
        let quiet_for = idle.idle_for(connection);
        if rules.lifetime.is_some_and(|lifetime| connection.opened.elapsed() >= lifetime)
            && !connection.has_pending()
        {
            return "it lived for as long as it may";
        }
        if rules.idle.is_some_and(|idle| quiet_for >= idle) {
            return "it was asked nothing for as long as that may be";
        }
    }
}

struct IdleTimer {
    since: Instant,
    /// Requests sent so far.
    requests_sent: u64,
}

impl IdleTimer {
    /// How long nothing was asked, and nothing is waited for.
    fn idle_for(&mut self, connection: &Connection) -> Duration {
        let asked = connection.requests_sent();
        if connection.has_pending() || asked != self.requests_sent {
            *self = Self { since: Instant::now(), requests_sent: asked };
        }
        self.since.elapsed()
    }
}
