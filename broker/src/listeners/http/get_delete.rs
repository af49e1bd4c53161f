//! A GET opens an event stream of a session or resumes one; a DELETE ends the session (MCP 2025-11-25, Streamable HTTP).

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method as HttpMethod, Response, StatusCode};
use protocol::error::{ErrorKind, Refusal};

use super::{
    headers,
    inbound_request::InboundRequest,
    response::{self, Body, EventStreamOptions, event_stream_options, with_protocol_version},
};
use crate::{
    listeners::replicas::session_lookup::{SessionLocation, SessionLookup},
    sessions::{
        session::{ResumedStream, Session, StreamResumption},
        submit,
    },
};

/// Serves a GET or a DELETE of a session, on any replica.
pub(super) async fn serve(request: &InboundRequest<'_>) -> Result<Response<Body>, Refusal> {
    let (given, is_get) = (&request.head.headers, request.head.method == HttpMethod::GET);
    let session_id = headers::session_id(given)?;
    if is_get {
        headers::check_get_accept(given)?;
    }
    headers::protocol_version(given)?;
    let session_id = session_id.ok_or_else(headers::session_required)?;
    if is_get {
        request.broker.shared.limiters.overload.admits()?;
    }
    let mut lookup = SessionLookup::new(request, session_id);
    loop {
        let session = match lookup.locate(&Bytes::new()).await? {
            SessionLocation::Local(session) => session,
            SessionLocation::Answered(response) => return Ok(response),
        };
        session.touch();
        if !is_get {
            request.broker.delete_session(&session).await?;
            return Ok(response::empty(StatusCode::NO_CONTENT));
        }
        match open_event_stream(&session, given).await {
            Err(refusal) if refusal.kind == ErrorKind::SessionElsewhere => {
                if let Some(response) = lookup.retry_elsewhere(&session, refusal).await? {
                    return Ok(response);
                }
            }
            listening => return listening,
        }
    }
}

/// Serves a GET: opens a general stream, or resumes a stream after the client's last event.
async fn open_event_stream(
    session: &Arc<Session>,
    given: &HeaderMap,
) -> Result<Response<Body>, Refusal> {
    let last_event_id = headers::last_event_id(given)?;
    StreamResumption::new(session).take_opening()?;
    let permit = session.tenant.acquire_connection().await?;
    let ResumedStream { reader, gap } = match last_event_id {
        None => StreamResumption::new(session).open_general_stream().await?,
        Some(id) => {
            let resumed = submit::resume(session, id).await?;
            if !resumed.gap {
                session.shared.metrics.events_replayed(resumed.reader.backlog());
            }
            resumed
        }
    };
    Ok(with_protocol_version(
        response::event_stream(
            session,
            reader,
            &[],
            EventStreamOptions {
                gap,
                _permit: Some(permit),
                ..event_stream_options(session, given)
            },
        ),
        session,
    ))
}
