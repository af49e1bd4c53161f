//! Spellings of a resource URI that a server may take for one another.
//!
//! They differ by percent-encoding, the case of scheme and host, empty and dot segments,
//! backslashes, and characters that readers drop. Readers of `file:` URIs also differ in slashes, in
//! the host, and in whether a query is part of a name. The URL standard reads further spellings of
//! the URIs of some schemes, such as one with the default port, as one URL.

use std::collections::HashSet;

use url::Url;

use crate::limits::{URI_READING_BYTES_MIN, URI_READING_FACTOR};

/// Rounds of percent-decoding: some servers decode twice.
const DECODE_ROUNDS: usize = 3;

/// The forms in which tolerant servers read a URI.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Readings {
    /// Forms that differ from the URI itself.
    pub(crate) usual: Vec<String>,
    /// Forms of readers that ignore a part: the host of a file, the user and the fragment of a URL.
    pub(crate) reduced: Vec<String>,
    /// The URI has more forms than the broker computes. A server may take it for any resource.
    pub(crate) is_cut: bool,
}

/// The spellings of one URI.
#[derive(Debug)]
pub struct Spellings {
    forms: HashSet<String>,
    is_cut: bool,
}

impl Spellings {
    pub fn of(uri: &str) -> Self {
        let readings = Readings::of(uri);
        let forms = readings.with(uri).map(str::to_owned).collect();
        Self { forms, is_cut: readings.is_cut }
    }

    /// Returns whether a server may take the URIs for one resource.
    pub fn include(&self, other: &str) -> bool {
        let has_plain = || plainest(other).is_some_and(|plain| self.forms.contains(&plain));
        self.is_cut || self.forms.contains(other) || has_plain()
    }
}

/// Returns whether a server may take the URI for one that begins with this text.
pub fn is_read_with_prefix(uri: &str, prefix: &str) -> bool {
    let readings = Readings::of(uri);
    readings.is_cut || readings.with(uri).any(|form| form.starts_with(prefix))
}

/// Returns whether a server may read the URI as another one.
pub(crate) fn has_other_readings(uri: &str) -> bool {
    !is_canonical(uri)
}

/// Returns a URI without what readers decode, drop and resolve. `None`: it has nothing of that.
pub(crate) fn plainest(uri: &str) -> Option<String> {
    let plain = || {
        let decoded_text = decoded(without_breaks(uri).trim_matches(is_dropped));
        let standard = standard_form(&decoded_text).map(|form| decoded(&form));
        Parts::of(&standard.unwrap_or(decoded_text)).joined(false)
    };
    (!is_canonical(uri)).then(plain)
}

/// Returns the forms of a pattern for URIs that differ from the pattern as it is written. Each
/// reading of a URI that matches the pattern matches one of its forms or the pattern itself.
pub(crate) fn pattern_forms(pattern: &str) -> Vec<String> {
    let mut forms = decodings(pattern);
    if pattern.contains(':') && (!is_canonical(pattern) || has_encoded_form(pattern)) {
        for form in Readings::computed(pattern, usize::MAX).usual {
            if !forms.contains(&form) {
                forms.push(form);
            }
        }
    }
    forms.retain(|form| form != pattern);
    forms
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
        let bytes_max = (uri.len() * URI_READING_FACTOR).max(URI_READING_BYTES_MIN);
        Self::computed(uri, bytes_max)
    }

    /// Computes the forms, until their texts have more than `bytes_max` bytes.
    fn computed(uri: &str, bytes_max: usize) -> Self {
        let without_breaks = without_breaks(uri);
        let trimmed = without_breaks.trim_matches(is_dropped);
        // Not every reader drops these characters.
        let before = without_breaks.trim_start_matches(is_dropped);
        let mut reader = Reader { bytes_left: bytes_max, ..Reader::default() };
        let spellings = [trimmed, &without_breaks, before, uri];
        let is_complete = (0..spellings.len()).all(|at| {
            let is_repeated = spellings[..at].contains(&spellings[at]);
            is_repeated || reader.read_spelling(spellings[at]).is_some()
        });
        Self { usual: reader.usual.forms, reduced: reader.reduced.forms, is_cut: !is_complete }
    }

    /// Returns the URI itself and all its forms.
    pub(crate) fn with<'a>(&'a self, uri: &'a str) -> impl Iterator<Item = &'a str> {
        let forms = self.usual.iter().chain(&self.reduced);
        std::iter::once(uri).chain(forms.map(String::as_str))
    }
}

/// Reads one URI as different servers do. Each text and each URI that was taken apart is read once.
#[derive(Default)]
struct Reader {
    usual: FoundForms,
    reduced: FoundForms,
    texts: HashSet<String>,
    /// Bytes of further texts. `None` from a method: they have run out.
    bytes_left: usize,
}

/// Forms in the order in which they were found.
#[derive(Default)]
struct FoundForms {
    forms: Vec<String>,
    known: HashSet<String>,
    /// What they were made from.
    parts: HashSet<Parts>,
}

impl Reader {
    fn read_spelling(&mut self, uri: &str) -> Option<()> {
        // Servers differ in how often they decode, in what they take apart first, and in backslashes.
        for text in self.decodings(uri)? {
            if !self.texts.insert(text.clone()) {
                continue;
            }
            for parts in self.all_parts(&text)? {
                self.add_usual(parts)?;
            }
            let Some(standard) = standard_form(&text) else { continue };
            self.charge(standard.len())?;
            for form in self.decodings(&standard)? {
                self.add_usual(Parts::of(&form))?;
            }
            let Some(reduced) = standard_form_reduced(&standard) else { continue };
            for form in self.decodings(&reduced)? {
                self.add_reduced(Parts::of(&form))?;
            }
        }
        if Parts::of(&decoded(uri)).is_file() { self.read_file(uri) } else { Some(()) }
    }

    /// Reads the URI of a file without its query and without its host.
    fn read_file(&mut self, uri: &str) -> Option<()> {
        let before_query = uri.split(['?', '#']).next().unwrap_or_default();
        for text in self.decodings(before_query)? {
            for parts in self.all_parts(&text)? {
                let local = (!parts.host.is_empty())
                    .then(|| Parts { host: String::new(), ..parts.clone() });
                if before_query != uri {
                    self.add_usual(parts)?;
                }
                if let Some(local) = local {
                    self.add_reduced(local)?;
                }
            }
        }
        Some(())
    }

    fn decodings(&mut self, text: &str) -> Option<Vec<String>> {
        let texts = decodings(text);
        self.charge((texts.len() - 1) * text.len())?;
        Some(texts)
    }

    /// Returns what different readers take the URI apart into.
    fn all_parts(&mut self, uri: &str) -> Option<Vec<Parts>> {
        let whole = Parts::with_backslashes(uri);
        let mut all = vec![Parts::of(uri)];
        // Some take it apart first: backslashes and encoded slashes before the first slash are then
        // parts of the host.
        for path in self.decodings(&whole.path)? {
            let slashed = Parts { path: path.replace('\\', "/"), ..whole.clone() };
            for parts in [slashed, Parts { path, ..whole.clone() }] {
                if !all.contains(&parts) {
                    all.push(parts);
                }
            }
        }
        let without_dots: Vec<Parts> = all.iter().filter_map(Parts::without_dot_host).collect();
        all.extend(without_dots);
        Some(all)
    }

    fn add_usual(&mut self, parts: Parts) -> Option<()> {
        let bytes = self.usual.add(parts);
        self.charge(bytes)
    }

    fn add_reduced(&mut self, parts: Parts) -> Option<()> {
        let bytes = self.reduced.add(parts);
        self.charge(bytes)
    }

    fn charge(&mut self, bytes: usize) -> Option<()> {
        self.bytes_left = self.bytes_left.checked_sub(bytes)?;
        Some(())
    }
}

impl FoundForms {
    /// Adds the forms that a URI in parts has. Returns the bytes that this took.
    fn add(&mut self, parts: Parts) -> usize {
        if self.parts.contains(&parts) {
            return 0;
        }
        let mut bytes = 0;
        for form in parts.forms() {
            bytes += form.len();
            if self.known.insert(form.clone()) {
                self.forms.push(form);
            }
        }
        self.parts.insert(parts);
        bytes
    }
}

/// Returns whether no other URI is read like this one. This is the usual case, and needs no copy.
fn is_canonical(uri: &str) -> bool {
    let Some((scheme, rest)) = uri.split_once(':') else { return false };
    let is_file = scheme.eq_ignore_ascii_case(FILE);
    if !is_file && is_of_url_scheme(scheme) && !is_standard(rest) {
        return false;
    }
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
        || rest == "."
        || rest.starts_with("./")
        || (is_file && rest.contains(['?', '#', '|']));
    !has_other_forms && is_lower(scheme) && is_lower(&rest[..host_bytes])
}

const FILE: &str = "file";

/// Schemes with rules of their own in the URL standard, besides `file`.
const URL_SCHEMES: [&str; 5] = ["http", "https", "ws", "wss", "ftp"];

fn is_of_url_scheme(scheme: &str) -> bool {
    URL_SCHEMES.iter().any(|known| scheme.eq_ignore_ascii_case(known))
}

/// Returns whether the URL standard changes only the encoding of a URL. `rest` is the text behind
/// the scheme and its colon.
fn is_standard(rest: &str) -> bool {
    let Some((host, path)) = rest.strip_prefix("//").and_then(|rest| rest.split_once('/')) else {
        return false;
    };
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let last_label = host.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    // A last label that begins with a digit may be a part of an IPv4 address.
    last_label.starts_with(|first: char| first.is_ascii_lowercase())
        && host.bytes().all(is_plain)
        && !host.contains("xn--")
        && !path.contains('#')
}

/// Returns whether the URL standard encodes a character of a URI.
fn has_encoded_form(uri: &str) -> bool {
    uri.bytes().any(|byte| !byte.is_ascii_graphic() || b"\"<>^`{|}'".contains(&byte))
}

/// Returns a URI of a scheme of the URL standard as the standard serializes it. The braces of a
/// template stay.
fn standard_form(uri: &str) -> Option<String> {
    let (scheme, _) = uri.split_once(':')?;
    // The standard drops these at the start, and tabs and line breaks anywhere.
    let scheme = without_breaks(scheme.trim_start_matches(is_dropped));
    if !scheme.eq_ignore_ascii_case(FILE) && !is_of_url_scheme(&scheme) {
        return None;
    }
    let mut form = String::from(Url::parse(uri).ok()?);
    // A drive letter of a file: the standard reads `C|` as `C:`, and the library keeps it.
    if let Some([letter, b'|', ..]) = form.strip_prefix("file:///").map(str::as_bytes)
        && letter.is_ascii_alphabetic()
    {
        form = form.replacen('|', ":", 1);
    }
    match uri.contains('{') {
        true => Some(form.replace("%7B", "{").replace("%7D", "}")),
        false => Some(form),
    }
}

/// Returns a standard form without its user and its fragment. `None`: it has neither.
fn standard_form_reduced(form: &str) -> Option<String> {
    let (scheme, rest) = form.split_once("://").filter(|(scheme, _)| *scheme != FILE)?;
    let rest = rest.split('#').next().unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    Some(format!("{scheme}://{host}{path}")).filter(|reduced| reduced != form)
}

/// A URI taken apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Parts {
    scheme: String,
    has_authority: bool,
    host: String,
    path: String,
}

impl Parts {
    /// Returns what a reader finds that takes a host of one dot for a segment of the path.
    fn without_dot_host(&self) -> Option<Self> {
        let is_dot = self.has_authority && self.host == ".";
        let rest = || format!("//{}", self.path.trim_start_matches('/'));
        is_dot.then(|| Self::of_parts(&self.scheme, &rest()))
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
    fn forms(&self) -> [String; 2] {
        [self.joined(false), self.joined(true)]
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
    // The bytes of one character may be encoded a different number of times.
    let mut bytes = uri.as_bytes().to_vec();
    for _ in 0..DECODE_ROUNDS {
        let next = percent_decoded(&bytes);
        if next == bytes {
            break;
        }
        texts.push(String::from_utf8_lossy(&next).into_owned());
        bytes = next;
    }
    texts.reverse();
    texts
}

fn percent_decoded(bytes: &[u8]) -> Vec<u8> {
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
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_readings_of_a_uri_have_a_limit_and_a_cut_uri_is_read_as_any() {
        for usual in ["https://host/a%20b/".repeat(100), "file:///a/b%252fc?d".repeat(9)] {
            let readings = Readings::of(&usual);
            assert!(!readings.is_cut && !readings.usual.is_empty(), "{usual}");
        }
        let escapes = "%252525/%5c\\..".repeat(60);
        let hostile = format!("  HT\ttps://%2525252e%252541@h%252541{escapes}?%2525{escapes}#x ");
        let readings = Readings::of(&hostile);
        let bytes: usize = readings.with("").map(str::len).sum();
        assert!(readings.is_cut && bytes <= hostile.len() * (URI_READING_FACTOR + 2), "{bytes}");
        assert!(is_read_with_prefix(&hostile, "ui://"));
        assert!(Spellings::of(&hostile).include("file:///any"));
    }

    #[test]
    fn a_host_of_one_dot_is_read_as_a_segment_too() {
        let readings = Readings::of("note://./secret/x");
        assert!(readings.usual.contains(&"note://secret/x".to_owned()), "{readings:?}");
        assert_eq!(Readings::of("note://secret/x"), Readings::default());
    }

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
            ("note:./secret/x", "note:secret/x"),
            ("note:.", "note:"),
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
        assert_eq!(Readings::of("file://host/srv/a").reduced, ["file:///srv/a"]);
        let backslash = Readings::of(r"file://\~/srv/x/../secret/a");
        assert_eq!(backslash.reduced, ["file:///srv/secret/a"]);
        let encoded = Readings::of("FILE://%2f>/srv/%73ecret/a").reduced;
        assert!(encoded.contains(&"file:///srv/secret/a".to_owned()), "{encoded:?}");
        assert_eq!(Readings::of("https://host/%61?b").usual[0], "https://host/a?b");
        assert!(Readings::of("file:srv/%252e").usual.contains(&"file:///srv/%2e".to_owned()));
    }

    #[test]
    fn spellings_of_one_url_become_one() {
        for (uri, plain) in [
            ("https://h.example:443/a", "https://h.example/a"),
            ("https:h.example/a", "https://h.example/a"),
            ("https:/h.example/%61", "https://h.example/a"),
            ("https:///h.example/a", "https://h.example/a"),
            ("https:\\\\h.example\\a", "https://h.example/a"),
            ("https://\u{ff48}\u{3002}example/a", "https://h.example/a"),
            ("http://0x7f.1/a", "http://127.0.0.1/a"),
            ("wss://h.example", "wss://h.example/"),
            ("https://h.example:443/{a}/{+b}", "https://h.example/{a}/{+b}"),
            ("file:///C|/a", "file:///C:/a"),
            ("https://h.example:x/A", "https://h.example:x/A"),
        ] {
            assert_eq!(plainest(uri).as_deref(), Some(plain), "{uri}");
            assert!(Readings::of(uri).usual.contains(&plain.to_owned()), "{uri}");
            let both = Spellings::of(uri).include(plain) && Spellings::of(plain).include(uri);
            assert!(both, "{uri}");
        }
        let reduced = Readings::of("https://me@h.example/a#b").reduced;
        assert_eq!(reduced, ["https://h.example/a"]);
        assert!(!Spellings::of("https://h.example/a").include("https://h.example:444/a"));
    }

    proptest! {
        #[test]
        fn a_canonical_uri_is_read_as_it_is_written(uri in "(https?|file|note)://?/?[a-z0-9.:@-]{0,6}(/[a-zA-Z0-9.|?#\"<{}~-]{0,4}){0,3}") {
            if is_canonical(&uri) {
                let standard = standard_form(&uri).map(|form| decoded(&form));
                let read = Parts::of(&standard.unwrap_or_else(|| uri.clone())).joined(false);
                prop_assert_eq!(read, uri);
            }
        }
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
