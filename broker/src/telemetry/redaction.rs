//! A backend's settings without their secrets: how they are shown, and how they are taken out of texts such as errors.
//!
//! Secrets end up in environments, arguments and URLs whatever the documentation says. Values of an environment and of a query are
//! all masked. Of arguments and of a URL's path, what tells an operator which backend this is remains: names of options, plain
//! words. A masked value that is put back is taken as it is: nothing remembers what it stood for.

use std::mem::take;

use serde_json::Value;

use super::{audit, secrets};
use crate::config::spec::{BackendSpec, Credentials, TransportSpec};

const MASK: &str = "***";
/// Shorter secrets are not looked for in texts: they would be found everywhere.
const SOUGHT_CHARS_MIN: usize = 6;
/// An argument without a name is taken for a secret from this length on, if it is no word.
const RANDOM_CHARS_MIN: usize = 16;
/// A plain word, and one of the parts that a sign joins, has at most so many characters.
const WORD_CHARS_MAX: usize = 40;
const PART_CHARS_MAX: usize = 16;
/// More consonants in a row are not a word.
const CONSONANTS_MAX: usize = 5;
/// Options that are followed by `NAME=VALUE`, a header, or `USER:PASSWORD`.
const VARIABLE_OPTIONS: [&str; 3] = ["-e", "--env", "--environment"];
const HEADER_OPTIONS: [&str; 2] = ["-H", "--header"];
const USER_OPTIONS: [&str; 2] = ["-u", "--user"];

/// A transport as an answer may show it.
pub fn transport(transport: &TransportSpec) -> TransportSpec {
    Masker::default().transport(transport)
}

/// Takes the secrets of one backend's settings out of texts.
#[derive(Clone, Default)]
pub struct Redactor {
    /// Secrets and what stands for them, the longest first.
    replaced: Vec<(String, String)>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Redactor({} secrets)", self.replaced.len())
    }
}

impl Redactor {
    pub fn of(spec: &BackendSpec) -> Self {
        let mut masker = Masker::default();
        let shown = masker.transport(&spec.transport);
        let Credentials { bearer, headers } = &spec.credentials;
        bearer.iter().chain(headers.values()).for_each(|secret| masker.note(secret));
        let mut replaced: Vec<(String, String)> = masker
            .hidden
            .into_iter()
            .filter(|secret| secret.len() >= SOUGHT_CHARS_MIN)
            .map(|secret| (secret, MASK.to_owned()))
            .collect();
        if let (
            TransportSpec::Http { url } | TransportSpec::Websocket { url },
            TransportSpec::Http { url: masked } | TransportSpec::Websocket { url: masked },
        ) = (&spec.transport, shown)
        {
            replaced.push((url.clone(), masked));
        }
        replaced.sort_by_key(|(secret, _)| std::cmp::Reverse(secret.len()));
        Self { replaced }
    }

    /// The text without them, and without what looks like a secret of anybody.
    pub fn redacted(&self, text: &impl ToString) -> String {
        let mut text = text.to_string();
        for (secret, shown) in self.replaced.iter().filter(|(secret, shown)| secret != shown) {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), shown);
            }
        }
        secrets::masked(&text).unwrap_or(text)
    }
}

/// Masks, and notes what it masked.
#[derive(Default)]
struct Masker {
    hidden: Vec<String>,
}

/// What an option says of the argument after it.
#[derive(Clone, Copy, Default, PartialEq)]
enum ArgumentKind {
    #[default]
    Anything,
    Secret,
    Variable,
    Header,
    User,
}

impl ArgumentKind {
    fn after(option: &str) -> Self {
        match option {
            _ if VARIABLE_OPTIONS.contains(&option) => Self::Variable,
            _ if HEADER_OPTIONS.contains(&option) => Self::Header,
            _ if USER_OPTIONS.contains(&option) => Self::User,
            _ if option.starts_with('-') && audit::announces_secret(option) => Self::Secret,
            _ => Self::Anything,
        }
    }
}

impl Masker {
    fn note(&mut self, secret: &str) {
        self.hidden.push(secret.to_owned());
    }

    fn hide(&mut self, secret: &str) -> &'static str {
        self.note(secret);
        MASK
    }

    fn transport(&mut self, transport: &TransportSpec) -> TransportSpec {
        match transport {
            TransportSpec::Http { url } => TransportSpec::Http { url: self.url(url) },
            TransportSpec::Websocket { url } => TransportSpec::Websocket { url: self.url(url) },
            TransportSpec::Tcp { .. } | TransportSpec::Quic { .. } => transport.clone(),
            TransportSpec::Stdio { command, args, env, cwd, limits } => TransportSpec::Stdio {
                command: command.clone(),
                args: self.args(args),
                env: env
                    .iter()
                    .map(|(name, value)| (name.clone(), self.hide(value).to_owned()))
                    .collect(),
                cwd: cwd.clone(),
                limits: limits.clone(),
            },
        }
    }

    /// Scheme, host and port remain, the plain words that the path begins with, and the names of the query.
    fn url(&mut self, url: &str) -> String {
        let (rest, fragment) =
            url.split_once('#').map_or((url, None), |(rest, fragment)| (rest, Some(fragment)));
        let (rest, query) =
            rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (scheme, rest) = rest.split_once("://").unwrap_or(("", rest));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = match authority.rsplit_once('@') {
            Some((user, host)) => format!("{}@{host}", self.hide(user)),
            None => authority.to_owned(),
        };
        let mut shown = format!(
            "{scheme}{}{host}{}",
            if scheme.is_empty() { "" } else { "://" },
            self.path(path)
        );
        if let Some(query) = query {
            shown = format!(
                "{shown}?{}",
                query.split('&').map(|pair| self.pair(pair)).collect::<Vec<_>>().join("&")
            );
        }
        match fragment {
            Some(fragment) => format!("{shown}#{}", self.hide(fragment)),
            None => shown,
        }
    }

    /// From the first segment that is no plain word on, all are masked.
    fn path(&mut self, path: &str) -> String {
        let mut is_plain = true;
        let segments = path.split('/').map(|segment| {
            is_plain &= is_word(segment);
            if is_plain || segment.is_empty() { segment } else { self.hide(segment) }
        });
        segments.collect::<Vec<_>>().join("/")
    }

    /// Which value of a query is an API key cannot be known.
    fn pair(&mut self, pair: &str) -> String {
        match pair.split_once('=') {
            Some((name, value)) => format!("{name}={}", self.hide(value)),
            None => self.hide(pair).to_owned(),
        }
    }

    fn args(&mut self, args: &[String]) -> Vec<String> {
        let mut next = ArgumentKind::default();
        let mut shown = Vec::with_capacity(args.len());
        for arg in args {
            shown.push(match take(&mut next) {
                ArgumentKind::Anything => self.arg(arg),
                ArgumentKind::Secret if is_option(arg) => self.arg(arg),
                expected => self.value(expected, arg),
            });
            next = if shown.last() == Some(arg) {
                ArgumentKind::after(arg)
            } else {
                ArgumentKind::Anything
            };
        }
        shown
    }

    /// `--name=VALUE`, `NAME=VALUE`, `-eNAME=VALUE`, or anything else.
    fn arg(&mut self, arg: &str) -> String {
        if let Some(variable) = arg.strip_prefix("-e").filter(|rest| is_variable(rest)) {
            return format!("-e{}", self.value(ArgumentKind::Variable, variable));
        }
        match arg.split_once('=') {
            Some((name, value)) if !name.is_empty() && !name.contains([':', '{', ' ', '/']) => {
                let expected = match ArgumentKind::after(name) {
                    ArgumentKind::Anything if audit::announces_secret(name) || is_variable(arg) => {
                        ArgumentKind::Secret
                    }
                    expected => expected,
                };
                format!("{name}={}", self.value(expected, value))
            }
            _ => self.free(arg),
        }
    }

    /// A value of which something is expected.
    fn value(&mut self, expected: ArgumentKind, value: &str) -> String {
        let after = |sign: char| value.split_once(sign);
        match expected {
            ArgumentKind::Anything => self.free(value),
            ArgumentKind::Secret => self.hide(value).to_owned(),
            ArgumentKind::Variable => after('=').map_or_else(
                || value.to_owned(),
                |(name, value)| format!("{name}={}", self.hide(value)),
            ),
            ArgumentKind::Header => after(':').map_or_else(
                || MASK.to_owned(),
                |(name, value)| format!("{name}: {}", self.hide(value.trim())),
            ),
            ArgumentKind::User => match after(':') {
                Some((user, password)) => format!("{user}:{}", self.hide(password)),
                None => self.free(value),
            },
        }
    }

    /// Text that nothing announces.
    fn free(&mut self, text: &str) -> String {
        if let Ok(mut value @ (Value::Object(_) | Value::Array(_))) =
            serde_json::from_str::<Value>(text)
        {
            audit::redact(&mut value);
            return value.to_string();
        }
        if text.contains("://") {
            return self.url(text);
        }
        if is_random(text) {
            return self.hide(text).to_owned();
        }
        secrets::masked(text).unwrap_or_else(|| text.to_owned())
    }
}

/// `NAME=VALUE`, with a name as variables of an environment have.
fn is_variable(text: &str) -> bool {
    let Some((name, _)) = text.split_once('=') else { return false };
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

/// `-o` or `--option`, and nothing that is a secret.
fn is_option(text: &str) -> bool {
    let name =
        text.strip_prefix("--").or_else(|| text.strip_prefix('-').filter(|name| name.len() == 1));
    name.map(|name| name.split('=').next().unwrap_or(name)).is_some_and(|name| {
        name.starts_with(|first: char| first.is_ascii_alphabetic()) && is_word(name)
    })
}

fn is_random(text: &str) -> bool {
    let has = |is: fn(&u8) -> bool| text.bytes().any(|byte| is(&byte));
    text.len() >= RANDOM_CHARS_MIN
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_+=~".contains(&byte))
        && !text.starts_with('-')
        && has(u8::is_ascii_digit)
        && has(u8::is_ascii_alphabetic)
        && !is_word(text)
}

/// A word that is chosen as a name, such as `mcp`, `v1`, `mcpServer` or `2025-11-25`. An empty text is one.
fn is_word(text: &str) -> bool {
    text.len() <= WORD_CHARS_MAX && text.split(['-', '_', '.']).all(is_part)
}

fn is_part(part: &str) -> bool {
    let letters = part.trim_end_matches(|last: char| last.is_ascii_digit());
    let digits = part.len() - letters.len();
    if part.len() > PART_CHARS_MAX || !letters.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        return false;
    }
    match (letters.is_empty(), digits) {
        (true, _) => digits <= 4,
        (false, 0) if letters.bytes().all(|byte| byte.is_ascii_uppercase()) => {
            letters.len() <= CONSONANTS_MAX
        }
        (false, 0..=3) => is_spoken(letters) && has_word_case(letters),
        _ => false,
    }
}

fn is_spoken(letters: &str) -> bool {
    let is_vowel = |letter: char| "aeiouyAEIOUY".contains(letter);
    letters.split(is_vowel).all(|consonants| consonants.len() <= CONSONANTS_MAX)
}

/// Lower case, but for the first letters of words.
fn has_word_case(letters: &str) -> bool {
    let words = letters.split(|letter: char| letter.is_ascii_uppercase());
    words.enumerate().all(|(index, rest)| index == 0 || rest.len() >= 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown_url(url: &str) -> String {
        Masker::default().url(url)
    }

    fn shown_args<const N: usize>(args: [&str; N]) -> Vec<String> {
        Masker::default().args(&args.map(str::to_owned))
    }

    fn spec(transport: Value) -> BackendSpec {
        serde_json::from_value(
            serde_json::json!({"transport": transport, "credentials": {"bearer": "canary-bearer", "headers": {"x": "canary-header"}}}),
        )
        .unwrap()
    }

    #[test]
    fn query_values_are_masked() {
        assert_eq!(
            shown_url("https://x.example/mcp?apiKey=canary&b=2&canary"),
            "https://x.example/mcp?apiKey=***&b=***&***"
        );
        assert_eq!(shown_url("https://x.example/mcp"), "https://x.example/mcp");
    }

    #[test]
    fn s14_paths_keep_their_plain_words_up_to_the_first_other_segment() {
        for (url, shown) in [
            (
                "https://hooks.example.com/hooks/T0/B0/secret",
                "https://hooks.example.com/hooks/***/***/***",
            ),
            ("https://x.example:8443/api/v1/mcp/", "https://x.example:8443/api/v1/mcp/"),
            (
                "https://x.example/v2/mcpServer/2025-11-25/well_known.json",
                "https://x.example/v2/mcpServer/2025-11-25/well_known.json",
            ),
            (
                "https://x.example/s/8f14e45fceea167a5a36dedd4bea2543/mcp",
                "https://x.example/s/***/***",
            ),
            ("https://x.example/kjhgfdsxcvbq/mcp", "https://x.example/***/***"),
            ("https://x.example/aBcDeFgH/mcp", "https://x.example/***/***"),
            ("https://x.example/a%20b", "https://x.example/***"),
            ("https://me:canary@x.example/mcp#canary", "https://***@x.example/mcp#***"),
            ("wss://x.example//mcp", "wss://x.example//mcp"),
            ("http://127.0.0.1:9/", "http://127.0.0.1:9/"),
        ] {
            assert_eq!(shown_url(url), shown, "{url}");
        }
    }

    #[test]
    fn announced_arguments_are_masked() {
        let shown = shown_args([
            "-y",
            "pkg",
            "--api-key",
            "canary",
            "--token=canary",
            "GITHUB_TOKEN=canary",
            "--verbose",
            "seen",
            "--auth",
            "--seen",
        ]);
        assert_eq!(
            shown,
            [
                "-y",
                "pkg",
                "--api-key",
                "***",
                "--token=***",
                "GITHUB_TOKEN=***",
                "--verbose",
                "seen",
                "--auth",
                "--seen"
            ]
        );
    }

    #[test]
    fn s14_arguments_are_masked_however_they_are_written() {
        let shown = shown_args([
            "run",
            "-i",
            "--rm",
            "-e",
            "REGION=canary",
            "-eDB=canary",
            "--env=A_B=canary",
            "-e",
            "SEEN",
            "image:1.2",
        ]);
        assert_eq!(
            shown,
            [
                "run",
                "-i",
                "--rm",
                "-e",
                "REGION=***",
                "-eDB=***",
                "--env=A_B=***",
                "-e",
                "SEEN",
                "image:1.2"
            ]
        );
        let shown = shown_args([
            "mcp-remote",
            "https://x.example/s/9canary9/mcp?k=canary",
            "--header",
            "X-Any: canary",
            "-H",
            "canary",
            "--header=A:canary",
        ]);
        assert_eq!(
            shown,
            [
                "mcp-remote",
                "https://x.example/s/***/***?k=***",
                "--header",
                "X-Any: ***",
                "-H",
                "***",
                "--header=A: ***"
            ]
        );
        let shown = shown_args([
            "-u",
            "ada:canary",
            "--url=postgres://ada:canary@db/main",
            "--password",
            "-canary",
            "LOG=canary",
            "--conf={\"apiKey\":\"canary\",\"city\":\"Ulm\"}",
        ]);
        assert_eq!(
            shown,
            [
                "-u",
                "ada:***",
                "--url=postgres://***@db/main",
                "--password",
                "***",
                "LOG=***",
                "--conf={\"apiKey\":\"[redacted]\",\"city\":\"Ulm\"}"
            ]
        );
        let shown =
            shown_args(["serve", "8f14e45fceea167a5a36dedd4bea2543", "--mode", "9sK2mX81pQzR7vLw"]);
        assert_eq!(shown, ["serve", "***", "--mode", "***"]);
    }

    #[test]
    fn s14_arguments_that_operators_need_are_shown() {
        let args = [
            "-y",
            "@modelcontextprotocol/server-everything@2026.8.31",
            "mcp-server-sqlite",
            "--db-path",
            "/var/lib/data/my2ndfile.db",
            "--port=8080",
            "/srv/files",
            "--verbose",
            "--transport",
            "stdio",
            "server-filesystem-2025-11-25",
            "-p",
            "8080:80",
            "node:22-alpine",
            "--name=files",
        ];
        assert_eq!(shown_args(args), args);
    }

    #[test]
    fn environment_values_are_masked() {
        let spec =
            spec(serde_json::json!({"type": "stdio", "command": "npx", "env": {"HOME": "canary"}}));
        let text = serde_json::to_string(&transport(&spec.transport)).unwrap();
        assert!(text.contains("HOME") && !text.contains("canary"), "{text}");
    }

    #[test]
    fn s14_texts_do_not_repeat_the_secrets_of_settings() {
        let stdio = spec(
            serde_json::json!({"type": "stdio", "command": "npx", "args": ["--token", "canary-1", "-e", "A=canary-2"], "env": {"B": "canary-3"}}),
        );
        let said = Redactor::of(&stdio).redacted(
            &"no access with canary-1, canary-2, canary-3, canary-bearer or canary-header to /srv",
        );
        assert_eq!(said, "no access with ***, ***, ***, *** or *** to /srv");
        let http = spec(
            serde_json::json!({"type": "http", "url": "https://x.example/hooks/T0/B0/canary?k=canary-4"}),
        );
        let said =
            Redactor::of(&http).redacted(&"https://x.example/hooks/T0/B0/canary?k=canary-4: not found: canary-4, Bearer abcdefgh123");
        assert_eq!(
            said,
            "https://x.example/hooks/***/***/***?k=***: not found: ***, Bearer [redacted]"
        );
        assert!(!format!("{:?}", Redactor::of(&http)).contains("canary"));
    }
}
