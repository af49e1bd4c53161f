//! The check of one request against the rights of its caller.

use std::cell::RefCell;

use protocol::{
    error::{ErrorKind, Refusal},
    method::Method,
};

use super::{AccessDecision, AccessView, ApprovalTerms, Object, PolicyRule, Subject, Verdict};
use crate::catalog::{Catalog, Target};

/// Checks the objects of one request, and notes the decisions for log and metrics.
#[derive(Debug)]
pub struct AccessCheck<'a> {
    view: &'a AccessView,
    subject: &'a Subject,
    /// The decision about the object of the request, if it has one.
    recorded: RefCell<Option<RecordedDecision>>,
}

/// A decision as log and metrics show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedDecision {
    pub verdict: Verdict,
    /// Id of the deciding rule. `None`: the default decided.
    pub rule: Option<String>,
    /// The verdict if the rules in shadow mode were enforced, with the rule that would decide.
    pub shadow: Option<(Verdict, Option<String>)>,
    /// `BACKEND/NAME` of the object.
    pub object: String,
}

impl<'a> AccessCheck<'a> {
    pub fn new(view: &'a AccessView, subject: &'a Subject) -> Self {
        Self { view, subject, recorded: RefCell::default() }
    }

    /// Returns an error if the caller may not use an object: `absent` for a hidden one, else the
    /// challenge.
    pub fn check(
        &self,
        method: Method,
        object: &Object<'_>,
        absent: impl FnOnce() -> Refusal,
    ) -> Result<(), Refusal> {
        self.judge_listed(method, object, absent).map(drop)
    }

    /// Checks a call of a tool as [`Self::check`] does. Returns the terms on which a person must
    /// approve the call first, if the policy asks for that.
    pub fn check_call(
        &self,
        object: &Object<'_>,
        absent: impl FnOnce() -> Refusal,
    ) -> Result<Option<ApprovalTerms>, Refusal> {
        let decision = self.judge_listed(Method::ToolsCall, object, absent)?;
        let approval = decision.filter(|decision| decision.verdict == Verdict::Approve);
        Ok(approval.and_then(|decision| decision.rule).map(ApprovalTerms::of))
    }

    /// Checks an object as [`Self::check`] does, but one that no list shows may be used too. A use
    /// that needs an approval passes: the caller of this method holds it, or asks for it.
    pub fn check_unlisted(
        &self,
        method: Method,
        object: &Object<'_>,
        absent: impl FnOnce() -> Refusal,
    ) -> Result<(), Refusal> {
        self.judge(method, object, absent).map(drop)
    }

    fn judge_listed(
        &self,
        method: Method,
        object: &Object<'_>,
        absent: impl FnOnce() -> Refusal,
    ) -> Result<Option<AccessDecision<'_>>, Refusal> {
        // Behind a policy, the broker answers for tools and prompts that no list shows.
        if !self.view.is_listed(object) {
            self.record(&self.view.policy().decide(self.subject, method, object), object);
            return Err(absent());
        }
        self.judge(method, object, absent)
    }

    /// Returns the decision about an object that may be used. `None`: a plain allow.
    fn judge(
        &self,
        method: Method,
        object: &Object<'_>,
        absent: impl FnOnce() -> Refusal,
    ) -> Result<Option<AccessDecision<'_>>, Refusal> {
        let Some(decision) = self.view.decide(self.subject, method, object) else {
            return Ok(None);
        };
        self.record(&decision, object);
        match decision.verdict {
            Verdict::Allow | Verdict::Approve => Ok(Some(decision)),
            Verdict::Deny => Err(absent()),
            Verdict::Challenge => {
                let text = "the credential lacks a scope that this operation needs";
                let mut refusal = Refusal::new(ErrorKind::Forbidden, text)
                    .with("required_scopes", decision.required_scopes.clone());
                if self.view.policy().explains_to_callers()
                    && let Some(rule) = decision.rule
                {
                    refusal = refusal.with("rule", rule.id.clone());
                }
                Err(refusal)
            }
        }
    }

    /// Notes the use of an object that the caller does not see.
    pub fn record_hidden(&self, method: Method, target: &Target) {
        let (backend, name) = (&target.backend, target.name.as_str());
        let object = match method {
            Method::ToolsCall => {
                let traits = self.full_catalog().traits(backend, name).unwrap_or_default();
                Object::Tool { backend, name, traits }
            }
            _ => Object::Prompt { backend, name },
        };
        self.record(&self.view.policy().decide(self.subject, method, &object), &object);
    }

    /// Returns the whole catalog of the tenant.
    pub fn full_catalog(&self) -> &Catalog {
        self.view.full()
    }

    /// Returns the decision that was noted, if any. A plain allow is not noted.
    pub fn into_recorded(self) -> Option<RecordedDecision> {
        self.recorded.into_inner()
    }

    fn record(&self, decision: &AccessDecision<'_>, object: &Object<'_>) {
        if decision.verdict == Verdict::Allow && decision.shadow.is_none() {
            return;
        }
        let id = |rule: &PolicyRule| rule.id.clone();
        *self.recorded.borrow_mut() = Some(RecordedDecision {
            verdict: decision.verdict,
            rule: decision.rule.map(id),
            shadow: decision.shadow.map(|(verdict, rule)| (verdict, rule.map(id))),
            object: format!("{}/{}", object.backend(), object.name()),
        });
    }
}
