//! Stands in for the adoption of sessions that other replicas left behind, which is being written.

use std::sync::Arc;

use protocol::{error::Refusal, ids::SessionId};
use storage::NodeRecord;

use crate::{actors::session::Session, auth::Caller, broker::Broker, rules::catalog::Endpoint};

/// The outcome of an attempt to own a session that is not here.
#[derive(Debug)]
pub enum Adoption {
    Here(Arc<Session>),
    /// Its owner's lease runs.
    Elsewhere(NodeRecord),
    /// There is none for this caller and endpoint.
    Absent,
}

impl Broker {
    pub async fn adopt(self: &Arc<Self>, id: &SessionId, caller: &Caller, endpoint: &Endpoint) -> Result<Adoption, Refusal> {
        let here = self.session_here(id, caller, endpoint);
        Ok(here.ok().flatten().map_or(Adoption::Absent, Adoption::Here))
    }
}
