//! Reader of request bodies, with a size limit and a time limit.

use std::{future::poll_fn, pin::pin, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use protocol::error::{ErrorKind, Refusal};
use rules::limits::OVERLOAD_BODY_BYTES_MAX;
use transport::{
    BodyError,
    message_bound::{MessageMemory, WaitRefused},
};

use super::inbound_request::RequestBody;
use crate::listeners::duplex::unfinished_overload;

/// Returns whether the body is small enough to be read under overload.
pub(super) fn has_small_body(body: &impl RequestBody) -> bool {
    content_length(body).is_some_and(|bytes| bytes <= OVERLOAD_BODY_BYTES_MAX)
}

/// Returns the announced length of a body.
pub(super) fn content_length(body: &impl RequestBody) -> Option<usize> {
    body.size_hint().exact().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Refuses a body whose announced length exceeds the limit, before it is read. The connection
/// discards the rest of the body after the answer.
pub(super) fn check_body_size(body: &impl RequestBody, bytes_max: usize) -> Result<(), Refusal> {
    if content_length(body).is_some_and(|bytes| bytes > bytes_max) {
        Err(too_large(bytes_max))
    } else {
        Ok(())
    }
}

fn too_large(bytes_max: usize) -> Refusal {
    Refusal::new(ErrorKind::MessageTooLarge, format!("a message has at most {bytes_max} bytes"))
        .with("maxBytes", bytes_max)
}

pub(in crate::listeners) async fn read_body(
    body: impl RequestBody,
    bytes_max: usize,
    time: Duration,
) -> Result<Bytes, Refusal> {
    read_message(body, bytes_max, time, None).await
}

/// Counts a complete message that waits for its session, up to the time limit.
pub(super) async fn hold_message(
    memory: &mut MessageMemory,
    bytes: usize,
    time: Duration,
) -> Result<(), Refusal> {
    let holding = poll_fn(|context| memory.poll_hold(context, bytes));
    let held = tokio::time::timeout(time, holding).await.map_err(|_| unfinished_overload())?;
    held.map_err(|WaitRefused| unfinished_overload())?;
    memory.complete(bytes);
    Ok(())
}

/// Reads the body of a message. While it is incomplete, it holds a part of `memory`.
pub(super) async fn read_message(
    mut body: impl RequestBody,
    bytes_max: usize,
    time: Duration,
    mut memory: Option<&mut MessageMemory>,
) -> Result<Bytes, Refusal> {
    check_body_size(&body, bytes_max)?;
    let read = {
        let memory = memory.as_deref_mut();
        let mut reading = pin!(transport::read_body_within(&mut body, bytes_max, memory));
        // The body usually arrives with the head, and then needs no timer.
        match reading.as_mut().now_or_never() {
            Some(read) => Ok(read),
            None => tokio::time::timeout(time, reading).await,
        }
    };
    match read {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(BodyError::TooLarge { .. })) => Err(too_large(bytes_max)),
        Ok(Err(BodyError::Crowded)) => Err(unfinished_overload()),
        Ok(Err(BodyError::Aborted { .. })) => Err(Refusal::new(
            ErrorKind::InvalidRequest,
            "the request body ended before it was complete",
        )),
        Err(_) if memory.is_some_and(|memory| memory.is_waiting()) => Err(unfinished_overload()),
        Err(_) => {
            Err(Refusal::new(ErrorKind::InvalidRequest, "the request body did not come in time"))
        }
    }
}
