//! Ends the sessions, streams and links of a revoked credential. Each replica ends those that it
//! has.

use std::sync::Arc;

use protocol::ids::{KeyId, PrincipalId, TenantId};
use records::{RevocationRecord, RevokedSubject};
use rules::{link_sharing::LinkScope, operators::Operator};

use super::Broker;
use crate::{
    auth::Caller,
    sessions::{
        session::{self, Session},
        tenant::Tenant,
    },
};

impl Broker {
    /// Ends the sessions that a revoked key opened or continued, with all their streams.
    pub fn end_sessions_of_key(self: &Arc<Self>, key: &KeyId) {
        let is_meant = |caller: &Caller| caller.key.as_ref() == Some(key);
        self.end_sessions("its key was revoked", is_meant, |session| {
            session::has_used_key(session, key)
        });
    }

    /// Returns whether a login of a browser is valid: its tenant is enabled and still the same one,
    /// and the principal was not revoked since the login was issued.
    pub fn accepts_login(
        &self,
        tenant: &TenantId,
        tenant_created_at_us: i64,
        principal: &PrincipalId,
        issued_at_us: i64,
    ) -> bool {
        let is_same = |tenant: Arc<Tenant>| {
            tenant.enabled() && tenant.generation.us() == tenant_created_at_us
        };
        let revocations = self.keyring.revocations();
        self.tenant(tenant).is_some_and(is_same)
            && !revocations.ends_session_of(tenant, principal, issued_at_us)
    }

    /// Ends what a revocation names. It is in force already, so that nothing more is opened.
    ///
    /// Streams and connections that a revoked token opened end by themselves.
    pub fn end_revoked(self: &Arc<Self>, revoked: &RevocationRecord) {
        let RevocationRecord { tenant, subject, .. } = revoked;
        match subject {
            RevokedSubject::Principal(principal) => {
                self.end_sessions_of_callers("its principal was revoked", |caller| {
                    // A newer token of the principal stays valid.
                    (&caller.tenant, &caller.principal) == (tenant, principal)
                        && caller.token.as_ref().is_none_or(|token| token.is_revoked())
                });
                self.close_unused_links(tenant, principal);
            }
            RevokedSubject::TokenId(id) => {
                self.end_sessions_of_callers("its token was revoked", |caller| {
                    caller.tenant == *tenant
                        && caller.token.as_ref().is_some_and(|token| token.has_id(id))
                });
            }
        }
    }

    /// Ends the sessions that an operator opened as one of its subjects.
    pub fn end_trials_of(self: &Arc<Self>, operator: &Operator) {
        self.end_sessions_of_callers("its operator was revoked", |caller| {
            operator.has_trial_principal(caller.principal.as_str())
        });
    }

    fn end_sessions_of_callers(self: &Arc<Self>, why: &str, is_meant: impl Fn(&Caller) -> bool) {
        self.end_sessions(why, &is_meant, |session| is_meant(&session.caller));
    }

    fn end_sessions(
        self: &Arc<Self>,
        why: &str,
        is_meant_caller: impl Fn(&Caller) -> bool,
        is_meant_session: impl Fn(&Session) -> bool,
    ) {
        self.stateless.end_of_callers(is_meant_caller);
        let tenants: Vec<_> = self.tenants.iter().map(|tenant| tenant.value().clone()).collect();
        let unkept = tenants.iter().flat_map(|tenant| tenant.sessions());
        unkept
            .filter(|session| !session.kind.has_client() && is_meant_session(session))
            .for_each(|session| session.end(why));
        let opened = self.all_sessions().into_iter();
        opened
            .filter(|session| is_meant_session(session))
            .for_each(|session| self.close_session(&session, why));
    }

    /// Closes the links of a principal to backends, except those that its tasks or its remaining
    /// sessions use.
    fn close_unused_links(&self, tenant: &TenantId, principal: &PrincipalId) {
        let Some(tenant) = self.tenant(tenant) else { return };
        for backend in tenant.backends() {
            let is_own =
                |scope: &LinkScope| matches!(scope, LinkScope::Principal(of, _) if of == principal);
            let links = backend.links.all();
            let unused = links.iter().filter(|link| is_own(&link.scope) && link.is_unused());
            unused.for_each(|link| backend.close_link(link));
        }
    }
}
