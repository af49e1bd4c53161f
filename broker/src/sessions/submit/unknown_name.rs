//! A request for a name that the catalog does not have. It may be the connect tool of a backend, or
//! an object of a backend that was not reached so far.

use std::sync::Arc;

use futures_util::future::join_all;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
};
use rules::{
    endpoint::Endpoint,
    exposed_names::{can_be_name_of, native_uri},
};

use tokio::sync::oneshot;

use super::{
    super::{
        connect_tool,
        session::{RequestContext, Session, local_requests::decide_after},
    },
    DeferredCall, UnlistedName, decide_and_start,
};
use crate::backends::{
    backend::{Backend, BackendState},
    link::Era,
};

/// Handles a request that cannot be routed. It may mean the connect tool of a backend, or wait for
/// a backend that connects. Otherwise the refusal is the answer.
pub(super) fn refuse_or_wait(
    session: &Arc<Session>,
    message: Message,
    request: RequestContext<'_>,
    refusal: Refusal,
    unlisted: UnlistedName<'_>,
) -> Result<(), Refusal> {
    if let Some(backend) = connect_tool::meant_by(session, &message, &refusal) {
        return connect_tool::answer(session, request, backend);
    }
    let unreached = unreached_backends(session, &message, &refusal);
    if !unreached.is_empty() {
        let _not_awaited =
            session.tenant.read_lists_of(&session.endpoint, &session.caller.principal);
    }
    if let UnlistedName::Waits(deferred) = unlisted
        && unreached.iter().any(|backend| is_connecting(backend))
    {
        return decide_after_first_attempts(session, message, request, unreached, deferred);
    }
    Err(unavailable_if_unreached(refusal, &unreached))
}

/// Returns the backends that may offer the name which `refusal` calls unknown, because they were
/// never reached. A session from before a restart may use such a name.
fn unreached_backends(
    session: &Session,
    message: &Message,
    refusal: &Refusal,
) -> Vec<Arc<Backend>> {
    let missing = [
        ErrorKind::ToolNotFound,
        ErrorKind::PromptNotFound,
        ErrorKind::ResourceNotFound,
        ErrorKind::ReferenceNotFound,
    ];
    if !session.endpoint.is_merged() || !missing.contains(&refusal.kind) {
        return Vec::new();
    }
    let subject = session.subject();
    // A hidden backend must not show by its state.
    let may_list_it = |backend: &Arc<Backend>| {
        let (lists, principal) = (&backend.principal_lists, &session.caller.principal);
        let are_unknown =
            lists.is_on() && (lists.is_failed(principal) || lists.is_unread(principal));
        (backend.is_never_reached() || are_unknown)
            && may_offer(&session.endpoint, backend, message)
            && session.tenant.may_use_backend(&subject, &backend.id)
    };
    session.tenant.backends_at(&session.endpoint).into_iter().filter(may_list_it).collect()
}

/// Returns whether the object that the message names can be one of `backend`. The names of a toolset
/// do not tell.
fn may_offer(endpoint: &Endpoint, backend: &Backend, message: &Message) -> bool {
    if *endpoint != Endpoint::Aggregated {
        return true;
    }
    let (name, uri) = (message.text(message.fields.name), message.text(message.fields.uri));
    match (name, uri) {
        (Some(name), _) => can_be_name_of(&backend.id, &name),
        (None, Some(uri)) => native_uri(&uri).is_some_and(|(id, _)| id == backend.id),
        (None, None) => true,
    }
}

fn is_connecting(backend: &Backend) -> bool {
    backend.health.state() == BackendState::Connecting
}

/// Decides the request once the first attempts to reach `backends` are over.
fn decide_after_first_attempts(
    session: &Arc<Session>,
    message: Message,
    request: RequestContext<'_>,
    backends: Vec<Arc<Backend>>,
    deferred: Option<&mut DeferredCall>,
) -> Result<(), Refusal> {
    let (id, stream) = (request.id.clone(), request.stream.clone());
    let holder = deferred.map(|deferred| {
        let (sender, receiver) = oneshot::channel();
        *deferred = Some(receiver);
        sender
    });
    let wait = async move {
        let attempts = backends.iter().map(|backend| {
            backend.wait_first_attempt_for(Era::Sessions, backend.timeouts().first_attempt())
        });
        join_all(attempts).await;
    };
    let (method, started_at, waiting) = (request.method, request.started_at, session.clone());
    decide_after(session, request, wait, move || {
        let request = RequestContext { id, method, stream: &stream, started_at };
        let call = decide_and_start(&waiting, message, request, UnlistedName::IsRefused)?;
        // A call that is dropped here continues as a task of the runtime.
        drop(holder.map(|holder| holder.send(call)));
        Ok(())
    })
}

/// Replaces a refusal for an unknown name that an unreached backend may offer.
fn unavailable_if_unreached(refusal: Refusal, unreached: &[Arc<Backend>]) -> Refusal {
    if unreached.is_empty() {
        return refusal;
    }
    let text = "no connected backend offers this name, and the broker has not reached a backend that may offer it";
    Refusal::new(ErrorKind::BackendUnavailable, text)
}
