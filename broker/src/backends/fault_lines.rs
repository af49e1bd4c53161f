//! Log lines about faults that each message or connection of a backend can repeat. A backend gets one
//! line about each fault in an interval, whatever it sends and however often it connects.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use protocol::ids::{BackendId, TenantId};
use rules::local_rate_limit::{KeyedRateLimiter, one_per};

/// Minimum interval of log lines about one fault of one backend. Each line has the number of lines
/// left out.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Backends and faults with an interval of their own.
const LOGGED_FAULTS_MAX: usize = 10_000;

/// Fault of a backend that each of its messages or connections can repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RepeatedFault {
    /// Text that is not valid MCP.
    Noise,
    /// So much of that text that the broker closes the connection.
    NoisyConnection,
    /// A connection that the broker cannot read to its end.
    BrokenConnection,
    /// A request over MCP 2026-07-28.
    Request,
    /// A notification or an answer of the broker that the backend does not take.
    RefusedMessage,
    /// An event of its GET stream that the broker cannot read.
    UnreadableEvent,
    /// Lists of a principal that do not fit into the memory for such lists.
    PrincipalListsMemory,
}

/// Limits the lines about all backends.
#[derive(Debug)]
pub struct RepeatedFaultLimiter {
    started: Instant,
    rates: Mutex<KeyedRateLimiter<(TenantId, BackendId, RepeatedFault)>>,
}

impl Default for RepeatedFaultLimiter {
    fn default() -> Self {
        let rates = KeyedRateLimiter::new(one_per(LOG_INTERVAL), LOGGED_FAULTS_MAX);
        Self { started: Instant::now(), rates: Mutex::new(rates) }
    }
}

impl RepeatedFaultLimiter {
    /// Counts a fault of a backend. Returns the number of log lines left out before it, or `None` if
    /// it gets no line.
    pub fn check(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
        fault: RepeatedFault,
    ) -> Option<u64> {
        let key = (tenant.clone(), backend.clone(), fault);
        let checked = self.rates.lock().check(&key, self.started.elapsed());
        checked.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_gets_one_line_about_each_fault_in_an_interval() {
        let lines = RepeatedFaultLimiter::default();
        let acme = TenantId::parse("acme").unwrap();
        let [one, two] = ["one", "two"].map(|name| BackendId::parse(name).unwrap());
        let check = |backend: &BackendId, fault| lines.check(&acme, backend, fault);
        assert_eq!(check(&one, RepeatedFault::Noise), Some(0));
        assert_eq!([1; 3].map(|_| check(&one, RepeatedFault::Noise)), [None; 3]);
        for another in [
            RepeatedFault::NoisyConnection,
            RepeatedFault::BrokenConnection,
            RepeatedFault::Request,
            RepeatedFault::RefusedMessage,
            RepeatedFault::UnreadableEvent,
            RepeatedFault::PrincipalListsMemory,
        ] {
            assert_eq!((check(&one, another), check(&one, another)), (Some(0), None));
        }
        assert_eq!(check(&two, RepeatedFault::Noise), Some(0), "another backend");
    }
}
