//! Finds the end of a JSON string. Most bytes of most messages are inside strings, so this is most
//! of the cost of reading.
//!
//! A byte that may not stand for itself in a string is special: a quote, a backslash, a control
//! character. The search takes sixteen bytes at a time, which most strings fit in. After many
//! chunks without a special byte, it takes whole blocks, and checks the result once per block.

use wide::u8x16;

const CHUNK: usize = 16;
const BLOCK: usize = 128;
/// Number of chunks after which blocks are worth their cost.
const SHORT: usize = 4;
/// Bit that is flipped in each byte. It moves the quote next to the control characters and the
/// space away from them, so that one comparison finds both.
const TURN: u8 = 0x02;
/// The quote with the bit flipped, above all control characters.
const LOW: u8 = b'"' ^ TURN;

/// End of a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StringEnd {
    /// Index behind the closing quote.
    pub(super) at: usize,
    /// True if the string has escapes, so that its value differs from its bytes.
    pub(super) has_escapes: bool,
}

/// Returns the end of the string whose text begins at `at`. `None`: it does not end, or holds
/// something that no string may hold (RFC 8259, 7), such as an escape of half a character.
#[inline]
pub(super) fn find_end(text: &[u8], mut at: usize) -> Option<StringEnd> {
    let mut has_escapes = false;
    loop {
        at += plain(text.get(at..)?);
        match text.get(at)? {
            b'"' => return Some(StringEnd { at: at + 1, has_escapes }),
            b'\\' => (at, has_escapes) = (escape(text, at + 1)?, true),
            _ => return None,
        }
    }
}

/// Returns the number of bytes before the first special one: a quote, a backslash, a control
/// character.
#[inline]
fn plain(text: &[u8]) -> usize {
    let chunks = text.as_chunks::<CHUNK>().0;
    for (index, chunk) in chunks.iter().take(SHORT).enumerate() {
        let found = specials_in(chunk);
        if found != 0 {
            return index * CHUNK + found.trailing_zeros() as usize;
        }
    }
    plain_long(text, SHORT.min(chunks.len()) * CHUNK)
}

/// Returns the number of bytes before the first special one at or behind `at`. There is none before
/// `at`.
#[inline(never)]
fn plain_long(text: &[u8], mut at: usize) -> usize {
    let blocks = text[at..].as_chunks::<BLOCK>().0;
    at += BLOCK * blocks.iter().take_while(|block| is_plain(block)).count();
    for chunk in text[at..].as_chunks::<CHUNK>().0 {
        let found = specials_in(chunk);
        if found != 0 {
            return at + found.trailing_zeros() as usize;
        }
        at += CHUNK;
    }
    at + text[at..].iter().take_while(|byte| !is_special(**byte)).count()
}

fn is_special(byte: u8) -> bool {
    byte ^ TURN <= LOW || byte == b'\\'
}

/// Returns a bit for each byte that is special; the lowest bit is the first byte.
#[inline]
fn specials_in(chunk: &[u8; CHUNK]) -> u32 {
    let bytes = u8x16::new(*chunk);
    let low = (bytes ^ u8x16::splat(TURN)).simd_le(u8x16::splat(LOW));
    (low | bytes.simd_eq(u8x16::splat(b'\\'))).to_bitmask()
}

/// Returns whether a block has no special byte. It neither leaves the loop early nor compares
/// inside it: the least of all bytes decides.
#[inline]
fn is_plain(block: &[u8; BLOCK]) -> bool {
    let (mut low, mut backslash) = (u8x16::MAX, u8x16::MAX);
    for chunk in block.as_chunks::<CHUNK>().0 {
        let bytes = u8x16::new(*chunk);
        low = low.min(bytes ^ u8x16::splat(TURN));
        backslash = backslash.min(bytes ^ u8x16::splat(b'\\'));
    }
    !(low.simd_le(u8x16::splat(LOW)) | backslash.simd_eq(u8x16::ZERO)).any()
}

/// Returns the index behind the escape whose backslash was passed.
fn escape(text: &[u8], at: usize) -> Option<usize> {
    match text.get(at)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(at + 1),
        b'u' => match code_unit(text, at + 1)? {
            0xDC00..=0xDFFF => None,
            0xD800..=0xDBFF => {
                let is_pair = text.get(at + 5..at + 7)? == b"\\u"
                    && matches!(code_unit(text, at + 7)?, 0xDC00..=0xDFFF);
                is_pair.then_some(at + 11)
            }
            _ => Some(at + 5),
        },
        _ => None,
    }
}

fn code_unit(text: &[u8], at: usize) -> Option<u32> {
    text.get(at..at + 4)?
        .iter()
        .try_fold(0, |unit, &digit| Some(unit << 4 | char::from(digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the plain bytes one by one.
    fn slowly(text: &[u8]) -> usize {
        text.iter().position(|byte| is_special(*byte)).unwrap_or(text.len())
    }

    #[test]
    fn every_special_byte_is_found_at_every_position_and_length() {
        for length in (0..3 * CHUNK).chain(2 * BLOCK..2 * BLOCK + 3 * CHUNK) {
            let mut text: Vec<u8> = (0..length)
                .map(|index| [b'a', 0x20, 0x21, 0x7f, 0x80, 0xff, b'[', b']'][index % 8])
                .collect();
            assert_eq!(plain(&text), length);
            for position in (0..length).rev() {
                for byte in [0, 0x1f, b'"', b'\\', b'\n'] {
                    text[position] = byte;
                    assert_eq!(plain(&text), position);
                    assert_eq!(plain(&text[position / 2..]), slowly(&text[position / 2..]));
                }
            }
        }
        for byte in 0..=u8::MAX {
            assert_eq!(is_special(byte), byte < 0x20 || byte == b'"' || byte == b'\\', "{byte}");
            assert_eq!(
                specials_in(&[byte; CHUNK]) == u32::from(u16::MAX),
                is_special(byte),
                "{byte}"
            );
            assert_eq!(!is_plain(&[byte; BLOCK]), is_special(byte), "{byte}");
        }
    }

    #[test]
    fn json_escapes_follow_the_standard() {
        let ends =
            |text: &str| find_end(text.as_bytes(), 0).is_some_and(|end| end.at == text.len());
        for good in [r#"\"\\\/\b\f\n\r\t""#, r#"\u00e9x""#, r#"\uD83D\uDE00""#, r#"\uffff""#] {
            assert!(ends(good), "{good}");
        }
        for bad in [
            r#"\x""#,
            r#"\u12g4""#,
            r#"\u+123""#,
            r#"\uD83D""#,
            r#"\uD83Dx\uDE00""#,
            r#"\uDE00""#,
            r#"\uD83D\u0041""#,
            r#"\""#,
            r"\u00",
            "\n\"",
        ] {
            assert!(!ends(bad), "{bad}");
        }
    }
}
