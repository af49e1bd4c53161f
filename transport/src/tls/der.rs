//! Walks DER (ITU-T X.690): just enough to find names and dates in a certificate.
//!
//! Only given certificates that have been verified, but relies on nothing: what is not as expected is `None`.

pub(super) const BOOLEAN: u8 = 0x01;
pub(super) const INTEGER: u8 = 0x02;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;
pub(super) const UTF8_STRING: u8 = 0x0c;
pub(super) const PRINTABLE_STRING: u8 = 0x13;
pub(super) const IA5_STRING: u8 = 0x16;
pub(super) const UTC_TIME: u8 = 0x17;
pub(super) const GENERALIZED_TIME: u8 = 0x18;
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;

/// `[number]`, constructed: an explicit tag.
pub(super) const fn explicit(number: u8) -> u8 {
    0xa0 | number
}

/// `[number]`, primitive: an implicit tag over a string.
pub(super) const fn implicit(number: u8) -> u8 {
    0x80 | number
}

/// The elements of a constructed value, one after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct DerElements<'a>(pub(super) &'a [u8]);

impl<'a> DerElements<'a> {
    /// The content of the next element, which has to have this tag.
    pub(super) fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, content)| content)
    }

    /// The content of the next element if it has this tag; else nothing is taken.
    pub(super) fn optional(&mut self, tag: u8) -> Option<&'a [u8]> {
        let mut ahead = *self;
        let content = ahead.expect(tag)?;
        *self = ahead;
        Some(content)
    }
}

/// Tag and content; ends at the first thing that is not DER.
impl<'a> Iterator for DerElements<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let length = if first < 0x80 {
            usize::from(first)
        } else {
            // 0x80 would be the indefinite form, which DER does not have; four bytes are 4 GiB.
            let (digits, after) = rest
                .split_at_checked(usize::from(first & 0x7f))
                .filter(|(digits, _)| (1..=4).contains(&digits.len()))?;
            rest = after;
            digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit))
        };
        let (content, after) = rest.split_at_checked(length)?;
        self.0 = after;
        Some((tag, content))
    }
}
