//! Parser of tokens: a JWT in its compact form (RFC 7519). It verifies nothing.
//!
//! Invariant: the parser refuses ambiguous text, such as duplicate members or another encoding of
//! the same bytes.

use std::{
    collections::hash_map::RandomState,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use config::issuers::algorithm;
use jsonwebtoken::Algorithm;
use protocol::json::{self, Document, Limits, Value, ValueKind};
use rules::limits::tokens::{TOKEN_BYTES_MAX, TOKEN_KEY_ID_BYTES_MAX};

use super::error::TokenError;
use crate::auth::verified_token::CertificateThumbprint;

/// Types of access tokens (RFC 9068, 2.1).
const ACCESS_TOKEN_TYPES: [&str; 2] = ["at+jwt", "application/at+jwt"];
/// Type in tokens of issuers that do not follow RFC 9068. ID tokens have it too.
const GENERAL_TYPE: &str = "jwt";
/// Claims that only ID tokens have (OpenID Connect Core 1.0, 2 and 3.3.2.11).
const ID_TOKEN_CLAIMS: [&str; 3] = ["nonce", "at_hash", "c_hash"];
/// Last second of the year 9999. A larger number is not a time.
const SECONDS_MAX: f64 = 253_402_300_799.0;

/// A token as received.
pub(super) struct Jwt<'a> {
    /// Header and claims, as signed.
    pub(super) signed: &'a str,
    /// Signature in base64url.
    pub(super) signature: &'a str,
    header: Vec<u8>,
    claims: Vec<u8>,
}

/// Header of a token.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) algorithm: Algorithm,
    pub(super) key_id: Option<String>,
    /// True if the type is one of access tokens only.
    pub(super) is_access_token: bool,
}

impl<'a> Jwt<'a> {
    pub(super) fn parse(token: &'a str) -> Result<Self, TokenError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::TooLong);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Form)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenError::Form)?;
        let decoded = |part: &str| {
            URL_SAFE_NO_PAD
                .decode(part)
                .ok()
                .filter(|part| !part.is_empty())
                .ok_or(TokenError::Form)
        };
        decoded(signature)?;
        Ok(Self { signed, signature, header: decoded(header)?, claims: decoded(claims)? })
    }

    /// Returns whether a text that is not a JWT was meant to be one: it has three parts, and the
    /// first is a header. Every other text can be an opaque token.
    pub(super) fn is_meant(token: &str) -> bool {
        let mut parts = token.split('.');
        let header = parts.next().and_then(|part| URL_SAFE_NO_PAD.decode(part).ok());
        parts.count() == 2 && header.is_some_and(|header| JsonMembers::parse(&header).is_ok())
    }

    pub(super) fn header(&self) -> Result<Header, TokenError> {
        let members = JsonMembers::parse(&self.header)?;
        // RFC 7515, 4.1.11: a critical header that the reader does not understand makes the token
        // invalid. The broker understands none.
        if members.get("crit").is_some() {
            return Err(TokenError::Critical);
        }
        let kind = members.optional_text("typ")?;
        let is_access_token = kind.as_ref().is_some_and(|kind| {
            ACCESS_TOKEN_TYPES.iter().any(|known| kind.eq_ignore_ascii_case(known))
        });
        if !is_access_token && !kind.is_none_or(|kind| kind.eq_ignore_ascii_case(GENERAL_TYPE)) {
            return Err(TokenError::Type);
        }
        let name = members.optional_text("alg")?.ok_or(TokenError::Form)?;
        let key_id = members.optional_text("kid")?;
        if key_id.as_ref().is_some_and(|id| id.len() > TOKEN_KEY_ID_BYTES_MAX) {
            return Err(TokenError::Form);
        }
        Ok(Header {
            algorithm: algorithm(&name).ok_or(TokenError::Algorithm)?,
            key_id,
            is_access_token,
        })
    }

    pub(super) fn claims(&self) -> Result<Claims<'_>, TokenError> {
        Claims::parse(&self.claims)
    }
}

/// Claims of a token.
pub(super) struct Claims<'a>(JsonMembers<'a>);

impl<'a> Claims<'a> {
    /// Parses a JSON object without duplicate members.
    pub(super) fn parse(text: &'a [u8]) -> Result<Self, TokenError> {
        JsonMembers::parse(text).map(Self)
    }

    /// Returns a claim that is true or false.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.0.get(name)?.as_bool()
    }

    /// Returns a claim that is a non-empty text.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.0.optional_text(name).ok().flatten().filter(|text| !text.is_empty())
    }

    /// Returns whether the token has a claim, of any type.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some()
    }

    /// Returns the values of a claim that is a text or a list of texts. Dots in `path` lead into
    /// objects. `None`: the claim is missing or has another type.
    pub(super) fn values(&self, path: &str) -> Option<Vec<String>> {
        let mut names = path.split('.');
        let first = self.0.get(names.next()?)?;
        let value = names.try_fold(first, |value, name| value.get(name))?;
        match value.kind() {
            ValueKind::Array => {
                value.elements().map(|element| element.as_str().map(Into::into)).collect()
            }
            _ => Some(vec![value.as_str()?.into()]),
        }
    }

    /// Returns whether only an ID token has such claims. Keycloak marks an ID token with a claim
    /// `typ`.
    pub(super) fn are_of_id_token(&self) -> bool {
        ID_TOKEN_CLAIMS.iter().any(|name| self.0.get(name).is_some())
            || self.text("typ").is_some_and(|kind| kind.eq_ignore_ascii_case("ID"))
    }

    /// Returns whether an introspection answer is about a token that is not an access token, or about
    /// one that needs another proof. Such members are not standard, but common.
    pub(super) fn are_of_other_token(&self) -> bool {
        let is = |name: &str, kinds: &[&str]| {
            let text = self.text(name);
            text.is_some_and(|text| kinds.iter().any(|kind| text.eq_ignore_ascii_case(kind)))
        };
        is("typ", &["Refresh", "Offline"])
            || is("token_use", &["refresh_token", "refresh", "id", "id_token"])
            || is("token_type", &["refresh_token", "DPoP", "N_A"])
    }

    /// Returns the certificate with which alone the token is valid (RFC 8705, 3.1). Refuses a token
    /// that requires another proof, or one more (RFC 7800, 3.1; RFC 9449, 6.1).
    pub(super) fn bound_certificate(&self) -> Result<Option<CertificateThumbprint>, TokenError> {
        let Some(confirmation) = self.0.get("cnf") else { return Ok(None) };
        let mut members = confirmation.members();
        let (Some(only), None) = (members.next(), members.next()) else {
            return Err(TokenError::Bound);
        };
        let thumbprint = only.value.as_str().filter(|_| only.key == "x5t#S256");
        let bytes = thumbprint.and_then(|text| URL_SAFE_NO_PAD.decode(text.as_bytes()).ok());
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(|bytes| Some(CertificateThumbprint(bytes))).ok_or(TokenError::Bound)
    }

    /// Returns the audiences: a text or a list (RFC 7519, 4.1.3).
    pub(super) fn audiences(&self) -> Vec<String> {
        self.texts("aud")
    }

    /// Returns the scopes. `scope` is a text of words (RFC 9068, 2.2.3). Some servers send `scp`
    /// instead, a text or a list. `None`: there is neither, one has another type, or both differ.
    pub(super) fn scopes(&self) -> Option<Vec<String>> {
        let present = ["scope", "scp"].into_iter().filter(|name| self.has(name));
        let mut read: Vec<_> = present.map(|name| self.words(name)).collect::<Option<_>>()?;
        read.dedup();
        let scopes = read.pop()?;
        read.is_empty().then_some(scopes)
    }

    /// Returns the words of a text, or of a list of texts. `None`: the claim has another type.
    fn words(&self, name: &str) -> Option<Vec<String>> {
        let claim = self.0.get(name)?;
        let is_readable = match claim.kind() {
            ValueKind::Array => claim.elements().all(|one| one.kind() == ValueKind::String),
            kind => kind == ValueKind::String,
        };
        let texts = is_readable.then(|| self.texts(name))?;
        let words = texts.iter().flat_map(|text| text.split_ascii_whitespace());
        Some(words.map(str::to_owned).collect())
    }

    /// Returns a time (RFC 7519, 2: NumericDate).
    pub(super) fn moment(&self, name: &str) -> Result<Option<SystemTime>, TokenError> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let seconds = value
            .as_f64()
            .filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds))
            .ok_or(TokenError::Time)?;
        Ok(Some(UNIX_EPOCH + Duration::from_secs_f64(seconds)))
    }

    fn texts(&self, name: &str) -> Vec<String> {
        let Some(value) = self.0.get(name) else { return Vec::new() };
        match value.kind() {
            ValueKind::Array => {
                value.elements().filter_map(|element| element.as_str().map(Into::into)).collect()
            }
            _ => value.as_str().map(Into::into).into_iter().collect(),
        }
    }
}

/// Returns whether no object of the text has a duplicate member, at any depth. Readers differ in
/// which of two members they use.
pub fn has_one_reading(text: &[u8]) -> bool {
    let limits = Limits::with_bytes_max(text.len());
    json::duplicate_member(text, &limits, &RandomState::new(), 0) == Ok(None)
}

/// Members of an object. Neither the object nor an object in it has a duplicate member.
struct JsonMembers<'a>(Value<'a>);

impl<'a> JsonMembers<'a> {
    fn parse(text: &'a [u8]) -> Result<Self, TokenError> {
        let limits = Limits::with_bytes_max(text.len());
        let root = Document::parse(text, &limits).map_err(|_| TokenError::Form)?.root();
        if root.kind() == ValueKind::Object && has_one_reading(text) {
            Ok(Self(root))
        } else {
            Err(TokenError::Form)
        }
    }

    fn get(&self, name: &str) -> Option<Value<'a>> {
        self.0.get(name)
    }

    /// Returns a text member. A member of another type makes the token invalid.
    fn optional_text(&self, name: &str) -> Result<Option<String>, TokenError> {
        self.get(name)
            .map(|value| value.as_str().map(Into::into).ok_or(TokenError::Form))
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(header: &str, claims: &str) -> String {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        format!("{}.{}.{}", part(header), part(claims), part("signature"))
    }

    fn header(text: &str) -> Result<Header, TokenError> {
        Jwt::parse(&token(text, "{}")).unwrap().header()
    }

    #[test]
    fn auth_09_a_header_has_one_known_algorithm_and_no_critical_extension() {
        for (fine, is_access_token) in [
            (r#"{"alg":"ES256","typ":"at+jwt","kid":"a"}"#, true),
            (r#"{"alg":"ES256","typ":"application/AT+jwt","kid":"a"}"#, true),
            (r#"{"typ":"JWT","kid":"a","alg":"ES256","jku":"https://evil.example"}"#, false),
            (r#"{"kid":"a","alg":"ES256"}"#, false),
        ] {
            let read = Header {
                algorithm: Algorithm::ES256,
                key_id: Some("a".to_owned()),
                is_access_token,
            };
            assert_eq!(header(fine), Ok(read), "{fine}");
        }
        assert_eq!(header(r#"{"alg":"RS256"}"#).unwrap().key_id, None);
        for (text, flaw) in [
            (r#"{"alg":"none"}"#, TokenError::Algorithm),
            (r#"{"alg":"None"}"#, TokenError::Algorithm),
            (r#"{"alg":""}"#, TokenError::Algorithm),
            (r#"{"alg":"HS256"}"#, TokenError::Algorithm),
            (r#"{"alg":"es256"}"#, TokenError::Algorithm),
            (r#"{"typ":"JWT"}"#, TokenError::Form),
            (r#"{"alg":["ES256"]}"#, TokenError::Form),
            (r#"{"alg":null}"#, TokenError::Form),
            (r#"{"alg":"none","alg":"ES256"}"#, TokenError::Form),
            (r#"{"alg":"ES256","\u0061lg":"none"}"#, TokenError::Form),
            (r#"{"alg":"ES256","kid":7}"#, TokenError::Form),
            (r#"{"alg":"ES256","crit":["exp"]}"#, TokenError::Critical),
            (r#"{"alg":"ES256","crit":[]}"#, TokenError::Critical),
            (r#"{"alg":"ES256","typ":"dpop+jwt"}"#, TokenError::Type),
            (r#"{"alg":"ES256","typ":1}"#, TokenError::Form),
            (r#"["ES256"]"#, TokenError::Form),
            ("{\"alg\":\"ES256\"", TokenError::Form),
            ("{\"alg\":\"ES256\"} ,", TokenError::Form),
        ] {
            assert_eq!(header(text), Err(flaw), "{text}");
        }
        let long =
            format!(r#"{{"alg":"ES256","kid":"{}"}}"#, "k".repeat(TOKEN_KEY_ID_BYTES_MAX + 1));
        assert_eq!(header(&long), Err(TokenError::Form));
    }

    #[test]
    fn auth_09_text_without_three_base64url_parts_is_not_a_token() {
        let whole = token(r#"{"alg":"ES256"}"#, "{}");
        assert!(Jwt::parse(&whole).is_ok());
        let parts: Vec<&str> = whole.split('.').collect();
        let (header, claims, signature) = (parts[0], parts[1], parts[2]);
        for text in [
            String::new(),
            ".".to_owned(),
            "..".to_owned(),
            format!("{header}.{claims}"),
            format!("{header}.{claims}."),
            format!(".{claims}.{signature}"),
            format!("{header}..{signature}"),
            format!("{header}.{claims}.{signature}.{signature}"),
            format!("{header}.{claims}.{signature}.{signature}.{signature}"),
            format!("{header}=.{claims}.{signature}"),
            format!("{header}.{claims}.{signature}=="),
            format!("{header}.{claims} .{signature}"),
            format!("{header}.{claims}.+{}", &signature[1..]),
        ] {
            assert!(Jwt::parse(&text).is_err(), "{text}");
        }
        let huge =
            token(r#"{"alg":"ES256"}"#, &format!("{{\"x\":\"{}\"}}", "y".repeat(TOKEN_BYTES_MAX)));
        assert_eq!(Jwt::parse(&huge).err(), Some(TokenError::TooLong));
    }

    #[test]
    fn a_damaged_jwt_is_not_an_opaque_token() {
        let whole = token(r#"{"alg":"ES256"}"#, "{}");
        for damaged in [format!("{whole}="), format!("{whole}!"), format!("{}..", &whole[..20])] {
            assert!(Jwt::parse(&damaged).is_err() && Jwt::is_meant(&damaged), "{damaged}");
        }
        for opaque in ["", "opaque", "a.b.c", &format!("{whole}.{whole}"), "mF_9.B5f-4.1JqM"] {
            assert!(!Jwt::is_meant(opaque), "{opaque}");
        }
    }

    #[test]
    fn claims_are_read_in_each_permitted_form() {
        let text = token(
            "{}",
            r#"{"iss":"a","aud":["x",1,"y"],"exp":10.5,"nbf":"1","scope":"a  b","empty":""}"#,
        );
        let jwt = Jwt::parse(&text).unwrap();
        let claims = jwt.claims().unwrap();
        assert_eq!(
            (claims.text("iss").as_deref(), claims.text("aud"), claims.text("empty")),
            (Some("a"), None, None)
        );
        assert_eq!(
            (claims.audiences(), claims.scopes()),
            (vec!["x".to_owned(), "y".to_owned()], Some(vec!["a".to_owned(), "b".to_owned()]))
        );
        assert_eq!(claims.moment("exp"), Ok(Some(UNIX_EPOCH + Duration::from_millis(10_500))));
        assert_eq!((claims.moment("nbf"), claims.moment("iat")), (Err(TokenError::Time), Ok(None)));
        for (claims, expected) in [
            (r#"{"scp":["c d","e"]}"#, Some(&["c", "d", "e"][..])),
            (r#"{"scp":"c d"}"#, Some(&["c", "d"])),
            (r#"{"scope":"c d","scp":["c","d"]}"#, Some(&["c", "d"])),
            (r#"{"scope":[]}"#, Some(&[])),
            ("{}", None),
            (r#"{"scope":7}"#, None),
            (r#"{"scope":null}"#, None),
            (r#"{"scope":[["c"]]}"#, None),
            (r#"{"scope":"","scp":["c"]}"#, None),
        ] {
            let text = token("{}", claims);
            let scopes = Jwt::parse(&text).unwrap().claims().unwrap().scopes();
            let expected = expected.map(|words| words.iter().map(|w| (*w).to_owned()).collect());
            assert_eq!(scopes, expected, "{claims}");
        }
        for text in [r#"{"exp":1,"exp":2}"#, "[]", "7", ""] {
            let text = token("{}", text);
            assert!(
                Jwt::parse(&text).is_err() || Jwt::parse(&text).unwrap().claims().is_err(),
                "{text}"
            );
        }
        for time in ["-1", "1e400", "253402300800", "null", "\"1\"", "[1]"] {
            let text = token("{}", &format!("{{\"exp\":{time}}}"));
            let jwt = Jwt::parse(&text).unwrap();
            assert!(jwt.claims().and_then(|claims| claims.moment("exp")).is_err(), "{time}");
        }
    }

    #[test]
    fn s10_a_token_with_a_duplicate_claim_at_any_depth_is_refused() {
        let claims = |text: &str| Jwt::parse(&token("{}", text)).unwrap().claims().map(drop);
        assert_eq!(
            claims(
                r#"{"realm_access":{"roles":["a"]},"resource_access":{"b":{"roles":[]},"roles":1}}"#
            ),
            Ok(())
        );
        for twice in [
            r#"{"realm_access":{"roles":["a"],"roles":["admin"]}}"#,
            r#"{"realm_access":{"roles":["a"],"r\u006fles":["admin"]}}"#,
            r#"{"a":[{"b":{"c":1,"c":2}}]}"#,
        ] {
            assert_eq!(claims(twice), Err(TokenError::Form), "{twice}");
        }
        assert_eq!(
            header(r#"{"alg":"ES256","jwk":{"kty":"EC","kty":"RSA"}}"#),
            Err(TokenError::Form)
        );
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in r"[-A-Za-z0-9_.=+/ ]{0,200}", header in ".{0,60}", claims in ".{0,60}") {
            for text in [text, token(&header, &claims)] {
                let Ok(jwt) = Jwt::parse(&text) else { continue };
                let _ = jwt.header();
                if let Ok(claims) = jwt.claims() {
                    let _ = (claims.audiences(), claims.scopes(), claims.moment("exp"), claims.text("iss"));
                }
            }
        }
    }
}
