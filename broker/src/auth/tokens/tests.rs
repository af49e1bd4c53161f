//! Tests of tokens and keys of every kind, without an authorization server.

use aws_lc_rs::hmac;
use config::TenantMapping;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::TenantId,
};
use serde_json::{Value, json};
use testkit::{
    SigningKey,
    authorization::{RESOURCE, encoded, now},
    eventually,
};
use transport::HttpClientConfig;

use super::{key_set::KeySet, *};
use crate::auth::Keys;

const ISSUER: &str = "https://login.example.com/t";

fn issuer(changes: impl FnOnce(&mut config::IssuerConfig)) -> config::IssuerConfig {
    let text = format!(
        "auth: {{resource: '{RESOURCE}', issuers: [{{issuer: '{ISSUER}', tenant: acme}}]}}"
    );
    let issuer = config::load_from(&text, []).unwrap().auth.issuers.remove(0);
    let mut issuer = Arc::unwrap_or_clone(issuer);
    changes(&mut issuer);
    issuer
}

/// Issuers with given keys, and a keyring with the tenant `acme`.
struct Rig {
    tokens: TokenVerifier,
    keyring: Arc<Keyring>,
}

impl Rig {
    fn new(issuers: Vec<(config::IssuerConfig, Value)>) -> Self {
        let keyring = Arc::new(Keyring::new(Keys::from_root(b"root").api_key));
        keyring.set_enabled(&TenantId::parse("acme").unwrap(), true);
        let issuers = issuers.into_iter().map(|(config, keys)| {
            let issuer = TokenIssuer::new(config.into(), None, RESOURCE);
            issuer.install_keys(
                KeySet::parse(keys.to_string().as_bytes()).unwrap(),
                &keyring,
                &Metrics::new(false),
            );
            (issuer.name().to_owned(), Arc::new(issuer))
        });
        let client = transport::HttpClient::new(HttpClientConfig::default()).unwrap();
        let fetcher = KeyFetcher::new(client.clone(), client);
        let tokens = TokenVerifier::new(keyring.clone(), fetcher, Arc::new(Metrics::new(false)));
        tokens.issuers.store(Arc::new(issuers.collect()));
        Self { tokens, keyring }
    }

    fn with(keys: &[&SigningKey]) -> Self {
        Self::new(vec![(issuer(|_| {}), set(keys))])
    }

    /// Verifies a token that comes without a certificate.
    fn verify(&self, token: &str) -> Result<AuthenticatedCaller, AuthError> {
        self.tokens.verify(token, None)
    }

    fn flaw(&self, token: &str) -> Option<TokenError> {
        self.tokens.check(token, &[0; 32]).err().map(|(flaw, _)| flaw)
    }
}

fn any_tenant() -> TenantMapping {
    TenantMapping::Claim { name: "org".to_owned(), tenants: Vec::new() }
}

/// Returns the answer for the caller.
fn refusal_of(denied: AuthError) -> Refusal {
    denied.into_parts().0
}

fn set(keys: &[&SigningKey]) -> Value {
    json!({"keys": keys.iter().map(|key| key.public()).collect::<Vec<_>>()})
}

fn claims(changes: Value) -> Value {
    let mut claims =
        json!({"iss": ISSUER, "sub": "ann", "aud": RESOURCE, "iat": now(), "exp": now() + 600});
    for (name, value) in changes.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    claims
}

#[test]
fn a_token_of_each_algorithm_identifies_its_tenant_and_principal() {
    let rsa = SigningKey::rsa("r");
    let keys = [
        rsa.clone(),
        rsa.pss(),
        SigningKey::ec("e"),
        SigningKey::ec_384("e3"),
        SigningKey::ed("d"),
    ];
    let rig = Rig::with(&keys.iter().filter(|key| key.algorithm() != "PS256").collect::<Vec<_>>());
    for key in keys {
        let proven = rig.verify(&key.sign(&claims(json!({})))).unwrap();
        let caller = &proven.caller;
        let principal = format!("{ISSUER} ann");
        assert_eq!(
            (caller.tenant.as_str(), caller.principal.as_str(), &caller.key),
            ("acme", principal.as_str(), &None),
            "{}",
            key.algorithm()
        );
        assert!(proven.until.is_some() && !proven.is_past());
    }
}

#[test]
fn auth_09_a_06_forged_tokens_are_refused() {
    let (rsa, ec, other) = (SigningKey::rsa("r"), SigningKey::ec("e"), SigningKey::ec("e"));
    let rig = Rig::with(&[&rsa, &ec]);
    let good = ec.sign(&claims(json!({})));
    assert_eq!(rig.flaw(&good), None);
    let parts: Vec<&str> = good.split('.').collect();
    let hs256 = |secret: &[u8]| {
        let signed = format!(
            "{}.{}",
            encoded(r#"{"alg":"HS256","kid":"r"}"#),
            encoded(claims(json!({})).to_string())
        );
        let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
        format!("{signed}.{}", encoded(signature.as_ref()))
    };
    let with_header = |header: Value| ec.sign_under(&header, &claims(json!({})));
    for (what, token, flaw) in [
        (
            "no algorithm",
            format!("{}.{}.", encoded(r#"{"alg":"none"}"#), parts[1]),
            TokenError::Form,
        ),
        (
            "no algorithm, some signature",
            with_header(json!({"alg": "none", "kid": "e"})),
            TokenError::Algorithm,
        ),
        ("the public key as a secret", hs256(&rsa.public_bytes()), TokenError::Algorithm),
        (
            "the public key's text as a secret",
            hs256(rsa.public().to_string().as_bytes()),
            TokenError::Algorithm,
        ),
        ("another key of the same name", other.sign(&claims(json!({}))), TokenError::Signature),
        (
            "a key of another type",
            with_header(json!({"alg": "RS256", "kid": "e"})),
            TokenError::KeyUnfit,
        ),
        (
            "an algorithm of another key",
            with_header(json!({"alg": "ES256", "kid": "r"})),
            TokenError::KeyUnfit,
        ),
        (
            "a longer algorithm",
            with_header(json!({"alg": "ES384", "kid": "e"})),
            TokenError::KeyUnfit,
        ),
        (
            "a path for a key",
            with_header(json!({"alg": "ES256", "kid": "../../../etc/passwd"})),
            TokenError::UnknownKey,
        ),
        (
            "a URL for a key",
            with_header(json!({"alg": "ES256", "kid": "http://127.0.0.1:1/k"})),
            TokenError::UnknownKey,
        ),
        (
            "a statement for a key",
            with_header(json!({"alg": "ES256", "kid": "e' OR '1'='1"})),
            TokenError::UnknownKey,
        ),
        (
            "no name of a key",
            with_header(json!({"alg": "ES256", "kid": ""})),
            TokenError::UnknownKey,
        ),
        (
            "a key of its own",
            other.sign_under(&json!({"alg": "ES256", "jwk": other.public()}), &claims(json!({}))),
            TokenError::Signature,
        ),
        (
            "keys elsewhere",
            other.sign_under(
                &json!({"alg": "ES256", "kid": "e", "jku": "http://127.0.0.1:1/"}),
                &claims(json!({})),
            ),
            TokenError::Signature,
        ),
        (
            "a critical header",
            with_header(json!({"alg": "ES256", "kid": "e", "crit": ["exp"], "exp": 1})),
            TokenError::Critical,
        ),
        (
            "the claims of another token",
            format!(
                "{}.{}.{}",
                parts[0],
                encoded(claims(json!({"sub": "eve"})).to_string()),
                parts[2]
            ),
            TokenError::Signature,
        ),
        (
            "the header of another token",
            format!("{}.{}.{}", encoded(r#"{"alg":"ES256","kid":"e"}"#), parts[1], parts[2]),
            TokenError::Signature,
        ),
        (
            "no signature to speak of",
            format!("{}.{}.{}", parts[0], parts[1], encoded([0; 64])),
            TokenError::Signature,
        ),
        (
            "half a signature",
            format!("{}.{}.{}", parts[0], parts[1], encoded([7; 32])),
            TokenError::Signature,
        ),
        (
            "two audiences at once",
            ec.sign_text(
                &ec.header().to_string(),
                &format!("{{\"aud\":\"x\",{}", &claims(json!({})).to_string()[1..]),
            ),
            TokenError::Form,
        ),
        (
            "a token in a token",
            ec.sign_under(
                &json!({"alg": "ES256", "kid": "e", "typ": "JWT", "cty": "JWT"}),
                &json!(good),
            ),
            TokenError::Form,
        ),
        (
            "a token of another kind",
            with_header(json!({"alg": "ES256", "kid": "e", "typ": "logout+jwt"})),
            TokenError::Type,
        ),
        ("much too much", ec.sign(&claims(json!({"x": "y".repeat(1 << 20)}))), TokenError::TooLong),
        ("an API key", "mcpb_AAAAAAAAAAAA_AAAA.A.A".to_owned(), TokenError::Form),
        ("nothing", String::new(), TokenError::Form),
    ] {
        assert_eq!(rig.flaw(&token), Some(flaw), "{what}");
        assert!(
            matches!(
                rig.verify(&token).map_err(refusal_of),
                Err(Refusal { kind: ErrorKind::Unauthorized, .. })
            ),
            "{what}"
        );
    }
    // A change of any byte makes the token invalid.
    for at in 0..good.len() {
        let mut bytes = good.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        assert!(rig.flaw(&String::from_utf8(bytes).unwrap()).is_some(), "at {at}");
        assert!(rig.flaw(&good[..at]).is_some(), "cut at {at}");
    }
}

#[test]
fn auth_03_auth_09_each_claim_is_checked_against_its_rule() {
    let key = SigningKey::ed("d");
    let rig = Rig::with(&[&key]);
    let at = |seconds: i64| now().checked_add_signed(seconds).unwrap();
    for (changes, flaw) in [
        (json!({}), None),
        (json!({"exp": at(-30)}), None), // within the leeway
        (json!({"exp": at(600) as f64 + 0.5}), None),
        (json!({"nbf": at(30), "iat": at(30)}), None),
        (json!({"iat": null}), None),
        (json!({"aud": ["x", RESOURCE]}), None),
        (json!({"aud": format!("{RESOURCE}/")}), None),
        (json!({"aud": format!("{RESOURCE}/mcp")}), None),
        (json!({"aud": format!("{RESOURCE}/mcp/weather")}), None),
        (json!({"exp": null}), Some(TokenError::NoExpiry)),
        (json!({"exp": at(-120)}), Some(TokenError::Expired)),
        (json!({"exp": 0}), Some(TokenError::Expired)),
        (json!({"exp": "9999999999"}), Some(TokenError::Time)),
        (json!({"exp": -1}), Some(TokenError::Time)),
        (json!({"nbf": at(120)}), Some(TokenError::NotYet)),
        (json!({"iat": at(120)}), Some(TokenError::NotYet)),
        (json!({"iat": "now"}), Some(TokenError::Time)),
        (json!({"aud": null}), Some(TokenError::Audience)),
        (json!({"aud": []}), Some(TokenError::Audience)),
        (json!({"aud": {"x": RESOURCE}}), Some(TokenError::Audience)),
        (json!({"aud": "https://other.example"}), Some(TokenError::Audience)),
        (json!({"aud": format!("{RESOURCE}.evil.example")}), Some(TokenError::Audience)),
        (json!({"aud": format!("{RESOURCE}/other")}), Some(TokenError::Audience)),
        (json!({"aud": format!("{RESOURCE}/mcp/../x")}), Some(TokenError::Audience)),
        (json!({"iss": "https://login.example.com"}), Some(TokenError::Issuer)),
        (json!({"iss": format!("{ISSUER}/")}), Some(TokenError::Issuer)),
        (json!({"iss": [ISSUER]}), Some(TokenError::Issuer)),
        (json!({"iss": null}), Some(TokenError::Issuer)),
        (json!({"sub": null}), Some(TokenError::Principal)),
        (json!({"sub": ""}), Some(TokenError::Principal)),
        (json!({"sub": 7}), Some(TokenError::Principal)),
        (json!({"sub": "a\nb"}), Some(TokenError::Principal)),
        (json!({"sub": "a".repeat(256)}), Some(TokenError::Principal)),
    ] {
        assert_eq!(rig.flaw(&key.sign(&claims(changes.clone()))), flaw, "{changes}");
    }
    let own =
        Rig::new(vec![(issuer(|issuer| issuer.audiences = vec!["mcp".to_owned()]), set(&[&key]))]);
    assert_eq!(own.flaw(&key.sign(&claims(json!({"aud": "mcp"})))), None);
    assert_eq!(
        own.flaw(&key.sign(&claims(json!({})))),
        Some(TokenError::Audience),
        "what is configured goes before the resource"
    );
}

#[test]
fn the_tenant_is_configured_or_from_a_claim_and_must_be_served() {
    let key = SigningKey::ed("d");
    let rig = Rig::new(vec![(issuer(|issuer| issuer.tenant = any_tenant()), set(&[&key]))]);
    for (changes, flaw) in [
        (json!({"org": "acme"}), None),
        (json!({}), Some(TokenError::Tenant)),
        (json!({"org": "umbrella"}), Some(TokenError::Tenant)),
        (json!({"org": "Acme"}), Some(TokenError::Tenant)),
        (json!({"org": ["acme"]}), Some(TokenError::Tenant)),
    ] {
        assert_eq!(rig.flaw(&key.sign(&claims(changes.clone()))), flaw, "{changes}");
    }
    let token = key.sign(&claims(json!({"org": "acme"})));
    assert!(rig.verify(&token).is_ok());
    rig.keyring.set_enabled(&TenantId::parse("acme").unwrap(), false);
    assert!(
        rig.verify(&token).is_err(),
        "a token that is known is looked at again when a tenant changes"
    );
}

#[test]
fn one_subject_at_two_issuers_is_two_principals_other_than_key_principals() {
    let (one, two) = (SigningKey::ed("d"), SigningKey::ed("d"));
    let other = issuer(|issuer| issuer.issuer = format!("{ISSUER}/2"));
    let rig = Rig::new(vec![(issuer(|_| {}), set(&[&one])), (other, set(&[&two]))]);
    let ann = rig.verify(&one.sign(&claims(json!({})))).unwrap().caller;
    let other_ann =
        rig.verify(&two.sign(&claims(json!({"iss": format!("{ISSUER}/2")})))).unwrap().caller;
    assert_ne!(ann.principal, other_ann.principal);
    assert_eq!(
        rig.flaw(&two.sign(&claims(json!({})))),
        Some(TokenError::Signature),
        "nor does one sign for the other"
    );
    for caller in [&ann, &other_ann] {
        assert!(super::super::reserved_reason(caller.principal.as_str()).is_some());
    }
    for name in ["ann", "https://a.example", "a b", "x https://a.example b"] {
        assert_eq!(super::super::reserved_reason(name), None, "{name}");
    }
}

#[test]
fn auth_04_all_required_scopes_are_reported_at_once() {
    let key = SigningKey::ed("d");
    let scopes = || vec!["mcp:read".to_owned(), "mcp:call".to_owned()];
    let rig = Rig::new(vec![(issuer(|issuer| issuer.scopes = scopes()), set(&[&key]))]);
    for fine in [
        json!({"scope": "x mcp:call mcp:read"}),
        json!({"scp": ["mcp:read", "mcp:call"]}),
        json!({"scp": "mcp:read mcp:call"}),
    ] {
        assert_eq!(rig.flaw(&key.sign(&claims(fine.clone()))), None, "{fine}");
    }
    for lacking in [
        json!({}),
        json!({"scope": "mcp:read"}),
        json!({"scope": ""}),
        json!({"scope": "*"}),
        json!({"scope": "mcp:read mcp:callx"}),
    ] {
        let refusal = refusal_of(rig.verify(&key.sign(&claims(lacking.clone()))).unwrap_err());
        assert_eq!(
            (refusal.kind, &refusal.data),
            (ErrorKind::InsufficientScope, &vec![("scope", json!("mcp:read mcp:call"))]),
            "{lacking}"
        );
    }
    // A token with another fault gets no answer about scopes.
    assert_eq!(rig.flaw(&key.sign(&claims(json!({"aud": "x"})))), Some(TokenError::Audience));
}

#[test]
fn a_key_is_used_only_as_it_declares_and_unusable_keys_are_ignored() {
    let (key, other) = (SigningKey::ec("e"), SigningKey::ec("f"));
    let with = |changes: Value| {
        let mut public = key.public();
        for (name, value) in changes.as_object().unwrap() {
            public[name] = value.clone();
        }
        Rig::new(vec![(
            issuer(|_| {}),
            json!({"keys": [{"kty": "oct", "k": "AAAA", "kid": "e"}, {"kty": "X"}, 7, {"kty": "RSA"}, public, other.public()]}),
        )])
    };
    let token = key.sign(&claims(json!({})));
    for fine in [json!({}), json!({"use": "sig", "alg": "ES256"}), json!({"key_ops": ["verify"]})] {
        assert_eq!(with(fine.clone()).flaw(&token), None, "{fine}");
    }
    for left_out in [
        json!({"use": "enc"}),
        json!({"key_ops": ["encrypt"]}),
        json!({"alg": "RS256"}),
        json!({"alg": "HS256"}),
        json!({"crv": "P-521"}),
        json!({"kid": 7}),
    ] {
        assert_eq!(with(left_out.clone()).flaw(&token), Some(TokenError::UnknownKey), "{left_out}");
    }
    assert_eq!(with(json!({"x": "AAAA"})).flaw(&token), Some(TokenError::Signature));
}

#[test]
fn a_token_without_a_key_id_is_verified_by_the_only_matching_key() {
    let (ec, ed) = (SigningKey::ec("e"), SigningKey::ed("d"));
    let token = ec.unnamed().sign(&claims(json!({})));
    assert_eq!(Rig::with(&[&ec, &ed]).flaw(&token), None);
    assert_eq!(Rig::with(&[&ec.unnamed()]).flaw(&token), None);
    assert_eq!(Rig::with(&[&ec, &SigningKey::ec("f")]).flaw(&token), Some(TokenError::KeyUnfit));
    assert_eq!(
        Rig::with(&[&ed]).flaw(&token),
        Some(TokenError::UnknownKey),
        "there may be one by now"
    );
    assert_eq!(
        Rig::with(&[&ec, &SigningKey::ec("e")]).flaw(&ec.sign(&claims(json!({})))),
        Some(TokenError::KeyUnfit)
    );
}

#[test]
fn only_the_algorithms_of_the_issuer_are_accepted() {
    let key = SigningKey::rsa("r");
    let rig = Rig::new(vec![(
        issuer(|issuer| issuer.algorithms = vec![jsonwebtoken::Algorithm::PS256]),
        set(&[&key]),
    )]);
    assert_eq!(rig.flaw(&key.pss().sign(&claims(json!({})))), None);
    assert_eq!(rig.flaw(&key.sign(&claims(json!({})))), Some(TokenError::Algorithm));
}

#[test]
fn a_07_a_cached_token_is_refused_when_its_key_leaves_the_key_set() {
    let (old, new) = (SigningKey::ec("old"), SigningKey::ec("new"));
    let rig = Rig::with(&[&old]);
    let token = old.sign(&claims(json!({})));
    (0..2).for_each(|_| assert!(rig.verify(&token).is_ok()));
    assert_eq!(rig.tokens.remembered.len(), 1);
    let metrics = Metrics::new(false);
    let edition = rig.keyring.version();
    rig.tokens.issuers.load()[ISSUER].install_keys(
        KeySet::parse(set(&[&old]).to_string().as_bytes()).unwrap(),
        &rig.keyring,
        &metrics,
    );
    assert_eq!(rig.keyring.version(), edition, "the same keys change nothing");
    rig.tokens.issuers.load()[ISSUER].install_keys(
        KeySet::parse(set(&[&new]).to_string().as_bytes()).unwrap(),
        &rig.keyring,
        &metrics,
    );
    assert!(rig.verify(&token).is_err());
    assert!(rig.verify(&new.sign(&claims(json!({})))).is_ok());
}

#[tokio::test]
async fn a_token_is_cached_until_it_expires_and_invalid_ones_are_not_cached() {
    let key = SigningKey::ed("d");
    let rig = Rig::with(&[&key]);
    let ending = key.sign(&claims(json!({"exp": now() as f64 - 60.0 + 1.2})));
    assert!(rig.verify(&ending).is_ok());
    eventually("the end of the token", || async { rig.verify(&ending).map_or(Ok(()), Err) }).await;
    let edition = rig.keyring.version();
    let proven = rig.verify(&key.sign(&claims(json!({})))).unwrap();
    for number in 0..2 * TOKENS_REMEMBERED_MAX {
        let digest = rig.tokens.digester.digest(&number.to_string());
        rig.tokens.remember(digest, edition, &proven);
        assert!(rig.tokens.remembered.len() <= TOKENS_REMEMBERED_MAX);
    }
    let before = rig.tokens.remembered.len();
    (0..100).for_each(|number| assert!(rig.verify(&format!("a.b{number}.c")).is_err()));
    assert_eq!(rig.tokens.remembered.len(), before);
}

#[tokio::test]
async fn an_unreachable_issuer_delays_neither_the_start_nor_the_stop() {
    let client = transport::HttpClient::new(HttpClientConfig::default()).unwrap();
    let keyring = Arc::new(Keyring::new(Keys::from_root(b"root").api_key));
    let text = format!(
        "auth: {{resource: '{RESOURCE}', issuers: [{{issuer: 'http://127.0.0.1:1', tenant: acme}}]}}"
    );
    let auth = config::load_from(&text, []).unwrap().auth;
    let fetcher = KeyFetcher::new(client.clone(), client);
    let tokens = TokenVerifier::new(keyring, fetcher, Arc::new(Metrics::new(false)));
    assert!(!tokens.has_issuers());
    tokens.set_issuers(auth.resource.as_deref(), &auth.issuers);
    assert!(tokens.has_issuers() && tokens.verify("a.b.c", None).is_err());
}

#[tokio::test]
async fn a_changed_issuer_keeps_its_keys_and_a_new_credential_of_the_broker_ends_no_token() {
    let key = SigningKey::ec("one");
    let with_secret = |secret: &str| {
        issuer(|issuer| {
            issuer.introspection = Some(config::IntrospectionConfig {
                endpoint: format!("{ISSUER}/introspect").parse().unwrap(),
                client_id: "broker".to_owned(),
                credential: config::IntrospectionCredential::Basic(config::Secret::new(secret)),
                ttl: std::time::Duration::from_secs(60),
                includes_jwts: false,
            });
        })
    };
    let rig = Rig::new(vec![(with_secret("the first secret"), set(&[&key]))]);
    let change = |issuer: config::IssuerConfig| {
        rig.tokens.set_issuers(Some(RESOURCE), &[Arc::new(issuer)]);
    };
    let token = key.sign(&claims(json!({})));
    let opened = rig.verify(&token).unwrap().caller.token.unwrap();
    change(with_secret("the second secret"));
    assert!(!opened.is_revoked(), "what the token opened stays open");
    assert!(rig.verify(&token).is_ok(), "before the first fetch of keys");

    change(issuer(|issuer| issuer.groups_claim = Some("groups".to_owned())));
    assert!(opened.is_revoked());
    assert!(rig.verify(&token).is_ok(), "before the first fetch of keys");

    change(issuer(|issuer| issuer.jwks_url = Some(format!("{ISSUER}/keys").parse().unwrap())));
    assert_eq!(rig.flaw(&token), Some(TokenError::UnknownKey), "the keys are elsewhere");
    assert!(rig.tokens.metrics.render().contains("mcp_issuers_without_keys 1"));
}

#[test]
fn s05_an_empty_set_replaces_the_keys_and_their_maximum_age_ends_them() {
    let key = SigningKey::ec("one");
    let rig = Rig::with(&[&key]);
    let (token, metrics, issuer) = (
        key.sign(&claims(json!({}))),
        Metrics::new(false),
        rig.tokens.issuers.load()[ISSUER].clone(),
    );
    let take = |keys: Value| {
        issuer.install_keys(
            KeySet::parse(keys.to_string().as_bytes()).unwrap(),
            &rig.keyring,
            &metrics,
        )
    };
    assert!(rig.verify(&token).is_ok());
    for none in [json!({"keys": []}), json!({"keys": [{"kty": "oct", "k": "AAAA", "kid": "one"}]})]
    {
        take(none);
        assert!(rig.verify(&token).is_err(), "a token that is known too");
        take(set(&[&key]));
        assert!(rig.verify(&token).is_ok());
    }
    let now = tokio::time::Instant::now();
    assert!(
        issuer.expire_keys(now, &rig.keyring, &metrics)
            > std::time::Duration::from_secs(23 * 3_600)
    );
    assert!(rig.verify(&token).is_ok());
    let metrics = Metrics::new(false);
    metrics.tokens.has_keys(false);
    let aged = super::issuer::TokenIssuer::new(
        self::issuer(|issuer| issuer.keys_max_age = std::time::Duration::ZERO).into(),
        None,
        RESOURCE,
    );
    aged.install_keys(
        KeySet::parse(set(&[&key]).to_string().as_bytes()).unwrap(),
        &rig.keyring,
        &metrics,
    );
    assert!(metrics.render().contains("mcp_issuers_without_keys 0"));
    let edition = rig.keyring.version();
    aged.expire_keys(now, &rig.keyring, &metrics);
    assert_ne!(
        rig.keyring.version(),
        edition,
        "what was found out with the old keys is looked at again"
    );
    assert!(metrics.render().contains("mcp_issuers_without_keys 1"), "{}", metrics.render());
}

#[test]
fn s10_id_tokens_and_bound_tokens_are_not_access_tokens() {
    let key = SigningKey::ed("d");
    let typed = |kind: &str| json!({"alg": "EdDSA", "kid": "d", "typ": kind});
    let rig = Rig::with(&[&key]);
    for of_id_token in [
        json!({"nonce": "n"}),
        json!({"at_hash": "h"}),
        json!({"c_hash": ""}),
        json!({"typ": "ID"}),
    ] {
        let untyped = json!({"alg": "EdDSA", "kid": "d"});
        assert_eq!(
            rig.flaw(&key.sign_under(&untyped, &claims(of_id_token.clone()))),
            Some(TokenError::IdToken),
            "{of_id_token}"
        );
        assert_eq!(
            rig.flaw(&key.sign_under(&typed("JWT"), &claims(of_id_token.clone()))),
            Some(TokenError::IdToken),
            "{of_id_token}"
        );
        assert_eq!(
            rig.flaw(&key.sign_under(&typed("at+jwt"), &claims(of_id_token.clone()))),
            None,
            "{of_id_token}"
        );
    }
    for bound in [
        json!({"cnf": {"jkt": "x"}}),
        json!({"cnf": {"x5t#S256": "x"}}),
        json!({"cnf": {}}),
        json!({"cnf": 7}),
    ] {
        for header in [typed("JWT"), typed("at+jwt")] {
            assert_eq!(
                rig.flaw(&key.sign_under(&header, &claims(bound.clone()))),
                Some(TokenError::Bound),
                "{bound}"
            );
        }
    }
    let strict =
        Rig::new(vec![(issuer(|issuer| issuer.requires_access_token_type = true), set(&[&key]))]);
    assert_eq!(strict.flaw(&key.sign_under(&typed("AT+JWT"), &claims(json!({})))), None);
    assert_eq!(
        strict.flaw(&key.sign_under(&typed("application/at+jwt"), &claims(json!({})))),
        None
    );
    for header in [typed("JWT"), json!({"alg": "EdDSA", "kid": "d"})] {
        assert_eq!(
            strict.flaw(&key.sign_under(&header, &claims(json!({})))),
            Some(TokenError::Type),
            "{header}"
        );
    }
}

#[test]
fn s10_a_claim_names_only_the_tenants_that_are_listed() {
    let key = SigningKey::ed("d");
    let [acme, other] = ["acme", "umbrella"].map(|name| TenantId::parse(name).unwrap());
    let listed = TenantMapping::Claim { name: "org".to_owned(), tenants: vec![other.clone()] };
    let rig = Rig::new(vec![(issuer(|issuer| issuer.tenant = listed), set(&[&key]))]);
    rig.keyring.set_enabled(&other, true);
    assert!(rig.keyring.is_enabled(&acme));
    assert_eq!(rig.flaw(&key.sign(&claims(json!({"org": "umbrella"})))), None);
    assert_eq!(
        rig.flaw(&key.sign(&claims(json!({"org": "acme"})))),
        Some(TokenError::UnlistedTenant)
    );
}

#[test]
fn s10_a_subject_is_printable() {
    let key = SigningKey::ed("d");
    let rig = Rig::with(&[&key]);
    for unseen in
        ["a\u{202e}nna", "ann\u{200b}", "a\u{2028}b", "\u{feff}ann", "a\u{85}b", "a\u{2066}b"]
    {
        assert_eq!(
            rig.flaw(&key.sign(&claims(json!({"sub": unseen})))),
            Some(TokenError::Principal),
            "{unseen:?}"
        );
    }
    assert_eq!(rig.flaw(&key.sign(&claims(json!({"sub": "Änne"})))), None);
}
