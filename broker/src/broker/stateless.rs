//! Stateless callers, and the offer of an endpoint to them.

use std::sync::Arc;

use protocol::error::{ErrorKind, Refusal};
use rules::{
    client_transport::Transport, endpoint::Endpoint, endpoint_info::EndpointInfo,
    limits::FIRST_CATALOG_WAIT,
};

use super::{Broker, tenant_gone};
use crate::{
    auth::Caller,
    backends::link::Era,
    sessions::{stateless::StatelessClient, tenant::Tenant},
};

impl Broker {
    /// Returns a client without a session.
    pub fn stateless_client(
        &self,
        caller: Caller,
        endpoint: Endpoint,
        transport: Transport,
    ) -> Result<StatelessClient, Refusal> {
        let tenant = self.tenant(&caller.tenant).ok_or_else(tenant_gone)?;
        self.check_endpoint(&caller, &endpoint)?;
        Ok(self.stateless_client_of(tenant, caller, endpoint, transport))
    }

    /// Returns the client of a request whose tenant has the endpoint.
    pub fn stateless_client_of(
        &self,
        tenant: Arc<Tenant>,
        caller: Caller,
        endpoint: Endpoint,
        transport: Transport,
    ) -> StatelessClient {
        StatelessClient {
            tenant,
            caller,
            endpoint,
            transport,
            shared: self.shared.clone(),
            stateless: self.stateless.clone(),
            tasks: self.tasks.clone(),
        }
    }

    /// Admits a caller again that sends another request on the same connection.
    pub fn readmit_caller(&self, caller: &Caller) -> Result<Caller, Refusal> {
        let is_gone = caller.key.as_ref().is_some_and(|key| !self.keyring.contains(key));
        if is_gone || caller.is_revoked() {
            return Err(Refusal::new(
                ErrorKind::Unauthorized,
                "the key or token was revoked or has expired",
            ));
        }
        self.admit(caller.clone())
    }

    /// Returns the endpoint's offer to such a caller. It is rebuilt when the catalog has changed.
    pub async fn offer_to(&self, client: &StatelessClient) -> Result<Arc<EndpointInfo>, Refusal> {
        let (stateless, tenant) = (&self.stateless, &client.tenant);
        let principal = &client.caller.principal;
        tenant.wait_for_lists_of(&client.endpoint, principal, FIRST_CATALOG_WAIT).await;
        if let Some(offer) = stateless.offer(client) {
            return Ok(offer);
        }
        // The catalog is read before the offer, so that a change in between makes the offer
        // outdated at once.
        let catalog = client.visible_catalog();
        let offer = self.offer(tenant, &client.endpoint, Era::Stateless, &client.caller);
        // Boxed, because it is rare and would enlarge the future of every call.
        let offer = Arc::new(Box::pin(offer).await?);
        // Lists of the principal that arrived meanwhile may be in the offer, and not in the catalog.
        if Arc::ptr_eq(&catalog, &client.visible_catalog()) {
            stateless.record_offer(tenant, &client.endpoint, &catalog, &offer);
        }
        Ok(offer)
    }
}
