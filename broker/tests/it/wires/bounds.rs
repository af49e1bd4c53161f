//! Resources that one client of a duplex listener can hold.

use std::time::{Duration, Instant};

use serde_json::json;
use testkit::{
    Direction, FakeBackend, FaultProxy, Gate, Reply, TestBroker, duplex::Wire, eventually, within,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{half_closed, listening, sse_endpoint, telling_half_closes};
use crate::{
    initialize_body,
    slow_clients::{send_calls, send_calls_without_reading},
    stdio,
};

/// More answers than the buffers of two sockets and the outbox hold together.
const ANSWERS: u64 = 50;
const ANSWER_BYTES: usize = 200_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_19_a_client_that_never_reads_is_cut_and_others_are_not_affected() {
    let (gate, waiting) = (Gate::new(), std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0)));
    let (at_gate, counted) = (gate.clone(), waiting.clone());
    let backend = FakeBackend::with_tool("large", move |call| {
        let (gate, counted) = (at_gate.clone(), counted.clone());
        async move {
            if call.arguments()["wait"] == true {
                counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                gate.passed().await;
            }
            Reply::text(&"x".repeat(ANSWER_BYTES))
        }
    })
    .await;
    let limits = json!({"limits": {"outbox_bytes": "1MiB"}});
    let broker = listening().config(limits).backend("default", "b", backend.spec()).start().await;
    let other = broker.duplex().tcp(broker.tcp_address()).await.connected(json!({})).await;
    let _socket = send_calls_without_reading(
        broker.tcp_address(),
        ANSWERS,
        "b__large",
        json!({"wait": true}),
    )
    .await;
    eventually("all calls at the backend", || async {
        let count = waiting.load(std::sync::atomic::Ordering::SeqCst);
        if count == ANSWERS { Ok(()) } else { Err(count) }
    })
    .await;
    gate.open();
    broker
        .admin()
        .wait_metric("mcp_rate_limited_total", &[("scope", "outbox_bytes")], |count| count == 1.0)
        .await;
    broker.admin().wait_sessions("default", 1).await;
    other.call("b__large", json!({})).await;
}

/// Changes the limit of descriptors of a running process.
fn limit_descriptors(broker: &TestBroker, count: u64) {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let pid = Pid::from_raw(broker.pid().cast_signed()).unwrap();
    prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(count), maximum: Some(count) })
        .unwrap();
}

#[tokio::test]
async fn r18_f_20_operators_are_served_when_clients_use_all_descriptors() {
    let broker = listening().backend("default", "b", stdio().spec()).start().await;
    let canary = broker.duplex().tcp(broker.tcp_address()).await.connected(json!({})).await;
    canary.call("b__echo", json!({})).await;
    limit_descriptors(&broker, 256);
    // Twice as many as there can be, on both listeners. The kernel accepts them all.
    let mut strangers = Vec::new();
    for _ in 0..250 {
        for address in [broker.tcp_address(), broker.http_address()] {
            strangers.push(TcpStream::connect(address).await.unwrap());
        }
    }
    let admin = broker.admin();
    admin
        .wait_metric("mcp_rate_limited_total", &[("scope", "descriptors")], |count| count >= 2.0)
        .await;
    assert_eq!(admin.get("/readyz").await.0, 200);
    let (cpu, started) =
        (admin.metric("process_cpu_seconds_total", &[]).await.unwrap(), std::time::Instant::now());
    for _ in 0..20 {
        assert_eq!(admin.get("/healthz").await.0, 200);
        canary.call("b__echo", json!({})).await;
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let used = admin.metric("process_cpu_seconds_total", &[]).await.unwrap() - cpu;
    assert!(used < 0.2 * started.elapsed().as_secs_f64(), "{used} s of {:?}", started.elapsed());
    let open = admin.metric("process_open_fds", &[]).await.unwrap();
    // The reserve is a quarter of so low a limit. Concurrent accepts may reach into it, and so does
    // this request.
    assert!((150.0..=200.0).contains(&open), "{open} open");
    broker.wait_for_log("too few file descriptors are free").await;
    // A backend's process is not started from the reserve either.
    admin.put_backend("default", "c", &stdio().spec()).await;
    let failed = admin
        .wait_backend("default", "c", "a failure", |backend| !backend["last_error"].is_null())
        .await;
    assert!(failed["last_error"].as_str().unwrap().contains("descriptor"), "{failed}");
    drop(strangers);
    let client = broker.duplex().tcp(broker.tcp_address()).await.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    admin.wait_backend_state("default", "c", "ready").await;
}

#[tokio::test]
async fn a_half_closed_client_gets_its_answers_even_if_it_reads_slowly() {
    let backend =
        FakeBackend::with_tool("large", |_| async { Reply::text(&"x".repeat(ANSWER_BYTES)) }).await;
    let limits = json!({"limits": {"outbox_bytes": "64MiB"}});
    let broker = listening().config(limits).backend("default", "b", backend.spec()).start().await;
    let network = FaultProxy::start(broker.tcp_address()).await;
    network.rate(Direction::Downstream, Some(3 << 19));
    let mut socket = send_calls(network.address(), ANSWERS, "b__large", json!({})).await;
    socket.shutdown().await.unwrap();
    let (started, mut received) = (Instant::now(), String::new());
    tokio::time::timeout(Duration::from_secs(60), socket.read_to_string(&mut received))
        .await
        .expect("the end comes")
        .unwrap();
    assert_eq!(received.lines().filter(|line| line.len() > ANSWER_BYTES).count() as u64, ANSWERS);
    assert!(
        started.elapsed() > Duration::from_secs(6),
        "too fast to show anything: {:?}",
        started.elapsed()
    );
    broker.admin().wait_sessions("default", 0).await;
}

#[tokio::test]
async fn a_half_closed_client_that_reads_slowly_does_not_delay_a_drain() {
    let backend =
        FakeBackend::with_tool("large", |_| async { Reply::text(&"x".repeat(ANSWER_BYTES)) }).await;
    let limits = json!({"limits": {"outbox_bytes": "64MiB"}});
    let mut broker = listening()
        .config(limits)
        .config(telling_half_closes())
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let network = FaultProxy::start(broker.tcp_address()).await;
    // All of it would take minutes.
    network.rate(Direction::Downstream, Some(64 << 10));
    let mut socket = send_calls(network.address(), ANSWERS, "b__large", json!({})).await;
    socket.shutdown().await.unwrap();
    let mut first = [0; 1024];
    assert!(within("the first answers", socket.read(&mut first)).await.unwrap() > 0);
    half_closed(&broker, 1).await;
    broker.request_shutdown();
    assert!(broker.wait_for_exit().await.success());
}

#[tokio::test]
async fn posts_that_wait_on_one_stream_are_not_read_before_there_is_capacity() {
    const ROOM: usize = 16;
    const POSTS: usize = 20;
    // There is capacity for two of the largest messages, or 16 MiB.
    let limits = json!({"limits": {"message_bytes": "4MiB"}});
    let broker = listening().config(limits).backend("default", "b", stdio().spec()).start().await;
    let mut stream = TcpStream::connect(broker.http_address()).await.unwrap();
    let path = sse_endpoint(&mut stream).await;
    let body = format!("{}{}", initialize_body("2025-11-25"), " ".repeat(1 << 20));
    let body = &body[..1 << 20];
    let mut posts = Vec::new();
    for _ in 0..POSTS {
        let mut post = TcpStream::connect(broker.http_address()).await.unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nexpect: 100-continue\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        post.write_all(head.as_bytes()).await.unwrap();
        posts.push(post);
    }
    // A client that got `100 Continue` holds a part of the capacity.
    let asked = |post: &TcpStream| post.try_read(&mut [0; 64]).is_ok();
    let mut waiting = posts;
    let mut reading = Vec::new();
    let mut take_asked = |reading: &mut Vec<TcpStream>| {
        let (now, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut waiting).into_iter().partition(asked);
        reading.extend(now);
        waiting = later;
        reading.len()
    };
    let until = Instant::now() + testkit::DEADLINE;
    while take_asked(&mut reading) < ROOM {
        assert!(Instant::now() < until, "{} are read", reading.len());
        tokio::task::yield_now().await;
    }
    assert_eq!(broker.admin().get("/readyz").await.0, 200);
    assert_eq!(take_asked(&mut reading), ROOM, "the rest waits");
    // Messages that are read free capacity for the rest.
    let mut done = 0;
    while done < POSTS {
        let mut post = match reading.pop() {
            Some(post) => post,
            None => {
                assert!(Instant::now() < until + testkit::DEADLINE, "{done} were taken");
                take_asked(&mut reading);
                tokio::task::yield_now().await;
                continue;
            }
        };
        post.write_all(body.as_bytes()).await.unwrap();
        let mut answer = String::new();
        within("an answer", post.read_to_string(&mut answer)).await.unwrap();
        assert!(answer.contains("202 Accepted"), "{answer}");
        done += 1;
    }
}

/// Starts a client that never finishes, of one of four kinds.
async fn slow_client(broker: &TestBroker, kind: usize) -> TcpStream {
    let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let (address, text) = match kind {
        0 => (broker.http_address(), head.to_owned()),
        1 => (
            broker.http_address(),
            format!(
                "{head}accept: application/json, text/event-stream\r\ncontent-length: 500\r\n\r\n{{"
            ),
        ),
        2 => (broker.tcp_address(), "{\"jsonrpc\"".to_owned()),
        _ => (broker.tcp_address(), String::new()),
    };
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(text.as_bytes()).await.unwrap();
    socket
}

#[tokio::test]
async fn r17_a_thousand_clients_that_never_finish_are_cut_and_others_served() {
    const CLIENTS: usize = 1_000;
    const SLOWEST: Duration = Duration::from_secs(2);
    let config = json!({
        "timeouts": {"request_read": "4s", "handshake": "4s"},
        "limits": {"connections_per_address": 2_000, "connections_per_second_per_address": 0},
    });
    let broker = listening().config(config).backend("default", "b", stdio().spec()).start().await;
    let admin = broker.admin();
    let canary = broker
        .duplex()
        .over(Wire::streamable_http(broker.http_address(), "/mcp"))
        .connected(json!({}))
        .await;
    canary.call("b__echo", json!({})).await;
    let before = admin.metric("process_open_fds", &[]).await.unwrap();
    let mut slow = Vec::with_capacity(CLIENTS);
    for n in 0..CLIENTS {
        slow.push(slow_client(&broker, n % 4).await);
        if n % 20 == 0 {
            let started = Instant::now();
            canary.call("b__echo", json!({})).await;
            assert!(started.elapsed() < SLOWEST, "{:?} with {n}", started.elapsed());
        }
    }
    for socket in &mut slow {
        // Its connection ends, whatever the answer.
        let _reset = within("the end", socket.read_to_end(&mut Vec::new())).await;
    }
    canary.call("b__echo", json!({})).await;
    eventually("the descriptors", || async {
        let now = admin.metric("process_open_fds", &[]).await.unwrap();
        if now <= before + 10.0 { Ok(()) } else { Err(now) }
    })
    .await;
}
