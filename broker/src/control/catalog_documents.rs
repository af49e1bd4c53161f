//! Operations on the documents of a tenant's catalog: toolsets, and prompts that the broker hosts.
//!
//! Both are kept alike: a name and a document, stored as one row or declared in the configuration
//! file. Declared ones can only be changed there.

use std::{collections::BTreeMap, sync::Arc};

use protocol::ids::{BackendId, TenantId, ToolsetId};
use records::{AdminChange, CatalogDocumentKind, CatalogDocumentRecord};
use rules::{
    access::{PolicyFault, SubjectSelector},
    catalog::{HostedPrompt, HostedPromptDocument, HostedPrompts, PromptFault},
    limits::toolsets::{HOSTED_PROMPTS_PER_TENANT_MAX, TOOLSETS_PER_TENANT_MAX},
    toolsets::{Toolset, ToolsetDocument, Toolsets},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    Author, Control, ControlError, LoadError, Preconditions, PutOutcome, Tagged,
    catalog_views::{HostedPromptView, ToolsetView},
    policies::warning,
    registry::{CatalogDocuments, EntryOrigin, Registry, RegistryEntry, of_owner},
    validation::{now_us, refuse_declared, refuse_more},
};

/// A kind of document in a catalog.
pub(super) trait CatalogDocument:
    Clone + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    type View: Send + 'static;

    const KIND: CatalogDocumentKind;
    const NAME: &'static str;
    const PLURAL: &'static str;
    const MAX: usize;

    fn documents(registry: &Registry) -> &CatalogDocuments<Self>;
    fn documents_mut(registry: &mut Registry) -> &mut CatalogDocuments<Self>;

    /// Checks the document before it is stored.
    fn check(&self, control: &Control, tenant: &TenantId, name: &str) -> Result<(), ControlError>;

    /// Adds the members without an effect at present to the answer to a change.
    fn warn(&self, _: &Control, _: &TenantId, _: &str, _: &mut Self::View) {}

    /// Returns the document that replaces one that cannot be read. `None`: it is left out.
    fn closed(text: &str) -> Option<Self>;

    fn view(
        control: &Control,
        tenant: &TenantId,
        name: &str,
        entry: &RegistryEntry<Self>,
    ) -> Self::View;
}

/// Writes the members of a [`CatalogDocument`] that differ by names alone.
macro_rules! kept_as {
    ($kind:ident, $name:literal, $documents:ident, at most $max:ident) => {
        const KIND: CatalogDocumentKind = CatalogDocumentKind::$kind;
        const NAME: &'static str = $name;
        const PLURAL: &'static str = concat!($name, "s of this tenant");
        const MAX: usize = $max;

        fn documents(registry: &Registry) -> &CatalogDocuments<Self> {
            &registry.$documents
        }

        fn documents_mut(registry: &mut Registry) -> &mut CatalogDocuments<Self> {
            &mut registry.$documents
        }
    };
}

impl CatalogDocument for ToolsetDocument {
    type View = ToolsetView;

    kept_as!(Toolset, "toolset", toolsets, at most TOOLSETS_PER_TENANT_MAX);

    fn check(&self, control: &Control, tenant: &TenantId, name: &str) -> Result<(), ControlError> {
        let backends = control.registry.load().selectable_backends(tenant);
        let toolset = compiled(name, self, Some(&backends)).map_err(ControlError::Toolset)?;
        let full = self.published.then(|| control.broker.full_catalog(tenant)).flatten();
        let ambiguities = full.map_or_else(Vec::new, |full| toolset.ambiguities(&full));
        if ambiguities.is_empty() { Ok(()) } else { Err(ControlError::Toolset(ambiguities)) }
    }

    fn warn(&self, control: &Control, tenant: &TenantId, name: &str, view: &mut ToolsetView) {
        let full = control.broker.full_catalog(tenant);
        if let (Ok(toolset), Some(full)) = (compiled(name, self, None), full) {
            view.warnings = toolset.unused_members(&full).into_iter().map(warning).collect();
        }
    }

    /// An enforced toolset that cannot be read lets its callers use nothing. Who they are cannot be
    /// read either, so it is everybody.
    fn closed(text: &str) -> Option<Self> {
        let everybody = SubjectSelector {
            principals: Some(vec!["*".to_owned()]),
            ..SubjectSelector::default()
        };
        text.contains("\"enforce\":true").then(|| Self {
            enforce: true,
            bind: Some(everybody),
            ..Self::default()
        })
    }

    fn view(
        control: &Control,
        tenant: &TenantId,
        name: &str,
        entry: &RegistryEntry<Self>,
    ) -> ToolsetView {
        ToolsetView::new(control, tenant, name, entry)
    }
}

impl CatalogDocument for HostedPromptDocument {
    type View = HostedPromptView;

    kept_as!(Prompt, "prompt", prompts, at most HOSTED_PROMPTS_PER_TENANT_MAX);

    fn check(&self, _: &Control, _: &TenantId, _: &str) -> Result<(), ControlError> {
        let fault =
            |(path, problem): PromptFault| PolicyFault { path, problem, is_failed_test: false };
        HostedPrompt::compile(self)
            .map(drop)
            .map_err(|faults| ControlError::Toolset(faults.into_iter().map(fault).collect()))
    }

    fn closed(_: &str) -> Option<Self> {
        None
    }

    fn view(
        _: &Control,
        _: &TenantId,
        name: &str,
        entry: &RegistryEntry<Self>,
    ) -> HostedPromptView {
        HostedPromptView::new(name, entry)
    }
}

pub(super) fn compiled(
    name: &str,
    document: &ToolsetDocument,
    backends: Option<&[BackendId]>,
) -> Result<Toolset, Vec<PolicyFault>> {
    let fault = |problem: String| PolicyFault {
        path: "toolset".to_owned(),
        problem,
        is_failed_test: false,
    };
    let id = ToolsetId::parse(name).map_err(|error| vec![fault(error.to_string())])?;
    Toolset::compile(id, document, backends)
}

impl Control {
    pub(super) fn documents<D: CatalogDocument>(
        &self,
        tenant: &TenantId,
    ) -> Result<Vec<D::View>, ControlError> {
        self.check_tenant(tenant)?;
        let registry = self.registry.load();
        let of_tenant = of_owner(D::documents(&registry), tenant, String::new());
        Ok(of_tenant.map(|(name, entry)| D::view(self, tenant, name, entry)).collect())
    }

    pub(super) fn document<D: CatalogDocument>(
        &self,
        tenant: &TenantId,
        name: &str,
    ) -> Result<Tagged<D::View>, ControlError> {
        self.check_tenant(tenant)?;
        let registry = self.registry.load();
        let key = (tenant.clone(), name.to_owned());
        let entry = D::documents(&registry).get(&key).ok_or_else(|| missing::<D>(name))?;
        Ok(self.tagged::<D>(tenant, name, entry))
    }

    fn tagged<D: CatalogDocument>(
        &self,
        tenant: &TenantId,
        name: &str,
        entry: &RegistryEntry<D>,
    ) -> Tagged<D::View> {
        Tagged { view: D::view(self, tenant, name, entry), tag: self.tag(entry) }
    }

    pub(super) async fn put_document<D: CatalogDocument>(
        self: &Arc<Self>,
        tenant: TenantId,
        name: String,
        document: D,
        condition: Preconditions,
        author: Author,
    ) -> Result<PutOutcome<D::View>, ControlError> {
        self.change(
            (tenant, name, document, condition, author),
            |attempt, (tenant, name, document, condition, author)| async move {
                attempt.check_tenant(&tenant)?;
                let registry = attempt.registry.load_full();
                let key = (tenant.clone(), name.clone());
                let old = D::documents(&registry).get(&key);
                refuse_declared(old.map(|entry| entry.origin), D::NAME, &name)?;
                condition.holds(D::NAME, old.map(|entry| attempt.tag(entry)).as_deref())?;
                let count = of_owner(D::documents(&registry), &tenant, String::new()).count();
                refuse_more(old.is_none(), count, D::PLURAL, D::MAX)?;
                document.check(&attempt, &tenant, &name)?;
                let entry =
                    RegistryEntry::stored(document, old.map(|entry| entry.created_at_us), now_us());
                let record = CatalogDocumentRecord {
                    tenant: tenant.clone(),
                    kind: D::KIND,
                    name: name.clone(),
                    document: text(&entry.spec),
                    created_at_us: entry.created_at_us,
                    updated_at_us: entry.updated_at_us,
                };
                let before = old.map(|entry| text(&entry.spec));
                author.record_values(before.as_deref(), Some(&record.document));
                attempt.commit(AdminChange::PutCatalogDocument(&record), &author).await?;
                attempt.edit(|registry| {
                    D::documents_mut(registry).insert(key.clone(), Arc::clone(&entry));
                });
                attempt.apply_catalog_of(&tenant, &attempt.registry.load());
                let created = old.is_none();
                tracing::info!(%tenant, name, created, kind = D::NAME, "catalog document stored");
                let mut stored = attempt.tagged::<D>(&tenant, &name, &entry);
                entry.spec.warn(&attempt, &tenant, &name, &mut stored.view);
                Ok(PutOutcome { entry: stored, created })
            },
        )
        .await
    }

    pub(super) async fn delete_document<D: CatalogDocument>(
        self: &Arc<Self>,
        tenant: TenantId,
        name: String,
        condition: Preconditions,
        author: Author,
    ) -> Result<(), ControlError> {
        self.change(
            (tenant, name, condition, author),
            |attempt, (tenant, name, condition, author)| async move {
                attempt.check_tenant(&tenant)?;
                let registry = attempt.registry.load_full();
                let key = (tenant.clone(), name.clone());
                let old = D::documents(&registry).get(&key);
                refuse_declared(old.map(|entry| entry.origin), D::NAME, &name)?;
                let tag = old.map(|entry| attempt.tag(entry));
                condition.hold_for_removal(D::NAME, tag.as_deref(), || missing::<D>(&name))?;
                let before = old.map(|entry| text(&entry.spec));
                author.record_values(before.as_deref(), None);
                let change = AdminChange::DeleteCatalogDocument(&tenant, D::KIND, &name);
                if !attempt.commit(change, &author).await? {
                    return Err(missing::<D>(&name));
                }
                attempt.edit(|registry| {
                    D::documents_mut(registry).remove(&key);
                });
                attempt.apply_catalog_of(&tenant, &attempt.registry.load());
                tracing::info!(%tenant, name, kind = D::NAME, "catalog document removed");
                Ok(())
            },
        )
        .await
    }

    /// Puts the documents of the tenants in which two registries differ into force.
    pub(super) fn apply_catalogs(&self, old: &Registry, next: &Registry) {
        let mut changed: Vec<&TenantId> = Vec::new();
        changed.extend(differing(&old.toolsets, &next.toolsets));
        changed.extend(differing(&old.prompts, &next.prompts));
        changed.sort_unstable();
        changed.dedup();
        changed.retain(|tenant| next.tenants.contains_key(*tenant));
        changed.into_iter().for_each(|tenant| self.apply_catalog_of(tenant, next));
    }

    fn apply_catalog_of(&self, tenant: &TenantId, registry: &Registry) {
        let unusable = |name: &str, fault: Option<(String, String)>| {
            let (path, problem) = fault.unwrap_or_default();
            tracing::error!(%tenant, name, path, problem, "the broker cannot use a stored toolset or prompt and leaves it out");
        };
        let mut prompts = Vec::new();
        for (name, entry) in of_owner(&registry.prompts, tenant, String::new()) {
            match HostedPrompt::compile(&entry.spec) {
                Ok(prompt) => prompts.push((name.clone(), Arc::new(prompt))),
                Err(faults) => unusable(name, faults.into_iter().next()),
            }
        }
        let mut toolsets = Vec::new();
        for (name, entry) in of_owner(&registry.toolsets, tenant, String::new()) {
            match compiled(name, &entry.spec, None) {
                Ok(toolset) => {
                    self.warn_of_unused_selectors(tenant, name, &entry.spec, registry);
                    toolsets.push((Arc::new(toolset), entry.spec.published));
                }
                Err(faults) => {
                    let fault = faults.into_iter().next();
                    unusable(name, fault.map(|fault| (fault.path, fault.problem)));
                }
            }
        }
        self.broker.set_hosted_prompts(tenant, Arc::new(HostedPrompts::new(prompts)));
        self.broker.set_toolsets(tenant, Arc::new(Toolsets::new(toolsets)));
    }

    /// Returns the entries of documents as they were read, with those of the configuration file.
    pub(super) fn load_documents<D: CatalogDocument>(
        &self,
        records: &[CatalogDocumentRecord],
        declared: &[(TenantId, String, D)],
        is_tenant: impl Fn(&TenantId) -> bool,
    ) -> Result<CatalogDocuments<D>, LoadError> {
        let mut documents = CatalogDocuments::new();
        for record in
            records.iter().filter(|record| record.kind == D::KIND && is_tenant(&record.tenant))
        {
            let key = (record.tenant.clone(), record.name.clone());
            match stored_document::<D>(record) {
                Ok(entry) => drop(documents.insert(key, entry.into())),
                Err(error) => {
                    self.skip_unreadable(&error);
                    documents.extend(closed_entry::<D>(record).map(|entry| (key, entry.into())));
                }
            }
        }
        for (tenant, name, document) in declared {
            let entry = RegistryEntry::declared(document.clone(), now_us());
            if documents.insert((tenant.clone(), name.clone()), entry).is_some() {
                return Err(twice::<D>(tenant, name));
            }
        }
        Ok(documents)
    }
}

/// Returns the documents after a change by another replica: the locally declared ones, and the
/// stored ones.
pub(super) fn synced_documents<D: CatalogDocument>(
    records: &[CatalogDocumentRecord],
    old: &Registry,
    is_tenant: impl Fn(&TenantId) -> bool,
) -> CatalogDocuments<D> {
    let mut next = D::documents(old).clone();
    next.retain(|_, entry| entry.origin == EntryOrigin::Declared);
    for record in
        records.iter().filter(|record| record.kind == D::KIND && is_tenant(&record.tenant))
    {
        let key = (record.tenant.clone(), record.name.clone());
        if next.contains_key(&key) {
            continue; // the configuration file decides
        }
        let (read, before) = (stored_document::<D>(record), D::documents(old).get(&key));
        let entry = super::store_sync::entry_or_previous(read, record.created_at_us, before);
        let entry = entry.or_else(|| closed_entry::<D>(record).map(Arc::new));
        next.extend(entry.map(|entry| (key, entry)));
    }
    next
}

/// Returns the documents after a reload of the configuration file.
pub(super) fn reloaded_documents<D: CatalogDocument>(
    old: &Registry,
    declared: &[(TenantId, String, D)],
) -> Result<CatalogDocuments<D>, LoadError> {
    let mut next = D::documents(old).clone();
    next.retain(|_, entry| entry.origin == EntryOrigin::Stored);
    for (tenant, name, document) in declared {
        let key = (tenant.clone(), name.clone());
        let unchanged = D::documents(old)
            .get(&key)
            .filter(|entry| entry.origin == EntryOrigin::Declared && entry.spec == *document);
        let entry = unchanged
            .map_or_else(|| RegistryEntry::declared(document.clone(), now_us()), Arc::clone);
        if next.insert(key, entry).is_some() {
            return Err(twice::<D>(tenant, name));
        }
    }
    Ok(next)
}

pub(super) fn stored_document<D: CatalogDocument>(
    record: &CatalogDocumentRecord,
) -> Result<RegistryEntry<D>, LoadError> {
    let spec = serde_json::from_str(&record.document).map_err(|error| LoadError::Settings {
        what: format!("{} {} of tenant {}", D::NAME, record.name, record.tenant),
        detail: error.to_string(),
    })?;
    Ok(entry_of(record, spec))
}

pub(super) fn closed_entry<D: CatalogDocument>(
    record: &CatalogDocumentRecord,
) -> Option<RegistryEntry<D>> {
    D::closed(&record.document).map(|spec| entry_of(record, spec))
}

fn entry_of<D>(record: &CatalogDocumentRecord, spec: D) -> RegistryEntry<D> {
    RegistryEntry {
        spec,
        origin: EntryOrigin::Stored,
        created_at_us: record.created_at_us,
        updated_at_us: record.updated_at_us,
    }
}

/// Returns the tenants of entries that only one of two maps has.
fn differing<'r, D>(
    old: &'r CatalogDocuments<D>,
    next: &'r CatalogDocuments<D>,
) -> impl Iterator<Item = &'r TenantId> {
    let lacks = |map: &BTreeMap<_, Arc<RegistryEntry<D>>>, key, entry| {
        map.get(key).is_none_or(|other| !Arc::ptr_eq(other, entry))
    };
    let gone = old.iter().filter(move |(key, entry)| lacks(next, key, entry));
    let new = next.iter().filter(move |(key, entry)| lacks(old, key, entry));
    gone.chain(new).map(|((tenant, _), _)| tenant)
}

fn text<D: Serialize>(document: &D) -> String {
    serde_json::to_string(document).expect("a document has plain values with text keys only")
}

fn missing<D: CatalogDocument>(name: &str) -> ControlError {
    ControlError::NotFound { what: D::NAME, name: name.to_owned() }
}

fn twice<D: CatalogDocument>(tenant: &TenantId, name: &str) -> LoadError {
    LoadError::Twice { what: format!("{} {name} of tenant {tenant}", D::NAME) }
}
