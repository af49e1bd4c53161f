//! A backend's transport as an answer may show it. Secrets end up in environments, query strings and arguments whatever the
//! documentation says, so their values are masked and only what tells an operator which backend this is remains.

use crate::{config::spec::TransportSpec, telemetry::secrets};

const MASK: &str = "***";
/// Parts of an argument's name that announce a secret.
const SECRET_WORDS: [&str; 8] = ["token", "secret", "password", "passwd", "key", "auth", "credential", "bearer"];

pub(super) fn transport(transport: &TransportSpec) -> TransportSpec {
    match transport {
        TransportSpec::Http { url } => TransportSpec::Http { url: masked_url(url) },
        TransportSpec::Websocket { url } => TransportSpec::Websocket { url: masked_url(url) },
        TransportSpec::Tcp { .. } | TransportSpec::Quic { .. } => transport.clone(),
        TransportSpec::Stdio { command, args, env, cwd, limits } => TransportSpec::Stdio {
            command: command.clone(),
            args: masked_args(args),
            env: env.keys().map(|name| (name.clone(), MASK.to_owned())).collect(),
            cwd: cwd.clone(),
            limits: limits.clone(),
        },
    }
}

/// Every query value is masked: which of them is an API key can not be known.
fn masked_url(url: &str) -> String {
    let Some((base, query)) = url.split_once('?') else { return url.to_owned() };
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name, _)) => format!("{name}={MASK}"),
        None => MASK.to_owned(),
    });
    format!("{base}?{}", pairs.collect::<Vec<_>>().join("&"))
}

/// `--api-key=x`, `--api-key x`, `API_KEY=x`.
fn masked_args(args: &[String]) -> Vec<String> {
    let mut announced = false;
    let masked = args.iter().map(|arg| {
        let was_announced = std::mem::take(&mut announced);
        match arg.split_once('=') {
            Some((name, _)) if is_secret_name(name) => format!("{name}={MASK}"),
            _ if was_announced && !arg.starts_with('-') => MASK.to_owned(),
            _ => {
                announced = arg.starts_with('-') && is_secret_name(arg);
                secrets::masked(arg).unwrap_or_else(|| arg.clone())
            }
        }
    });
    masked.collect()
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_values_are_masked() {
        assert_eq!(masked_url("https://x.example/mcp?apiKey=canary&b=2&canary"), "https://x.example/mcp?apiKey=***&b=***&***");
        assert_eq!(masked_url("https://x.example/mcp"), "https://x.example/mcp");
    }

    #[test]
    fn announced_arguments_are_masked() {
        let args = ["-y", "pkg", "--api-key", "canary", "--token=canary", "GITHUB_TOKEN=canary", "--verbose", "seen", "--auth", "--seen"];
        let shown = masked_args(&args.map(str::to_owned));
        assert_eq!(shown, ["-y", "pkg", "--api-key", "***", "--token=***", "GITHUB_TOKEN=***", "--verbose", "seen", "--auth", "--seen"]);
    }

    #[test]
    fn environment_values_are_masked() {
        let env = [("HOME".to_owned(), "canary".to_owned())].into();
        let spec = TransportSpec::Stdio { command: "npx".into(), args: vec![], env, cwd: None, limits: Default::default() };
        let text = serde_json::to_string(&transport(&spec)).unwrap();
        assert!(text.contains("HOME") && !text.contains("canary"), "{text}");
    }
}
