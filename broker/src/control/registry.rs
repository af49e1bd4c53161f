//! Tenants and backends in force from both sources, as one snapshot, and the stored form of their
//! settings.

use std::{collections::BTreeMap, sync::Arc};

use config::{
    AuthConfig, DeclaredBackend, IssuerConfig,
    spec::{BackendSpec, TenantSpec},
};
use protocol::ids::{BackendId, TenantId};
use rules::{access::PolicyDocument, catalog::HostedPromptDocument, toolsets::ToolsetDocument};
use serde::Serialize;

use crate::auth::{SealError, SealKey};

/// Settings of a stored tenant that only holds the keys of a tenant from the configuration file.
/// Not JSON, so no real settings are equal to it.
pub(super) const DECLARED: &str = "declared in the configuration file";

/// Source of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryOrigin {
    /// Created through the admin API and stored.
    Stored,
    /// Declared in the configuration file.
    Declared,
    /// The backend of the command `demo`.
    Bundled,
}

impl EntryOrigin {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stored => "api",
            Self::Declared => "config",
            Self::Bundled => "demo",
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct RegistryEntry<Spec> {
    pub(super) spec: Spec,
    pub(super) origin: EntryOrigin,
    pub(super) created_at_us: i64,
    pub(super) updated_at_us: i64,
}

impl<Spec> RegistryEntry<Spec> {
    /// Returns an entry that is stored now. A replaced entry keeps its creation time.
    pub(super) fn stored(spec: Spec, created_at_us: Option<i64>, now_us: i64) -> Arc<Self> {
        Arc::new(Self {
            spec,
            origin: EntryOrigin::Stored,
            created_at_us: created_at_us.unwrap_or(now_us),
            updated_at_us: now_us,
        })
    }

    /// Returns whether both are rows of the store, and `next` was created after a removal of this
    /// one.
    pub(super) fn is_other_row(&self, next: &Self) -> bool {
        let are_rows = [self, next].iter().all(|entry| entry.origin == EntryOrigin::Stored);
        are_rows && self.created_at_us != next.created_at_us
    }

    /// Returns the creation time of the row, which tells it from a later row of the same name. 0:
    /// the configuration declares the entry.
    pub(super) fn row_created_at_us(&self) -> i64 {
        if self.origin == EntryOrigin::Stored { self.created_at_us } else { 0 }
    }

    pub(super) fn declared(spec: Spec, now_us: i64) -> Arc<Self> {
        Arc::new(Self {
            spec,
            origin: EntryOrigin::Declared,
            created_at_us: now_us,
            updated_at_us: now_us,
        })
    }
}

impl RegistryEntry<BackendSpec> {
    /// Returns the entry of a backend of the configuration.
    pub(super) fn of_declared(declared: &DeclaredBackend, now_us: i64) -> Arc<Self> {
        Arc::new(Self {
            spec: declared.spec.clone(),
            origin: origin_of(declared),
            created_at_us: now_us,
            updated_at_us: now_us,
        })
    }

    /// Returns whether this entry is that of a backend of the configuration.
    pub(super) fn is_of(&self, declared: &DeclaredBackend) -> bool {
        self.origin == origin_of(declared) && self.spec == declared.spec
    }
}

fn origin_of(declared: &DeclaredBackend) -> EntryOrigin {
    if declared.is_bundled { EntryOrigin::Bundled } else { EntryOrigin::Declared }
}

pub(super) type Tenants = BTreeMap<TenantId, Arc<RegistryEntry<TenantSpec>>>;
pub(super) type Policies = BTreeMap<TenantId, Arc<RegistryEntry<PolicyDocument>>>;
/// Times of creation of stored backends that cannot be read. A backend that replaces one keeps it.
pub(super) type UnreadableBackends = BTreeMap<(TenantId, BackendId), i64>;
pub(super) type Backends = BTreeMap<(TenantId, BackendId), Arc<RegistryEntry<BackendSpec>>>;

/// Documents of catalogs, by tenant and name.
pub(super) type CatalogDocuments<Document> =
    BTreeMap<(TenantId, String), Arc<RegistryEntry<Document>>>;

/// Settings of a stored issuer, as an operator wrote them and as they are in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct StoredIssuer {
    pub(super) body: serde_json::Value,
    #[serde(skip)]
    pub(super) config: Arc<IssuerConfig>,
}

pub(super) type Issuers = BTreeMap<(TenantId, BackendId), Arc<RegistryEntry<StoredIssuer>>>;

/// Cheap to clone. A change publishes a new one.
#[derive(Debug, Clone, Default)]
pub(super) struct Registry {
    pub(super) tenants: Tenants,
    pub(super) backends: Backends,
    pub(super) policies: Policies,
    pub(super) toolsets: CatalogDocuments<ToolsetDocument>,
    pub(super) prompts: CatalogDocuments<HostedPromptDocument>,
    /// Stored issuers of tenants.
    pub(super) issuers: Issuers,
    /// Settings of sign-in of the configuration file.
    pub(super) auth: Arc<AuthConfig>,
}

impl Registry {
    pub(super) fn backends_of(
        &self,
        tenant: &TenantId,
    ) -> impl Iterator<Item = (&BackendId, &Arc<RegistryEntry<BackendSpec>>)> {
        of_owner(&self.backends, tenant, first_name())
    }

    /// Returns the backends that policies and toolsets of the tenant can name.
    pub(super) fn selectable_backends(&self, tenant: &TenantId) -> Vec<BackendId> {
        let backends = self.backends_of(tenant).map(|(backend, _)| backend.clone());
        backends.chain([BackendId::hosted()]).collect()
    }

    pub(super) fn remove_tenant(&mut self, tenant: &TenantId) {
        self.tenants.remove(tenant);
        self.policies.remove(tenant);
        self.toolsets.retain(|(owner, _), _| owner != tenant);
        self.prompts.retain(|(owner, _), _| owner != tenant);
        self.issuers.retain(|(owner, _), _| owner != tenant);
        self.backends.retain(|(owner, _), _| owner != tenant);
    }
}

/// Returns the entries of one owner, in the order of their names. `first` comes before all names, or
/// is the first of them. The cost does not depend on the entries of others.
pub(super) fn of_owner<'m, Owner: Ord + Clone, Name: Ord, Entry>(
    entries: &'m BTreeMap<(Owner, Name), Entry>,
    owner: &Owner,
    first: Name,
) -> impl Iterator<Item = (&'m Name, &'m Entry)> {
    let from = entries.range((owner.clone(), first)..);
    let of = from.take_while(move |((known, _), _)| known == owner);
    of.map(|((_, name), entry)| (name, entry))
}

/// Returns the first name of backends and issuers in their order. No name begins with a hyphen.
pub(super) fn first_name() -> BackendId {
    BackendId::parse("0").expect("a digit is a name")
}

pub(super) fn tenant_settings(spec: &TenantSpec) -> String {
    serde_json::to_string(spec).expect("a tenant's settings are plain values")
}

/// Seals the settings for one backend. Settings in another row of the store do not open.
pub(super) fn seal_backend(
    seal: &SealKey,
    tenant: &TenantId,
    backend: &BackendId,
    spec: &BackendSpec,
) -> Result<Vec<u8>, SealError> {
    let text =
        serde_json::to_vec(spec).expect("a backend's settings are plain values with text keys");
    seal.seal(&backend_seal_context(tenant, backend), &text)
}

pub(super) fn open_backend(
    seal: &SealKey,
    tenant: &TenantId,
    backend: &BackendId,
    sealed: &[u8],
) -> Result<Vec<u8>, SealError> {
    seal.open(&backend_seal_context(tenant, backend), sealed)
}

/// Returns the name of a backend's row, without which its settings do not open.
pub(super) fn backend_seal_context(tenant: &TenantId, backend: &BackendId) -> String {
    // A slash is invalid in both names.
    format!("backend/{tenant}/{backend}")
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, cmp::Ordering};

    use super::*;

    thread_local! {
        static COMPARISONS: Cell<usize> = const { Cell::new(0) };
    }

    /// An owner that counts its comparisons.
    #[derive(Clone)]
    struct CountedOwner(u32);

    impl Ord for CountedOwner {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for CountedOwner {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl PartialEq for CountedOwner {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other).is_eq()
        }
    }

    impl Eq for CountedOwner {}

    #[test]
    fn the_entries_of_an_owner_cost_nothing_for_those_of_others() {
        let entries: BTreeMap<(CountedOwner, u32), u32> = (0..10_000_u32)
            .flat_map(|owner| [0, 1].map(|name| ((CountedOwner(owner), name), owner)))
            .collect();
        for owner in [0, 5_000, 9_999] {
            COMPARISONS.set(0);
            let found: Vec<_> = of_owner(&entries, &CountedOwner(owner), 0).collect();
            assert_eq!(found, [(&0, &owner), (&1, &owner)]);
            let comparisons = COMPARISONS.get();
            assert!(comparisons < 1_000, "{comparisons} comparisons for {owner}");
        }
    }

    #[test]
    fn a_tenant_has_its_own_backends_alone() {
        let mut registry = Registry::default();
        let body = serde_json::json!({"transport": {"type": "http", "url": "http://127.0.0.1:9/"}});
        let spec: BackendSpec = serde_json::from_value(body).unwrap();
        for tenant in ["a", "a-b", "a0", "ab", "b"] {
            for backend in ["0", "0-0", "a", "z"] {
                let key = (TenantId::parse(tenant).unwrap(), BackendId::parse(backend).unwrap());
                registry.backends.insert(key, RegistryEntry::declared(spec.clone(), 0));
            }
        }
        for tenant in ["a", "a-b", "a0", "ab", "b"] {
            let tenant = TenantId::parse(tenant).unwrap();
            let found: Vec<&str> =
                registry.backends_of(&tenant).map(|(backend, _)| backend.as_str()).collect();
            assert_eq!(found, ["0", "0-0", "a", "z"], "{tenant}");
        }
        assert_eq!(registry.backends_of(&TenantId::parse("a-a").unwrap()).count(), 0);
    }
}
