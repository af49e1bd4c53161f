//! Encodes and decodes WebSocket frames (RFC 6455, section 5). No I/O.
//!
//! The decoder finds each fault as early as the bytes allow. It checks size, opcode, flags and
//! masking when the frame's head is complete. It checks the UTF-8 of text at the end of each
//! fragment.

use bytes::{BufMut, Bytes, BytesMut};

use crate::{frame::ReadError, read_buffer::ReadBuffer};

/// Role of this end of the connection. Clients mask the frames they send, servers do not (5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Server,
    Client,
}

pub(super) type Mask = [u8; 4];

const FINAL: u8 = 0x80;
const RESERVED_BITS: u8 = 0x70;
const OPCODE_BITS: u8 = 0x0f;
const MASKED: u8 = 0x80;
const LENGTH_16: u8 = 126;
const LENGTH_64: u8 = 127;

/// Largest payload of a control frame (5.5).
pub(super) const CONTROL_BYTES_MAX: usize = 125;
/// Largest reason in a close frame, after the two bytes of its code.
pub(super) const REASON_BYTES_MAX: usize = CONTROL_BYTES_MAX - 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Opcode {
    Continuation = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

impl Opcode {
    fn parse(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::Continuation,
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => return None,
        })
    }

    fn is_control(self) -> bool {
        self as u8 >= 8
    }
}

/// A frame or message that the peer sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DecodedFrame {
    Message(Message),
    /// A part of a message that is not complete.
    Fragment,
    Ping(Bytes),
    Pong,
    Close(Option<CloseFrame>),
}

/// A whole message. Text is valid UTF-8.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) opcode: Opcode,
    pub(super) payload: Bytes,
}

/// Content of a close frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CloseFrame {
    pub(super) code: u16,
    pub(super) reason: String,
}

/// Head of a frame that has been checked and taken from the buffer.
#[derive(Debug, Clone, Copy)]
struct FrameHeader {
    is_final: bool,
    opcode: Opcode,
    mask: Option<Mask>,
    payload_bytes: usize,
}

/// Decodes bytes into events.
#[derive(Debug)]
pub(super) struct Decoder {
    role: Role,
    message_bytes_max: usize,
    takes_binary: bool,
    head: Option<FrameHeader>,
    /// The fragments of an incomplete message.
    fragments: Option<Fragments>,
}

#[derive(Debug)]
struct Fragments {
    opcode: Opcode,
    payload: BytesMut,
    /// Number of bytes known to be valid UTF-8. The rest is the start of a character.
    valid_bytes: usize,
}

impl Decoder {
    /// Creates a decoder that accepts text messages only.
    pub(super) fn new(role: Role, message_bytes_max: usize) -> Self {
        Self { role, message_bytes_max, takes_binary: false, head: None, fragments: None }
    }

    /// Sets the limit from the next frame on.
    pub(super) fn set_message_limit(&mut self, message_bytes_max: usize) {
        self.message_bytes_max = message_bytes_max;
    }

    pub(super) fn take_binary(&mut self) {
        self.takes_binary = true;
    }

    /// Returns the next event that is complete in the buffer.
    pub(super) fn decode(
        &mut self,
        buffer: &mut ReadBuffer,
    ) -> Result<Option<DecodedFrame>, ReadError> {
        let head = match self.head {
            Some(head) => head,
            None => {
                let Some((head, head_bytes)) = self.parse_head(buffer.bytes())? else {
                    return Ok(None);
                };
                buffer.skip(head_bytes);
                *self.head.insert(head)
            }
        };
        if buffer.bytes().len() < head.payload_bytes {
            return Ok(None);
        }
        self.head = None;
        if let Some(mask) = head.mask {
            apply_mask(&mut buffer.bytes_mut()[..head.payload_bytes], mask);
        }
        let payload = buffer.take(head.payload_bytes, head.payload_bytes);
        Ok(Some(match head.opcode {
            Opcode::Ping => DecodedFrame::Ping(payload),
            Opcode::Pong => DecodedFrame::Pong,
            Opcode::Close => DecodedFrame::Close(parse_closing(&payload)?),
            _ => match self.take_data(head, payload)? {
                Some(message) => DecodedFrame::Message(message),
                None => DecodedFrame::Fragment,
            },
        }))
    }

    /// Returns the number of bytes missing from the current payload, or 0 if that is unknown.
    pub(super) fn wanted(&self, buffered: usize) -> usize {
        self.head.map_or(0, |head| head.payload_bytes.saturating_sub(buffered))
    }

    /// Returns the number of bytes of an incomplete message that were taken from the buffer, or
    /// `None` outside a message.
    pub(super) fn unfinished_bytes(&self) -> Option<usize> {
        match &self.fragments {
            Some(fragments) => Some(fragments.payload.len()),
            None => self.head.map(|_| 0),
        }
    }

    /// Returns the frame's head and its length once it is complete. Refuses a frame that must not
    /// follow the previous one.
    fn parse_head(&self, bytes: &[u8]) -> Result<Option<(FrameHeader, usize)>, ReadError> {
        let [first, second, rest @ ..] = bytes else { return Ok(None) };
        let is_final = first & FINAL != 0;
        if first & RESERVED_BITS != 0 {
            return Err(ReadError::Protocol(
                "a reserved bit is set, and no extension was agreed on",
            ));
        }
        let opcode = Opcode::parse(first & OPCODE_BITS)
            .ok_or(ReadError::Protocol("the opcode is reserved"))?;
        let is_masked = second & MASKED != 0;
        if is_masked != (self.role == Role::Server) {
            return Err(ReadError::Protocol(
                "a frame has the wrong masking; clients must mask frames, and servers must not",
            ));
        }
        let short = second & !MASKED;
        if opcode.is_control() && (!is_final || usize::from(short) > CONTROL_BYTES_MAX) {
            return Err(ReadError::Protocol(
                "a control frame is fragmented or longer than 125 bytes",
            ));
        }
        match (opcode, &self.fragments) {
            (Opcode::Binary, _) if !self.takes_binary => return Err(ReadError::NotText),
            (Opcode::Text | Opcode::Binary, Some(_)) => {
                return Err(ReadError::Protocol("a new message begins inside another one"));
            }
            (Opcode::Continuation, None) => {
                return Err(ReadError::Protocol("a continuation frame follows no open message"));
            }
            _ => {}
        }
        let (length, length_bytes) = match short {
            LENGTH_16 => match rest.first_chunk() {
                Some(digits) => (u64::from(u16::from_be_bytes(*digits)), 2),
                None => return Ok(None),
            },
            LENGTH_64 => match rest.first_chunk() {
                Some(digits) => (u64::from_be_bytes(*digits), 8),
                None => return Ok(None),
            },
            short => (u64::from(short), 0),
        };
        let fragment_bytes = self.fragments.as_ref().map_or(0, |fragments| fragments.payload.len());
        let bytes_max = if opcode.is_control() {
            CONTROL_BYTES_MAX
        } else {
            self.message_bytes_max.saturating_sub(fragment_bytes)
        };
        let payload_bytes = usize::try_from(length).ok().filter(|length| *length <= bytes_max);
        let payload_bytes =
            payload_bytes.ok_or(ReadError::TooLong { limit: self.message_bytes_max })?;
        if length_bytes == 2 && payload_bytes < usize::from(LENGTH_16)
            || length_bytes == 8 && payload_bytes <= usize::from(u16::MAX)
        {
            return Err(ReadError::Protocol("a length is not written in its shortest form"));
        }
        let mask = match (is_masked, rest[length_bytes..].first_chunk()) {
            (false, _) => None,
            (true, Some(mask)) => Some(*mask),
            (true, None) => return Ok(None),
        };
        let head_bytes = 2 + length_bytes + mask.map_or(0, |mask| mask.len());
        Ok(Some((FrameHeader { is_final, opcode, mask, payload_bytes }, head_bytes)))
    }

    /// Adds a data frame. Returns the message that it completes.
    fn take_data(
        &mut self,
        head: FrameHeader,
        payload: Bytes,
    ) -> Result<Option<Message>, ReadError> {
        if head.is_final && self.fragments.is_none() {
            // The usual case needs no copy.
            let is_valid = head.opcode != Opcode::Text || str::from_utf8(&payload).is_ok();
            return if is_valid {
                Ok(Some(Message { opcode: head.opcode, payload }))
            } else {
                Err(ReadError::InvalidUtf8)
            };
        }
        let first_fragment =
            || Fragments { opcode: head.opcode, payload: BytesMut::new(), valid_bytes: 0 };
        let fragments = self.fragments.get_or_insert_with(first_fragment);
        fragments.payload.extend_from_slice(&payload);
        fragments.check(head.is_final)?;
        let whole = if head.is_final { self.fragments.take() } else { None };
        Ok(whole.map(|whole| Message { opcode: whole.opcode, payload: whole.payload.freeze() }))
    }
}

impl Fragments {
    /// Checks that text is UTF-8 so far. A character may be split between two fragments, but must
    /// be complete at the end.
    fn check(&mut self, is_whole: bool) -> Result<(), ReadError> {
        if self.opcode != Opcode::Text {
            return Ok(());
        }
        match str::from_utf8(&self.payload[self.valid_bytes..]) {
            Ok(rest) => self.valid_bytes += rest.len(),
            Err(error) if error.error_len().is_some() || is_whole => {
                return Err(ReadError::InvalidUtf8);
            }
            Err(error) => self.valid_bytes += error.valid_up_to(),
        }
        Ok(())
    }
}

/// Parses the content of a close frame (5.5.1, 7.4).
fn parse_closing(payload: &[u8]) -> Result<Option<CloseFrame>, ReadError> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return if payload.is_empty() {
            Ok(None)
        } else {
            Err(ReadError::Protocol("the close code is incomplete"))
        };
    };
    let code = u16::from_be_bytes(*code);
    // Codes that may be sent: those of the RFC and IANA, those for libraries, and those for
    // applications.
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(ReadError::Protocol("the close code is reserved and must not be sent"));
    }
    let reason = str::from_utf8(reason).map_err(|_| ReadError::InvalidUtf8)?;
    Ok(Some(CloseFrame { code, reason: reason.to_owned() }))
}

/// Writes the head of a frame in one piece.
pub(super) fn put_head(
    buffer: &mut BytesMut,
    opcode: Opcode,
    payload_bytes: usize,
    mask: Option<Mask>,
) {
    let masked = if mask.is_some() { MASKED } else { 0 };
    buffer.put_u8(FINAL | opcode as u8);
    match payload_bytes {
        0..126 => buffer.put_u8(masked | payload_bytes as u8),
        126..=0xffff => {
            buffer.put_u8(masked | LENGTH_16);
            buffer.put_u16(payload_bytes as u16);
        }
        _ => {
            buffer.put_u8(masked | LENGTH_64);
            buffer.put_u64(payload_bytes as u64);
        }
    }
    if let Some(mask) = mask {
        buffer.put_slice(&mask);
    }
}

/// Writes a whole frame.
pub(super) fn put_frame(buffer: &mut BytesMut, opcode: Opcode, payload: &[u8], mask: Option<Mask>) {
    put_head(buffer, opcode, payload.len(), mask);
    let start = buffer.len();
    buffer.put_slice(payload);
    if let Some(mask) = mask {
        apply_mask(&mut buffer[start..], mask);
    }
}

/// Masks or unmasks (5.3), which is the same operation.
pub(super) fn apply_mask(bytes: &mut [u8], mask: Mask) {
    // The compiler vectorises these wide steps.
    let wide = [mask; 8];
    let (chunks, rest) = bytes.as_chunks_mut::<32>();
    for chunk in chunks {
        for (byte, mask) in chunk.iter_mut().zip(wide.as_flattened()) {
            *byte ^= mask;
        }
    }
    for (byte, mask) in rest.iter_mut().zip(wide.as_flattened()) {
        *byte ^= mask;
    }
}
