//! Paths of the installed peers, in the layout that `scripts/install-peers.sh` makes.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::process::Command;

use super::process::Server;

/// The installed peers; [`Peers::installed`] has checked that they are there.
pub(super) struct Peers {
    cache: PathBuf,
}

impl Peers {
    pub(super) fn installed() -> Self {
        let cache = std::env::var_os("MCP_BROKER_CACHE").map_or_else(
            || {
                PathBuf::from(std::env::var_os("HOME").expect("HOME or MCP_BROKER_CACHE is set"))
                    .join(".cache/mcp-broker")
            },
            PathBuf::from,
        );
        let peers = Self { cache: cache.join("peers") };
        for part in [
            "node",
            "typescript2",
            "browser",
            "console",
            "apps",
            "python1",
            "python2",
            "fastmcp",
            "wires",
            "servers",
            "admin",
            "openapi",
            "authlib",
            "fixture",
            "rmcp",
            "go",
        ] {
            let stamp = peers.cache.join(format!("{part}.stamp"));
            assert!(
                stamp.exists(),
                "{} is missing: the peers are not installed; run scripts/install-peers.sh",
                stamp.display()
            );
        }
        peers
    }

    /// Returns a file of this repository.
    pub(super) fn ours(path: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("the crate is in the workspace")
            .join(path)
    }

    pub(super) fn node(&self) -> PathBuf {
        self.cache.join("node/node_modules/.bin/node")
    }

    /// Returns the packages that build the console.
    pub(super) fn packages_of_console(&self) -> PathBuf {
        self.cache.join("console/node_modules")
    }

    pub(super) fn python(&self, line: u8) -> PathBuf {
        self.cache.join(format!("python{line}/bin/python"))
    }

    /// Returns the interpreter that has the libraries of the wires.
    pub(super) fn python_of_wires(&self) -> PathBuf {
        self.cache.join("wires/bin/python")
    }

    /// Returns the folder of Node and its packages, in the layout of npm.
    pub(super) fn node_folder(&self) -> PathBuf {
        self.cache.join("node")
    }

    /// Returns the interpreter that has servers from PyPI.
    pub(super) fn python_of_servers(&self) -> PathBuf {
        self.cache.join("servers/bin/python")
    }

    /// Returns the interpreter that has authlib.
    pub(super) fn python_of_authlib(&self) -> PathBuf {
        self.cache.join("authlib/bin/python")
    }

    /// Returns the interpreter that has schemathesis.
    pub(super) fn python_of_admin(&self) -> PathBuf {
        self.cache.join("admin/bin/python")
    }

    /// Returns the interpreter that has openapi-python-client and what its clients need.
    pub(super) fn python_of_openapi(&self) -> PathBuf {
        self.cache.join("openapi/bin/python")
    }

    /// Returns the interpreter that has FastMCP.
    pub(super) fn python_of_fastmcp(&self) -> PathBuf {
        self.cache.join("fastmcp/bin/python")
    }

    /// Returns the client of the Rust SDK, built from `peers/rmcp`.
    pub(super) fn rust_sdk(&self) -> PathBuf {
        self.cache.join("rmcp/debug/rmcp-peer")
    }

    /// Returns a server of our own in Go, built from `peers/go`.
    pub(super) fn go_server(&self) -> PathBuf {
        self.cache.join("go/go-server")
    }

    fn package(&self, path: &str) -> PathBuf {
        self.cache.join("node/node_modules/@modelcontextprotocol").join(path)
    }

    /// Returns the conformance suite's command line. Its own servers would listen on every
    /// interface without the preload.
    pub(super) fn conformance(&self) -> Command {
        let mut command = Command::new(self.node());
        command
            .arg(self.package("conformance/dist/index.js"))
            .env("NODE_OPTIONS", format!("--require {}", loopback().display()));
        command
    }

    /// Starts `server-everything` as a Streamable HTTP server on a port of its own.
    pub(super) async fn everything_over_http(&self) -> Server {
        self.everything("streamableHttp", "mcp").await
    }

    /// Starts `server-everything` as an HTTP+SSE server (2024-11-05) on a port of its own.
    pub(super) async fn everything_over_sse(&self) -> Server {
        self.everything("sse", "sse").await
    }

    async fn everything(&self, transport: &str, path: &'static str) -> Server {
        let mut command = Command::new(self.node());
        command
            .arg("--require")
            .arg(loopback())
            .arg(self.package("server-everything/dist/index.js"))
            .arg(transport);
        command.env("PORT", "0").env("PEER_ANNOUNCE", "1");
        Server::start(command, move |line| {
            line.strip_prefix("peer listening on ")
                .map(|address| format!("http://{address}/{path}"))
        })
        .await
    }

    /// Returns the transport of a backend that runs `server-everything` as its child.
    pub(super) fn everything_over_stdio(&self) -> Value {
        json!({"type": "stdio", "command": self.node(), "args": [self.package("server-everything/dist/index.js"), "stdio"]})
    }

    /// Returns the body of a backend that is a published server with an app, as a child process. The
    /// sandbox does not show the folder of its package by itself.
    pub(super) fn app(&self, name: &str) -> Value {
        let folder = self.cache.join("apps");
        let script =
            folder.join(format!("node_modules/@modelcontextprotocol/server-{name}/dist/index.js"));
        json!({
            "transport": {"type": "stdio", "command": self.node(), "args": [script, "--stdio"]},
            "sandbox": {"read": [folder]},
        })
    }

    /// Starts the Python SDK's everything-server, which has the tools of the suite's server
    /// scenarios.
    pub(super) async fn conformance_fixture(&self) -> Server {
        let mut command = Command::new(self.python(2));
        command.args(["-m", "mcp_everything_server", "--port", "0"]);
        command.env("PYTHONPATH", self.cache.join("fixture/examples/servers/everything-server"));
        uvicorn(command, "mcp").await
    }

    /// Starts a server of the same SDK that behaves alike in all revisions.
    pub(super) async fn both_eras(&self) -> Server {
        let mut command = Command::new(self.python(2));
        command.arg("-B").arg(Self::ours("peers/servers/both_eras.py")).args(["--port", "0"]);
        uvicorn(command, "mcp").await
    }

    /// Returns a backend that starts the same server as a child process.
    pub(super) fn both_eras_over_stdio(&self) -> serde_json::Value {
        let (python, script) = (self.python(2), Self::ours("peers/servers/both_eras.py"));
        json!({
            "transport": {"type": "stdio", "command": python, "args": ["-B", script, "--stdio"]},
            "sandbox": {"read": [self.cache.join("python2"), Self::ours("peers/servers")]},
        })
    }

    /// Starts the same server over HTTP+SSE (2024-11-05), which has sessions only.
    pub(super) async fn both_eras_over_sse(&self) -> Server {
        let mut command = Command::new(self.python(2));
        command.arg("-B").arg(Self::ours("peers/servers/both_eras.py"));
        command.args(["--port", "0", "--sse"]);
        uvicorn(command, "sse").await
    }
}

async fn uvicorn(command: Command, path: &'static str) -> Server {
    Server::start(command, move |line| {
        let (_, rest) = line.split_once("running on ")?;
        Some(format!("{}/{path}", rest.split_whitespace().next()?))
    })
    .await
}

fn loopback() -> PathBuf {
    Peers::ours("peers/loopback.cjs")
}
