//! Named operators: create, list and revoke.
//!
//! An operator has a role, and may be limited to tenants or backends. Its token is shown once.

use std::{collections::BTreeSet, sync::Arc};

use protocol::ids::{BackendId, TenantId};
use records::{AdminChange, OperatorRecord};
use rules::operators::{ADMIN_NAME, CONFIGURATION_NAME, Operator, Role, Scope};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Author, Control, ControlError,
    resource_views::moment,
    validation::{check_label, now_us, refuse_more},
};
use crate::{auth::OperatorEntry, config::FieldError};

/// Maximum number of operators.
pub(super) const OPERATORS_MAX: usize = 1_000;
/// Maximum number of tenants or backends of one operator.
const SCOPE_ENTRIES_MAX: usize = 1_000;

/// Settings of a new operator.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewOperator {
    /// Name in the audit log. No two operators have the same name.
    pub name: String,
    /// `viewer`, `operator`, `tenant_admin`, `auditor`, `admin`, `backend_owner` or `scraper`.
    pub role: String,
    /// Tenants that the operator sees. Absent: all tenants, and the broker itself.
    #[serde(default)]
    pub tenants: Option<Vec<String>>,
    /// Backends of a `backend_owner`, as `TENANT/BACKEND`.
    #[serde(default)]
    pub backends: Option<Vec<String>>,
}

/// An operator, without its token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperatorView {
    pub id: String,
    pub name: String,
    pub role: String,
    /// Absent: all tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenants: Option<Vec<String>>,
    /// Only of a `backend_owner`, as `TENANT/BACKEND`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backends: Option<Vec<String>>,
    pub created_at: String,
}

/// An operator that was just created.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct OperatorShown {
    #[serde(flatten)]
    pub info: OperatorView,
    /// The token. Only this answer contains it.
    pub token: String,
}

/// What is stored of an operator apart from its name and hash.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct OperatorSettings {
    role: Role,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenants: Option<Vec<TenantId>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backends: Option<Vec<(TenantId, BackendId)>>,
}

impl OperatorSettings {
    fn scope(self) -> Scope {
        match (self.backends, self.tenants) {
            (Some(backends), _) => Scope::Backends(backends),
            (None, Some(tenants)) => Scope::Tenants(tenants),
            (None, None) => Scope::Broker,
        }
    }
}

impl Control {
    pub async fn operators(&self) -> Result<Vec<OperatorView>, ControlError> {
        let records = self.query_store("operators", self.store().operators()).await?;
        Ok(records.iter().filter_map(|record| view(record).ok()).collect())
    }

    /// Creates an operator. Only this answer contains its token.
    pub async fn create_operator(
        self: &Arc<Self>,
        wanted: NewOperator,
        author: Author,
    ) -> Result<OperatorShown, ControlError> {
        self.change(|control| async move {
            let settings = control.operator_settings(&wanted)?;
            let stored = control.query_store("operators", control.store().operators()).await?;
            refuse_more(true, stored.len(), "operators", OPERATORS_MAX)?;
            let minted = control.operators.mint().map_err(|_| ControlError::NoRandomness)?;
            let record = OperatorRecord {
                operator: minted.id.clone(),
                name: wanted.name,
                hash: minted.hash,
                settings: serde_json::to_string(&settings).expect("settings are plain values"),
                created_at_us: now_us(),
            };
            control.commit(AdminChange::PutOperator(&record), &author).await?;
            tracing::info!(operator = record.name, role = %settings.role, "operator created");
            let info = view(&record).map_err(|_| ControlError::Internal)?;
            control.operators.insert(entry(record).map_err(|_| ControlError::Internal)?);
            Ok(OperatorShown { info, token: minted.text })
        })
        .await
    }

    /// Revokes an operator. Its token is refused from now on.
    pub async fn delete_operator(
        self: &Arc<Self>,
        id: String,
        author: Author,
    ) -> Result<(), ControlError> {
        self.change(|control| async move {
            if !control.commit(AdminChange::DeleteOperator(&id), &author).await? {
                return Err(ControlError::NotFound { what: "operator", name: id });
            }
            control.operators.remove(&id);
            tracing::info!(operator = id, "operator revoked");
            Ok(())
        })
        .await
    }

    /// Replaces the operators in force. The broker leaves out unreadable rows.
    pub(super) fn apply_operators(&self, records: Vec<OperatorRecord>) {
        self.operators.replace(records.into_iter().filter_map(|record| {
            let name = record.name.clone();
            entry(record)
                .inspect_err(|error| {
                    tracing::error!(operator = name, %error, "a stored operator cannot be read: its token is refused");
                })
                .ok()
        }));
    }

    /// Refuses to remove a tenant that operators name. A later tenant of that name would be theirs.
    pub(super) async fn check_without_operators(
        &self,
        tenant: &TenantId,
    ) -> Result<(), ControlError> {
        let records = self.query_store("operators", self.store().operators()).await?;
        let names_tenant = |record: &&OperatorRecord| {
            let Ok(settings) = settings(record) else { return false };
            let (name, role, scope) = (String::new(), settings.role, settings.scope());
            let operator = Operator { name, role, scope };
            !operator.is_broker_wide() && operator.covers_tenant(tenant.as_str())
        };
        match records.iter().find(names_tenant) {
            Some(record) => Err(ControlError::NamedByOperator { operator: record.name.clone() }),
            None => Ok(()),
        }
    }

    fn operator_settings(&self, wanted: &NewOperator) -> Result<OperatorSettings, ControlError> {
        check_label("name", Some(&wanted.name))?;
        if [ADMIN_NAME, CONFIGURATION_NAME].contains(&wanted.name.as_str()) {
            return Err(invalid("name", "is reserved", "another name"));
        }
        let role = Role::parse(&wanted.role).ok_or_else(|| {
            invalid("role", "is not a role", &Role::ALL.map(Role::name).join(", "))
        })?;
        let tenants = wanted.tenants.as_deref().map(|names| self.known_tenants(names));
        let backends = wanted.backends.as_deref().map(|names| self.known_backends(names));
        let (tenants, backends) = (tenants.transpose()?, backends.transpose()?);
        match role {
            Role::BackendOwner if backends.is_none() => {
                return Err(invalid("backends", "is missing", "TENANT/BACKEND of each backend"));
            }
            Role::BackendOwner if tenants.is_some() => {
                return Err(invalid("tenants", "is set for a backend_owner", "backends"));
            }
            Role::BackendOwner => {}
            _ if backends.is_some() => {
                return Err(invalid(
                    "backends",
                    "is set for another role",
                    "the role backend_owner",
                ));
            }
            Role::Scraper if tenants.is_some() => {
                let wrong = "is set for a scraper, and metrics are those of all tenants";
                return Err(invalid("tenants", wrong, "a scraper without tenants"));
            }
            _ => {}
        }
        Ok(OperatorSettings { role, tenants, backends })
    }

    fn known_tenants(&self, names: &[String]) -> Result<Vec<TenantId>, ControlError> {
        check_count("tenants", names)?;
        let known = |(at, name): (usize, &String)| {
            let tenant = TenantId::parse(name).ok().filter(|name| self.check_tenant(name).is_ok());
            tenant.ok_or_else(|| {
                invalid(&format!("tenants.{at}"), "does not exist", "the name of a tenant")
            })
        };
        names.iter().enumerate().map(known).collect()
    }

    fn known_backends(&self, names: &[String]) -> Result<Vec<(TenantId, BackendId)>, ControlError> {
        check_count("backends", names)?;
        let registry = self.registry.load();
        let known = |(at, name): (usize, &String)| {
            let parts = name.split_once('/').and_then(|(tenant, backend)| {
                Some((TenantId::parse(tenant).ok()?, BackendId::parse(backend).ok()?))
            });
            parts.filter(|name| registry.backends.contains_key(name)).ok_or_else(|| {
                let allowed = "TENANT/BACKEND of a registered backend";
                invalid(&format!("backends.{at}"), "does not exist", allowed)
            })
        };
        names.iter().enumerate().map(known).collect()
    }
}

fn check_count(path: &str, names: &[String]) -> Result<(), ControlError> {
    let distinct: BTreeSet<&String> = names.iter().collect();
    if (1..=SCOPE_ENTRIES_MAX).contains(&names.len()) && distinct.len() == names.len() {
        return Ok(());
    }
    let allowed = format!("1 to {SCOPE_ENTRIES_MAX} different names");
    Err(invalid(path, "is empty, too long, or has a name twice", &allowed))
}

fn invalid(path: &str, problem: &str, allowed: &str) -> ControlError {
    ControlError::Invalid(FieldError::new(path, problem, allowed))
}

fn settings(record: &OperatorRecord) -> Result<OperatorSettings, serde_json::Error> {
    serde_json::from_str(&record.settings)
}

fn entry(record: OperatorRecord) -> Result<OperatorEntry, serde_json::Error> {
    let settings = settings(&record)?;
    let operator = Operator { name: record.name, role: settings.role, scope: settings.scope() };
    Ok(OperatorEntry { id: record.operator, hash: record.hash, operator: Arc::new(operator) })
}

fn view(record: &OperatorRecord) -> Result<OperatorView, serde_json::Error> {
    let OperatorSettings { role, tenants, backends } = settings(record)?;
    let names = |tenants: Vec<TenantId>| tenants.iter().map(TenantId::to_string).collect();
    let pairs = |backends: Vec<(TenantId, BackendId)>| {
        backends.iter().map(|(tenant, backend)| format!("{tenant}/{backend}")).collect()
    };
    Ok(OperatorView {
        id: record.operator.clone(),
        name: record.name.clone(),
        role: role.name().to_owned(),
        tenants: tenants.map(names),
        backends: backends.map(pairs),
        created_at: moment(record.created_at_us),
    })
}
