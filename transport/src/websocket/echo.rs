//! Echo server for public test suites.
//!
//! Called by the example `websocket_echo`. Unlike the halves for MCP, it accepts binary and empty
//! messages, and does not change line breaks.

use bytes::Bytes;

use super::{Limits, server};
use crate::{
    frame::{CloseReason, ReadError, WriteError, close_gracefully},
    tcp::Stream,
};

/// Serves one connection until either side ends it.
pub async fn echo(stream: Stream, prefix: Bytes, limits: &Limits) -> Result<(), ReadError> {
    let (mut source, mut sink) = server(stream, prefix, limits);
    source.take_binary();
    let ended = loop {
        match source.receive().await {
            Ok(Some(message)) => match sink.send(message.opcode, &[message.payload]).await {
                // The next read returns the reason for the close.
                Ok(()) | Err(WriteError::Closed) => {}
                Err(error) => break Err(ReadError::Io(error.into())),
            },
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    let close_reason = ended.as_ref().map_or_else(ReadError::close_reason, |()| CloseReason::Done);
    close_gracefully(&mut source, &mut sink, close_reason).await;
    ended
}
