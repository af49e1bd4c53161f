//! Request of an operator that another replica drains.

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri};
use rules::limits::replicas::DRAIN_REQUEST_WAIT;

use crate::{
    broker::Broker,
    listeners::http::response::{self, Body},
    session_location::PeerReplica,
};

/// Start of the path on the internal listener. The name of the replica follows, so that a later
/// process at the same address does not drain in place of an earlier one.
const PATH: &str = "/drain/";

/// Reason why another replica does not drain.
#[derive(Debug, thiserror::Error)]
pub(in crate::listeners) enum DrainRequestError {
    #[error("it cannot be reached at {address}: {reason}")]
    Unreachable { address: String, reason: String },
    #[error("another process answers at {address}")]
    OtherProcess { address: String },
    #[error("it answered with the status {status}")]
    Refused { status: StatusCode },
}

pub(super) fn matches_path(path: &str) -> bool {
    path.starts_with(PATH)
}

/// Requests that another replica drains.
pub(in crate::listeners) async fn send(
    broker: &Broker,
    replica: &PeerReplica,
) -> Result<(), DrainRequestError> {
    let PeerReplica { node, address } = replica;
    let unreachable = |reason: String| {
        let address = address.clone();
        DrainRequestError::Unreachable { address, reason }
    };
    let uri: Uri = format!("{PATH}{node}").parse().map_err(|_| unreachable("its name".into()))?;
    let mut request = Request::new(Bytes::new());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    let sent = broker.session_locator.peers.send(address, &request);
    let answer = match tokio::time::timeout(DRAIN_REQUEST_WAIT, sent).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(unreachable(error.to_string())),
        Err(_) => return Err(unreachable("it does not answer".to_owned())),
    };
    match answer.status() {
        StatusCode::ACCEPTED => Ok(()),
        StatusCode::MISDIRECTED_REQUEST => {
            Err(DrainRequestError::OtherProcess { address: address.clone() })
        }
        status => Err(DrainRequestError::Refused { status }),
    }
}

/// Takes the request of another replica.
pub(super) fn take(broker: &Broker, path: &str) -> Response<Body> {
    let own = broker.shared.persistence.node();
    if path.strip_prefix(PATH) != Some(own.as_str()) {
        return response::empty(StatusCode::MISDIRECTED_REQUEST);
    }
    tracing::info!("an operator asked another replica for the drain of this one");
    broker.drain();
    response::empty(StatusCode::ACCEPTED)
}
