//! Redaction of a backend's settings: for views, and for texts such as errors.
//!
//! Secrets occur in environments, arguments and URLs despite the documentation. All values of an
//! environment and of a query are masked. Arguments are masked too, except names of options and the
//! text that [`words`] considers plain. These let an operator recognize the command. A masked value
//! that is sent back is stored as it is: the broker does not remember the original.

mod words;

use std::mem::take;

use config::{
    MASK,
    spec::{BackendSpec, Credentials, TransportSpec},
};
use serde_json::Value;

use self::words::{is_flag, is_plain, is_plain_segment, is_word};
use super::{audit, secrets};

/// Minimum length of a secret that is searched for in texts. Shorter ones would match everywhere.
const SOUGHT_CHARS_MIN: usize = 6;
/// Options that are followed by `NAME=VALUE`, a header, or `USER:PASSWORD`.
const VARIABLE_OPTIONS: [&str; 3] = ["-e", "--env", "--environment"];
const HEADER_OPTIONS: [&str; 2] = ["-H", "--header"];
const USER_OPTIONS: [&str; 5] = ["-u", "--user", "--cred", "--creds", "--login"];
/// Characters between the words of an argument that is a script or a list of settings.
const WORD_ENDS: [char; 6] = [' ', ';', '\t', '\n', '\r', '\u{b}'];

/// Returns a transport for a view, without its secrets.
pub fn transport(transport: &TransportSpec) -> TransportSpec {
    Masker::default().transport(transport)
}

/// Returns a URL for a view, without its secrets. Masks all of it if its hosts are not in the usual
/// form, because a part of a login may then be among them.
pub fn url(url: &str) -> String {
    let shown = Masker::default().url(url);
    let authority = shown.split_once("://").map(|(_, rest)| {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts)
    });
    let are_hosts = |authority: &str| authority.split(',').all(is_host);
    if authority.is_some_and(are_hosts) { shown } else { MASK.to_owned() }
}

/// Returns whether the text is a host, with or without a port.
fn is_host(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !text.ends_with(']') => (host, port),
        _ => (text, "0"),
    };
    let of_host = |byte: u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'[' | b']' | b':')
    };
    let is_address = host.starts_with('[') && host.ends_with(']');
    !host.is_empty()
        && host.bytes().all(of_host)
        && (is_address || !host.contains([':', '[', ']']))
        && !port.is_empty()
        && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// Removes the secrets of one backend's settings from texts.
#[derive(Clone, Default)]
pub struct Redactor {
    /// Secrets and their replacements, longest first.
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
        let secrets = bearer.iter().chain(headers.values()).chain(spec.auth.secrets());
        secrets.for_each(|secret| masker.record(secret));
        let mut replaced: Vec<(String, String)> = masker
            .hidden
            .into_iter()
            .filter(|secret| secret.len() >= SOUGHT_CHARS_MIN)
            .map(|secret| (secret, MASK.to_owned()))
            .collect();
        if let (
            TransportSpec::Http { url }
            | TransportSpec::Sse { url }
            | TransportSpec::Websocket { url },
            TransportSpec::Http { url: masked }
            | TransportSpec::Sse { url: masked }
            | TransportSpec::Websocket { url: masked },
        ) = (&spec.transport, shown)
        {
            replaced.push((url.clone(), masked));
        }
        replaced.sort_by_key(|(secret, _)| std::cmp::Reverse(secret.len()));
        Self { replaced }
    }

    /// Returns the text without these secrets, and without other text that looks like a secret.
    pub fn redact(&self, text: &impl ToString) -> String {
        let mut text = text.to_string();
        for (secret, shown) in self.replaced.iter().filter(|(secret, shown)| secret != shown) {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), shown);
            }
        }
        secrets::mask_secrets(&text).unwrap_or(text)
    }
}

/// Masks values, and stores the masked texts.
#[derive(Default)]
struct Masker {
    hidden: Vec<String>,
}

/// Kind of the argument after an option.
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
            // What the option announces is masked already, as in `--token=***`.
            _ if option.ends_with(MASK) => Self::Anything,
            _ if VARIABLE_OPTIONS.contains(&option) => Self::Variable,
            _ if HEADER_OPTIONS.contains(&option) => Self::Header,
            _ if USER_OPTIONS.contains(&option) => Self::User,
            _ if option.starts_with('-') && audit::announces_secret(option) => Self::Secret,
            _ => Self::Anything,
        }
    }
}

impl Masker {
    fn record(&mut self, secret: &str) {
        self.hidden.push(secret.to_owned());
    }

    fn hide(&mut self, secret: &str) -> &'static str {
        self.record(secret);
        MASK
    }

    fn transport(&mut self, transport: &TransportSpec) -> TransportSpec {
        match transport {
            TransportSpec::Http { url } => TransportSpec::Http { url: self.url(url) },
            TransportSpec::Sse { url } => TransportSpec::Sse { url: self.url(url) },
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

    /// Keeps scheme, host and port, the plain words at the start of the path, and the names of the
    /// query.
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

    /// Masks all segments from the first one that is not a plain word.
    fn path(&mut self, path: &str) -> String {
        let mut is_plain = true;
        let segments = path.split('/').map(|segment| {
            is_plain &= is_word(segment);
            if is_plain || segment.is_empty() { segment } else { self.hide(segment) }
        });
        segments.collect::<Vec<_>>().join("/")
    }

    /// Masks the value, because any value of a query may be an API key.
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
            let one = self.expected(take(&mut next), arg);
            shown.push(one);
            next = if shown.last() == Some(arg) {
                ArgumentKind::after(arg)
            } else {
                ArgumentKind::Anything
            };
        }
        shown
    }

    /// Masks an argument or a word of the expected kind.
    fn expected(&mut self, expected: ArgumentKind, arg: &str) -> String {
        match expected {
            ArgumentKind::Anything => self.arg(arg),
            ArgumentKind::Secret if is_option(arg) => self.arg(arg),
            expected => self.value(expected, arg),
        }
    }

    /// Masks `--name=VALUE`, `NAME=VALUE`, `-eNAME=VALUE`, or any other argument.
    fn arg(&mut self, arg: &str) -> String {
        if let Some(variable) = arg.strip_prefix("-e").filter(|rest| is_variable(rest)) {
            return format!("-e{}", self.value(ArgumentKind::Variable, variable));
        }
        match arg.split_once('=') {
            Some((name, value)) if is_name(name) => {
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

    /// Masks a value of the expected kind.
    fn value(&mut self, expected: ArgumentKind, value: &str) -> String {
        let after = |sign: char| value.split_once(sign);
        match expected {
            ArgumentKind::Anything => self.free(value),
            ArgumentKind::Secret => self.hide(value).to_owned(),
            ArgumentKind::Variable => match after('=') {
                Some((name, value)) => format!("{name}={}", self.hide(value)),
                // Name of a variable in the broker's own environment.
                None if is_variable_name(value) => value.to_owned(),
                None => self.free(value),
            },
            ArgumentKind::Header => match after(':') {
                Some((name, value)) => format!("{name}: {}", self.hide(value.trim())),
                None => self.hide(value).to_owned(),
            },
            ArgumentKind::User => match after(':') {
                Some((user, password)) => format!("{user}:{}", self.hide(password)),
                None => self.free(value),
            },
        }
    }

    /// Masks text without an expected kind.
    fn free(&mut self, text: &str) -> String {
        if let Ok(mut value @ (Value::Object(_) | Value::Array(_))) =
            serde_json::from_str::<Value>(text)
        {
            audit::redact(&mut value);
            self.json(&mut value);
            return value.to_string();
        }
        if text.contains(WORD_ENDS) {
            return self.words(text);
        }
        if text.contains("://") {
            return self.url(text);
        }
        if secrets::mask_secrets(text).is_some() {
            return self.hide(text).to_owned();
        }
        if is_flag(text) || is_plain(text) {
            return text.to_owned();
        }
        // `-pSECRET`: the letter is the option.
        if let Some(letter) = text.strip_prefix('-').and_then(|rest| rest.chars().next())
            && letter.is_ascii_alphabetic()
        {
            return format!("-{letter}{}", self.hide(&text[2..]));
        }
        if text.starts_with(['/', '.', '~', '@']) {
            return self.file(text);
        }
        self.hide(text).to_owned()
    }

    /// Masks the texts in a value that are not plain.
    fn json(&mut self, value: &mut Value) {
        match value {
            Value::Object(members) => members.values_mut().for_each(|member| self.json(member)),
            Value::Array(items) => items.iter_mut().for_each(|item| self.json(item)),
            Value::String(text) if text != secrets::REDACTED => *text = self.free(text),
            _ => {}
        }
    }

    /// Masks a script, a connection string or a sentence. Keeps its words up to the first masked
    /// one, because the rest may belong to the same secret.
    fn words(&mut self, text: &str) -> String {
        let mut next = ArgumentKind::default();
        let mut shown = String::with_capacity(text.len());
        for word in text.split_inclusive(WORD_ENDS) {
            let bare = word.trim_end_matches(WORD_ENDS);
            if bare.is_empty() {
                shown.push_str(word);
                continue;
            }
            let one = self.expected(take(&mut next), bare);
            shown.push_str(&one);
            if one != bare {
                let rest = &text[word.as_ptr() as usize - text.as_ptr() as usize + bare.len()..];
                rest.split(WORD_ENDS)
                    .filter(|word| !is_plain(word))
                    .for_each(|word| self.record(word));
                break;
            }
            next = ArgumentKind::after(bare);
            shown.push_str(&word[bare.len()..]);
        }
        shown
    }

    /// Masks a file or a package. Keeps its segments up to the first one that is not plain.
    fn file(&mut self, path: &str) -> String {
        let mut shown = Vec::new();
        for (index, segment) in path.split('/').enumerate() {
            if !is_plain_segment(segment) {
                path.split('/').skip(index).for_each(|rest| self.record(rest));
                shown.push(MASK);
                break;
            }
            shown.push(segment);
        }
        shown.join("/")
    }
}

/// Returns whether the text before `=` is a name that may be shown.
fn is_name(text: &str) -> bool {
    !text.is_empty() && (is_flag(text) || is_word(text) || is_variable_name(text))
}

fn is_variable_name(text: &str) -> bool {
    let of_names = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let parts_max = 16; // as long as words have them
    !text.is_empty()
        && text.bytes().all(of_names)
        && text.split('_').all(|part| {
            part.len() <= parts_max && part.bytes().filter(u8::is_ascii_digit).count() <= 3
        })
}

/// Returns whether the text is `NAME=VALUE`, with a name like that of an environment variable.
fn is_variable(text: &str) -> bool {
    text.split_once('=').is_some_and(|(name, _)| is_variable_name(name))
}

/// Returns whether the text is `-o` or `--option`, and cannot be a secret.
fn is_option(text: &str) -> bool {
    let name =
        text.strip_prefix("--").or_else(|| text.strip_prefix('-').filter(|name| name.len() == 1));
    name.map(|name| name.split('=').next().unwrap_or(name)).is_some_and(|name| {
        name.starts_with(|first: char| first.is_ascii_alphabetic()) && is_word(name)
    })
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
    fn s14_a_url_of_a_store_or_a_collector_is_shown_without_its_login() {
        for (given, shown) in [
            (
                "postgres://ann:canary@db.example:5432/broker?sslpassword=canary",
                "postgres://***@db.example:5432/broker?sslpassword=***",
            ),
            ("postgres:///broker?host=/run/canary", "***"),
            (
                "redis+sentinel://:canary@a:26379,[fd00::1]:26379/service?sentinel_password=canary",
                "redis+sentinel://***@a:26379,[fd00::1]:26379/service?sentinel_password=***",
            ),
            ("https://canary:canary@c.example/v1/traces", "https://***@c.example/v1/traces"),
            // Logins that no reader of URLs accepts.
            ("redis://:can/ary@host", "***"),
            ("redis://ann:canary", "***"),
            ("redis://:canary", "***"),
            ("canary", "***"),
        ] {
            assert_eq!(url(given), shown, "{given}");
        }
    }

    #[test]
    fn s14_paths_are_shown_up_to_the_first_segment_that_may_be_secret() {
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
    fn arguments_named_as_secrets_are_masked() {
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
    fn masked_arguments_stay_as_they_are_shown() {
        let shown = shown_args(["--token=canary", "-c9sK2mX81pQzR7vLw"]);
        assert_eq!(shown, ["--token=***", "-c***"]);
        assert_eq!(shown_args(["--token=***", "-c***"]), shown, "an operator stores what is shown");
        let script = shown_args(["--secret=canary ; -c9sK2mX81pQzR7vLw"]);
        assert_eq!(Masker::default().args(&script), script);
    }

    #[test]
    fn s14_secret_arguments_are_masked_in_every_notation() {
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
    fn s14_arguments_are_masked_unless_they_are_known_to_be_harmless() {
        let secret = "s3cr3tVALUE9x8y7zQQ1122";
        for (args, shown) in [
            (vec![format!("-p{secret}")], vec!["-p***"]),
            (
                vec!["--connect".into(), format!("Server=h;Password={secret};")],
                vec!["--connect", "Server=h;Password=***"],
            ),
            (vec!["-c".into(), format!("export T={secret}; run")], vec!["-c", "export T=***"]),
            (vec!["--cred".into(), format!("user:{secret}")], vec!["--cred", "user:***"]),
            (vec!["--any".into(), format!("user:{secret}")], vec!["--any", "***"]),
            (vec![format!("/path/{secret}/x")], vec!["/path/***"]),
            (vec![format!("--path=/srv/{secret}")], vec!["--path=/srv/***"]),
            (vec![format!("--{secret}")], vec!["***"]),
            (vec![format!("--{secret}=x")], vec!["***"]),
            (vec!["Tr0ub4dor&3".into()], vec!["***"]),
            (vec!["p@ssw0rd!".into()], vec!["***"]),
            (vec!["hunter2x9".into()], vec!["***"]),
            (vec![format!("[\"a\",\"{secret}\"]")], vec!["[\"a\",\"***\"]"]),
            (vec![format!("run --token {secret} --then")], vec!["run --token ***"]),
            (
                vec![format!("curl https://x.example/mcp?k={secret}")],
                vec!["curl https://x.example/mcp?k=***"],
            ),
            (vec![format!("say hello {secret} world")], vec!["say hello ***"]),
            (vec!["-e".into(), secret.into()], vec!["-e", "***"]),
        ] {
            let mut masker = Masker::default();
            let masked: Vec<String> = masker
                .args(&args)
                .into_iter()
                .map(|arg| arg.replace("[redacted]", "***"))
                .collect();
            assert_eq!(masked, shown, "{args:?}");
            let hidden = masker.hidden.iter().any(|one| one.contains(secret));
            assert!(hidden || !args.concat().contains(secret), "{args:?}: errors do not repeat it");
        }
    }

    /// Masked words are removed from errors too, even after the first masked word.
    #[test]
    fn s14_secrets_after_the_first_masked_word_are_removed_from_errors() {
        let args = ["-c", "export A=canary-first1; export B=canary+second2"];
        let spec = spec(serde_json::json!({"type": "stdio", "command": "sh", "args": args}));
        let redacted = Redactor::of(&spec).redact(&"no canary-first1, no B=canary+second2");
        assert_eq!(redacted, "no ***, no ***");
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
            "-it",
            "-vvv",
            "-toolsets",
            "--log-level=WARNING",
            "--max-old-space-size=4096",
            "ghcr.io/example/mcp-server:1.4.2-alpine",
            "./dist/index.js",
            "src/main.py",
            "~/projects/notes",
            "${HOME}/notes",
            "127.0.0.1:8080",
            "ada@example.com",
            "30s",
            "512MiB",
            "-c",
            "cd /srv/files && node dist/index.js --verbose",
            "Server=db;Database=main",
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
        let redacted = Redactor::of(&stdio).redact(
            &"no access with canary-1, canary-2, canary-3, canary-bearer or canary-header to /srv",
        );
        assert_eq!(redacted, "no access with ***, ***, ***, *** or *** to /srv");
        let http = spec(
            serde_json::json!({"type": "http", "url": "https://x.example/hooks/T0/B0/canary?k=canary-4"}),
        );
        let redacted =
            Redactor::of(&http).redact(&"https://x.example/hooks/T0/B0/canary?k=canary-4: not found: canary-4, Bearer abcdefgh123");
        assert_eq!(
            redacted,
            "https://x.example/hooks/***/***/***?k=***: not found: ***, Bearer [redacted]"
        );
        assert!(!format!("{:?}", Redactor::of(&http)).contains("canary"));
    }
}
