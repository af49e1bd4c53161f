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
    /// `None`: signals are the caller's own affair.
    sources: Option<SignalSources>,
}

struct SignalSources {
    terminate: Source,
    interrupt: Source,
    hang_up: Source,
}

impl Signals {
    pub(super) fn install() -> io::Result<Self> {
        let sources = SignalSources {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        };
        Ok(Self { sources: Some(sources) })
    }

    /// Returns no signal ever, and installs no handler.
    pub(super) const fn ignored() -> Self {
        Self { sources: None }
    }

    /// Returns the next signal. Cancel-safe: a dropped future loses no signal.
    pub(super) async fn next(&mut self) -> Signal {
        let Some(sources) = &mut self.sources else { return std::future::pending().await };
        tokio::select! { biased;
            _ = sources.terminate.recv() => Signal::Stop("SIGTERM"),
            _ = sources.interrupt.recv() => Signal::Stop("SIGINT"),
            _ = sources.hang_up.recv() => Signal::Reload,
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
