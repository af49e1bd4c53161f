//! Who asks without a session, and what an endpoint offers them.

use std::sync::Arc;

use protocol::error::{ErrorKind, Refusal};

use super::Broker;
use crate::{
    auth::Caller,
    backends::link::Era,
    rules::{client_transport::Transport, endpoint::Endpoint, endpoint_info::EndpointInfo},
    sessions::stateless::StatelessClient,
};

impl Broker {
    /// A caller without a session.
    pub fn visitor(
        &self,
        caller: Caller,
        endpoint: Endpoint,
        transport: Transport,
    ) -> Result<StatelessClient, Refusal> {
        let tenant = self
            .tenant(&caller.tenant)
            .ok_or_else(|| Refusal::new(ErrorKind::Unauthorized, "the tenant is gone"))?;
        self.check_endpoint(&caller, &endpoint)?;
        Ok(StatelessClient {
            tenant,
            caller,
            endpoint,
            transport,
            shared: self.shared.clone(),
            stateless: self.stateless.clone(),
            tasks: self.tasks.clone(),
        })
    }

    /// A caller that came in a while ago, and asks again on the same connection.
    pub fn readmit(&self, caller: &Caller) -> Result<Caller, Refusal> {
        if caller.key.as_ref().is_some_and(|key| !self.keyring.is_known(key)) {
            return Err(Refusal::new(ErrorKind::Unauthorized, "the key is gone"));
        }
        self.admit(caller.clone())
    }

    /// What the endpoint offers such a caller, made anew when the catalog changed.
    pub async fn offer_to(&self, visitor: &StatelessClient) -> Result<Arc<EndpointInfo>, Refusal> {
        let (modern, tenant) = (&self.stateless, &visitor.tenant);
        if let Some(offer) = modern.offer(tenant, &visitor.endpoint) {
            return Ok(offer);
        }
        // Before the offer: what changes meanwhile makes it old at once.
        let catalog = tenant.catalog();
        let offer = Arc::new(self.offer(tenant, &visitor.endpoint, Era::Stateless).await?);
        modern.note_offer(tenant, &visitor.endpoint, &catalog, &offer);
        Ok(offer)
    }
}
