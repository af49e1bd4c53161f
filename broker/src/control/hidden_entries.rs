//! Stored entries that a declaration of the same name hides. Another replica, which does not
//! declare the name, may have stored the entry. When the declaration ends, the stored entry is in
//! force, as after a restart.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use protocol::ids::TenantId;
use records::CatalogDocumentRecord;
use storage::StoreError;

use super::{
    Control,
    catalog_documents::{CatalogDocument, closed_entry, stored_document},
    registry::{CatalogDocuments, EntryOrigin, Registry, RegistryEntry},
};

impl Control {
    /// Adds the stored entries that only declarations of `old` hid. `next` has the stored tenants
    /// already.
    pub(super) async fn reveal_stored(
        &self,
        old: &Registry,
        next: &mut Registry,
    ) -> Result<(), StoreError> {
        if !self.persistence().is_shared() {
            return Ok(()); // this process refuses to store an entry that it declares
        }
        let backends = ended(&old.backends, &next.backends);
        if !backends.is_empty() {
            for record in self.query_store("list_backends", self.store().backends()).await? {
                let name = (record.tenant.clone(), record.backend.clone());
                if !backends.contains(&name) {
                    continue;
                }
                match self.stored_backend(&record) {
                    Ok(entry) => drop(next.backends.insert(name, entry.into())),
                    Err(error) => {
                        self.skip_unreadable(&error);
                        self.unreadable_backends.lock().insert(name, record.created_at_us);
                    }
                }
            }
        }
        let policies = ended(&old.policies, &next.policies);
        if !policies.is_empty() {
            for record in self.query_store("list_policies", self.store().policies()).await? {
                if policies.contains(&record.tenant) {
                    let entry = self.stored_policy(&record);
                    next.policies.insert(record.tenant, entry.into());
                }
            }
        }
        let toolsets = ended(&old.toolsets, &next.toolsets);
        let prompts = ended(&old.prompts, &next.prompts);
        if !toolsets.is_empty() || !prompts.is_empty() {
            let stored = self.store().catalog_documents();
            let records = self.query_store("list_catalog_documents", stored).await?;
            self.reveal_documents(&records, &toolsets, &mut next.toolsets);
            self.reveal_documents(&records, &prompts, &mut next.prompts);
        }
        Ok(())
    }

    fn reveal_documents<D: CatalogDocument>(
        &self,
        records: &[CatalogDocumentRecord],
        ended: &BTreeSet<(TenantId, String)>,
        next: &mut CatalogDocuments<D>,
    ) {
        for record in records.iter().filter(|record| record.kind == D::KIND) {
            let name = (record.tenant.clone(), record.name.clone());
            if !ended.contains(&name) {
                continue;
            }
            let read = stored_document::<D>(record).map_err(|error| self.skip_unreadable(&error));
            let entry = read.ok().or_else(|| closed_entry::<D>(record));
            next.extend(entry.map(|entry| (name, entry.into())));
        }
    }
}

/// Returns the names of the declarations that only `old` has.
fn ended<Name: Ord + Clone, Spec>(
    old: &BTreeMap<Name, Arc<RegistryEntry<Spec>>>,
    next: &BTreeMap<Name, Arc<RegistryEntry<Spec>>>,
) -> BTreeSet<Name> {
    let is_over = |(name, entry): &(&Name, &Arc<RegistryEntry<Spec>>)| {
        entry.origin != EntryOrigin::Stored && !next.contains_key(*name)
    };
    old.iter().filter(is_over).map(|(name, _)| name.clone()).collect()
}
