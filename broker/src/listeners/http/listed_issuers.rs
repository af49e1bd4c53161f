//! The issuers in the answer to a client without a token. A URL can name its tenant with
//! `?tenant=`, because such a client has shown no credential.

use std::sync::Arc;

use config::{AuthConfig, IssuerConfig, TenantMapping};
use http::Uri;
use protocol::ids::TenantId;

/// Issuers for a client, and the resource that their tokens are for.
pub(super) struct ListedIssuers<'a> {
    pub(super) resource: &'a str,
    pub(super) issuers: Vec<&'a Arc<IssuerConfig>>,
    /// Tenant of the URL, if an issuer can name it.
    pub(super) named: Option<TenantId>,
}

impl<'a> ListedIssuers<'a> {
    /// Returns the issuers for a URL: those that can name its tenant. Without a known tenant, those
    /// of the configuration file and of the default tenant. Returns `None` if there are none.
    pub(super) fn new(auth: &'a AuthConfig, uri: &Uri) -> Option<Self> {
        let resource = auth.resource.as_deref()?;
        if let Some(named) = tenant_of(uri) {
            let issuers: Vec<_> =
                auth.issuers.iter().filter(|issuer| issuer.can_name(&named)).collect();
            if !issuers.is_empty() {
                return Some(Self { resource, issuers, named: Some(named) });
            }
        }
        let default = TenantId::default_tenant();
        let issuers: Vec<_> = auth
            .issuers
            .iter()
            .filter(|issuer| !issuer.is_stored || issuer.can_name(&default))
            .collect();
        (!issuers.is_empty()).then_some(Self { resource, issuers, named: None })
    }

    /// Returns the tenant of all tokens for this client, if it is known.
    pub(super) fn tenant(&self) -> Option<&TenantId> {
        let fixed = |issuer: &&'a Arc<IssuerConfig>| match &issuer.tenant {
            TenantMapping::Fixed(tenant) => Some(tenant),
            TenantMapping::Claim { .. } => None,
        };
        self.named.as_ref().or_else(|| {
            let first = self.issuers.first().and_then(fixed)?;
            self.issuers.iter().all(|issuer| fixed(issuer) == Some(first)).then_some(first)
        })
    }
}

/// Returns the tenant that a URL names.
fn tenant_of(uri: &Uri) -> Option<TenantId> {
    let named = uri.query()?.split('&').find_map(|pair| pair.strip_prefix("tenant="))?;
    TenantId::parse(named).ok()
}
