//! Resource URIs as policy reads them: whether one climbs out of its own path, and whether it lies
//! below a root.
//!
//! Both are checked before a client's URI is sent anywhere. The least careful reader decides:
//!
//! - one that decodes percent signs often or never
//! - one that takes a query for a part of the path
//! - one that takes backslashes for slashes
//! - one that takes characters that look like dots for dots
//!
//! Invariant: a URI is judged and never changed; the client's bytes are sent on.

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use crate::characters;

/// How often percent-encoding may be wrapped into itself. Honest clients need one level.
const ENCODINGS_MAX: usize = 8;
/// Bytes that end a segment for some reader. `?`, `#` and `;` end a path for some and belong to a
/// name for others.
const SEGMENT_ENDS: &[u8] = b"/\\?#;:&=";
/// Schemes whose readers all know queries, because queries are a part of HTTP.
const WITH_QUERIES: [&str; 2] = ["http", "https"];

/// The URI climbs out of its own path, or hides what its path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traversal;

/// Refuses a URI with `..` as a segment, in any spelling and at any position.
pub fn check(uri: &str) -> Result<(), Traversal> {
    each_reading(
        uri,
        |_| true,
        |reading| !reading.split(|byte| SEGMENT_ENDS.contains(byte)).any(climbs),
    )
}

/// Refuses a relative path that leaves the folder it is joined to: `..`, an absolute path, a drive.
/// Control characters are refused too, as readers disagree about where they end a name.
pub fn check_relative(path: &str) -> Result<(), Traversal> {
    check(path)?;
    let has_controls =
        |reading: &[u8]| String::from_utf8_lossy(reading).chars().any(char::is_control);
    each_reading(path, |reading| !has_controls(reading), |_| true)?;
    // Readers of URLs drop spaces at the start.
    if path.trim_start_matches(' ').starts_with(['/', '\\']) {
        Err(Traversal)
    } else {
        stays_below(&format!("/{path}"), true)
    }
}

/// A URI below which resources may lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    scheme: String,
    /// Absent if the URI has none (`urn:a`), which differs from an empty one (`file:///a`).
    authority: Option<String>,
    /// Path without slashes at its end.
    path: String,
    /// True if all of the scheme lies below it (`memo://`).
    whole_scheme: bool,
}

impl Root {
    /// Parses an absolute URI that is written plainly: without query, fragment, percent-encoding,
    /// empty segments and dot segments.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = !text.contains(['?', '#', '%', '\\'])
            && !text.chars().any(|char| char.is_control() || char == ' ');
        let (scheme, rest) =
            text.split_once(':').filter(|(scheme, _)| plain && is_scheme(scheme))?;
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                (Some(authority.to_ascii_lowercase()), path)
            }
            None => (None, rest),
        };
        let whole_scheme = path.is_empty() && authority.as_deref().is_none_or(str::is_empty);
        let path = path.strip_suffix('/').unwrap_or(path);
        let segments = path.strip_prefix('/').unwrap_or(path).split('/');
        let odd = !path.is_empty()
            && segments.clone().any(|segment| segment.is_empty() || segment == ".");
        if odd || check(text).is_err() {
            return None;
        }
        Some(Self {
            scheme: scheme.to_ascii_lowercase(),
            authority,
            path: path.to_owned(),
            whole_scheme,
        })
    }

    /// Returns a root below which nothing lies.
    pub fn empty() -> Self {
        // The scheme is empty: no URI has one like it.
        Self { scheme: String::new(), authority: None, path: "..".to_owned(), whole_scheme: false }
    }

    /// Returns whether the URI is the root or lies below it, for every reader: it begins with the
    /// root's text, and the rest stays below.
    pub fn contains(&self, uri: &str) -> bool {
        if check(uri).is_err() {
            return false;
        }
        // A proper URI has no other spelling for these, while a plain letter needs no encoding.
        let uri = if self.path.is_ascii() { Cow::Borrowed(uri) } else { with_letters_decoded(uri) };
        let Some(rest) = self.rest_of(&uri) else { return false };
        if self.whole_scheme {
            return true;
        }
        if !self.has_queries() {
            return (rest.is_empty() || rest.starts_with('/')) && stays_below(rest, true).is_ok();
        }
        let path = rest.split(['?', '#']).next().unwrap_or_default();
        (path.is_empty() || path.starts_with('/')) && stays_below(path, false).is_ok()
    }

    fn has_queries(&self) -> bool {
        WITH_QUERIES.contains(&self.scheme.as_str())
    }

    /// Returns the rest of a URI that begins with the root. Only the host is compared without case,
    /// as each reader does.
    fn rest_of<'u>(&self, uri: &'u str) -> Option<&'u str> {
        let rest = uri
            .strip_prefix(self.scheme.as_str())
            .filter(|_| !self.scheme.is_empty())?
            .strip_prefix(':')?;
        if self.whole_scheme {
            return Some(rest);
        }
        let rest = match &self.authority {
            Some(authority) => {
                let (other_authority, rest) =
                    rest.strip_prefix("//")?.split_at_checked(authority.len())?;
                other_authority.eq_ignore_ascii_case(authority).then_some(rest)?
            }
            None => rest,
        };
        rest.strip_prefix(self.path.as_str())
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// Returns whether a segment leads to the parent. Some file systems drop spaces and dots at the end
/// of a name: `.. ` and `...` are `..` there. A plus is a space in forms. Some readers drop a
/// percent sign that encodes nothing.
fn climbs(segment: &[u8]) -> bool {
    segment.iter().filter(|byte| **byte == b'.').count() >= 2
        && segment.iter().all(|byte| matches!(byte, b'.' | b' ' | b'+' | b'%'))
}

/// Refuses the rest behind a root if a join to a folder would start over. It would start at the
/// root of all files or on another drive.
fn stays_below(rest: &str, has_drives: bool) -> Result<(), Traversal> {
    let is_safe = |reading: &[u8]| {
        let mut segments = reading.split(|byte| matches!(byte, b'/' | b'\\')).skip(1).peekable();
        while let Some(segment) = segments.next() {
            let is_last = segments.peek().is_none();
            if (segment.is_empty() && !is_last) || (has_drives && is_drive(segment)) {
                return false;
            }
        }
        true
    };
    each_reading(rest, |_| true, is_safe)
}

fn is_drive(segment: &[u8]) -> bool {
    matches!(segment, [letter, b':' | b'|', ..] if letter.is_ascii_alphabetic())
}

/// Checks the text as it is, and with its percent signs decoded once, twice and so on. `is_plain`
/// gets each decoded text, `is_safe` the text without characters that readers leave out. `Err`: one
/// of these is not safe.
fn each_reading(
    text: &str,
    is_plain: impl Fn(&[u8]) -> bool,
    is_safe: impl Fn(&[u8]) -> bool,
) -> Result<(), Traversal> {
    let mut text = Cow::Borrowed(text.as_bytes());
    for _ in 0..ENCODINGS_MAX {
        if hides_characters(&text) || !is_plain(&text) {
            return Err(Traversal);
        }
        let shown = folded(text);
        if !is_safe(&shown) {
            return Err(Traversal);
        }
        match decoded_once(&shown) {
            Some(decoded) => text = Cow::Owned(decoded),
            None => return Ok(()),
        }
    }
    Err(Traversal)
}

/// Returns whether the text holds a NUL, which ends a name for some readers, or is not UTF-8.
/// Overlong forms of `.` and `/` have been used to smuggle them.
fn hides_characters(text: &[u8]) -> bool {
    let never = text.iter().any(|byte| matches!(byte, 0 | 0xc0 | 0xc1 | 0xf5..));
    never || text.windows(2).any(|pair| matches!(pair, [0xe0, 0x80..=0x9f] | [0xf0, 0x80..=0x8f]))
}

/// Replaces characters that some readers take for ASCII, and removes those that some readers drop.
fn folded(text: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    if text.iter().all(|byte| matches!(byte, b' '..=b'~')) {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    for char in String::from_utf8_lossy(&text).chars() {
        match char {
            '\u{0}' => out.push(char),
            _ if char.is_control() || characters::is_ignorable(char) => {}
            // The full-width forms of ASCII.
            '\u{ff01}'..='\u{ff5e}' => out.extend(char::from_u32(u32::from(char) - 0xfee0)),
            '\u{2024}' | '\u{fe52}' | '\u{ff61}' | '\u{3002}' => out.push('.'),
            '\u{2025}' => out.push_str(".."),
            '\u{2026}' => out.push_str("..."),
            '\u{2044}' | '\u{2215}' | '\u{29f8}' => out.push('/'),
            // Yen and won replace the backslash in code pages of Windows.
            '\u{2216}' | '\u{29f5}' | '\u{29f9}' | '\u{fe68}' | '\u{a5}' | '\u{20a9}' => {
                out.push('\\')
            }
            _ if char.is_whitespace() => out.push(' '),
            _ => out.push(char),
        }
    }
    Cow::Owned(out.into_bytes())
}

/// Decodes the percent signs once. `None`: there is nothing to decode.
fn decoded_once(text: &[u8]) -> Option<Vec<u8>> {
    if !text.contains(&b'%') {
        return None;
    }
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        if let Some(byte) = hex_at(text, at, b"%") {
            out.push(byte);
            at += 3;
        } else if let (Some(high), Some(low)) = (hex_at(text, at, b"%u"), hex_at(text, at + 4, b""))
        {
            // Not a part of any standard, but of old scripts and servers.
            let char = char::from_u32(u32::from(high) << 8 | u32::from(low))
                .unwrap_or(char::REPLACEMENT_CHARACTER);
            out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
            at += 6;
        } else {
            out.push(text[at]);
            at += 1;
        }
    }
    (out.len() < text.len()).then_some(out)
}

/// Returns the byte whose two hexadecimal digits stand behind `sign`.
fn hex_at(text: &[u8], at: usize, sign: &[u8]) -> Option<u8> {
    let digits = text.get(at..)?.strip_prefix(sign)?;
    let hex = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
    u8::try_from(hex(digits.first())? * 16 + hex(digits.get(1))?).ok()
}

/// Returns the URI with encoded characters beyond ASCII decoded once, and the rest unchanged.
fn with_letters_decoded(uri: &str) -> Cow<'_, str> {
    let bytes = uri.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match hex_at(bytes, at, b"%").filter(|byte| !byte.is_ascii()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    // A text of another encoding does not begin with a root.
    String::from_utf8(out).map_or(Cow::Borrowed(uri), Cow::Owned)
}
