//! Operations on access policies: show, store, remove and check.
//!
//! Each tenant has at most one policy. A declared policy of the configuration file can only be
//! changed there.

use std::{sync::Arc, time::Duration};

use config::{FieldError, units::format_duration};
use protocol::ids::{BackendId, TenantId};
use records::{AdminChange, PolicyRecord};
use rules::{
    access::{
        DecisionRow, NamedObject, Policy, PolicyDocument, PolicyFault, PolicyWarning, RuleEffect,
        TestSubject, Verdict, named_object,
    },
    limits::access::POLICY_REPORT_AGE_MAX,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Author, Control, ControlError, LoadError, Preconditions, PutOutcome, Tagged,
    registry::{EntryOrigin, Registry, RegistryEntry},
    resource_views::moment,
    validation::{now_us, refuse_declared},
};

/// Longest time from an operator's choice of an age to the report.
const REPORT_DELAY_MAX: Duration = Duration::from_secs(60);

/// A stored policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyView {
    #[serde(flatten)]
    pub policy: PolicyDocument,
    /// Members whose effect may not be the intended one. Only in the answer to a change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<PolicyWarningView>,
}

/// A member of a policy that has no effect at present, or not the one that it seems to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyWarningView {
    pub field: String,
    pub detail: String,
}

/// A use of an object that a check decides about.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyCheck {
    #[serde(rename = "as", default)]
    pub subject: TestSubject,
    /// A method that uses an object, such as `tools/call`.
    pub method: String,
    /// `BACKEND/NAME` or `BACKEND/URI`, by the backend's own name.
    pub object: String,
}

/// The decision of a policy, and why.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PolicyCheckView {
    pub verdict: Verdict,
    /// `rule`, `default` (no rule applies), `shadow` (the whole policy is in shadow mode, and permits
    /// everything) or `no_policy` (the tenant has none, which permits everything).
    pub decided_by: String,
    /// Id of the deciding rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Scopes that the subject needs. Only for a challenge.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub required_scopes: Vec<String>,
    /// Verdict if the rules in shadow mode were enforced; absent: the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow_verdict: Option<Verdict>,
    /// Number of listed objects that the policy hides from the subject.
    pub hidden: usize,
    /// Every rule, in order.
    pub considered: Vec<ConsideredRule>,
    /// Reason why the object cannot be used, whatever the verdict is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What a policy decided at one replica.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PolicyReportView {
    /// Name of the replica that answers. The decisions are its own, since its start.
    pub replica: String,
    pub since: String,
    /// Decisions other than a plain allow, the most frequent first.
    pub decisions: Vec<PolicyDecisionView>,
}

/// The decisions of one rule.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PolicyDecisionView {
    /// Id of the rule; absent: the default decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    pub verdict: Verdict,
    /// `enforce`, or `shadow` for a verdict that would follow from rules in shadow mode.
    pub mode: String,
    pub count: u64,
    pub last_at: String,
    /// Up to five principals.
    pub principals: Vec<String>,
    /// Up to five objects, as `BACKEND/NAME`.
    pub objects: Vec<String>,
}

/// A rule, and why it applied or not.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ConsideredRule {
    pub rule: String,
    /// `applied`, `scopes_held`, `other_subject` or `other_object`.
    pub outcome: String,
}

impl Control {
    pub fn policy(&self, tenant: &TenantId) -> Result<Tagged<PolicyView>, ControlError> {
        self.check_tenant(tenant)?;
        let registry = self.registry.load();
        let entry = registry.policies.get(tenant).ok_or_else(|| no_policy(tenant))?;
        Ok(self.tagged_policy(entry, Vec::new()))
    }

    fn tagged_policy(
        &self,
        entry: &RegistryEntry<PolicyDocument>,
        warnings: Vec<PolicyWarningView>,
    ) -> Tagged<PolicyView> {
        let view = PolicyView { policy: entry.spec.clone(), warnings };
        Tagged { view, tag: self.tag(entry) }
    }

    pub async fn put_policy(
        self: &Arc<Self>,
        tenant: TenantId,
        document: PolicyDocument,
        condition: Preconditions,
        author: Author,
    ) -> Result<PutOutcome<PolicyView>, ControlError> {
        self.change(
            (tenant, document, condition, author),
            |attempt, (tenant, document, condition, author)| async move {
                attempt.check_tenant(&tenant)?;
                let registry = attempt.registry.load_full();
                let old = registry.policies.get(&tenant);
                refuse_declared(old.map(|entry| entry.origin), "policy of tenant", &tenant)?;
                condition.holds("policy", old.map(|entry| attempt.tag(entry)).as_deref())?;
                let policy =
                    Policy::compile(&document, Some(&registry.selectable_backends(&tenant)))
                        .map_err(ControlError::Policy)?;
                let entry =
                    RegistryEntry::stored(document, old.map(|entry| entry.created_at_us), now_us());
                let record = PolicyRecord {
                    tenant: tenant.clone(),
                    document: policy_text(&entry.spec),
                    created_at_us: entry.created_at_us,
                    updated_at_us: entry.updated_at_us,
                };
                let before = old.map(|entry| policy_text(&entry.spec));
                author.record_values(before.as_deref(), Some(&record.document));
                attempt.commit(AdminChange::PutPolicy(&record), &author).await?;
                let policy = Arc::new(policy);
                attempt.broker.set_policy(&tenant, Some(policy.clone()));
                attempt.edit(|registry| {
                    registry.policies.insert(tenant.clone(), Arc::clone(&entry));
                });
                let created = old.is_none();
                tracing::info!(%tenant, created, rules = entry.spec.rules.len(), "policy stored");
                let warnings = attempt.broker.policy_warnings(&tenant, &policy, &entry.spec.tests);
                let entry =
                    attempt.tagged_policy(&entry, warnings.into_iter().map(warning).collect());
                Ok(PutOutcome { entry, created })
            },
        )
        .await
    }

    pub async fn delete_policy(
        self: &Arc<Self>,
        tenant: TenantId,
        condition: Preconditions,
        author: Author,
    ) -> Result<(), ControlError> {
        self.change(
            (tenant, condition, author),
            |attempt, (tenant, condition, author)| async move {
                attempt.check_tenant(&tenant)?;
                let registry = attempt.registry.load_full();
                let old = registry.policies.get(&tenant);
                refuse_declared(old.map(|entry| entry.origin), "policy of tenant", &tenant)?;
                let tag = old.map(|entry| attempt.tag(entry));
                condition.hold_for_removal("policy", tag.as_deref(), || no_policy(&tenant))?;
                let before = old.map(|entry| policy_text(&entry.spec));
                author.record_values(before.as_deref(), None);
                if !attempt.commit(AdminChange::DeletePolicy(&tenant), &author).await? {
                    return Err(no_policy(&tenant));
                }
                attempt.broker.set_policy(&tenant, None);
                attempt.edit(|registry| {
                    registry.policies.remove(&tenant);
                });
                tracing::info!(%tenant, "policy removed");
                Ok(())
            },
        )
        .await
    }

    /// Returns what the policy in force decides about one use of an object. Without a policy,
    /// everything is allowed.
    pub fn check_policy(
        &self,
        tenant: &TenantId,
        check: &PolicyCheck,
    ) -> Result<PolicyCheckView, ControlError> {
        self.check_tenant(tenant)?;
        let named = named_object(&check.method, &check.object).map_err(|(member, problem)| {
            ControlError::Invalid(FieldError::new(member, problem, ""))
        })?;
        let in_force = self.broker.policy(tenant);
        let has_policy = in_force.is_some();
        let policy = in_force.unwrap_or_default();
        let traits = self.broker.tool_traits(tenant, &named.backend, &named.name);
        let (subject, object) = (check.subject.subject(), named.object(traits));
        let decision = policy.decide(&subject, named.method, &object);
        let considered = policy
            .explain(&subject, named.method, &object)
            .into_iter()
            .map(|trace| ConsideredRule {
                rule: trace.rule.id.clone(),
                outcome: trace.outcome.name().to_owned(),
            })
            .collect();
        let decided_by = match (&decision.rule, has_policy) {
            (Some(_), _) => "rule",
            (None, false) => "no_policy",
            (None, true) if policy.is_shadow() => "shadow",
            (None, true) => "default",
        };
        Ok(PolicyCheckView {
            note: self.unusable(tenant, &named),
            verdict: decision.verdict,
            decided_by: decided_by.to_owned(),
            rule: decision.rule.map(|rule| rule.id.clone()),
            required_scopes: decision.required_scopes.iter().map(|&scope| scope.into()).collect(),
            shadow_verdict: decision.shadow.map(|(verdict, _)| verdict),
            hidden: self.broker.hidden_objects(tenant, &subject),
            considered,
        })
    }

    /// Returns why an object cannot be used at present.
    fn unusable(&self, tenant: &TenantId, named: &NamedObject) -> Option<String> {
        let NamedObject { backend, name, .. } = named;
        let key = (tenant.clone(), backend.clone());
        if *backend != BackendId::hosted() && !self.registry.load().backends.contains_key(&key) {
            return Some(format!("no backend {backend} is registered in the tenant {tenant}"));
        }
        let kind = named.unlisted(&*self.broker.full_catalog(tenant)?)?;
        Some(format!("the backend {backend} lists no {kind} {name} at present"))
    }

    /// Returns what the policy decided at this replica since a time.
    pub fn policy_report(
        &self,
        tenant: &TenantId,
        since_us: i64,
    ) -> Result<PolicyReportView, ControlError> {
        self.check_tenant(tenant)?;
        let since = Duration::from_micros(since_us.try_into().unwrap_or_default());
        let now = Duration::from_micros(now_us().try_into().unwrap_or_default());
        if since + POLICY_REPORT_AGE_MAX + REPORT_DELAY_MAX < now {
            let allowed = format!("{} ago at most", format_duration(POLICY_REPORT_AGE_MAX));
            let fault =
                FieldError::new("since", "is before the first decision that is kept", allowed);
            return Err(ControlError::Invalid(fault));
        }
        let time = |since_epoch: Duration| {
            moment(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
        };
        let view = |row: DecisionRow| PolicyDecisionView {
            rule: row.rule,
            verdict: row.verdict,
            mode: if row.is_shadow { "shadow" } else { "enforce" }.to_owned(),
            count: row.count,
            last_at: time(row.last),
            principals: row.principals,
            objects: row.objects,
        };
        Ok(PolicyReportView {
            replica: self.persistence().node().as_str().to_owned(),
            since: time(since),
            decisions: self.broker.decisions(tenant, since).into_iter().map(view).collect(),
        })
    }

    /// Returns the stored entry of a policy, or one that denies everything if the row is unreadable.
    pub(super) fn stored_policy(&self, record: &PolicyRecord) -> RegistryEntry<PolicyDocument> {
        parse_stored_policy(record).unwrap_or_else(|error| {
            self.metrics.row_unreadable();
            tracing::error!(%error, "the broker cannot read a stored policy and denies all access in the tenant until the policy is repaired");
            closed_policy(record)
        })
    }

    /// Puts the policies of a registry into force, and removes those that are gone.
    pub(super) fn apply_policies(&self, old: &Registry, next: &Registry) {
        // A tenant that is gone keeps its policy for the calls that still run.
        let is_open = |tenant: &&TenantId| {
            next.tenants.contains_key(*tenant) && !next.policies.contains_key(*tenant)
        };
        for tenant in old.policies.keys().filter(is_open) {
            self.broker.set_policy(tenant, None);
        }
        for (tenant, entry) in &next.policies {
            let is_same = old.policies.get(tenant).is_some_and(|before| Arc::ptr_eq(before, entry));
            if is_same {
                continue;
            }
            match Policy::compile(&entry.spec, None) {
                Ok(policy) => {
                    self.warn_of_unused_rules(tenant, &entry.spec, next);
                    self.broker.set_policy(tenant, Some(Arc::new(policy)));
                }
                Err(faults) => {
                    let fault = faults.first().map(fault_text).unwrap_or_default();
                    tracing::error!(%tenant, fault, "the broker cannot use a stored policy and denies all access in the tenant until the policy is repaired");
                    self.broker.set_policy(tenant, Some(Arc::new(Policy::deny_all())));
                }
            }
        }
    }
}

fn parse_stored_policy(record: &PolicyRecord) -> Result<RegistryEntry<PolicyDocument>, LoadError> {
    let spec = serde_json::from_str(&record.document).map_err(|error| LoadError::Settings {
        what: format!("policy of tenant {}", record.tenant),
        detail: error.to_string(),
    })?;
    Ok(RegistryEntry {
        spec,
        origin: EntryOrigin::Stored,
        created_at_us: record.created_at_us,
        updated_at_us: record.updated_at_us,
    })
}

/// Returns the entry that replaces an unreadable policy. It denies everything, because the tenant
/// has rules.
fn closed_policy(record: &PolicyRecord) -> RegistryEntry<PolicyDocument> {
    RegistryEntry {
        spec: PolicyDocument { default: RuleEffect::Deny, ..PolicyDocument::default() },
        origin: EntryOrigin::Stored,
        created_at_us: record.created_at_us,
        updated_at_us: record.updated_at_us,
    }
}

fn policy_text(document: &PolicyDocument) -> String {
    serde_json::to_string(document).expect("a policy has plain values only")
}

fn no_policy(tenant: &TenantId) -> ControlError {
    ControlError::NotFound { what: "policy of tenant", name: tenant.to_string() }
}

pub(super) fn fault_text(fault: &PolicyFault) -> String {
    format!("{} {}", fault.path, fault.problem)
}

pub(super) fn warning(warning: PolicyWarning) -> PolicyWarningView {
    PolicyWarningView { field: warning.path, detail: warning.problem }
}
