//! Named operators: create, list and revoke.
//!
//! An operator has a role, and may be limited to tenants or backends. Its token is shown once.

use std::sync::Arc;

use config::{AuthConfig, DeclaredOperator, FieldError, parse_operator_scope};
use protocol::ids::{BackendId, TenantId};
use records::{AdminChange, OperatorRecord};
use rules::operators::{ADMIN_NAME, CONFIGURATION_NAME, Operator, Role, Scope};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Author, Control, ControlError, LoadError, OPERATORS_MAX,
    registry::EntryOrigin,
    resource_views::moment,
    validation::{check_label, now_us, refuse_more},
};
use crate::auth::OperatorEntry;

/// Shown instead of a role that cannot be read.
const UNREADABLE: &str = "unreadable";

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
    /// `config/NAME` for an operator of the configuration file.
    pub id: String,
    pub name: String,
    /// `unreadable` if this build cannot read the settings of the operator.
    pub role: String,
    /// Absent: all tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenants: Option<Vec<String>>,
    /// Only of a `backend_owner`, as `TENANT/BACKEND`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backends: Option<Vec<String>>,
    /// `config` for an operator of the configuration file, else `api`.
    pub source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// Why the broker refuses the token of the operator, and the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// An operator that was just created.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct OperatorShown {
    #[serde(flatten)]
    pub info: OperatorView,
    /// The token. Only this answer contains it.
    pub token: String,
}

/// What is stored of an operator apart from its name and hash. An unknown member may be a
/// restriction of a newer build, so the row is then unreadable.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OperatorSettings {
    role: Role,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenants: Option<Vec<TenantId>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backends: Option<Vec<(TenantId, BackendId)>>,
}

impl OperatorSettings {
    fn new(role: Role, scope: Scope) -> Self {
        let (tenants, backends) = match scope {
            Scope::Broker => (None, None),
            Scope::Tenants(tenants) => (Some(tenants), None),
            Scope::Backends(backends) => (None, Some(backends)),
        };
        Self { role, tenants, backends }
    }

    fn scope(self) -> Scope {
        match (self.backends, self.tenants) {
            (Some(backends), _) => Scope::Backends(backends),
            (None, Some(tenants)) => Scope::Tenants(tenants),
            (None, None) => Scope::Broker,
        }
    }
}

impl Control {
    /// Returns the operator of a stored token. Returns `None` for every reason, so that a refusal
    /// reveals nothing.
    pub async fn operator_of_token(&self, token: &str) -> Option<Arc<Operator>> {
        let known = self.operators.verify(token);
        // Another replica may have stored it a moment ago.
        if known.is_none() && self.keyring.refresh().wait().await {
            return self.operators.verify(token);
        }
        known
    }

    pub async fn operators(&self) -> Result<Vec<OperatorView>, ControlError> {
        let records = self.query_store("list_operators", self.store().operators()).await?;
        let registry = self.registry.load();
        let declared = registry.auth.operators.iter().map(declared_view);
        let stored = records
            .iter()
            .map(|record| view(record).unwrap_or_else(|error| unreadable_view(record, &error)));
        let mut views: Vec<OperatorView> = stored.chain(declared).collect();
        views.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(views)
    }

    /// Creates an operator. Only this answer contains its token.
    pub async fn create_operator(
        self: &Arc<Self>,
        wanted: NewOperator,
        author: Author,
    ) -> Result<OperatorShown, ControlError> {
        self.change((wanted, author), |attempt, (wanted, author)| async move {
            let settings = attempt.operator_settings(&wanted)?;
            let stored = attempt.query_store("list_operators", attempt.store().operators()).await?;
            refuse_more(true, stored.len(), "operators", OPERATORS_MAX)?;
            let minted = attempt.operators.mint().map_err(|_| ControlError::NoRandomness)?;
            let record = OperatorRecord {
                operator: minted.id.clone(),
                name: wanted.name,
                hash: minted.hash,
                settings: serde_json::to_string(&settings).expect("settings are plain values"),
                created_at_us: now_us(),
            };
            attempt.commit(AdminChange::PutOperator(&record), &author).await?;
            tracing::info!(operator = record.name, role = %settings.role, "operator created");
            let info = view(&record).map_err(|_| ControlError::Internal)?;
            attempt.operators.insert(entry(record).map_err(|_| ControlError::Internal)?);
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
        if let Some(name) = id.strip_prefix(DECLARED_ID_PREFIX)
            && declares_name(&self.registry.load().auth, name)
        {
            return Err(ControlError::Declared { what: "operator", name: name.to_owned() });
        }
        self.change((id, author), |attempt, (id, author)| async move {
            if !attempt.commit(AdminChange::DeleteOperator(&id), &author).await? {
                return Err(ControlError::NotFound { what: "operator", name: id });
            }
            if let Some(operator) = attempt.operators.remove(&id) {
                attempt.broker.end_trials_of(&operator);
            }
            tracing::info!(operator = id, "operator revoked");
            Ok(())
        })
        .await
    }

    /// Replaces the operators in force, and ends the trials of those that are gone. The broker
    /// leaves out unreadable rows.
    pub(super) fn apply_operators(&self, records: Vec<OperatorRecord>) {
        let gone = self.operators.replace(records.into_iter().filter_map(|record| {
            let name = record.name.clone();
            entry(record)
                .inspect_err(|error| {
                    tracing::error!(operator = name, %error, "the broker cannot read a stored operator and refuses its token");
                })
                .ok()
        }));
        gone.iter().for_each(|operator| self.broker.end_trials_of(operator));
    }

    /// Refuses to remove a tenant that operators name. They would get a later tenant of that name.
    pub(super) async fn check_without_operators(
        &self,
        tenant: &TenantId,
    ) -> Result<(), ControlError> {
        let records = self.query_store("list_operators", self.store().operators()).await?;
        let is_limited = |scope: Scope| {
            let operator = Operator { scope, ..Operator::powerless() };
            !operator.is_broker_wide() && operator.covers_tenant(tenant.as_str())
        };
        // A newer build may read the tenant where this one reads nothing.
        let names_tenant = |record: &OperatorRecord| {
            settings(record).ok().is_none_or(|settings| is_limited(settings.scope()))
        };
        let stored = records.into_iter().filter(names_tenant).map(|record| record.name);
        let registry = self.registry.load();
        let declared = registry.auth.operator_scopes();
        let declared = declared.filter(|(_, scope)| is_limited((*scope).clone()));
        let operators: Vec<String> = stored.chain(declared.map(|(path, _)| path)).collect();
        if operators.is_empty() {
            Ok(())
        } else {
            Err(ControlError::NamedByOperators { operators })
        }
    }

    fn operator_settings(&self, wanted: &NewOperator) -> Result<OperatorSettings, ControlError> {
        check_label("name", Some(&wanted.name))?;
        if [ADMIN_NAME, CONFIGURATION_NAME].contains(&wanted.name.as_str()) {
            return Err(invalid("name", "is reserved", "another name"));
        }
        if declares_name(&self.registry.load().auth, &wanted.name) {
            let wrong = "is the name of an operator of the configuration file";
            return Err(invalid("name", wrong, "another name"));
        }
        let (tenants, backends) = (wanted.tenants.as_deref(), wanted.backends.as_deref());
        let (role, scope) =
            parse_operator_scope(&wanted.role, tenants, backends).map_err(ControlError::Invalid)?;
        self.check_scope_exists(&scope)?;
        Ok(OperatorSettings::new(role, scope))
    }

    fn check_scope_exists(&self, scope: &Scope) -> Result<(), ControlError> {
        let missing = |member: &str, at: usize, name: &str, allowed: &str| {
            let wrong = format!("is \"{name}\", which does not exist");
            Err(invalid(&format!("{member}[{at}]"), &wrong, allowed))
        };
        match scope {
            Scope::Broker => Ok(()),
            Scope::Tenants(names) => {
                match names.iter().position(|tenant| self.check_tenant(tenant).is_err()) {
                    Some(at) => missing("tenants", at, names[at].as_str(), "the name of a tenant"),
                    None => Ok(()),
                }
            }
            Scope::Backends(names) => {
                let registry = self.registry.load();
                match names.iter().position(|name| !registry.backends.contains_key(name)) {
                    Some(at) => {
                        let (tenant, backend) = &names[at];
                        let allowed = "TENANT/BACKEND of a registered backend";
                        missing("backends", at, &format!("{tenant}/{backend}"), allowed)
                    }
                    None => Ok(()),
                }
            }
        }
    }
}

/// Prefix of the ids of declared operators. No stored operator has such an id.
const DECLARED_ID_PREFIX: &str = "config/";

fn declares_name(auth: &AuthConfig, name: &str) -> bool {
    auth.operators.iter().any(|declared| declared.operator.name == name)
}

/// Refuses a configuration file with the name of a stored operator. The audit log would not tell
/// the two apart.
pub(super) fn refuse_stored_names(
    stored: &[OperatorRecord],
    auth: &AuthConfig,
) -> Result<(), LoadError> {
    match stored.iter().find(|record| declares_name(auth, &record.name)) {
        Some(record) => Err(LoadError::Twice { what: format!("operator {}", record.name) }),
        None => Ok(()),
    }
}

fn invalid(path: &str, problem: &str, allowed: &str) -> ControlError {
    ControlError::Invalid(FieldError::new(path, problem, allowed))
}

fn settings(record: &OperatorRecord) -> Result<OperatorSettings, serde_json::Error> {
    serde_json::from_str(&record.settings)
}

fn entry(record: OperatorRecord) -> Result<OperatorEntry, serde_json::Error> {
    let settings = settings(&record)?;
    let (name, role, scope) = (record.name, settings.role, settings.scope());
    let operator = Operator { name, role, scope, groups: Vec::new() };
    Ok(OperatorEntry { id: record.operator, hash: record.hash, operator: Arc::new(operator) })
}

fn view(record: &OperatorRecord) -> Result<OperatorView, serde_json::Error> {
    let OperatorSettings { role, tenants, backends } = settings(record)?;
    Ok(OperatorView {
        id: record.operator.clone(),
        name: record.name.clone(),
        role: role.name().to_owned(),
        tenants: tenants.as_deref().map(tenant_names),
        backends: backends.as_deref().map(backend_names),
        source: EntryOrigin::Stored.name().to_owned(),
        created_at: Some(moment(record.created_at_us)),
        fault: None,
    })
}

/// Returns the view of a row that this build cannot read. The row blocks the removal of tenants, so
/// the list has it with its id.
fn unreadable_view(record: &OperatorRecord, error: &serde_json::Error) -> OperatorView {
    let fault = format!(
        "the broker cannot read the stored settings ({error}), refuses the token, and removes no tenant; use the build that stored them, or revoke the operator"
    );
    OperatorView {
        id: record.operator.clone(),
        name: record.name.clone(),
        role: UNREADABLE.to_owned(),
        // No list would stand for all tenants.
        tenants: Some(Vec::new()),
        backends: None,
        source: EntryOrigin::Stored.name().to_owned(),
        created_at: Some(moment(record.created_at_us)),
        fault: Some(fault),
    }
}

fn declared_view(declared: &DeclaredOperator) -> OperatorView {
    let Operator { name, role, scope, .. } = &*declared.operator;
    let (tenants, backends) = match scope {
        Scope::Broker => (None, None),
        Scope::Tenants(tenants) => (Some(tenant_names(tenants)), None),
        Scope::Backends(backends) => (None, Some(backend_names(backends))),
    };
    OperatorView {
        id: format!("{DECLARED_ID_PREFIX}{name}"),
        name: name.clone(),
        role: role.name().to_owned(),
        tenants,
        backends,
        source: EntryOrigin::Declared.name().to_owned(),
        created_at: None,
        fault: None,
    }
}

fn tenant_names(tenants: &[TenantId]) -> Vec<String> {
    tenants.iter().map(TenantId::to_string).collect()
}

fn backend_names(backends: &[(TenantId, BackendId)]) -> Vec<String> {
    backends.iter().map(|(tenant, backend)| format!("{tenant}/{backend}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::Rig;

    #[tokio::test]
    async fn an_operator_that_cannot_be_read_is_listed_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let control = Rig::start(folder.path(), "").await.control;
        let record = OperatorRecord {
            operator: "o1".to_owned(),
            name: "ann".to_owned(),
            hash: vec![1; 32],
            settings: r#"{"role":"admin","toolsets":["acme/support"]}"#.to_owned(),
            created_at_us: 1,
        };
        assert!(control.store().apply(AdminChange::PutOperator(&record), None).await.unwrap());
        let tenant = TenantId::parse("acme").unwrap();
        let blocked = control.check_without_operators(&tenant).await.unwrap_err();
        assert!(blocked.to_string().contains(": ann; revoke them"), "{blocked}");
        let listed = control.operators().await.unwrap();
        let [OperatorView { id, name, role, tenants, fault: Some(fault), .. }] = &listed[..] else {
            panic!("{listed:?}");
        };
        assert_eq!([id, name, role].map(String::as_str), ["o1", "ann", "unreadable"]);
        assert_eq!(tenants.as_deref(), Some([].as_slice()));
        assert!(fault.contains("`toolsets`") && fault.ends_with("revoke the operator"), "{fault}");
        control.delete_operator("o1".to_owned(), Author::default()).await.unwrap();
        control.check_without_operators(&tenant).await.unwrap();
    }

    #[tokio::test]
    async fn an_operator_blocks_the_removal_of_the_tenants_that_it_names() {
        let folder = tempfile::tempdir().unwrap();
        let declared = "[{name: vera, role: viewer, tenants: [acme], token: the-token-of-vera}, {name: ben, role: viewer, token: the-token-of-ben}]";
        let yaml = format!("auth: {{admin_token: the-token-of-the-admin, operators: {declared}}}");
        let control = Rig::start(folder.path(), &yaml).await.control;
        let settings = [
            ("broker", r#"{"role":"admin"}"#),
            ("other", r#"{"role":"viewer","tenants":["zoo"]}"#),
            ("empty", r#"{"role":"viewer","tenants":[]}"#),
            ("tenants", r#"{"role":"viewer","tenants":["zoo","acme"]}"#),
            ("backends", r#"{"role":"backend_owner","backends":[["acme","files"]]}"#),
        ];
        for (number, (name, settings)) in (1..).zip(settings) {
            let record = OperatorRecord {
                operator: format!("o{number}"),
                name: name.to_owned(),
                hash: vec![number; 32],
                settings: settings.to_owned(),
                created_at_us: 1,
            };
            entry(record.clone()).expect("this build reads it");
            control.store().apply(AdminChange::PutOperator(&record), None).await.unwrap();
        }
        let named_by = async |tenant: &str| {
            let tenant = TenantId::parse(tenant).unwrap();
            match control.check_without_operators(&tenant).await {
                Ok(()) => Vec::new(),
                Err(ControlError::NamedByOperators { mut operators }) => {
                    operators.sort();
                    operators
                }
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(named_by("acme").await, ["auth.operators[0]", "backends", "tenants"]);
        assert_eq!(named_by("zoo").await, ["other", "tenants"]);
        assert_eq!(named_by("acm").await, [""; 0]);
        control.close().await;
        let tenant = TenantId::parse("acm").unwrap();
        let unread = control.check_without_operators(&tenant).await.unwrap_err();
        assert!(matches!(unread, ControlError::Store(_)), "{unread}");
    }

    #[test]
    fn an_operator_with_a_restriction_of_a_newer_build_is_unreadable() {
        let read = |settings: &str| {
            let record = OperatorRecord {
                operator: "o".to_owned(),
                name: "ann".to_owned(),
                hash: Vec::new(),
                settings: settings.to_owned(),
                created_at_us: 1,
            };
            entry(record).ok().map(|entry| entry.operator.scope.clone())
        };
        assert_eq!(read(r#"{"role":"admin"}"#), Some(Scope::Broker));
        assert_eq!(read(r#"{"role":"admin","toolsets":["acme/support"]}"#), None);
    }
}
