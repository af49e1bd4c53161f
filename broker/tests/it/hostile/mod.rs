//! Backends that lie, flood, stall and break the rules, on every wire they can be on. Each row is a line of a table; after
//! each of them the same connection, or a new one, serves an ordinary call.

mod damaged;
mod http;
mod pipes;
mod raw_http;

/// This text with one bit of each byte the other way round: never the one that leaves ASCII, as what is said here is text.
pub(crate) fn flipped(text: &str) -> impl Iterator<Item = String> {
    (0..text.len()).map(move |at| {
        let mut bytes = text.as_bytes().to_vec();
        bytes[at] ^= 1 << (at % 7);
        String::from_utf8(bytes).expect("it is ASCII")
    })
}
