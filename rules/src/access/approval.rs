//! Rules with the effect `approve`: their members, and who may decide.
//!
//! The terms of an approval are stored with it, so that a change of the policy changes no decision
//! that is awaited. The person who decides is an operator, never the client.

use std::time::Duration;

use protocol::ids::PrincipalId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{PolicyRule, RuleEffect, compile::Compiler};
use crate::{
    limits::approvals::{APPROVAL_TTL_DEFAULT, APPROVAL_TTL_MAX, APPROVAL_TTL_MIN},
    operators::{Operator, Role},
};

/// Operators who may approve: those with one of the roles, and those in one of the groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Approvers {
    /// Roles of operators.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// Groups of operators who signed in with a token of an issuer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

impl Approvers {
    fn include(&self, operator: &Operator) -> bool {
        self.roles.iter().any(|role| role == operator.role.name())
            || self.groups.iter().any(|group| operator.groups.contains(group))
    }
}

/// What an approval asks for. JSON text in the store. An unknown member may be a restriction of a
/// newer build, so the text is then unreadable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovalTerms {
    /// Id of the rule.
    pub rule: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Approvers>,
    /// The operator's text in the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub four_eyes: bool,
    #[serde(skip, default = "default_ttl")]
    pub ttl: Duration,
}

fn default_ttl() -> Duration {
    APPROVAL_TTL_DEFAULT
}

/// Reason why an operator may not decide about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ApprovalRefused {
    #[error("the rule lets other operators decide; its member `by` names their roles and groups")]
    OtherApprovers,
    #[error("the rule requires a decision of another person than the caller")]
    OwnCall,
}

impl ApprovalTerms {
    pub(super) fn of(rule: &PolicyRule) -> Self {
        Self {
            rule: rule.id.clone(),
            by: rule.by.clone(),
            reason: rule.reason.clone(),
            four_eyes: rule.four_eyes.unwrap_or(true),
            ttl: rule.ttl.as_deref().and_then(parse_ttl).unwrap_or(APPROVAL_TTL_DEFAULT),
        }
    }

    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("terms have plain values only")
    }

    /// Reads stored terms. `None`: a later version wrote them, or they are damaged.
    pub fn decode(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Returns whether an operator may decide about a call of this principal. The role of the
    /// operator permits decisions already.
    pub fn check_operator(
        &self,
        requester: &PrincipalId,
        operator: &Operator,
    ) -> Result<(), ApprovalRefused> {
        if self.by.as_ref().is_some_and(|by| !by.include(operator)) {
            return Err(ApprovalRefused::OtherApprovers);
        }
        if self.four_eyes && operator.is_person(requester.as_str()) {
            return Err(ApprovalRefused::OwnCall);
        }
        Ok(())
    }
}

/// Reads `30s`, `10m` or `2h`.
fn parse_ttl(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        _ => return None,
    };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|_| is_number)?;
    let ttl = Duration::from_secs(number.checked_mul(seconds)?);
    (APPROVAL_TTL_MIN..=APPROVAL_TTL_MAX).contains(&ttl).then_some(ttl)
}

impl Compiler<'_> {
    /// Checks the members of a rule that concern approvals.
    pub(super) fn approval(&mut self, path: &str, rule: &PolicyRule) {
        if rule.effect != RuleEffect::Approve {
            let given = [
                ("by", rule.by.is_some()),
                ("ttl", rule.ttl.is_some()),
                ("four_eyes", rule.four_eyes.is_some()),
            ];
            for (member, _) in given.iter().filter(|(_, is_given)| *is_given) {
                self.fault(
                    format!("{path}.{member}"),
                    "is for rules with the effect approve; leave it out",
                );
            }
            return;
        }
        for (member, is_given) in [
            ("prompts", rule.objects.prompts.is_some()),
            ("resources", rule.objects.resources.is_some()),
        ] {
            if is_given {
                self.fault(
                    format!("{path}.objects.{member}"),
                    "cannot be approved; a rule with the effect approve is for tools",
                );
            }
        }
        if rule.ttl.as_deref().is_some_and(|ttl| parse_ttl(ttl).is_none()) {
            let (min, max) = (APPROVAL_TTL_MIN.as_secs(), APPROVAL_TTL_MAX.as_secs() / 3_600);
            self.fault(
                format!("{path}.ttl"),
                format!(
                    "must be a whole number with one unit, from {min}s to {max}h: 30s, 10m or 2h"
                ),
            );
        }
        let Some(by) = &rule.by else { return };
        if by.roles.is_empty() && by.groups.is_empty() {
            self.fault(
                format!("{path}.by"),
                "names no role and no group, so no operator could approve; leave it out for all",
            );
        }
        for (index, role) in by.roles.iter().enumerate() {
            if !Role::parse(role).is_some_and(Role::decides_approvals) {
                let deciding = Role::ALL.into_iter().filter(|role| role.decides_approvals());
                let allowed: Vec<&str> = deciding.map(Role::name).collect();
                self.fault(
                    format!("{path}.by.roles[{index}]"),
                    format!("must be a role that may decide: {}", allowed.join(", ")),
                );
            }
        }
        if !by.groups.is_empty() {
            self.patterns(&format!("{path}.by.groups"), &by.groups);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::Scope;

    fn terms(by: Option<Approvers>, four_eyes: bool) -> ApprovalTerms {
        let (rule, reason) = ("r".to_owned(), Some("money".to_owned()));
        ApprovalTerms { rule, by, reason, four_eyes, ttl: APPROVAL_TTL_DEFAULT }
    }

    fn operator(name: &str, role: Role, groups: &[&str]) -> Operator {
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        Operator { name: name.to_owned(), role, scope: Scope::Broker, groups }
    }

    #[test]
    fn terms_are_read_back() {
        let by = Approvers { roles: vec!["admin".to_owned()], groups: vec!["cfo".to_owned()] };
        for terms in [terms(None, true), terms(Some(by), false)] {
            assert_eq!(ApprovalTerms::decode(&terms.encode()), Some(terms));
        }
        assert_eq!(ApprovalTerms::decode("{}"), None);
        let later = r#"{"rule":"r","four_eyes":false,"approvals":2}"#;
        assert_eq!(ApprovalTerms::decode(later), None, "a restriction of a later version");
    }

    #[test]
    fn a_role_or_a_group_of_the_rule_decides() {
        let ann = PrincipalId::new("ann");
        let by = Approvers { roles: vec!["admin".to_owned()], groups: vec!["cfo".to_owned()] };
        let terms = terms(Some(by), true);
        let check = |operator: &Operator| terms.check_operator(&ann, operator);
        assert_eq!(check(&operator("x", Role::Admin, &[])), Ok(()));
        assert_eq!(check(&operator("x", Role::Operator, &["it", "cfo"])), Ok(()));
        let other = check(&operator("x", Role::Operator, &["it"]));
        assert_eq!(other, Err(ApprovalRefused::OtherApprovers));
    }

    #[test]
    fn with_four_eyes_the_caller_does_not_decide() {
        let four_eyes = terms(None, true);
        for (name, caller) in [
            ("https://login.example ann", "https://login.example ann"),
            ("ann", "ann"),
            ("ann", "operator ann as group=dev"),
        ] {
            let own = operator(name, Role::Admin, &[]);
            let caller = PrincipalId::new(caller);
            assert_eq!(four_eyes.check_operator(&caller, &own), Err(ApprovalRefused::OwnCall));
            assert_eq!(terms(None, false).check_operator(&caller, &own), Ok(()));
            let other = operator("https://login.example bob", Role::Admin, &[]);
            assert_eq!(four_eyes.check_operator(&caller, &other), Ok(()));
        }
    }

    #[test]
    fn a_ttl_is_a_number_with_one_unit_within_its_range() {
        for (text, seconds) in
            [("1s", 1), ("30s", 30), ("10m", 600), ("2h", 7_200), ("168h", 604_800)]
        {
            assert_eq!(parse_ttl(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for text in [
            "",
            "s",
            "10",
            "0s",
            "169h",
            "1.5h",
            "-1m",
            "+10m",
            "1d",
            "99999999999999999999h",
            "٣m",
            "é",
        ] {
            assert_eq!(parse_ttl(text), None, "{text}");
        }
    }
}
