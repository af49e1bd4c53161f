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
    stop: StopSources,
    hang_up: Source,
}

struct StopSources {
    terminate: Source,
    interrupt: Source,
}

impl Signals {
    pub(super) fn install() -> io::Result<Self> {
        let stop = StopSources {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        };
        let hang_up = signal(SignalKind::hangup())?;
        Ok(Self { sources: Some(SignalSources { stop, hang_up }) })
    }

    /// Returns no signal ever, and installs no handler.
    pub(super) const fn ignored() -> Self {
        Self { sources: None }
    }

    /// Returns the next signal. Cancel-safe: a dropped future loses no signal.
    pub(super) async fn next(&mut self) -> Signal {
        let Some(sources) = &mut self.sources else { return std::future::pending().await };
        tokio::select! { biased;
            name = sources.stop.next() => Signal::Stop(name),
            _ = sources.hang_up.recv() => Signal::Reload,
        }
    }

    /// Returns the next stop signal. A request to reload stays for [`Self::next`]. Cancel-safe.
    pub(super) async fn stop(&mut self) -> &'static str {
        match &mut self.sources {
            Some(sources) => sources.stop.next().await,
            None => std::future::pending().await,
        }
    }
}

impl StopSources {
    async fn next(&mut self) -> &'static str {
        tokio::select! { biased;
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::process::{Signal as Sent, getpid, kill_process};

    use super::*;

    #[tokio::test]
    async fn a_wait_for_a_stop_leaves_a_reload_for_later() {
        let (mut signals, mut other) = (Signals::install().unwrap(), Signals::install().unwrap());
        kill_process(getpid(), Sent::HUP).unwrap();
        assert!(matches!(other.next().await, Signal::Reload), "the signal was delivered");
        tokio::select! { biased;
            name = signals.stop() => panic!("{name} was not sent"),
            () = std::future::ready(()) => {}
        }
        let kept = tokio::time::timeout(Duration::from_secs(10), signals.next()).await;
        assert!(matches!(kept, Ok(Signal::Reload)), "the wait took the reload");
    }
}
