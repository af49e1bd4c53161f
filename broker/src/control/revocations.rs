//! Operations on revocations of tokens: list, revoke and restore.
//!
//! A revocation is stored and in force before the operator gets the answer. Other replicas read it
//! from the store within a second.

use std::sync::Arc;

use aws_lc_rs::digest;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use config::FieldError;
use protocol::ids::{PrincipalId, TenantId};
use records::{AdminChange, RevocationRecord, RevokedSubject};
use rules::limits::access::{REVOCATIONS_MAX, REVOKED_SUBJECT_BYTES_MAX};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Author, Control, ControlError, resource_views::moment, validation::refuse_more};
use crate::auth::is_printable;

/// Bytes of a digest that name a revocation.
const ID_BYTES: usize = 12;

/// Tokens to revoke: those of a principal, or one token. One of the two is given.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRevocation {
    /// Principal as sessions show it: `ISSUER SUB` for tokens.
    #[serde(default)]
    pub principal: Option<String>,
    /// Id of the token, its claim `jti`.
    #[serde(default)]
    pub jti: Option<String>,
    /// Time until which revoked tokens of the principal were issued, such as
    /// 2026-01-31T12:00:00Z. Absent: now.
    #[serde(default)]
    pub issued_before: Option<String>,
}

/// A revocation in force.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RevocationView {
    /// Name of the revocation in the admin API.
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jti: Option<String>,
    /// Tokens of the principal that were issued until then are refused. Absent for one token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issued_before: Option<String>,
    pub created_at: String,
}

impl RevocationView {
    fn new(record: &RevocationRecord) -> Self {
        let (principal, jti) = match &record.subject {
            RevokedSubject::Principal(principal) => (Some(principal.as_str().to_owned()), None),
            RevokedSubject::TokenId(id) => (None, Some(id.clone())),
        };
        let issued_before = principal.as_ref().map(|_| moment(record.issued_before_us));
        let created_at = moment(record.created_at_us);
        Self { id: id_of(&record.subject), principal, jti, issued_before, created_at }
    }
}

impl NewRevocation {
    fn subject(&self) -> Result<RevokedSubject, ControlError> {
        let (field, text) = match (&self.principal, &self.jti) {
            (Some(principal), None) => ("principal", principal),
            (None, Some(id)) => ("jti", id),
            (Some(_), Some(_)) => {
                return Err(invalid("jti", "is given together with principal", "one of the two"));
            }
            (None, None) => {
                let allowed = "the principal of the tokens, or jti: the id of one token";
                return Err(invalid("principal", "is missing, and so is jti", allowed));
            }
        };
        if text.is_empty() || text.len() > REVOKED_SUBJECT_BYTES_MAX || !is_printable(text) {
            let allowed = format!(
                "1 to {REVOKED_SUBJECT_BYTES_MAX} bytes of text on one line, as the token has it"
            );
            let problem = "is empty or too long, or has control characters, invisible characters, or surrounding white space";
            return Err(invalid(field, problem, allowed));
        }
        Ok(match field {
            "principal" => RevokedSubject::Principal(PrincipalId::new(text.clone())),
            _ => RevokedSubject::TokenId(text.clone()),
        })
    }

    fn issued_before_us(&self, now_us: i64) -> Result<i64, ControlError> {
        let Some(text) = &self.issued_before else { return Ok(now_us) };
        if self.jti.is_some() {
            let allowed = "a time together with principal; one token is revoked as a whole";
            return Err(invalid("issued_before", "is given together with jti", allowed));
        }
        let parsed = text.parse::<jiff::Timestamp>().map(|at| at.as_microsecond());
        parsed.map_err(|_| {
            invalid("issued_before", "is not a time", "RFC 3339, such as 2026-01-31T12:00:00Z")
        })
    }
}

fn invalid(field: &str, problem: &str, allowed: impl Into<String>) -> ControlError {
    ControlError::Invalid(FieldError::new(field, problem, allowed))
}

/// Returns the name of a revocation. It is short and fits in a path, unlike most principals.
fn id_of(subject: &RevokedSubject) -> String {
    let (kind, text) = subject.parts();
    let digest = digest::digest(&digest::SHA256, format!("{kind} {text}").as_bytes());
    URL_SAFE_NO_PAD.encode(&digest.as_ref()[..ID_BYTES])
}

impl Control {
    /// Returns the revocations of a tenant, ordered by id.
    pub fn revocations(&self, tenant: &TenantId) -> Result<Vec<RevocationView>, ControlError> {
        self.check_tenant(tenant)?;
        let records = self.keyring.revocations().of_tenant(tenant);
        let mut views: Vec<_> = records.iter().map(RevocationView::new).collect();
        views.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(views)
    }

    /// Revokes tokens, and ends what they opened. A revocation of the same principal is widened,
    /// never narrowed. Returns the revocation, and whether it is a new one.
    pub async fn revoke_tokens(
        self: &Arc<Self>,
        tenant: TenantId,
        wanted: NewRevocation,
        author: Author,
    ) -> Result<(RevocationView, bool), ControlError> {
        let subject = wanted.subject()?;
        // The clock of this replica may be behind that of the issuer.
        let now = self.query_store("read_clock", self.store().clock_us()).await?;
        let issued_before_us = wanted.issued_before_us(now)?;
        self.change(
            (tenant, subject, issued_before_us, now, author),
            |attempt, (tenant, subject, issued_before_us, now, author)| async move {
                attempt.check_tenant(&tenant)?;
                let known = attempt.keyring.revocations().of_tenant(&tenant);
                let old = known.iter().find(|record| record.subject == subject);
                let what = "revocations of this tenant";
                refuse_more(old.is_none(), known.len(), what, REVOCATIONS_MAX)?;
                let record = RevocationRecord {
                    tenant,
                    subject,
                    issued_before_us: old
                        .map_or(issued_before_us, |old| old.issued_before_us.max(issued_before_us)),
                    created_at_us: old.map_or(now, |old| old.created_at_us),
                    stored_at_us: now,
                };
                attempt.commit(AdminChange::PutRevocation(&record), &author).await?;
                let record = attempt.stored_revocation(record).await;
                attempt.keyring.insert_revocation(record.clone());
                attempt.broker.end_revoked(&record);
                if matches!(record.subject, RevokedSubject::Principal(_)) {
                    attempt
                        .end_stored_sessions(record.tenant.clone(), Self::is_of_revoked_principal);
                }
                let view = RevocationView::new(&record);
                tracing::info!(tenant = %record.tenant, revocation = view.id, "tokens revoked");
                Ok((view, old.is_none()))
            },
        )
        .await
    }

    /// Returns the revocation with the time of its write, by the store's clock. If the store does
    /// not answer, the time is set when this process reads the configuration next.
    async fn stored_revocation(&self, written: RevocationRecord) -> RevocationRecord {
        let stored = self.query_store("list_revocations", self.store().revocations()).await;
        let is_written = |record: &RevocationRecord| {
            record.tenant == written.tenant && record.subject == written.subject
        };
        stored.unwrap_or_default().into_iter().find(is_written).unwrap_or(written)
    }

    /// Removes a revocation. The tokens that it named are valid again as far as they have not
    /// expired.
    pub async fn delete_revocation(
        self: &Arc<Self>,
        tenant: TenantId,
        id: String,
        author: Author,
    ) -> Result<(), ControlError> {
        self.change((tenant, id, author), |attempt, (tenant, id, author)| async move {
            attempt.check_tenant(&tenant)?;
            let known = attempt.keyring.revocations().of_tenant(&tenant);
            let found = known.into_iter().find(|record| id_of(&record.subject) == id);
            let subject = found.map(|record| record.subject);
            let is_removed = match &subject {
                Some(subject) => {
                    let change = AdminChange::DeleteRevocation(&tenant, subject);
                    attempt.commit(change, &author).await?
                }
                None => false,
            };
            let Some(subject) = subject.filter(|_| is_removed) else {
                return Err(ControlError::NotFound { what: "revocation", name: id });
            };
            attempt.keyring.remove_revocation(&tenant, &subject);
            tracing::info!(%tenant, revocation = id, "revocation removed");
            Ok(())
        })
        .await
    }

    /// Puts the stored revocations into force, and ends what those name that were made since.
    /// Returns their number.
    pub(super) fn apply_revocations(&self, records: Vec<RevocationRecord>) -> usize {
        let made = self.keyring.replace_revocations(records);
        made.iter().for_each(|record| self.broker.end_revoked(record));
        made.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faulty_field(wanted: &NewRevocation) -> String {
        let checked = wanted.subject().and_then(|_| wanted.issued_before_us(0));
        match checked.expect_err("it has a fault") {
            ControlError::Invalid(fault) => fault.path,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_revocation_has_one_subject_and_a_time() {
        let text = |text: &str| Some(text.to_owned());
        let of = |principal: Option<&str>, jti: Option<&str>, issued_before: Option<&str>| {
            let text = |text: Option<&str>| text.map(str::to_owned);
            NewRevocation {
                principal: text(principal),
                jti: text(jti),
                issued_before: text(issued_before),
            }
        };
        for (wanted, field) in [
            (of(None, None, None), "principal"),
            (of(Some("a"), Some("b"), None), "jti"),
            (of(Some(""), None, None), "principal"),
            (of(Some("a\nb"), None, None), "principal"),
            (of(Some(&"a".repeat(513)), None, None), "principal"),
            (of(None, Some("\u{202e}"), None), "jti"),
            (of(None, Some("a"), Some("2026-01-01T00:00:00Z")), "issued_before"),
            (of(Some("a"), None, Some("yesterday")), "issued_before"),
            (of(Some("a"), None, Some("2026-01-01")), "issued_before"),
        ] {
            assert_eq!(faulty_field(&wanted), field, "{wanted:?}");
        }
        let wanted = NewRevocation {
            principal: text("https://a ann"),
            issued_before: text("1970-01-01T01:00:01+01:00"),
            jti: None,
        };
        assert_eq!(wanted.issued_before_us(7).unwrap(), 1_000_000);
        assert_eq!(NewRevocation::default().issued_before_us(7).unwrap(), 7);
    }

    #[test]
    fn a_revocation_id_depends_on_its_kind_and_fits_in_a_path() {
        let principal = id_of(&RevokedSubject::Principal(PrincipalId::new("a")));
        let token = id_of(&RevokedSubject::TokenId("a".to_owned()));
        assert!(principal != token && principal.len() == 16);
        assert!(principal.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/'));
    }
}
