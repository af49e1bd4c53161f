//! Toolsets and hosted prompts as operators see them, and the number of tokens that lists take in
//! the context of a model.

use std::sync::Arc;

use protocol::ids::{TenantId, ToolsetId};
use rules::{
    catalog::{Catalog, HostedPromptDocument, ListKind},
    endpoint::Endpoint,
    limits::toolsets::CATALOG_TOKENS_WARNED,
    toolsets::ToolsetDocument,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Author, Control, ControlError, Preconditions, PutOutcome, Tagged, policies::PolicyWarningView,
    registry::RegistryEntry,
};
use crate::broker::catalog_version;

/// A toolset, and what it holds at present.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ToolsetView {
    pub name: String,
    #[serde(flatten)]
    pub toolset: ToolsetDocument,
    /// `api`, or `config` for one of the configuration file.
    pub source: String,
    /// Path of the endpoint; absent if it is not published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// What the endpoint lists for callers whom the access policy denies nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lists: Option<ToolsetLists>,
    /// Included patterns, aliases and overrides that match nothing at present. Only in the answer to
    /// a change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<PolicyWarningView>,
}

/// What a toolset lists.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ToolsetLists {
    pub tools: usize,
    pub prompts: usize,
    pub resources: usize,
    pub resource_templates: usize,
    /// Text that changes with the lists. It is the same on every replica that sees the same lists.
    pub catalog_version: String,
    /// Estimated tokens of all tools, as a model gets them.
    pub tokens: u64,
}

/// A prompt that the broker hosts.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct HostedPromptView {
    pub name: String,
    #[serde(flatten)]
    pub prompt: HostedPromptDocument,
    /// `api`, or `config` for one of the configuration file.
    pub source: String,
}

/// What the tools of an endpoint cost the context of a model.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CatalogCostView {
    /// The toolset; absent: all backends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toolset: Option<String>,
    pub tools: usize,
    pub bytes: u64,
    /// Estimated tokens: a quarter of the bytes.
    pub tokens: u64,
    /// Advice if the tools take a large part of a context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// The tools that cost most, the first ones first.
    pub most: Vec<ToolCostView>,
}

/// What one tool costs.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ToolCostView {
    /// The name that clients see.
    pub name: String,
    /// `BACKEND/NAME`; absent for a tool of the broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    pub bytes: u64,
    pub tokens: u64,
}

impl ToolsetView {
    pub(super) fn new(
        control: &Control,
        tenant: &TenantId,
        name: &str,
        entry: &RegistryEntry<ToolsetDocument>,
    ) -> Self {
        let id = ToolsetId::parse(name).ok().filter(|_| entry.spec.published);
        let lists = id.as_ref().and_then(|id| {
            let catalog = control.broker.toolset_catalog(tenant, id)?;
            let count = |kind| catalog.listed(kind).count();
            Some(ToolsetLists {
                tools: count(ListKind::Tools),
                prompts: count(ListKind::Prompts),
                resources: count(ListKind::Resources),
                resource_templates: count(ListKind::ResourceTemplates),
                catalog_version: catalog_version(&catalog, id),
                tokens: tokens(costs(&catalog).iter().map(|cost| cost.bytes).sum()),
            })
        });
        Self {
            name: name.to_owned(),
            toolset: entry.spec.clone(),
            source: entry.origin.name().to_owned(),
            endpoint: id.map(|id| Endpoint::Toolset(id).path("/mcp")),
            lists,
            warnings: Vec::new(),
        }
    }
}

impl HostedPromptView {
    pub(super) fn new(name: &str, entry: &RegistryEntry<HostedPromptDocument>) -> Self {
        Self {
            name: name.to_owned(),
            prompt: entry.spec.clone(),
            source: entry.origin.name().to_owned(),
        }
    }
}

/// Estimates the tokens of a JSON text without the tables of any model.
fn tokens(bytes: u64) -> u64 {
    bytes.div_ceil(4)
}

/// Returns what each tool that the endpoint lists costs.
fn costs(catalog: &Catalog) -> Vec<ToolCostView> {
    let cost = catalog.listed(ListKind::Tools).map(|(name, entry)| {
        let bytes = entry.len() as u64;
        let target = catalog.listed_tool(name);
        ToolCostView {
            name: name.to_owned(),
            object: target.map(|target| format!("{}/{}", target.backend, target.name)),
            bytes,
            tokens: tokens(bytes),
        }
    });
    cost.collect()
}

impl Control {
    /// Returns what the tools of a tenant, or of a published toolset, cost the context of a model.
    pub fn catalog_cost(
        &self,
        tenant: &TenantId,
        toolset: Option<&ToolsetId>,
        most: usize,
    ) -> Result<CatalogCostView, ControlError> {
        self.check_tenant(tenant)?;
        let catalog = match toolset {
            None => self.broker.full_catalog(tenant),
            Some(id) => self.broker.toolset_catalog(tenant, id),
        };
        let catalog = catalog.ok_or_else(|| ControlError::NotFound {
            what: "published toolset",
            name: toolset.map_or_else(String::new, ToString::to_string),
        })?;
        let mut costs = costs(&catalog);
        costs.sort_by(|one, other| {
            other.bytes.cmp(&one.bytes).then_with(|| one.name.cmp(&other.name))
        });
        let bytes = costs.iter().map(|cost| cost.bytes).sum();
        let (tools, tokens) = (costs.len(), tokens(bytes));
        costs.truncate(most);
        let warning = (tokens > CATALOG_TOKENS_WARNED).then(|| {
            format!("the tools take more than {CATALOG_TOKENS_WARNED} tokens of every context; a toolset with fewer tools or shorter descriptions takes less")
        });
        let toolset = toolset.map(ToString::to_string);
        Ok(CatalogCostView { toolset, tools, bytes, tokens, warning, most: costs })
    }

    pub fn toolsets(&self, tenant: &TenantId) -> Result<Vec<ToolsetView>, ControlError> {
        self.documents::<ToolsetDocument>(tenant)
    }

    pub fn toolset(
        &self,
        tenant: &TenantId,
        id: &ToolsetId,
    ) -> Result<Tagged<ToolsetView>, ControlError> {
        self.document::<ToolsetDocument>(tenant, id.as_str())
    }

    pub async fn put_toolset(
        self: &Arc<Self>,
        tenant: TenantId,
        id: ToolsetId,
        document: ToolsetDocument,
        condition: Preconditions,
        author: Author,
    ) -> Result<PutOutcome<ToolsetView>, ControlError> {
        self.put_document(tenant, id.to_string(), document, condition, author).await
    }

    pub async fn delete_toolset(
        self: &Arc<Self>,
        tenant: TenantId,
        id: ToolsetId,
        condition: Preconditions,
        author: Author,
    ) -> Result<(), ControlError> {
        self.delete_document::<ToolsetDocument>(tenant, id.to_string(), condition, author).await
    }

    pub fn hosted_prompts(&self, tenant: &TenantId) -> Result<Vec<HostedPromptView>, ControlError> {
        self.documents::<HostedPromptDocument>(tenant)
    }

    pub fn hosted_prompt(
        &self,
        tenant: &TenantId,
        name: &str,
    ) -> Result<Tagged<HostedPromptView>, ControlError> {
        self.document::<HostedPromptDocument>(tenant, name)
    }

    pub async fn put_hosted_prompt(
        self: &Arc<Self>,
        tenant: TenantId,
        name: String,
        document: HostedPromptDocument,
        condition: Preconditions,
        author: Author,
    ) -> Result<PutOutcome<HostedPromptView>, ControlError> {
        self.put_document(tenant, name, document, condition, author).await
    }

    pub async fn delete_hosted_prompt(
        self: &Arc<Self>,
        tenant: TenantId,
        name: String,
        condition: Preconditions,
        author: Author,
    ) -> Result<(), ControlError> {
        self.delete_document::<HostedPromptDocument>(tenant, name, condition, author).await
    }
}
