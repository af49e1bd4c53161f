//! Attributes of a caller that rules look at.

use std::hash::{BuildHasher, Hash};

use protocol::ids::{KeyId, PrincipalId};
use serde::{Deserialize, Serialize};

/// A multi-valued attribute of a credential.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Attribute {
    /// The credential has these values. An empty list is a value too.
    Known(Vec<String>),
    /// The credential lacks the claim, or the claim has another type. Every deny rule that asks for
    /// the attribute matches then, and no allow rule does.
    Unknown,
}

impl Default for Attribute {
    fn default() -> Self {
        Self::Known(Vec::new())
    }
}

impl Attribute {
    pub fn of<T: Into<String>>(values: impl IntoIterator<Item = T>) -> Self {
        let mut values: Vec<String> = values.into_iter().map(Into::into).collect();
        values.sort_unstable();
        values.dedup();
        Self::Known(values)
    }

    /// Returns the known values.
    pub fn values(&self) -> &[String] {
        match self {
            Self::Known(values) => values,
            Self::Unknown => &[],
        }
    }

    /// Returns whether one of the values is wanted. `None`: the values are unknown.
    pub(super) fn has_one_of(&self, wanted: impl Fn(&str) -> bool) -> Option<bool> {
        match self {
            Self::Known(values) => Some(values.iter().any(|value| wanted(value))),
            Self::Unknown => None,
        }
    }
}

/// Attributes of a subject as text, for a stored key or another replica. An absent member is an
/// unknown attribute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SubjectAttributes {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<Vec<String>>,
}

impl SubjectAttributes {
    pub fn of_subject(subject: &Subject) -> Self {
        let known = |attribute: &Attribute| match attribute {
            Attribute::Known(values) => Some(values.clone()),
            Attribute::Unknown => None,
        };
        Self {
            groups: known(&subject.groups),
            scopes: known(&subject.scopes),
            client: known(&subject.client),
        }
    }

    /// Returns the subject with these attributes.
    pub fn subject(self, principal: PrincipalId, key: Option<KeyId>) -> Subject {
        let known = |values: Option<Vec<String>>| values.map_or(Attribute::Unknown, Attribute::of);
        Subject {
            principal,
            key,
            groups: known(self.groups),
            scopes: known(self.scopes),
            client: known(self.client),
        }
    }
}

/// A caller, as rules see it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Subject {
    pub principal: PrincipalId,
    /// API key of the caller, if it has one.
    pub key: Option<KeyId>,
    pub groups: Attribute,
    pub scopes: Attribute,
    /// The OAuth client that got the token (`azp` or `client_id`).
    pub client: Attribute,
}

impl Subject {
    /// Returns a subject without groups, scopes and client.
    pub fn of_principal(principal: PrincipalId) -> Self {
        Self {
            principal,
            key: None,
            groups: Attribute::default(),
            scopes: Attribute::default(),
            client: Attribute::default(),
        }
    }

    /// Returns a number that equal subjects share, by a keyed hash.
    pub fn fingerprint(&self, hasher: &impl BuildHasher) -> u64 {
        hasher.hash_one(self)
    }

    /// Returns whether the subject has all of these scopes.
    pub(super) fn has_scopes(&self, wanted: &[String]) -> bool {
        let scopes = self.scopes.values();
        wanted.iter().all(|scope| scopes.contains(scope))
    }
}

#[cfg(test)]
mod tests {
    use std::hash::RandomState;

    use super::{super::tests::subject, *};

    #[test]
    fn the_stored_attributes_of_a_subject_are_read_back_as_known_or_unknown() {
        let ann = Subject {
            key: Some(KeyId::new("k")),
            client: Attribute::Unknown,
            ..subject(&["dev", "ops"], &["read"])
        };
        let stored = serde_json::to_string(&SubjectAttributes::of_subject(&ann)).unwrap();
        assert_eq!(stored, r#"{"groups":["dev","ops"],"scopes":["read"]}"#);
        let read: SubjectAttributes = serde_json::from_str(&stored).unwrap();
        assert_eq!(read.subject(ann.principal.clone(), ann.key.clone()), ann);
    }

    /// Caches of views find the view of a subject by its fingerprint.
    #[test]
    fn subjects_that_differ_in_any_member_have_different_fingerprints() {
        let hasher = RandomState::new();
        let ann = subject(&["dev"], &["read"]);
        let others = [
            Subject { principal: PrincipalId::new("bob"), ..ann.clone() },
            Subject { key: Some(KeyId::new("k")), ..ann.clone() },
            subject(&["dev", "ops"], &["read"]),
            subject(&["dev"], &[]),
            Subject {
                groups: Attribute::of(["read"]),
                scopes: Attribute::of(["dev"]),
                ..ann.clone()
            },
            Subject { client: Attribute::Unknown, ..ann.clone() },
        ];
        assert_eq!(ann.fingerprint(&hasher), ann.clone().fingerprint(&hasher));
        for other in others {
            assert_ne!(ann.fingerprint(&hasher), other.fingerprint(&hasher), "{other:?}");
        }
    }
}
