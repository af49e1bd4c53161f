//! Checks the document of a policy, and takes its patterns apart.

use protocol::{
    ids::{BackendId, KeyId},
    method::Method,
};

use super::{
    Policy,
    ceiling::Ceilings,
    document::{
        ObjectSelector, PolicyDocument, PolicyFault, PolicyRule, RuleEffect, RuleMode,
        SubjectSelector,
    },
    object::{NamePattern, ObjectKind, ObjectMatcher},
    selection::unknown_backend,
    subject::Subject,
};
use crate::{
    glob::Glob,
    limits::access::{
        POLICY_PATTERN_BYTES_MAX, POLICY_PATTERNS_MAX, POLICY_RULES_MAX, POLICY_TESTS_MAX,
    },
};

/// A rule with its patterns taken apart.
#[derive(Debug)]
pub(super) struct CompiledRule {
    pub(super) source: PolicyRule,
    pub(super) is_enforced: bool,
    pub(super) subjects: SubjectMatcher,
    pub(super) objects: ObjectMatcher,
}

/// The subjects of a rule.
#[derive(Debug, Default)]
pub(super) struct SubjectMatcher {
    principals: Option<Vec<Glob>>,
    groups: Option<Vec<Glob>>,
    scopes: Option<Vec<Glob>>,
    keys: Option<Vec<Glob>>,
    clients: Option<Vec<Glob>>,
}

impl SubjectMatcher {
    /// Returns whether a subject matches. `None`: it depends on an attribute that is unknown.
    pub(super) fn matches(&self, subject: &Subject) -> Option<bool> {
        let is_one = |globs: &Option<Vec<Glob>>, text: Option<&str>| {
            globs.as_ref().is_none_or(|globs| {
                text.is_some_and(|text| globs.iter().any(|glob| glob.matches(text)))
            })
        };
        if !is_one(&self.principals, Some(subject.principal.as_str()))
            || !is_one(&self.keys, subject.key.as_ref().map(KeyId::as_str))
        {
            return Some(false);
        }
        let mut is_known = true;
        for (globs, attribute) in [
            (&self.groups, &subject.groups),
            (&self.scopes, &subject.scopes),
            (&self.clients, &subject.client),
        ] {
            let Some(globs) = globs else { continue };
            match attribute.has_one_of(|value| globs.iter().any(|glob| glob.matches(value))) {
                Some(true) => {}
                Some(false) => return Some(false),
                None => is_known = false,
            }
        }
        is_known.then_some(true)
    }
}

/// Checks the subjects of a selector, and takes its patterns apart.
pub(super) fn compile_subjects(
    path: &str,
    selector: &SubjectSelector,
) -> Result<SubjectMatcher, Vec<PolicyFault>> {
    let mut compiler = Compiler { backends: None, faults: Vec::new() };
    let subjects = compiler.subjects(path, selector);
    if compiler.faults.is_empty() { Ok(subjects) } else { Err(compiler.faults) }
}

/// Checks a document and takes its patterns apart. All faults are reported at once.
pub(super) fn compile(
    document: &PolicyDocument,
    backends: Option<&[BackendId]>,
) -> Result<Policy, Vec<PolicyFault>> {
    let mut compiler = Compiler { backends, faults: Vec::new() };
    compiler.count("rules", document.rules.len(), POLICY_RULES_MAX);
    compiler.count("tests", document.tests.len(), POLICY_TESTS_MAX);
    let mut rules = Vec::with_capacity(document.rules.len());
    for (index, rule) in document.rules.iter().enumerate() {
        let path = format!("rules[{index}]");
        compiler.rule_id(&path, rule, &document.rules[..index]);
        rules.push(CompiledRule {
            source: rule.clone(),
            is_enforced: rule.mode == RuleMode::Enforce,
            subjects: compiler.subjects(&format!("{path}.subjects"), &rule.subjects),
            objects: compiler.objects(&format!("{path}.objects"), &rule.objects),
        });
        if rule.effect != RuleEffect::Deny && !rule.required_scopes.is_empty() {
            compiler.fault(
                format!("{path}.required_scopes"),
                "is for rules with the effect deny; for another effect write subjects.scopes",
            );
        }
        compiler.approval(&path, rule);
        if !rule.required_scopes.is_empty() {
            compiler.scopes(&format!("{path}.required_scopes"), &rule.required_scopes);
        }
    }
    if document.default == RuleEffect::Approve {
        compiler.fault("default", "must be allow or deny; write a rule with the effect approve");
    }
    let policy = Policy {
        rules: rules.into(),
        ceilings: Ceilings::default(),
        default_deny: document.default == RuleEffect::Deny,
        is_shadow: document.mode == RuleMode::Shadow,
        explains_to_callers: document.explain_to_callers,
    };
    if compiler.faults.is_empty() {
        compiler.faults = policy.run_tests(&document.tests);
    }
    if compiler.faults.is_empty() { Ok(policy) } else { Err(compiler.faults) }
}

pub(super) struct Compiler<'a> {
    backends: Option<&'a [BackendId]>,
    faults: Vec<PolicyFault>,
}

impl Compiler<'_> {
    pub(super) fn fault(&mut self, path: impl Into<String>, problem: impl Into<String>) {
        self.faults.push(PolicyFault {
            path: path.into(),
            problem: problem.into(),
            is_failed_test: false,
        });
    }

    fn count(&mut self, path: &str, count: usize, max: usize) {
        if count > max {
            self.fault(path, format!("has {count} entries, at most {max} are allowed"));
        }
    }

    fn rule_id(&mut self, path: &str, rule: &PolicyRule, before: &[PolicyRule]) {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if rule.id.is_empty() || rule.id.len() > 64 || !rule.id.bytes().all(is_name) {
            self.fault(format!("{path}.id"), "must be 1 to 64 letters, digits, `-`, `_` and `.`");
        } else if before.iter().any(|other| other.id == rule.id) {
            self.fault(format!("{path}.id"), "is the id of an earlier rule; each rule has its own");
        }
    }

    fn subjects(&mut self, path: &str, selector: &SubjectSelector) -> SubjectMatcher {
        let mut globs = |member: &str, values: &Option<Vec<String>>| {
            let path = format!("{path}.{member}");
            values.as_ref().map(|values| self.globs(&path, values))
        };
        SubjectMatcher {
            principals: globs("principals", &selector.principals),
            groups: globs("groups", &selector.groups),
            scopes: globs("scopes", &selector.scopes),
            keys: globs("keys", &selector.keys),
            clients: globs("clients", &selector.clients),
        }
    }

    fn objects(&mut self, path: &str, selector: &ObjectSelector) -> ObjectMatcher {
        let backends = selector.backends.as_ref().map(|names| {
            let path = format!("{path}.backends");
            for (index, name) in names.iter().enumerate() {
                self.known_backend(&format!("{path}[{index}]"), &Glob::new(name));
            }
            self.globs(&path, names)
        });
        let lists = [
            (ObjectKind::Tool, &selector.tools),
            (ObjectKind::Prompt, &selector.prompts),
            (ObjectKind::Resource, &selector.resources),
        ];
        let is_named = lists.iter().any(|(_, list)| list.is_some());
        let mut names = Vec::new();
        for (kind, list) in lists {
            let path = format!("{path}.{}", kind.member());
            let patterns = list.as_deref().unwrap_or_default();
            if list.is_some() {
                self.patterns(&path, patterns);
            }
            for (index, pattern) in patterns.iter().enumerate() {
                names.extend(self.name_pattern(&format!("{path}[{index}]"), kind, pattern));
            }
        }
        if selector.classes.is_some()
            && (selector.prompts.is_some() || selector.resources.is_some())
        {
            self.fault(
                format!("{path}.classes"),
                "is for tools; write the prompts and resources in a rule of their own",
            );
        }
        if selector.classes.as_ref().is_some_and(Vec::is_empty) {
            self.empty(&format!("{path}.classes"));
        }
        ObjectMatcher {
            backends,
            names: is_named.then_some(names),
            methods: selector
                .methods
                .as_ref()
                .map(|methods| self.methods(&format!("{path}.methods"), methods)),
            classes: selector.classes.clone(),
        }
    }

    fn name_pattern(&mut self, path: &str, kind: ObjectKind, text: &str) -> Option<NamePattern> {
        let Some(pattern) = NamePattern::parse(kind, text) else {
            self.fault(path, "must be BACKEND/NAME, by the backend's own name, or `*`");
            return None;
        };
        self.known_backend(path, &pattern.backend);
        Some(pattern)
    }

    fn known_backend(&mut self, path: &str, glob: &Glob) {
        let Some(backends) = self.backends else { return };
        if glob.is_literal() && !backends.iter().any(|id| id.as_str() == glob.prefix()) {
            self.fault(path, unknown_backend(backends));
        }
    }

    fn methods(&mut self, path: &str, names: &[String]) -> Vec<Method> {
        self.patterns(path, names);
        let usable = |method: &Method| ObjectKind::of_method(*method).is_some();
        let mut methods = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let glob = Glob::new(name);
            let found =
                Method::ALL.iter().filter(|method| usable(method) && glob.matches(method.name()));
            let before = methods.len();
            methods.extend(found);
            if methods.len() == before {
                let allowed: Vec<&str> =
                    Method::ALL.iter().filter(|method| usable(method)).map(|m| m.name()).collect();
                self.fault(
                    format!("{path}[{index}]"),
                    format!(
                        "must be one of {}; a list shows what its caller may use",
                        allowed.join(", ")
                    ),
                );
            }
        }
        methods
    }

    fn globs(&mut self, path: &str, values: &[String]) -> Vec<Glob> {
        self.patterns(path, values);
        values.iter().map(|value| Glob::new(value)).collect()
    }

    /// Checks the number and the length of patterns. An empty list would match nothing.
    pub(super) fn patterns(&mut self, path: &str, values: &[String]) {
        self.count(path, values.len(), POLICY_PATTERNS_MAX);
        if values.is_empty() {
            self.empty(path);
        }
        for (index, value) in values.iter().enumerate() {
            if value.is_empty() || value.len() > POLICY_PATTERN_BYTES_MAX {
                self.fault(
                    format!("{path}[{index}]"),
                    format!("must have 1 to {POLICY_PATTERN_BYTES_MAX} bytes"),
                );
            }
        }
    }

    fn empty(&mut self, path: &str) {
        self.fault(path, "is empty, so the rule would match nothing; leave it out to match all");
    }

    /// Checks scopes by RFC 6749, section 3.3: they end up in a `WWW-Authenticate` header.
    fn scopes(&mut self, path: &str, scopes: &[String]) {
        self.patterns(path, scopes);
        let is_scope = |byte: u8| matches!(byte, 0x21 | 0x23..=0x5b | 0x5d..=0x7e);
        for (index, scope) in scopes.iter().enumerate() {
            if !scope.bytes().all(is_scope) {
                self.fault(
                    format!("{path}[{index}]"),
                    "must have visible ASCII characters without space, quote and backslash",
                );
            }
        }
    }
}
