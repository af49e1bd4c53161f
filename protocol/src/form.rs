//! The encoding of forms (`application/x-www-form-urlencoded`), which the queries of URLs have too.
//!
//! Invariant: a text with an incomplete escape, or with bytes that are not UTF-8, has no value. Its
//! readers could take different values from it.

/// Decodes a name or a value of a form (WHATWG URL, 5.1). Returns `None` if it is not form-encoded.
pub fn form_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(rest.next())?, digit(rest.next())?);
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_forms_are_decoded_or_refused() {
        for (text, value) in [
            ("", Some("")),
            ("%2Fa+b%41", Some("/a bA")),
            ("%C3%A4%2b", Some("ä+")),
            ("ä", Some("ä")),
            ("%", None),
            ("%4", None),
            ("%zz", None),
            ("%+1", None),
            ("%FF", None),
            ("%C3", None),
        ] {
            assert_eq!(form_decoded(text).as_deref(), value, "{text}");
        }
    }
}
