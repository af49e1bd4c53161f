//! What looks like a secret, whatever it is called: tokens after `Bearer`, JSON web tokens, keys whose issuers gave them a prefix,
//! private keys in PEM, and passwords in URLs.
//!
//! Used where text of others is kept or shown: in the audit log and in answers to operators. One pass over the text for each kind,
//! and no more. A secret that looks like any other word is not found; where such things are passed, arguments are not to be kept.

use protocol::uri;

/// Stands where a secret was.
pub const REDACTED: &str = "[redacted]";

/// What keys begin with, by whoever issues them.
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
/// What follows such a prefix is at least so long.
const REST_MIN: usize = 16;
/// A word after `Bearer` or `Basic` is a credential from this length on.
const CREDENTIAL_MIN: usize = 8;
const JWT_MIN: usize = 32;
/// Identifiers of access keys of AWS: so long, and one of these first.
const AWS_LENGTH: usize = 20;
const AWS_PREFIXES: [&str; 6] = ["AKIA", "ASIA", "ABIA", "ACCA", "AGPA", "AROA"];

/// The text without what looks like a secret. `None`: there is nothing of that kind in it.
pub fn masked(text: &str) -> Option<String> {
    let mut found = Vec::new();
    private_keys(text, &mut found);
    words(text, &mut found);
    passwords(text, &mut found);
    if found.is_empty() {
        return None;
    }
    found.sort_unstable();
    let (mut shown, mut at) = (String::with_capacity(text.len()), 0);
    for (begin, end) in found {
        if begin >= at {
            shown.push_str(&text[at..begin]);
            shown.push_str(REDACTED);
        }
        at = at.max(end);
    }
    shown.push_str(&text[at..]);
    Some(shown)
}

/// A URI as the audit log and traces show it: without user and password, and without the values of its query. All that a reader
/// could take for a path is shown: `file:` URIs have no query, and one that climbs is not trusted to have one.
pub fn uri_shown(uri: &str) -> String {
    // On the endpoint of all backends a name and a plus stand before it.
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

type Found = Vec<(usize, usize)>;

fn private_keys(text: &str, found: &mut Found) {
    const BEGIN: &str = "-----BEGIN ";
    const END: &str = "-----END ";
    const DASHES: &str = "-----";
    let mut at = 0;
    while let Some(begin) = text[at..].find(BEGIN).map(|begin| at + begin) {
        at = begin + BEGIN.len();
        let Some(label) = text[at..].find(DASHES).map(|end| &text[at..at + end]) else { return };
        if !label.contains("PRIVATE KEY") {
            continue;
        }
        // One that is cut off is a secret up to where it is cut.
        let end = text[at..].find(END).map_or(text.len(), |end| {
            let after = at + end + END.len();
            text[after..].find(DASHES).map_or(text.len(), |end| after + end + DASHES.len())
        });
        found.push((begin, end));
        at = end;
    }
}

/// Words of what tokens are written with, one after the other.
fn words(text: &str, found: &mut Found) {
    let is_inside = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_of_credential = |byte: u8| is_inside(byte) || matches!(byte, b'+' | b'/' | b'=' | b'~');
    let bytes = text.as_bytes();
    let (mut at, mut announced) = (0, false);
    while at < bytes.len() {
        if !is_inside(bytes[at]) {
            // Only spaces may be between the word and what it announces.
            announced &= bytes[at] == b' ';
            at += 1;
            continue;
        }
        let length = |is: &dyn Fn(u8) -> bool| bytes[at..].iter().take_while(|byte| is(**byte)).count();
        let (word, credential) = (length(&is_inside), length(&is_of_credential));
        if announced && credential >= CREDENTIAL_MIN {
            found.push((at, at + credential));
            (at, announced) = (at + credential, false);
            continue;
        }
        let text = &text[at..at + word];
        if is_key(text) {
            found.push((at, at + word));
        }
        announced = text.eq_ignore_ascii_case("bearer") || text.eq_ignore_ascii_case("basic");
        at += word;
    }
}

fn is_key(word: &str) -> bool {
    let has_digit = |text: &str| text.bytes().any(|byte| byte.is_ascii_digit());
    let is_jwt = || word.starts_with("eyJ") && word.len() >= JWT_MIN && word.matches('.').count() >= 2;
    let is_aws = || word.len() == AWS_LENGTH && AWS_PREFIXES.iter().any(|prefix| word.starts_with(prefix));
    let is_aws = || is_aws() && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit());
    let is_issued = || {
        let mut rests = PREFIXES.iter().filter_map(|prefix| word.strip_prefix(prefix));
        rests.any(|rest| rest.len() >= REST_MIN && has_digit(rest))
    };
    is_jwt() || is_aws() || is_issued()
}

/// `scheme://user:password@host`.
fn passwords(text: &str, found: &mut Found) {
    const AFTER_SCHEME: &str = "://";
    let mut at = 0;
    while let Some(begin) = text[at..].find(AFTER_SCHEME).map(|begin| at + begin + AFTER_SCHEME.len()) {
        let ends = |character: char| matches!(character, '/' | '?' | '#' | '"' | '\'' | '\\') || character.is_whitespace();
        let authority = &text[begin..text[begin..].find(ends).map_or(text.len(), |end| begin + end)];
        if let Some((user, _)) = authority.rsplit_once('@')
            && user.contains(':')
        {
            found.push((begin, begin + user.len()));
        }
        at = begin + authority.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What it is, and a prefix so that no scanner takes this file for a leak.
    fn key(prefix: &str, rest: &str) -> String {
        format!("{prefix}{rest}")
    }

    #[test]
    fn what_looks_like_a_secret_is_found_in_any_text() {
        let rest = "canary0Canary1Canary2";
        let mut secrets: Vec<String> = PREFIXES.iter().map(|prefix| key(prefix, rest)).collect();
        secrets.extend(["AKIA", "ASIA"].map(|prefix| key(prefix, "IOSFODNN7EXAMPLE")));
        secrets.push(key("eyJhbGciOiJIUzI1NiJ9.", "eyJzdWIiOiJjYW5hcnkifQ.c2lnbmF0dXJlLWNhbmFyeQ"));
        for secret in &secrets {
            for text in [secret.clone(), format!("use {secret}, please"), format!("--key={secret}\n"), format!("{{\"a\":\"{secret}\"}}")] {
                let shown = masked(&text).unwrap_or_else(|| panic!("{text}"));
                assert_eq!(shown, text.replace(secret.as_str(), REDACTED));
            }
        }
        assert_eq!(masked("Authorization: Bearer abc/def+ghi==").unwrap(), "Authorization: Bearer [redacted]");
        assert_eq!(masked("curl -H 'authorization: basic  dXNlcjpwYXNz'").unwrap(), "curl -H 'authorization: basic  [redacted]'");
        assert_eq!(masked("psql postgres://me:canary@db/x?y").unwrap(), "psql postgres://[redacted]@db/x?y");
    }

    #[test]
    fn private_keys_are_left_out_whole_or_cut_off() {
        for label in ["PRIVATE KEY", "RSA PRIVATE KEY", "OPENSSH PRIVATE KEY"] {
            let pem = format!("-----BEGIN {label}-----\ncanary\ncanary\n-----END {label}-----");
            assert_eq!(masked(&format!("a {pem} b {pem} c")).unwrap(), "a [redacted] b [redacted] c");
            assert_eq!(masked(&format!("a {}", &pem[..40])).unwrap(), "a [redacted]");
        }
        assert_eq!(masked("-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----"), None);
        assert_eq!(masked("-----BEGIN "), None);
    }

    #[test]
    fn other_words_are_left_alone() {
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
            assert_eq!(masked(text), None, "{text}");
        }
    }

    #[test]
    fn s06_a_uri_is_shown_with_all_that_could_be_its_path() {
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
            assert_eq!(uri_shown(uri), shown);
        }
    }

    #[test]
    fn long_texts_take_linear_time() {
        for part in ["Bearer ", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "://", "://a:b@", "eyJ.", "sk-"] {
            let text = part.repeat(100_000);
            let begun = std::time::Instant::now();
            let _shown = masked(&text);
            assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{part}");
        }
    }
}
