//! Changes of a signed or sealed text that an input describes. Used by the targets of such texts.
//!
//! A mutation of the input cannot change the text: a key makes it after the mutation.

/// Most changes of a text.
const CHANGES_MAX: usize = 8;
/// Length from which a text is not repeated.
const REPEATED_BYTES_MAX: usize = 8 * 1024;

/// Changes a text as the bytes say. Three of them are one change: what is done, where, and with which
/// byte.
pub(super) fn changed(text: &[u8], changes: &[u8]) -> Vec<u8> {
    let mut bytes = text.to_vec();
    for change in changes.chunks_exact(3).take(CHANGES_MAX) {
        let [what, position, value] = [change[0], change[1], change[2]];
        let at = usize::from(position) * bytes.len() / 256;
        // The last letter of a part of base64 has bits that count for nothing.
        let mut ends = (0..bytes.len()).filter(|at| bytes[*at] == b'.');
        let end = ends.nth(usize::from(position)).unwrap_or(bytes.len());
        match what % 8 {
            0 => bytes.insert(at, value),
            1 => bytes.insert(end, value),
            _ if bytes.is_empty() => {}
            2 => bytes[at] = value,
            3 => bytes[at] ^= 1 << (value % 8),
            4 => drop(bytes.remove(at)),
            5 => bytes.truncate(at),
            6 if bytes.len() > REPEATED_BYTES_MAX => {}
            6 => bytes.extend_from_within(at..),
            _ => bytes[end.saturating_sub(1)] = value,
        }
    }
    bytes
}
