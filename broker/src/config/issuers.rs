//! Authorization servers whose tokens are taken, and the public URL that tokens are for: `auth.resource` and `auth.issuers`.
//! Read with the rest by [`super::validation`], used by `auth::tokens`.
//!
//! Invariant: no algorithm with a shared secret can be configured, nor `none`, and nothing is fetched without TLS but over loopback.

use std::time::Duration;

use http::Uri;
use jsonwebtoken::Algorithm;
use protocol::ids::TenantId;
use serde_json::{Map, Value};
use transport::parse_http_url;

use super::{
    config_reader::{ConfigReader, InvalidReason, text, wrong},
    field_error::{describe, join},
    spec_reader::{SpecReader, given},
    units::{format_duration, parse_duration},
};
use crate::limits::tokens::{ISSUERS_MAX, KEY_SET_AGE_MAX};

const KEYS: [&str; 11] = [
    "issuer",
    "jwks_url",
    "keys_max_age",
    "audiences",
    "algorithms",
    "require_typ",
    "tenant",
    "tenant_claim",
    "tenants",
    "principal_claim",
    "scopes",
];
const URL_ALLOWED: &str = "an https URL, or an http one of this machine";
const RESOURCE_ALLOWED: &str = "an https URL without path, such as https://mcp.example.com";
/// The longest issuer, which stands in the name of every principal of it.
const ISSUER_BYTES_MAX: usize = 256;
/// The longest claim's name, audience or scope.
const WORD_BYTES_MAX: usize = 512;
/// The longest list of them.
const WORDS_MAX: usize = 64;
/// The longest list of tenants that a claim may name.
const TENANTS_MAX: usize = 10_000;

/// The one type of a token that can be demanded (RFC 9068, 2.1).
const ACCESS_TOKEN_TYPE: &str = "at+jwt";
/// The shortest age: a fetch that fails is tried again within it.
const KEYS_AGE_MIN: Duration = Duration::from_secs(10);
/// The longest age.
const KEYS_AGE_LONGEST: Duration = Duration::from_secs(30 * 24 * 3_600);

/// What tokens may be signed with, by its name in them.
const ALGORITHMS: [(&str, Algorithm); 9] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
];

/// An algorithm by its name in a token. Those with a shared secret are none, and `none` is none.
pub fn algorithm(name: &str) -> Option<Algorithm> {
    ALGORITHMS.iter().find(|(known, _)| *known == name).map(|(_, algorithm)| *algorithm)
}

/// An authorization server whose tokens are taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerConfig {
    /// As it stands in `iss`, to the letter.
    pub issuer: String,
    /// Where its keys are; absent, its metadata says it.
    pub jwks_url: Option<Uri>,
    /// Time for which its keys are believed since they were last fetched.
    pub keys_max_age: Duration,
    /// Whom its tokens may be for. Empty: the resource, and every endpoint below it.
    pub audiences: Vec<String>,
    pub algorithms: Vec<Algorithm>,
    /// Tokens must say that they are access tokens: `typ` is `at+jwt`.
    pub requires_access_token_type: bool,
    pub tenant: TenantMapping,
    /// The claim that says who it is.
    pub principal_claim: String,
    /// What each token must be good for.
    pub scopes: Vec<String>,
}

/// Which tenant a token is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantMapping {
    Fixed(TenantId),
    Claim {
        name: String,
        /// The tenants it may name. Empty: each that is served.
        tenants: Vec<TenantId>,
    },
}

impl ConfigReader<'_> {
    /// The public URL, without a slash at its end.
    pub(super) fn resource(&mut self) -> Option<String> {
        self.optional("auth.resource", |value, _| resource(value))
    }

    pub(super) fn issuers(&mut self, resource: Option<&str>) -> Vec<IssuerConfig> {
        const PATH: &str = "auth.issuers";
        let raw = self.raw;
        let Some(written) = raw.value(PATH) else { return Vec::new() };
        let allowed = self.raw.key(PATH).kind.allowed();
        let Some(entries) = written.as_array() else {
            self.fault(PATH, &wrong(written), &allowed);
            return Vec::new();
        };
        if entries.len() > ISSUERS_MAX {
            self.fault(PATH, "has too many entries", &format!("at most {ISSUERS_MAX}"));
        }
        if !entries.is_empty() && resource.is_none() && self.raw.value("auth.resource").is_none() {
            self.fault("auth.resource", "is missing beside auth.issuers", RESOURCE_ALLOWED);
        }
        let named = self.raw.named(PATH);
        let mut issuers: Vec<IssuerConfig> = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            let path = join(&named, &at.to_string());
            let issuer = IssuerReader {
                path: path.clone(),
                reader: SpecReader { faults: &mut self.faults },
            }
            .read(entry);
            if let Some(issuer) = issuer {
                if issuers.iter().any(|known| known.issuer == issuer.issuer) {
                    self.fault(&join(&path, "issuer"), "is listed twice", "each issuer once");
                }
                issuers.push(issuer);
            }
        }
        issuers
    }
}

fn resource(value: &Value) -> Result<String, InvalidReason> {
    let url = text(value).ok_or_else(|| wrong(value))?;
    let uri = parse_http_url(url).map_err(|error| format!("is no usable URL: {error}"))?;
    if !is_private(&uri) {
        return Err("is reached without TLS".to_owned());
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() || url.contains('?') {
        return Err("has a path or a query".to_owned());
    }
    Ok(url.trim_end_matches('/').to_owned())
}

/// Nobody on the way can read or change what is said there.
pub fn is_private(uri: &Uri) -> bool {
    uri.scheme_str() == Some("https") || is_loopback(uri)
}

/// On this machine.
pub fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// One entry of the list.
struct IssuerReader<'f> {
    path: String,
    reader: SpecReader<'f>,
}

impl IssuerReader<'_> {
    /// `None` after a fault that leaves nothing to go on with; the configuration is refused anyway.
    fn read(mut self, entry: &Value) -> Option<IssuerConfig> {
        let path = self.path.clone();
        let members = self.reader.object(&path, entry, &KEYS, &[])?;
        let issuer = self.reader.required_text(&path, members, "issuer");
        let jwks = self.reader.text(&path, members, "jwks_url");
        let issuer = issuer.filter(|issuer| self.issuer(issuer));
        let jwks_url = jwks.and_then(|url| self.url("jwks_url", &url));
        let keys_max_age = self.keys_max_age(members);
        let audiences =
            self.words(members, "audiences", |word| word.chars().all(|c| !c.is_control()));
        let scopes = self.words(members, "scopes", is_scope);
        let algorithms = self.algorithms(members);
        let requires_access_token_type = self.requires_access_token_type(members);
        let principal_claim =
            self.claim(members, "principal_claim").unwrap_or_else(|| "sub".to_owned());
        let tenant = self.tenant(members)?;
        Some(IssuerConfig {
            issuer: issuer?,
            jwks_url,
            keys_max_age,
            audiences,
            algorithms,
            requires_access_token_type,
            tenant,
            principal_claim,
            scopes,
        })
    }

    fn fault(&mut self, name: &str, wrong: &str, allowed: &str) {
        self.reader.fault(&join(&self.path, name), wrong, allowed);
    }

    fn issuer(&mut self, issuer: &str) -> bool {
        if issuer.len() > ISSUER_BYTES_MAX {
            self.fault("issuer", "is too long", &format!("at most {ISSUER_BYTES_MAX} bytes"));
            return false;
        }
        // RFC 8414, 2: neither query nor fragment.
        if issuer.contains('?') {
            self.fault("issuer", "has a query", URL_ALLOWED);
            return false;
        }
        self.url("issuer", issuer).is_some()
    }

    fn url(&mut self, name: &str, url: &str) -> Option<Uri> {
        match parse_http_url(url) {
            Ok(uri) if is_private(&uri) => return Some(uri),
            Ok(_) => self.fault(name, "is reached without TLS", URL_ALLOWED),
            Err(error) => self.fault(name, &format!("is no usable URL: {error}"), URL_ALLOWED),
        }
        None
    }

    fn words(
        &mut self,
        members: &Map<String, Value>,
        name: &'static str,
        fits: impl Fn(&str) -> bool,
    ) -> Vec<String> {
        let words = self.reader.text_list(&self.path, members, name);
        if words.len() > WORDS_MAX
            || words
                .iter()
                .any(|word| word.is_empty() || word.len() > WORD_BYTES_MAX || !fits(word))
        {
            self.fault(
                name,
                "has an entry that can not be one, or too many",
                &format!("at most {WORDS_MAX} texts, none of them empty"),
            );
        }
        words
    }

    fn algorithms(&mut self, members: &Map<String, Value>) -> Vec<Algorithm> {
        if given(members, "algorithms").is_none() {
            return ALGORITHMS.map(|(_, algorithm)| algorithm).to_vec();
        }
        let names = self.reader.text_list(&self.path, members, "algorithms");
        let known: Vec<Algorithm> = names.iter().filter_map(|name| algorithm(name)).collect();
        if known.is_empty() || known.len() < names.len() {
            let allowed = ALGORITHMS.map(|(name, _)| name).join(", ");
            self.fault("algorithms", "names none, or one that is not taken", &allowed);
        }
        known
    }

    fn keys_max_age(&mut self, members: &Map<String, Value>) -> Duration {
        let Some(value) = given(members, "keys_max_age") else { return KEY_SET_AGE_MAX };
        let age = value.as_str().and_then(|text| parse_duration(text).ok());
        age.filter(|age| (KEYS_AGE_MIN..=KEYS_AGE_LONGEST).contains(age)).unwrap_or_else(|| {
            let allowed = format!(
                "a duration from {} to {}",
                format_duration(KEYS_AGE_MIN),
                format_duration(KEYS_AGE_LONGEST)
            );
            self.fault("keys_max_age", &format!("is {}", describe(value)), &allowed);
            KEY_SET_AGE_MAX
        })
    }

    fn requires_access_token_type(&mut self, members: &Map<String, Value>) -> bool {
        let wanted = self.reader.text(&self.path, members, "require_typ");
        if wanted.as_deref().is_some_and(|wanted| wanted != ACCESS_TOKEN_TYPE) {
            self.fault("require_typ", "is not a type that can be demanded", ACCESS_TOKEN_TYPE);
        }
        wanted.is_some()
    }

    fn claim(&mut self, members: &Map<String, Value>, name: &'static str) -> Option<String> {
        let claim = self.reader.text(&self.path, members, name)?;
        if claim.is_empty() || claim.len() > WORD_BYTES_MAX {
            self.fault(name, "is no name of a claim", "the name of a member of the token");
        }
        Some(claim)
    }

    fn tenant(&mut self, members: &Map<String, Value>) -> Option<TenantMapping> {
        let named = self.reader.text(&self.path, members, "tenant");
        let claim = self.claim(members, "tenant_claim");
        let tenants = self.tenants(members, claim.is_some());
        match (named, claim) {
            (Some(_), Some(_)) => {
                self.fault("tenant_claim", "stands beside tenant", "one of the two")
            }
            (None, Some(name)) => return Some(TenantMapping::Claim { name, tenants }),
            (Some(name), None) => match TenantId::parse(&name) {
                Ok(tenant) => return Some(TenantMapping::Fixed(tenant)),
                Err(_) => {
                    self.fault("tenant", "is no name for a tenant", super::validation::NAME_ALLOWED)
                }
            },
            (None, None) => match given(members, "tenant").or(given(members, "tenant_claim")) {
                Some(other) if other.as_str().is_none() => {} // told already
                other => {
                    let wrong = other.map_or("is missing, and so is tenant_claim", describe);
                    self.fault(
                        "tenant",
                        wrong,
                        "the name of a tenant, or tenant_claim: the claim that names it",
                    );
                }
            },
        }
        None
    }

    /// The tenants that `tenant_claim` may name.
    fn tenants(&mut self, members: &Map<String, Value>, beside_claim: bool) -> Vec<TenantId> {
        if given(members, "tenants").is_none() {
            return Vec::new();
        }
        if !beside_claim {
            self.fault(
                "tenants",
                "stands without tenant_claim",
                "a list of tenants beside tenant_claim",
            );
        }
        let names = self.reader.text_list(&self.path, members, "tenants");
        let tenants: Vec<TenantId> =
            names.iter().filter_map(|name| TenantId::parse(name).ok()).collect();
        if tenants.is_empty() || tenants.len() < names.len() || tenants.len() > TENANTS_MAX {
            let allowed = format!(
                "1 to {TENANTS_MAX} names of tenants; each is {}",
                super::validation::NAME_ALLOWED
            );
            self.fault(
                "tenants",
                "is empty, too long, or has an entry that is not a name for a tenant",
                &allowed,
            );
        }
        tenants
    }
}

/// RFC 6749, 3.3.
fn is_scope(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_from;

    const RESOURCE: &str = "resource: 'https://mcp.example.com'";

    fn with(entry: &str) -> String {
        format!("auth: {{{RESOURCE}, issuers: [{entry}]}}")
    }

    #[track_caller]
    fn assert_fault(text: &str, fault: &str) {
        let faults = load_from(text, []).expect_err(text).to_string();
        assert!(faults.lines().any(|line| line.starts_with(fault)), "{text}: {faults}");
    }

    #[test]
    fn an_issuer_has_defaults_for_what_is_not_said() {
        let config =
            load_from(&with("{issuer: 'https://login.example.com', tenant: acme}"), []).unwrap();
        let [issuer] = &config.auth.issuers[..] else { panic!("one issuer") };
        assert_eq!(
            (issuer.issuer.as_str(), issuer.principal_claim.as_str()),
            ("https://login.example.com", "sub")
        );
        assert_eq!(issuer.tenant, TenantMapping::Fixed(TenantId::parse("acme").unwrap()));
        assert!(
            issuer.jwks_url.is_none() && issuer.audiences.is_empty() && issuer.scopes.is_empty()
        );
        assert_eq!(issuer.algorithms.len(), ALGORITHMS.len());
        assert!(!issuer.requires_access_token_type && issuer.keys_max_age == KEY_SET_AGE_MAX);
        assert_eq!(config.auth.resource.as_deref(), Some("https://mcp.example.com"));
        assert_eq!(
            load_from("auth: {resource: 'http://127.0.0.1:80/'}", [])
                .unwrap()
                .auth
                .resource
                .as_deref(),
            Some("http://127.0.0.1:80")
        );
    }

    #[test]
    fn everything_of_an_issuer_can_be_said() {
        let config = load_from(
            &with(
                "{issuer: 'http://[::1]:9/a', jwks_url: 'https://keys.example.com/k?x=1', audiences: [mcp], algorithms: [ES256, EdDSA], tenant_claim: org, tenants: [acme, b], require_typ: at+jwt, keys_max_age: 1h, principal_claim: email, scopes: [mcp:tools]}",
            ),
            [],
        )
        .unwrap();
        let issuer = &config.auth.issuers[0];
        assert_eq!(issuer.algorithms, [Algorithm::ES256, Algorithm::EdDSA]);
        let tenants = ["acme", "b"].map(|name| TenantId::parse(name).unwrap()).to_vec();
        let claim = TenantMapping::Claim { name: "org".to_owned(), tenants };
        assert_eq!((&issuer.tenant, issuer.principal_claim.as_str()), (&claim, "email"));
        assert!(
            issuer.requires_access_token_type && issuer.keys_max_age == Duration::from_secs(3_600)
        );
        assert_eq!(
            (issuer.audiences.as_slice(), issuer.scopes.as_slice()),
            (&["mcp".to_owned()][..], &["mcp:tools".to_owned()][..])
        );
        assert_eq!(issuer.jwks_url.as_ref().unwrap().to_string(), "https://keys.example.com/k?x=1");
    }

    #[test]
    fn faults_of_issuers_name_their_place() {
        let url = "issuer: 'https://a.example'";
        for (entry, fault) in [
            ("{tenant: acme}", "auth.issuers.0.issuer: is missing"),
            (&format!("{{{url}}}"), "auth.issuers.0.tenant: is missing, and so is tenant_claim"),
            (
                &format!("{{{url}, tenant: acme, tenant_claim: org}}"),
                "auth.issuers.0.tenant_claim: stands beside tenant",
            ),
            (&format!("{{{url}, tenant: Acme}}"), "auth.issuers.0.tenant: is no name for a tenant"),
            (&format!("{{{url}, tenant: 1}}"), "auth.issuers.0.tenant: is a number"),
            (&format!("{{{url}, tenant: acme, key: x}}"), "auth.issuers.0.key: is no known key"),
            (
                &format!("{{{url}, tenant: acme, algorithms: [HS256]}}"),
                "auth.issuers.0.algorithms: names none",
            ),
            (
                &format!("{{{url}, tenant: acme, algorithms: [none]}}"),
                "auth.issuers.0.algorithms: names none",
            ),
            (
                &format!("{{{url}, tenant: acme, algorithms: []}}"),
                "auth.issuers.0.algorithms: names none",
            ),
            (
                &format!("{{{url}, tenant: acme, scopes: ['a b']}}"),
                "auth.issuers.0.scopes: has an entry",
            ),
            (
                &format!("{{{url}, tenant: acme, audiences: ['']}}"),
                "auth.issuers.0.audiences: has an entry",
            ),
            (
                &format!("{{{url}, tenant: acme, jwks_url: 'http://a.example/k'}}"),
                "auth.issuers.0.jwks_url: is reached without TLS",
            ),
            (
                "{issuer: 'http://a.example', tenant: acme}",
                "auth.issuers.0.issuer: is reached without TLS",
            ),
            (
                "{issuer: 'http://localhost.a.example', tenant: acme}",
                "auth.issuers.0.issuer: is reached without TLS",
            ),
            ("{issuer: 'https://a.example?x', tenant: acme}", "auth.issuers.0.issuer: has a query"),
            ("{issuer: 'a.example', tenant: acme}", "auth.issuers.0.issuer: is no usable URL"),
            (
                &format!("{{{url}, tenant: acme}}, {{{url}, tenant: b}}"),
                "auth.issuers.1.issuer: is listed twice",
            ),
            ("acme", "auth.issuers.0: is text"),
            (
                &format!("{{{url}, tenant: acme, tenants: [acme]}}"),
                "auth.issuers.0.tenants: stands without tenant_claim",
            ),
            (
                &format!("{{{url}, tenant_claim: org, tenants: []}}"),
                "auth.issuers.0.tenants: is empty",
            ),
            (
                &format!("{{{url}, tenant_claim: org, tenants: [acme, Acme]}}"),
                "auth.issuers.0.tenants: is empty, too long, or has",
            ),
            (
                &format!("{{{url}, tenant: acme, require_typ: JWT}}"),
                "auth.issuers.0.require_typ: is not a type",
            ),
            (
                &format!("{{{url}, tenant: acme, keys_max_age: 1s}}"),
                "auth.issuers.0.keys_max_age: is ",
            ),
            (
                &format!("{{{url}, tenant: acme, keys_max_age: 721h}}"),
                "auth.issuers.0.keys_max_age: is ",
            ),
        ] {
            assert_fault(&with(entry), fault);
        }
        assert_fault(
            &format!("auth: {{issuers: [{{{url}, tenant: acme}}]}}"),
            "auth.resource: is missing beside auth.issuers",
        );
        assert_fault("auth: {issuers: 7}", "auth.issuers: is 7");
        for resource in [
            "mcp.example.com",
            "http://mcp.example.com",
            "https://mcp.example.com/mcp",
            "https://mcp.example.com?x",
            "https://u@x",
        ] {
            assert_fault(&format!("auth: {{resource: '{resource}'}}"), "auth.resource: ");
        }
    }

    #[test]
    fn issuers_come_from_the_environment_too() {
        let variables = [
            ("MCP_BROKER__AUTH__RESOURCE".to_owned(), "https://mcp.example.com".to_owned()),
            (
                "MCP_BROKER__AUTH__ISSUERS".to_owned(),
                "[{issuer: 'https://a.example', tenant: acme}]".to_owned(),
            ),
        ];
        assert_eq!(load_from("", variables).unwrap().auth.issuers.len(), 1);
    }
}
