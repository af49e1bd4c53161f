//! Notice to all replicas that a principal has connected an account: sessions of the principal may
//! live on any of them.
//!
//! A lost notice delays the update of a replica, and a client gets no notification. A session
//! that moves is notified by its next owner.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Method, Request, Response, StatusCode, Uri};
use protocol::ids::{BackendId, PrincipalId, TenantId};
use rules::limits::oauth::{
    CONNECT_FORM_BYTES_MAX, CONNECTION_NOTICE_TRIES, CONNECTION_NOTICE_WAIT,
};
use serde::{Deserialize, Serialize};
use transport::PeerBody;

use crate::{
    broker::{Broker, session_lookup},
    listeners::http::{
        body,
        response::{self, Body},
    },
    session_location::PeerReplica,
};

/// Path on the internal listener.
const PATH: &str = "/connected";

#[derive(Serialize, Deserialize)]
struct ConnectionNotice {
    tenant: String,
    principal: String,
    backend: String,
}

pub(super) fn matches_path(path: &str) -> bool {
    path == PATH
}

/// Notifies this replica and all others. Must be called inside the runtime.
pub(in crate::listeners) fn announce(
    broker: &Arc<Broker>,
    tenant: TenantId,
    principal: PrincipalId,
    backend: BackendId,
) {
    broker.account_connected(&tenant, &principal, &backend);
    if !broker.shared.persistence.is_shared() {
        return;
    }
    let notice = ConnectionNotice {
        tenant: tenant.to_string(),
        principal: principal.as_str().to_owned(),
        backend: backend.to_string(),
    };
    let text = Bytes::from(serde_json::to_vec(&notice).unwrap_or_default());
    let sender = broker.clone();
    broker.shared.running.spawn(async move {
        let others = session_lookup::other_replicas(&sender).await;
        join_all(others.iter().map(|other| send(&sender, other, &text))).await;
    });
}

async fn send(broker: &Broker, replica: &PeerReplica, text: &Bytes) {
    let mut request = Request::new(text.clone());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static(PATH);
    for attempt in 1..=CONNECTION_NOTICE_TRIES {
        let sent = broker.session_locator.peers.send(&replica.address, &request);
        match tokio::time::timeout(CONNECTION_NOTICE_WAIT, sent).await {
            Ok(Ok(answer)) if answer.status() == StatusCode::NO_CONTENT => return,
            Ok(Ok(answer)) => {
                let status = answer.status().as_u16();
                return tracing::debug!(replica = %replica.node, status, "another replica refused the notice of a connection");
            }
            Ok(Err(error)) => {
                tracing::debug!(replica = %replica.node, %error, attempt, "the broker cannot send the notice of a connection to another replica");
            }
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Takes the notice of another replica.
pub(super) async fn take(broker: &Broker, request: Request<PeerBody>) -> Response<Body> {
    let time = broker.shared.config.timeouts.request_read;
    let text = match body::read_body(request.into_body(), CONNECT_FORM_BYTES_MAX, time).await {
        Ok(text) => text,
        Err(refusal) => return response::refusal_response(&broker.shared, &refusal, None),
    };
    let notice: Option<ConnectionNotice> = serde_json::from_slice(&text).ok();
    let named = notice.and_then(|notice| {
        let tenant = TenantId::parse(&notice.tenant).ok()?;
        Some((tenant, PrincipalId::new(notice.principal), BackendId::parse(&notice.backend).ok()?))
    });
    let Some((tenant, principal, backend)) = named else {
        return response::empty(StatusCode::BAD_REQUEST);
    };
    broker.account_connected(&tenant, &principal, &backend);
    response::empty(StatusCode::NO_CONTENT)
}
