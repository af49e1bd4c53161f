//! The resources that one client has subscribed to, by the URI that the client uses.

use std::collections::{HashMap, HashSet};

use protocol::{
    error::{ErrorKind, Refusal},
    ids::BackendId,
};
use rules::{limits::SUBSCRIPTIONS_PER_SESSION_MAX, routing::ResourceTarget};

/// Subscriptions of a session, at most [`SUBSCRIPTIONS_PER_SESSION_MAX`].
#[derive(Debug, Default)]
pub(in crate::sessions) struct SubscriptionSet(HashMap<String, ResourceTarget>);

impl FromIterator<ResourceTarget> for SubscriptionSet {
    fn from_iter<T: IntoIterator<Item = ResourceTarget>>(targets: T) -> Self {
        Self(targets.into_iter().map(|target| (target.exposed_uri.clone(), target)).collect())
    }
}

impl SubscriptionSet {
    /// Adds a subscription if there is capacity for it. A repeated subscription needs none.
    pub(in crate::sessions) fn add(&mut self, target: &ResourceTarget) -> Result<(), Refusal> {
        if self.0.len() >= SUBSCRIPTIONS_PER_SESSION_MAX && !self.contains(&target.exposed_uri) {
            let text = format!(
                "the session has {SUBSCRIPTIONS_PER_SESSION_MAX} subscriptions, which is its limit"
            );
            return Err(Refusal::new(ErrorKind::Overloaded, text));
        }
        self.0.insert(target.exposed_uri.clone(), target.clone());
        Ok(())
    }

    pub(in crate::sessions) fn remove(&mut self, exposed_uri: &str) {
        self.0.remove(exposed_uri);
    }

    /// Removes the subscriptions that `is_meant` selects, and returns their exposed URIs.
    pub(in crate::sessions) fn remove_where(
        &mut self,
        is_meant: impl Fn(&ResourceTarget) -> bool,
    ) -> Vec<String> {
        self.0.extract_if(|_, target| is_meant(target)).map(|(uri, _)| uri).collect()
    }

    pub(in crate::sessions) fn clear(&mut self) {
        self.0.clear();
    }

    pub(in crate::sessions) fn contains(&self, exposed_uri: &str) -> bool {
        self.0.contains_key(exposed_uri)
    }

    pub(in crate::sessions) fn len(&self) -> usize {
        self.0.len()
    }

    pub(in crate::sessions) fn exposed_uris(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// Returns the subscriptions to one backend.
    pub(in crate::sessions) fn at(
        &self,
        backend: &BackendId,
    ) -> impl Iterator<Item = &ResourceTarget> {
        self.0.values().filter(move |target| target.backend == *backend)
    }

    /// Returns the backends that have a subscription.
    pub(in crate::sessions) fn backends(&self) -> HashSet<BackendId> {
        self.0.values().map(|target| target.backend.clone()).collect()
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
    fn the_subscriptions_of_one_backend_are_found_and_removed() {
        let mut set: SubscriptionSet =
            [target("a", "1"), target("a", "2"), target("b", "1")].into_iter().collect();
        assert_eq!((set.at(&BackendId::parse("a").unwrap()).count(), set.backends().len()), (2, 2));
        assert_eq!(set.remove_where(|one| one.backend.as_str() == "b"), ["b+1"]);
        assert_eq!((set.len(), set.contains("b+1"), set.contains("a+1")), (2, false, true));
    }
}
