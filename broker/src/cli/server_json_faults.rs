//! Checks a `server.json` by the schema 2025-12-11 of the MCP registry. [`super::server_json`] reads
//! what passes.
//!
//! Every fault of a document is reported, each with its path. The schema permits unknown members, and
//! so does this check.

use serde_json::{Map, Value};

const NAME_CHARS_MIN: usize = 3;
const NAME_CHARS_MAX: usize = 200;
/// Of a title and of a description.
const TEXT_CHARS_MAX: usize = 100;
const VERSION_CHARS_MAX: usize = 255;
const ICON_SOURCE_CHARS_MAX: usize = 255;

/// Returns the faults of a document, in its order.
pub(super) fn faults(document: &Value) -> Vec<String> {
    let mut check = SchemaCheck::default();
    if let Some(server) = check.part(String::new(), document) {
        check.server(&server);
    }
    check.faults
}

/// An object of the document, with its path.
struct Part<'v> {
    path: String,
    members: &'v Map<String, Value>,
}

impl Part<'_> {
    fn path_of(&self, name: &str) -> String {
        let name = name.escape_debug();
        if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) }
    }
}

#[derive(Default)]
struct SchemaCheck {
    faults: Vec<String>,
}

impl SchemaCheck {
    fn fault(&mut self, path: &str, problem: &str) {
        let path = if path.is_empty() { "the document" } else { path };
        self.faults.push(format!("{path}: {problem}"));
    }

    fn part<'v>(&mut self, path: String, value: &'v Value) -> Option<Part<'v>> {
        match value {
            Value::Object(members) => Some(Part { path, members }),
            _ => {
                self.fault(&path, "must be an object");
                None
            }
        }
    }

    fn required(&mut self, part: &Part<'_>, names: &[&str]) {
        for name in names.iter().filter(|name| !part.members.contains_key(**name)) {
            self.fault(&part.path_of(name), "is missing");
        }
    }

    fn text<'v>(&mut self, part: &Part<'v>, name: &str) -> Option<&'v str> {
        let value = part.members.get(name)?;
        if !value.is_string() {
            self.fault(&part.path_of(name), "must be text");
        }
        value.as_str()
    }

    /// Checks a text, if it is there, by a rule.
    fn text_that(
        &mut self,
        part: &Part<'_>,
        name: &str,
        fits: impl Fn(&str) -> bool,
        problem: &str,
    ) {
        if self.text(part, name).is_some_and(|text| !fits(text)) {
            self.fault(&part.path_of(name), problem);
        }
    }

    fn one_of(&mut self, part: &Part<'_>, name: &str, allowed: &[&str]) {
        let problem = format!("must be {}", allowed.join(", or "));
        self.text_that(part, name, |text| allowed.contains(&text), &problem);
    }

    fn flag(&mut self, part: &Part<'_>, name: &str) {
        if part.members.get(name).is_some_and(|value| !value.is_boolean()) {
            self.fault(&part.path_of(name), "must be true or false");
        }
    }

    /// Calls `check` with each element of a list, if it is there, and with the path of the element.
    fn each(&mut self, part: &Part<'_>, name: &str, check: fn(&mut Self, String, &Value)) {
        let path = part.path_of(name);
        match part.members.get(name) {
            None => {}
            Some(Value::Array(elements)) => {
                for (at, element) in elements.iter().enumerate() {
                    check(self, format!("{path}[{at}]"), element);
                }
            }
            Some(_) => self.fault(&path, "must be a list"),
        }
    }

    fn element_text(&mut self, path: String, value: &Value) {
        if !value.is_string() {
            self.fault(&path, "must be text");
        }
    }

    fn server(&mut self, server: &Part<'_>) {
        self.required(server, &["name", "description", "version"]);
        self.text(server, "$schema");
        let problem = format!(
            "must be NAMESPACE/NAME of {NAME_CHARS_MIN} to {NAME_CHARS_MAX} letters, digits, `.`, `-` and, in the name, `_`"
        );
        self.text_that(server, "name", is_server_name, &problem);
        for name in ["title", "description"] {
            let problem = format!("must have 1 to {TEXT_CHARS_MAX} characters");
            let fits = |text: &str| (1..=TEXT_CHARS_MAX).contains(&text.chars().count());
            self.text_that(server, name, fits, &problem);
        }
        let problem = format!("has more than {VERSION_CHARS_MAX} characters");
        self.text_that(
            server,
            "version",
            |text| text.chars().count() <= VERSION_CHARS_MAX,
            &problem,
        );
        self.text(server, "websiteUrl");
        if let Some(repository) = self.inner(server, "repository") {
            self.required(&repository, &["url", "source"]);
            for name in ["url", "source", "id", "subfolder"] {
                self.text(&repository, name);
            }
        }
        self.inner(server, "_meta");
        self.each(server, "icons", Self::icon);
        self.each(server, "packages", Self::package);
        self.each(server, "remotes", Self::remote);
    }

    fn inner<'v>(&mut self, part: &Part<'v>, name: &str) -> Option<Part<'v>> {
        self.part(part.path_of(name), part.members.get(name)?)
    }

    fn icon(&mut self, path: String, value: &Value) {
        let Some(icon) = self.part(path, value) else { return };
        self.required(&icon, &["src"]);
        let problem = format!("has more than {ICON_SOURCE_CHARS_MAX} characters");
        self.text_that(
            &icon,
            "src",
            |text| text.chars().count() <= ICON_SOURCE_CHARS_MAX,
            &problem,
        );
        let types = ["image/png", "image/jpeg", "image/jpg", "image/svg+xml", "image/webp"];
        self.one_of(&icon, "mimeType", &types);
        self.one_of(&icon, "theme", &["light", "dark"]);
        self.each(&icon, "sizes", |check, path, size| match size.as_str() {
            Some(text) if is_icon_size(text) => {}
            _ => check.fault(&path, "must be WIDTHxHEIGHT, or any"),
        });
    }

    fn package(&mut self, path: String, value: &Value) {
        let Some(package) = self.part(path, value) else { return };
        self.required(&package, &["registryType", "identifier", "transport"]);
        for name in ["registryType", "identifier", "registryBaseUrl", "runtimeHint"] {
            self.text(&package, name);
        }
        let is_version = |text: &str| {
            text != "latest" && (1..=VERSION_CHARS_MAX).contains(&text.chars().count())
        };
        let problem =
            format!("must be an exact version of 1 to {VERSION_CHARS_MAX} characters, not latest");
        self.text_that(&package, "version", is_version, &problem);
        self.text_that(&package, "fileSha256", is_sha256, "must be 64 hexadecimal digits");
        if let Some(transport) = self.inner(&package, "transport") {
            self.transport(&transport, &["stdio", "streamable-http", "sse"]);
        }
        self.each(&package, "runtimeArguments", Self::argument);
        self.each(&package, "packageArguments", Self::argument);
        self.each(&package, "environmentVariables", Self::named_input);
    }

    fn remote(&mut self, path: String, value: &Value) {
        let Some(remote) = self.part(path, value) else { return };
        self.transport(&remote, &["streamable-http", "sse"]);
        self.variables(&remote);
    }

    fn transport(&mut self, transport: &Part<'_>, kinds: &[&str]) {
        self.required(transport, &["type"]);
        self.one_of(transport, "type", kinds);
        // A process that uses its pipes has no URL.
        let kind = transport.members.get("type").and_then(Value::as_str);
        let Some("streamable-http" | "sse") = kind else { return };
        self.required(transport, &["url"]);
        let problem = "must begin with http://, https:// or a {variable}, and have no spaces";
        self.text_that(transport, "url", is_url_template, problem);
        self.each(transport, "headers", Self::named_input);
    }

    fn argument(&mut self, path: String, value: &Value) {
        let Some(argument) = self.part(path, value) else { return };
        self.required(&argument, &["type"]);
        self.one_of(&argument, "type", &["positional", "named"]);
        match argument.members.get("type").and_then(Value::as_str) {
            Some("named") => self.required(&argument, &["name"]),
            Some("positional")
                if !["value", "valueHint"]
                    .iter()
                    .any(|name| argument.members.contains_key(*name)) =>
            {
                self.fault(&argument.path, "needs value or valueHint");
            }
            _ => {}
        }
        self.text(&argument, "name");
        self.text(&argument, "valueHint");
        self.flag(&argument, "isRepeated");
        self.input(&argument);
        self.variables(&argument);
    }

    fn named_input(&mut self, path: String, value: &Value) {
        let Some(named) = self.part(path, value) else { return };
        self.required(&named, &["name"]);
        self.text(&named, "name");
        self.input(&named);
        self.variables(&named);
    }

    fn input(&mut self, input: &Part<'_>) {
        for name in ["description", "value", "default", "placeholder"] {
            self.text(input, name);
        }
        self.flag(input, "isRequired");
        self.flag(input, "isSecret");
        self.one_of(input, "format", &["string", "number", "boolean", "filepath"]);
        self.each(input, "choices", Self::element_text);
    }

    fn variables(&mut self, part: &Part<'_>) {
        let Some(variables) = self.inner(part, "variables") else { return };
        for (name, value) in variables.members {
            if let Some(variable) = self.part(variables.path_of(name), value) {
                self.input(&variable);
            }
        }
    }
}

fn is_server_name(name: &str) -> bool {
    let is_part = |part: &str, more: &[u8]| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte))
    };
    (NAME_CHARS_MIN..=NAME_CHARS_MAX).contains(&name.len())
        && name
            .split_once('/')
            .is_some_and(|(space, name)| is_part(space, b".-") && is_part(name, b"._-"))
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_icon_size(text: &str) -> bool {
    let is_count = |side: &str| !side.is_empty() && side.bytes().all(|byte| byte.is_ascii_digit());
    text == "any" || text.split_once('x').is_some_and(|(x, y)| is_count(x) && is_count(y))
}

fn is_url_template(url: &str) -> bool {
    let is_http = ["http://", "https://"]
        .iter()
        .any(|scheme| url.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty()));
    let is_variable = || {
        let name =
            url.strip_prefix('{').and_then(|rest| rest.split_once('}')).map(|(name, _)| name);
        name.is_some_and(|name| {
            !name.starts_with(|first: char| first.is_ascii_digit())
                && !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        })
    };
    !url.contains(char::is_whitespace) && (is_http || is_variable())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        json!({
            "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
            "name": "io.example/one_two.three", "title": "One", "description": "d", "version": "1.0.0",
            "websiteUrl": "https://example.com", "_meta": {"x": 1}, "unknown": 1,
            "repository": {"url": "https://example.com/r", "source": "git", "id": "7", "subfolder": "a"},
            "icons": [{"src": "https://example.com/i.png", "mimeType": "image/png", "sizes": ["48x48", "any"], "theme": "dark"}],
            "packages": [{
                "registryType": "npm", "identifier": "@scope/server", "version": "1.2.3",
                "fileSha256": "0".repeat(64), "transport": {"type": "stdio"}, "runtimeHint": "npx",
                "runtimeArguments": [{"type": "positional", "value": "-y", "isRepeated": false}],
                "packageArguments": [{"type": "named", "name": "--p", "format": "number", "choices": ["1"]}],
                "environmentVariables": [{"name": "KEY", "isRequired": true, "isSecret": true, "value": "{a}", "variables": {"a": {"default": "x"}}}]
            }],
            "remotes": [
                {"type": "sse", "url": "{base}/sse", "variables": {"base": {"isRequired": true}}},
                {"type": "streamable-http", "url": "https://{region}.example.com/mcp", "headers": [{"name": "A"}]}
            ]
        })
    }

    /// Returns the paths of the faults after a change.
    fn paths(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut document = document();
        change(&mut document);
        let path = |fault: &String| fault.split_once(": ").unwrap().0.to_owned();
        faults(&document).iter().map(path).collect()
    }

    #[test]
    fn a_document_that_the_schema_permits_has_no_faults() {
        assert_eq!(faults(&document()), [""; 0]);
        let bare = json!({"name": "a/b", "description": "d", "version": ""});
        assert_eq!(faults(&bare), [""; 0]);
    }

    #[test]
    fn all_faults_are_reported_together_with_their_paths() {
        let wrong = json!({
            "name": "no-namespace", "version": 1, "packages": [
                {"registryType": "npm", "transport": {"type": "pipe"}, "environmentVariables": [{"isSecret": "yes"}]},
                "x"
            ],
            "remotes": [{"type": "sse"}]
        });
        let found = faults(&wrong);
        let wanted = [
            "description: is missing",
            "name: must be NAMESPACE/NAME of 3 to 200 letters, digits, `.`, `-` and, in the name, `_`",
            "version: must be text",
            "packages[0].identifier: is missing",
            "packages[0].transport.type: must be stdio, or streamable-http, or sse",
            "packages[0].environmentVariables[0].name: is missing",
            "packages[0].environmentVariables[0].isSecret: must be true or false",
            "packages[1]: must be an object",
            "remotes[0].url: is missing",
        ];
        assert_eq!(found, wanted);
        assert_eq!(faults(&json!([])), ["the document: must be an object"]);
    }

    #[test]
    fn each_rule_of_the_schema_has_its_path() {
        let long = "x".repeat(101);
        for (pointer, value, path) in [
            ("/$schema", json!(1), "$schema"),
            ("/name", json!("a/b/c"), "name"),
            ("/name", json!(format!("a/{}", "x".repeat(199))), "name"),
            ("/title", json!(""), "title"),
            ("/title", json!(null), "title"),
            ("/description", json!(long), "description"),
            ("/version", json!("1".repeat(256)), "version"),
            ("/websiteUrl", json!({}), "websiteUrl"),
            ("/_meta", json!([]), "_meta"),
            ("/repository", json!("git"), "repository"),
            ("/repository/url", json!(7), "repository.url"),
            ("/icons", json!({}), "icons"),
            ("/icons/0/src", json!("x".repeat(256)), "icons[0].src"),
            ("/icons/0/mimeType", json!("text/html"), "icons[0].mimeType"),
            ("/icons/0/theme", json!("blue"), "icons[0].theme"),
            ("/icons/0/sizes/0", json!("48"), "icons[0].sizes[0]"),
            ("/packages/0/version", json!("latest"), "packages[0].version"),
            ("/packages/0/version", json!(""), "packages[0].version"),
            ("/packages/0/fileSha256", json!("A".repeat(64)), "packages[0].fileSha256"),
            ("/packages/0/registryType", json!(1), "packages[0].registryType"),
            (
                "/packages/0/runtimeArguments/0/type",
                json!("flag"),
                "packages[0].runtimeArguments[0].type",
            ),
            (
                "/packages/0/runtimeArguments/0/isRepeated",
                json!(0),
                "packages[0].runtimeArguments[0].isRepeated",
            ),
            (
                "/packages/0/runtimeArguments/0",
                json!({"type": "positional"}),
                "packages[0].runtimeArguments[0]",
            ),
            (
                "/packages/0/packageArguments/0",
                json!({"type": "named"}),
                "packages[0].packageArguments[0].name",
            ),
            (
                "/packages/0/packageArguments/0/format",
                json!("date"),
                "packages[0].packageArguments[0].format",
            ),
            (
                "/packages/0/packageArguments/0/choices/0",
                json!(1),
                "packages[0].packageArguments[0].choices[0]",
            ),
            (
                "/packages/0/environmentVariables/0/variables/a/default",
                json!(1),
                "packages[0].environmentVariables[0].variables.a.default",
            ),
            ("/remotes/0/type", json!("stdio"), "remotes[0].type"),
            ("/remotes/0/url", json!("ftp://a"), "remotes[0].url"),
            ("/remotes/0/url", json!("https://a b"), "remotes[0].url"),
            ("/remotes/0/url", json!("{1}/a"), "remotes[0].url"),
            ("/remotes/0/variables", json!([]), "remotes[0].variables"),
            ("/remotes/1/headers/0/name", json!(1), "remotes[1].headers[0].name"),
        ] {
            let found = paths(|document| {
                if let Some(target) = document.pointer_mut(pointer) {
                    *target = value.clone();
                }
            });
            assert_eq!(found, [path], "{pointer}: {value}");
        }
        for (pointer, name) in [("", "name"), ("/repository", "source"), ("/icons/0", "src")] {
            let found = paths(|document| {
                document.pointer_mut(pointer).unwrap().as_object_mut().unwrap().remove(name);
            });
            assert_eq!(found.len(), 1, "{pointer}/{name}");
            assert!(found[0].ends_with(name), "{found:?}");
        }
    }
}
