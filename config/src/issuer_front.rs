//! How clients reach an issuer: directly, or through an authorization server of the broker's that
//! adapts the issuer to what MCP clients send. Read as a part of [`super::issuers`], used by
//! `auth::adapted`.
//!
//! A preset is a documented set of these settings. A member that is written has precedence.

use std::collections::BTreeMap;

use http::Uri;
use rules::limits::tokens::{
    METADATA_MEMBERS_MAX, REGISTRATION_URI_BYTES_MAX, REGISTRATION_URIS_MAX,
};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{
    Secret,
    config_reader::read_secret_file,
    field_error::join,
    issuer_reader::{IDENTIFIER_BYTES_MAX, IssuerReader, is_scope},
    private_url::is_private,
};

/// Members of metadata that the broker decides itself.
const OWN_MEMBERS: [&str; 8] = [
    "issuer",
    "authorization_endpoint",
    "token_endpoint",
    "registration_endpoint",
    "pushed_authorization_request_endpoint",
    "mtls_endpoint_aliases",
    "signed_metadata",
    "authorization_response_iss_parameter_supported",
];
/// Shortest secret of a client, in bytes.
const SECRET_BYTES_MIN: usize = 8;

/// Settings of the broker's authorization server in front of an issuer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdaptedFront {
    /// Members that replace those of the issuer's metadata.
    pub metadata_set: BTreeMap<String, Value>,
    pub resource: ResourceParameter,
    pub registration: Option<ClientRegistration>,
    /// Scopes that are added to each authorization request.
    pub scopes_append: Vec<String>,
    /// Text in front of the scopes of the broker, such as `api://ID/`.
    pub scope_prefix: Option<String>,
    /// True if the parameter `prompt` is left out.
    pub drops_prompt: bool,
}

/// The one client that every MCP client of an issuer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRegistration {
    pub client_id: String,
    /// Redirect URIs that clients may register. A loopback URI without a port allows every port.
    pub redirect_uris: Vec<String>,
    pub secret: Option<Secret>,
}

impl ClientRegistration {
    /// Returns whether a client may use a redirect URI (RFC 9700, 4.1.3: exact comparison; RFC
    /// 8252, 7.3: any port of a loopback address).
    pub fn allows(&self, uri: &str) -> bool {
        self.redirect_uris.iter().any(|allowed| allowed == uri || is_on_any_port(allowed, uri))
    }
}

/// Returns whether `uri` is the loopback URI `allowed`, which has no port, with a port.
fn is_on_any_port(allowed: &str, uri: &str) -> bool {
    const HOSTS: [&str; 3] = ["http://localhost", "http://127.0.0.1", "http://[::1]"];
    HOSTS.iter().any(|host| {
        let (Some(path), Some(rest)) = (allowed.strip_prefix(host), uri.strip_prefix(host)) else {
            return false;
        };
        let Some(rest) =
            rest.strip_prefix(':').filter(|_| path.is_empty() || path.starts_with('/'))
        else {
            return false;
        };
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest[..digits].parse::<u16>().is_ok() && rest[digits..] == *path
    })
}

/// How the broker treats the parameter `resource` (RFC 8707) in requests to the issuer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ResourceParameter {
    #[default]
    Pass,
    /// It is left out.
    Strip,
    /// It is left out, and `audience` is sent.
    Audience,
}

impl ResourceParameter {
    /// Returns the parameter that names the audience of a token to the issuer.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Pass => Some("resource"),
            Self::Strip => None,
            Self::Audience => Some("audience"),
        }
    }
}

/// Who the authorization server of clients is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum FrontKind {
    /// The issuer itself.
    Direct,
    /// The broker, which sends clients on to the issuer.
    Adapted,
}

/// The product behind an issuer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Preset {
    Entra,
    Okta,
    Auth0,
    Keycloak,
    Authentik,
    Google,
}

impl Preset {
    fn front(self) -> FrontKind {
        match self {
            Self::Keycloak => FrontKind::Direct,
            _ => FrontKind::Adapted,
        }
    }

    fn resource(self) -> ResourceParameter {
        match self {
            Self::Auth0 => ResourceParameter::Audience,
            _ => ResourceParameter::Strip,
        }
    }

    fn metadata_set(self) -> BTreeMap<String, Value> {
        let challenges = || ("code_challenge_methods_supported".to_owned(), json!(["S256"]));
        match self {
            Self::Entra => [challenges()].into(),
            _ => BTreeMap::new(),
        }
    }

    /// Returns the claim with the groups.
    pub(super) fn groups_claim(self) -> Option<&'static str> {
        match self {
            Self::Entra | Self::Okta | Self::Authentik => Some("groups"),
            Self::Keycloak => Some("realm_access.roles"),
            Self::Auth0 | Self::Google => None,
        }
    }
}

/// The client that is registered at the issuer by hand.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RegistrationEntry {
    client_id: String,
    redirect_uris: Vec<String>,
    /// Secret of a confidential client.
    secret: Option<String>,
    /// File with the secret. Only in the configuration file.
    secret_file: Option<String>,
}

/// The parameter `prompt` of an authorization request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum PromptRule {
    /// It reaches the issuer.
    Pass,
    /// It is left out.
    Drop,
}

/// Settings of an issuer's entry for clients that reach it through the broker.
pub(super) struct FrontEntry<'e> {
    pub(super) preset: Option<Preset>,
    pub(super) front: Option<FrontKind>,
    pub(super) metadata_set: Option<&'e BTreeMap<String, Value>>,
    pub(super) resource: Option<ResourceParameter>,
    pub(super) registration: Option<&'e RegistrationEntry>,
    pub(super) scopes_append: Option<&'e Vec<String>>,
    pub(super) scope_prefix: Option<&'e String>,
    pub(super) prompt: Option<PromptRule>,
}

impl IssuerReader<'_> {
    /// Reads the settings of an adapted issuer. Returns `None` for a direct one.
    pub(super) fn front(&mut self, entry: &FrontEntry<'_>) -> Option<AdaptedFront> {
        if entry.preset == Some(Preset::Google) {
            self.fault(
                "preset",
                "cannot be used: Google's access tokens are opaque, and Google has no introspection (RFC 7662)",
                "entra, okta, auth0, keycloak, authentik, or an issuer that signs users in with Google",
            );
        }
        let kind = entry.front.or(entry.preset.map(Preset::front)).unwrap_or(FrontKind::Direct);
        if kind == FrontKind::Direct {
            self.check_direct(entry);
            return None;
        }
        let mut metadata_set = entry.preset.map(Preset::metadata_set).unwrap_or_default();
        metadata_set.extend(self.metadata_set(entry));
        Some(AdaptedFront {
            metadata_set,
            resource: entry.resource.or(entry.preset.map(Preset::resource)).unwrap_or_default(),
            registration: entry.registration.and_then(|entry| self.registration(entry)),
            scopes_append: self.identifiers(
                "scopes_append",
                entry.scopes_append.cloned(),
                is_scope,
            ),
            scope_prefix: self.scope_prefix(entry),
            drops_prompt: entry.prompt == Some(PromptRule::Drop),
        })
    }

    /// Refuses settings that would have no effect.
    fn check_direct(&mut self, entry: &FrontEntry<'_>) {
        let set = [
            ("resource", entry.resource.is_some()),
            ("metadata_set", entry.metadata_set.is_some()),
            ("registration", entry.registration.is_some()),
            ("scopes_append", entry.scopes_append.is_some()),
            ("scope_prefix", entry.scope_prefix.is_some()),
            ("prompt", entry.prompt.is_some()),
        ];
        for (name, _) in set.into_iter().filter(|(_, is_set)| *is_set) {
            self.fault(
                name,
                "has no effect on an issuer that clients use directly",
                "front: adapted",
            );
        }
    }

    fn metadata_set(&mut self, entry: &FrontEntry<'_>) -> BTreeMap<String, Value> {
        let Some(members) = entry.metadata_set.cloned() else { return BTreeMap::new() };
        let refused = members.keys().find(|name| OWN_MEMBERS.contains(&name.as_str())).cloned();
        if let Some(name) = refused {
            let allowed = format!("members other than {}", OWN_MEMBERS.join(", "));
            self.fault(&join("metadata_set", &name), "is set by the broker itself", &allowed);
        }
        let bytes = serde_json::to_vec(&members).map_or(0, |text| text.len());
        if members.len() > METADATA_MEMBERS_MAX
            || bytes > METADATA_MEMBERS_MAX * IDENTIFIER_BYTES_MAX
        {
            self.fault(
                "metadata_set",
                "is too large",
                &format!("at most {METADATA_MEMBERS_MAX} members"),
            );
        }
        members
    }

    fn registration(&mut self, entry: &RegistrationEntry) -> Option<ClientRegistration> {
        let is_identifier = |text: &str| {
            !text.is_empty()
                && text.len() <= IDENTIFIER_BYTES_MAX
                && text.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if !is_identifier(&entry.client_id) {
            self.fault(
                "registration.client_id",
                "is not the id of a client",
                &format!("1 to {IDENTIFIER_BYTES_MAX} visible ASCII characters"),
            );
        }
        let uris = &entry.redirect_uris;
        if uris.is_empty()
            || uris.len() > REGISTRATION_URIS_MAX
            || !uris.iter().all(|uri| is_redirect_uri(uri))
        {
            self.fault(
                "registration.redirect_uris",
                "is empty, too long, or has an entry that is not a redirect URI",
                &format!(
                    "1 to {REGISTRATION_URIS_MAX} absolute URIs without fragment, http only on this machine"
                ),
            );
        }
        Some(ClientRegistration {
            client_id: entry.client_id.clone(),
            redirect_uris: uris.clone(),
            secret: self.client_secret(entry),
        })
    }

    fn client_secret(&mut self, entry: &RegistrationEntry) -> Option<Secret> {
        let path = "registration.secret_file";
        match (&entry.secret, &entry.secret_file) {
            (None, None) => None,
            (Some(_), Some(_)) => {
                self.fault(path, "is set together with secret", "one of the two");
                None
            }
            (Some(secret), None) => {
                let fits = secret.len() >= SECRET_BYTES_MIN
                    && secret.len() <= IDENTIFIER_BYTES_MAX
                    && secret.bytes().all(|byte| byte.is_ascii_graphic());
                if !fits {
                    self.fault(
                        "registration.secret",
                        "is not a usable secret",
                        &format!(
                            "{SECRET_BYTES_MIN} to {IDENTIFIER_BYTES_MAX} visible ASCII characters"
                        ),
                    );
                }
                Some(Secret::new(secret.as_str()))
            }
            (None, Some(_)) if self.is_stored => {
                self.fault(path, "is only for the configuration file", "registration.secret");
                None
            }
            (None, Some(file)) => match read_secret_file(file, SECRET_BYTES_MIN) {
                Ok(secret) => Some(secret),
                Err(reason) => {
                    self.fault(path, &reason, "the path of a file with the secret in one line");
                    None
                }
            },
        }
    }

    fn scope_prefix(&mut self, entry: &FrontEntry<'_>) -> Option<String> {
        let prefix = entry.scope_prefix.cloned()?;
        if prefix.is_empty() || prefix.len() > IDENTIFIER_BYTES_MAX || !is_scope(&prefix) {
            self.fault("scope_prefix", "is not a valid scope prefix", "a text such as api://ID/");
        }
        Some(prefix)
    }
}

/// Returns whether a text can be a redirect URI: absolute and without a fragment (RFC 6749, 3.1.2).
fn is_redirect_uri(text: &str) -> bool {
    let is_text = text.len() <= REGISTRATION_URI_BYTES_MAX
        && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#' && byte != b'"');
    let Some((scheme, rest)) = text.split_once(':').filter(|_| is_text) else { return false };
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    match scheme.to_ascii_lowercase().as_str() {
        "http" | "https" => text.parse::<Uri>().is_ok_and(|uri| is_private(&uri)),
        // A code must not reach a page that runs a script.
        "javascript" | "data" | "vbscript" | "file" | "blob" | "about" => false,
        _ => is_scheme && !rest.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_from;

    const URL: &str = "issuer: 'https://a.example', tenant: acme";

    fn faults(entry: &str) -> String {
        let text =
            format!("auth: {{resource: 'https://mcp.example.com', issuers: [{{{URL}, {entry}}}]}}");
        load_from(&text, []).expect_err(entry).to_string()
    }

    fn front(entry: &str) -> Option<AdaptedFront> {
        let text =
            format!("auth: {{resource: 'https://mcp.example.com', issuers: [{{{URL}, {entry}}}]}}");
        load_from(&text, []).unwrap().auth.issuers[0].front.clone()
    }

    #[test]
    fn explicit_settings_override_those_of_a_preset() {
        let entra = front("preset: entra").unwrap();
        assert_eq!(entra.resource, ResourceParameter::Strip);
        assert_eq!(entra.metadata_set["code_challenge_methods_supported"], json!(["S256"]));
        let more = front("preset: entra, resource: pass, prompt: drop, metadata_set: {code_challenge_methods_supported: [S256, plain], a: {b: 1}}").unwrap();
        assert_eq!((more.resource, more.drops_prompt), (ResourceParameter::Pass, true));
        assert_eq!(more.metadata_set["code_challenge_methods_supported"], json!(["S256", "plain"]));
        assert_eq!(more.metadata_set["a"], json!({"b": 1}));
        assert_eq!(front("preset: auth0").unwrap().resource, ResourceParameter::Audience);
        assert_eq!((front("preset: keycloak"), front("front: direct")), (None, None));
        assert_eq!(front("front: adapted"), Some(AdaptedFront::default()));
    }

    #[test]
    fn faults_of_a_front_name_their_key() {
        for (entry, fault) in [
            ("preset: google", "auth.issuers[0].preset: cannot be used"),
            ("preset: entre", "auth.issuers[0].preset: "),
            ("resource: strip", "auth.issuers[0].resource: has no effect"),
            ("preset: keycloak, prompt: drop", "auth.issuers[0].prompt: has no effect"),
            (
                "front: adapted, metadata_set: {issuer: x}",
                "auth.issuers[0].metadata_set.issuer: is set by the broker itself",
            ),
            (
                "front: adapted, registration: {client_id: a}",
                "auth.issuers[0].registration.redirect_uris: is missing",
            ),
            (
                "front: adapted, registration: {client_id: '', redirect_uris: ['http://localhost/cb']}",
                "auth.issuers[0].registration.client_id: is not the id",
            ),
            (
                "front: adapted, registration: {client_id: a, redirect_uris: []}",
                "auth.issuers[0].registration.redirect_uris: is empty",
            ),
            (
                "front: adapted, registration: {client_id: a, redirect_uris: ['http://a.example/cb']}",
                "auth.issuers[0].registration.redirect_uris: is empty",
            ),
            (
                "front: adapted, registration: {client_id: a, redirect_uris: ['javascript:x']}",
                "auth.issuers[0].registration.redirect_uris: is empty",
            ),
            (
                "front: adapted, registration: {client_id: a, redirect_uris: ['http://localhost/cb'], secret_file: /none}",
                "auth.issuers[0].registration.secret_file: ",
            ),
            (
                "front: adapted, registration: {client_id: a, redirect_uris: ['http://localhost/cb'], secret: short}",
                "auth.issuers[0].registration.secret: is not a usable secret",
            ),
            (
                "front: adapted, scopes_append: ['a b']",
                "auth.issuers[0].scopes_append: has too many entries or an entry",
            ),
            (
                "front: adapted, scope_prefix: ''",
                "auth.issuers[0].scope_prefix: is not a valid scope prefix",
            ),
            ("front: proxy", "auth.issuers[0].front: "),
        ] {
            let found = faults(entry);
            assert!(found.contains(fault), "{entry}: {found}");
            assert!(!found.contains("short"), "{found}");
        }
    }

    #[test]
    fn a_redirect_uri_is_in_the_list_or_on_any_port_of_this_machine() {
        let registration = ClientRegistration {
            client_id: "a".to_owned(),
            redirect_uris: [
                "https://claude.example/cb",
                "http://localhost/cb",
                "http://127.0.0.1:8000/cb",
                "app://x/y",
            ]
            .map(str::to_owned)
            .to_vec(),
            secret: None,
        };
        for fine in [
            "https://claude.example/cb",
            "http://localhost/cb",
            "http://localhost:33418/cb",
            "http://127.0.0.1:8000/cb",
            "app://x/y",
        ] {
            assert!(registration.allows(fine), "{fine}");
        }
        for refused in [
            "https://claude.example/cb/",
            "https://claude.example/cb?x",
            "https://claude.example:1/cb",
            "http://localhost:33418/other",
            "http://localhost:x/cb",
            "http://localhost:1@evil.example/cb",
            "http://localhost.evil.example/cb",
            "http://localhost:99999/cb",
            "http://127.0.0.1:8001/cb",
            "app://x/z",
            "",
        ] {
            assert!(!registration.allows(refused), "{refused}");
        }
    }
}
