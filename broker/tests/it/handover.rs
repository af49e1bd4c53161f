//! One process takes over from another at the same addresses, and connections get an end with a
//! reason.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use testkit::{
    FakeBackend, Gate, PostgresServer, Reply, TestBroker, deadline::eventually_within, eventually,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{builder, read_bytes_to_close};

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const CLIENTS: usize = 8;

/// Clients that connect all the time, with a new connection each time.
struct Crowd {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    clients: Vec<tokio::task::JoinHandle<Vec<String>>>,
}

impl Crowd {
    fn at(address: SocketAddr, wants: fn(&str) -> bool, request: &'static str) -> Self {
        let (stop, served) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let client = |_| {
            let (stop, served) = (stop.clone(), served.clone());
            tokio::spawn(async move {
                let mut failures = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    match exchange(address, request).await {
                        Ok(answer) if wants(&answer) => {
                            served.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(answer) => failures.push(format!("answered {answer:?}")),
                        Err(error) => failures.push(error.to_string()),
                    }
                }
                failures
            })
        };
        let clients = (0..CLIENTS).map(client).collect();
        Self { stop, served, clients }
    }

    async fn served_more(&self, count: usize) {
        let until = self.served.load(Ordering::Relaxed) + count;
        eventually_within(Duration::from_secs(20), "more to be served", || async {
            let served = self.served.load(Ordering::Relaxed);
            if served >= until { Ok(()) } else { Err(served) }
        })
        .await;
    }

    async fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        let mut failures = Vec::new();
        for client in self.clients {
            failures.extend(client.await.unwrap());
        }
        failures
    }
}

async fn exchange(address: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    let mut chunk = [0; 1024];
    // Over TCP one line is the answer. Over HTTP the connection ends with it, or a small body in
    // JSON does.
    while !answer.ends_with(b"}\n") && !answer.ends_with(b"}}") {
        match stream.read(&mut chunk).await? {
            0 => break,
            count => answer.extend_from_slice(&chunk[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

const GET: &str = "GET /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\nconnection: close\r\n\r\n";
const PING: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n";

async fn process(url: &str, listen: Value) -> TestBroker {
    let config = json!({
        "storage": {"url": url}, "node": {"secret": SECRET}, "listen": listen, "shutdown": {"readiness_delay": "1s"},
        "limits": {"connections_per_address": 10_000},
    });
    builder().config(config).start().await
}

#[tokio::test]
async fn r6_a_process_takeover_refuses_and_resets_no_connection() {
    let server = PostgresServer::start().await;
    let url = server.database().await;
    let any = json!({"http": "127.0.0.1:0", "admin": "127.0.0.1:0", "tcp": "127.0.0.1:0", "reuse_port": true});
    let mut first = process(&url, any).await;
    let (http, tcp) = (first.http_address(), first.tcp_address());
    let crowds = [
        Crowd::at(http, |answer| answer.starts_with("HTTP/1.1 "), GET),
        Crowd::at(tcp, |answer| answer.starts_with("{\"jsonrpc\""), PING),
    ];
    for crowd in &crowds {
        crowd.served_more(50).await;
    }
    let same = json!({"http": http.to_string(), "admin": first.admin_address().to_string(), "tcp": tcp.to_string(), "reuse_port": true});
    let second = process(&url, same).await;
    for crowd in &crowds {
        crowd.served_more(50).await;
    }
    assert_eq!(first.terminate().await.code(), Some(0));
    for crowd in &crowds {
        crowd.served_more(50).await;
    }
    for crowd in crowds {
        let failures = crowd.end().await;
        assert!(failures.is_empty(), "{} failed, such as {:?}", failures.len(), failures.first());
    }
    assert_eq!(second.http_address(), http);
    second.connected(json!({})).await;
}

/// A balancer sends what a client sends until it notices that the process ends. It can retry a
/// refused connection, because then no request was sent. It cannot retry one that closes without an
/// answer.
#[tokio::test]
async fn an_ending_process_answers_or_refuses_each_connection() {
    let listen = json!({"http": "127.0.0.1:0", "admin": "127.0.0.1:0", "tcp": "127.0.0.1:0"});
    let config = json!({"listen": listen, "limits": {"connections_per_address": 10_000}});
    let mut broker = builder().single_process().config(config).start().await;
    let crowds = [
        Crowd::at(broker.http_address(), |answer| answer.starts_with("HTTP/1.1 "), GET),
        Crowd::at(broker.tcp_address(), |answer| answer.starts_with("{\"jsonrpc\""), PING),
    ];
    for crowd in &crowds {
        crowd.served_more(200).await;
    }
    assert_eq!(broker.terminate().await.code(), Some(0));
    for crowd in crowds {
        let failures = crowd.end().await;
        let unanswered: Vec<_> =
            failures.iter().filter(|failure| !failure.contains("refused")).collect();
        assert!(
            unanswered.is_empty(),
            "{} of {}: {unanswered:?}",
            unanswered.len(),
            failures.len()
        );
    }
}

/// The part of systemd: it listens, passes the sockets on to one process after the other, and keeps
/// them.
struct Sockets {
    folder: tempfile::TempDir,
    kept: Vec<std::os::fd::OwnedFd>,
}

impl Sockets {
    /// Returns a program that starts the broker with these sockets, by name.
    fn passed_on(sockets: &[(&str, &std::net::TcpListener)]) -> Self {
        use std::os::{fd::AsRawFd as _, unix::fs::PermissionsExt as _};
        let folder = tempfile::tempdir().unwrap();
        // A duplicate is not closed when another program begins.
        let kept: Vec<_> =
            sockets.iter().map(|(_, socket)| rustix::io::dup(socket).unwrap()).collect();
        let numbers: Vec<String> = kept
            .iter()
            .zip(3..)
            .map(|(socket, number)| format!("{number}<&{}", socket.as_raw_fd()))
            .collect();
        let names: Vec<&str> = sockets.iter().map(|(name, _)| *name).collect();
        let script = format!(
            "#!/bin/bash\nexec {}\nLISTEN_PID=$$ LISTEN_FDS={} LISTEN_FDNAMES={} exec '{}' \"$@\"\n",
            numbers.join(" "),
            names.len(),
            names.join(":"),
            crate::binary()
        );
        let program = folder.path().join("activate");
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder, kept }
    }

    fn program(&self) -> std::path::PathBuf {
        self.folder.path().join("activate")
    }
}

#[tokio::test]
async fn r6_inherited_sockets_refuse_no_connection_while_the_process_changes() {
    let bind = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (http, tcp) = (bind(), bind());
    let [http_address, tcp_address] = [&http, &tcp].map(|socket| socket.local_addr().unwrap());
    let sockets = Sockets::passed_on(&[("tcp", &tcp), ("http", &http)]);
    let config = json!({
        "listen": {"http": http_address.to_string(), "admin": "127.0.0.1:0", "tcp": tcp_address.to_string()},
        "limits": {"connections_per_address": 10_000}, "shutdown": {"grace": "10s"},
    });
    let mut broker =
        builder().program(sockets.program()).single_process().config(config).start().await;
    assert_eq!((broker.http_address(), broker.tcp_address()), (http_address, tcp_address));
    let crowds = [
        Crowd::at(http_address, |answer| answer.starts_with("HTTP/1.1 "), GET),
        Crowd::at(tcp_address, |answer| answer.starts_with("{\"jsonrpc\""), PING),
    ];
    for _ in 0..2 {
        for crowd in &crowds {
            crowd.served_more(50).await;
        }
        // The processes run one after the other, on one database file. Between them only the keeper
        // of the sockets listens.
        assert_eq!(broker.terminate().await.code(), Some(0));
        broker.restart().await;
    }
    for crowd in &crowds {
        crowd.served_more(50).await;
    }
    for crowd in crowds {
        let failures = crowd.end().await;
        assert!(failures.is_empty(), "{} failed, such as {:?}", failures.len(), failures.first());
    }
    assert_eq!(sockets.kept.len(), 2);
    let child = broker.connected(json!({})).await;
    assert!(child.tool_names().await.is_empty());
}

#[tokio::test]
async fn inherited_sockets_with_unknown_names_are_refused_at_start() {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let elsewhere = json!({"listen": {"http": "127.0.0.1:1", "admin": "127.0.0.1:0"}});
    let fits = json!({"listen": {"http": address.to_string(), "admin": "127.0.0.1:0"}});
    for (names, config, expected) in [
        (&["http"][..], &elsewhere, format!("set listen.http: {address}")),
        (
            &["tcp"],
            &json!({"listen": {"http": "127.0.0.1:0", "admin": "127.0.0.1:0"}}),
            "listen.tcp, which is not configured".to_owned(),
        ),
        (&["http", "quic"], &fits, "http, admin, tcp".to_owned()),
    ] {
        let sockets: Vec<_> = names.iter().map(|name| (*name, &socket)).collect();
        let sockets = Sockets::passed_on(&sockets);
        let mut config = config.clone();
        config["storage"] =
            json!({"url": format!("sqlite:{}", sockets.folder.path().join("b.db").display())});
        std::fs::write(sockets.folder.path().join("config.yaml"), config.to_string()).unwrap();
        let ended = builder()
            .program(sockets.program())
            .run(sockets.folder.path(), &["serve", "--config", "config.yaml"])
            .await;
        assert_eq!(ended.code, Some(64), "{}", ended.stderr);
        assert!(ended.stderr.contains(&expected), "{names:?}: {}", ended.stderr);
    }
}

/// The variables may be those of a process that started this one.
#[tokio::test]
async fn inherited_sockets_of_another_process_are_ignored() {
    let broker = builder()
        .single_process()
        .env("LISTEN_PID", "1")
        .env("LISTEN_FDS", "2")
        .env("LISTEN_FDNAMES", "http:admin")
        .start()
        .await;
    broker.connected(json!({})).await;
}

#[tokio::test]
async fn a_port_is_shared_only_if_both_processes_permit_it() {
    let broker = builder().single_process().start().await;
    let folder = tempfile::tempdir().unwrap();
    let config = json!({"listen": {"http": broker.http_address().to_string(), "admin": "127.0.0.1:0", "reuse_port": true},
        "storage": {"url": format!("sqlite:{}", folder.path().join("b.db").display())}});
    std::fs::write(folder.path().join("config.yaml"), config.to_string()).unwrap();
    let ended = builder().run(folder.path(), &["serve", "--config", "config.yaml"]).await;
    assert_eq!(ended.code, Some(69), "{}", ended.stderr);
    assert!(ended.stderr.contains("listen.http"), "{}", ended.stderr);
}

#[tokio::test]
async fn connections_are_accepted_during_the_readiness_delay() {
    let config = json!({"shutdown": {"readiness_delay": "2s"}});
    let mut broker = builder().single_process().config(config).start().await;
    let asked = Instant::now();
    broker.request_shutdown();
    let admin = broker.admin();
    eventually("readiness to be off", || async {
        let (status, body) = admin.get("/readyz").await;
        if status == 503 { Ok(()) } else { Err(body) }
    })
    .await;
    // No request is in flight, so only the delay keeps the listeners open.
    let answer = exchange(broker.http_address(), GET).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 ")
            && answer.to_ascii_lowercase().contains("connection: close"),
        "{answer}"
    );
    assert!(broker.wait_for_exit().await.success());
    assert!(asked.elapsed() >= Duration::from_secs(2), "{:?}", asked.elapsed());
    assert!(TcpStream::connect(broker.http_address()).await.is_err());
}

#[tokio::test]
async fn a_drain_sends_goaway_over_http_2_and_close_over_http_1() {
    const GOAWAY: u8 = 7;
    let gate = Gate::new();
    let backend = FakeBackend::with_tool("wait", gate.before(Reply::text("finished"))).await;
    let mut broker =
        builder().single_process().backend("default", "b", backend.spec()).start().await;
    let mut stream = TcpStream::connect(broker.http_address()).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let client = broker.connected(json!({})).await;
    let call = client.start_call("b__wait", json!({}));
    backend.wait_for("the call", |seen| seen.calls("wait")).await;
    broker.request_shutdown();
    eventually("the drain", || async {
        let answer = exchange(broker.http_address(), &GET.replace("connection: close\r\n", ""))
            .await
            .unwrap();
        if answer.to_ascii_lowercase().contains("connection: close") { Ok(()) } else { Err(answer) }
    })
    .await;
    gate.open();
    assert_eq!(crate::text_of(&call.result().await), "finished");
    let frames = read_bytes_to_close(&mut stream).await;
    let kinds: Vec<u8> = kinds(&frames);
    assert!(kinds.contains(&GOAWAY), "{kinds:?}");
    assert!(broker.wait_for_exit().await.success());
}

/// Returns the kinds of the frames in these bytes.
fn kinds(mut bytes: &[u8]) -> Vec<u8> {
    let mut kinds = Vec::new();
    while let [a, b, c, kind, ..] = bytes {
        kinds.push(*kind);
        let size = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        bytes = bytes.get(9 + size..).unwrap_or_default();
    }
    kinds
}

#[tokio::test]
async fn r26_the_generation_identifies_the_configuration_in_force() {
    let broker = builder().single_process().config(json!({"tenants": {"one": {}}})).start().await;
    let file = broker.folder().join("config.yaml");
    let good = std::fs::read_to_string(&file).unwrap();
    let view = async || broker.admin().get("/admin/v1/configuration").await.1;
    let metrics = async || broker.admin().send("GET", "/metrics", None).await.text().await;
    assert_eq!((&view().await["generation"], &view().await["refused"]), (&json!(1), &Value::Null));
    for bad in ["colour: [red", "limits: {burst: 0}", "tenants: {Acme: {}}", "nonsense: 1"] {
        std::fs::write(&file, bad).unwrap();
        let before = view().await["refused"]["at"].clone();
        broker.signal(rustix::process::Signal::HUP);
        let refused = eventually("the refusal", || async {
            let now = view().await;
            if now["refused"]["at"] != before { Ok(now) } else { Err(now) }
        })
        .await;
        assert_eq!(refused["generation"], 1, "{refused}");
        assert!(!refused["refused"]["faults"].as_array().unwrap().is_empty(), "{refused}");
        assert_eq!(
            broker.admin().get("/admin/v1/tenants/one").await.0,
            200,
            "what was in force still is"
        );
    }
    let refused = metrics().await;
    assert!(refused.contains("mcp_config_last_reload_successful 0\n"), "{refused}");
    let two = good.replace("\"one\"", "\"two\"");
    std::fs::write(&file, &two).unwrap();
    broker.signal(rustix::process::Signal::HUP);
    eventually("the next generation", || async {
        let now = view().await;
        if now["generation"] == 2 && now["refused"].is_null() { Ok(()) } else { Err(now) }
    })
    .await;
    assert_eq!(broker.admin().get("/admin/v1/tenants/two").await.0, 200);
    let applied = metrics().await;
    for line in [
        "mcp_config_generation 2\n",
        "mcp_config_reloads_total{outcome=\"refused\"} 4\n",
        "mcp_config_reloads_total{outcome=\"taken\"} 1\n",
        "mcp_config_last_reload_successful 1\n",
        "mcp_config_restart_needed 0\n",
    ] {
        assert!(applied.contains(line), "{line} {applied}");
    }
    let mut restarted: Value = serde_json::from_str(&two).unwrap();
    restarted["limits"]["burst"] = json!(5);
    for (config, sections) in [(restarted.to_string(), 1), (two, 0)] {
        std::fs::write(&file, config).unwrap();
        broker.signal(rustix::process::Signal::HUP);
        let line = format!("mcp_config_restart_needed {sections}\n");
        eventually("the sections that need a restart", || async {
            let now = metrics().await;
            if now.contains(&line) { Ok(()) } else { Err(now) }
        })
        .await;
    }
}
