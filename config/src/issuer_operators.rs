//! `auth.issuers[].admin`: operators of the admin API that sign in with a token of an issuer.

use rules::operators::{Role, Scope};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{
    LoginClient,
    field_error::{element, join},
    issuer_reader::{IDENTIFIER_BYTES_MAX, IssuerReader},
    login_client::OperatorLoginEntry,
    operator_scope::parse_operator_scope,
};

/// Largest number of entries of the map.
const GRANTS_MAX: usize = 256;
/// Path of the audience below `auth.resource`, if none is configured.
const AUDIENCE_PATH: &str = "/admin/v1";

/// Operators among the principals of an issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorMapping {
    /// Audiences of tokens for the admin API. Empty: `RESOURCE/admin/v1`.
    audiences: Vec<String>,
    /// Claim whose values the grants name. Dots lead into objects.
    pub claim: String,
    grants: Vec<OperatorGrant>,
    /// Client by which operators log in to the console. `None`: they paste a token.
    pub login: Option<LoginClient>,
}

/// The role of everyone with a value of the claim.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OperatorGrant {
    value: String,
    role: Role,
    scope: Scope,
}

impl OperatorMapping {
    /// Returns whether a token with this audience is for the admin API. A token for MCP clients is
    /// not: an agent that has one must not become an operator.
    pub fn accepts_audience(&self, resource: &str, audience: &str) -> bool {
        if self.audiences.is_empty() {
            return audience.strip_prefix(resource) == Some(AUDIENCE_PATH);
        }
        self.audiences.iter().any(|known| known == audience)
    }

    /// Returns the configured audiences.
    pub(super) fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// Returns the audience that a login asks for.
    pub fn audience(&self, resource: &str) -> String {
        let usual = || format!("{resource}{AUDIENCE_PATH}");
        self.audiences.first().cloned().unwrap_or_else(usual)
    }

    /// Returns the scopes of the grants, in order.
    pub(super) fn scopes(&self) -> impl Iterator<Item = &Scope> {
        self.grants.iter().map(|grant| &grant.scope)
    }

    /// Returns role and scope by the first grant that names one of the values.
    pub fn grant(&self, values: &[String]) -> Option<(Role, Scope)> {
        let grant = self.grants.iter().find(|grant| values.contains(&grant.value))?;
        Some((grant.role, grant.scope.clone()))
    }
}

/// Operators among the principals of an issuer, as written.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OperatorMappingEntry {
    /// Claim whose values `map` names, such as `groups`.
    claim: String,
    /// Values of the claim and their roles. The first one that the token has decides.
    map: Vec<OperatorGrantEntry>,
    /// Audiences of tokens for the admin API. Absent: `auth.resource` with `/admin/v1`.
    audiences: Option<Vec<String>>,
    /// Client by which operators log in to the console. Absent: they paste a token.
    login: Option<OperatorLoginEntry>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct OperatorGrantEntry {
    value: String,
    role: String,
    /// Absent: all tenants.
    tenants: Option<Vec<String>>,
    /// Only for the role `backend_owner`, as `TENANT/BACKEND`.
    backends: Option<Vec<String>>,
}

impl IssuerReader<'_> {
    pub(super) fn operators(
        &mut self,
        entry: Option<OperatorMappingEntry>,
    ) -> Option<OperatorMapping> {
        let entry = entry?;
        let audiences = self.identifiers("admin.audiences", entry.audiences, |identifier| {
            identifier.chars().all(|c| !c.is_control())
        });
        if entry.map.is_empty() || entry.map.len() > GRANTS_MAX {
            let allowed = format!("1 to {GRANTS_MAX} entries with value and role");
            self.fault("admin.map", "is empty or too long", &allowed);
        }
        let claim = self.claim("admin.claim", Some(entry.claim))?;
        let grants = entry
            .map
            .into_iter()
            .enumerate()
            .filter_map(|(at, grant)| self.grant(&element("admin.map", at), grant))
            .collect();
        let login = entry.login.and_then(|login| self.operator_login(login));
        Some(OperatorMapping { audiences, claim, grants, login })
    }

    fn grant(&mut self, path: &str, entry: OperatorGrantEntry) -> Option<OperatorGrant> {
        if entry.value.is_empty() || entry.value.len() > IDENTIFIER_BYTES_MAX {
            let allowed = format!("1 to {IDENTIFIER_BYTES_MAX} bytes");
            self.fault(&join(path, "value"), "is empty or too long", &allowed);
        }
        let (tenants, backends) = (entry.tenants.as_deref(), entry.backends.as_deref());
        let parsed = parse_operator_scope(&entry.role, tenants, backends);
        let path = join(&self.path, path);
        let (role, scope) =
            parsed.map_err(|fault| self.faults.push(fault.nested_in(&path))).ok()?;
        Some(OperatorGrant { value: entry.value, role, scope })
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::TenantId;

    use super::*;
    use crate::load_from;

    fn load(admin: &str) -> Result<OperatorMapping, String> {
        let text = format!(
            "auth: {{resource: 'https://mcp.example.com', issuers: [{{issuer: 'https://a.example', tenant: acme, audiences: [mcp], admin: {admin}}}]}}"
        );
        let config = load_from(&text, []).map_err(|faults| faults.to_string())?;
        Ok(config.auth.issuers[0].operators.clone().expect("the mapping was read"))
    }

    #[test]
    fn the_first_matching_grant_of_a_token_applies() {
        let mapping = load(
            "{claim: groups, map: [{value: sre, role: operator}, {value: acme, role: tenant_admin, tenants: [acme]}, {value: own, role: backend_owner, backends: [acme/files]}]}",
        )
        .unwrap();
        let of = |values: &[&str]| {
            mapping.grant(&values.iter().map(|&value| value.to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(of(&["acme", "sre"]), Some((Role::Operator, Scope::Broker)));
        let acme = TenantId::parse("acme").unwrap();
        assert_eq!(of(&["acme"]), Some((Role::TenantAdmin, Scope::Tenants(vec![acme]))));
        assert!(matches!(of(&["own"]), Some((Role::BackendOwner, Scope::Backends(_)))));
        assert_eq!((of(&["dev"]), of(&[])), (None, None));
        let resource = "https://mcp.example.com";
        assert!(mapping.accepts_audience(resource, "https://mcp.example.com/admin/v1"));
        for audience in ["https://mcp.example.com", "https://mcp.example.com/mcp", "mcp", ""] {
            assert!(!mapping.accepts_audience(resource, audience), "{audience}");
        }
    }

    #[test]
    fn faults_of_the_mapping_name_their_key() {
        for (admin, fault) in [
            ("{claim: groups, map: []}", "admin.map: is empty"),
            (
                "{claim: g, map: [{value: a, role: viewer}], login: {client_id: ''}}",
                "admin.login.client_id: is not the id",
            ),
            (
                "{claim: g, map: [{value: a, role: viewer}], login: {client_id: c, client_secret: s, client_secret_file: /f}}",
                "admin.login.client_secret: is set together",
            ),
            (
                "{claim: g, map: [{value: a, role: viewer}], login: {client_id: c, scopes: ['a b']}}",
                "admin.login.scopes: has too many entries or an entry",
            ),
            ("{claim: '', map: [{value: a, role: viewer}]}", "admin.claim: is not"),
            ("{claim: g, map: [{value: a, role: root}]}", "admin.map[0].role: is \"root\""),
            ("{claim: g, map: [{value: '', role: viewer}]}", "admin.map[0].value: is empty"),
            (
                "{claim: g, map: [{value: a, role: viewer, tenants: [A]}]}",
                "admin.map[0].tenants[0]: is \"A\", which is not a usable name",
            ),
            (
                "{claim: g, map: [{value: a, role: backend_owner}]}",
                "admin.map[0].backends: is missing",
            ),
            (
                "{claim: g, map: [{value: a, role: scraper, tenants: [a]}]}",
                "admin.map[0].tenants: is set for a scraper",
            ),
            (
                "{claim: g, audiences: [mcp], map: [{value: a, role: viewer}]}",
                "admin.audiences: has an audience",
            ),
            (
                "{claim: g, audiences: [console, mcp], map: [{value: a, role: viewer}]}",
                "admin.audiences: has an audience",
            ),
        ] {
            let faults = load(admin).unwrap_err();
            assert!(faults.contains(&format!("auth.issuers[0].{fault}")), "{admin}: {faults}");
        }
    }
    #[test]
    fn the_default_audiences_of_clients_are_not_audiences_of_operators() {
        let load_default = |audience: &str| {
            let text = format!(
                "auth: {{resource: 'https://mcp.example.com', issuers: [{{issuer: 'https://a.example', tenant: acme, admin: {{claim: g, audiences: ['{audience}'], map: [{{value: a, role: viewer}}]}}}}]}}"
            );
            load_from(&text, []).map(|_| ()).map_err(|faults| faults.to_string())
        };
        for of_clients in ["", "/", "/mcp", "/mcp/", "/mcp/files"] {
            let faults = load_default(&format!("https://mcp.example.com{of_clients}")).unwrap_err();
            assert!(faults.contains("admin.audiences: has an audience"), "{of_clients}: {faults}");
        }
        for own in ["https://mcp.example.com/admin/v1", "https://mcp.example.com/console", "f00d"] {
            load_default(own).unwrap();
        }
    }
}
