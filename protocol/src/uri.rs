//! Resource URIs as policy sees them: whether one climbs out of its own path, and whether it lies below a root.
//!
//! Asked before a client's URI is sent anywhere. What decides is what the least careful reader could make of the URI:
//! percent-encoding is undone as often as it is there, backslashes are slashes, and case does not matter where it does not in
//! the standard (RFC 3986, 6.2.2). Invariant: a URI is judged and never changed; what is sent on are the client's bytes.

use std::borrow::Cow;

/// How often percent-encoding may be wrapped into itself. Nobody who means well needs more than once.
const ENCODINGS_MAX: usize = 8;

/// The URI climbs out of its own path, or hides what its path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traversal;

/// Looks for `..` as a segment, however it is spelled.
pub fn check(uri: &str) -> Result<(), Traversal> {
    parts(uri).map(drop)
}

/// A URI below which resources may lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    scheme: String,
    authority: Option<String>,
    segments: Vec<Vec<u8>>,
}

impl Root {
    /// An absolute URI, written plainly: without query, fragment, percent-encoding and dot segments.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = !text.contains(['?', '#', '%', '\\']) && !text.chars().any(|char| char.is_control() || char == ' ');
        let scheme_is_one = text.split_once(':').is_some_and(|(scheme, _)| is_scheme(scheme));
        let dotted = text.split('/').any(|segment| segment == ".");
        let parts = parts(text).ok().filter(|_| plain && scheme_is_one && !dotted)?;
        Some(Self { scheme: parts.scheme, authority: parts.authority, segments: parts.segments })
    }

    /// A root below which nothing lies.
    pub fn of_nothing() -> Self {
        Self { scheme: String::new(), authority: None, segments: vec![b"..".to_vec()] }
    }

    /// Whether the URI is the root or lies below it.
    pub fn holds(&self, uri: &str) -> bool {
        let Ok(parts) = parts(uri) else { return false };
        let whole_scheme = self.segments.is_empty() && self.authority.as_deref().is_none_or(str::is_empty);
        parts.scheme == self.scheme && (whole_scheme || (parts.authority == self.authority && parts.segments.starts_with(&self.segments)))
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

struct Parts {
    scheme: String,
    /// Absent where the URI has none (`urn:a`), which is another thing than an empty one (`file:///a`).
    authority: Option<String>,
    segments: Vec<Vec<u8>>,
}

fn parts(uri: &str) -> Result<Parts, Traversal> {
    let (scheme, rest) = uri.split_once(':').unwrap_or(("", uri));
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let decoded = decoded(rest.as_bytes())?;
    let slashed: Vec<u8> = decoded.iter().map(|byte| if *byte == b'\\' { b'/' } else { *byte }).collect();
    let (authority, path) = match slashed.strip_prefix(b"//") {
        Some(rest) => {
            let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
            (Some(&rest[..end]), &rest[end..])
        }
        None => (None, &slashed[..]),
    };
    // No authority is called `..`, but a reader that takes all after `scheme:` for a path would climb by it.
    if slashed.split(|byte| *byte == b'/').any(|segment| trimmed(segment) == b"..") {
        return Err(Traversal);
    }
    let scheme = scheme.to_ascii_lowercase();
    let authority = authority.map(|authority| String::from_utf8_lossy(authority).to_ascii_lowercase());
    // RFC 8089: the machine itself has two names.
    let authority = authority.map(|name| if scheme == "file" && name == "localhost" { String::new() } else { name });
    let segments = path.split(|byte| *byte == b'/').filter(|segment| !segment.is_empty() && *segment != b".");
    Ok(Parts { scheme, authority, segments: segments.map(<[u8]>::to_vec).collect() })
}

/// Some file systems drop spaces and dots at the end of a name: `.. ` and `...` are `..` there.
fn trimmed(segment: &[u8]) -> &[u8] {
    let end = segment.iter().rposition(|byte| !matches!(byte, b' ' | b'\t')).map_or(0, |last| last + 1);
    let segment = &segment[..end];
    // A path parameter (`..;x`) belongs to the segment for some readers and not for others.
    let segment = segment.split(|byte| *byte == b';').next().unwrap_or_default();
    if segment.len() > 2 && segment.iter().all(|byte| *byte == b'.') { b".." } else { segment }
}

/// Undoes percent-encoding until nothing changes.
fn decoded(text: &[u8]) -> Result<Cow<'_, [u8]>, Traversal> {
    let mut text = Cow::Borrowed(text);
    for _ in 0..ENCODINGS_MAX {
        // Bytes that begin no UTF-8 are how `.` and `/` were once smuggled; a NUL ends a name for some.
        if text.iter().any(|byte| matches!(byte, 0 | 0xc0 | 0xc1 | 0xf5..)) {
            return Err(Traversal);
        }
        match decoded_once(&text) {
            Some(next) => text = Cow::Owned(next),
            None => return Ok(text),
        }
    }
    Err(Traversal)
}

/// `None`: there is nothing to decode.
fn decoded_once(text: &[u8]) -> Option<Vec<u8>> {
    let hex = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        match (text[at], hex(text.get(at + 1)), hex(text.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    (out.len() < text.len()).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traversal_is_found_in_every_spelling() {
        for uri in [
            "file:///srv/../etc/passwd",
            "file:///..",
            "file:..",
            "file://../etc",
            "FILE:///srv/%2e%2E/etc",
            "file:///srv/.%2e/etc",
            "file:///srv%2f..%2fetc",
            "file:///srv/%252e%252e/etc",
            "file:///srv/%25252e%25252e/etc",
            "file:///srv\\..\\etc",
            "file:///srv/..%5cetc",
            "file:///srv/%c0%ae%c0%ae/etc",
            "file:///srv/a%00.txt",
            "file:///srv/.. /etc",
            "file:///srv/.../etc",
            "file:///srv/..;a=b/etc",
            "test://one/..?x",
            "note:a/../b",
            "..",
        ] {
            assert_eq!(check(uri), Err(Traversal), "{uri}");
        }
        let deep = (0..20).fold("file:///srv/%2e%2e/etc".to_owned(), |uri, _| uri.replace('%', "%25"));
        assert_eq!(check(&deep), Err(Traversal));
    }

    #[test]
    fn ordinary_uris_are_left_alone() {
        for uri in [
            "file:///srv/files/a..b/..c/d..",
            "file:///srv/./a",
            "git://repo/HEAD..main",
            "https://example.com/a%20b/100%25?q=../..#../x",
            "urn:isbn:1",
            "note:%7Bbraces%7D",
            "test://ünï/ç%C3%A7",
            "db://table/50%",
            "file:///{path}",
        ] {
            assert_eq!(check(uri), Ok(()), "{uri}");
        }
    }

    #[test]
    fn a_root_holds_itself_and_what_is_below() {
        let root = Root::parse("file:///srv/files/").unwrap();
        for uri in [
            "file:///srv/files",
            "file:///srv/files/",
            "file:///srv/files/a/b.txt",
            "FILE:///srv/files/a",
            "file://localhost/srv/files/a",
            "file:///srv//files/./a",
            "file:///srv/%66iles/a",
            "file:///srv/files%2Fa",
        ] {
            assert!(root.holds(uri), "{uri}");
        }
        for uri in [
            "file:///srv/filesystem/a",
            "file:///srv/Files/a",
            "file:///srv",
            "file:///",
            "file:/srv/files/a",
            "file://other/srv/files/a",
            "https:///srv/files/a",
            "file:///srv/files/../x",
            "file:///srv/%2566iles/../files/a",
            "srv/files/a",
        ] {
            assert!(!root.holds(uri), "{uri}");
        }
    }

    #[test]
    fn roots_of_other_schemes() {
        let site = Root::parse("https://Example.com/maps").unwrap();
        assert!(site.holds("https://example.com/maps/1?x=1") && !site.holds("https://example.com.evil/maps/1"));
        assert!(!site.holds("https://example.com/map") && !site.holds("http://example.com/maps/1"));
        assert!(!site.holds("https://example.com@evil/maps/1"));
        let memo = Root::parse("memo://").unwrap();
        assert!(memo.holds("memo://insights") && memo.holds("MEMO:x") && !memo.holds("memos://insights"));
        assert!(!Root::of_nothing().holds("") && !Root::of_nothing().holds("file:///") && !Root::of_nothing().holds(".."));
        assert!(Root::parse("urn:isbn").is_some_and(|root| root.holds("urn:isbn") && !root.holds("urn:isbn:1")));
        for text in ["", "/srv", "srv/files", "file:///a/../b", "file:///a%2fb", "file:///a?b", "1x:///a", "file:///a b", "file:///a/./b"] {
            assert_eq!(Root::parse(text), None, "{text}");
        }
    }
}
