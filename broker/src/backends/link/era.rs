//! In which eras of MCP a backend can be spoken to, as far as it is known: asked once, remembered until the backend
//! contradicts.
//!
//! A backend that speaks both is spoken to as its client speaks: what need not be translated is not. Whether one of
//! 2026-07-28 knows sessions too is asked when the first client with a session is there, and not before: it gets nothing that
//! its revision does not have for the sake of nobody.

use std::{
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
    time::Duration,
};

use tokio::sync::{Notify, watch};

use crate::config::spec::ProtocolChoice;

/// The two eras of MCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// A session, opened by `initialize`.
    Sessions,
    /// Each request stands alone.
    Stateless,
}

/// What a backend speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum EraSupport {
    /// Sessions, and nothing else.
    Sessions = 1,
    /// 2026-07-28, and nothing else.
    Stateless = 2,
    Both = 3,
    /// 2026-07-28; whether it knows sessions was not asked.
    AtLeastStateless = 4,
}

impl EraSupport {
    /// The era for a client of `wanted`.
    pub fn to(self, wanted: Era) -> Option<Era> {
        match (self, wanted) {
            (EraSupport::Sessions, _) => Some(Era::Sessions),
            (EraSupport::Stateless, _) => Some(Era::Stateless),
            (EraSupport::Both, _) | (EraSupport::AtLeastStateless, Era::Stateless) => Some(wanted),
            (EraSupport::AtLeastStateless, Era::Sessions) => None,
        }
    }
}

/// What is known of one backend.
#[derive(Debug)]
pub struct EraCache {
    known: AtomicU8,
    /// The backend ended when it was asked: it is tried once more, in the other way.
    died_of_asking: AtomicBool,
    /// There is, or was, a client with a session.
    sessions_wanted: AtomicBool,
    /// For the catalog, which asks.
    ask_for_sessions: Notify,
    /// Nothing more is to be found out for clients with sessions, or nobody could find it out.
    settled: watch::Sender<bool>,
}

impl Default for EraCache {
    fn default() -> Self {
        Self {
            known: AtomicU8::new(0),
            died_of_asking: AtomicBool::new(false),
            sessions_wanted: AtomicBool::new(false),
            ask_for_sessions: Notify::new(),
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

    /// The era for a client of `wanted`, as far as that is known.
    pub fn to(&self, choice: ProtocolChoice, wanted: Era) -> Option<Era> {
        match choice {
            ProtocolChoice::Legacy => Some(Era::Sessions),
            ProtocolChoice::Modern => Some(Era::Stateless),
            ProtocolChoice::Auto => self.known().and_then(|speaks| speaks.to(wanted)),
        }
    }

    pub fn note(&self, speaks: EraSupport) {
        self.known.store(speaks as u8, Ordering::Relaxed);
    }

    /// It is asked again at the next opportunity.
    pub fn forget(&self) {
        self.known.store(0, Ordering::Relaxed);
    }

    /// A client with a session is here.
    pub fn want_sessions(&self) {
        if !self.sessions_wanted() && !self.sessions_wanted.swap(true, Ordering::Relaxed) {
            self.ask_for_sessions.notify_one();
        }
    }

    pub fn sessions_wanted(&self) -> bool {
        self.sessions_wanted.load(Ordering::Relaxed)
    }

    /// A backend that is spoken to in the form of 2026-07-28 may know sessions too.
    pub fn may_know_sessions(&self, choice: ProtocolChoice) -> bool {
        choice == ProtocolChoice::Auto && self.known() != Some(EraSupport::Stateless)
    }

    /// Resolves, once, when the first client with a session is here.
    pub async fn asked_for_sessions(&self) {
        self.ask_for_sessions.notified().await;
    }

    /// The lists in force were fetched in the era that clients with sessions get them in, or cannot be fetched now.
    pub fn set_settled(&self, settled: bool) {
        self.settled.send_replace(settled);
    }

    /// Waits, within reason, until it is.
    pub async fn settled(&self, within: Duration) {
        let mut settled = self.settled.subscribe();
        let _in_time = tokio::time::timeout(within, settled.wait_for(|settled| *settled)).await;
    }

    /// Servers there are that end when they are told what they do not know. This is what is left.
    pub(super) fn died_of_asking(&self, left: EraSupport) {
        self.note(left);
        self.died_of_asking.store(true, Ordering::Relaxed);
    }

    /// Whether another attempt is worth making at once.
    pub fn take_second_chance(&self) -> bool {
        self.died_of_asking.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_era_is_remembered_until_it_is_contradicted() {
        let memory = EraCache::default();
        assert_eq!(memory.known(), None);
        memory.note(EraSupport::Stateless);
        assert_eq!(memory.known(), Some(EraSupport::Stateless));
        memory.forget();
        assert_eq!((memory.known(), memory.take_second_chance()), (None, false));
        memory.died_of_asking(EraSupport::Sessions);
        assert_eq!(memory.known(), Some(EraSupport::Sessions));
        assert!(memory.take_second_chance() && !memory.take_second_chance());
    }

    #[test]
    fn who_speaks_both_is_spoken_to_as_the_client_speaks() {
        let memory = EraCache::default();
        assert_eq!(memory.to(ProtocolChoice::Auto, Era::Stateless), None);
        assert_eq!(
            memory.to(ProtocolChoice::Modern, Era::Sessions),
            Some(Era::Stateless),
            "the operator knows"
        );
        memory.note(EraSupport::Both);
        for era in [Era::Sessions, Era::Stateless] {
            assert_eq!(memory.to(ProtocolChoice::Auto, era), Some(era));
        }
        memory.note(EraSupport::Stateless);
        assert_eq!(memory.to(ProtocolChoice::Auto, Era::Sessions), Some(Era::Stateless));
        memory.note(EraSupport::AtLeastStateless);
        assert_eq!(
            (
                memory.to(ProtocolChoice::Auto, Era::Stateless),
                memory.to(ProtocolChoice::Auto, Era::Sessions)
            ),
            (Some(Era::Stateless), None)
        );
    }
}
