//! Cache of compiled schemas of tools, of all tenants, within one limit.
//!
//! [`super::policy`] reads it. Beyond the limit, it evicts the least recently used schemas of the
//! tenant with the most bytes. So a tenant with many schemas does not evict those of others.
//!
//! Invariant: the cache holds at most [`SCHEMAS_COMPILED_BYTES_MAX`], estimated before schemas are
//! compiled.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use protocol::ids::TenantId;
use rules::{
    arguments::ArgumentValidator, catalog::DefinitionDigest,
    limits::arguments::SCHEMAS_COMPILED_BYTES_MAX,
};

/// Bytes that count for a tool whose schema is not used.
const UNUSED_BYTES: usize = 256;

/// The schema of a tool. `None`: the tool has no usable schema.
pub type CompiledSchema = Option<Arc<ArgumentValidator>>;

/// Key of a set of schemas: those of a backend's tools, by their definitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SchemaSetId(u64);

#[derive(Debug, Default)]
pub struct SchemaCache {
    next_set_id: AtomicU64,
    table: Mutex<SchemaTable>,
}

#[derive(Debug, Default)]
struct SchemaTable {
    sets: HashMap<SchemaSetId, HashMap<DefinitionDigest, CachedSchema>>,
    bytes: usize,
    /// Number of uses, as a clock for the eviction.
    uses: u64,
}

#[derive(Debug)]
struct CachedSchema {
    tenant: TenantId,
    schema: CompiledSchema,
    bytes: usize,
    used: u64,
}

impl SchemaCache {
    pub fn new_set(&self) -> SchemaSetId {
        SchemaSetId(self.next_set_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the schema of a tool with this definition. `None`: it must be compiled first.
    pub fn get(&self, owner: SchemaSetId, tool: &DefinitionDigest) -> Option<CompiledSchema> {
        let mut table = self.table.lock();
        table.uses += 1;
        let used = table.uses;
        let kept = table.sets.get_mut(&owner)?.get_mut(tool)?;
        kept.used = used;
        Some(kept.schema.clone())
    }

    pub fn insert(
        &self,
        owner: SchemaSetId,
        tenant: &TenantId,
        tool: DefinitionDigest,
        schema: CompiledSchema,
    ) {
        let mut table = self.table.lock();
        table.uses += 1;
        let bytes = schema.as_ref().map_or(0, |checker| checker.bytes()) + UNUSED_BYTES;
        let kept = CachedSchema { tenant: tenant.clone(), schema, bytes, used: table.uses };
        table.remove(owner, &tool);
        table.bytes += bytes;
        table.sets.entry(owner).or_default().insert(tool, kept);
        table.evict(SCHEMAS_COMPILED_BYTES_MAX);
    }

    /// Removes a set, because the backend has new lists or was removed.
    pub fn remove_set(&self, owner: SchemaSetId) {
        let mut table = self.table.lock();
        let kept = table.sets.remove(&owner).unwrap_or_default();
        table.bytes -= kept.values().map(|kept| kept.bytes).sum::<usize>();
    }

    pub fn bytes(&self) -> usize {
        self.table.lock().bytes
    }
}

impl SchemaTable {
    fn remove(&mut self, owner: SchemaSetId, tool: &DefinitionDigest) {
        let Some(tools) = self.sets.get_mut(&owner) else { return };
        self.bytes -= tools.remove(tool).map_or(0, |kept| kept.bytes);
        if tools.is_empty() {
            self.sets.remove(&owner);
        }
    }

    fn evict(&mut self, max: usize) {
        while self.bytes > max {
            let mut tenants: HashMap<&TenantId, usize> = HashMap::new();
            let all = || {
                self.sets.iter().flat_map(|(owner, tools)| {
                    tools.iter().map(|(tool, kept)| (*owner, tool, kept))
                })
            };
            for (_, _, kept) in all() {
                *tenants.entry(&kept.tenant).or_default() += kept.bytes;
            }
            let Some((most, _)) = tenants.into_iter().max_by_key(|(_, bytes)| *bytes) else {
                return;
            };
            let oldest = all()
                .filter(|(_, _, kept)| kept.tenant == *most)
                .min_by_key(|(_, _, kept)| kept.used);
            let Some((owner, tool)) = oldest.map(|(owner, tool, _)| (owner, *tool)) else {
                return;
            };
            self.remove(owner, &tool);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    /// Compiles a schema that counts at least `bytes`.
    fn schema(bytes: usize) -> CompiledSchema {
        let properties: serde_json::Map<_, _> =
            (0..bytes / 600).map(|n| (format!("p{n}"), json!({"type": "string"}))).collect();
        let checker =
            ArgumentValidator::compile(json!({ "properties": properties }).to_string().as_bytes())
                .unwrap();
        assert!(checker.bytes() >= bytes, "{}", checker.bytes());
        Some(Arc::new(checker))
    }

    fn definition(number: usize) -> DefinitionDigest {
        let mut digest = DefinitionDigest::default();
        digest[..8].copy_from_slice(&(number as u64).to_le_bytes());
        digest
    }

    #[test]
    fn s02_all_schemas_are_bounded_and_the_largest_tenant_loses_schemas() {
        let schemas = SchemaCache::default();
        let (small, large) = (schemas.new_set(), schemas.new_set());
        schemas.insert(small, &tenant("small"), definition(0), schema(10_000));
        let big = schema(1_000_000);
        let size = big.as_ref().unwrap().bytes();
        let fit = SCHEMAS_COMPILED_BYTES_MAX / size;
        for n in 0..fit + 10 {
            schemas.insert(large, &tenant("large"), definition(n), big.clone());
            assert!(schemas.bytes() <= SCHEMAS_COMPILED_BYTES_MAX);
            assert!(schemas.get(large, &definition(0)).is_some(), "what is in use stays");
        }
        assert!(schemas.get(small, &definition(0)).is_some_and(|schema| schema.is_some()));
        assert!(schemas.get(large, &definition(1)).is_none(), "not used for longest");
        assert!(schemas.get(large, &definition(fit + 9)).is_some());
        schemas.remove_set(large);
        schemas.remove_set(small);
        assert_eq!(schemas.bytes(), 0);
    }

    #[test]
    fn a_schema_that_is_kept_again_counts_once() {
        let schemas = SchemaCache::default();
        let (owner, tool) = (schemas.new_set(), definition(1));
        schemas.insert(owner, &tenant("a"), tool, None);
        assert!(matches!(schemas.get(owner, &tool), Some(None)));
        schemas.insert(owner, &tenant("a"), tool, schema(1_000));
        let bytes = schemas.bytes();
        schemas.insert(owner, &tenant("a"), tool, schema(1_000));
        assert_eq!(schemas.bytes(), bytes);
        assert!(matches!(schemas.get(owner, &tool), Some(Some(_))));
        assert!(schemas.get(schemas.new_set(), &tool).is_none());
    }
}
