//! The configuration file with environment variables, and a file of `include.folder`: the reader of
//! YAML against the same tree as JSON, and declared entries against the readers of the admin API.
//!
//! Lines of an input that begin with `MCP_BROKER__` are variables. The rest is the file.

use config::{
    Config, ConfigSource, FieldErrors, IncludedFile, load_from, sections_needing_restart,
    validation::{parse_backend_spec, parse_tenant_spec},
};
use serde_json::{Value, json};

use super::settings_faults::{check_faults, secrets_of};
use crate::{Outcome, Target};

pub(super) const TARGET: Target = Target {
    name: "configuration",
    tokens: &[
        "\n",
        "  ",
        ": ",
        "{",
        "}",
        "- ",
        "&a ",
        "*a",
        "<<: ",
        "!!str ",
        "---\n",
        "|\n",
        "'",
        "~",
        ".inf",
        "0x10",
        "1_000",
        "on",
        "5m",
        "64MiB",
        "hush-hush-hush-hush-hush-hush-hush",
        "127.0.0.1:0",
        "0.0.0.0:8080",
        "https://a.example",
        "listen: {http: '127.0.0.1:0'}\n",
        "limits: {burst: 1}\n",
        "auth:\n  required: true\n",
        "  admin_token: hush-hush-hush-hush-hush-hush-hush\n",
        "  resource: https://mcp.example.com\n",
        "  issuers: [{issuer: 'https://a.example', tenant: acme}]\n",
        "storage: {url: 'postgres://u:p@h/d'}\n",
        "telemetry: {log: info, traces: {ratio: 1}}\n",
        "egress: {allow: [10.0.0.0/8]}\n",
        "stdio: {commands: {node: {env: [A]}}}\n",
        "tenants: {acme: {weight: 2}}\n",
        "policy: {default: deny}\n",
        "backends: {acme/a: {transport: {type: http, url: 'https://a.example/'}}}\n",
        "transport: {type: stdio, command: node}\n",
        "credentials: {bearer: hush-hush-hush}\n",
        "MCP_BROKER__LIMITS__BURST=5\n",
        "MCP_BROKER__NODE__SECRET=hush-hush-hush-hush-hush-hush-hush\n",
        "MCP_BROKER__BACKENDS={}\n",
        "MCP_BROKER__",
    ],
    bytes_max: 2048,
    check,
};

fn check(input: &[u8]) -> Outcome {
    let input = String::from_utf8_lossy(input);
    let (variables, lines): (Vec<&str>, Vec<&str>) =
        input.split_inclusive('\n').partition(|line| line.starts_with("MCP_BROKER__"));
    let variables = variables.into_iter().filter_map(|line| line.trim_end().split_once('='));
    let environment: Vec<(String, String)> =
        variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let text = lines.concat();
    let tree = tree_of(&text).unwrap_or_default();
    let written = with_variables(&tree, &environment);
    let read = load_from(&text, environment.clone());
    let alone = match &read {
        Ok(config) => {
            is_read_again(config);
            is_secret(config, &written);
            let again = load_from(&text, environment.clone()).expect("it was read");
            assert_eq!(sections_needing_restart(config, &again), Vec::<&str>::new());
            vec![format!("{} backends", config.backends.len().min(3))]
        }
        Err(FieldErrors(faults)) => check_faults(faults, &written),
    };
    if tree.is_object() && is_plain(&text) {
        let as_json = load_from(&tree.to_string(), environment.clone());
        assert!(outline(&as_json) == outline(&read), "the same tree in JSON differs: {tree}");
    }
    let included = environment.is_empty().then(|| included(&text, &tree, &read));
    Outcome::of(&(alone, included))
}

/// Reads YAML as the broker does.
fn tree_of(text: &str) -> Option<Value> {
    let options = serde_saphyr::options! {
        strict_booleans: true,
        with_snippet: false,
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::Error,
    };
    serde_saphyr::from_str_with_options(text, options).ok()
}

/// Returns whether JSON writes every text of the file as YAML reads it.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)) && !text.contains('\\')
}

/// Returns a tree with the variables, for the search for secrets.
fn with_variables(tree: &Value, environment: &[(String, String)]) -> Value {
    let variables = environment.iter().map(|(name, value)| {
        let key = name.rsplit("__").next().unwrap_or_default().to_ascii_lowercase();
        json!([name, { key: value }])
    });
    json!([tree, variables.collect::<Vec<_>>()])
}

/// Describes a result so that two of equal settings are equal. Each reading has a random node name.
fn outline(read: &Result<Config, FieldErrors>) -> Result<String, FieldErrors> {
    let mut config = read.clone()?;
    config.node.id.clear();
    Ok(format!("{config:?}"))
}

/// Checks that the readers of the admin API accept what the file declares.
fn is_read_again(config: &Config) {
    for entry in &config.backends {
        let printed = serde_json::to_value(&entry.spec).expect("settings are plain values");
        assert_eq!(parse_backend_spec(&printed).as_ref(), Ok(&entry.spec), "the round trip");
    }
    for (_, spec) in &config.tenants {
        let printed = serde_json::to_value(spec).expect("settings are plain values");
        assert_eq!(parse_tenant_spec(&printed).as_ref(), Ok(spec), "the round trip");
    }
    for (_, policy) in &config.policies {
        let printed = serde_json::to_value(policy).expect("a document is plain values");
        assert_eq!(serde_json::from_value(printed).ok().as_ref(), Some(policy), "the round trip");
    }
}

/// Checks that the log of a configuration would show no secret. The environment of a child process
/// may be shown.
fn is_secret(config: &Config, written: &Value) {
    let mut config = config.clone();
    for entry in &mut config.backends {
        if let config::spec::TransportSpec::Stdio { env, .. } = &mut entry.spec.transport {
            env.clear();
        }
    }
    let text = format!("{config:?}");
    for secret in secrets_of(written) {
        assert!(!text.contains(&secret), "{secret} is shown: {text}");
    }
}

/// Checks the text as a file of the folder. It holds tenants and backends, and means the same there.
fn included(text: &str, tree: &Value, read: &Result<Config, FieldErrors>) -> Vec<String> {
    let file = match IncludedFile::parse("a.yaml", text) {
        Ok(file) => file,
        Err(FieldErrors(faults)) => return check_faults(&faults, tree),
    };
    match (ConfigSource::default().load([&file]), read) {
        (Ok(config), Ok(read)) => {
            is_read_again(&config);
            assert_eq!(config.tenants, read.tenants, "tenants of a file of the folder");
            let specs = |config: &Config| -> Vec<_> {
                let key = |entry: &config::DeclaredBackend| {
                    (entry.tenant.clone(), entry.backend.clone(), entry.spec.clone())
                };
                let mut specs: Vec<_> = config.backends.iter().map(key).collect();
                specs.sort_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
                specs
            };
            assert_eq!(specs(&config), specs(read), "backends of a file of the folder");
            Vec::new()
        }
        (Err(FieldErrors(faults)), Err(_)) => check_faults(&faults, tree),
        (alone, read) => panic!("a file of the folder: {alone:?}; the file: {read:?}"),
    }
}
