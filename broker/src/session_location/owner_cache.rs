//! Who was last known to own which session. Bounded; what it says may be wrong, and who finds out drops it.

use std::{
    collections::HashMap,
    mem,
    sync::{Mutex, PoisonError},
};

use storage::SessionKey;

use super::SessionOwner;

/// Two generations: what is asked for moves to the young one, and when that is full it becomes the old one.
#[derive(Debug)]
pub(crate) struct OwnerCache {
    generation_max: usize,
    generations: Mutex<OwnerGenerations>,
}

#[derive(Debug, Default)]
struct OwnerGenerations {
    young: HashMap<SessionKey, SessionOwner>,
    old: HashMap<SessionKey, SessionOwner>,
}

impl OwnerCache {
    pub(crate) fn new(entries_max: usize) -> Self {
        Self { generation_max: (entries_max / 2).max(1), generations: Mutex::default() }
    }

    pub(crate) fn get(&self, session: &SessionKey) -> Option<SessionOwner> {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(owner) = generations.young.get(session) {
            return Some(owner.clone());
        }
        let owner = generations.old.remove(session)?;
        generations.put(*session, owner.clone(), self.generation_max);
        Some(owner)
    }

    pub(crate) fn note(&self, session: SessionKey, owner: SessionOwner) {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        generations.old.remove(&session);
        generations.put(session, owner, self.generation_max);
    }

    /// Forgets this owner; another one, noted meanwhile, stays.
    pub(crate) fn forget(&self, session: &SessionKey, owner: &SessionOwner) {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let OwnerGenerations { young, old } = &mut *generations;
        for generation in [young, old] {
            if generation.get(session) == Some(owner) {
                generation.remove(session);
            }
        }
    }
}

impl OwnerGenerations {
    fn put(&mut self, session: SessionKey, owner: SessionOwner, max: usize) {
        if self.young.len() >= max && !self.young.contains_key(&session) {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(session, owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: u8) -> SessionKey {
        SessionKey::new([number; 32])
    }

    fn owner(node: &str) -> SessionOwner {
        SessionOwner { node: node.to_owned(), address: format!("{node}:1") }
    }

    #[test]
    fn what_is_asked_for_stays_and_the_rest_makes_room() {
        let owners = OwnerCache::new(8);
        owners.note(session(0), owner("a"));
        for number in 1..=100 {
            owners.note(session(number), owner("b"));
            assert_eq!(owners.get(&session(0)), Some(owner("a")), "after {number}");
        }
        let known = (1..=100).filter(|number| owners.get(&session(*number)).is_some()).count();
        assert!(known <= 8, "{known} are known");
    }

    #[test]
    fn only_the_owner_that_proved_wrong_is_forgotten() {
        let owners = OwnerCache::new(8);
        owners.note(session(1), owner("a"));
        owners.note(session(1), owner("b"));
        owners.forget(&session(1), &owner("a"));
        assert_eq!(owners.get(&session(1)), Some(owner("b")));
        owners.forget(&session(1), &owner("b"));
        assert_eq!(owners.get(&session(1)), None);
    }
}
