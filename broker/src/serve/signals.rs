//! Signals of the operating system. SIGTERM and SIGINT stop the broker, SIGHUP makes it reload its
//! configuration.

use std::io;

use tokio::signal::unix::{Signal as Source, SignalKind, signal};

pub(super) enum Signal {
    /// Stop, with the name of the signal for the log.
    Stop(&'static str),
    Reload,
}

/// Signal handlers. Installed before slow steps, so that a broker that is still starting can be
/// stopped.
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

    /// Returns the next signal. Cancel-safe: a dropped future loses no signal.
    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! { biased;
            _ = self.terminate.recv() => Signal::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Signal::Stop("SIGINT"),
            _ = self.hang_up.recv() => Signal::Reload,
        }
    }

    /// Returns the next stop signal. Ignores requests to reload. Cancel-safe.
    pub(super) async fn stop(&mut self) -> &'static str {
        loop {
            if let Signal::Stop(name) = self.next().await {
                return name;
            }
        }
    }
}
