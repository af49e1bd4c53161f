//! What requests have to keep to before they go to one backend: below its roots, and fitting its tools' schemas.
//!
//! Kept by [`super::backend::Backend`], asked by the session once it is decided where a request goes, and again before a stored
//! subscription is made anew. A tool's schema is
//! compiled when the tool is first called, and again only when the backend's lists were fetched anew.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::BackendId,
    json,
    method::Method,
    uri::{self, Root},
};

use super::sync::lock;
use crate::{
    config::spec::BackendSpec,
    limits::COMPLETION_DEPTH_MAX,
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

    /// Whether the request may go to the backend.
    pub fn admits(
        &self,
        backend: &BackendId,
        names: &Named,
        message: &Message,
        lists: impl FnOnce() -> Option<Arc<BackendLists>>,
    ) -> Result<(), Refusal> {
        match names {
            Named::Resource(uri) => {
                self.admits_resource(backend, uri)?;
                if message.method == Method::CompletionComplete { self.admits_completion(message) } else { Ok(()) }
            }
            Named::Tool(tool) if self.validate_arguments => {
                let Some(lists) = lists() else {
                    let text = format!("the tools of backend {backend} are not known yet");
                    return Err(Refusal::new(ErrorKind::BackendUnavailable, text));
                };
                let arguments = message.fields.arguments.map(|span| span.of(&message.frame));
                self.checker(backend, &tool.name, &lists).map_or(Ok(()), |checker| checker.check(arguments))
            }
            Named::Tool(_) | Named::Other => Ok(()),
        }
    }

    /// Whether a client may name this resource of the backend.
    pub fn admits_resource(&self, backend: &BackendId, uri: &str) -> Result<(), Refusal> {
        if self.roots.is_empty() || self.roots.iter().any(|root| root.holds(uri)) {
            return Ok(());
        }
        Err(Refusal::new(ErrorKind::OutsideRoots, format!("backend {backend} offers resources below its roots only")))
    }

    /// What a client has typed so far ends up in the template's place, and lies below the roots there.
    fn admits_completion(&self, message: &Message) -> Result<(), Refusal> {
        let Some(params) = message.bytes(message.params).filter(|_| !self.roots.is_empty()) else { return Ok(()) };
        let unreadable = |_| Refusal::new(ErrorKind::InvalidParams, "params cannot be read");
        let document = json::Document::parse(params, &json::Limits { bytes_max: params.len(), depth_max: COMPLETION_DEPTH_MAX });
        let document = document.map_err(unreadable)?;
        let leads_out = |_| Refusal::new(ErrorKind::PathTraversal, "the value of a template's variable does not lead out of its folder");
        // Each of them, as a member may stand there twice.
        for member in document.root().members().filter(|member| matches!(&*member.key, "argument" | "context")) {
            each_text(&member.value, &|text| uri::check_relative(text)).map_err(leads_out)?;
        }
        Ok(())
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

/// Shows every string in a value, as deep as it is.
fn each_text(value: &json::Value<'_>, check: &impl Fn(&str) -> Result<(), uri::Traversal>) -> Result<(), uri::Traversal> {
    if let Some(text) = value.as_str() {
        check(&text)?;
    }
    value.elements().try_for_each(|one| each_text(&one, check))?;
    value.members().try_for_each(|member| each_text(&member.value, check))
}
