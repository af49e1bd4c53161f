//! Support of a backend for the two eras of MCP. The broker probes it once and caches the result
//! until the backend contradicts it.
//!
//! A backend that supports both is used in the era of its client, so that no translation is needed.
//! The broker sends `initialize` to a backend of 2026-07-28 only after the first client with a
//! session has arrived. Before that, the backend gets no message that its revision does not have.

use std::{
    sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering},
    time::Duration,
};

use config::spec::ProtocolChoice;
use tokio::sync::{Notify, watch};

/// The two eras of MCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// A session, opened by `initialize`.
    Sessions,
    /// Stateless requests.
    Stateless,
}

/// The eras that a backend supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum EraSupport {
    /// Sessions only.
    Sessions = 1,
    /// 2026-07-28 only.
    Stateless = 2,
    Both = 3,
    /// 2026-07-28. The broker has not probed for sessions.
    AtLeastStateless = 4,
}

impl EraSupport {
    /// Returns the era for a client of the era `wanted`. `None`: not known yet.
    pub fn to(self, wanted: Era) -> Option<Era> {
        match (self, wanted) {
            (EraSupport::Sessions, _) => Some(Era::Sessions),
            (EraSupport::Stateless, _) => Some(Era::Stateless),
            (EraSupport::Both, _) | (EraSupport::AtLeastStateless, Era::Stateless) => Some(wanted),
            (EraSupport::AtLeastStateless, Era::Sessions) => None,
        }
    }
}

/// The known support of one backend.
#[derive(Debug)]
pub struct EraCache {
    known: AtomicU8,
    /// Number of times that another connection became useful at once: the backend ended on a
    /// probe, or the probe decided the era of its connection.
    retries_useful: AtomicU32,
    /// Set when the next connection for clients with sessions begins with `initialize`.
    initialize_first: AtomicBool,
    /// Set when the first client with a session has arrived.
    sessions_wanted: AtomicBool,
    /// Notifies the catalog, which probes the backend.
    session_client_arrived: Notify,
    /// Set when the URL of the backend turned out to be one of HTTP+SSE.
    http_sse: AtomicBool,
    /// False while the support for sessions is still to be determined. True if it is known or
    /// cannot be determined now.
    settled: watch::Sender<bool>,
}

impl Default for EraCache {
    fn default() -> Self {
        Self {
            known: AtomicU8::new(0),
            retries_useful: AtomicU32::new(0),
            initialize_first: AtomicBool::new(false),
            sessions_wanted: AtomicBool::new(false),
            session_client_arrived: Notify::new(),
            http_sse: AtomicBool::new(false),
            settled: watch::Sender::new(true),
        }
    }
}

impl EraCache {
    pub fn known(&self) -> Option<EraSupport> {
        match self.known.load(Ordering::Relaxed) {
            1 => Some(EraSupport::Sessions),
            2 => Some(EraSupport::Stateless),
            3 => Some(EraSupport::Both),
            4 => Some(EraSupport::AtLeastStateless),
            _ => None,
        }
    }

    /// Returns the era for a client of the era `wanted`, if it is known.
    pub fn to(&self, choice: ProtocolChoice, wanted: Era) -> Option<Era> {
        match choice {
            ProtocolChoice::Legacy => Some(Era::Sessions),
            ProtocolChoice::Modern => Some(Era::Stateless),
            ProtocolChoice::Auto => self.known().and_then(|support| support.to(wanted)),
        }
    }

    pub fn record(&self, support: EraSupport) {
        self.known.store(support as u8, Ordering::Relaxed);
    }

    /// Clears the cached support. The next connection probes again.
    pub fn forget(&self) {
        self.known.store(0, Ordering::Relaxed);
        self.initialize_first.store(false, Ordering::Relaxed);
    }

    /// Notes that a client with a session has arrived.
    pub fn want_sessions(&self) {
        if !self.sessions_wanted() && !self.sessions_wanted.swap(true, Ordering::Relaxed) {
            self.session_client_arrived.notify_one();
        }
    }

    pub fn sessions_wanted(&self) -> bool {
        self.sessions_wanted.load(Ordering::Relaxed)
    }

    /// Returns whether a backend that is used in the form of 2026-07-28 may support sessions too.
    pub fn may_support_sessions(&self, choice: ProtocolChoice) -> bool {
        choice == ProtocolChoice::Auto && self.known() != Some(EraSupport::Stateless)
    }

    /// Returns whether the last connection was one of HTTP+SSE (2024-11-05) at a URL that refused
    /// Streamable HTTP.
    pub fn uses_http_sse(&self) -> bool {
        self.http_sse.load(Ordering::Relaxed)
    }

    pub(super) fn record_http_sse(&self, uses: bool) {
        self.http_sse.store(uses, Ordering::Relaxed);
    }

    /// Waits until the first client with a session arrives. Resolves once.
    pub async fn first_session_client(&self) {
        self.session_client_arrived.notified().await;
    }

    /// Sets whether the current lists are those that clients with sessions get. Also true if these
    /// cannot be fetched now.
    pub fn set_settled(&self, settled: bool) {
        self.settled.send_replace(settled);
    }

    /// Waits until [`EraCache::set_settled`] was called with true, for `within` at most.
    pub async fn settled(&self, within: Duration) {
        let mut settled = self.settled.subscribe();
        let _in_time = tokio::time::timeout(within, settled.wait_for(|settled| *settled)).await;
    }

    /// Notes that the backend ended on a probe, as some servers do on an unknown request.
    /// `remaining` is the remaining support.
    pub(super) fn record_end_by_probe(&self, remaining: EraSupport) {
        self.record(remaining);
        self.retries_useful.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the backend refused `initialize` after `server/discover` on the same connection.
    /// Some servers keep the era of the first request for the whole connection. The next one
    /// begins with `initialize`.
    pub(super) fn retry_with_initialize(&self) {
        self.record(EraSupport::AtLeastStateless);
        self.initialize_first.store(true, Ordering::Relaxed);
        self.retries_useful.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether a connection for clients with sessions begins with `initialize`.
    pub(super) fn initialize_first(&self) -> bool {
        self.initialize_first.load(Ordering::Relaxed)
            && self.known() == Some(EraSupport::AtLeastStateless)
    }

    /// Returns a number that grows when another attempt is useful at once. All connections of the
    /// backend compare it, so that none takes the attempt of another.
    pub(super) fn retries_useful(&self) -> u32 {
        self.retries_useful.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_era_is_remembered_until_it_is_contradicted() {
        let memory = EraCache::default();
        assert_eq!(memory.known(), None);
        memory.record(EraSupport::Stateless);
        assert_eq!(memory.known(), Some(EraSupport::Stateless));
        memory.forget();
        assert_eq!((memory.known(), memory.retries_useful()), (None, 0));
        memory.record_end_by_probe(EraSupport::Sessions);
        assert_eq!(memory.known(), Some(EraSupport::Sessions));
        assert_eq!((memory.retries_useful(), memory.initialize_first()), (1, false));
        memory.retry_with_initialize();
        assert_eq!(memory.known(), Some(EraSupport::AtLeastStateless));
        assert_eq!((memory.retries_useful(), memory.initialize_first()), (2, true));
        memory.record(EraSupport::Both);
        assert!(!memory.initialize_first());
    }

    #[test]
    fn a_backend_of_both_eras_is_used_in_the_era_of_the_client() {
        let memory = EraCache::default();
        assert_eq!(memory.to(ProtocolChoice::Auto, Era::Stateless), None);
        assert_eq!(
            memory.to(ProtocolChoice::Modern, Era::Sessions),
            Some(Era::Stateless),
            "the operator knows"
        );
        memory.record(EraSupport::Both);
        for era in [Era::Sessions, Era::Stateless] {
            assert_eq!(memory.to(ProtocolChoice::Auto, era), Some(era));
        }
        memory.record(EraSupport::Stateless);
        assert_eq!(memory.to(ProtocolChoice::Auto, Era::Sessions), Some(Era::Stateless));
        memory.record(EraSupport::AtLeastStateless);
        assert_eq!(
            (
                memory.to(ProtocolChoice::Auto, Era::Stateless),
                memory.to(ProtocolChoice::Auto, Era::Sessions)
            ),
            (Some(Era::Stateless), None)
        );
    }
}
