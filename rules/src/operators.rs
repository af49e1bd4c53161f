//! Operators of the admin plane: what each role permits, and for which tenants and backends.
//!
//! The admin plane asks before it reads a request's body. Invariants:
//! - A permission about the whole broker is never held by an operator of some tenants.
//! - A role without a permission in [`Role::permits`] does not have it.

use std::{collections::BTreeSet, fmt};

use protocol::ids::{BackendId, TenantId};
use serde::{Deserialize, Serialize};

/// Name of operators that signed in with `auth.admin_token`, or on an open loopback listener.
pub const ADMIN_NAME: &str = "admin";
/// Beginning of the principal of a trial: `operator NAME as SUBJECT`. No user has such a principal.
pub const TRIAL_PREFIX: &str = "operator ";
/// Text between the operator and the principal of a trial.
const TRIAL_SEPARATOR: &str = " as ";
/// Author of actions of the process itself, such as a reload of the configuration file.
pub const CONFIGURATION_NAME: &str = "configuration";

/// Set of permissions that an operator has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads everything but the audit log and operators. Changes nothing.
    Viewer,
    /// Reads like a viewer. Probes backends, holds breakers, ends sessions, cancels tasks, drains. Sets
    /// the log filter.
    Operator,
    /// Manages the keys, backends and policies of tenants, and tries their tools.
    TenantAdmin,
    /// Reads like a viewer, and reads the audit log and operators.
    Auditor,
    /// Has every permission.
    Admin,
    /// Sees and operates the backends that it is given.
    BackendOwner,
    /// Reads the metrics and nothing else.
    Scraper,
}

impl Role {
    pub const ALL: [Self; 7] = [
        Self::Viewer,
        Self::Operator,
        Self::TenantAdmin,
        Self::Auditor,
        Self::Admin,
        Self::BackendOwner,
        Self::Scraper,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::TenantAdmin => "tenant_admin",
            Self::Auditor => "auditor",
            Self::Admin => "admin",
            Self::BackendOwner => "backend_owner",
            Self::Scraper => "scraper",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// Returns whether the role has a permission, for the tenants and backends of its operator.
    pub const fn permits(self, permission: Permission) -> bool {
        use Permission as P;
        let is_view = matches!(
            permission,
            P::TenantsRead
                | P::KeysRead
                | P::RevocationsRead
                | P::BackendsRead
                | P::PoliciesRead
                | P::CatalogRead
                | P::ApprovalsRead
                | P::IssuersRead
                | P::SessionsRead
                | P::TasksRead
                | P::SubscriptionsRead
                | P::ActivityRead
                | P::NodesRead
                | P::ConfigurationRead
                | P::MetricsRead
                | P::OpenapiRead
        );
        let is_operation =
            matches!(permission, P::BackendsOperate | P::SessionsEnd | P::TasksCancel)
                || (matches!(permission, P::ApprovalsDecide) && self.decides_approvals());
        match self {
            Self::Admin => true,
            Self::Viewer => is_view,
            Self::Operator => {
                is_view || is_operation || matches!(permission, P::BrokerDrain | P::LogWrite)
            }
            Self::TenantAdmin => {
                is_view
                    || is_operation
                    || matches!(
                        permission,
                        P::KeysWrite
                            | P::RevocationsWrite
                            | P::BackendsWrite
                            | P::PoliciesWrite
                            | P::CatalogWrite
                            | P::IssuersWrite
                            | P::ToolsTry
                            | P::AuditRead
                    )
            }
            Self::Auditor => is_view || matches!(permission, P::AuditRead | P::OperatorsRead),
            Self::BackendOwner => {
                matches!(
                    permission,
                    P::BackendsRead
                        | P::BackendsOperate
                        | P::ApprovalsRead
                        | P::ApprovalsDecide
                        | P::OpenapiRead
                )
            }
            Self::Scraper => matches!(permission, P::MetricsRead),
        }
    }

    /// Returns whether the role decides about calls that wait for an approval.
    pub const fn decides_approvals(self) -> bool {
        matches!(self, Self::Operator | Self::TenantAdmin | Self::Admin | Self::BackendOwner)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// What an operation of the admin API requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    TenantsRead,
    TenantsWrite,
    KeysRead,
    KeysWrite,
    RevocationsRead,
    RevocationsWrite,
    BackendsRead,
    BackendsWrite,
    /// Probes a backend, and holds or releases its breaker.
    BackendsOperate,
    PoliciesRead,
    PoliciesWrite,
    /// Reads toolsets, hosted prompts and what lists cost.
    CatalogRead,
    CatalogWrite,
    /// Lists calls that wait for an approval. Their arguments need [`Self::ApprovalsDecide`].
    ApprovalsRead,
    ApprovalsDecide,
    IssuersRead,
    IssuersWrite,
    SessionsRead,
    SessionsEnd,
    TasksRead,
    TasksCancel,
    SubscriptionsRead,
    /// Reads recent refusals and errors of requests.
    ActivityRead,
    /// Sends requests to the data plane as a subject of the operator's choice.
    ToolsTry,
    AuditRead,
    NodesRead,
    /// Reads the configuration in force and the log filter.
    ConfigurationRead,
    /// Sets the log filter of a replica for a time.
    LogWrite,
    MetricsRead,
    OpenapiRead,
    OperatorsRead,
    OperatorsWrite,
    BrokerDrain,
}

impl Permission {
    /// Name in the OpenAPI document (`x-permission`).
    pub const fn name(self) -> &'static str {
        match self {
            Self::TenantsRead => "tenants:read",
            Self::TenantsWrite => "tenants:write",
            Self::KeysRead => "keys:read",
            Self::KeysWrite => "keys:write",
            Self::RevocationsRead => "revocations:read",
            Self::RevocationsWrite => "revocations:write",
            Self::BackendsRead => "backends:read",
            Self::BackendsWrite => "backends:write",
            Self::BackendsOperate => "backends:operate",
            Self::PoliciesRead => "policies:read",
            Self::PoliciesWrite => "policies:write",
            Self::CatalogRead => "catalog:read",
            Self::CatalogWrite => "catalog:write",
            Self::ApprovalsRead => "approvals:read",
            Self::ApprovalsDecide => "approvals:decide",
            Self::IssuersRead => "issuers:read",
            Self::IssuersWrite => "issuers:write",
            Self::SessionsRead => "sessions:read",
            Self::SessionsEnd => "sessions:end",
            Self::TasksRead => "tasks:read",
            Self::TasksCancel => "tasks:cancel",
            Self::SubscriptionsRead => "subscriptions:read",
            Self::ActivityRead => "activity:read",
            Self::ToolsTry => "tools:try",
            Self::AuditRead => "audit:read",
            Self::NodesRead => "nodes:read",
            Self::ConfigurationRead => "configuration:read",
            Self::LogWrite => "log:write",
            Self::MetricsRead => "metrics:read",
            Self::OpenapiRead => "openapi:read",
            Self::OperatorsRead => "operators:read",
            Self::OperatorsWrite => "operators:write",
            Self::BrokerDrain => "broker:drain",
        }
    }

    /// Returns whether the permission is about the whole broker, and not about tenants.
    const fn is_broker_wide(self) -> bool {
        matches!(
            self,
            Self::NodesRead
                | Self::ConfigurationRead
                | Self::LogWrite
                | Self::MetricsRead
                | Self::OperatorsRead
                | Self::OperatorsWrite
                | Self::BrokerDrain
        )
    }
}

/// The tenants and backends of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    Broker,
    Tenants(Vec<TenantId>),
    Backends(Vec<(TenantId, BackendId)>),
}

impl Scope {
    /// Returns the tenants and backends that do not exist, such as `the backend acme/files`.
    pub fn missing(
        &self,
        has_tenant: impl Fn(&TenantId) -> bool,
        has_backend: impl Fn(&TenantId, &BackendId) -> bool,
    ) -> Vec<String> {
        match self {
            Self::Broker => Vec::new(),
            Self::Tenants(tenants) => {
                let missing = tenants.iter().filter(|tenant| !has_tenant(tenant));
                missing.map(|tenant| format!("the tenant {tenant}")).collect()
            }
            Self::Backends(backends) => {
                let missing =
                    backends.iter().filter(|(tenant, backend)| !has_backend(tenant, backend));
                missing.map(|(tenant, backend)| format!("the backend {tenant}/{backend}")).collect()
            }
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = match self {
            Self::Broker => return out.write_str("the whole broker"),
            Self::Tenants(tenants) => tenants.iter().map(ToString::to_string).collect(),
            Self::Backends(backends) => {
                backends.iter().map(|(tenant, backend)| format!("{tenant}/{backend}")).collect()
            }
        };
        let what = match self {
            Self::Backends(_) => "backend",
            _ => "tenant",
        };
        let plural = if names.len() == 1 { "" } else { "s" };
        write!(out, "the {what}{plural} {}", names.join(", "))
    }
}

/// An operator that has signed in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator {
    /// Name in the audit log.
    pub name: String,
    pub role: Role,
    pub scope: Scope,
    /// Groups at the issuer of the operator's token. Empty for a token of the broker.
    pub groups: Vec<String>,
}

impl Operator {
    /// Returns the operator with every permission.
    pub fn admin() -> Self {
        let (name, scope) = (ADMIN_NAME.to_owned(), Scope::Broker);
        Self { name, role: Role::Admin, scope, groups: Vec::new() }
    }

    /// Returns an operator without any permission, for a request without sign-in.
    pub fn powerless() -> Self {
        let (name, scope) = (String::new(), Scope::Backends(Vec::new()));
        Self { name, role: Role::Scraper, scope, groups: Vec::new() }
    }

    pub fn permits(&self, permission: Permission) -> bool {
        let is_in_scope = self.is_broker_wide() || !permission.is_broker_wide();
        is_in_scope && self.role.permits(permission)
    }

    /// Returns whether the operator has the name of a principal, or made a trial as it. With a
    /// token of an issuer, a person has the same name as an operator and as an MCP client.
    pub fn is_person(&self, principal: &str) -> bool {
        let tries = principal.strip_prefix(TRIAL_PREFIX);
        let by = tries.and_then(|tries| tries.split_once(TRIAL_SEPARATOR));
        self.name == principal || by.is_some_and(|(name, _)| name == self.name)
    }

    /// Returns the principal of the operator's trials as a principal. `None`: the name of the
    /// operator has a part that would make the trial look like one of another operator.
    pub fn trial_principal(&self, shown: &str) -> Option<String> {
        // A name that ends with the first letters of the separator would move its start.
        let start = format!("{}{TRIAL_SEPARATOR}", self.name);
        let is_clear = start.find(TRIAL_SEPARATOR) == Some(self.name.len());
        is_clear.then(|| format!("{TRIAL_PREFIX}{start}{shown}"))
    }

    /// Returns whether a principal is that of a trial of this operator.
    pub fn has_trial_principal(&self, principal: &str) -> bool {
        self.trial_principal("").is_some_and(|start| principal.starts_with(&start))
    }

    /// Returns the tenants that exist for the operator. `None`: all.
    pub fn tenants(&self) -> Option<BTreeSet<TenantId>> {
        match &self.scope {
            Scope::Broker => None,
            Scope::Tenants(tenants) => Some(tenants.iter().cloned().collect()),
            Scope::Backends(backends) => {
                Some(backends.iter().map(|(tenant, _)| tenant.clone()).collect())
            }
        }
    }

    /// Returns whether every tenant exists for the operator.
    pub fn is_broker_wide(&self) -> bool {
        self.scope == Scope::Broker
    }

    /// Returns whether the tenant exists for the operator.
    pub fn covers_tenant(&self, tenant: &str) -> bool {
        match &self.scope {
            Scope::Broker => true,
            Scope::Tenants(tenants) => tenants.iter().any(|known| known.as_str() == tenant),
            Scope::Backends(backends) => backends.iter().any(|(known, _)| known.as_str() == tenant),
        }
    }

    /// Returns whether the operator sees the tenant as a whole, and not only some of its backends.
    pub fn covers_whole_tenant(&self, tenant: &str) -> bool {
        !matches!(self.scope, Scope::Backends(_)) && self.covers_tenant(tenant)
    }

    /// Returns the backends of a tenant that exist for the operator. `None`: all.
    pub fn backends_of(&self, tenant: &str) -> Option<Vec<BackendId>> {
        let Scope::Backends(backends) = &self.scope else { return None };
        let of_tenant = backends.iter().filter(|(owner, _)| owner.as_str() == tenant);
        Some(of_tenant.map(|(_, backend)| backend.clone()).collect())
    }

    /// Returns whether the backend exists for the operator.
    pub fn covers_backend(&self, tenant: &str, backend: &str) -> bool {
        match &self.scope {
            Scope::Backends(backends) => backends
                .iter()
                .any(|(owner, known)| owner.as_str() == tenant && known.as_str() == backend),
            _ => self.covers_tenant(tenant),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(role: Role, tenants: &[&str]) -> Operator {
        let tenants = tenants.iter().map(|name| TenantId::parse(name).unwrap()).collect();
        let scope = Scope::Tenants(tenants);
        Operator { name: "ann".to_owned(), role, scope, groups: Vec::new() }
    }

    #[test]
    fn role_names_equal_those_in_request_bodies() {
        for role in Role::ALL {
            assert_eq!(Role::parse(role.name()), Some(role));
            assert_eq!(serde_json::to_value(role).unwrap(), role.name());
        }
        assert_eq!(Role::parse("root"), None);
    }

    #[test]
    fn a_scope_is_named_in_refusals() {
        assert_eq!(of(Role::Viewer, &["acme"]).scope.to_string(), "the tenant acme");
        assert_eq!(of(Role::Viewer, &["acme", "zoo"]).scope.to_string(), "the tenants acme, zoo");
        let files = (TenantId::parse("acme").unwrap(), BackendId::parse("files").unwrap());
        assert_eq!(Scope::Backends(vec![files]).to_string(), "the backend acme/files");
    }

    #[test]
    fn an_operator_of_tenants_has_no_permission_about_the_broker() {
        let admin = of(Role::Admin, &["acme"]);
        assert!(admin.permits(Permission::TenantsWrite));
        for permission in [
            Permission::OperatorsWrite,
            Permission::OperatorsRead,
            Permission::MetricsRead,
            Permission::NodesRead,
            Permission::ConfigurationRead,
            Permission::BrokerDrain,
        ] {
            assert!(!admin.permits(permission), "{}", permission.name());
            assert!(Operator::admin().permits(permission), "{}", permission.name());
        }
        assert!(admin.covers_tenant("acme") && admin.covers_backend("acme", "files"));
        assert!(!admin.covers_tenant("zoo") && !admin.covers_backend("zoo", "files"));
    }

    #[test]
    fn an_owner_of_a_backend_sees_only_that_backend() {
        let backend = (TenantId::parse("acme").unwrap(), BackendId::parse("files").unwrap());
        let scope = Scope::Backends(vec![backend]);
        let (name, groups) = ("ann".to_owned(), Vec::new());
        let owner = Operator { name, role: Role::BackendOwner, scope, groups };
        assert!(owner.covers_backend("acme", "files") && owner.covers_tenant("acme"));
        assert!(!owner.covers_backend("acme", "mail") && !owner.covers_backend("zoo", "files"));
        assert!(owner.permits(Permission::BackendsOperate));
        assert!(!owner.permits(Permission::BackendsWrite) && !owner.permits(Permission::KeysRead));
    }

    /// Every permission, with its name and the roles that have it: the first letters of viewer,
    /// operator, tenant_admin, auditor, admin (`A`), backend_owner and scraper.
    const PERMISSIONS: [(Permission, &str, &str); 32] = [
        (Permission::TenantsRead, "tenants:read", "votaA"),
        (Permission::TenantsWrite, "tenants:write", "A"),
        (Permission::KeysRead, "keys:read", "votaA"),
        (Permission::KeysWrite, "keys:write", "tA"),
        (Permission::RevocationsRead, "revocations:read", "votaA"),
        (Permission::RevocationsWrite, "revocations:write", "tA"),
        (Permission::BackendsRead, "backends:read", "votaAb"),
        (Permission::BackendsWrite, "backends:write", "tA"),
        (Permission::BackendsOperate, "backends:operate", "otAb"),
        (Permission::PoliciesRead, "policies:read", "votaA"),
        (Permission::PoliciesWrite, "policies:write", "tA"),
        (Permission::CatalogRead, "catalog:read", "votaA"),
        (Permission::CatalogWrite, "catalog:write", "tA"),
        (Permission::ApprovalsRead, "approvals:read", "votaAb"),
        (Permission::ApprovalsDecide, "approvals:decide", "otAb"),
        (Permission::IssuersRead, "issuers:read", "votaA"),
        (Permission::IssuersWrite, "issuers:write", "tA"),
        (Permission::SessionsRead, "sessions:read", "votaA"),
        (Permission::SessionsEnd, "sessions:end", "otA"),
        (Permission::TasksRead, "tasks:read", "votaA"),
        (Permission::TasksCancel, "tasks:cancel", "otA"),
        (Permission::SubscriptionsRead, "subscriptions:read", "votaA"),
        (Permission::ActivityRead, "activity:read", "votaA"),
        (Permission::ToolsTry, "tools:try", "tA"),
        (Permission::AuditRead, "audit:read", "taA"),
        (Permission::NodesRead, "nodes:read", "votaA"),
        (Permission::ConfigurationRead, "configuration:read", "votaA"),
        (Permission::MetricsRead, "metrics:read", "votaAs"),
        (Permission::OpenapiRead, "openapi:read", "votaAb"),
        (Permission::OperatorsRead, "operators:read", "aA"),
        (Permission::OperatorsWrite, "operators:write", "A"),
        (Permission::BrokerDrain, "broker:drain", "oA"),
    ];

    #[test]
    fn each_role_has_its_permissions_and_no_other() {
        for (permission, name, roles) in PERMISSIONS {
            assert_eq!(permission.name(), name);
            for (role, letter) in Role::ALL.into_iter().zip("votaAbs".chars()) {
                assert_eq!(role.permits(permission), roles.contains(letter), "{role}: {name}");
            }
        }
    }

    #[test]
    fn an_operator_is_the_person_of_its_own_name_and_its_trials() {
        let ann = of(Role::Operator, &["acme"]);
        for own in ["ann", "operator ann as ann", "operator ann as bob"] {
            assert!(ann.is_person(own), "{own}");
        }
        for other in
            ["bob", "anne", "", "operator anne as ann", "operator bob as ann", "ann as bob"]
        {
            assert!(!ann.is_person(other), "{other}");
        }
    }

    #[test]
    fn the_principal_of_a_trial_belongs_to_one_operator() {
        let named = |name: &str| Operator { name: name.to_owned(), ..Operator::admin() };
        assert_eq!(named("a").trial_principal("b as c").unwrap(), "operator a as b as c");
        for ambiguous in ["a as b", "a as", "a as b as c"] {
            let operator = named(ambiguous);
            let trial = operator.trial_principal("c");
            assert!(trial.is_none_or(|trial| operator.is_person(&trial)), "{ambiguous}");
        }
        assert_eq!(named("a as b").trial_principal("c"), None);
        assert!(named("a").is_person("operator a as b as c"));
        assert!(!named("a as b").is_person("operator a as b as c"));
    }

    #[test]
    fn an_owner_of_backends_sees_no_tenant_as_a_whole() {
        let files = (TenantId::parse("acme").unwrap(), BackendId::parse("files").unwrap());
        let owner = Operator { scope: Scope::Backends(vec![files]), ..Operator::admin() };
        assert!(owner.covers_tenant("acme") && !owner.covers_whole_tenant("acme"));
        assert_eq!(owner.backends_of("acme").unwrap().len(), 1);
        assert_eq!(
            (owner.backends_of("zoo"), Operator::admin().backends_of("zoo")),
            (Some(vec![]), None)
        );
        let ann = of(Role::Operator, &["acme"]);
        assert!(ann.covers_whole_tenant("acme") && !ann.covers_whole_tenant("zoo"));
        assert!(Operator::admin().covers_whole_tenant("zoo"));
    }

    #[test]
    fn every_tenant_exists_for_an_operator_of_the_broker() {
        let admin = Operator::admin();
        assert!(admin.is_broker_wide() && !of(Role::Admin, &["acme"]).is_broker_wide());
        assert!(admin.covers_tenant("zoo") && admin.covers_backend("zoo", "files"));
        assert!(!Operator::powerless().is_broker_wide());
    }

    #[test]
    fn without_a_sign_in_no_operation_is_permitted() {
        let powerless = Operator::powerless();
        assert!(!powerless.permits(Permission::MetricsRead));
        assert!(!powerless.permits(Permission::OpenapiRead));
        assert!(!powerless.permits(Permission::TenantsWrite));
        assert!(!powerless.covers_tenant("default"));
    }

    #[test]
    fn a_scraper_reads_metrics_only() {
        let scraper =
            Operator { name: "prom".to_owned(), role: Role::Scraper, ..Operator::admin() };
        assert!(scraper.permits(Permission::MetricsRead));
        assert!(!scraper.permits(Permission::OpenapiRead));
        assert!(!scraper.permits(Permission::TenantsRead));
    }
}
