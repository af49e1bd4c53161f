//! Access policy of a tenant: which subject may use which tool, prompt or resource.
//!
//! [`Policy::decide`] is the one decision. Lists and calls use it, so a listed object is callable
//! and the reverse. An enforced deny wins over every allow. A rule in shadow mode changes no
//! decision: it only shows the decision that would follow.
//!
//! Rules name objects by their backend and their own name there, never by the exposed name.

mod approval;
mod ceiling;
mod check;
mod compile;
mod declared_tests;
mod document;
mod object;
mod report;
mod selection;
mod subject;
mod view;

use std::sync::Arc;

use protocol::{ids::BackendId, method::Method};

use self::ceiling::Ceilings;
pub(crate) use self::selection::unknown_backend;
pub use self::{
    approval::{ApprovalRefused, ApprovalTerms, Approvers},
    ceiling::Ceiling,
    check::{AccessCheck, RecordedDecision},
    document::{
        NamedObject, ObjectSelector, PolicyDocument, PolicyFault, PolicyRule, PolicyTest,
        PolicyWarning, RuleEffect, RuleMode, SubjectSelector, TestAnnotations, TestSubject,
        ToolClass, Verdict, named_object,
    },
    object::{Object, ObjectKind},
    report::{DecisionReport, DecisionRow},
    selection::{CatalogSelector, Selection},
    subject::{Attribute, Subject, SubjectAttributes},
    view::{AccessView, PolicyIndex, SubjectVerdicts, ViewKey},
};
use self::{
    compile::CompiledRule,
    object::{Coverage, JudgedObject},
};
use crate::catalog::Catalog;

/// A policy in force.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    rules: Arc<[CompiledRule]>,
    /// What subjects can use at most. It holds in shadow mode too.
    ceilings: Ceilings,
    default_deny: bool,
    /// True if the whole policy only shows its decisions.
    is_shadow: bool,
    explains_to_callers: bool,
}

/// The decision about one use of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessDecision<'p> {
    pub verdict: Verdict,
    /// The rule that decided. `None`: the default did.
    pub rule: Option<&'p PolicyRule>,
    /// Scopes that the subject needs in total. Only for a challenge.
    pub required_scopes: Vec<&'p str>,
    /// The verdict if all rules in shadow mode were enforced, with the rule that would decide.
    /// `None`: the same verdict.
    pub shadow: Option<(Verdict, Option<&'p PolicyRule>)>,
}

/// A rule and why it applied or not, for an explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleTrace<'p> {
    pub rule: &'p PolicyRule,
    pub outcome: RuleOutcome,
}

/// The outcome of one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleOutcome {
    Applied,
    /// The subject has all required scopes, so the deny does not apply.
    ScopesHeld,
    /// The subject is another one.
    OtherSubject,
    /// The object or the method is another one.
    OtherObject,
}

impl RuleOutcome {
    pub fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::ScopesHeld => "scopes_held",
            Self::OtherSubject => "other_subject",
            Self::OtherObject => "other_object",
        }
    }
}

/// The rules that apply, collected over the list.
#[derive(Debug, Default)]
struct Tally<'p> {
    deny: Option<&'p PolicyRule>,
    allow: Option<&'p PolicyRule>,
    challenge: Option<&'p PolicyRule>,
    approve: Option<&'p PolicyRule>,
    required_scopes: Vec<&'p str>,
}

impl Policy {
    /// Compiles a document and runs its tests. `backends` are the names that rules may mention;
    /// `None`: any name.
    pub fn compile(
        document: &PolicyDocument,
        backends: Option<&[BackendId]>,
    ) -> Result<Self, Vec<PolicyFault>> {
        compile::compile(document, backends)
    }

    /// Returns the policy under ceilings. `endpoint`: what the endpoint has for everybody, and the
    /// index of its toolset among the bound ones.
    #[must_use]
    pub fn under(
        &self,
        endpoint: Option<(Arc<Selection>, Option<usize>)>,
        bound: Arc<[Arc<Ceiling>]>,
    ) -> Self {
        let (endpoint, own) = endpoint.unzip();
        Self { ceilings: Ceilings { endpoint, bound, own: own.flatten() }, ..self.clone() }
    }

    /// Returns the policy that denies everything.
    pub fn deny_all() -> Self {
        Self { default_deny: true, ..Self::default() }
    }

    /// Returns the patterns of tools and prompts that match no listed object.
    pub fn unused_patterns(&self, catalog: &Catalog) -> Vec<PolicyWarning> {
        let rules = self.rules.iter().enumerate();
        let unused = rules.flat_map(|(index, rule)| {
            let path = format!("rules[{index}].objects");
            view::unused_patterns(catalog, &path, rule.objects.names.as_deref().unwrap_or_default())
        });
        unused.collect()
    }

    /// Returns whether the whole policy only shows its decisions, and permits everything.
    pub fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// Returns whether a subject may use an object with a method.
    pub fn decide(
        &self,
        subject: &Subject,
        method: Method,
        object: &Object<'_>,
    ) -> AccessDecision<'_> {
        let (mut enforced, mut shadowed) = (Tally::default(), Tally::default());
        let judged = JudgedObject::new(*object);
        for rule in self.rules.iter() {
            let outcome = rule.outcome(subject, method, &judged);
            if outcome != RuleOutcome::Applied {
                continue;
            }
            shadowed.add(rule, subject);
            if rule.is_enforced {
                enforced.add(rule, subject);
            }
        }
        if !self.ceilings.is_empty() && !self.ceilings.of(subject).has(&judged) {
            let (required_scopes, shadow) = (Vec::new(), None);
            return AccessDecision { verdict: Verdict::Deny, rule: None, required_scopes, shadow };
        }
        self.conclude(enforced, shadowed)
    }

    /// Returns every rule with its outcome, in order.
    pub fn explain(
        &self,
        subject: &Subject,
        method: Method,
        object: &Object<'_>,
    ) -> Vec<RuleTrace<'_>> {
        let judged = JudgedObject::new(*object);
        self.rules
            .iter()
            .map(|rule| RuleTrace {
                rule: &rule.source,
                outcome: rule.outcome(subject, method, &judged),
            })
            .collect()
    }

    /// Returns the scopes that rules require, each once, in order.
    pub fn scopes(&self) -> Vec<&str> {
        let mut scopes: Vec<&str> = self
            .rules
            .iter()
            .flat_map(|rule| rule.source.required_scopes.iter().map(String::as_str))
            .collect();
        scopes.sort_unstable();
        scopes.dedup();
        scopes
    }

    /// Returns whether a challenge names the deciding rule.
    pub fn explains_to_callers(&self) -> bool {
        self.explains_to_callers
    }

    /// Returns whether the policy enforces nothing, so that every decision is an allow.
    pub fn allows_all(&self) -> bool {
        self.ceilings.is_empty()
            && (self.is_shadow
                || (!self.default_deny && !self.rules.iter().any(CompiledRule::may_refuse)))
    }

    fn conclude<'p>(&self, enforced: Tally<'p>, shadowed: Tally<'p>) -> AccessDecision<'p> {
        let would = shadowed.verdict(self.default_deny);
        let would_by = shadowed.rule(would);
        let (verdict, rule, required_scopes) = if self.is_shadow {
            (Verdict::Allow, None, Vec::new())
        } else {
            let verdict = enforced.verdict(self.default_deny);
            let scopes =
                if verdict == Verdict::Challenge { &enforced.required_scopes[..] } else { &[] };
            (verdict, enforced.rule(verdict), scopes.to_vec())
        };
        let shadow = (would != verdict).then_some((would, would_by));
        AccessDecision { verdict, rule, required_scopes, shadow }
    }
}

impl<'p> Tally<'p> {
    fn add(&mut self, rule: &'p CompiledRule, subject: &Subject) {
        match rule.source.effect {
            RuleEffect::Allow => _ = self.allow.get_or_insert(&rule.source),
            RuleEffect::Approve => {
                self.approve.get_or_insert(&rule.source);
                if rule.grants(subject) {
                    self.allow.get_or_insert(&rule.source);
                }
            }
            RuleEffect::Deny if rule.source.required_scopes.is_empty() => {
                self.deny.get_or_insert(&rule.source);
            }
            RuleEffect::Deny => {
                debug_assert!(!subject.has_scopes(&rule.source.required_scopes));
                self.challenge.get_or_insert(&rule.source);
                for scope in &rule.source.required_scopes {
                    if !self.required_scopes.contains(&scope.as_str()) {
                        self.required_scopes.push(scope);
                    }
                }
            }
        }
    }

    /// Returns the verdict. A challenge is for a subject that would be allowed with the scopes.
    fn verdict(&self, default_deny: bool) -> Verdict {
        if self.deny.is_some() || (default_deny && self.allow.is_none()) {
            Verdict::Deny
        } else if self.challenge.is_some() {
            Verdict::Challenge
        } else if self.approve.is_some() {
            Verdict::Approve
        } else {
            Verdict::Allow
        }
    }

    fn rule(&self, verdict: Verdict) -> Option<&'p PolicyRule> {
        match verdict {
            Verdict::Deny => self.deny,
            Verdict::Challenge => self.challenge,
            Verdict::Approve => self.approve,
            Verdict::Allow => self.allow,
        }
    }
}

impl CompiledRule {
    /// Returns whether the rule can refuse a use, once it is enforced.
    fn may_refuse(&self) -> bool {
        self.is_enforced && self.source.effect != RuleEffect::Allow
    }

    /// Returns whether the rule permits the use by a subject, of whom it asks for an approval. A
    /// subject with an unknown attribute needs the approval, but gets no permission by the rule.
    fn grants(&self, subject: &Subject) -> bool {
        self.source.effect == RuleEffect::Allow || self.subjects.matches(subject) == Some(true)
    }

    /// Returns whether the rule takes something away, so that doubt must not let a use pass.
    fn restricts(&self) -> bool {
        self.source.effect != RuleEffect::Allow
    }

    fn outcome(&self, subject: &Subject, method: Method, object: &JudgedObject<'_>) -> RuleOutcome {
        if !self.covers(method, object) {
            return RuleOutcome::OtherObject;
        }
        self.outcome_for(subject)
    }

    /// Returns whether the rule covers a use of an object. Approvals are for calls of tools.
    fn covers(&self, method: Method, object: &JudgedObject<'_>) -> bool {
        let is_meant = self.source.effect != RuleEffect::Approve
            || (method == Method::ToolsCall && matches!(object.object, Object::Tool { .. }));
        is_meant && self.objects.covers(method, object, Coverage::of(self.restricts()))
    }

    /// Returns the outcome for an object that the rule covers.
    fn outcome_for(&self, subject: &Subject) -> RuleOutcome {
        let denies = self.source.effect == RuleEffect::Deny;
        if !self.subjects.matches(subject).unwrap_or(self.restricts()) {
            return RuleOutcome::OtherSubject;
        }
        let scopes = &self.source.required_scopes;
        if denies && !scopes.is_empty() && subject.has_scopes(scopes) {
            return RuleOutcome::ScopesHeld;
        }
        RuleOutcome::Applied
    }
}

#[cfg(test)]
mod tests;
