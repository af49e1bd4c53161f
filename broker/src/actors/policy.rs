//! What requests have to keep to before they go to one backend: below its roots, and fitting its tools' schemas.
//!
//! Kept by [`super::backend::Backend`], asked by the session once it is decided where a request goes. A tool's schema is
//! compiled when the tool is first called, and again only when the backend's lists were fetched anew.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use protocol::{
    error::{ErrorKind, Refusal},
    ids::BackendId,
    uri::Root,
};

use super::sync::lock;
use crate::{
    config::spec::BackendSpec,
    rules::{
        arguments::Checker,
        catalog::{BackendLists, ListKind},
        routing::Named,
    },
};

#[derive(Debug)]
pub struct Policy {
    roots: Vec<Root>,
    validate_arguments: bool,
    compiled: Mutex<Compiled>,
}

/// By the tool's own name; `None` for a tool whose schema is not used.
#[derive(Debug, Default)]
struct Compiled {
    /// The lists the schemas are of.
    lists: Option<Arc<BackendLists>>,
    checkers: HashMap<String, Option<Arc<Checker>>>,
}

impl Policy {
    pub fn of(spec: &BackendSpec) -> Self {
        Self {
            // What is no root was refused when the backend was registered; from an older build it keeps everybody out.
            roots: spec.resources.roots.iter().map(|root| Root::parse(root).unwrap_or_else(Root::of_nothing)).collect(),
            validate_arguments: spec.tools.validate_arguments,
            compiled: Mutex::default(),
        }
    }

    /// Whether the request may go to the backend. `arguments` are those of a call, as the client wrote them.
    pub fn admits(
        &self,
        backend: &BackendId,
        names: &Named,
        arguments: Option<&[u8]>,
        lists: impl FnOnce() -> Option<Arc<BackendLists>>,
    ) -> Result<(), Refusal> {
        match names {
            Named::Resource(uri) if !self.roots.is_empty() && !self.roots.iter().any(|root| root.holds(uri)) => {
                Err(Refusal::new(ErrorKind::OutsideRoots, format!("backend {backend} offers resources below its roots only")))
            }
            Named::Tool(tool) if self.validate_arguments => {
                let Some(lists) = lists() else {
                    let text = format!("the tools of backend {backend} are not known yet");
                    return Err(Refusal::new(ErrorKind::BackendUnavailable, text));
                };
                self.checker(backend, &tool.name, &lists).map_or(Ok(()), |checker| checker.check(arguments))
            }
            Named::Tool(_) | Named::Resource(_) | Named::Other => Ok(()),
        }
    }

    fn checker(&self, backend: &BackendId, tool: &str, lists: &Arc<BackendLists>) -> Option<Arc<Checker>> {
        let is_of = |compiled: &Compiled| compiled.lists.as_ref().is_some_and(|known| Arc::ptr_eq(known, lists));
        {
            let mut compiled = lock(&self.compiled);
            if !is_of(&compiled) {
                *compiled = Compiled { lists: Some(lists.clone()), checkers: HashMap::new() };
            }
            if let Some(checker) = compiled.checkers.get(tool) {
                return checker.clone();
            }
        }
        // A tool that is not listed is the backend's to refuse; it must not fill the map either.
        let entry = lists.entries(ListKind::Tools).iter().find(|entry| entry.key == tool)?;
        let checker = match entry.input_schema().map(|schema| Checker::compile(&schema)) {
            Some(Ok(checker)) => Some(Arc::new(checker)),
            Some(Err(why)) => {
                tracing::warn!(%backend, ?tool, %why, "arguments of this tool are not checked: its schema is not used");
                None
            }
            None => None,
        };
        let mut compiled = lock(&self.compiled);
        if is_of(&compiled) {
            compiled.checkers.insert(tool.to_owned(), checker.clone());
        }
        checker
    }
}
