//! In which era of MCP a backend lives, as far as it is known: asked once, remembered until the backend contradicts.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// The two eras of MCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Era {
    /// A session, opened by `initialize`.
    Legacy = 1,
    /// Each request stands alone.
    Modern = 2,
}

/// What is known of one backend.
#[derive(Debug, Default)]
pub struct EraMemory {
    known: AtomicU8,
    /// The backend ended when it was asked: it is tried once more, in the other way.
    died_of_asking: AtomicBool,
}

impl EraMemory {
    pub fn known(&self) -> Option<Era> {
        match self.known.load(Ordering::Relaxed) {
            1 => Some(Era::Legacy),
            2 => Some(Era::Modern),
            _ => None,
        }
    }

    pub fn note(&self, era: Era) {
        self.known.store(era as u8, Ordering::Relaxed);
    }

    /// It is asked again at the next opportunity.
    pub fn forget(&self) {
        self.known.store(0, Ordering::Relaxed);
    }

    /// Servers there are that end when the first message is not `initialize`.
    pub(super) fn died_of_asking(&self) {
        self.note(Era::Legacy);
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
        let memory = EraMemory::default();
        assert_eq!(memory.known(), None);
        memory.note(Era::Modern);
        assert_eq!(memory.known(), Some(Era::Modern));
        memory.forget();
        assert_eq!((memory.known(), memory.take_second_chance()), (None, false));
        memory.died_of_asking();
        assert_eq!(memory.known(), Some(Era::Legacy));
        assert!(memory.take_second_chance() && !memory.take_second_chance());
    }
}
