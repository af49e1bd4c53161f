//! Calls of the tool `connect`, after the lists of its backend have replaced it. A client calls it
//! again after its user connected an account, as the first call requested.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    downlevel,
    envelope::Message,
    error::{ErrorKind, Refusal},
    handshake,
    ids::{BackendId, RequestId},
    json,
    method::Method,
};
use rules::{
    access::{Object, Subject, Verdict},
    catalog::{Catalog, ListKind, ToolTraits},
    exposed_names::exposed_name,
};

use super::session::{
    CancelScope, Reply, RequestContext, Session, local_requests::spawn_local_request, questions,
};
use crate::{
    backends::{backend::Backend, link::failure::Failure},
    metrics::RequestOutcome,
    oauth::{TokenSource, UserTokens},
};

const NAME: &str = "connect";

/// Returns the backend whose tool `connect` a refused call means.
pub(super) fn meant_by(
    session: &Session,
    message: &Message,
    refusal: &Refusal,
) -> Option<Arc<Backend>> {
    if refusal.kind != ErrorKind::ToolNotFound || message.method != Method::ToolsCall {
        return None;
    }
    let name = message.text(message.fields.name)?;
    let subject = session.subject();
    session.tenant.backends_at(&session.endpoint).into_iter().find(|backend| {
        accounts(backend).is_some()
            && exposed_name(&backend.id, NAME) == name
            && is_permitted(session, &subject, &backend.id)
    })
}

/// Returns whether the policy lets a subject call the tool `connect` of a backend.
fn is_permitted(session: &Session, subject: &Subject, backend: &BackendId) -> bool {
    let Some(view) = session.tenant.access(&session.endpoint, subject) else { return true };
    let tool = Object::Tool { backend, name: NAME, traits: ToolTraits::default() };
    view.policy().decide(subject, Method::ToolsCall, &tool).verdict == Verdict::Allow
}

/// Returns whether a call of this tool is one of `connect`, which the backend does not list.
pub(super) fn is_unlisted(backend: &Backend, catalog: &Catalog, tool: Option<&str>) -> bool {
    tool == Some(NAME)
        && accounts(backend).is_some()
        && !catalog.has(&backend.id, ListKind::Tools, NAME)
}

/// Answers the call: the account is connected, or has to be.
pub(super) fn answer(
    session: &Arc<Session>,
    request: RequestContext<'_>,
    backend: Arc<Backend>,
) -> Result<(), Refusal> {
    let id = request.id.clone();
    spawn_local_request(session, request, CancelScope::Wait, |session| async move {
        let Some(accounts) = accounts(&backend) else {
            return Err(session.backend_gone(&backend.id));
        };
        if accounts.is_connected(&session.caller.principal).await {
            return Ok(Reply::Result(connected(&backend)));
        }
        Ok(unconnected(&session, &id, &backend, accounts))
    })
}

fn accounts(backend: &Backend) -> Option<&Arc<UserTokens>> {
    backend.tokens.as_ref().and_then(TokenSource::user)
}

fn connected(backend: &Backend) -> Bytes {
    let text = format!(
        "Your account for {} is connected. List the tools again to get the tools of {}.",
        backend.id, backend.id
    );
    let text = json::quote(&text);
    format!(r#"{{"content":[{{"type":"text","text":{text}}}]}}"#).into()
}

fn unconnected(
    session: &Session,
    id: &RequestId,
    backend: &Backend,
    accounts: &UserTokens,
) -> Reply {
    let reason = "no account of the user is connected".to_owned();
    let failure = Failure::Unconnected { reason, url: accounts.connect_url() };
    let frame = session.refusal_frame(&failure.refusal(&backend.id), Some(id));
    let Ok(error) = Message::decode(frame.clone(), &json::Limits::default()) else {
        return Reply::Frame(frame, RequestOutcome::Refused);
    };
    let agreement = &session.agreement;
    let opens_urls = agreement.client.elicitation_url && agreement.version.elicitation_url();
    if session.kind.has_client() && opens_urls {
        questions::record_elicitations_required(session, &error);
    } else if session.kind.has_client()
        && let Some(result) = downlevel::urls_as_result(&error)
    {
        return Reply::Frame(handshake::success(id, &result), RequestOutcome::Refused);
    }
    Reply::Frame(frame, RequestOutcome::Refused)
}
