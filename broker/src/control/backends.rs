//! Operations on backends: list, show, register, remove and probe.

use std::sync::Arc;

use config::{
    spec::{BackendSpec, ConfiguredRoot, RootRules},
    validation::validate_backend_spec,
};
use protocol::ids::{BackendId, TenantId};
use records::{AdminChange, BackendRecord};

use super::{
    Author, BACKENDS_PER_TENANT_MAX, BackendView, Control, ControlError, Preconditions, PutOutcome,
    Tagged,
    change::ChangeAttempt,
    registry::{self, RegistryEntry},
    validation::{client_files, no_backend, no_tenant, now_us, refuse_declared, refuse_more},
};

/// Whether the registration of a backend waits for the first attempt to connect to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstAttempt {
    /// The registration returns after the connection is open or has failed.
    Awaited,
    InBackground,
}

impl Control {
    pub fn backends(&self, tenant: &TenantId) -> Result<Vec<BackendView>, ControlError> {
        self.check_tenant(tenant)?;
        let registry = self.registry.load();
        Ok(registry
            .backends_of(tenant)
            .map(|(backend, entry)| self.backend_view(tenant, backend, entry))
            .collect())
    }

    pub fn backend(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
    ) -> Result<Tagged<BackendView>, ControlError> {
        let registry = self.registry.load();
        let entry = registry
            .backends
            .get(&(tenant.clone(), backend.clone()))
            .ok_or_else(|| no_backend(backend))?;
        Ok(self.tagged_backend(tenant, backend, entry))
    }

    fn tagged_backend(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
        entry: &RegistryEntry<BackendSpec>,
    ) -> Tagged<BackendView> {
        Tagged { view: self.backend_view(tenant, backend, entry), tag: self.tag(entry) }
    }

    /// Registers a backend.
    pub async fn put_backend(
        self: &Arc<Self>,
        tenant: TenantId,
        backend: BackendId,
        spec: BackendSpec,
        first_attempt: FirstAttempt,
        condition: Preconditions,
        author: Author,
    ) -> Result<PutOutcome<BackendView>, ControlError> {
        self.check_egress(&spec.transport)?;
        self.config.stdio.check(&spec.transport).map_err(ControlError::Invalid)?;
        self.config.tls.check_stored(&spec.tls).map_err(ControlError::Invalid)?;
        client_files(&spec).await.map_err(ControlError::Invalid)?;
        self.config
            .limits
            .message_sizes
            .check(spec.limits.message_profile.as_deref())
            .map_err(ControlError::Invalid)?;
        // A child is started before its handshake, and a server is connected to first.
        let within = spec.timeouts.initialize.unwrap_or(self.config.timeouts.initialize)
            + self.config.timeouts.connect;
        let stored = self.change(
            (tenant.clone(), backend.clone(), spec, condition, author),
            |attempt, (tenant, backend, spec, condition, author)| async move {
                attempt.store_backend(tenant, backend, spec, condition, &author).await
            },
        );
        let (entry, created) = stored.await?;
        if first_attempt == FirstAttempt::Awaited {
            let waited = self.broker.wait_for_backend(&tenant, &backend, within).await.is_some();
            // A removal ends the wait before it reaches the registry.
            let is_removed = waited && self.broker.backend(&tenant, &backend).is_none();
            let key = (tenant.clone(), backend.clone());
            if is_removed || !self.registry.load().backends.contains_key(&key) {
                return Err(no_backend(&backend));
            }
        }
        Ok(PutOutcome { entry: self.tagged_backend(&tenant, &backend, &entry), created })
    }

    /// Adds a root to those that operators give a backend, or renames one. Returns the roots, and
    /// whether it is new.
    pub async fn add_root(
        self: &Arc<Self>,
        tenant: TenantId,
        backend: BackendId,
        root: ConfiguredRoot,
        author: Author,
    ) -> Result<(RootRules, bool), ControlError> {
        self.change(
            (tenant, backend, root, author),
            |attempt, (tenant, backend, root, author)| async move {
                let mut spec = attempt.backend_spec(&tenant, &backend)?;
                let is_new = spec.roots.add(root);
                validate_backend_spec(&spec).map_err(ControlError::Faults)?;
                let roots = attempt.store_roots(tenant, backend, spec, &author).await?;
                Ok((roots, is_new))
            },
        )
        .await
    }

    /// Removes one of the roots that operators give a backend.
    pub async fn remove_root(
        self: &Arc<Self>,
        tenant: TenantId,
        backend: BackendId,
        uri: String,
        author: Author,
    ) -> Result<(), ControlError> {
        self.change(
            (tenant, backend, uri, author),
            |attempt, (tenant, backend, uri, author)| async move {
                let mut spec = attempt.backend_spec(&tenant, &backend)?;
                if !spec.roots.remove(&uri) {
                    return Err(ControlError::NotFound { what: "root", name: uri });
                }
                attempt.store_roots(tenant, backend, spec, &author).await?;
                Ok(())
            },
        )
        .await
    }

    pub async fn delete_backend(
        self: &Arc<Self>,
        tenant: TenantId,
        backend: BackendId,
        condition: Preconditions,
        author: Author,
    ) -> Result<(), ControlError> {
        self.change(
            (tenant, backend, condition, author),
            |attempt, (tenant, backend, condition, author)| async move {
                let key = (tenant, backend);
                let registry = attempt.registry.load_full();
                let old = registry.backends.get(&key);
                refuse_declared(old.map(|entry| entry.origin), "backend", &key.1)?;
                let tag = old.map(|entry| attempt.tag(entry));
                condition.hold_for_removal("backend", tag.as_deref(), || no_backend(&key.1))?;
                if !attempt.commit(AdminChange::DeleteBackend(&key.0, &key.1), &author).await? {
                    return Err(no_backend(&key.1));
                }
                attempt.broker.remove_backend(&key.0, &key.1);
                attempt.forget_breakers(&key.0, Some(&key.1));
                attempt.edit(|registry| {
                    registry.backends.remove(&key);
                });
                tracing::info!(tenant = %key.0, backend = %key.1, "backend removed");
                Ok(())
            },
        )
        .await
    }

    /// Reconnects or refreshes the lists, and returns the result.
    pub async fn probe_backend(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
    ) -> Result<BackendView, ControlError> {
        self.backend(tenant, backend)?;
        self.broker.probe(tenant, backend, self.config.timeouts.initialize).await;
        Ok(self.backend(tenant, backend)?.view)
    }

    fn backend_view(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
        entry: &RegistryEntry<BackendSpec>,
    ) -> BackendView {
        BackendView::new(
            tenant,
            backend,
            entry,
            self.broker.backend(tenant, backend),
            self.persistence().node().as_str(),
        )
    }
}

impl ChangeAttempt {
    async fn store_backend(
        &self,
        tenant: TenantId,
        backend: BackendId,
        spec: BackendSpec,
        condition: Preconditions,
        author: &Author,
    ) -> Result<(Arc<RegistryEntry<BackendSpec>>, bool), ControlError> {
        let registry = self.registry.load_full();
        if !registry.tenants.contains_key(&tenant) {
            return Err(no_tenant(&tenant));
        }
        let name = (tenant.clone(), backend.clone());
        let old = registry.backends.get(&name);
        refuse_declared(old.map(|entry| entry.origin), "backend", &backend)?;
        condition.holds("backend", old.map(|entry| self.tag(entry)).as_deref())?;
        refuse_more(
            old.is_none(),
            registry.backends_of(&tenant).count(),
            "backends of this tenant",
            BACKENDS_PER_TENANT_MAX,
        )?;
        // The row of a backend that cannot be read keeps its time of creation too.
        let created_at = old.map(|entry| entry.created_at_us);
        let created_at = created_at.or_else(|| self.unreadable_backends.lock().get(&name).copied());
        let entry = RegistryEntry::stored(spec, created_at, now_us());
        let record = BackendRecord {
            settings: registry::seal_backend(&self.keys.seal, &tenant, &backend, &entry.spec)
                .map_err(|_| ControlError::Internal)?,
            tenant: tenant.clone(),
            backend: backend.clone(),
            created_at_us: entry.created_at_us,
            updated_at_us: entry.updated_at_us,
        };
        self.commit(AdminChange::PutBackend(&record), author).await?;
        self.unreadable_backends.lock().remove(&name);
        let created = old.is_none();
        if created {
            // The registry may already have an entry of this name: a declared one, or one that
            // another replica has just removed.
            self.forget_breakers(&tenant, Some(&backend));
        }
        self.broker.put_backend(&tenant, &backend, entry.spec.clone());
        tracing::info!(%tenant, %backend, created, "backend stored");
        self.edit(|registry| {
            registry.backends.insert(name.clone(), Arc::clone(&entry));
        });
        Ok((entry, created))
    }

    fn backend_spec(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
    ) -> Result<BackendSpec, ControlError> {
        let registry = self.registry.load();
        let entry = registry.backends.get(&(tenant.clone(), backend.clone()));
        entry.map(|entry| entry.spec.clone()).ok_or_else(|| no_backend(backend))
    }

    async fn store_roots(
        &self,
        tenant: TenantId,
        backend: BackendId,
        spec: BackendSpec,
        author: &Author,
    ) -> Result<RootRules, ControlError> {
        let any = Preconditions::default();
        let (entry, _) = self.store_backend(tenant, backend, spec, any, author).await?;
        Ok(entry.spec.roots.clone())
    }
}
