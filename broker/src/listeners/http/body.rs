//! The body of a request: read whole, within a limit and a time.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use protocol::error::{ErrorKind, Refusal};
use transport::BodyError;

use super::inbound_request::RequestBody;
use crate::limits::OVERLOAD_BODY_BYTES_MAX;

/// True when it takes little to find out what a body is.
pub(super) fn has_small_body(body: &impl RequestBody) -> bool {
    content_length(body).is_some_and(|bytes| bytes <= OVERLOAD_BODY_BYTES_MAX)
}

/// The length that a body announces.
pub(super) fn content_length(body: &impl RequestBody) -> Option<usize> {
    body.size_hint().exact().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// A body that says it is too long is refused at once. What is still sent is thrown away behind the answer, with the connection.
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

pub(super) async fn read_body(
    mut body: impl RequestBody,
    bytes_max: usize,
    time: Duration,
) -> Result<Bytes, Refusal> {
    check_body_size(&body, bytes_max)?;
    let read = {
        let mut reading = pin!(transport::read_body(&mut body, bytes_max));
        // Mostly it came with the head, and no time is needed to wait for it.
        match reading.as_mut().now_or_never() {
            Some(read) => Ok(read),
            None => tokio::time::timeout(time, reading).await,
        }
    };
    match read {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(BodyError::TooLarge { .. })) => Err(too_large(bytes_max)),
        Ok(Err(BodyError::Aborted { .. })) => {
            Err(Refusal::new(ErrorKind::InvalidRequest, "the request body broke off"))
        }
        Err(_) => {
            Err(Refusal::new(ErrorKind::InvalidRequest, "the request body did not come in time"))
        }
    }
}
