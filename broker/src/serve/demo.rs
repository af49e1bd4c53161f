//! `mcp-broker demo`: the broker with its defaults and the bundled demo backend, and instructions
//! for the first requests.

use std::net::SocketAddr;

use config::{
    DeclaredBackend,
    spec::{BackendSpec, BackendTimeouts, Credentials, ProtocolChoice},
    stdio,
};
use protocol::ids::{BackendId, TenantId};
use rules::link_sharing::LinkSharing;

const BACKEND: &str = "demo";

/// Returns the demo backend, which is this program with another command. It is declared and not
/// stored, so a later `serve` does not have it.
pub(super) fn backend(program: String) -> DeclaredBackend {
    DeclaredBackend {
        tenant: TenantId::default_tenant(),
        backend: BackendId::parse(BACKEND).expect("the constant is a legal name"),
        spec: BackendSpec {
            transport: stdio::child(program, vec!["demo-backend".to_owned()]),
            tls: Default::default(),
            links: LinkSharing::Auto,
            protocol: ProtocolChoice::Legacy,
            timeouts: BackendTimeouts::default(),
            breaker: Default::default(),
            limits: Default::default(),
            credentials: Credentials::default(),
            auth: Default::default(),
            resources: Default::default(),
            roots: Default::default(),
            tools: Default::default(),
            sandbox: Default::default(),
            pins: Default::default(),
        },
        is_bundled: true,
    }
}

/// Returns a session to type by hand in a POSIX shell: initialize, keep the session id, call a
/// tool.
pub(super) fn instructions(http: SocketAddr) -> String {
    let url = format!("http://{http}/mcp");
    format!(
        r#"
The broker serves a demo backend at {url}
Point an MCP client at that URL, or paste this into a shell:

mcp() {{ curl -sS {url} -H 'content-type: application/json' -H 'accept: application/json, text/event-stream' "$@"; }}
session=$(mcp -D - -o /dev/null -d '{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-11-25","capabilities":{{}},"clientInfo":{{"name":"curl","version":"1"}}}}}}' | tr -d '\r' | awk 'tolower($1) == "mcp-session-id:" {{ print $2 }}')
mcp -H "mcp-session-id: $session" -d '{{"jsonrpc":"2.0","method":"notifications/initialized"}}'
mcp -H "mcp-session-id: $session" -d '{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{{"name":"{BACKEND}__echo","arguments":{{"message":"hello"}}}}}}'

Ctrl-C stops it.
"#
    )
}

#[cfg(test)]
mod tests {
    use config::validation::validate_backend_spec;

    use super::*;

    #[test]
    fn the_demo_backend_is_valid() {
        assert_eq!(validate_backend_spec(&backend("/usr/bin/mcp-broker".to_owned()).spec), Ok(()));
    }

    #[test]
    fn the_bodies_to_paste_are_json() {
        let text = instructions("127.0.0.1:8080".parse().unwrap());
        let bodies: Vec<&str> =
            text.lines().filter_map(|line| line.split_once("-d '")?.1.split('\'').next()).collect();
        assert_eq!(bodies.len(), 3, "{text}");
        for body in bodies {
            serde_json::from_str::<serde_json::Value>(body)
                .unwrap_or_else(|error| panic!("{body}: {error}"));
        }
    }
}
