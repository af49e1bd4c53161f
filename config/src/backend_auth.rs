//! How the broker proves itself to a backend: the `auth` of its body. [`super::backend_auth_check`]
//! checks it.
//!
//! Invariants:
//! - `Debug` and the views show no secret.
//! - A token goes only to a backend over TLS, or on this machine.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::declared_catalog::DeclaredCatalog;

/// How the broker proves itself to a backend.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BackendAuth {
    #[serde(rename = "type")]
    pub kind: BackendAuthKind,
    /// Id of the broker at the authorization server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<String>,
    /// Private key in PEM (PKCS #8) for `private_key_jwt`: RSA, P-256 or Ed25519.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_key: Option<String>,
    /// `kid` of the assertions that the key signs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_key_id: Option<String>,
    /// Absent: `private_key_jwt` with a key, otherwise `client_secret_basic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_endpoint_auth_method: Option<ClientAuthMethod>,
    /// Scopes of the tokens. Absent: those that the backend names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// The only authorization server that gets the credential. Absent: the first one that the
    /// backend names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    /// Resource that the tokens are for. Absent: the one that the backend's metadata names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Address of the client ID metadata document. Absent: that of the broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_metadata_url: Option<String>,
    /// How issuers are compared.
    #[serde(default, skip_serializing_if = "is_default")]
    pub issuer_compare: IssuerComparison,
    /// Whose tokens fetch the lists of the backend. For types with tokens of each principal.
    #[serde(default, skip_serializing_if = "is_default")]
    pub catalog_auth: CatalogAuth,
    /// The lists of the backend. For `catalog_auth: declared` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalog: Option<DeclaredCatalog>,
    /// How the caller's token is exchanged. For `token_exchange` only.
    #[serde(default, skip_serializing_if = "is_default")]
    pub grant: ExchangeGrant,
    /// Value of `audience` in exchanges. For `token_exchange` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
    /// Token that names the broker as the acting party of an exchange. For `token_exchange` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor_token: Option<ActorToken>,
    /// Provider at which users sign in. For `enterprise` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<IdentityProvider>,
}

/// Identity provider whose users the authorization server of a backend trusts.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IdentityProvider {
    pub issuer: String,
    /// Id of the broker at the provider.
    pub client_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<String>,
    /// Scopes of the sign-in. `openid` is always one of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
}

/// Comparison of issuers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IssuerComparison {
    #[default]
    Exact,
    /// An issuer without a path equals the same one with a slash at its end.
    PathlessSlash,
}

/// Tokens with which the lists of a backend are fetched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CatalogAuth {
    /// Those of the principal that connected first, or of any caller. All principals see the lists.
    #[default]
    FirstUser,
    /// Those of the broker itself (client credentials).
    Service,
    /// Those of each principal. It alone sees the lists.
    PerPrincipal,
    /// None: the operator declares the lists.
    Declared,
}

/// Grant by which the token of a caller becomes one for the backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExchangeGrant {
    /// RFC 8693.
    #[default]
    TokenExchange,
    /// The on-behalf-of flow of Microsoft Entra: `jwt-bearer` with `requested_token_use`.
    OnBehalfOf,
}

/// Token of the broker as the acting party (RFC 8693, 2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActorToken {
    /// An access token that the broker gets as a client of its own (client credentials).
    AccessToken,
    /// A JWT that the broker signs with the key of `private_key_jwt`.
    Jwt,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Kind of proof.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BackendAuthKind {
    /// What `credentials` holds, if anything.
    #[default]
    None,
    /// `credentials.bearer`, which is required.
    Bearer,
    /// `credentials.headers`, which is required.
    Headers,
    /// Tokens that the broker gets as a client of its own (client credentials).
    OauthClient,
    /// Tokens of the account that each principal connects (authorization code).
    OauthUser,
    /// Tokens that the token of the caller is exchanged for.
    TokenExchange,
    /// Tokens that an identity provider vouches for each user with (ID-JAG).
    Enterprise,
}

/// Authentication of the broker at the token endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuthMethod {
    ClientSecretBasic,
    ClientSecretPost,
    PrivateKeyJwt,
    /// A public client. For `oauth_user` only.
    None,
}

impl std::fmt::Debug for IdentityProvider {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "IdentityProvider {{ issuer: {:?} }}", self.issuer)
    }
}

impl std::fmt::Debug for BackendAuth {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "BackendAuth {{ kind: {:?}, client_id: {:?} }}", self.kind, self.client_id)
    }
}

/// Shown for a secret.
pub const MASK: &str = "***";

impl BackendAuth {
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the settings for a view, with a mask for each secret.
    pub fn masked(&self) -> Self {
        let mask = |secret: Option<String>| secret.map(|_| MASK.to_owned());
        let mut view = self.clone();
        (view.client_secret, view.client_key) = (mask(view.client_secret), mask(view.client_key));
        if let Some(provider) = &mut view.provider {
            provider.client_secret = mask(provider.client_secret.take());
        }
        view
    }

    pub(super) fn has_credential(&self) -> bool {
        self.client_secret.is_some() || self.client_key.is_some()
    }

    /// Returns whether the broker signs assertions with a key that it makes itself.
    pub fn has_own_key(&self) -> bool {
        self.token_endpoint_auth_method == Some(ClientAuthMethod::PrivateKeyJwt)
            && !self.has_credential()
    }

    /// Returns the secrets, for redaction.
    pub fn secrets(&self) -> impl Iterator<Item = &String> {
        let of_provider = self.provider.iter().filter_map(|known| known.client_secret.as_ref());
        self.client_secret.iter().chain(&self.client_key).chain(of_provider)
    }
}
