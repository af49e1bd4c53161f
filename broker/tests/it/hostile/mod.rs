//! Backends that lie, flood, stall and break the rules, on every wire. Each row is a line of a
//! table. After each of them the same connection, or a new one, serves an ordinary call.

mod damaged;
mod http;
mod pipes;
mod raw_http;

/// Returns this text with one bit of each byte flipped in turn: never the one that leaves ASCII, as
/// these wires carry text.
pub(crate) fn flipped(text: &str) -> impl Iterator<Item = String> {
    (0..text.len()).map(move |at| {
        let mut bytes = text.as_bytes().to_vec();
        bytes[at] ^= 1 << (at % 7);
        String::from_utf8(bytes).expect("it is ASCII")
    })
}
