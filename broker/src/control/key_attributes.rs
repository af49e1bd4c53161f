//! Attributes of API keys as they are stored: what access rules look at, and the time of expiry.

use std::{
    collections::BTreeMap,
    time::{Duration, UNIX_EPOCH},
};

use config::FieldError;
use records::KeyRecord;
use rules::access::SubjectAttributes;
use serde::{Deserialize, Serialize};

use crate::auth::{Caller, CredentialExpiry, KeyEntry};

const VALUES_MAX: usize = 64;
const VALUE_BYTES_MAX: usize = 256;

/// Settings of a new API key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewKey {
    pub name: Option<String>,
    /// Principal of the key. Several keys may have the same principal. `None`: the key's own id.
    pub principal: Option<String>,
    pub attributes: KeyAttributes,
    /// Time until the key expires. `None`: never.
    pub expires_in: Option<Duration>,
}

/// Attributes of one key. An unknown member may be a restriction of a newer build, so the
/// attributes are then unreadable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KeyAttributes {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at_us: Option<i64>,
}

impl KeyAttributes {
    /// Checks number and length of the values.
    pub(super) fn check(&self) -> Result<(), FieldError> {
        let labels: Vec<&String> =
            self.labels.iter().flat_map(|(name, value)| [name, value]).collect();
        let lists = [
            ("groups", self.groups.len(), self.groups.iter().collect()),
            ("scopes", self.scopes.len(), self.scopes.iter().collect()),
            ("labels", self.labels.len(), labels),
        ];
        for (path, count, values) in lists {
            let fits = |value: &&String| {
                (1..=VALUE_BYTES_MAX).contains(&value.len()) && !value.chars().any(char::is_control)
            };
            if count > VALUES_MAX || !values.iter().all(fits) {
                let allowed = format!(
                    "at most {VALUES_MAX} texts of 1 to {VALUE_BYTES_MAX} bytes without control characters"
                );
                return Err(FieldError::new(
                    path,
                    "has too many entries or an unusable one",
                    allowed,
                ));
            }
        }
        Ok(())
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("attributes are plain values")
    }
}

/// Returns the entry of a stored key. A key whose attributes cannot be read has expired: they may
/// restrict it. Its sessions stay.
pub(super) fn key_entry(record: KeyRecord) -> KeyEntry {
    let attributes: Option<KeyAttributes> = serde_json::from_str(&record.attributes)
        .inspect_err(|error| {
            tracing::error!(tenant = %record.tenant, key = %record.key, %error, "the broker cannot read the attributes of an API key and refuses the key");
        })
        .ok();
    let ends_at_us = attributes.as_ref().map_or(Some(0), |attributes| attributes.expires_at_us);
    let until = ends_at_us.map(|at| {
        CredentialExpiry::new(UNIX_EPOCH + Duration::from_micros(at.try_into().unwrap_or_default()))
    });
    let subject =
        attributes.map_or_else(SubjectAttributes::default, |attributes| SubjectAttributes {
            groups: Some(attributes.groups),
            scopes: Some(attributes.scopes),
            client: Some(Vec::new()),
        });
    let subject = subject.subject(record.principal, Some(record.key));
    KeyEntry { caller: Caller::of_subject(record.tenant, subject), until, hash: record.hash }
}

#[cfg(test)]
mod tests {
    use protocol::ids::{KeyId, PrincipalId, TenantId};

    use super::*;
    use crate::control::KeyView;

    #[test]
    fn a_key_with_attributes_of_a_newer_build_has_expired() {
        let record = |attributes: &str| KeyRecord {
            key: KeyId::new("k"),
            tenant: TenantId::parse("acme").unwrap(),
            principal: PrincipalId::new("ann"),
            name: String::new(),
            hash: Vec::new(),
            attributes: attributes.to_owned(),
            created_at_us: 1,
        };
        let has_expired = |attributes: &str| {
            key_entry(record(attributes)).until.is_some_and(|until| until.is_expired())
        };
        assert!(!has_expired("{}"));
        assert!(!has_expired(r#"{"groups":["dev"],"expires_at_us":9000000000000000}"#));
        assert!(has_expired(r#"{"expires_at_us":1}"#));
        assert!(has_expired(r#"{"groups":["dev"],"only_from":["10.0.0.0/8"]}"#));
        assert!(has_expired("damaged"));
        assert_eq!(KeyView::new(&record("{}")).expires_at, None);
        assert!(KeyView::new(&record("damaged")).expires_at.is_some(), "operators see it");
    }
}
