//! Tests through the real broker, over every client wire and several backend wires. Every kind of
//! request in a load must get a correct answer.

use std::{path::PathBuf, time::Duration};

use loadtest::{
    backend::{Backend, BackendOptions},
    profile::Profile,
    report::Report,
    run::{self, Load},
    wire::LoadTarget,
};
use serde_json::{Value, json};
use testkit::{Authority, BrokerBuilder, TestBroker};
use transport::tls::ClientTlsFiles;

/// All methods, and more requests in flight than connections.
const PROFILE: &str = "
sessions: 3
in_flight: 3
listen: true
timeout: 20s
phases: [{for: 1500ms, rate: 120}]
mix:
  - {method: tools/call, weight: 6, bytes: [256, 4KB, 64KB]}
  - {method: tools/list}
  - {method: resources/read, uri: 'load://text/1'}
  - {method: ping}
  - {method: subscription, uri: 'load://text/2'}
  - {method: task}
";

/// All methods that stateless requests can use.
const PROFILE_ALONE: &str = "
era: 2026-07-28
sessions: 3
in_flight: 3
timeout: 20s
phases: [{for: 1s, rate: 120}]
mix:
  - {method: tools/call, weight: 6, bytes: [256, 4KB, 64KB]}
  - {method: tools/list}
  - {method: resources/read, uri: 'load://text/1'}
";

async fn broker(config: Value, backend: Value) -> TestBroker {
    let limits = json!({"limits": {"requests_per_second": 1_000_000, "burst": 1_000_000}});
    // The folder into which cargo puts the programs of the workspace.
    let programs = PathBuf::from(env!("CARGO_BIN_EXE_mcp-loadtest"));
    let builder =
        BrokerBuilder::new(programs.with_file_name("mcp-broker")).config(limits).config(config);
    builder.backend("default", "fast", json!({"transport": backend})).single_process().start().await
}

async fn report(target: String, ca: Option<PathBuf>) -> Report {
    let tls = ClientTlsFiles { ca, ..ClientTlsFiles::default() };
    let site = LoadTarget::new(target.parse().unwrap(), &tls, Duration::from_secs(20)).unwrap();
    let mut reports = Vec::new();
    for (profile, calls) in [(PROFILE, 180), (PROFILE_ALONE, 120)] {
        let profile = Profile::parse(profile).unwrap();
        let load =
            Load { site: site.with_era(profile.era), profile, keys: Vec::new(), pids: Vec::new() };
        let report = run::run(&load, |_| ()).await.unwrap();
        assert!(report.is_good() && report.calls == calls, "{}", report.summary());
        reports.push(report);
    }
    reports.swap_remove(0)
}

#[tokio::test]
async fn a_load_runs_over_http_with_an_http_backend() {
    let backend = Backend::http("127.0.0.1:0", &BackendOptions::default()).await.unwrap();
    let broker = broker(
        json!({}),
        json!({"type": "http", "url": format!("http://{}/mcp", backend.address())}),
    )
    .await;
    report(format!("http://{}/mcp/fast", broker.http_address()), None).await;
}

#[tokio::test]
async fn a_load_runs_over_tcp_with_a_tcp_backend() {
    let backend = Backend::tcp("127.0.0.1:0", &BackendOptions::default()).await.unwrap();
    let broker = broker(
        json!({"listen": {"tcp": "127.0.0.1:0"}}),
        json!({"type": "tcp", "address": backend.address().to_string()}),
    )
    .await;
    let report = report(format!("tcp://{}/fast", broker.tcp_address()), None).await;
    assert!(report.notifications > 0, "subscribers are told: {}", report.summary());
}

#[tokio::test]
async fn a_load_runs_over_websocket_with_a_websocket_backend() {
    let backend = Backend::websocket("127.0.0.1:0", &BackendOptions::default()).await.unwrap();
    let broker = broker(
        json!({}),
        json!({"type": "websocket", "url": format!("ws://{}/", backend.address())}),
    )
    .await;
    report(format!("ws://{}/ws/fast", broker.http_address()), None).await;
}

#[tokio::test]
async fn a_load_runs_over_quic_with_a_stdio_backend() {
    let authority = Authority::new();
    let signed = authority.server("localhost");
    let config = json!({"listen": {"quic": "127.0.0.1:0"}, "tls": {"cert_file": signed.cert, "key_file": signed.key}});
    let stdio = json!({"type": "stdio", "command": env!("CARGO_BIN_EXE_mcp-loadtest"), "args": ["backend", "--stdio"]});
    let broker = broker(config, stdio).await;
    let target = format!("quic://localhost:{}/fast", broker.quic_address().port());
    report(target, Some(authority.ca())).await;
}

/// Any tool with any arguments, held to a value in the result.
const SUMS: &str = "
loop: closed
sessions: 2
phases: [{for: 300ms}]
mix:
  - {method: tools/call, tool: add, arguments: {a: 1, b: 2}, expect: {pointer: /structuredContent/sum, equals: 3}}
  - {method: tools/call, tool: add, arguments: {a: '{{n}}', b: 2}}
";

async fn of_profile(target: String, profile: &str) -> Report {
    let profile = Profile::parse(profile).unwrap();
    let tls = ClientTlsFiles::default();
    let site = LoadTarget::new(target.parse().unwrap(), &tls, Duration::from_secs(20)).unwrap();
    let load = Load { site, profile, keys: Vec::new(), pids: Vec::new() };
    run::run(&load, |_| ()).await.unwrap()
}

#[tokio::test]
async fn bundled_profiles_and_other_tools_load_the_demo_backend() {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_mcp-loadtest")).with_file_name("mcp-broker");
    let demo = json!({"type": "stdio", "command": program, "args": ["demo-backend"]});
    let broker = broker(json!({}), demo).await;
    let target = format!("http://{}/mcp/fast", broker.http_address());
    let quick = loadtest::profile::bundled("quick").expect("a bundled profile");
    for profile in [quick, SUMS] {
        let report = of_profile(target.clone(), profile).await;
        assert!(report.is_good() && report.calls > 10, "{}", report.summary());
    }
    let wrong = of_profile(target.clone(), &SUMS.replace("equals: 3", "equals: 4")).await;
    assert!(wrong.wrong.contains_key("corrupted"), "{}", wrong.summary());
    let failing = of_profile(target, &SUMS.replace("a: 1", "a: '1'")).await;
    assert!(
        failing.wrong.is_empty() && failing.summary().contains("tool error"),
        "{}",
        failing.summary()
    );
}

#[tokio::test]
async fn a_bundled_profile_loads_the_reference_server() {
    let cache = std::env::var_os("MCP_BROKER_CACHE").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache/mcp-broker"),
        PathBuf::from,
    );
    let modules = cache.join("peers/node/node_modules");
    let server = modules.join("@modelcontextprotocol/server-everything/dist/index.js");
    let node = modules.join(".bin/node");
    let broker =
        broker(json!({}), json!({"type": "stdio", "command": node, "args": [server, "stdio"]}))
            .await;
    let target = format!("http://{}/mcp/fast", broker.http_address());
    let quick = loadtest::profile::bundled("quick").expect("a bundled profile");
    let report = of_profile(target, quick).await;
    assert!(report.is_good() && report.calls == 400, "{}", report.summary());
}
