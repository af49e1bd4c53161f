//! Sends everything back: what public test suites drive.
//!
//! Called by the example `websocket_echo`. Unlike the halves, which are for MCP, it takes binary and empty messages too, and leaves
//! line breaks alone.

use bytes::Bytes;

use super::{Limits, server};
use crate::{
    frame::{CloseReason, ReadError, WriteError, farewell},
    tcp::Stream,
};

/// Serves one connection until either side ends it.
pub async fn echo(stream: Stream, begun: Bytes, limits: &Limits) -> Result<(), ReadError> {
    let (mut source, mut sink) = server(stream, begun, limits);
    source.take_binary();
    let ended = loop {
        match source.receive().await {
            Ok(Some(message)) => match sink.send(message.opcode, &[message.payload]).await {
                // Closed: the next reading says why.
                Ok(()) | Err(WriteError::Closed) => {}
                Err(error) => break Err(ReadError::Io(error.into())),
            },
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    let goodbye = ended.as_ref().map_or_else(ReadError::goodbye, |()| CloseReason::Done);
    farewell(&mut source, &mut sink, goodbye).await;
    ended
}
