//! The WebSocket layer in the server's role, against tungstenite.

use std::io::{self, Cursor, Read, Write};

use bytes::Bytes;
use tokio_tungstenite::tungstenite::{
    Message,
    protocol::{Role, WebSocket, WebSocketConfig},
};
use transport::{
    FrameSource as _, ReadError,
    websocket::{Limits, server_over},
};

use super::block_on;
use crate::{Outcome, Target, pieces::Pieces};

pub(super) const TARGET: Target = Target {
    name: "websocket",
    tokens: &["\u{1}", "\0", "{}", "\n", "\u{1}\u{1}", "é", "🦀"],
    bytes_max: 1024,
    check,
};

const MESSAGE_BYTES_MAX: usize = 300;

fn check(input: &[u8]) -> Outcome {
    let (ours, error) = read(input, input.len().max(1));
    for piece_bytes in [1, 7] {
        let (again, other) = read(input, piece_bytes);
        assert_eq!(
            (again, name(&other)),
            (ours.clone(), name(&error)),
            "pieces of {piece_bytes} bytes"
        );
    }
    let theirs = read_by_tungstenite(input);
    let (ours_text, theirs_text) =
        (without_blanks(&ours.concat()), without_blanks(theirs.concat().as_bytes()));
    if is_own_rule(&error) {
        assert!(theirs_text.starts_with(&ours_text), "{ours:?} before {error:?}, {theirs:?}");
    } else {
        assert_eq!(
            String::from_utf8_lossy(&ours_text),
            String::from_utf8_lossy(&theirs_text),
            "{ours:?} before {error:?}, {theirs:?}"
        );
    }
    Outcome::of(&(ours.len().min(6), name(&error), theirs.len().min(6)))
}

/// Returns whether tungstenite may read on where the broker refuses: it takes binary messages, other
/// limits, lengths in any form (those of control frames, too) and more close codes.
fn is_own_rule(error: &Option<ReadError>) -> bool {
    match error {
        Some(ReadError::NotText | ReadError::TooLong { .. }) => true,
        Some(ReadError::Protocol(rule)) => {
            ["shortest form", "close", "control frame"].iter().any(|own| rule.contains(own))
        }
        _ => false,
    }
}

fn name(error: &Option<ReadError>) -> String {
    error.as_ref().map(ToString::to_string).unwrap_or_default()
}

fn without_blanks(text: &[u8]) -> Vec<u8> {
    text.iter().filter(|byte| !byte.is_ascii_whitespace()).copied().collect()
}

fn read(input: &[u8], piece_bytes: usize) -> (Vec<Bytes>, Option<ReadError>) {
    let limits = Limits { message_bytes_max: MESSAGE_BYTES_MAX, ..Limits::default() };
    block_on(async {
        let reader = Pieces::new(input, piece_bytes);
        let writer = Pieces::new(&[], 1);
        let (mut source, _sink) = server_over(reader, writer, Bytes::new(), &limits);
        let mut messages = Vec::new();
        loop {
            match source.next().await {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => return (messages, None),
                Err(error) => return (messages, Some(error)),
            }
        }
    })
}

/// Returns the text messages that tungstenite reads.
fn read_by_tungstenite(input: &[u8]) -> Vec<String> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX));
    let mut socket =
        WebSocket::from_raw_socket(Sent(Cursor::new(input.to_vec())), Role::Server, Some(config));
    let mut messages = Vec::new();
    while let Ok(message) = socket.read() {
        match message {
            Message::Text(text) => messages.push(text.to_string()),
            // Nothing that follows counts.
            Message::Close(_) => break,
            _ => {}
        }
    }
    messages
}

/// A connection on which a client has sent everything.
#[derive(Debug)]
struct Sent(Cursor<Vec<u8>>);

impl Read for Sent {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Sent {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
