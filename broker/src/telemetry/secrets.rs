//! Recognizes text that looks like a secret, under any name. The forms are:
//!
//! - tokens after `Bearer`
//! - JSON web tokens
//! - keys with an issuer's prefix
//! - private keys in PEM
//! - passwords in URLs
//!
//! Used where foreign text is stored or shown: in the audit log and in answers to operators. Each
//! byte of the text is read a fixed number of times. A secret that looks like any other word is not
//! recognized. Where clients pass such secrets, arguments should not be recorded.

use protocol::uri;

/// Replacement of a secret.
pub const REDACTED: &str = "[redacted]";

/// Prefixes of keys, by issuer.
const PREFIXES: [&str; 32] = [
    "sk-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "rk_test_",
    "whsec_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "gldt-",
    "glrt-",
    "xoxa-",
    "xoxb-",
    "xoxe-",
    "xoxp-",
    "xoxr-",
    "xoxs-",
    "xapp-",
    "AIza",
    "ya29.",
    "npm_",
    "pypi-",
    "hf_",
    "SG.",
    "dop_v1_",
    "shpat_",
    "AGE-SECRET-KEY-",
    "mcpb_",
];
/// Minimum number of characters after such a prefix.
const REST_MIN: usize = 16;
/// Minimum length of a credential after `Bearer` or `Basic`.
const CREDENTIAL_MIN: usize = 8;
const JWT_MIN: usize = 32;
/// Length of access key ids of AWS. They begin with one of these prefixes.
const AWS_LENGTH: usize = 20;
const AWS_PREFIXES: [&str; 6] = ["AKIA", "ASIA", "ABIA", "ACCA", "AGPA", "AROA"];

/// Returns the text without secrets, or `None` if it contains none.
pub fn mask_secrets(text: &str) -> Option<String> {
    masked_by(&SecretScan::new(text))
}

fn masked_by(scan: &SecretScan<'_>) -> Option<String> {
    let text = scan.text;
    let mut found = Vec::new();
    private_keys(scan, &mut found);
    words(scan, &mut found);
    passwords(scan, &mut found);
    if found.is_empty() {
        return None;
    }
    // Three sorted runs, which a stable sort merges.
    found.sort();
    let (mut shown, mut at) = (String::with_capacity(text.len()), 0);
    for (start, end) in found {
        if start >= at {
            shown.push_str(&text[at..start]);
            shown.push_str(REDACTED);
        }
        at = at.max(end);
    }
    shown.push_str(&text[at..]);
    Some(shown)
}

/// Returns a URI for the audit log and traces: without user and password, and without the values of
/// its query.
///
/// Everything that a reader could interpret as a path is shown. A `file:` URI has no query. A URI
/// with `..` as a segment does not count as having one.
pub fn mask_uri(uri: &str) -> String {
    // On the aggregated endpoint, a backend's name and a plus precede the scheme.
    let scheme = uri.split_once(':').and_then(|(scheme, _)| scheme.rsplit('+').next());
    if scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case("file")) {
        return uri.to_owned();
    }
    let shown = match uri.find(['?', '#']).filter(|_| uri::check(uri).is_ok()) {
        Some(at) => format!("{}{REDACTED}", &uri[..=at]),
        None => uri.to_owned(),
    };
    let Some((scheme, rest)) = shown.split_once("://") else { return shown };
    let (authority, path) = rest.split_at(rest.find(['/', '\\', '?', '#']).unwrap_or(rest.len()));
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://{REDACTED}@{host}{path}"),
        None => shown,
    }
}

type SecretRanges = Vec<(usize, usize)>;

/// A text, and in tests the number of bytes that were read.
struct SecretScan<'t> {
    text: &'t str,
    #[cfg(test)]
    bytes_read: std::cell::Cell<usize>,
}

impl<'t> SecretScan<'t> {
    fn new(text: &'t str) -> Self {
        Self {
            text,
            #[cfg(test)]
            bytes_read: std::cell::Cell::new(0),
        }
    }

    #[cfg(test)]
    fn record(&self, bytes: usize) {
        self.bytes_read.set(self.bytes_read.get() + bytes);
    }

    #[cfg(not(test))]
    fn record(&self, _bytes: usize) {}

    /// Returns the position of a text at or after `from`.
    fn find(&self, from: usize, what: &str) -> Option<usize> {
        let found = self.text[from..].find(what).map(|offset| from + offset);
        self.record(found.map_or(self.text.len(), |offset| offset + what.len()) - from);
        found
    }

    /// Returns the end of a run of matching bytes, which has at most `most` bytes.
    fn end_of(&self, from: usize, most: usize, is: impl Fn(u8) -> bool) -> usize {
        let length =
            self.text.as_bytes()[from..].iter().take(most).take_while(|byte| is(**byte)).count();
        self.record(length + 1);
        from + length
    }

    /// Returns a part of the text that is read a fixed number of times.
    fn part(&self, from: usize, to: usize) -> &'t str {
        self.record(to - from);
        &self.text[from..to]
    }
}

fn private_keys(scan: &SecretScan<'_>, found: &mut SecretRanges) {
    const BEGIN: &str = "-----BEGIN ";
    const END: &str = "-----END ";
    const DASHES: &str = "-----";
    let mut at = 0;
    while let Some(start) = scan.find(at, BEGIN) {
        at = start + BEGIN.len();
        let Some(label_end) = scan.find(at, DASHES) else { return };
        let label = scan.part(at, label_end);
        at = label_end;
        if !label.contains("PRIVATE KEY") {
            continue;
        }
        // A key without its end is a secret up to the end of the text.
        let closing = scan.find(at, END).and_then(|end| scan.find(end + END.len(), DASHES));
        at = closing.map_or(scan.text.len(), |end| end + DASHES.len());
        found.push((start, at));
    }
}

/// Finds secrets among the words of characters that tokens may contain.
fn words(scan: &SecretScan<'_>, found: &mut SecretRanges) {
    let is_inside = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_of_credential = |byte: u8| is_inside(byte) || matches!(byte, b'+' | b'/' | b'=' | b'~');
    let bytes = scan.text.as_bytes();
    let (mut at, mut announced) = (0, false);
    while at < bytes.len() {
        if !is_inside(bytes[at]) {
            // Only spaces may separate the keyword and its credential.
            announced &= bytes[at] == b' ';
            scan.record(1);
            at += 1;
            continue;
        }
        // A text that is too short for a credential is read again as words. It is short, so the
        // cost is bounded.
        if announced && scan.end_of(at, CREDENTIAL_MIN, is_of_credential) == at + CREDENTIAL_MIN {
            let end = scan.end_of(at, usize::MAX, is_of_credential);
            found.push((at, end));
            (at, announced) = (end, false);
            continue;
        }
        let end = scan.end_of(at, usize::MAX, is_inside);
        let word = scan.part(at, end);
        if is_key(word) {
            found.push((at, end));
        }
        announced = word.eq_ignore_ascii_case("bearer") || word.eq_ignore_ascii_case("basic");
        at = end;
    }
}

fn is_key(word: &str) -> bool {
    let has_digit = |text: &str| text.bytes().any(|byte| byte.is_ascii_digit());
    let is_jwt =
        || word.starts_with("eyJ") && word.len() >= JWT_MIN && word.matches('.').count() >= 2;
    let is_aws =
        || word.len() == AWS_LENGTH && AWS_PREFIXES.iter().any(|prefix| word.starts_with(prefix));
    let is_aws =
        || is_aws() && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit());
    let is_issued = || {
        let mut rests = PREFIXES.iter().filter_map(|prefix| word.strip_prefix(prefix));
        rests.any(|rest| rest.len() >= REST_MIN && has_digit(rest))
    };
    is_jwt() || is_aws() || is_issued()
}

/// Finds passwords in `scheme://user:password@host`.
fn passwords(scan: &SecretScan<'_>, found: &mut SecretRanges) {
    const AFTER_SCHEME: &str = "://";
    let ends = |character: char| {
        matches!(character, '/' | '?' | '#' | '"' | '\'' | '\\') || character.is_whitespace()
    };
    let mut at = 0;
    while let Some(start) = scan.find(at, AFTER_SCHEME).map(|start| start + AFTER_SCHEME.len()) {
        let end = scan.text[start..].find(ends).map_or(scan.text.len(), |end| start + end);
        let authority = scan.part(start, end);
        if let Some((user, _)) = authority.rsplit_once('@')
            && user.contains(':')
        {
            found.push((start, start + user.len()));
        }
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Joins a prefix and a text. A literal key would make scanners report this file.
    fn key(prefix: &str, rest: &str) -> String {
        format!("{prefix}{rest}")
    }

    #[test]
    fn text_that_looks_like_a_secret_is_masked_anywhere() {
        let rest = "canary0Canary1Canary2";
        let mut secrets: Vec<String> = PREFIXES.iter().map(|prefix| key(prefix, rest)).collect();
        secrets.extend(["AKIA", "ASIA"].map(|prefix| key(prefix, "IOSFODNN7EXAMPLE")));
        secrets.push(key("eyJhbGciOiJIUzI1NiJ9.", "eyJzdWIiOiJjYW5hcnkifQ.c2lnbmF0dXJlLWNhbmFyeQ"));
        for secret in &secrets {
            for text in [
                secret.clone(),
                format!("use {secret}, please"),
                format!("--key={secret}\n"),
                format!("{{\"a\":\"{secret}\"}}"),
            ] {
                let shown = mask_secrets(&text).unwrap_or_else(|| panic!("{text}"));
                assert_eq!(shown, text.replace(secret.as_str(), REDACTED));
            }
        }
        assert_eq!(
            mask_secrets("Authorization: Bearer abc/def+ghi==").unwrap(),
            "Authorization: Bearer [redacted]"
        );
        assert_eq!(
            mask_secrets("curl -H 'authorization: basic  dXNlcjpwYXNz'").unwrap(),
            "curl -H 'authorization: basic  [redacted]'"
        );
        assert_eq!(
            mask_secrets("psql postgres://me:canary@db/x?y").unwrap(),
            "psql postgres://[redacted]@db/x?y"
        );
    }

    #[test]
    fn private_keys_are_masked_even_if_truncated() {
        for label in ["PRIVATE KEY", "RSA PRIVATE KEY", "OPENSSH PRIVATE KEY"] {
            let pem = format!("-----BEGIN {label}-----\ncanary\ncanary\n-----END {label}-----");
            assert_eq!(
                mask_secrets(&format!("a {pem} b {pem} c")).unwrap(),
                "a [redacted] b [redacted] c"
            );
            assert_eq!(mask_secrets(&format!("a {}", &pem[..40])).unwrap(), "a [redacted]");
        }
        assert_eq!(
            mask_secrets("-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----"),
            None
        );
        assert_eq!(mask_secrets("-----BEGIN "), None);
    }

    #[test]
    fn words_that_are_not_secrets_are_not_masked() {
        for text in [
            "",
            "the bearer of this letter",
            "sk-learn",
            "sk-learn-preprocessing-and-more",
            "eyJust a word",
            "AKIA is a prefix",
            "https://example.com/a:b@c",
            "mail me@example.com",
            "2026-11-22T10:00:00.000Z",
            "größer als ~ñ",
        ] {
            assert_eq!(mask_secrets(text), None, "{text}");
        }
    }

    /// Returns a text of at least `bytes` bytes that repeats a part.
    fn repeated(part: &str, bytes: usize) -> String {
        part.repeat(bytes / part.len() + 1)
    }

    #[test]
    fn s06_a_uri_is_shown_with_every_possible_part_of_its_path() {
        for (uri, shown) in [
            ("file:///srv/a?/../../etc/passwd", "file:///srv/a?/../../etc/passwd"),
            ("FILE:///srv/a#b", "FILE:///srv/a#b"),
            ("b+file:///srv/a?b", "b+file:///srv/a?b"),
            ("notes://a?/../b", "notes://a?/../b"),
            ("https://me:canary@example.com/a", "https://[redacted]@example.com/a"),
            ("https://example.com/a?token=canary", "https://example.com/a?[redacted]"),
            ("https://example.com/a#canary", "https://example.com/a#[redacted]"),
            ("b+test://greeting", "b+test://greeting"),
            ("urn:isbn:1", "urn:isbn:1"),
        ] {
            assert_eq!(mask_uri(uri), shown);
        }
    }

    #[test]
    fn s12_every_text_is_read_a_fixed_number_of_times() {
        const PASSES_MAX: usize = 12;
        let parts = [
            "a/",
            "a=",
            "a+",
            "a~b ",
            "Bearer ",
            "Bearer a/",
            "basic a",
            "-----BEGIN ",
            "-----BEGIN PRIVATE KEY",
            "-----END ",
            "://",
            "://a:b@",
            "://a",
            "eyJ.",
            "eyJa.b.",
            "sk-",
            "sk-0",
            "sk-sk-0123456789abcdef/",
            "x",
            " ",
            "-",
            "ü/",
            "a/Bearer -----BEGIN PRIVATE KEY-----://u:p@h ",
            "-----BEGIN PRIVATE KEY----------END ",
        ];
        for part in parts {
            for bytes in [256, 16 * 1024, 256 * 1024] {
                let text = repeated(part, bytes);
                let scan = SecretScan::new(&text);
                let _shown = masked_by(&scan);
                let read = scan.bytes_read.get();
                assert!(
                    read <= PASSES_MAX * text.len(),
                    "{part:?}: {read} bytes read of {}",
                    text.len()
                );
            }
        }
    }

    /// Simple reference implementation of the mask, which measures each word as a whole at any
    /// cost.
    mod reference {
        use super::super::{CREDENTIAL_MIN, REDACTED, is_key};

        pub(super) fn masked(text: &str) -> Option<String> {
            let mut found = private_keys(text);
            found.extend(words(text));
            found.extend(passwords(text));
            found.sort_unstable();
            let (mut shown, mut at) = (String::new(), 0);
            for (start, end) in &found {
                if *start >= at {
                    shown = shown + &text[at..*start] + REDACTED;
                }
                at = at.max(*end);
            }
            (!found.is_empty()).then(|| shown + &text[at..])
        }

        fn private_keys(text: &str) -> Vec<(usize, usize)> {
            let (mut found, mut at) = (Vec::new(), 0);
            while let Some(start) = text[at..].find("-----BEGIN ").map(|start| at + start) {
                at = start + "-----BEGIN ".len();
                let Some(label) = text[at..].find("-----").map(|end| &text[at..at + end]) else {
                    break;
                };
                if label.contains("PRIVATE KEY") {
                    at = text[at..].find("-----END ").map_or(text.len(), |end| {
                        let after = at + end + "-----END ".len();
                        text[after..]
                            .find("-----")
                            .map_or(text.len(), |end| after + end + "-----".len())
                    });
                    found.push((start, at));
                }
            }
            found
        }

        fn words(text: &str) -> Vec<(usize, usize)> {
            let is_inside = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            let is_of_credential = |byte: u8| is_inside(byte) || b"+/=~".contains(&byte);
            let (bytes, mut found, mut at, mut announced) = (text.as_bytes(), Vec::new(), 0, false);
            while at < bytes.len() {
                let word = bytes[at..].iter().take_while(|byte| is_inside(**byte)).count();
                let credential =
                    bytes[at..].iter().take_while(|byte| is_of_credential(**byte)).count();
                if word == 0 {
                    announced &= bytes[at] == b' ';
                    at += 1;
                } else if announced && credential >= CREDENTIAL_MIN {
                    found.push((at, at + credential));
                    (at, announced) = (at + credential, false);
                } else {
                    let text = &text[at..at + word];
                    if is_key(text) {
                        found.push((at, at + word));
                    }
                    announced = ["bearer", "basic"].contains(&text.to_ascii_lowercase().as_str());
                    at += word;
                }
            }
            found
        }

        fn passwords(text: &str) -> Vec<(usize, usize)> {
            let (mut found, mut at) = (Vec::new(), 0);
            while let Some(start) = text[at..].find("://").map(|start| at + start + 3) {
                let ends =
                    |character: char| "/?#\"'\\".contains(character) || character.is_whitespace();
                let authority = text[start..].split(ends).next().unwrap_or_default();
                if let Some((user, _)) =
                    authority.rsplit_once('@').filter(|(user, _)| user.contains(':'))
                {
                    found.push((start, start + user.len()));
                }
                at = start + authority.len();
            }
            found
        }
    }

    /// Parts of secrets, so that random texts resemble secrets.
    const PIECES: &[&str] = &[
        "Bearer",
        "basic",
        " ",
        "  ",
        "\n",
        "abcdefgh",
        "a",
        "/",
        "=",
        "+",
        "~",
        ".",
        "-",
        "-----",
        "-----BEGIN ",
        "-----END ",
        "PRIVATE KEY",
        "RSA ",
        "://",
        "@",
        ":",
        "?",
        "#",
        "\"",
        "'",
        "\\",
        "eyJ",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJjYW5hcnkifQ.",
        "sk-",
        "ghp_",
        "mcpb_",
        "0123456789abcdef",
        "AKIA",
        "IOSFODNN7EXAMPLE",
        "ü",
        "\u{a0}",
    ];

    proptest::proptest! {
        #[test]
        fn s12_masking_of_mixed_pieces_equals_the_reference(pieces in proptest::collection::vec(proptest::sample::select(PIECES), 0..24)) {
            let text = pieces.concat();
            proptest::prop_assert_eq!(mask_secrets(&text), reference::masked(&text), "{}", text);
        }

        #[test]
        fn s12_masking_of_any_text_equals_the_reference(text in ".{0,80}") {
            proptest::prop_assert_eq!(mask_secrets(&text), reference::masked(&text), "{}", text);
        }
    }
}
