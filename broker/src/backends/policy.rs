//! What requests have to keep to before they go to one backend: below its roots, and fitting its tools' schemas.
//!
//! Kept by [`super::backend::Backend`], asked by the session once it is decided where a request goes, and again before a stored
//! subscription is restored. Next to nothing is found out at once; the rest is an [`ArgumentsCheck`], which a validation thread
//! carries out before the request is sent. A tool's schema is compiled when the tool is first called, and again when the
//! backend's lists were fetched again or others needed its room.

use std::{
    collections::{BTreeMap, hash_map::RandomState},
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::{BackendId, TenantId},
    json,
    method::Method,
    uri::{self, Root},
};

use super::{
    resources::BackendResources,
    schema_cache::{CompiledSchema, SchemaSetId},
    validation_pool::ValidationFailure,
};
use crate::{
    config::{AuditLevel, spec::BackendSpec},
    context::Context,
    limits::{
        COMPLETION_DEPTH_MAX,
        arguments::{
            ARGUMENT_BYTES_AT_ONCE_MAX, ARGUMENT_BYTES_MAX, DUPLICATES_BYTES_AT_ONCE_MAX,
            SCHEMA_COMPILE_WAIT, SCHEMAS_UNUSED_TOLD_MAX,
        },
    },
    rules::{
        arguments::{self, ArgumentValidator, SchemaError},
        catalog::{BackendLists, ListKind},
        routing::Named,
    },
};

#[derive(Debug)]
pub struct Policy {
    tenant: TenantId,
    backend: BackendId,
    roots: Vec<Root>,
    validate_arguments: bool,
    validate_timeout: Duration,
    /// The audit log keeps the arguments of calls.
    audits_arguments: bool,
    /// By which members are told apart; nobody outside knows its key.
    hasher: RandomState,
    resources: Arc<BackendResources>,
    tools: Mutex<Tools>,
}

/// The tools as they are listed now.
#[derive(Debug, Default)]
struct Tools {
    lists: Weak<BackendLists>,
    schemas: Option<SchemaSetId>,
    /// Why the schemas of some are not used.
    unused: BTreeMap<String, String>,
}

/// What is still to be found out of a request's arguments.
#[derive(Debug)]
pub struct ArgumentsCheck {
    policy: Arc<Policy>,
    /// The tool whose schema they are held to, as it is listed.
    tool: Option<(String, Arc<BackendLists>)>,
    arguments: Option<Bytes>,
}

impl Policy {
    pub fn of(
        tenant: &TenantId,
        backend: &BackendId,
        spec: &BackendSpec,
        context: &Context,
        resources: &Arc<BackendResources>,
    ) -> Arc<Self> {
        Arc::new(Self {
            tenant: tenant.clone(),
            backend: backend.clone(),
            // What is no root was refused when the backend was registered; from an older build it keeps everybody out.
            roots: spec
                .resources
                .roots
                .iter()
                .map(|root| Root::parse(root).unwrap_or_else(Root::of_nothing))
                .collect(),
            validate_arguments: spec.tools.validate_arguments,
            validate_timeout: spec.tools.validate_timeout(),
            audits_arguments: context.config.audit.calls == AuditLevel::Arguments,
            hasher: RandomState::new(),
            resources: resources.clone(),
            tools: Mutex::default(),
        })
    }

    /// Whether a client may name this resource of the backend.
    pub fn admits_resource(&self, uri: &str) -> Result<(), Refusal> {
        if self.roots.is_empty() || self.roots.iter().any(|root| root.holds(uri)) {
            return Ok(());
        }
        Err(Refusal::new(
            ErrorKind::OutsideRoots,
            format!("backend {} offers resources below its roots only", self.backend),
        ))
    }

    /// What a client has typed so far ends up in the template's place, and lies below the roots there.
    fn admits_completion(&self, message: &Message) -> Result<(), Refusal> {
        let Some(params) = message.bytes(message.params).filter(|_| !self.roots.is_empty()) else {
            return Ok(());
        };
        let unreadable = |_| Refusal::new(ErrorKind::InvalidParams, "params cannot be read");
        let document = json::Document::parse(
            params,
            &json::Limits { bytes_max: params.len(), depth_max: COMPLETION_DEPTH_MAX },
        );
        let document = document.map_err(unreadable)?;
        let leads_out = |_| {
            Refusal::new(
                ErrorKind::PathTraversal,
                "the value of a template's variable does not lead out of its folder",
            )
        };
        // Each of them, as a member may stand there twice.
        for member in document
            .root()
            .members()
            .filter(|member| matches!(&*member.key, "argument" | "context"))
        {
            each_text(&member.value, &|text| uri::check_relative(text)).map_err(leads_out)?;
        }
        Ok(())
    }

    /// Whether the request may go to the backend, as far as that is known at once.
    pub fn admits(
        self: &Arc<Self>,
        names: &Named,
        message: &Message,
        lists: impl FnOnce() -> Option<Arc<BackendLists>>,
    ) -> Result<Option<ArgumentsCheck>, Refusal> {
        if let Named::Resource(uri) = names {
            self.admits_resource(uri)?;
            if message.method == Method::CompletionComplete {
                self.admits_completion(message)?;
            }
        }
        let arguments = || message.fields.arguments.map(|span| span.slice(&message.frame));
        match names.tool().filter(|_| self.validate_arguments) {
            Some(tool) => self.admits_call(&tool.name, arguments(), lists()),
            None if self.audits_arguments => self.check_duplicates(arguments()),
            None => Ok(None),
        }
    }

    fn admits_call(
        self: &Arc<Self>,
        tool: &str,
        arguments: Option<Bytes>,
        lists: Option<Arc<BackendLists>>,
    ) -> Result<Option<ArgumentsCheck>, Refusal> {
        let Some(lists) = lists else {
            let text = format!("the tools of backend {} are not known yet", self.backend);
            return Err(Refusal::new(ErrorKind::BackendUnavailable, text));
        };
        match self.resources.schema_cache.get(self.schema_set(&lists), tool) {
            Some(None) => return self.check_duplicates(arguments),
            Some(Some(checker)) => {
                if let Some(verdict) = self.check_inline(&checker, arguments.as_deref()) {
                    return verdict.map(|()| None);
                }
            }
            None => {}
        }
        Ok(Some(ArgumentsCheck {
            policy: self.clone(),
            tool: Some((tool.to_owned(), lists)),
            arguments,
        }))
    }

    /// `None`: it takes more than is done at once.
    fn check_inline(
        &self,
        checker: &ArgumentValidator,
        arguments: Option<&[u8]>,
    ) -> Option<Result<(), Refusal>> {
        let text = arguments.unwrap_or_default();
        if text.len() > ARGUMENT_BYTES_AT_ONCE_MAX {
            return None;
        }
        match arguments.map_or(Ok(()), |text| arguments::refuse_duplicates(text, &self.hasher)) {
            Ok(()) => checker.check_at_once(arguments),
            Err(refusal) => Some(Err(refusal)),
        }
    }

    /// Arguments that no schema is for: the audit log keeps them.
    fn check_duplicates(
        self: &Arc<Self>,
        arguments: Option<Bytes>,
    ) -> Result<Option<ArgumentsCheck>, Refusal> {
        match arguments.filter(|_| self.audits_arguments) {
            None => Ok(None),
            Some(text) if text.len() <= DUPLICATES_BYTES_AT_ONCE_MAX => {
                arguments::refuse_duplicates(&text, &self.hasher).map(|()| None)
            }
            Some(text) => {
                Ok(Some(ArgumentsCheck { policy: self.clone(), tool: None, arguments: Some(text) }))
            }
        }
    }

    /// Under which the schemas of these lists are kept. Those of earlier lists are forgotten.
    fn schema_set(&self, lists: &Arc<BackendLists>) -> SchemaSetId {
        let mut tools = self.tools.lock();
        match tools.schemas {
            Some(owner) if std::ptr::eq(tools.lists.as_ptr(), Arc::as_ptr(lists)) => owner,
            before => {
                if let Some(before) = before {
                    self.resources.schema_cache.remove_set(before);
                }
                let owner = self.resources.schema_cache.new_set();
                *tools = Tools {
                    lists: Arc::downgrade(lists),
                    schemas: Some(owner),
                    unused: BTreeMap::new(),
                };
                owner
            }
        }
    }

    /// Compiles the schema of a tool, on a validation thread.
    fn compile(&self, tool: &str, lists: &Arc<BackendLists>) -> CompiledSchema {
        let owner = self.schema_set(lists);
        if let Some(known) = self.resources.schema_cache.get(owner, tool) {
            return known; // another call of it was first
        }
        // A tool that is not listed is the backend's to refuse; it must not fill the table either.
        let entry = lists.entries(ListKind::Tools).iter().find(|entry| entry.key == tool)?;
        let compiled =
            entry.input_schema().map(|schema| ArgumentValidator::compile(&schema)).transpose();
        let mut tools = self.tools.lock();
        let is_current = tools.schemas == Some(owner);
        let schema = compiled.unwrap_or_else(|why| {
            tracing::warn!(backend = %self.backend, ?tool, %why, "arguments of this tool are not checked: its schema is not used");
            if is_current {
                tools.note_unused(tool, &why);
            }
            None
        });
        let schema = schema.map(Arc::new);
        if is_current {
            self.resources.schema_cache.insert(owner, &self.tenant, tool, schema.clone());
        }
        schema
    }

    /// Tools whose arguments are not checked though they should be, each with the reason.
    pub fn unused_schemas(&self) -> BTreeMap<String, String> {
        self.tools.lock().unused.clone()
    }
}

impl Tools {
    fn note_unused(&mut self, tool: &str, why: &SchemaError) {
        if self.unused.len() < SCHEMAS_UNUSED_TOLD_MAX {
            self.unused.insert(tool.to_owned(), why.to_string());
        }
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        let owner = self.tools.lock().schemas;
        if let Some(owner) = owner {
            self.resources.schema_cache.remove_set(owner);
        }
    }
}

impl ArgumentsCheck {
    /// Finds it out. Until then, the request has not been sent.
    pub async fn run(self) -> Result<(), Refusal> {
        let Self { policy, tool, arguments } = self;
        let checker = match tool {
            Some((tool, lists)) => policy.compiled(tool, lists).await?,
            None => None,
        };
        match &checker {
            None if !policy.audits_arguments => return Ok(()),
            None => {}
            // Its schema had to be compiled first.
            Some(checker) => {
                if let Some(verdict) = policy.check_inline(checker, arguments.as_deref()) {
                    return verdict;
                }
            }
        }
        let (within, held) = (policy.validate_timeout, policy.clone());
        let work = move |allowance: &arguments::ValidationBudget| {
            let text = arguments.as_deref();
            // What is too large to be held to a schema is refused for that.
            if let Some(text) =
                text.filter(|text| checker.is_none() || text.len() <= ARGUMENT_BYTES_MAX)
            {
                arguments::refuse_duplicates(text, &held.hasher)?;
            }
            checker.map_or(Ok(()), |checker| checker.check(text, allowance))
        };
        policy
            .resources
            .validation_pool
            .run(&policy.tenant, within, work)
            .await
            .unwrap_or_else(|why| Err(validation_refusal(why, within)))
    }
}

impl Policy {
    async fn compiled(
        self: &Arc<Self>,
        tool: String,
        lists: Arc<BackendLists>,
    ) -> Result<CompiledSchema, Refusal> {
        if let Some(known) = self.resources.schema_cache.get(self.schema_set(&lists), &tool) {
            return Ok(known);
        }
        let policy = self.clone();
        let work = move |_: &arguments::ValidationBudget| policy.compile(&tool, &lists);
        let within = SCHEMA_COMPILE_WAIT;
        self.resources
            .validation_pool
            .run(&self.tenant, within, work)
            .await
            .map_err(|why| validation_refusal(why, within))
    }
}

fn validation_refusal(why: ValidationFailure, within: Duration) -> Refusal {
    match why {
        ValidationFailure::TimedOut => arguments::refused_late(within),
        ValidationFailure::QueueFull => Refusal::new(
            ErrorKind::Overloaded,
            "too many arguments wait to be held to the schemas of their tools",
        ),
        ValidationFailure::Failed => Refusal::new(
            ErrorKind::Internal,
            "the arguments could not be held to the tool's inputSchema",
        ),
    }
}

/// Shows every string in a value, as deep as it is.
fn each_text(
    value: &json::Value<'_>,
    check: &impl Fn(&str) -> Result<(), uri::Traversal>,
) -> Result<(), uri::Traversal> {
    if let Some(text) = value.as_str() {
        check(&text)?;
    }
    value.elements().try_for_each(|one| each_text(&one, check))?;
    value.members().try_for_each(|member| each_text(&member.value, check))
}
