//! Authorization servers whose tokens are accepted, and the public URL that is their audience:
//! `auth.resource` and `auth.issuers`. Read with the rest by [`super::validation`], used by
//! `auth::tokens`.
//!
//! Invariants:
//! - Neither an algorithm with a shared secret nor `none` can be configured.
//! - Fetches use TLS, except over loopback.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
    time::Duration,
};

use http::Uri;
use jsonwebtoken::Algorithm;
use protocol::ids::{EndpointName, TenantId};
use rules::limits::tokens::{ISSUERS_MAX, KEY_SET_AGE_MAX};
use serde::Deserialize;
use serde_json::Value;
use transport::parse_http_url;
use utoipa::ToSchema;

use super::{
    body_schema::BodySchema,
    config_key::KeyKind,
    config_reader::{ConfigReader, text},
    field_error::{FieldError, InvalidReason, NAME_ALLOWED, element, invalid_value, join},
    introspection::{IntrospectionConfig, IntrospectionEntry, check_only_one},
    issuer_front::{
        AdaptedFront, FrontEntry, FrontKind, Preset, PromptRule, RegistrationEntry,
        ResourceParameter,
    },
    issuer_operators::{OperatorMapping, OperatorMappingEntry},
    issuer_reader::{IDENTIFIER_BYTES_MAX, IssuerReader, URL_ALLOWED, is_scope},
    login_client::{LoginClient, SignInEntry},
    private_url::is_private,
    range::check_duration,
    serde_units::optional_duration,
    units::DurationText,
};

static ENTRY: LazyLock<BodySchema<IssuerEntry>> = LazyLock::new(BodySchema::new);

const RESOURCE_ALLOWED: &str = "an https URL without path, such as https://mcp.example.com";
/// Longest issuer in bytes. It is part of the name of every principal of that issuer.
const ISSUER_BYTES_MAX: usize = 256;
/// Largest number of tenants that a claim may name.
const TENANTS_MAX: usize = 10_000;
/// Largest number of authorization servers at which the tokens of one issuer can be exchanged.
const EXCHANGE_ISSUERS_MAX: usize = 32;

/// The only token type that can be required (RFC 9068, 2.1).
const ACCESS_TOKEN_TYPE: &str = "at+jwt";
/// Range of the time for which keys are trusted. Retries of a failed fetch start within the
/// minimum.
const KEYS_AGE: KeyKind =
    KeyKind::Duration { min: Duration::from_secs(10), max: Duration::from_secs(30 * 24 * 3_600) };

/// Algorithms of token signatures, by their names in tokens.
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

/// Returns an algorithm by its name in a token. Returns `None` for algorithms with a shared secret
/// and for `none`.
pub fn algorithm(name: &str) -> Option<Algorithm> {
    ALGORITHMS.iter().find(|(known, _)| *known == name).map(|(_, algorithm)| *algorithm)
}

/// An authorization server whose tokens are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerConfig {
    /// Issuer exactly as in `iss`.
    pub issuer: String,
    /// URL of the keys. `None`: the metadata contains it.
    pub jwks_url: Option<Uri>,
    /// Time for which keys are trusted after the last fetch.
    pub keys_max_age: Duration,
    /// Accepted audiences. Empty: the resource, and every endpoint below it.
    pub audiences: Vec<String>,
    pub algorithms: Vec<Algorithm>,
    /// True if tokens must be marked as access tokens: `typ` is `at+jwt`.
    pub requires_access_token_type: bool,
    pub tenant: TenantMapping,
    /// Claim that names the principal.
    pub principal_claim: String,
    /// Claim with the groups that access rules look at. Dots lead into objects.
    pub groups_claim: Option<String>,
    /// Scopes that each token must have.
    pub scopes: Vec<String>,
    /// Endpoint that is asked about opaque tokens. `None`: they are refused.
    pub introspection: Option<IntrospectionConfig>,
    /// Operators of the admin API among its principals. `None`: there are none.
    pub operators: Option<OperatorMapping>,
    /// The broker's authorization server in front of the issuer. `None`: clients use the issuer
    /// itself.
    pub front: Option<AdaptedFront>,
    /// Authorization servers to which the broker may send its tokens, to exchange them for tokens of
    /// backends. Empty: there are none.
    pub exchange: Vec<String>,
    /// The broker's client for people who sign in at the connect page. `None`: they cannot.
    pub sign_in: Option<LoginClient>,
    /// True if an operator stored it through the admin API. The broker then reaches it only at
    /// addresses that `egress` permits.
    pub is_stored: bool,
}

impl IssuerConfig {
    /// Returns whether tokens of the issuer can be of this tenant.
    pub fn can_name(&self, tenant: &TenantId) -> bool {
        match &self.tenant {
            TenantMapping::Fixed(fixed) => fixed == tenant,
            TenantMapping::Claim { tenants, .. } => tenants.is_empty() || tenants.contains(tenant),
        }
    }
}

/// Mapping from a token to its tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantMapping {
    Fixed(TenantId),
    Claim {
        name: String,
        /// Tenants that the claim may name. Empty: every enabled tenant.
        tenants: Vec<TenantId>,
    },
}

impl IssuerConfig {
    /// Returns whether a token with this audience is for MCP clients (RFC 8707; MCP 2025-11-25,
    /// Access Token Usage).
    pub fn accepts_audience(&self, resource: &str, audience: &str) -> bool {
        if !self.audiences.is_empty() {
            return self.audiences.iter().any(|known| known == audience);
        }
        let Some(below) = audience.strip_prefix(resource) else { return false };
        match below.strip_prefix("/mcp").unwrap_or(below) {
            "" | "/" => true,
            rest => {
                below.starts_with("/mcp/")
                    && rest.strip_prefix('/').is_some_and(|name| EndpointName::parse(name).is_ok())
            }
        }
    }

    /// Returns the clients of the broker at this issuer, each with its key in the configuration.
    fn login_clients(&self) -> [(&'static str, Option<&LoginClient>); 2] {
        let of_operators = self.operators.as_ref().and_then(|operators| operators.login.as_ref());
        [("sign_in", self.sign_in.as_ref()), ("admin.login", of_operators)]
    }

    /// Returns the keys of the login clients that have the redirect URI of their own in common.
    fn shared_callbacks(&self, other: &Self) -> impl Iterator<Item = &'static str> {
        let pairs = self.login_clients().into_iter().zip(other.login_clients());
        pairs.filter_map(|((key, ours), (_, theirs))| {
            let own = ours?.callback.as_ref()?;
            (Some(own) == theirs?.callback.as_ref()).then_some(key)
        })
    }

    /// Returns whether a token for MCP clients could be a token of an operator.
    fn shares_audiences(&self, resource: &str) -> bool {
        let of_operators = self.operators.iter().flat_map(OperatorMapping::audiences);
        of_operators.into_iter().any(|audience| self.accepts_audience(resource, audience))
    }
}

impl ConfigReader<'_> {
    /// Reads the public URL, without a slash at its end.
    pub(super) fn resource(&mut self) -> Option<String> {
        self.optional("auth.resource", |value, _| resource(value))
    }

    pub(super) fn issuers(&mut self, resource: Option<&str>) -> Vec<Arc<IssuerConfig>> {
        const PATH: &str = "auth.issuers";
        let raw = self.raw;
        let Some(written) = raw.value(PATH) else { return Vec::new() };
        let allowed = self.raw.key(PATH).kind.allowed();
        let Some(entries) = written.as_array() else {
            self.report(PATH, &invalid_value(written), &allowed);
            return Vec::new();
        };
        if entries.len() > ISSUERS_MAX {
            self.report(PATH, "has too many entries", &format!("at most {ISSUERS_MAX}"));
        }
        if !entries.is_empty() && resource.is_none() && self.raw.value("auth.resource").is_none() {
            self.report("auth.resource", "is missing, but auth.issuers needs it", RESOURCE_ALLOWED);
        }
        let named = self.raw.source_name(PATH);
        let mut issuers: Vec<Arc<IssuerConfig>> = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            let path = element(&named, at);
            let reader =
                IssuerReader { path: path.clone(), faults: &mut self.faults, is_stored: false };
            let issuer = reader.read(entry);
            if let Some(issuer) = issuer {
                if issuer.shares_audiences(resource.unwrap_or_default()) {
                    self.report(
                        &join(&path, "admin.audiences"),
                        "has an audience that tokens of MCP clients have too",
                        "audiences that are neither in `audiences` nor URLs of endpoints",
                    );
                }
                if issuers.iter().any(|known| known.issuer == issuer.issuer) {
                    self.report(&join(&path, "issuer"), "is listed twice", "each issuer once");
                }
                for key in issuers.iter().flat_map(|known| issuer.shared_callbacks(known)) {
                    let callback = join(&path, &format!("{key}.callback"));
                    self.report(&callback, "is that of another issuer", "a name for each issuer");
                }
                issuers.push(Arc::new(issuer));
            }
        }
        let introspections = issuers.iter().map(|issuer| &issuer.introspection);
        check_only_one(introspections, &named, &mut self.faults);
        issuers
    }
}

fn resource(value: &Value) -> Result<String, InvalidReason> {
    let url = text(value).ok_or_else(|| invalid_value(value))?;
    let uri = parse_http_url(url).map_err(|error| format!("is not a usable URL: {error}"))?;
    if !is_private(&uri) {
        return Err("does not use TLS".to_owned());
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() || url.contains('?') {
        return Err("has a path or a query".to_owned());
    }
    Ok(url.trim_end_matches('/').to_owned())
}

/// Returns the issuer of a tenant, as an operator wrote it in a request. It can only name this
/// tenant.
pub fn parse_stored_issuer(
    tenant: &TenantId,
    body: &Value,
) -> Result<IssuerConfig, Vec<FieldError>> {
    let mut body = body.clone();
    if let Some(members) = body.as_object_mut() {
        let own =
            ["tenant", "tenant_claim", "tenants", "check", "introspection", "admin", "sign_in"];
        if let Some(name) = own.into_iter().find(|name| members.contains_key(*name)) {
            let allowed = "only in the configuration file";
            return Err(vec![FieldError::new(name, "is not allowed in a request", allowed)]);
        }
        members.insert("tenant".to_owned(), tenant.as_str().into());
    }
    let mut faults = Vec::new();
    let reader = IssuerReader { path: String::new(), faults: &mut faults, is_stored: true };
    match reader.read(&body) {
        Some(issuer) if faults.is_empty() => Ok(issuer),
        _ => Err(faults),
    }
}

/// An authorization server whose tokens are accepted.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IssuerEntry {
    /// Issuer exactly as in `iss`.
    issuer: String,
    /// URL of the keys. Absent: the issuer's metadata names it.
    jwks_url: Option<String>,
    #[serde(default, with = "optional_duration")]
    #[schema(value_type = DurationText)]
    keys_max_age: Option<Duration>,
    audiences: Option<Vec<String>>,
    algorithms: Option<Vec<String>>,
    require_typ: Option<String>,
    /// Only in the configuration file.
    tenant: Option<String>,
    /// Only in the configuration file.
    tenant_claim: Option<String>,
    /// Only in the configuration file.
    tenants: Option<Vec<String>>,
    principal_claim: Option<String>,
    scopes: Option<Vec<String>>,
    claims: Option<IssuerClaims>,
    /// True if the broker may exchange the tokens at this issuer for tokens of backends (RFC 8693),
    /// or the issuers at which it may. It then stores them, sealed.
    exchange: Option<ExchangeEntry>,
    /// Only in the configuration file.
    sign_in: Option<SignInEntry>,
    /// Only in the configuration file.
    check: Option<String>,
    /// Only in the configuration file.
    introspection: Option<IntrospectionEntry>,
    preset: Option<Preset>,
    front: Option<FrontKind>,
    metadata_set: Option<BTreeMap<String, Value>>,
    resource: Option<ResourceParameter>,
    registration: Option<RegistrationEntry>,
    scopes_append: Option<Vec<String>>,
    scope_prefix: Option<String>,
    prompt: Option<PromptRule>,
    /// Only in the configuration file.
    admin: Option<OperatorMappingEntry>,
}

impl IssuerEntry {
    fn front_entry(&self) -> FrontEntry<'_> {
        FrontEntry {
            preset: self.preset,
            front: self.front,
            metadata_set: self.metadata_set.as_ref(),
            resource: self.resource,
            registration: self.registration.as_ref(),
            scopes_append: self.scopes_append.as_ref(),
            scope_prefix: self.scope_prefix.as_ref(),
            prompt: self.prompt,
        }
    }
}

/// Where the tokens of an issuer can be exchanged.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
enum ExchangeEntry {
    /// True: at the issuer itself.
    AtIssuer(bool),
    /// At these issuers. Only in the configuration file.
    At(ExchangeIssuers),
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ExchangeIssuers {
    issuers: Vec<String>,
}

/// Claims that access rules look at.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct IssuerClaims {
    groups: Option<String>,
}

impl IssuerReader<'_> {
    /// Returns `None` after a fault that prevents further checks. The configuration is refused
    /// anyway.
    fn read(mut self, entry: &Value) -> Option<IssuerConfig> {
        let entry = match ENTRY.read(entry) {
            Ok(entry) => entry,
            Err(faults) => {
                self.faults.extend(faults.into_iter().map(|fault| fault.nested_in(&self.path)));
                return None;
            }
        };
        let tenant = self.tenant(&entry);
        let front = self.front(&entry.front_entry());
        let preset_groups = entry.preset.and_then(Preset::groups_claim).map(str::to_owned);
        let is_issuer = self.issuer(&entry.issuer);
        let jwks_url = entry.jwks_url.and_then(|url| self.url("jwks_url", &url));
        check_duration(join(&self.path, "keys_max_age"), entry.keys_max_age, KEYS_AGE, self.faults);
        let audiences = self.identifiers("audiences", entry.audiences, |identifier| {
            identifier.chars().all(|c| !c.is_control())
        });
        let scopes = self.identifiers("scopes", entry.scopes, is_scope);
        let algorithms = self.algorithms(entry.algorithms);
        if entry.require_typ.as_deref().is_some_and(|wanted| wanted != ACCESS_TOKEN_TYPE) {
            self.fault("require_typ", "is not a supported token type", ACCESS_TOKEN_TYPE);
        }
        let principal_claim = self
            .claim("principal_claim", entry.principal_claim)
            .unwrap_or_else(|| "sub".to_owned());
        let groups_claim = self
            .claim("claims.groups", entry.claims.and_then(|claims| claims.groups))
            .or(preset_groups);
        let operators = self.operators(entry.admin);
        let introspection = self.introspection(entry.introspection, entry.check.as_deref());
        let sign_in = self.sign_in(entry.sign_in);
        let exchange = self.exchange(entry.exchange, &entry.issuer);
        Some(IssuerConfig {
            groups_claim,
            issuer: Some(entry.issuer).filter(|_| is_issuer)?,
            jwks_url,
            keys_max_age: entry.keys_max_age.unwrap_or(KEY_SET_AGE_MAX),
            audiences,
            algorithms,
            requires_access_token_type: entry.require_typ.is_some(),
            tenant: tenant?,
            principal_claim,
            scopes,
            introspection,
            operators,
            front,
            exchange,
            sign_in,
            is_stored: self.is_stored,
        })
    }

    /// Returns the authorization servers that may get tokens of the issuer.
    fn exchange(&mut self, entry: Option<ExchangeEntry>, issuer: &str) -> Vec<String> {
        match entry {
            None | Some(ExchangeEntry::AtIssuer(false)) => Vec::new(),
            Some(ExchangeEntry::AtIssuer(true)) => vec![issuer.to_owned()],
            Some(ExchangeEntry::At(_)) if self.is_stored => {
                let allowed = "true or false: issuers belong to the configuration file";
                self.fault("exchange", "names issuers in a request", allowed);
                Vec::new()
            }
            Some(ExchangeEntry::At(ExchangeIssuers { issuers })) => {
                if issuers.is_empty() || issuers.len() > EXCHANGE_ISSUERS_MAX {
                    let allowed = format!("1 to {EXCHANGE_ISSUERS_MAX} issuers");
                    self.fault("exchange.issuers", "is empty or too long", &allowed);
                }
                for issuer in &issuers {
                    self.url("exchange.issuers", issuer);
                }
                issuers
            }
        }
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

    fn algorithms(&mut self, names: Option<Vec<String>>) -> Vec<Algorithm> {
        let Some(names) = names else { return ALGORITHMS.map(|(_, algorithm)| algorithm).to_vec() };
        let known: Vec<Algorithm> = names.iter().filter_map(|name| algorithm(name)).collect();
        if known.is_empty() || known.len() < names.len() {
            let allowed = ALGORITHMS.map(|(name, _)| name).join(", ");
            self.fault("algorithms", "is empty or names an unsupported algorithm", &allowed);
        }
        known
    }

    pub(super) fn claim(&mut self, name: &'static str, claim: Option<String>) -> Option<String> {
        let claim = claim?;
        if claim.is_empty() || claim.len() > IDENTIFIER_BYTES_MAX {
            self.fault(name, "is not the name of a claim", "the name of a member of the token");
        }
        Some(claim)
    }

    fn tenant(&mut self, entry: &IssuerEntry) -> Option<TenantMapping> {
        let claim = self.claim("tenant_claim", entry.tenant_claim.clone());
        let tenants = self.tenants(entry.tenants.as_deref(), claim.is_some());
        match (&entry.tenant, claim) {
            (Some(_), Some(_)) => {
                self.fault("tenant_claim", "is set together with tenant", "one of the two")
            }
            (None, Some(name)) => return Some(TenantMapping::Claim { name, tenants }),
            (Some(name), None) => match TenantId::parse(name) {
                Ok(tenant) => return Some(TenantMapping::Fixed(tenant)),
                Err(_) => self.fault("tenant", "is not a name for a tenant", NAME_ALLOWED),
            },
            (None, None) => {
                let allowed = "the name of a tenant, or tenant_claim: the claim that names it";
                self.fault("tenant", "is missing, and so is tenant_claim", allowed);
            }
        }
        None
    }

    /// Reads the tenants that `tenant_claim` may name.
    fn tenants(&mut self, names: Option<&[String]>, beside_claim: bool) -> Vec<TenantId> {
        let Some(names) = names else { return Vec::new() };
        if !beside_claim {
            self.fault(
                "tenants",
                "is set without tenant_claim",
                "a list of tenants, with tenant_claim",
            );
        }
        let tenants: Vec<TenantId> =
            names.iter().filter_map(|name| TenantId::parse(name).ok()).collect();
        if tenants.is_empty() || tenants.len() < names.len() || tenants.len() > TENANTS_MAX {
            let allowed = format!("1 to {TENANTS_MAX} names of tenants; each is {}", NAME_ALLOWED);
            self.fault(
                "tenants",
                "is empty, too long, or has an entry that is not a name for a tenant",
                &allowed,
            );
        }
        tenants
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_from;

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
    fn an_issuer_has_defaults_for_missing_settings() {
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
    fn all_settings_of_an_issuer_are_read() {
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
    fn faults_of_issuers_name_their_key() {
        let url = "issuer: 'https://a.example'";
        for (entry, fault) in [
            ("{tenant: acme}", "auth.issuers[0].issuer: is missing"),
            (&format!("{{{url}}}"), "auth.issuers[0].tenant: is missing, and so is tenant_claim"),
            (
                &format!("{{{url}, tenant: acme, tenant_claim: org}}"),
                "auth.issuers[0].tenant_claim: is set together with tenant",
            ),
            (
                &format!("{{{url}, tenant: Acme}}"),
                "auth.issuers[0].tenant: is not a name for a tenant",
            ),
            (&format!("{{{url}, tenant: 1}}"), "auth.issuers[0].tenant: is a number"),
            (
                &format!("{{{url}, tenant: acme, key: x}}"),
                "auth.issuers[0].key: is not a known key",
            ),
            (
                &format!("{{{url}, tenant: acme, algorithms: [HS256]}}"),
                "auth.issuers[0].algorithms: is empty or names",
            ),
            (
                &format!("{{{url}, tenant: acme, algorithms: [none]}}"),
                "auth.issuers[0].algorithms: is empty or names",
            ),
            (
                &format!("{{{url}, tenant: acme, algorithms: []}}"),
                "auth.issuers[0].algorithms: is empty or names",
            ),
            (
                &format!("{{{url}, tenant: acme, scopes: ['a b']}}"),
                "auth.issuers[0].scopes: has too many entries or an entry",
            ),
            (
                &format!("{{{url}, tenant: acme, audiences: ['']}}"),
                "auth.issuers[0].audiences: has too many entries or an entry",
            ),
            (
                &format!("{{{url}, tenant: acme, jwks_url: 'http://a.example/k'}}"),
                "auth.issuers[0].jwks_url: does not use TLS",
            ),
            (
                "{issuer: 'http://a.example', tenant: acme}",
                "auth.issuers[0].issuer: does not use TLS",
            ),
            (
                "{issuer: 'http://localhost.a.example', tenant: acme}",
                "auth.issuers[0].issuer: does not use TLS",
            ),
            (
                "{issuer: 'https://a.example?x', tenant: acme}",
                "auth.issuers[0].issuer: has a query",
            ),
            ("{issuer: 'a.example', tenant: acme}", "auth.issuers[0].issuer: is not a usable URL"),
            (
                &format!("{{{url}, tenant: acme}}, {{{url}, tenant: b}}"),
                "auth.issuers[1].issuer: is listed twice",
            ),
            (
                &format!(
                    "{{{url}, tenant: acme, sign_in: {{client_id: c, callback: a}}}}, \
                     {{issuer: 'https://b.example', tenant: b, sign_in: {{client_id: c, callback: a}}}}"
                ),
                "auth.issuers[1].sign_in.callback: is that of another issuer",
            ),
            ("acme", "auth.issuers[0]: is text"),
            (
                &format!("{{{url}, tenant: acme, tenants: [acme]}}"),
                "auth.issuers[0].tenants: is set without tenant_claim",
            ),
            (
                &format!("{{{url}, tenant_claim: org, tenants: []}}"),
                "auth.issuers[0].tenants: is empty",
            ),
            (
                &format!("{{{url}, tenant_claim: org, tenants: [acme, Acme]}}"),
                "auth.issuers[0].tenants: is empty, too long, or has",
            ),
            (
                &format!("{{{url}, tenant: acme, sign_in: {{client_id: \"\"}}}}"),
                "auth.issuers[0].sign_in.client_id: is not the id",
            ),
            (
                &format!(
                    "{{{url}, tenant: acme, sign_in: {{client_id: c, client_secret: 'a b'}}}}"
                ),
                "auth.issuers[0].sign_in.client_secret: is not a secret",
            ),
            (
                &format!(
                    "{{{url}, tenant: acme, sign_in: {{client_id: c, client_secret: a, client_secret_file: /x}}}}"
                ),
                "auth.issuers[0].sign_in.client_secret: is set together",
            ),
            (
                &format!(
                    "{{{url}, tenant: acme, sign_in: {{client_id: c, client_secret_file: /does/not/exist}}}}"
                ),
                "auth.issuers[0].sign_in.client_secret_file: ",
            ),
            (
                &format!("{{{url}, tenant: acme, require_typ: JWT}}"),
                "auth.issuers[0].require_typ: is not a supported token type",
            ),
            (
                &format!("{{{url}, tenant: acme, keys_max_age: 1s}}"),
                "auth.issuers[0].keys_max_age: is ",
            ),
            (
                &format!("{{{url}, tenant: acme, keys_max_age: 721h}}"),
                "auth.issuers[0].keys_max_age: is ",
            ),
        ] {
            assert_fault(&with(entry), fault);
        }
        assert_fault(
            &format!("auth: {{issuers: [{{{url}, tenant: acme}}]}}"),
            "auth.resource: is missing, but auth.issuers needs it",
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
