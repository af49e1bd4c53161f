//! The document of a policy, as operators write it.

use protocol::{
    ids::{BackendId, KeyId, PrincipalId},
    method::Method,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    approval::Approvers,
    object::{Object, ObjectKind},
    subject::{Attribute, Subject},
};
use crate::catalog::{Catalog, ListKind, ToolTraits};

/// Who may do what in a tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyDocument {
    /// Decision about an object that no rule decides.
    #[serde(skip_serializing_if = "is_default")]
    pub default: RuleEffect,
    /// `shadow`: the whole policy only counts and logs its decisions.
    #[serde(skip_serializing_if = "is_default")]
    pub mode: RuleMode,
    /// Name the deciding rule in the error of a challenge.
    #[serde(skip_serializing_if = "is_default")]
    pub explain_to_callers: bool,
    pub rules: Vec<PolicyRule>,
    /// Decisions that must hold. A document whose test fails is refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tests: Vec<PolicyTest>,
}

/// One rule. An enforced deny wins over every allow and approve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRule {
    /// Name of the rule, unique in the policy: letters, digits, `-`, `_` and `.`, at most 64.
    pub id: String,
    pub effect: RuleEffect,
    #[serde(default, skip_serializing_if = "is_default")]
    pub subjects: SubjectSelector,
    #[serde(default, skip_serializing_if = "is_default")]
    pub objects: ObjectSelector,
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: RuleMode,
    /// Scopes that lift a deny. A subject without one of them gets a challenge that names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub required_scopes: Vec<String>,
    /// Text for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who may approve. Absent: every operator with the permission to decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Approvers>,
    /// Time for the decision, and again for the use of it: `30s`, `10m` or `2h`. Absent: `1h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
    /// Whether another person than the caller must approve. Absent: yes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub four_eyes: Option<bool>,
}

/// The effect of a rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RuleEffect {
    #[default]
    Allow,
    Deny,
    /// Permits a call of a tool once a person has approved it.
    Approve,
}

/// Whether a rule takes effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RuleMode {
    #[default]
    Enforce,
    /// The rule only counts and logs the decision that it would make.
    Shadow,
}

/// Subjects of a rule. Every given member must match, by one of its values. An absent member
/// matches every subject.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SubjectSelector {
    /// Principals as sessions show them; `*` stands for any text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principals: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<String>>,
    /// Ids of API keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<Vec<String>>,
    /// OAuth clients, by `azp` or `client_id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<Vec<String>>,
}

/// Objects of a rule. `tools`, `prompts` and `resources` are alternatives; the other members
/// narrow them. An absent member matches every object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ObjectSelector {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backends: Option<Vec<String>>,
    /// `BACKEND/NAME`, by the backend's own names; `*` stands for any text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<Vec<String>>,
    /// `BACKEND/URI`, by the backend's own URIs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub methods: Option<Vec<String>>,
    /// Classes of tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<ToolClass>>,
}

/// Classes of tools by their annotations. A missing hint counts as its worse value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolClass {
    /// `readOnlyHint` is true.
    Read,
    /// `readOnlyHint` is not true.
    Write,
    /// A writing tool whose `destructiveHint` is not false.
    Destructive,
    /// `openWorldHint` is not false.
    OpenWorld,
}

/// A decision that the policy must make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyTest {
    #[serde(rename = "as")]
    pub subject: TestSubject,
    /// A method that uses an object, such as `tools/call`.
    pub method: String,
    /// `BACKEND/NAME` or `BACKEND/URI`.
    pub object: String,
    /// Annotations of the tool that the test is about. Absent: a tool without annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<TestAnnotations>,
    pub expect: Verdict,
}

/// The annotations of a tool that a test makes up. An absent hint counts as its worse value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TestAnnotations {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only_hint: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destructive_hint: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_world_hint: Option<bool>,
}

/// A subject that a test or a check makes up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TestSubject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
}

/// The result of a decision.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Allow,
    /// The object is hidden: it answers like one that does not exist.
    Deny,
    /// The object is listed. Its use is refused with the scopes that it needs.
    Challenge,
    /// The tool is listed. A call waits for the approval of a person.
    Approve,
}

impl Verdict {
    pub const ALL: [Self; 4] = [Self::Allow, Self::Deny, Self::Challenge, Self::Approve];

    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Challenge => "challenge",
            Self::Approve => "approve",
        }
    }
}

/// A member of a document that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyFault {
    /// Path of the member, such as `rules[2].objects.tools[0]`.
    pub path: String,
    /// What is wrong, and what is allowed.
    pub problem: String,
    /// The document is well-formed, but this test of it fails.
    pub is_failed_test: bool,
}

/// A member that has no effect at present, or not the effect that it seems to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyWarning {
    pub path: String,
    pub problem: String,
}

impl PolicyWarning {
    /// Returns the warning about a member that matches no listed object.
    pub fn unused(path: String) -> Self {
        Self { path, problem: "matches nothing that a backend lists at present".to_owned() }
    }
}

impl TestSubject {
    pub fn subject(&self) -> Subject {
        Subject {
            principal: PrincipalId::new(self.principal.as_deref().unwrap_or_default()),
            key: self.key.as_deref().map(KeyId::new),
            groups: Attribute::of(self.groups.iter()),
            scopes: Attribute::of(self.scopes.iter()),
            client: Attribute::of(self.client.iter()),
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// An object as a test or a check names it.
#[derive(Debug)]
pub struct NamedObject {
    pub method: Method,
    pub backend: BackendId,
    pub name: String,
    pub(super) kind: ObjectKind,
}

impl NamedObject {
    /// Returns the object. A tool whose traits are unknown counts as the worst of its classes.
    pub fn object(&self, traits: Option<ToolTraits>) -> Object<'_> {
        let (backend, name) = (&self.backend, self.name.as_str());
        match self.kind {
            ObjectKind::Tool => Object::Tool { backend, name, traits: traits.unwrap_or_default() },
            ObjectKind::Prompt => Object::Prompt { backend, name },
            ObjectKind::Resource => Object::Resource { backend, uri: name },
        }
    }
}

impl NamedObject {
    /// Returns the kind of the object if it is a tool or a prompt that its backend does not list at
    /// present. A resource need not be listed.
    pub fn unlisted(&self, catalog: &Catalog) -> Option<&'static str> {
        let (kind, name) = match self.kind {
            ObjectKind::Tool => (ListKind::Tools, "tool"),
            ObjectKind::Prompt => (ListKind::Prompts, "prompt"),
            ObjectKind::Resource => return None,
        };
        let lists = catalog.backends.get(&self.backend);
        let is_listed =
            lists.is_some_and(|lists| lists.entries(kind).iter().any(|one| one.key == self.name));
        (!is_listed).then_some(name)
    }
}

/// Reads a method and an object. An error: the member that is wrong, and why.
pub fn named_object(method: &str, object: &str) -> Result<NamedObject, (&'static str, String)> {
    let parsed = Method::parse(method);
    let Some(kind) = ObjectKind::of_method(parsed) else {
        let usable = Method::ALL.iter().filter(|method| ObjectKind::of_method(**method).is_some());
        let allowed: Vec<&str> = usable.map(|method| method.name()).collect();
        return Err(("method", format!("must be one of {}", allowed.join(", "))));
    };
    let named = object.split_once('/').filter(|(_, name)| !name.is_empty());
    let backend =
        named.and_then(|(backend, name)| Some((BackendId::parse_or_hosted(backend).ok()?, name)));
    match backend {
        Some((backend, name)) => {
            Ok(NamedObject { method: parsed, backend, name: name.to_owned(), kind })
        }
        None => Err(("object", "must be BACKEND/NAME or BACKEND/URI".to_owned())),
    }
}
