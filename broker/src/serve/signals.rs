//! What the outside asks a running broker for. SIGTERM and SIGINT stop it, SIGHUP makes it read its configuration again.

use std::io;

use tokio::signal::unix::{Signal as Source, SignalKind, signal};

pub(super) enum Signal {
    /// By name, for the log.
    Stop(&'static str),
    Reload,
}

/// Installed before anything slow happens, so that a broker that is still starting can be stopped too.
pub(super) struct Signals {
    terminate: Source,
    interrupt: Source,
    hang_up: Source,
}

impl Signals {
    pub(super) fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Cancel-safe: a signal that came is not lost with a dropped future.
    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! { biased;
            _ = self.terminate.recv() => Signal::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Signal::Stop("SIGINT"),
            _ = self.hang_up.recv() => Signal::Reload,
        }
    }

    /// Cancel-safe; requests to reload are passed over.
    pub(super) async fn stop(&mut self) -> &'static str {
        loop {
            if let Signal::Stop(name) = self.next().await {
                return name;
            }
        }
    }
}
