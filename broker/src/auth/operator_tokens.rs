//! Tokens of named operators, as one immutable snapshot. The admin listener checks them.

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwap;
use aws_lc_rs::hmac;
use rules::operators::Operator;

use super::{
    root_secret::KeysError,
    secret_token::{SecretToken, token_id},
};

/// Prefix of every operator's token, which secret scanners can find.
const PREFIX: &str = "mcpo_";

/// An operator and the hash of its token.
#[derive(Debug, Clone)]
pub struct OperatorEntry {
    pub id: String,
    pub hash: Vec<u8>,
    pub operator: Arc<Operator>,
}

/// The tokens of all operators.
#[derive(Debug)]
pub struct OperatorTokens {
    hasher: hmac::Key,
    entries: ArcSwap<HashMap<String, OperatorEntry>>,
}

impl OperatorTokens {
    /// Returns an empty set. `hasher` is [`super::Keys::operator`].
    pub fn new(hasher: hmac::Key) -> Self {
        Self { hasher, entries: ArcSwap::default() }
    }

    /// Returns a new token. The caller stores its hash.
    pub fn mint(&self) -> Result<SecretToken, KeysError> {
        SecretToken::mint(PREFIX, &self.hasher)
    }

    /// Returns the operator of a token. Returns `None` for every reason, so that a refusal reveals
    /// nothing.
    pub fn verify(&self, bearer: &str) -> Option<Arc<Operator>> {
        let entries = self.entries.load();
        let entry = entries.get(token_id(PREFIX, bearer)?)?;
        // Compares in constant time.
        hmac::verify(&self.hasher, bearer.as_bytes(), &entry.hash).ok()?;
        Some(Arc::clone(&entry.operator))
    }

    /// Returns whether a bearer has the form of an operator's token.
    pub fn has_form(bearer: &str) -> bool {
        bearer.starts_with(PREFIX)
    }

    /// Replaces all operators. Returns those that are gone.
    pub fn replace(&self, entries: impl IntoIterator<Item = OperatorEntry>) -> Vec<Arc<Operator>> {
        let entries: HashMap<_, _> =
            entries.into_iter().map(|entry| (entry.id.clone(), entry)).collect();
        let before = self.entries.swap(Arc::new(entries));
        let now = self.entries.load();
        let gone = before.values().filter(|entry| !now.contains_key(&entry.id));
        gone.map(|entry| Arc::clone(&entry.operator)).collect()
    }

    pub fn insert(&self, entry: OperatorEntry) {
        self.entries.rcu(|entries| {
            let mut next = HashMap::clone(entries);
            next.insert(entry.id.clone(), entry.clone());
            next
        });
    }

    /// Removes an operator and returns it.
    pub fn remove(&self, id: &str) -> Option<Arc<Operator>> {
        let before = self.entries.rcu(|entries| {
            let mut next = HashMap::clone(entries);
            next.remove(id);
            next
        });
        before.get(id).map(|entry| Arc::clone(&entry.operator))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Keys;

    #[test]
    fn a_token_is_valid_until_it_is_removed() {
        let keys = Keys::from_root(b"a root secret for tests");
        let tokens = OperatorTokens::new(keys.operator);
        let minted = tokens.mint().unwrap();
        assert!(tokens.verify(&minted.text).is_none(), "not yet inserted");
        tokens.insert(OperatorEntry {
            id: minted.id.clone(),
            hash: minted.hash.clone(),
            operator: Arc::new(Operator::admin()),
        });
        assert_eq!(tokens.verify(&minted.text).unwrap().name, "admin");
        for at in 0..minted.text.len() {
            let mut bytes = minted.text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'x' { b'y' } else { b'x' };
            assert!(tokens.verify(&String::from_utf8(bytes).unwrap()).is_none(), "at {at}");
        }
        assert_eq!(tokens.remove(&minted.id).unwrap().name, "admin");
        assert!(tokens.verify(&minted.text).is_none() && tokens.remove(&minted.id).is_none());
    }
}
