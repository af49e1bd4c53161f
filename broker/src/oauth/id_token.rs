//! ID tokens of an identity provider (OpenID Connect Core 1.0, 3.1.3.7).
//!
//! An ID token comes from the token endpoint itself, over TLS or on this machine. So its signature is
//! not checked, as that section permits.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Map, Value};

use super::fetch::object;
use crate::auth::now_us;

/// What the broker needs of an ID token.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct IdToken {
    claims: Map<String, Value>,
    pub(super) expires_at_us: i64,
}

/// Returns the claims of a token, without a check of its issuer.
fn claims(text: &str) -> Option<Map<String, Value>> {
    let payload = text.split('.').nth(1).filter(|_| text.split('.').count() == 3)?;
    object(&URL_SAFE_NO_PAD.decode(payload).ok()?)
}

/// Returns the end of a token in microseconds since 1970. It may have a fraction of a second
/// (RFC 7519, 2: NumericDate).
fn end(claims: &Map<String, Value>) -> Option<i64> {
    let end = Duration::try_from_secs_f64(claims.get("exp")?.as_f64()?).ok()?;
    i64::try_from(end.as_micros()).ok()
}

/// Returns the time that a token is valid from now on.
pub(super) fn remaining_life(text: &str) -> Option<Duration> {
    let remaining = end(&claims(text)?)?.saturating_sub(now_us());
    Some(Duration::from_micros(u64::try_from(remaining).unwrap_or(0)))
}

impl IdToken {
    /// Reads a token of this issuer for this client that has not expired.
    pub(super) fn of(text: &str, issuer: &str, client_id: &str) -> Option<Self> {
        let claims = claims(text)?;
        let claim = |name| claims.get(name).and_then(Value::as_str);
        let is_audience = match claims.get("aud")? {
            Value::String(audience) => audience == client_id,
            Value::Array(all) => {
                let names_client = all.iter().any(|one| one.as_str() == Some(client_id));
                names_client && (all.len() == 1 || claim("azp") == Some(client_id))
            }
            _ => false,
        };
        let expires_at_us = end(&claims)?;
        let is_valid = claim("iss") == Some(issuer) && is_audience && expires_at_us > now_us();
        claim("sub").filter(|subject| !subject.is_empty() && is_valid)?;
        Some(Self { claims, expires_at_us })
    }

    /// Returns a claim that is a text.
    pub(super) fn text(&self, claim: &str) -> Option<&str> {
        self.claims.get(claim)?.as_str()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(claims: &Value) -> Option<IdToken> {
        let text = format!("e30.{}.x", URL_SAFE_NO_PAD.encode(claims.to_string()));
        IdToken::of(&text, "https://idp.example", "broker")
    }

    #[test]
    fn only_a_valid_id_token_for_the_broker_is_accepted() {
        let end = now_us() / 1_000_000 + 60;
        let good = json!({"iss": "https://idp.example", "aud": "broker", "sub": "ann", "exp": end});
        let token = read(&good).unwrap();
        assert_eq!((token.text("sub"), token.expires_at_us), (Some("ann"), end * 1_000_000));
        assert_eq!((token.text("exp"), token.text("email")), (None, None), "not a text");
        let changed = |name: &str, value: Value| {
            let mut claims = good.clone();
            claims[name] = value;
            claims
        };
        let fraction = read(&changed("exp", json!(end as f64 + 0.5)));
        assert_eq!(fraction.map(|token| token.expires_at_us), Some(end * 1_000_000 + 500_000));
        assert!(read(&changed("aud", json!(["broker"]))).is_some());
        let mut two = changed("aud", json!(["broker", "other"]));
        assert_eq!(read(&two), None);
        two["azp"] = json!("broker");
        assert!(read(&two).is_some());
        for (name, value) in [
            ("iss", json!("https://idp.example/")),
            ("aud", json!("other")),
            ("aud", json!(["other"])),
            ("sub", json!("")),
            ("sub", json!(7)),
            ("exp", json!(end - 3_600)),
            ("exp", json!("never")),
            ("exp", json!(-1.5)),
            ("exp", json!(1e300)),
        ] {
            assert_eq!(read(&changed(name, value.clone())), None, "{name}: {value}");
        }
        for text in ["", "a", "a.b", "a.b.c", "a.e30.c.d"] {
            assert_eq!(IdToken::of(text, "https://idp.example", "broker"), None, "{text}");
        }
    }
}
