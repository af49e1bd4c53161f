//! Spellings of a resource URI that a server may take for one another.
//!
//! They differ by percent-encoding, the case of scheme and host, empty and dot segments, and
//! backslashes.

use std::borrow::Cow;

/// Rounds of percent-decoding: some servers decode twice.
const DECODE_ROUNDS: usize = 3;

/// Returns the URI in the form that a tolerant server would read.
pub(super) fn canonical(uri: &str) -> Cow<'_, str> {
    if is_canonical(uri) {
        return Cow::Borrowed(uri);
    }
    let mut text = uri.to_owned();
    for _ in 0..DECODE_ROUNDS {
        let decoded = percent_decoded(&text);
        if decoded == text {
            break;
        }
        text = decoded;
    }
    let (scheme, rest) = text.split_once(':').unwrap_or(("", &text));
    let rest = rest.replace('\\', "/");
    let (slashes, path) = match rest.strip_prefix("//") {
        Some(rest) => ("//", rest),
        None => ("", rest.as_str()),
    };
    let (host, path) = match (slashes, path.find('/')) {
        ("//", Some(at)) => path.split_at(at),
        ("//", None) => (path, ""),
        _ => ("", path),
    };
    let mut out = format!("{}:{slashes}{}", scheme.to_ascii_lowercase(), host.to_ascii_lowercase());
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            ".." => _ = segments.pop(),
            "" | "." => {}
            segment => segments.push(segment),
        }
    }
    if path.starts_with('/') {
        out.push('/');
    }
    out.push_str(&segments.join("/"));
    if path.ends_with('/') && !segments.is_empty() {
        out.push('/');
    }
    Cow::Owned(out)
}

/// Returns whether no other URI is read like this one: the usual case, told without a copy.
fn is_canonical(uri: &str) -> bool {
    let Some((scheme, rest)) = uri.split_once(':') else { return false };
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let host = &rest[..rest.find('/').unwrap_or(rest.len())];
    !uri.contains(['%', '\\'])
        && !rest.contains("//")
        && !rest.contains("/.")
        && ![scheme, host].iter().any(|part| part.bytes().any(|byte| byte.is_ascii_uppercase()))
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digit = |at: usize| char::from(*bytes.get(at)?).to_digit(16);
        match (bytes[at], digit(at + 1).zip(digit(at + 2))) {
            (b'%', Some((high, low))) => {
                out.push((high << 4 | low) as u8);
                at += 3;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_resource_become_one() {
        for (uri, plain) in [
            ("file:///srv/a", "file:///srv/a"),
            ("FILE:///srv/a", "file:///srv/a"),
            ("file:///s%72v/a", "file:///srv/a"),
            ("file:///s%2572v/a", "file:///srv/a"),
            ("file:////srv//a", "file:///srv/a"),
            ("file:///srv%2fa", "file:///srv/a"),
            ("file:///srv\\a", "file:///srv/a"),
            ("https://HOST/A", "https://host/A"),
            ("note:Some", "note:Some"),
            ("file:///srv/%2e%2e/a/", "file:///a/"),
            ("file:///srv/./.a", "file:///srv/.a"),
            ("file:///100%", "file:///100%"),
        ] {
            assert_eq!(canonical(uri), plain, "{uri}");
        }
    }
}
