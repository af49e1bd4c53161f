//! Rules for requests to one backend: resources must be below its roots, and arguments must match
//! the schemas of its tools.
//!
//! [`super::backend::Backend`] owns the policy. Sessions check it after routing, and again before a
//! stored subscription is restored. Cheap checks run inline. The rest is an [`ArgumentsCheck`],
//! which a validation thread runs before the request is sent. The schema of a tool is compiled at
//! its first call. It is compiled again after the lists were fetched again or the cache evicted it.
//! The schema is that of the list which the caller sees: definitions of one name can differ.

use std::{
    collections::{BTreeMap, hash_map::RandomState},
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use config::{AuditLevel, spec::BackendSpec};
use parking_lot::Mutex;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::{BackendId, TenantId},
    json,
    method::Method,
    uri::{self, Root},
};
use rules::{
    arguments::{self, ArgumentValidator, SchemaError},
    catalog::{BackendLists, CatalogEntry, DefinitionDigest, ListKind},
    limits::{
        COMPLETION_DEPTH_MAX,
        arguments::{
            ARGUMENT_BYTES_AT_ONCE_MAX, ARGUMENT_BYTES_MAX, DUPLICATES_BYTES_AT_ONCE_MAX,
            SCHEMA_COMPILE_WAIT, UNUSED_SCHEMAS_REPORTED_MAX,
        },
    },
    routing::BackendTarget,
};

use super::{
    resources::BackendResources,
    schema_cache::{CompiledSchema, SchemaSetId},
    validation_pool::ValidationFailure,
};
use crate::context::Context;

#[derive(Debug)]
pub struct Policy {
    tenant: TenantId,
    backend: BackendId,
    roots: Vec<Root>,
    validate_arguments: bool,
    validate_timeout: Duration,
    /// True if the audit log stores the arguments of calls.
    audits_arguments: bool,
    /// Hasher of member names. Its key is secret to this process.
    hasher: RandomState,
    resources: Arc<BackendResources>,
    tools: Mutex<Tools>,
}

/// The lists in which a caller sees the called tool.
#[derive(Debug)]
pub struct SchemaView {
    /// The current lists of all callers of the policy. The schemas of earlier ones are dropped.
    pub current: Arc<BackendLists>,
    /// Those of the caller: they can be of its session alone, or of a toolset.
    pub lists: Arc<BackendLists>,
    /// Digest of the tool in them. `None`: they do not have it.
    pub definition: Option<DefinitionDigest>,
}

/// The tools of the current lists.
#[derive(Debug, Default)]
struct Tools {
    lists: Weak<BackendLists>,
    schemas: Option<SchemaSetId>,
    /// Reasons for which schemas are not used, by tool.
    unused: BTreeMap<String, String>,
}

/// The part of the check that needs a validation thread.
#[derive(Debug)]
pub struct ArgumentsCheck {
    policy: Arc<Policy>,
    /// The tool whose schema applies.
    tool: Option<CheckedTool>,
    arguments: Option<Bytes>,
}

/// A called tool, with the lists that have its schema.
#[derive(Debug)]
struct CheckedTool {
    name: String,
    definition: DefinitionDigest,
    lists: Arc<BackendLists>,
    /// The set that the schema is for.
    schemas: SchemaSetId,
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
            // The registration refuses invalid roots. One that an older build stored permits no
            // resource.
            roots: spec
                .resources
                .roots
                .iter()
                .map(|root| Root::parse(root).unwrap_or_else(Root::empty))
                .collect(),
            validate_arguments: spec.tools.validate_arguments,
            validate_timeout: spec.tools.validate_timeout(),
            audits_arguments: context.config.audit.calls == AuditLevel::Arguments,
            hasher: RandomState::new(),
            resources: resources.clone(),
            tools: Mutex::default(),
        })
    }

    /// Returns a policy that admits every request.
    #[cfg(test)]
    pub(super) fn open() -> Arc<Self> {
        Arc::new(Self {
            tenant: TenantId::parse("acme").expect("a name"),
            backend: BackendId::parse("b").expect("a name"),
            roots: Vec::new(),
            validate_arguments: false,
            validate_timeout: Duration::ZERO,
            audits_arguments: false,
            hasher: RandomState::new(),
            resources: Arc::default(),
            tools: Mutex::default(),
        })
    }

    /// Returns an error if the resource is not below the roots of the backend.
    pub fn admits_resource(&self, uri: &str) -> Result<(), Refusal> {
        if self.roots.is_empty() || self.roots.iter().any(|root| root.contains(uri)) {
            return Ok(());
        }
        Err(Refusal::new(
            ErrorKind::OutsideRoots,
            format!("the resource is outside the roots of backend {}", self.backend),
        ))
    }

    /// Checks the values of a completion, which the backend inserts into a template. They must not
    /// lead out of the roots.
    fn admits_completion(&self, message: &Message) -> Result<(), Refusal> {
        let Some(params) = message.bytes(message.params).filter(|_| !self.roots.is_empty()) else {
            return Ok(());
        };
        let unreadable = |_| {
            Refusal::new(
                ErrorKind::InvalidParams,
                "params is not valid JSON, or is nested too deeply",
            )
        };
        let document = json::Document::parse(
            params,
            &json::Limits { bytes_max: params.len(), depth_max: COMPLETION_DEPTH_MAX },
        );
        let document = document.map_err(unreadable)?;
        let leads_out = |_| {
            Refusal::new(
                ErrorKind::PathTraversal,
                "the value of a template variable must not lead out of its folder",
            )
        };
        // All of them, because a member may occur twice.
        for member in document
            .root()
            .members()
            .filter(|member| matches!(&*member.key, "argument" | "context"))
        {
            each_text(&member.value, &|text| uri::check_relative(text)).map_err(leads_out)?;
        }
        Ok(())
    }

    /// Checks a request inline. Returns the rest of the check, if it needs a validation thread.
    /// `arguments`: those that the backend gets instead of the client's. `view` returns `None` if the
    /// lists of the backend are unknown.
    pub fn admits(
        self: &Arc<Self>,
        target: &BackendTarget,
        message: &Message,
        arguments: Option<Bytes>,
        view: impl FnOnce() -> Option<SchemaView>,
    ) -> Result<Option<ArgumentsCheck>, Refusal> {
        if let BackendTarget::Resource(uri) = target {
            self.admits_resource(uri)?;
            if message.method == Method::CompletionComplete {
                self.admits_completion(message)?;
            }
        }
        let sent = || message.fields.arguments.map(|span| span.slice(&message.frame));
        let arguments = || arguments.or_else(sent);
        match target.tool().filter(|_| self.validate_arguments) {
            Some(tool) => self.admits_call(&tool.name, arguments(), view()),
            None if self.audits_arguments => self.check_duplicates(arguments()),
            None => Ok(None),
        }
    }

    fn admits_call(
        self: &Arc<Self>,
        tool: &str,
        arguments: Option<Bytes>,
        view: Option<SchemaView>,
    ) -> Result<Option<ArgumentsCheck>, Refusal> {
        let Some(SchemaView { current, lists, definition }) = view else {
            let text = format!("the broker has not read the tools of backend {} yet", self.backend);
            return Err(Refusal::new(ErrorKind::BackendUnavailable, text));
        };
        // The backend refuses a tool that is not listed.
        let Some(definition) = definition else { return self.check_duplicates(arguments) };
        let schemas = self.schema_set(&current);
        match self.resources.schema_cache.get(schemas, &definition) {
            Some(None) => return self.check_duplicates(arguments),
            Some(Some(checker)) => {
                if let Some(verdict) = self.check_inline(&checker, arguments.as_deref()) {
                    return verdict.map(|()| None);
                }
            }
            None => {}
        }
        let tool = CheckedTool { name: tool.to_owned(), definition, lists, schemas };
        Ok(Some(ArgumentsCheck { policy: self.clone(), tool: Some(tool), arguments }))
    }

    /// Checks arguments inline. Returns `None` if they need a validation thread.
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
            Ok(()) => checker.try_validate_inline(arguments),
            Err(refusal) => Some(Err(refusal)),
        }
    }

    /// Checks arguments without a schema for duplicate members, if the audit log stores them.
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

    /// Returns the key of the schemas while these lists are current. Drops those of earlier lists.
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
    fn compile(&self, tool: &CheckedTool) -> CompiledSchema {
        let CheckedTool { name, definition, lists, schemas } = tool;
        if let Some(known) = self.resources.schema_cache.get(*schemas, definition) {
            return known; // another call of it was first
        }
        let is_called =
            |entry: &&CatalogEntry| entry.key == *name && entry.definition == *definition;
        let entry = lists.entries(ListKind::Tools).iter().find(is_called)?;
        let compiled =
            entry.input_schema().map(|schema| ArgumentValidator::compile(&schema)).transpose();
        let mut tools = self.tools.lock();
        let is_current = tools.schemas == Some(*schemas);
        let schema = compiled.unwrap_or_else(|why| {
            tracing::warn!(tenant = %self.tenant, backend = %self.backend, tool = ?name, %why, "the broker cannot use the schema of a tool and does not validate its arguments");
            if is_current {
                tools.record_unused(name, &why);
            }
            None
        });
        let schema = schema.map(Arc::new);
        if is_current {
            let cache = &self.resources.schema_cache;
            cache.insert(*schemas, &self.tenant, *definition, schema.clone());
        }
        schema
    }

    /// Returns the tools whose schemas are not used, each with the reason.
    pub fn unused_schemas(&self) -> BTreeMap<String, String> {
        self.tools.lock().unused.clone()
    }
}

impl Tools {
    fn record_unused(&mut self, tool: &str, why: &SchemaError) {
        if self.unused.len() < UNUSED_SCHEMAS_REPORTED_MAX {
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
    /// Runs the check. The request must not be sent before.
    pub async fn run(self) -> Result<(), Refusal> {
        let Self { policy, tool, arguments } = self;
        let checker = match tool {
            Some(tool) => policy.compiled(tool).await?,
            None => None,
        };
        match &checker {
            None if !policy.audits_arguments => return Ok(()),
            None => {}
            // The schema had to be compiled first.
            Some(checker) => {
                if let Some(verdict) = policy.check_inline(checker, arguments.as_deref()) {
                    return verdict;
                }
            }
        }
        let (within, held) = (policy.validate_timeout, policy.clone());
        let work = move |allowance: &arguments::ValidationBudget| {
            let text = arguments.as_deref();
            // Arguments that are too large for a schema are refused for their size.
            if let Some(text) =
                text.filter(|text| checker.is_none() || text.len() <= ARGUMENT_BYTES_MAX)
            {
                arguments::refuse_duplicates(text, &held.hasher)?;
            }
            checker.map_or(Ok(()), |checker| checker.validate(text, allowance))
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
    async fn compiled(self: &Arc<Self>, tool: CheckedTool) -> Result<CompiledSchema, Refusal> {
        if let Some(known) = self.resources.schema_cache.get(tool.schemas, &tool.definition) {
            return Ok(known);
        }
        let policy = self.clone();
        let work = move |_: &arguments::ValidationBudget| policy.compile(&tool);
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
            "too many calls wait for the validation of their arguments",
        ),
        ValidationFailure::Failed => Refusal::new(
            ErrorKind::Internal,
            "the broker could not validate the arguments against the tool's inputSchema",
        ),
    }
}

/// Calls `check` with every string in a value, at any depth.
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
