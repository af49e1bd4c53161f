//! A set of tools, prompts and resources that an operator picks by patterns: what a toolset holds.

use protocol::ids::BackendId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Object, PolicyFault, PolicyWarning,
    document::ToolClass,
    object::{Coverage, JudgedObject, NamePattern, ObjectKind},
    view,
};
use crate::catalog::Catalog;
use crate::limits::access::{POLICY_PATTERN_BYTES_MAX, POLICY_PATTERNS_MAX};

/// Objects of a toolset. An absent member matches none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CatalogSelector {
    /// `BACKEND/NAME`, by the backend's own names; `*` stands for any text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(example = json!(["files/read_*"]))]
    pub tools: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<String>,
    /// `BACKEND/URI`, by the backend's own URIs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    /// Classes of tools. They narrow `tools`; without `tools`, every tool of a class matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<ToolClass>>,
}

/// What is included, less what is excluded.
#[derive(Debug, Default)]
pub struct Selection {
    included: ObjectPatterns,
    excluded: ObjectPatterns,
}

#[derive(Debug, Default)]
struct ObjectPatterns {
    names: Vec<NamePattern>,
    classes: Option<Vec<ToolClass>>,
    /// Tools are matched by their class alone.
    any_tool: bool,
}

impl Selection {
    /// Takes the patterns apart. `backends` are the names that they may mention; `None`: any name.
    pub fn compile(
        include: &CatalogSelector,
        exclude: &CatalogSelector,
        backends: Option<&[BackendId]>,
    ) -> Result<Self, Vec<PolicyFault>> {
        let mut faults = Vec::new();
        let included = ObjectPatterns::compile("include", include, backends, &mut faults);
        let excluded = ObjectPatterns::compile("exclude", exclude, backends, &mut faults);
        if faults.is_empty() { Ok(Self { included, excluded }) } else { Err(faults) }
    }

    /// Returns whether the selection has an object. Each reading of its name must be included, and
    /// none may be excluded.
    pub fn has(&self, object: &Object<'_>) -> bool {
        self.has_judged(&JudgedObject::new(*object))
    }

    pub(super) fn has_judged(&self, object: &JudgedObject<'_>) -> bool {
        self.included.matches(object, Coverage::EverySpelling)
            && !self.excluded.matches(object, Coverage::AnySpelling)
    }

    /// Returns the patterns of included tools and prompts that match no listed object.
    pub fn unused_patterns(&self, catalog: &Catalog) -> Vec<PolicyWarning> {
        view::unused_patterns(catalog, "include", &self.included.names)
    }

    /// Returns whether the selection can have objects of a backend.
    pub fn may_have(&self, backend: &BackendId) -> bool {
        ObjectKind::ALL.into_iter().any(|kind| {
            self.included.may_have(kind, backend) && !self.excluded.covers_all_of(kind, backend)
        })
    }
}

impl ObjectPatterns {
    fn compile(
        path: &str,
        selector: &CatalogSelector,
        backends: Option<&[BackendId]>,
        faults: &mut Vec<PolicyFault>,
    ) -> Self {
        let lists = [
            (ObjectKind::Tool, &selector.tools),
            (ObjectKind::Prompt, &selector.prompts),
            (ObjectKind::Resource, &selector.resources),
        ];
        let mut names = Vec::new();
        for (kind, patterns) in lists {
            let path = format!("{path}.{}", kind.member());
            if patterns.len() > POLICY_PATTERNS_MAX {
                let count = patterns.len();
                let text =
                    format!("has {count} entries, at most {POLICY_PATTERNS_MAX} are allowed");
                faults.push(fault(path.clone(), text));
            }
            for (index, text) in patterns.iter().enumerate() {
                match pattern(kind, text, backends) {
                    Ok(pattern) => names.push(pattern),
                    Err(problem) => faults.push(fault(format!("{path}[{index}]"), problem)),
                }
            }
        }
        if selector.classes.as_ref().is_some_and(Vec::is_empty) {
            let text = "is empty, so no tool would match; leave it out for tools of any class";
            faults.push(fault(format!("{path}.classes"), text.to_owned()));
        }
        let any_tool = selector.classes.is_some() && selector.tools.is_empty();
        Self { names, classes: selector.classes.clone(), any_tool }
    }

    /// Returns whether the patterns can match an object of a kind that a backend has.
    fn may_have(&self, kind: ObjectKind, backend: &BackendId) -> bool {
        let is_of = |pattern: &NamePattern| {
            pattern.kind == kind && pattern.backend.matches(backend.as_str())
        };
        (kind == ObjectKind::Tool && self.any_tool) || self.names.iter().any(is_of)
    }

    /// Returns whether the patterns match every object of a kind that a backend has.
    fn covers_all_of(&self, kind: ObjectKind, backend: &BackendId) -> bool {
        let is_narrowed = kind == ObjectKind::Tool && self.classes.is_some();
        !is_narrowed && self.names.iter().any(|pattern| pattern.covers_all_of(kind, backend))
    }

    fn matches(&self, object: &JudgedObject<'_>, coverage: Coverage) -> bool {
        if let (Some(classes), Object::Tool { traits, .. }) = (&self.classes, object.object) {
            if !classes.iter().any(|class| class.includes(traits)) {
                return false;
            }
            if self.any_tool {
                return true;
            }
        }
        let backend = object.object.backend().as_str();
        self.names.iter().any(|pattern| pattern.matches(backend, object, coverage))
    }
}

fn fault(path: String, problem: String) -> PolicyFault {
    PolicyFault { path, problem, is_failed_test: false }
}

fn pattern(
    kind: ObjectKind,
    text: &str,
    backends: Option<&[BackendId]>,
) -> Result<NamePattern, String> {
    if text.is_empty() || text.len() > POLICY_PATTERN_BYTES_MAX {
        return Err(format!("must have 1 to {POLICY_PATTERN_BYTES_MAX} bytes"));
    }
    let pattern = NamePattern::parse(kind, text)
        .ok_or("must be BACKEND/NAME, by the backend's own name, or `*`")?;
    match backends.filter(|backends| !pattern.is_of_one(backends)) {
        None => Ok(pattern),
        Some(backends) => Err(unknown_backend(backends)),
    }
}

/// Returns the text of a fault: a pattern names a backend that the tenant does not have.
pub(crate) fn unknown_backend(backends: &[BackendId]) -> String {
    let known: Vec<&str> = backends.iter().map(BackendId::as_str).take(20).collect();
    format!("names an unknown backend; the tenant has: {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::ToolTraits;

    fn selector(text: &str) -> CatalogSelector {
        serde_json::from_str(text).unwrap()
    }

    fn has(include: &str, exclude: &str, object: &Object<'_>) -> bool {
        Selection::compile(&selector(include), &selector(exclude), None).unwrap().has(object)
    }

    #[test]
    fn an_empty_selection_has_nothing() {
        let backend = BackendId::parse("files").unwrap();
        let tool = Object::Tool { backend: &backend, name: "read", traits: ToolTraits::default() };
        assert!(!has("{}", "{}", &tool));
        assert!(has(r#"{"tools":["*"]}"#, "{}", &tool));
        assert!(!has(r#"{"tools":["*"]}"#, r#"{"tools":["files/re*"]}"#, &tool));
        assert!(!has(r#"{"prompts":["*"],"resources":["*"]}"#, "{}", &tool));
    }

    #[test]
    fn classes_filter_tools_or_select_all_tools_of_a_class() {
        let backend = BackendId::parse("files").unwrap();
        let traits = |read_only| ToolTraits { read_only, ..ToolTraits::default() };
        let tool =
            |read_only| Object::Tool { backend: &backend, name: "t", traits: traits(read_only) };
        for include in [r#"{"classes":["read"]}"#, r#"{"classes":["read"],"tools":["files/*"]}"#] {
            assert!(has(include, "{}", &tool(true)) && !has(include, "{}", &tool(false)));
        }
        let all = r#"{"tools":["*"]}"#;
        assert!(!has(all, r#"{"classes":["destructive"]}"#, &tool(false)));
        assert!(has(all, r#"{"classes":["destructive"]}"#, &tool(true)));
        assert!(!has(r#"{"classes":["read"],"tools":["web/*"]}"#, "{}", &tool(true)));
    }

    #[test]
    fn an_excluded_resource_is_excluded_in_every_spelling() {
        let backend = BackendId::parse("files").unwrap();
        let (include, exclude) =
            (r#"{"resources":["files/file:///a/*"]}"#, r#"{"resources":["files/file:///a/s*"]}"#);
        let resource = |uri| Object::Resource { backend: &backend, uri };
        assert!(has(include, exclude, &resource("file:///a/open")));
        for uri in ["file:///a/secret", "file:///a/%73ecret", "file:///b"] {
            assert!(!has(include, exclude, &resource(uri)), "{uri}");
        }
    }

    #[test]
    fn a_selection_that_excludes_a_whole_backend_has_nothing_of_it() {
        let pay = BackendId::parse("pay").unwrap();
        let may_have = |exclude: &str| {
            let include = r#"{"tools":["*"],"prompts":["*"]}"#;
            let (include, exclude) = (selector(include), selector(exclude));
            Selection::compile(&include, &exclude, None).unwrap().may_have(&pay)
        };
        assert!(!may_have(r#"{"tools":["pay/*"],"prompts":["pay/*"]}"#));
        for rest in [
            r#"{"tools":["pay/*"]}"#,
            r#"{"tools":["pay/*"],"prompts":["pay/a*"]}"#,
            r#"{"tools":["pay/*"],"prompts":["files/*"]}"#,
            r#"{"tools":["pay/*"],"prompts":["pay/*"],"classes":["write"]}"#,
        ] {
            assert!(may_have(rest), "{rest}");
        }
    }

    #[test]
    fn every_fault_has_its_path() {
        let include = selector(r#"{"tools":["read","gone/x"],"prompts":[""],"classes":[]}"#);
        let known = [BackendId::parse("files").unwrap()];
        let faults =
            Selection::compile(&include, &CatalogSelector::default(), Some(&known)).unwrap_err();
        let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
        let expected =
            ["include.tools[0]", "include.tools[1]", "include.prompts[0]", "include.classes"];
        assert_eq!(paths, expected);
    }
    #[test]
    fn the_number_and_the_length_of_patterns_are_limited() {
        let faults_of = |tools: Vec<String>| {
            let include = CatalogSelector { tools, ..CatalogSelector::default() };
            let compiled = Selection::compile(&include, &CatalogSelector::default(), None);
            let faults = compiled.err().unwrap_or_default();
            faults.into_iter().map(|fault| fault.path).collect::<Vec<_>>()
        };
        let many = |number| (0..number).map(|at| format!("files/t{at}")).collect();
        assert_eq!(faults_of(many(POLICY_PATTERNS_MAX)), [""; 0]);
        assert_eq!(faults_of(many(POLICY_PATTERNS_MAX + 1)), ["include.tools"]);
        let long = |bytes: usize| vec![format!("files/{}", "t".repeat(bytes - "files/".len()))];
        assert_eq!(faults_of(long(POLICY_PATTERN_BYTES_MAX)), [""; 0]);
        assert_eq!(faults_of(long(POLICY_PATTERN_BYTES_MAX + 1)), ["include.tools[0]"]);
    }
}
