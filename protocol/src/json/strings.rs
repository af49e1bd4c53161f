//! Where a JSON string ends: most bytes of most messages are inside one, so that this is what reading them costs.
//!
//! Short strings, which keys are, are looked through eight bytes at a time in a register. What follows in long ones goes by
//! blocks, of which the compiler makes vector instructions of whatever processor there is.

const WORD: usize = size_of::<u64>();
const BLOCK: usize = 64;
/// So many words before blocks are worth it.
const SHORT: usize = 4;
/// A one in each byte.
const ONES: u64 = u64::MAX / 255;

/// Where a string ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    /// Index behind the closing quote.
    pub(super) at: usize,
    /// What it says is not what stands there.
    pub(super) has_escapes: bool,
}

/// The end of the string whose text begins at `at`. `None`: it does not end, or holds what no string may hold (RFC 8259, 7; an
/// escape that names half a character among it).
#[inline]
pub(super) fn end(text: &[u8], mut at: usize) -> Option<End> {
    let mut has_escapes = false;
    loop {
        at += plain(text.get(at..)?);
        match text.get(at)? {
            b'"' => return Some(End { at: at + 1, has_escapes }),
            b'\\' => (at, has_escapes) = (escape(text, at + 1)?, true),
            _ => return None,
        }
    }
}

/// How many bytes come before the first that does not stand for itself: a quote, a backslash, a control character.
#[inline]
fn plain(text: &[u8]) -> usize {
    let words = text.as_chunks::<WORD>().0;
    for (index, word) in words.iter().take(SHORT).enumerate() {
        match special_in(*word) {
            WORD => {}
            within => return index * WORD + within,
        }
    }
    plain_long(text, SHORT.min(words.len()) * WORD)
}

/// The same from `at` on, before which there is none.
#[inline(never)]
fn plain_long(text: &[u8], mut at: usize) -> usize {
    let blocks = text[at..].as_chunks::<BLOCK>().0;
    at += BLOCK * blocks.iter().take_while(|block| is_plain(block)).count();
    for word in text[at..].as_chunks::<WORD>().0 {
        match special_in(*word) {
            WORD => at += WORD,
            within => return at + within,
        }
    }
    at + text[at..].iter().take_while(|byte| !is_special(**byte)).count()
}

fn is_special(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// Without a way out in the middle, and so many bytes at once.
#[inline]
fn is_plain(block: &[u8; BLOCK]) -> bool {
    !block.iter().fold(false, |found, &byte| found | is_special(byte))
}

/// How many bytes of a word come before the first special one.
#[inline]
fn special_in(word: [u8; WORD]) -> usize {
    let word = u64::from_le_bytes(word);
    // A byte of zeroes borrows from the bit above it. Bytes above a true one may be taken for one; the first never is.
    let zero = |word: u64| word.wrapping_sub(ONES) & !word;
    let quote = zero(word ^ (ONES * u64::from(b'"')));
    let backslash = zero(word ^ (ONES * u64::from(b'\\')));
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    let found = (quote | backslash | control) & (ONES * 0x80);
    (found.trailing_zeros() / 8) as usize
}

/// Index behind the escape whose backslash was passed.
fn escape(text: &[u8], at: usize) -> Option<usize> {
    match text.get(at)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(at + 1),
        b'u' => match code_unit(text, at + 1)? {
            0xDC00..=0xDFFF => None,
            0xD800..=0xDBFF => {
                let is_pair = text.get(at + 5..at + 7)? == b"\\u" && matches!(code_unit(text, at + 7)?, 0xDC00..=0xDFFF);
                is_pair.then_some(at + 11)
            }
            _ => Some(at + 5),
        },
        _ => None,
    }
}

fn code_unit(text: &[u8], at: usize) -> Option<u32> {
    text.get(at..at + 4)?.iter().try_fold(0, |unit, &digit| Some(unit << 4 | char::from(digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One byte after the other.
    fn slowly(text: &[u8]) -> usize {
        text.iter().position(|byte| is_special(*byte)).unwrap_or(text.len())
    }

    #[test]
    fn every_byte_is_found_at_every_place_of_texts_of_every_length() {
        for length in 0..3 * BLOCK {
            let mut text: Vec<u8> = (0..length).map(|index| [b'a', 0x20, 0x21, 0x7f, 0x80, 0xff, b'[', b']'][index % 8]).collect();
            assert_eq!(plain(&text), length);
            for place in (0..length).rev() {
                for byte in [0, 0x1f, b'"', b'\\', b'\n'] {
                    text[place] = byte;
                    assert_eq!(plain(&text), place);
                    assert_eq!(plain(&text[place / 2..]), slowly(&text[place / 2..]));
                }
            }
        }
        for byte in 0..=u8::MAX {
            let word = [byte, byte.wrapping_add(1), b'"', b'a', b'a', b'a', b'a', b'a'];
            assert_eq!(special_in(word), slowly(&word), "{byte}");
        }
    }

    #[test]
    fn escapes_are_those_of_the_standard() {
        let ends = |text: &str| end(text.as_bytes(), 0).is_some_and(|end| end.at == text.len());
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
