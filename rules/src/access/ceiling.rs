//! Ceilings: what subjects can use at most, whatever the rules of the policy allow.
//!
//! A toolset is the ceiling of everybody at its own endpoint. A toolset that is enforced is the
//! ceiling of the subjects that it is bound to, at every endpoint.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use protocol::ids::BackendId;

use super::{
    Object, PolicyFault, Selection, Subject, SubjectSelector,
    compile::{SubjectMatcher, compile_subjects},
    object::JudgedObject,
};

/// The ceiling of the subjects that one toolset is bound to.
#[derive(Debug)]
pub struct Ceiling {
    subjects: SubjectMatcher,
    selection: Arc<Selection>,
    /// Tools that are used at the toolset's endpoint only, because it fixes arguments of them.
    reserved: HashMap<BackendId, HashSet<String>>,
}

impl Ceiling {
    /// Takes the bound subjects apart. `path` is that of the selector in its document.
    pub fn compile(
        path: &str,
        subjects: &SubjectSelector,
        selection: Arc<Selection>,
        reserved: impl IntoIterator<Item = (BackendId, String)>,
    ) -> Result<Self, Vec<PolicyFault>> {
        let mut by_backend: HashMap<BackendId, HashSet<String>> = HashMap::new();
        for (backend, tool) in reserved {
            by_backend.entry(backend).or_default().insert(tool);
        }
        let subjects = compile_subjects(path, subjects)?;
        Ok(Self { subjects, selection, reserved: by_backend })
    }

    fn has(&self, object: &JudgedObject<'_>) -> bool {
        let is_reserved = match object.object {
            Object::Tool { backend, name, .. } => {
                self.reserved.get(backend).is_some_and(|tools| tools.contains(name))
            }
            _ => false,
        };
        !is_reserved && self.selection.has_judged(object)
    }
}

/// The ceilings in force at one endpoint.
#[derive(Debug, Clone, Default)]
pub(super) struct Ceilings {
    /// What the endpoint has for everybody. `None`: everything.
    pub(super) endpoint: Option<Arc<Selection>>,
    /// Bound ceilings. That of the endpoint's own toolset reserves nothing there.
    pub(super) bound: Arc<[Arc<Ceiling>]>,
    /// Index of the endpoint's own toolset among the bound ones.
    pub(super) own: Option<usize>,
}

/// The ceilings of one subject.
pub(super) struct SubjectCeilings<'c> {
    all: &'c Ceilings,
    /// Indices of the bound ceilings that certainly hold for the subject. `None`: the subject is
    /// bound to none.
    bound: Option<Vec<usize>>,
}

impl Ceilings {
    pub(super) fn is_empty(&self) -> bool {
        self.endpoint.is_none() && self.bound.is_empty()
    }

    /// Returns whether the endpoint has an object.
    pub(super) fn endpoint_has(&self, object: &JudgedObject<'_>) -> bool {
        self.endpoint.as_ref().is_none_or(|selection| selection.has_judged(object))
    }

    /// Returns whether an object is under one of the bound ceilings.
    pub(super) fn bound_has(&self, at: usize, object: &JudgedObject<'_>) -> bool {
        let ceiling = &self.bound[at];
        let is_own = self.own == Some(at);
        if is_own { ceiling.selection.has_judged(object) } else { ceiling.has(object) }
    }

    /// Returns the ceilings of a subject. One whose attributes are unknown counts as bound, and
    /// gets nothing from a toolset that it is only perhaps bound to.
    pub(super) fn of(&self, subject: &Subject) -> SubjectCeilings<'_> {
        let matches = self.bound.iter().map(|ceiling| ceiling.subjects.matches(subject));
        let matches: Vec<Option<bool>> = matches.collect();
        let is_bound = matches.iter().any(|is_one| *is_one != Some(false));
        let certain = || {
            let one = |(at, is_one): (usize, &Option<bool>)| (*is_one == Some(true)).then_some(at);
            matches.iter().enumerate().filter_map(one).collect()
        };
        SubjectCeilings { all: self, bound: is_bound.then(certain) }
    }
}

impl SubjectCeilings<'_> {
    /// Returns whether an object is under the ceilings: the endpoint has it, and one of the
    /// toolsets that the subject is bound to.
    pub(super) fn has(&self, object: &JudgedObject<'_>) -> bool {
        let is_bound = |bound: &[usize]| bound.iter().any(|&at| self.all.bound_has(at, object));
        self.all.endpoint_has(object) && self.bound().is_none_or(is_bound)
    }

    /// Returns the indices of the bound ceilings that certainly hold. `None`: the subject is bound
    /// to none.
    pub(super) fn bound(&self) -> Option<&[usize]> {
        self.bound.as_deref()
    }

    /// Returns whether the subject can use any object of a backend.
    pub(super) fn may_have(&self, backend: &BackendId) -> bool {
        self.all.endpoint.as_ref().is_none_or(|selection| selection.may_have(backend))
            && self.bound.as_ref().is_none_or(|bound| {
                bound.iter().any(|&at| self.all.bound[at].selection.may_have(backend))
            })
    }
}
