//! Objects that rules name: tools, prompts, resources and resource templates of a backend.

use std::cell::OnceCell;

use protocol::{
    ids::BackendId,
    method::{Method, Route},
};

use super::document::ToolClass;
use crate::{
    catalog::{CatalogEntry, ListKind, ToolTraits},
    glob::Glob,
    resource_uri::{Readings, pattern_forms},
};

/// The kinds of objects that a rule can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    Tool,
    Prompt,
    Resource,
}

impl ObjectKind {
    pub const ALL: [Self; 3] = [Self::Tool, Self::Prompt, Self::Resource];

    /// Returns the kind of object that a method uses. `None` for a method that uses no object.
    pub fn of_method(method: Method) -> Option<Self> {
        match method.info().route {
            Route::ByTool => Some(Self::Tool),
            Route::ByPrompt => Some(Self::Prompt),
            Route::ByUri => Some(Self::Resource),
            _ => None,
        }
    }

    /// Returns the member of `objects` that names objects of the kind.
    pub fn member(self) -> &'static str {
        match self {
            Self::Tool => "tools",
            Self::Prompt => "prompts",
            Self::Resource => "resources",
        }
    }
}

/// An object by its backend and its own name there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Object<'a> {
    Tool { backend: &'a BackendId, name: &'a str, traits: ToolTraits },
    Prompt { backend: &'a BackendId, name: &'a str },
    Resource { backend: &'a BackendId, uri: &'a str },
    Template { backend: &'a BackendId, uri_template: &'a str },
}

impl<'a> Object<'a> {
    /// Returns the object that an entry of a backend's list stands for.
    pub fn listed(backend: &'a BackendId, kind: ListKind, entry: &'a CatalogEntry) -> Self {
        let name = entry.key.as_str();
        match kind {
            ListKind::Tools => Self::Tool { backend, name, traits: entry.traits },
            ListKind::Prompts => Self::Prompt { backend, name },
            ListKind::Resources => Self::Resource { backend, uri: name },
            ListKind::ResourceTemplates => Self::Template { backend, uri_template: name },
        }
    }
}

impl Object<'_> {
    pub fn backend(&self) -> &BackendId {
        match self {
            Self::Tool { backend, .. }
            | Self::Prompt { backend, .. }
            | Self::Resource { backend, .. }
            | Self::Template { backend, .. } => backend,
        }
    }

    /// Returns the name, URI or URI template.
    pub fn name(&self) -> &str {
        match self {
            Self::Tool { name, .. } | Self::Prompt { name, .. } => name,
            Self::Resource { uri, .. } => uri,
            Self::Template { uri_template, .. } => uri_template,
        }
    }

    /// Returns the method whose permission makes the object appear in lists.
    pub fn listing_method(&self) -> Method {
        match self {
            Self::Tool { .. } => Method::ToolsCall,
            Self::Prompt { .. } => Method::PromptsGet,
            Self::Resource { .. } | Self::Template { .. } => Method::ResourcesRead,
        }
    }

    fn kind(&self) -> ObjectKind {
        match self {
            Self::Tool { .. } => ObjectKind::Tool,
            Self::Prompt { .. } => ObjectKind::Prompt,
            Self::Resource { .. } | Self::Template { .. } => ObjectKind::Resource,
        }
    }
}

/// An object that is compared with patterns. The readings of its URI are computed once.
pub(super) struct JudgedObject<'a> {
    pub(super) object: Object<'a>,
    readings: OnceCell<Readings>,
}

impl<'a> JudgedObject<'a> {
    pub(super) fn new(object: Object<'a>) -> Self {
        Self { object, readings: OnceCell::new() }
    }

    fn readings(&self, uri: &str) -> &Readings {
        self.readings.get_or_init(|| Readings::of(uri))
    }
}

/// Which spellings of a name a pattern has to match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coverage {
    /// One suffices: a deny reaches an object under each of its spellings.
    AnySpelling,
    /// All of them: an allow reaches an object only if no reading of its name is outside.
    EverySpelling,
}

impl Coverage {
    pub(super) fn of(denies: bool) -> Self {
        if denies { Self::AnySpelling } else { Self::EverySpelling }
    }
}

/// A pattern `backend/name`.
#[derive(Debug, Clone)]
pub(super) struct NamePattern {
    pub(super) kind: ObjectKind,
    pub(super) backend: Glob,
    pub(super) name: Glob,
    /// Other spellings of the name, for resources.
    forms: Box<[Glob]>,
}

/// The objects of a rule. Absent members match everything.
#[derive(Debug, Clone, Default)]
pub(super) struct ObjectMatcher {
    pub(super) backends: Option<Vec<Glob>>,
    /// Tools, prompts and resources are alternatives.
    pub(super) names: Option<Vec<NamePattern>>,
    pub(super) methods: Option<Vec<Method>>,
    /// Given classes restrict the rule to tools.
    pub(super) classes: Option<Vec<ToolClass>>,
}

impl ObjectMatcher {
    /// Returns whether the rule can cover an object of a backend.
    pub(super) fn may_cover(&self, backend: &BackendId) -> bool {
        let backend = backend.as_str();
        let has = |globs: &[Glob]| globs.iter().any(|glob| glob.matches(backend));
        self.backends.as_deref().is_none_or(has)
            && self
                .names
                .as_ref()
                .is_none_or(|names| names.iter().any(|pattern| pattern.backend.matches(backend)))
    }

    /// Returns whether the rule covers every object of a kind that a backend has.
    pub(super) fn covers_all_of(&self, kind: ObjectKind, backend: &BackendId) -> bool {
        let has_every_name = |names: &Vec<NamePattern>| {
            names.iter().any(|pattern| pattern.covers_all_of(kind, backend))
        };
        self.may_cover(backend)
            && self.methods.is_none()
            && self.classes.is_none()
            && self.names.as_ref().is_none_or(has_every_name)
    }

    pub(super) fn covers(
        &self,
        method: Method,
        object: &JudgedObject<'_>,
        coverage: Coverage,
    ) -> bool {
        if self.methods.as_ref().is_some_and(|methods| !methods.contains(&method)) {
            return false;
        }
        let backend = object.object.backend().as_str();
        if self
            .backends
            .as_ref()
            .is_some_and(|globs| !globs.iter().any(|glob| glob.matches(backend)))
        {
            return false;
        }
        if let Some(classes) = &self.classes {
            let Object::Tool { traits, .. } = object.object else { return false };
            if !classes.iter().any(|class| class.includes(traits)) {
                return false;
            }
        }
        self.names.as_ref().is_none_or(|names| {
            names.iter().any(|pattern| pattern.matches(backend, object, coverage))
        })
    }
}

impl NamePattern {
    /// Takes a pattern apart: `BACKEND/NAME`, or `*` for everything.
    pub(super) fn parse(kind: ObjectKind, text: &str) -> Option<Self> {
        let (backend, name) = match text.split_once('/') {
            Some((backend, name)) if !backend.is_empty() && !name.is_empty() => (backend, name),
            _ if text == "*" => ("*", "*"),
            _ => return None,
        };
        let forms = match kind {
            ObjectKind::Resource => {
                pattern_forms(name).iter().map(|form| Glob::new(form)).collect()
            }
            ObjectKind::Tool | ObjectKind::Prompt => Box::default(),
        };
        Some(Self { kind, backend: Glob::new(backend), name: Glob::new(name), forms })
    }

    /// Returns whether the pattern matches every name of a kind that a backend has.
    pub(super) fn covers_all_of(&self, kind: ObjectKind, backend: &BackendId) -> bool {
        self.kind == kind && self.name.matches_all() && self.backend.matches(backend.as_str())
    }

    /// Returns the pattern as it is written, and its other spellings.
    fn spellings(&self) -> impl Iterator<Item = &Glob> {
        std::iter::once(&self.name).chain(&self.forms)
    }

    /// Returns the spellings that allow no more than the pattern: none has a star that was encoded.
    fn spellings_to_allow(&self) -> impl Iterator<Item = &Glob> {
        self.spellings().filter(|form| form.stars() <= self.name.stars())
    }

    /// Returns whether the pattern may stand for one of these backends, or for any.
    pub(super) fn is_of_one(&self, backends: &[BackendId]) -> bool {
        !self.backend.is_literal() || backends.iter().any(|id| id.as_str() == self.backend.prefix())
    }

    pub(super) fn matches(
        &self,
        backend: &str,
        object: &JudgedObject<'_>,
        coverage: Coverage,
    ) -> bool {
        if self.kind != object.object.kind() || !self.backend.matches(backend) {
            return false;
        }
        match object.object {
            Object::Tool { name, .. } | Object::Prompt { name, .. } => self.name.matches(name),
            // No reading of a URI leaves this pattern.
            Object::Resource { .. } | Object::Template { .. } if self.name.matches_all() => true,
            Object::Resource { uri, .. } => {
                let readings = object.readings(uri);
                match coverage {
                    Coverage::AnySpelling => {
                        readings.is_cut || self.matches_one(readings.with(uri))
                    }
                    // The URI itself has to match the pattern as it is written.
                    Coverage::EverySpelling => {
                        let allows = |one: &String| {
                            self.spellings_to_allow().any(|pattern| pattern.matches(one))
                        };
                        !readings.is_cut
                            && self.name.matches(uri)
                            && readings.usual.iter().all(allows)
                    }
                }
            }
            Object::Template { uri_template, .. } => {
                let readings = object.readings(uri_template);
                match coverage {
                    // A deny hides a template only if it denies all expansions.
                    Coverage::AnySpelling => {
                        readings.is_cut || self.matches_one(readings.with(uri_template))
                    }
                    // An allow shows a template if it allows some.
                    Coverage::EverySpelling => {
                        let shows = |one: &str, pattern: &Glob| {
                            let literal = one.split('{').next().unwrap_or_default();
                            pattern.matches(one) || pattern.prefix().starts_with(literal)
                        };
                        !readings.is_cut
                            && shows(uri_template, &self.name)
                            && readings.usual.iter().all(|one| {
                                self.spellings_to_allow().any(|pattern| shows(one, pattern))
                            })
                    }
                }
            }
        }
    }

    /// Returns whether a spelling of the pattern matches one of these readings.
    fn matches_one<'r>(&self, mut readings: impl Iterator<Item = &'r str>) -> bool {
        readings.any(|one| self.spellings().any(|pattern| pattern.matches(one)))
    }
}

impl ToolClass {
    /// Returns whether a tool is in the class. A missing hint counts as its worse value.
    pub(super) fn includes(self, traits: ToolTraits) -> bool {
        match self {
            Self::Read => traits.read_only,
            Self::Write => !traits.read_only,
            Self::Destructive => !traits.read_only && traits.destructive,
            Self::OpenWorld => traits.open_world,
        }
    }
}

#[cfg(test)]
mod tests {

    use super::{
        super::{
            Verdict,
            tests::{backend, policy, subject, tool},
        },
        *,
    };

    #[test]
    fn a_method_uses_one_kind_of_object_or_none() {
        for (method, kind) in [
            (Method::ToolsCall, Some(ObjectKind::Tool)),
            (Method::PromptsGet, Some(ObjectKind::Prompt)),
            (Method::ResourcesRead, Some(ObjectKind::Resource)),
            (Method::ResourcesSubscribe, Some(ObjectKind::Resource)),
            (Method::ToolsList, None),
            (Method::Ping, None),
        ] {
            assert_eq!(ObjectKind::of_method(method), kind, "{method:?}");
        }
    }

    #[test]
    fn a_rule_with_methods_covers_these_methods_only() {
        let policy = policy(
            r#"{"rules":[{"id":"p","effect":"deny","objects":{"methods":["prompts/get"]}},
                {"id":"r","effect":"deny","objects":{"methods":["resources/subscribe"],"resources":["files/*"]}}]}"#,
        );
        let (files, anyone) = (backend("files"), subject(&[], &[]));
        let prompt = Object::Prompt { backend: &files, name: "p" };
        let resource = Object::Resource { backend: &files, uri: "file:///r" };
        for (method, object, verdict) in [
            (Method::ToolsCall, tool(&files, "t"), Verdict::Allow),
            (Method::PromptsGet, prompt, Verdict::Deny),
            (Method::ResourcesRead, resource, Verdict::Allow),
            (Method::ResourcesSubscribe, resource, Verdict::Deny),
        ] {
            let decision = policy.decide(&anyone, method, &object);
            assert_eq!(decision.verdict, verdict, "{method:?}");
        }
    }

    #[test]
    fn a_rule_with_backends_covers_every_object_of_these_backends_only() {
        let policy = policy(
            r#"{"rules":[{"id":"b","effect":"deny","objects":{"backends":["no*","pay"]}}]}"#,
        );
        let (files, pay, anyone) = (backend("files"), backend("pay"), subject(&[], &[]));
        for (backend, verdict) in [(&files, Verdict::Allow), (&pay, Verdict::Deny)] {
            let prompt = Object::Prompt { backend, name: "p" };
            for object in [tool(backend, "t"), prompt] {
                let decision = policy.decide(&anyone, object.listing_method(), &object);
                assert_eq!(decision.verdict, verdict, "{object:?}");
            }
        }
    }

    #[test]
    fn a_pattern_has_a_backend_and_a_name_unless_it_is_for_everything() {
        let parse = |text: &str| NamePattern::parse(ObjectKind::Tool, text);
        for wrong in ["", "read", "/", "files/", "/read", "**"] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
        let (files, pay) = (backend("files"), backend("pay"));
        let matches = |text: &str, object: Object<'_>| {
            let (pattern, judged) = (parse(text).unwrap(), JudgedObject::new(object));
            pattern.matches(object.backend().as_str(), &judged, Coverage::AnySpelling)
        };
        assert!(matches("*", tool(&pay, "refund")) && matches("files/read", tool(&files, "read")));
        assert!(!matches("files/read", tool(&files, "write")));
        assert!(!matches("files/read", tool(&pay, "read")));
        assert!(!matches("*", Object::Prompt { backend: &files, name: "read" }));
    }

    #[test]
    fn a_backend_is_usable_unless_a_rule_takes_all_of_it_or_none_gives_any() {
        let usable = |text: &str, groups: &[&str]| {
            let (policy, subject) = (policy(text), subject(groups, &[]));
            ["files", "pay"].map(|name| policy.may_use_backend(&subject, &backend(name)))
        };
        let rule = |text: &str| format!(r#"{{"rules":[{{"id":"r",{text}}}]}}"#);
        let pay = r#""effect":"deny","objects":{"backends":["pay"]"#;
        assert_eq!(usable(&rule(&format!("{pay}}}")), &[]), [true, false]);
        let only_guests = format!(r#"{pay}}},"subjects":{{"groups":["guests"]}}"#);
        assert_eq!(usable(&rule(&only_guests), &["guests"]), [true, false]);
        assert_eq!(usable(&rule(&only_guests), &["dev"]), [true, true]);
        let by_kind = r#"{"rules":[
            {"id":"t","effect":"deny","objects":{"tools":["pay/*"],"resources":["pay/*"]}},
            {"id":"p","effect":"deny","objects":{"prompts":["*"],"backends":["pay"]}}]}"#;
        assert_eq!(usable(by_kind, &[]), [true, false]);
        // Each of these leaves something of the backend.
        for rest in [
            r#","tools":["pay/*"]}"#,
            r#","classes":["write"]}"#,
            r#","methods":["tools/call"]}"#,
            r#"},"required_scopes":["x"]"#,
            r#"},"mode":"shadow""#,
        ] {
            assert_eq!(usable(&rule(&format!("{pay}{rest}")), &[]), [true, true], "{rest}");
        }
        let closed = |text: &str| {
            format!(r#"{{"default":"deny","rules":[{{"id":"r","effect":"allow",{text}}}]}}"#)
        };
        assert_eq!(usable(&closed(r#""objects":{"backends":["pay"]}"#), &[]), [false, true]);
        assert_eq!(usable(&closed(r#""objects":{"tools":["files/read"]}"#), &[]), [true, false]);
        let of_both = r#""objects":{"backends":["pay"],"tools":["files/read"]}"#;
        assert_eq!(usable(&closed(of_both), &[]), [false, false]);
        assert_eq!(usable(&closed(r#""mode":"shadow""#), &[]), [false, false]);
        assert_eq!(usable(r#"{"mode":"shadow","default":"deny"}"#, &[]), [true, true]);
        assert_eq!(usable(r#"{"default":"deny"}"#, &[]), [false, false]);
    }
}
