//! The sessions of one tenant on this replica, by principal, with the permits that they take of the
//! tenant's and the principal's limits.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::{PrincipalId, TenantId},
};
use rules::{limits::LIMIT_RETRY_AFTER, shared_permits::SharedPermits};

use crate::admission::permit_limiter::PermitLimiter;

/// Sessions of a tenant and of one of its principals at most, over all replicas.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionLimits {
    pub tenant: usize,
    pub principal: usize,
}

/// The sessions of one tenant. `S` is a session, whose contents are not used here.
#[derive(Debug)]
pub(super) struct TenantSessions<S> {
    tenant: TenantId,
    permits: Arc<SharedPermits>,
    limiter: Arc<PermitLimiter>,
    table: Mutex<PrincipalTable<S>>,
    /// Set when the tenant was removed. Set and read for new sessions while `table` is locked.
    closed: AtomicBool,
}

#[derive(Debug)]
struct PrincipalTable<S> {
    by_principal: HashMap<PrincipalId, PrincipalSessions<S>>,
}

#[derive(Debug)]
struct PrincipalSessions<S> {
    permits: Arc<SharedPermits>,
    sessions: Vec<Weak<S>>,
    /// Sessions that wait for their permits.
    opening: usize,
}

impl<S> PrincipalTable<S> {
    fn principal(
        &mut self,
        principal: &PrincipalId,
        permits: impl FnOnce() -> Arc<SharedPermits>,
    ) -> &mut PrincipalSessions<S> {
        self.by_principal.entry(principal.clone()).or_insert_with(|| PrincipalSessions {
            permits: permits(),
            sessions: Vec::new(),
            opening: 0,
        })
    }

    fn forget_if_unused(&mut self, principal: &PrincipalId) {
        let of = self.by_principal.get(principal);
        if of.is_some_and(|of| of.sessions.is_empty() && of.opening == 0) {
            self.by_principal.remove(principal);
        }
    }
}

impl<S> TenantSessions<S> {
    pub(super) fn new(tenant: TenantId, limiter: Arc<PermitLimiter>) -> Self {
        let permits = limiter.permits(format!("sessions/{tenant}"), 0);
        let table = Mutex::new(PrincipalTable { by_principal: HashMap::new() });
        Self { tenant, permits, limiter, table, closed: AtomicBool::new(false) }
    }

    fn principal_permits(&self, principal: &PrincipalId) -> Arc<SharedPermits> {
        self.limiter.permits(format!("sessions/{}/{}", self.tenant, principal.as_str()), 0)
    }

    /// Registers a session, if the tenant and its principal may have another. `is_leaving`: it has
    /// ended. `count_refused` gets the scope of the limit that was reached.
    pub(super) async fn open(
        &self,
        session: &Arc<S>,
        principal: &PrincipalId,
        is_leaving: impl Fn(&S) -> bool,
        limits: SessionLimits,
        count_refused: impl Fn(&'static str),
    ) -> Result<(), Refusal> {
        let opening = OpeningSession::start(self, principal)?;
        let too_many = |whose: &str, scope, max| {
            count_refused(scope);
            too_many_sessions(whose, max)
        };
        let of_tenant = self.limiter.take(&self.permits, limits.tenant).await;
        let of_tenant =
            of_tenant.map_err(|_none| too_many("tenant", "sessions_per_tenant", limits.tenant))?;
        let own = self.limiter.take(&opening.permits, limits.principal).await;
        let own =
            own.map_err(|_none| too_many("principal", "sessions_per_principal", limits.principal))?;
        let mut table = self.table.lock();
        if self.is_closed() {
            return Err(tenant_is_gone());
        }
        // One that ended meanwhile was not found here, and is not removed again.
        if is_leaving(session) {
            let text = "the session was ended while it was opened";
            return Err(Refusal::new(ErrorKind::SessionNotFound, text));
        }
        let entry = table.principal(principal, || opening.permits.clone());
        entry.sessions.push(Arc::downgrade(session));
        of_tenant.keep();
        own.keep();
        Ok(())
    }

    /// Registers a session that was opened elsewhere. The limits do not apply, because its client
    /// was admitted. Returns false if the tenant is gone.
    pub(super) fn adopt(
        &self,
        session: &Arc<S>,
        principal: &PrincipalId,
        limits: SessionLimits,
    ) -> bool {
        let mut table = self.table.lock();
        if self.is_closed() {
            return false;
        }
        let own = table.principal(principal, || self.principal_permits(principal));
        own.sessions.push(Arc::downgrade(session));
        self.limiter.take_forced(&self.permits, limits.tenant);
        self.limiter.take_forced(&own.permits, limits.principal);
        true
    }

    /// Refuses new sessions, because the tenant is removed.
    pub(super) fn close(&self) {
        let _no_session_opens = self.table.lock();
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub(super) fn remove(&self, session: &Arc<S>, principal: &PrincipalId) {
        let mut table = self.table.lock();
        let Some(own) = table.by_principal.get_mut(principal) else { return };
        let before = own.sessions.len();
        own.sessions.retain(|other| other.as_ptr() != Arc::as_ptr(session));
        if own.sessions.len() < before {
            self.limiter.release(&self.permits);
            self.limiter.release(&own.permits);
        }
        table.forget_if_unused(principal);
    }

    pub(super) fn all(&self) -> Vec<Arc<S>> {
        let table = self.table.lock();
        let sessions = table.by_principal.values().flat_map(|own| &own.sessions);
        sessions.filter_map(Weak::upgrade).collect()
    }

    pub(super) fn of(&self, principal: &PrincipalId) -> Vec<Arc<S>> {
        let table = self.table.lock();
        let own = table.by_principal.get(principal).map(|own| &own.sessions);
        own.into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    /// Returns the principals with sessions that live here.
    pub(super) fn principals(&self) -> Vec<PrincipalId> {
        let table = self.table.lock();
        let open = table.by_principal.iter().filter(|(_, own)| !own.sessions.is_empty());
        open.map(|(principal, _)| principal.clone()).collect()
    }

    pub(super) fn count(&self) -> usize {
        self.permits.in_use() as usize
    }
}

/// A session that waits for its permits. The entry of its principal stays meanwhile.
struct OpeningSession<'a, S> {
    sessions: &'a TenantSessions<S>,
    principal: &'a PrincipalId,
    permits: Arc<SharedPermits>,
}

impl<'a, S> OpeningSession<'a, S> {
    fn start(sessions: &'a TenantSessions<S>, principal: &'a PrincipalId) -> Result<Self, Refusal> {
        let mut table = sessions.table.lock();
        if sessions.is_closed() {
            return Err(tenant_is_gone());
        }
        let own = table.principal(principal, || sessions.principal_permits(principal));
        own.opening += 1;
        Ok(Self { sessions, principal, permits: own.permits.clone() })
    }
}

impl<S> Drop for OpeningSession<'_, S> {
    fn drop(&mut self) {
        let mut table = self.sessions.table.lock();
        if let Some(own) = table.by_principal.get_mut(self.principal) {
            own.opening -= 1;
        }
        table.forget_if_unused(self.principal);
    }
}

fn tenant_is_gone() -> Refusal {
    Refusal::new(ErrorKind::Unauthorized, "the tenant was removed")
}

fn too_many_sessions(whose: &str, max: usize) -> Refusal {
    Refusal::new(
        ErrorKind::TooManySessions,
        format!("the {whose} has {max} sessions, which is its limit"),
    )
    .retry_after(LIMIT_RETRY_AFTER)
}
