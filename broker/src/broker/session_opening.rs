//! The opening of a session: the server's half of the handshake, its limits, and its first row.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    downlevel::Translator,
    envelope::Message,
    error::{ErrorKind, Refusal},
    handshake::{self, InitializeParams},
    version::Version,
};
use rules::{
    client_transport::Transport,
    endpoint::Endpoint,
    limits::{CLIENT_TEXT_BYTES_MAX, DISPLAY_CHARS_MAX},
};

use super::{Broker, tenant_gone};
use crate::{
    auth::Caller,
    backends::link::Era,
    metrics::Side,
    sessions::{
        loop_guard,
        session::{Agreement, Session, SessionParams, SessionPersister},
        tenant::Tenant,
    },
};

impl Broker {
    /// Performs the server's half of the handshake. Returns the new session and the result of
    /// `initialize`.
    pub async fn open_session(
        self: &Arc<Self>,
        caller: Caller,
        endpoint: Endpoint,
        transport: Transport,
        message: &Message,
    ) -> Result<(Arc<Session>, Bytes), Refusal> {
        self.admits_sessions()?;
        self.shared.limiters.overload.admits()?;
        let params = initialize_params(message)?;
        let tenant = self.tenant(&caller.tenant).ok_or_else(tenant_gone)?;
        tenant.take_budget(&caller.principal)?;
        loop_guard::refuse_own_request(&tenant, message)?;
        let offer = self.offer(&tenant, &endpoint, Era::Sessions, &caller).await?;
        let version = Version::negotiate(&params.requested_version);
        let offer = offer.restricted_to(version);
        let reader = Translator { version, strict: self.shared.config.compat.strict };
        let server_info =
            reader.server_info(&offer.server_info).map_or(offer.server_info, Bytes::from);
        let result = handshake::initialize_result(
            version,
            offer.capabilities.raw(),
            &server_info,
            offer.instructions.as_deref(),
        );
        let agreement = Agreement {
            version,
            client: params.capabilities,
            client_name: display(&params.client_name),
            client_version: display(&params.client_version),
            advertised: offer.capabilities,
        };
        let params = SessionParams { tenant: tenant.clone(), caller, endpoint, transport };
        let session = Session::open(params, agreement, self.shared.clone());
        self.register_new(&tenant, &session).await?;
        self.shared.metrics.version_negotiated(version, Side::Client);
        tracing::info!(session = %session.digest, tenant = %tenant.id, principal = %session.caller.principal, client = ?session.agreement.client_name, version = version.as_str(), "session opened");
        Ok((session, result))
    }

    /// Registers a new session in this process and stores it. A session that is refused or not
    /// stored ends here.
    async fn register_new(
        self: &Arc<Self>,
        tenant: &Tenant,
        session: &Arc<Session>,
    ) -> Result<(), Refusal> {
        let parts = Some((self.clone(), session.clone()));
        let mut unclaimed = UnclaimedSession { parts, may_be_stored: false };
        // The session is registered first, so that a drain or a removal of the tenant finds it.
        self.sessions.insert(session.id.clone(), session.clone());
        let admitted = tenant
            .open_session(session)
            .await
            .and_then(|()| self.admits_sessions())
            .and_then(|()| self.recheck_admission(session));
        if let Err(refusal) = admitted {
            unclaimed.disarm();
            self.forget_session(session, "refused");
            return Err(refusal);
        }
        unclaimed.may_be_stored = true;
        if let Err(refusal) = SessionPersister::new(session).store_new().await {
            // An error is possible although the session was stored.
            unclaimed.may_be_stored = self.shared.persistence.may_have_stored(&session.key);
            return Err(refusal);
        }
        // The name may have lapsed during the write, so that the reclaim missed the session.
        if session.is_leaving() || !session.is_owned_by(&self.shared.persistence.node()) {
            self.admits_sessions()?;
            return Err(Refusal::new(
                ErrorKind::StoreUnavailable,
                "the broker could not keep the session, try again",
            ));
        }
        unclaimed.disarm();
        Ok(())
    }

    fn admits_sessions(&self) -> Result<(), Refusal> {
        if self.draining() {
            return Err(Refusal::new(
                ErrorKind::Draining,
                "the broker is shutting down and takes no new sessions",
            ));
        }
        Ok(())
    }

    /// Checks the credential and the tenant again. A later revocation of either finds the session.
    fn recheck_admission(&self, session: &Session) -> Result<(), Refusal> {
        let is_revoked = session.caller.key.as_ref().is_some_and(|key| !self.keyring.contains(key));
        if is_revoked || session.caller.is_revoked() || !session.tenant.enabled() {
            return Err(Refusal::new(
                ErrorKind::Unauthorized,
                "the key or token was revoked, or the tenant was disabled",
            ));
        }
        Ok(())
    }
}

/// A session whose client does not know its id yet. If the client hangs up or is refused, the drop
/// ends the session, which would otherwise stay until it is idle.
struct UnclaimedSession {
    parts: Option<(Arc<Broker>, Arc<Session>)>,
    /// False: its end needs no write, which an outage of the store would keep in memory.
    may_be_stored: bool,
}

impl UnclaimedSession {
    fn disarm(mut self) {
        self.parts = None;
    }
}

impl Drop for UnclaimedSession {
    fn drop(&mut self) {
        let Some((broker, session)) = self.parts.take() else { return };
        let why = "its client never received the session";
        match self.may_be_stored {
            true => broker.close_session(&session, why),
            false => broker.forget_session(&session, why),
        }
    }
}

/// Reads the params of `initialize`. Refuses params that are too long.
fn initialize_params(message: &Message) -> Result<InitializeParams, Refusal> {
    let params = InitializeParams::parse(message)?;
    if message.params.is_some_and(|params| params.len() > CLIENT_TEXT_BYTES_MAX) {
        let text = format!("params of initialize must have at most {CLIENT_TEXT_BYTES_MAX} bytes");
        return Err(Refusal::new(ErrorKind::InvalidParams, text));
    }
    Ok(params)
}

/// Returns a peer's text in a form that is safe to display.
fn display(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(DISPLAY_CHARS_MAX).collect()
}
