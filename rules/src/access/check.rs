//! The check of one request against the rights of its caller.

use std::cell::{Cell, RefCell};

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
    /// Set when the policy decided about an object.
    has_decided: Cell<bool>,
    /// The decision about the object of the request, unless it is a plain allow.
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
        Self { view, subject, has_decided: Cell::default(), recorded: RefCell::default() }
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
        self.has_decided.set(true);
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

    /// Returns whether the policy decided about an object. A request for an unknown name has no
    /// object.
    pub fn has_decided(&self) -> bool {
        self.has_decided.get()
    }

    /// Returns the decision that was noted, if any. A plain allow is not noted.
    pub fn into_recorded(self) -> Option<RecordedDecision> {
        self.recorded.into_inner()
    }

    fn record(&self, decision: &AccessDecision<'_>, object: &Object<'_>) {
        self.has_decided.set(true);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{
        super::{
            PolicyIndex,
            tests::{backend, catalog, policy, subject, tool},
        },
        *,
    };

    /// A policy over the tools `read`, `write` and `wipe` of `files`, and one subject.
    struct Rig {
        view: AccessView,
        subject: Subject,
    }

    impl Rig {
        fn new(policy: &str) -> Self {
            let tools = ["read", "write", "wipe"].map(|name| (name.to_owned(), name == "read"));
            let index = PolicyIndex::new(Arc::new(self::policy(policy)), catalog(&tools));
            let subject = subject(&["dev"], &[]);
            let view = index.view(&index.verdicts(&subject).1);
            Self { view, subject }
        }

        /// Checks the call of a tool; returns the outcome and the noted decision.
        fn call(
            &self,
            name: &str,
        ) -> (Result<Option<ApprovalTerms>, Refusal>, Option<RecordedDecision>) {
            let (check, files) = (AccessCheck::new(&self.view, &self.subject), backend("files"));
            let outcome = check.check_call(&tool(&files, name), absent);
            (outcome, check.into_recorded())
        }
    }

    fn absent() -> Refusal {
        Refusal::new(ErrorKind::ToolNotFound, "unknown name")
    }

    fn recorded(verdict: Verdict, rule: Option<&str>, object: &str) -> Option<RecordedDecision> {
        let (rule, object) = (rule.map(str::to_owned), object.to_owned());
        Some(RecordedDecision { verdict, rule, shadow: None, object })
    }

    const WRITES: &str = r#""objects":{"tools":["files/write"]}"#;

    #[test]
    fn a_denied_object_is_absent_and_the_rule_is_noted() {
        let rig =
            Rig::new(&format!(r#"{{"rules":[{{"id":"no-writes","effect":"deny",{WRITES}}}]}}"#));
        let (outcome, noted) = rig.call("write");
        assert_eq!(outcome.unwrap_err().kind, ErrorKind::ToolNotFound);
        assert_eq!(noted, recorded(Verdict::Deny, Some("no-writes"), "files/write"));
        let (outcome, noted) = rig.call("read");
        assert!(outcome.unwrap().is_none() && noted.is_none(), "a plain allow is not noted");
    }

    #[test]
    fn an_object_that_no_list_shows_is_absent_unless_the_check_permits_it() {
        let rig =
            Rig::new(r#"{"rules":[{"id":"x","effect":"deny","objects":{"tools":["pay/*"]}}]}"#);
        let (outcome, noted) = rig.call("hidden");
        assert_eq!(outcome.unwrap_err().kind, ErrorKind::ToolNotFound);
        assert!(noted.is_none(), "the policy itself allows it");
        let (files, pay) = (backend("files"), backend("pay"));
        let check = AccessCheck::new(&rig.view, &rig.subject);
        let unlisted =
            |object: &Object<'_>| check.check_unlisted(Method::ToolsCall, object, absent);
        assert!(!check.has_decided(), "nothing was asked so far");
        assert!(unlisted(&tool(&files, "hidden")).is_ok() && check.has_decided());
        assert_eq!(unlisted(&tool(&pay, "refund")).unwrap_err().kind, ErrorKind::ToolNotFound);
        assert_eq!(check.into_recorded(), recorded(Verdict::Deny, Some("x"), "pay/refund"));
    }

    #[test]
    fn a_challenge_names_its_rule_only_if_the_policy_explains_to_callers() {
        for explains in [false, true] {
            let rig = Rig::new(&format!(
                r#"{{"explain_to_callers":{explains},"rules":[{{"id":"w","effect":"deny","required_scopes":["files:write"],{WRITES}}}]}}"#
            ));
            let refusal = rig.call("write").0.unwrap_err();
            assert_eq!(refusal.kind, ErrorKind::Forbidden);
            let mut data = vec![("required_scopes", vec!["files:write"].into())];
            data.extend(explains.then(|| ("rule", "w".into())));
            assert_eq!(refusal.data, data);
        }
    }

    #[test]
    fn only_a_call_that_needs_an_approval_has_its_terms() {
        let rig = Rig::new(&format!(
            r#"{{"rules":[{{"id":"ask","effect":"approve",{WRITES}}},{{"id":"s","effect":"deny","mode":"shadow","objects":{{"tools":["files/wipe"]}}}}]}}"#
        ));
        let (outcome, noted) = rig.call("write");
        assert_eq!(outcome.unwrap().unwrap().rule, "ask");
        assert_eq!(noted, recorded(Verdict::Approve, Some("ask"), "files/write"));
        let (outcome, noted) = rig.call("wipe");
        assert!(outcome.unwrap().is_none());
        let shadow = Some((Verdict::Deny, Some("s".to_owned())));
        let allowed = recorded(Verdict::Allow, None, "files/wipe").unwrap();
        assert_eq!(noted, Some(RecordedDecision { shadow, ..allowed }));
    }

    #[test]
    fn the_use_of_a_hidden_object_is_noted_with_its_kind_and_annotations() {
        let rig = Rig::new(
            r#"{"rules":[{"id":"w","effect":"deny","objects":{"classes":["write"]}},
                {"id":"p","effect":"deny","objects":{"prompts":["files/*"]}}]}"#,
        );
        let noted = |method, name: &str| {
            let check = AccessCheck::new(&rig.view, &rig.subject);
            let (backend, name) = (backend("files"), name.to_owned());
            let target = Target { backend, name, fixed: None, result_tokens: None };
            check.record_hidden(method, &target);
            check.into_recorded()
        };
        assert_eq!(noted(Method::ToolsCall, "read"), None, "its annotation permits it");
        let denied = |rule, object| recorded(Verdict::Deny, Some(rule), object);
        assert_eq!(noted(Method::ToolsCall, "write"), denied("w", "files/write"));
        assert_eq!(noted(Method::PromptsGet, "read"), denied("p", "files/read"));
    }
}
