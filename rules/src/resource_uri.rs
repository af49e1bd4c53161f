//! Spellings of a resource URI that a server may take for one another.
//!
//! They differ by percent-encoding, the case of scheme and host, empty and dot segments,
//! backslashes, and characters that readers drop. Readers of `file:` URIs also differ in slashes, in
//! the host, and in whether a query is part of a name.

use std::collections::HashSet;

/// Rounds of percent-decoding: some servers decode twice.
const DECODE_ROUNDS: usize = 3;

/// The forms in which tolerant servers read a URI.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Readings {
    /// Forms that differ from the URI itself.
    pub(crate) usual: Vec<String>,
    /// Forms of readers that ignore the host.
    pub(crate) without_host: Vec<String>,
}

/// The spellings of one URI.
#[derive(Debug)]
pub struct Spellings(HashSet<String>);

impl Spellings {
    pub fn of(uri: &str) -> Self {
        Self(Readings::of(uri).with(uri).map(str::to_owned).collect())
    }

    /// Returns whether a server may take the URIs for one resource.
    pub fn include(&self, other: &str) -> bool {
        self.0.contains(other) || plainest(other).is_some_and(|plain| self.0.contains(&plain))
    }
}

/// Returns whether a server may take the URI for one that begins with this text.
pub fn is_read_with_prefix(uri: &str, prefix: &str) -> bool {
    Readings::of(uri).with(uri).any(|form| form.starts_with(prefix))
}

/// Returns a URI without what readers decode, drop and resolve. `None`: it has nothing of that.
pub(crate) fn plainest(uri: &str) -> Option<String> {
    let plain = || Parts::of(&decoded(without_breaks(uri).trim_matches(is_dropped))).joined(false);
    (!is_canonical(uri)).then(plain)
}

/// Returns a URI without the characters that readers drop anywhere in it.
fn without_breaks(uri: &str) -> String {
    uri.chars().filter(|symbol| !matches!(symbol, '\t' | '\n' | '\r')).collect()
}

/// Returns whether readers drop a character at an end of a URI.
fn is_dropped(symbol: char) -> bool {
    symbol <= ' '
}

impl Readings {
    /// Returns the forms of a URI. There are none if every server reads it as it is written.
    pub(crate) fn of(uri: &str) -> Self {
        if is_canonical(uri) {
            return Self::default();
        }
        let without_breaks = without_breaks(uri);
        let trimmed = without_breaks.trim_matches(is_dropped);
        let mut readings = Self::default();
        let mut read: Vec<&str> = Vec::new();
        // Not every reader drops these characters.
        let before = without_breaks.trim_start_matches(is_dropped);
        for spelling in [trimmed, &without_breaks, before, uri] {
            if !read.contains(&spelling) {
                readings.add(spelling);
                read.push(spelling);
            }
        }
        readings
    }

    /// Returns the URI itself and all its forms.
    pub(crate) fn with<'a>(&'a self, uri: &'a str) -> impl Iterator<Item = &'a str> {
        let forms = self.usual.iter().chain(&self.without_host);
        std::iter::once(uri).chain(forms.map(String::as_str))
    }

    fn add(&mut self, uri: &str) {
        // Servers differ in how often they decode, in what they take apart first, and in backslashes.
        for text in decodings(uri) {
            Parts::all(&text).iter().for_each(|parts| add_new(&mut self.usual, parts.forms()));
        }
        if !Parts::of(&decoded(uri)).is_file() {
            return;
        }
        let before_query = uri.split(['?', '#']).next().unwrap_or_default();
        for text in decodings(before_query) {
            for parts in Parts::all(&text) {
                if before_query != uri {
                    add_new(&mut self.usual, parts.forms());
                }
                if !parts.host.is_empty() {
                    let local = Parts { host: String::new(), ..parts };
                    add_new(&mut self.without_host, local.forms());
                }
            }
        }
    }
}

fn add_new(forms: &mut Vec<String>, more: Vec<String>) {
    for form in more {
        if !forms.contains(&form) {
            forms.push(form);
        }
    }
}

/// Returns whether no other URI is read like this one. This is the usual case, and needs no copy.
fn is_canonical(uri: &str) -> bool {
    let Some((scheme, rest)) = uri.split_once(':') else { return false };
    let is_file = scheme.eq_ignore_ascii_case(FILE);
    let (has_authority, rest) = match rest.strip_prefix("//") {
        Some(rest) if !is_file || rest.starts_with('/') => (true, rest),
        _ if is_file => return false,
        _ => (false, rest),
    };
    let host_bytes = if has_authority { rest.find('/').unwrap_or(rest.len()) } else { 0 };
    let is_lower = |part: &str| !part.bytes().any(|byte| byte.is_ascii_uppercase());
    let has_other_forms = uri.contains(['%', '\\'])
        || uri.bytes().any(|byte| byte <= b' ')
        || rest.contains("//")
        || rest.contains("/.")
        || (is_file && rest.contains(['?', '#']));
    !has_other_forms && is_lower(scheme) && is_lower(&rest[..host_bytes])
}

const FILE: &str = "file";

/// A URI taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Parts {
    scheme: String,
    has_authority: bool,
    host: String,
    path: String,
}

impl Parts {
    /// Returns what different readers take the URI apart into.
    fn all(uri: &str) -> Vec<Self> {
        let whole = Self::with_backslashes(uri);
        let mut all = vec![Self::of(uri)];
        // Some take it apart first: backslashes and encoded slashes before the first slash are then
        // parts of the host.
        for path in decodings(&whole.path) {
            let slashed = Self { path: path.replace('\\', "/"), ..whole.clone() };
            for parts in [slashed, Self { path, ..whole.clone() }] {
                if !all.contains(&parts) {
                    all.push(parts);
                }
            }
        }
        all
    }

    fn of(uri: &str) -> Self {
        let (scheme, rest) = uri.split_once(':').unwrap_or(("", uri));
        Self::of_parts(scheme, &rest.replace('\\', "/"))
    }

    /// Reads backslashes as parts of names.
    fn with_backslashes(uri: &str) -> Self {
        let (scheme, rest) = uri.split_once(':').unwrap_or(("", uri));
        Self::of_parts(scheme, rest)
    }

    fn of_parts(scheme: &str, rest: &str) -> Self {
        let (has_authority, rest) = match rest.strip_prefix("//") {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let host_bytes = if has_authority { rest.find('/').unwrap_or(rest.len()) } else { 0 };
        let (host, path) = rest.split_at(host_bytes);
        let mut parts = Self {
            scheme: scheme.to_ascii_lowercase(),
            has_authority,
            host: host.to_ascii_lowercase(),
            path: path.to_owned(),
        };
        // RFC 8089 and the URL standard: these forms name one file.
        if parts.is_file() {
            parts.has_authority = true;
            if parts.host == "localhost" {
                parts.host.clear();
            }
            if !parts.path.starts_with('/') {
                parts.path.insert(0, '/');
            }
        }
        parts
    }

    fn is_file(&self) -> bool {
        self.scheme == FILE
    }

    /// Returns the URI without empty and dot segments, in the forms of different readers. For some,
    /// two dots remove the last name. For others, they may remove an empty segment (the URL
    /// standard).
    fn forms(&self) -> Vec<String> {
        let mut forms = vec![self.joined(false)];
        add_new(&mut forms, vec![self.joined(true)]);
        forms
    }

    fn joined(&self, counts_empty: bool) -> String {
        let slashes = if self.has_authority { "//" } else { "" };
        let mut out = format!("{}:{slashes}{}", self.scheme, self.host);
        let mut segments: Vec<&str> = Vec::new();
        let path = self.path.strip_prefix('/').unwrap_or(&self.path);
        for segment in path.split('/') {
            match segment {
                ".." => _ = segments.pop(),
                "" if !counts_empty => {}
                "." => {}
                segment => segments.push(segment),
            }
        }
        segments.retain(|segment| !segment.is_empty());
        if self.path.starts_with('/') {
            out.push('/');
        }
        out.push_str(&segments.join("/"));
        if self.path.ends_with('/') && !segments.is_empty() {
            out.push('/');
        }
        out
    }
}

/// Decodes percent signs as often as a server may do.
fn decoded(uri: &str) -> String {
    decodings(uri).swap_remove(0)
}

/// Returns the text after each number of decodings: the most first, the text itself last.
fn decodings(uri: &str) -> Vec<String> {
    let mut texts = vec![uri.to_owned()];
    for _ in 0..DECODE_ROUNDS {
        let next = percent_decoded(&texts[texts.len() - 1]);
        if texts[texts.len() - 1] == next {
            break;
        }
        texts.push(next);
    }
    texts.reverse();
    texts
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
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_resource_become_one() {
        for (uri, plain) in [
            ("FILE:///srv/a", "file:///srv/a"),
            ("file:///s%72v/a", "file:///srv/a"),
            ("file:///s%2572v/a", "file:///srv/a"),
            ("file:////srv//a", "file:///srv/a"),
            ("file:///srv%2fa", "file:///srv/a"),
            ("file:///srv\\a", "file:///srv/a"),
            ("file:/srv/a", "file:///srv/a"),
            ("file:srv/a", "file:///srv/a"),
            ("file:\\srv\\a", "file:///srv/a"),
            ("file://localhost/srv/a", "file:///srv/a"),
            ("file://LocalHost/srv/a", "file:///srv/a"),
            (" fi\tle:///srv/\na ", "file:///srv/a"),
            ("file:///s%72v/%ff", "file:///srv/\u{fffd}"),
            ("https://HOST/A", "https://host/A"),
            ("file:///srv/%2e%2e/a/", "file:///a/"),
            ("file:///srv/./.a", "file:///srv/.a"),
            ("file:///100%", "file:///100%"),
        ] {
            assert_eq!(Readings::of(uri).usual[0], plain, "{uri}");
            assert_eq!(plainest(uri).as_deref(), Some(plain), "{uri}");
            assert!(
                Spellings::of(uri).include(plain) && Spellings::of(plain).include(uri),
                "{uri}"
            );
        }
        for uri in ["file:///srv/a", "note:Some", "https://host/a?b=c", "memo://a"] {
            assert_eq!(Readings::of(uri), Readings::default(), "{uri}");
            assert_eq!(plainest(uri), None, "{uri}");
            let spellings = Spellings::of(uri);
            assert!(spellings.include(uri) && !spellings.include("x:other"), "{uri}");
        }
    }

    #[test]
    fn spellings_of_file_uris_differ_in_the_host_and_in_the_query() {
        let query = Readings::of("file:///srv/%61?/../b").usual;
        assert!(
            ["file:///srv/b", "file:///srv/a"].iter().all(|form| query.contains(&(*form).into()))
        );
        assert_eq!(Readings::of("file://host/srv/a").without_host, ["file:///srv/a"]);
        let backslash = Readings::of(r"file://\~/srv/x/../secret/a");
        assert_eq!(backslash.without_host, ["file:///srv/secret/a"]);
        let encoded = Readings::of("FILE://%2f>/srv/%73ecret/a").without_host;
        assert!(encoded.contains(&"file:///srv/secret/a".to_owned()), "{encoded:?}");
        assert_eq!(Readings::of("https://host/%61?b").usual[0], "https://host/a?b");
        assert!(Readings::of("file:srv/%252e").usual.contains(&"file:///srv/%2e".to_owned()));
    }

    #[test]
    fn a_prefix_is_read_in_every_spelling() {
        for uri in ["ui://app/a", "UI://app/a", " ui://app/a", "u%69://app/a", "ui:\\\\app/a"] {
            assert!(is_read_with_prefix(uri, "ui://"), "{uri}");
        }
        for uri in ["gui://app/a", "file:///ui://a"] {
            assert!(!is_read_with_prefix(uri, "ui://"), "{uri}");
        }
    }
}
