//! Bodies of backends from a `server.json`, the description of a server by its publisher (schema
//! 2025-12-11): packages of npm and PyPI, and remote servers.
//!
//! A package runs in its exact version. What the document leaves open is an input, which the
//! operator gives. Nothing of the document reaches a shell: a command is a program and arguments.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::server_json_faults;

/// Revisions of the schema that this module reads.
const SCHEMAS: [&str; 4] = ["2025-12-11", "2025-10-17", "2025-09-29", "2025-09-16"];

/// A server as its publisher describes it. Unknown members have no meaning here.
#[derive(Debug, Deserialize)]
pub(super) struct ServerJson {
    pub(super) name: String,
    pub(super) version: String,
    #[serde(default)]
    packages: Vec<Package>,
    #[serde(default)]
    remotes: Vec<RemoteServer>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Package {
    registry_type: String,
    #[serde(default)]
    registry_base_url: Option<String>,
    identifier: String,
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    file_sha256: Option<String>,
    #[serde(default)]
    runtime_hint: Option<String>,
    transport: PackageTransport,
    #[serde(default)]
    runtime_arguments: Vec<Argument>,
    #[serde(default)]
    package_arguments: Vec<Argument>,
    #[serde(default)]
    environment_variables: Vec<NamedInput>,
}

#[derive(Debug, Deserialize)]
struct PackageTransport {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Debug, Deserialize)]
struct RemoteServer {
    #[serde(rename = "type")]
    kind: String,
    url: String,
    #[serde(default)]
    headers: Vec<NamedInput>,
    #[serde(default)]
    variables: BTreeMap<String, Input>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Input {
    description: Option<String>,
    is_required: bool,
    is_secret: bool,
    format: Option<String>,
    value: Option<String>,
    #[serde(rename = "default")]
    preset: Option<String>,
    choices: Vec<String>,
    variables: BTreeMap<String, Input>,
}

#[derive(Debug, Deserialize)]
struct NamedInput {
    name: String,
    #[serde(flatten)]
    input: Input,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Argument {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    value_hint: Option<String>,
    #[serde(flatten)]
    input: Input,
}

/// An input that the document leaves open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MissingInput {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) is_secret: bool,
}

/// Why a document gives no backend.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ImportError {
    /// Required inputs without a value.
    Missing(Vec<MissingInput>),
    Faults(Vec<String>),
}

/// The values that the operator gives, and what was found out with them.
struct Inputs<'i> {
    given: &'i BTreeMap<String, String>,
    used: BTreeSet<&'i str>,
    missing: Vec<MissingInput>,
    faults: Vec<String>,
}

impl ServerJson {
    /// Reads a document, or an answer of a registry that holds one. All faults of the document are in
    /// the error, each with its path.
    pub(super) fn read(document: &Value) -> Result<Self, Vec<String>> {
        let document = document.get("server").unwrap_or(document);
        if let Some(schema) = document.get("$schema").and_then(Value::as_str)
            && !SCHEMAS.iter().any(|known| schema.contains(known))
        {
            let known = SCHEMAS.join(", ");
            return Err(vec![format!("$schema is {schema}; allowed: the schemas of {known}")]);
        }
        let faults = server_json_faults::faults(document);
        let no_server = "this is not a server.json:".to_owned();
        if !faults.is_empty() {
            return Err([no_server].into_iter().chain(faults).collect());
        }
        serde_json::from_value(document.clone()).map_err(|error| vec![no_server, error.to_string()])
    }

    /// Returns the body of the backend. `wants_remote`: the remote server, not the package.
    pub(super) fn body(
        &self,
        given: &BTreeMap<String, String>,
        wants_remote: bool,
    ) -> Result<Value, ImportError> {
        let mut inputs =
            Inputs { given, used: BTreeSet::new(), missing: Vec::new(), faults: Vec::new() };
        let body = self.chosen(&mut inputs, wants_remote);
        for name in given.keys().filter(|name| !inputs.used.contains(name.as_str())) {
            inputs.faults.push(format!("--input {name}: the document has no such input"));
        }
        match body {
            Err(faults) => Err(ImportError::Faults(faults)),
            Ok(_) if !inputs.faults.is_empty() => Err(ImportError::Faults(inputs.faults)),
            Ok(_) if !inputs.missing.is_empty() => Err(ImportError::Missing(inputs.missing)),
            Ok(body) => Ok(body),
        }
    }

    fn chosen(&self, inputs: &mut Inputs<'_>, wants_remote: bool) -> Result<Value, Vec<String>> {
        let mut reasons = Vec::new();
        if !wants_remote {
            for (index, package) in self.packages.iter().enumerate() {
                match package.runner() {
                    Ok(runner) => return Ok(package.body(runner, inputs)),
                    Err(reason) => reasons.push(format!("packages[{index}] {reason}")),
                }
            }
        }
        for (index, remote) in self.remotes.iter().enumerate() {
            match remote.kind.as_str() {
                "streamable-http" => return Ok(remote.body("http", inputs)),
                "sse" => return Ok(remote.body("sse", inputs)),
                other => reasons.push(format!("remotes[{index}] has the unknown type {other:?}")),
            }
        }
        if reasons.is_empty() {
            let reason = match self.packages.is_empty() {
                true => "the document has no package and no remote server to run",
                // With a package, there are no reasons only if it was not wanted.
                false => "the document has a package and no remote server; leave out --remote",
            };
            reasons.push(reason.to_owned());
        }
        Err(reasons)
    }
}

/// What starts packages of one registry.
#[derive(Debug, Clone, Copy)]
struct Runner {
    command: &'static str,
    /// Arguments before the package.
    first: &'static [&'static str],
    /// Runtime arguments that a document may have. `first` already has their effect.
    flags: &'static [&'static str],
    registries: &'static [&'static str],
}

const NPX: Runner = Runner {
    command: "npx",
    first: &["-y"],
    flags: &["-y", "--yes"],
    registries: &["https://registry.npmjs.org", "https://registry.npmjs.org/"],
};
const UVX: Runner = Runner {
    command: "uvx",
    first: &[],
    flags: &[],
    registries: &["https://pypi.org", "https://pypi.org/"],
};
/// Beginnings of the names of variables that configure a runner or the loader, in small letters.
const RUNNER_VARIABLE_PREFIXES: [&str; 3] = ["npm_config_", "uv_", "pip_"];
/// Further variables that change which programs and modules run, or where a runner finds them, in
/// small letters.
const RUNNER_VARIABLES: [&str; 17] = [
    "all_proxy",
    "bash_env",
    "http_proxy",
    "https_proxy",
    "ld_audit",
    "ld_library_path",
    "ld_preload",
    "node_extra_ca_certs",
    "node_options",
    "node_path",
    "path",
    "pythonhome",
    "pythonpath",
    "pythonstartup",
    "pythonuserbase",
    "ssl_cert_dir",
    "ssl_cert_file",
];

impl Package {
    /// Returns what runs the package here, or why nothing does.
    fn runner(&self) -> Result<Runner, String> {
        let runner = match self.registry_type.as_str() {
            "npm" => NPX,
            "pypi" => UVX,
            "oci" => return Err("has the registryType oci: the broker cannot run images, because backends are its child processes".to_owned()),
            other => return Err(format!("has the registryType {other:?}; allowed: npm, pypi")),
        };
        if self.transport.kind != "stdio" {
            let kind = &self.transport.kind;
            return Err(format!(
                "uses the transport {kind}, not stdio; start the server yourself and add its URL"
            ));
        }
        if let Some(hint) = self.runtime_hint.as_deref().filter(|hint| *hint != runner.command) {
            return Err(format!("asks for the runtime {hint:?}; allowed: {}", runner.command));
        }
        if let Some(url) = self.registry_base_url.as_deref()
            && !runner.registries.contains(&url)
        {
            return Err(format!("is of the registry {url}; allowed: {}", runner.registries[0]));
        }
        if self.file_sha256.is_some() {
            let command = runner.command;
            return Err(format!("has a fileSha256, which {command} cannot check"));
        }
        if let Some(fault) = self.argument_fault(runner).or_else(|| self.variable_fault()) {
            return Err(fault);
        }
        if !is_identifier(&self.identifier) {
            return Err(format!("has the unusable identifier {:?}", self.identifier));
        }
        match self.version.as_deref() {
            Some(version) if is_exact(version) => Ok(runner),
            Some(version) => {
                Err(format!("has the version {version:?}; an exact version is needed"))
            }
            None => Err("has no version; an exact one is needed".to_owned()),
        }
    }

    /// Returns the fault of the first runtime argument that is not a flag of the runner. Another
    /// argument could name another registry.
    fn argument_fault(&self, runner: Runner) -> Option<String> {
        let mut arguments = self.runtime_arguments.iter();
        let argument = arguments.find(|argument| !argument.is_flag(runner.flags))?;
        let allowed = match runner.flags {
            [] => "none".to_owned(),
            flags => format!("{} (without a value)", flags.join(", ")),
        };
        Some(format!("has the runtime argument {:?}; allowed: {allowed}", argument.shown()))
    }

    /// Returns the fault of the first variable that configures the runner or the loader.
    fn variable_fault(&self) -> Option<String> {
        let mut names = self.environment_variables.iter().map(|variable| &variable.name);
        let name = names.find(|name| is_runner_variable(name))?;
        Some(format!(
            "has the environment variable {name:?}, which configures the runner or the loader"
        ))
    }

    fn body(&self, runner: Runner, inputs: &mut Inputs<'_>) -> Value {
        let mut args: Vec<String> = runner.first.iter().map(|&first| first.to_owned()).collect();
        args.push(format!("{}@{}", self.identifier, self.version.as_deref().unwrap_or_default()));
        args.extend(inputs.arguments(&self.package_arguments));
        let mut transport = json!({"type": "stdio", "command": runner.command, "args": args});
        let env = inputs.named(&self.environment_variables);
        if !env.is_empty() {
            transport["env"] = env.into();
        }
        json!({"transport": transport})
    }
}

impl Argument {
    /// Returns whether this is one of the flags, without a value.
    fn is_flag(&self, flags: &[&str]) -> bool {
        let has_value =
            self.input.value.is_some() || self.input.preset.is_some() || self.value_hint.is_some();
        let flag = match self.kind.as_str() {
            "positional" => self.input.value.as_deref(),
            _ => self.name.as_deref().filter(|_| !has_value),
        };
        flag.is_some_and(|flag| flags.contains(&flag))
    }

    /// Returns the argument for a refusal: its name, or the value or hint of a positional one.
    fn shown(&self) -> &str {
        let name = self.name.as_deref().filter(|_| self.kind != "positional");
        let value = self.input.value.as_deref().or(self.input.preset.as_deref());
        name.or(value).or(self.value_hint.as_deref()).unwrap_or_default()
    }
}

impl RemoteServer {
    fn body(&self, kind: &str, inputs: &mut Inputs<'_>) -> Value {
        let url = inputs.filled(&self.url, &self.variables, super::client::escape);
        let mut body = json!({"transport": {"type": kind, "url": url.unwrap_or_default()}});
        let headers = inputs.named(&self.headers);
        if !headers.is_empty() {
            body["credentials"] = json!({"headers": headers});
        }
        body
    }
}

/// Returns whether a variable of this name configures the runner of a package or the loader.
fn is_runner_variable(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    RUNNER_VARIABLES.contains(&name.as_str())
        || RUNNER_VARIABLE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns whether a version is one version, and not a range or a tag.
fn is_exact(version: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && !matches!(part, "x" | "X");
    version.len() <= 255
        && version.starts_with(|first: char| first.is_ascii_digit())
        && version.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".+-_!".contains(&byte))
        && version.split('.').all(is_part)
}

/// Returns whether a package name is one argument that no program reads as an option.
fn is_identifier(name: &str) -> bool {
    name.len() <= 255
        && name.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '@')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"@/._-".contains(&byte))
        && !name[1..].contains('@')
}

impl<'i> Inputs<'i> {
    /// Returns the value of an input. `None`: it has none, and the caller leaves it out.
    fn value(&mut self, name: &str, input: &Input) -> Option<String> {
        if let Some(value) = &input.value {
            return self.filled(value, &input.variables, str::to_owned);
        }
        let value = match self.given.get_key_value(name) {
            Some((name, value)) => {
                self.used.insert(name.as_str());
                Some(value.clone())
            }
            None => input.preset.clone(),
        };
        let Some(value) = value else {
            if input.is_required && !self.missing.iter().any(|other| other.name == name) {
                self.missing.push(MissingInput {
                    name: name.to_owned(),
                    description: input.description.clone().unwrap_or_default(),
                    is_secret: input.is_secret,
                });
            }
            return None;
        };
        let fits = match input.format.as_deref() {
            Some("number") => value.parse::<f64>().is_ok(),
            Some("boolean") => matches!(value.as_str(), "true" | "false"),
            _ => true,
        };
        if !fits {
            let format = input.format.as_deref().unwrap_or_default();
            self.faults.push(format!("--input {name}: must be a {format}"));
        }
        if !input.choices.is_empty() && !input.choices.contains(&value) {
            self.faults
                .push(format!("--input {name}: must be one of {}", input.choices.join(", ")));
        }
        Some(value)
    }

    /// Replaces `{variable}` in a template. `None`: a variable has no value.
    fn filled(
        &mut self,
        template: &str,
        variables: &BTreeMap<String, Input>,
        form: impl Fn(&str) -> String,
    ) -> Option<String> {
        let (mut out, mut rest) = (String::new(), template);
        while let Some(start) = rest.find('{') {
            let (before, placeholder) = rest.split_at(start);
            out.push_str(before);
            let named =
                placeholder.find('}').map(|end| (&placeholder[1..end], &placeholder[end + 1..]));
            match named.and_then(|(name, after)| Some((name, variables.get(name)?, after))) {
                Some((name, variable, after)) => {
                    out.push_str(&form(&self.value(name, variable)?));
                    rest = after;
                }
                // Braces that name no variable stay as they are.
                None => {
                    out.push('{');
                    rest = &placeholder[1..];
                }
            }
        }
        out.push_str(rest);
        Some(out)
    }

    fn named(&mut self, named: &[NamedInput]) -> Map<String, Value> {
        let mut values = Map::new();
        for NamedInput { name, input } in named {
            if let Some(value) = self.value(name, input) {
                values.insert(name.clone(), value.into());
            }
        }
        values
    }

    fn arguments(&mut self, arguments: &[Argument]) -> Vec<String> {
        let mut argv = Vec::new();
        for argument in arguments {
            let label = argument.name.as_ref().or(argument.value_hint.as_ref());
            let label = label.cloned().unwrap_or_default();
            match (argument.kind.as_str(), &argument.name) {
                ("positional", _) => argv.extend(self.value(&label, &argument.input)),
                ("named", Some(flag)) => {
                    let is_plain = argument.input.value.is_none()
                        && argument.input.preset.is_none()
                        && argument.value_hint.is_none()
                        && argument.input.is_required
                        && !self.given.contains_key(flag);
                    if is_plain {
                        argv.push(flag.clone()); // a flag without a value
                        continue;
                    }
                    let Some(value) = self.value(&label, &argument.input) else { continue };
                    if flag.starts_with("--") {
                        argv.push(format!("{flag}={value}"));
                    } else {
                        argv.extend([flag.clone(), value]);
                    }
                }
                (kind, _) => {
                    self.faults.push(format!("an argument has the unusable type {kind:?}"))
                }
            }
        }
        argv
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(document: Value) -> Result<ServerJson, ImportError> {
        let mut server = json!({
            "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
            "name": "io.example/one", "description": "d", "version": "1.0.0"
        });
        server.as_object_mut().unwrap().extend(document.as_object().unwrap().clone());
        ServerJson::read(&server).map_err(ImportError::Faults)
    }

    fn body(document: Value, given: &[(&str, &str)]) -> Result<Value, ImportError> {
        let given = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        read(document)?.body(&given.collect(), false)
    }

    fn package(members: Value) -> Value {
        let mut package = json!({
            "registryType": "npm", "identifier": "@scope/server", "version": "1.2.3",
            "transport": {"type": "stdio"}
        });
        package.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        json!({"packages": [package]})
    }

    fn faults(document: Value) -> String {
        match body(document, &[]) {
            Err(ImportError::Faults(faults)) => faults.join("; "),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn packages_run_in_their_exact_version() {
        let npm = body(
            package(
                json!({"runtimeHint": "npx", "runtimeArguments": [{"type": "positional", "value": "-y"}]}),
            ),
            &[],
        );
        let transport =
            json!({"type": "stdio", "command": "npx", "args": ["-y", "@scope/server@1.2.3"]});
        assert_eq!(npm, Ok(json!({"transport": transport})));
        let pypi = body(
            package(
                json!({"registryType": "pypi", "identifier": "mcp-server-time", "version": "2025.9.25"}),
            ),
            &[],
        );
        assert_eq!(pypi.unwrap()["transport"]["args"], json!(["mcp-server-time@2025.9.25"]));
        for version in ["^1.2.3", "~1.2", ">=1", "1.x", "1.*", "latest", "", "1.2.3 || 2", "v1;rm"]
        {
            assert!(
                faults(package(json!({"version": version}))).contains("exact version"),
                "{version}"
            );
        }
    }

    #[test]
    fn a_package_that_cannot_run_here_is_refused_with_the_reason() {
        for (members, reason) in [
            (
                json!({"registryType": "oci", "identifier": "docker.io/a/b:1"}),
                "oci: the broker cannot run images",
            ),
            (json!({"registryType": "mcpb"}), "allowed: npm, pypi"),
            (json!({"transport": {"type": "streamable-http", "url": "http://x"}}), "not stdio"),
            (json!({"runtimeHint": "bash"}), "runtime \"bash\""),
            (json!({"registryBaseUrl": "https://evil.example"}), "registry https://evil.example"),
            (json!({"fileSha256": "0".repeat(64)}), "cannot check"),
            (json!({"identifier": "--call=evil"}), "unusable identifier"),
        ] {
            let faults = faults(package(members));
            assert!(faults.contains(reason), "{faults}");
        }
        assert!(faults(json!({})).contains("no package and no remote"));
        let no_remote = read(package(json!({}))).unwrap().body(&BTreeMap::new(), true);
        let reason = "the document has a package and no remote server; leave out --remote";
        assert_eq!(no_remote, Err(ImportError::Faults(vec![reason.to_owned()])));
        let old =
            json!({"$schema": "https://x/2025-07-09/server.json", "name": "a", "version": "1"});
        assert!(ServerJson::read(&old).is_err());
    }

    #[test]
    fn the_runner_gets_none_but_its_own_flags() {
        let npm = |argument: Value| package(json!({"runtimeArguments": [argument]}));
        for flag in [
            json!({"type": "positional", "value": "-y"}),
            json!({"type": "positional", "value": "--yes"}),
            json!({"type": "named", "name": "-y"}),
            json!({"type": "named", "name": "--yes", "isRequired": true}),
        ] {
            let body = body(npm(flag), &[]).unwrap();
            assert_eq!(body["transport"]["args"], json!(["-y", "@scope/server@1.2.3"]));
        }
        for (argument, shown) in [
            (json!({"type": "named", "name": "--registry", "value": "https://evil"}), "--registry"),
            (
                json!({"type": "positional", "value": "--registry=https://evil"}),
                "--registry=https://evil",
            ),
            (json!({"type": "positional", "name": "-y", "value": "--call"}), "--call"),
            (json!({"type": "positional", "valueHint": "h", "default": "--call"}), "--call"),
            (json!({"type": "positional", "valueHint": "hint"}), "hint"),
            (json!({"type": "named", "name": "--yes", "value": "x"}), "--yes"),
        ] {
            let reason =
                format!("packages[0] has the runtime argument {shown:?}; allowed: -y, --yes");
            let faults = faults(npm(argument));
            assert!(faults.starts_with(&reason), "{faults}");
        }
        let pypi = package(json!({
            "registryType": "pypi", "identifier": "mcp-server-time", "version": "2025.9.25",
            "runtimeArguments": [{"type": "named", "name": "--from", "value": "evil"}]
        }));
        assert!(faults(pypi).contains("the runtime argument \"--from\"; allowed: none"));
    }

    #[test]
    fn a_variable_that_configures_the_runner_or_the_loader_is_refused() {
        let with = |name: &str| {
            package(
                json!({"environmentVariables": [{"name": "KEY", "value": "k"}, {"name": name, "value": "x"}]}),
            )
        };
        for name in [
            "NPM_CONFIG_REGISTRY",
            "npm_config_registry",
            "UV_INDEX_URL",
            "PIP_INDEX_URL",
            "LD_PRELOAD",
            "NODE_OPTIONS",
            "Path",
            "PYTHONSTARTUP",
        ] {
            let faults = faults(with(name));
            assert!(faults.contains(&format!("the environment variable {name:?}")), "{faults}");
        }
        for name in ["API_PATH", "NODE_ENV", "BUILD_ID"] {
            assert_eq!(body(with(name), &[]).unwrap()["transport"]["env"][name], "x");
        }
    }

    #[test]
    fn inputs_are_requested_checked_and_used() {
        let document = || {
            package(json!({
                "environmentVariables": [
                    {"name": "KEY", "isRequired": true, "isSecret": true, "description": "The key."},
                    {"name": "MODE", "default": "ro", "choices": ["ro", "rw"]}, {"name": "REST"}
                ],
                "packageArguments": [
                    {"type": "named", "name": "--port", "format": "number", "isRequired": true, "valueHint": "port"},
                    {"type": "positional", "valueHint": "folder", "value": "/srv/{name}", "variables": {"name": {"isRequired": true}}}
                ]
            }))
        };
        let Err(ImportError::Missing(missing)) = body(document(), &[]) else { panic!() };
        let names: Vec<(&str, bool)> =
            missing.iter().map(|one| (one.name.as_str(), one.is_secret)).collect();
        assert_eq!(names, [("--port", false), ("name", false), ("KEY", true)]);
        let given = [("KEY", "k"), ("--port", "80"), ("name", "a b")];
        let transport = json!({
            "type": "stdio", "command": "npx",
            "args": ["-y", "@scope/server@1.2.3", "--port=80", "/srv/a b"],
            "env": {"KEY": "k", "MODE": "ro"}
        });
        assert_eq!(body(document(), &given), Ok(json!({"transport": transport})));
        let wrong = [("KEY", "k"), ("--port", "x"), ("name", "n"), ("MODE", "all"), ("OTHER", "")];
        let Err(ImportError::Faults(faults)) = body(document(), &wrong) else { panic!() };
        assert_eq!(faults.len(), 3, "{faults:?}");
    }

    #[test]
    fn a_remote_server_gets_its_url_and_headers() {
        let remotes = json!({"remotes": [{
            "type": "streamable-http", "url": "https://{region}.example.com/mcp/{x}",
            "variables": {"region": {"default": "eu", "choices": ["eu", "us"]}},
            "headers": [{"name": "Authorization", "value": "Bearer {token}", "variables": {"token": {"isRequired": true, "isSecret": true}}}]
        }]});
        let made = body(remotes.clone(), &[("token", "t")]).unwrap();
        let expected = json!({
            "transport": {"type": "http", "url": "https://eu.example.com/mcp/{x}"},
            "credentials": {"headers": {"Authorization": "Bearer t"}}
        });
        assert_eq!(made, expected);
        assert!(matches!(body(remotes, &[]), Err(ImportError::Missing(_))));
        let sse = json!({"remotes": [{"type": "sse", "url": "https://a/sse"}]});
        assert_eq!(body(sse, &[]).unwrap()["transport"]["type"], "sse");
    }
}
