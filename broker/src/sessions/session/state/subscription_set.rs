//! The resources that one client has subscribed to, by the URI that the client uses.

use std::collections::{HashMap, HashSet};

use protocol::{
    error::{ErrorKind, Refusal},
    ids::BackendId,
};
use rules::{
    limits::{SUBSCRIPTION_BYTES_PER_SESSION_MAX, SUBSCRIPTIONS_PER_SESSION_MAX},
    routing::ResourceTarget,
};

/// Subscriptions of a session, at most [`SUBSCRIPTIONS_PER_SESSION_MAX`], with at most
/// [`SUBSCRIPTION_BYTES_PER_SESSION_MAX`] of URIs.
#[derive(Debug, Default)]
pub(in crate::sessions) struct SubscriptionSet {
    by_uri: HashMap<String, SetEntry>,
    /// Bytes of all exposed URIs.
    uri_bytes: usize,
}

#[derive(Debug)]
struct SetEntry {
    target: ResourceTarget,
    /// Set once a request for it was acknowledged. The failure of another request does not remove it
    /// then.
    is_acknowledged: bool,
}

impl FromIterator<ResourceTarget> for SubscriptionSet {
    /// Returns the set of subscriptions that were acknowledged.
    fn from_iter<T: IntoIterator<Item = ResourceTarget>>(targets: T) -> Self {
        let acknowledged = |target| SetEntry { target, is_acknowledged: true };
        let by_uri: HashMap<String, SetEntry> = targets
            .into_iter()
            .map(|target| (target.exposed_uri.clone(), acknowledged(target)))
            .collect();
        let uri_bytes = by_uri.keys().map(String::len).sum();
        Self { by_uri, uri_bytes }
    }
}

impl SubscriptionSet {
    /// Adds a subscription if there is capacity for it. A repeated subscription needs none.
    pub(in crate::sessions) fn add(&mut self, target: &ResourceTarget) -> Result<(), Refusal> {
        let is_acknowledged = self.is_acknowledged(&target.exposed_uri);
        if !self.contains(&target.exposed_uri) {
            self.check_capacity(target.exposed_uri.len())?;
            self.uri_bytes += target.exposed_uri.len();
        }
        let entry = SetEntry { target: target.clone(), is_acknowledged };
        self.by_uri.insert(target.exposed_uri.clone(), entry);
        Ok(())
    }

    /// Marks a subscription as acknowledged. Returns false if it was removed.
    pub(in crate::sessions) fn acknowledge(&mut self, exposed_uri: &str) -> bool {
        let Some(entry) = self.by_uri.get_mut(exposed_uri) else { return false };
        entry.is_acknowledged = true;
        true
    }

    pub(in crate::sessions) fn is_acknowledged(&self, exposed_uri: &str) -> bool {
        self.by_uri.get(exposed_uri).is_some_and(|entry| entry.is_acknowledged)
    }

    /// Checks the capacity for one more URI of this length.
    fn check_capacity(&self, bytes: usize) -> Result<(), Refusal> {
        let text = if self.by_uri.len() >= SUBSCRIPTIONS_PER_SESSION_MAX {
            format!(
                "the session has {SUBSCRIPTIONS_PER_SESSION_MAX} subscriptions, which is its limit"
            )
        } else if self.uri_bytes + bytes > SUBSCRIPTION_BYTES_PER_SESSION_MAX {
            format!(
                "the URIs of the session's subscriptions would exceed {SUBSCRIPTION_BYTES_PER_SESSION_MAX} bytes, which is the limit"
            )
        } else {
            return Ok(());
        };
        Err(Refusal::new(ErrorKind::Overloaded, text))
    }

    pub(in crate::sessions) fn remove(&mut self, exposed_uri: &str) {
        if self.by_uri.remove(exposed_uri).is_some() {
            self.uri_bytes -= exposed_uri.len();
        }
    }

    /// Removes the subscriptions that `is_meant` selects, and returns their exposed URIs.
    pub(in crate::sessions) fn remove_where(
        &mut self,
        is_meant: impl Fn(&ResourceTarget) -> bool,
    ) -> Vec<String> {
        let removed = self.by_uri.extract_if(|_, entry| is_meant(&entry.target));
        let removed: Vec<String> = removed.map(|(uri, _)| uri).collect();
        self.uri_bytes -= removed.iter().map(String::len).sum::<usize>();
        removed
    }

    pub(in crate::sessions) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(in crate::sessions) fn get(&self, exposed_uri: &str) -> Option<&ResourceTarget> {
        self.by_uri.get(exposed_uri).map(|entry| &entry.target)
    }

    pub(in crate::sessions) fn contains(&self, exposed_uri: &str) -> bool {
        self.by_uri.contains_key(exposed_uri)
    }

    pub(in crate::sessions) fn len(&self) -> usize {
        self.by_uri.len()
    }

    pub(in crate::sessions) fn exposed_uris(&self) -> impl Iterator<Item = &String> {
        self.by_uri.keys()
    }

    /// Returns the subscriptions to one backend.
    pub(in crate::sessions) fn at(
        &self,
        backend: &BackendId,
    ) -> impl Iterator<Item = &ResourceTarget> {
        let targets = self.by_uri.values().map(|entry| &entry.target);
        targets.filter(move |target| target.backend == *backend)
    }

    /// Returns the backends that have a subscription.
    pub(in crate::sessions) fn backends(&self) -> HashSet<BackendId> {
        self.by_uri.values().map(|entry| entry.target.backend.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(backend: &str, uri: &str) -> ResourceTarget {
        ResourceTarget {
            backend: BackendId::parse(backend).unwrap(),
            uri: uri.to_owned(),
            exposed_uri: format!("{backend}+{uri}"),
        }
    }

    #[test]
    fn a_full_set_accepts_only_existing_subscriptions() {
        let many =
            (0..SUBSCRIPTIONS_PER_SESSION_MAX).map(|number| target("a", &number.to_string()));
        let mut set: SubscriptionSet = many.collect();
        assert_eq!(set.add(&target("b", "0")).unwrap_err().kind, ErrorKind::Overloaded);
        set.add(&target("a", "0")).unwrap();
        set.remove("a+0");
        set.add(&target("b", "0")).unwrap();
        assert_eq!(set.len(), SUBSCRIPTIONS_PER_SESSION_MAX);
    }

    #[test]
    fn the_uris_of_a_session_are_bounded_in_bytes() {
        let long = |number: usize| target("a", &format!("{number:08}{}", "x".repeat(8_182)));
        let mut set = SubscriptionSet::default();
        let fit = (0..1_000).take_while(|number| set.add(&long(*number)).is_ok()).count();
        assert_eq!((fit, set.uri_bytes), (SUBSCRIPTION_BYTES_PER_SESSION_MAX / 8_192, 256 * 1024));
        let refusal = set.add(&target("b", "1")).unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::Overloaded);
        set.add(&long(0)).unwrap();
        set.remove("a+unknown");
        set.remove(&long(0).exposed_uri);
        set.add(&target("b", "1")).unwrap();
        assert_eq!(set.remove_where(|one| one.backend.as_str() == "a").len(), fit - 1);
        assert_eq!(set.uri_bytes, "b+1".len());
        set.clear();
        assert_eq!((set.len(), set.uri_bytes), (0, 0));
    }

    #[test]
    fn a_subscription_stays_acknowledged_until_it_is_removed() {
        let mut set: SubscriptionSet = [target("a", "stored")].into_iter().collect();
        assert!(set.is_acknowledged("a+stored"));
        set.add(&target("a", "1")).unwrap();
        assert!(!set.is_acknowledged("a+1") && set.acknowledge("a+1"));
        set.add(&target("a", "1")).unwrap();
        assert!(set.is_acknowledged("a+1"), "a repeated request changes nothing");
        set.remove("a+1");
        assert!(!set.acknowledge("a+1") && !set.is_acknowledged("a+1"));
    }

    #[test]
    fn the_subscriptions_of_one_backend_are_found_and_removed() {
        let mut set: SubscriptionSet =
            [target("a", "1"), target("a", "2"), target("b", "1")].into_iter().collect();
        assert_eq!((set.at(&BackendId::parse("a").unwrap()).count(), set.backends().len()), (2, 2));
        assert_eq!(set.remove_where(|one| one.backend.as_str() == "b"), ["b+1"]);
        assert_eq!((set.len(), set.contains("b+1"), set.contains("a+1")), (2, false, true));
    }
}
