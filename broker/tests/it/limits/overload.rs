//! A process with more work than it can do.

use std::time::{Duration, Instant};

use serde_json::json;
use testkit::{
    FakeBackend, Gate, Reply, TestBroker, backend::tool, eventually, eventually_within, http,
    within,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    builder, configured_alone, initialize_body, kind, refused, request,
    slow_clients::send_calls_without_reading,
};

/// Returns a backend whose tool `wait` answers once the gate is open.
async fn waiting(gate: &Gate, answer_bytes: usize) -> FakeBackend {
    let backend =
        FakeBackend::with_tool("wait", gate.before(Reply::text(&"x".repeat(answer_bytes)))).await;
    backend.list("tools", vec![tool("wait"), tool("echo")]);
    backend
}

async fn refused_by(broker: &TestBroker, reason: &str) -> f64 {
    broker.admin().metric("mcp_overload_refused_total", &[("reason", reason)]).await.unwrap_or(0.0)
}

#[tokio::test]
async fn r15_excess_requests_are_refused_and_cancellations_are_accepted() {
    let gate = Gate::new();
    let backend = waiting(&gate, 1).await;
    let config = json!({"overload": {"requests_pending": 2}, "listen": {"tcp": "127.0.0.1:0"}});
    let broker = configured_alone(config, backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let tcp = broker.duplex().tcp(broker.tcp_address()).await.connected(json!({})).await;
    let calls = [client.start_call("b__wait", json!({})), client.start_call("b__wait", json!({}))];
    backend.wait_count("the calls", 2, |seen| seen.calls("wait")).await;
    let response =
        client.post(request(90, "tools/call", json!({"name": "b__echo", "arguments": {}}))).await;
    assert_eq!(response.header("retry-after"), Some("1"));
    let (status, error) = refused(response).await;
    assert_eq!((status, &error["code"], kind(&error)), (503, &json!(1004), "overloaded"));
    assert_eq!(
        (&error["data"]["retryAfterMs"], &error["data"]["reason"]),
        (&json!(1_000), &json!("pending"))
    );
    assert_eq!(kind(&tcp.error("tools/list", json!({})).await), "overloaded");
    assert_eq!(
        refused(broker.client("/mcp").post(initialize_body("2025-11-25")).await).await.0,
        503
    );
    assert!(refused_by(&broker, "pending").await >= 3.0);
    // A ping and a cancellation are not new work.
    client.result("ping", json!({})).await;
    tcp.result("ping", json!({})).await;
    client.notify("notifications/cancelled", json!({"requestId": calls[0].id})).await;
    eventually("room for one more", || async {
        let answer = client.request("tools/list", json!({})).await;
        if answer.get("result").is_some() { Ok(()) } else { Err(answer) }
    })
    .await;
    gate.open();
    let [_cancelled, call] = calls;
    call.result().await;
}

/// Returns the status of a POST on a connection that stays open.
async fn status_on(socket: &mut TcpStream, body: &str) -> u16 {
    socket.write_all(http::post("/mcp", "", body).as_bytes()).await.unwrap();
    let mut answer = String::new();
    loop {
        let mut some = [0; 4_096];
        let count = within("the answer", socket.read(&mut some)).await.unwrap();
        assert!(count > 0, "the connection ended after {answer}");
        answer.push_str(std::str::from_utf8(&some[..count]).unwrap());
        let Some((head, rest)) = answer.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if rest.len() >= length.parse().unwrap() {
            return head.split(' ').nth(1).unwrap().parse().unwrap();
        }
    }
}

#[tokio::test]
async fn r19_f_22_with_little_memory_clients_are_refused_and_operators_served() {
    let backend = FakeBackend::echo().await;
    // Less memory than any broker has.
    let config = json!({"overload": {"memory_bytes": "16MiB"}, "listen": {"tcp": "127.0.0.1:0"}});
    let broker = configured_alone(config, backend.spec()).await;
    broker
        .admin()
        .wait_metric("mcp_overloaded", &[("reason", "memory")], |holds| holds == 1.0)
        .await;
    let response = broker.client("/mcp").post(initialize_body("2025-11-25")).await;
    assert_eq!(response.header("retry-after"), Some("1"));
    let (status, error) = refused(response).await;
    assert_eq!(
        (status, &error["code"], &error["data"]["reason"]),
        (503, &json!(1004), &json!("memory"))
    );
    let (mut socket, mut times) =
        (TcpStream::connect(broker.http_address()).await.unwrap(), Vec::new());
    socket.set_nodelay(true).unwrap();
    for _ in 0..200 {
        let asked = Instant::now();
        assert_eq!(status_on(&mut socket, &initialize_body("2025-11-25")).await, 503);
        times.push(asked.elapsed());
    }
    times.sort_unstable();
    println!(
        "R15: a refusal takes {:?} in the middle, {:?} at most of 99 in 100",
        times[100], times[197]
    );
    assert!(
        times[100] < Duration::from_millis(50),
        "the promise is a millisecond on a machine that does nothing else: {:?}",
        times[100]
    );
    // The broker does not even read a large body.
    let mut socket = TcpStream::connect(broker.http_address()).await.unwrap();
    let post = http::post("/mcp", "", &"{".repeat(10_000_000));
    socket.write_all(&post.as_bytes()[..1_000]).await.unwrap();
    let mut answer = [0; 12];
    within("the answer", socket.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 503");
    let tcp = broker.duplex().tcp(broker.tcp_address()).await;
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    assert_eq!(kind(&tcp.error("initialize", params).await), "overloaded");
    assert_eq!(broker.duplex().websocket(broker.http_address(), "/ws", &[]).await.err(), Some(503));
    for path in ["/healthz", "/readyz", "/admin/v1/tenants"] {
        assert_eq!(broker.admin().get(path).await.0, 200, "{path}");
    }
    broker.wait_for_log("overloaded: new requests are refused").await;
    assert!(refused_by(&broker, "memory").await >= 4.0);
}

#[tokio::test]
async fn r16_f_19_the_unread_bytes_of_all_clients_are_bounded() {
    const ANSWERS: u64 = 60;
    let gate = Gate::new();
    let backend = waiting(&gate, 200_000).await;
    let limits = json!({"outbox_bytes": "64MiB", "outbox_bytes_total": "2MiB"});
    let config = json!({"listen": {"tcp": "127.0.0.1:0"}, "limits": limits});
    let broker = configured_alone(config, backend.spec()).await;
    let other = broker.duplex().tcp(broker.tcp_address()).await.connected(json!({})).await;
    let _socket =
        send_calls_without_reading(broker.tcp_address(), ANSWERS, "b__wait", json!({})).await;
    backend.wait_count("all calls", ANSWERS as usize, |seen| seen.calls("wait")).await;
    gate.open();
    let scope = [("scope", "outbox_bytes_total")];
    // A message that was pushed until the connection is gone may be pushed once more.
    broker.admin().wait_metric("mcp_rate_limited_total", &scope, |count| count >= 1.0).await;
    broker.admin().wait_sessions("default", 1).await;
    broker.admin().wait_metric("mcp_outbox_bytes", &[], |bytes| bytes == 0.0).await;
    tokio::time::timeout(Duration::from_secs(30), other.call("b__echo", json!({}))).await.unwrap();
}

/// Calls `wait` on a connection of its own, and reads nothing of the answer.
async fn call_without_reading(
    broker: &TestBroker,
    (key, session): (&str, &str),
    id: u64,
) -> TcpStream {
    let mut socket = TcpStream::connect(broker.http_address()).await.unwrap();
    let call = request(id, "tools/call", json!({"name": "b__wait", "arguments": {}}));
    let headers = format!("{key}mcp-session-id: {session}\r\nconnection: close\r\n");
    socket.write_all(http::post("/mcp", &headers, &call).as_bytes()).await.unwrap();
    socket
}

/// Returns a tenant's key, as a header, and the session of a client with it.
async fn session_of(broker: &TestBroker, tenant: &str) -> (String, String) {
    let key = broker.admin().create_key(tenant).await;
    let session = broker.client("/mcp").bearer(&key).connected(json!({})).await.session().unwrap();
    (format!("authorization: Bearer {key}\r\n"), session)
}

/// Reads to the end of a connection, however it ends. Returns the number of bytes.
async fn read_to_the_end(mut socket: TcpStream) -> usize {
    let (mut bytes, mut piece) = (0, vec![0; 64 * 1024]);
    while let Ok(count @ 1..) = within("the end of an answer", socket.read(&mut piece)).await {
        bytes += count;
    }
    bytes
}

#[tokio::test]
async fn r16_unread_answers_over_http_count_in_the_unread_bytes() {
    // More than the buffers of a socket take.
    const ANSWER_BYTES: usize = 8 << 20;
    let gate = Gate::new();
    gate.open();
    let backend = waiting(&gate, ANSWER_BYTES).await;
    let broker =
        configured_alone(json!({"limits": {"outbox_bytes_total": "12MiB"}}), backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let session = client.session().unwrap();
    let scope = [("scope", "outbox_bytes_total")];
    let one = call_without_reading(&broker, ("", &session), 90).await;
    let waits = |bytes: f64| bytes >= ANSWER_BYTES as f64;
    broker.admin().wait_metric("mcp_outbox_bytes", &[], waits).await;
    assert_eq!(broker.admin().metric("mcp_rate_limited_total", &scope).await.unwrap_or(0.0), 0.0);
    let other = call_without_reading(&broker, ("", &session), 91).await;
    broker.admin().wait_metric("mcp_rate_limited_total", &scope, |count| count == 1.0).await;
    let mut read = [read_to_the_end(one).await, read_to_the_end(other).await];
    read.sort_unstable();
    assert!(read[0] < ANSWER_BYTES && read[1] > ANSWER_BYTES, "one of two is cut: {read:?}");
    broker.admin().wait_metric("mcp_outbox_bytes", &[], |bytes| bytes == 0.0).await;
}

#[tokio::test]
async fn r16_the_unread_answers_of_one_tenant_do_not_cost_another_one_its_larger_answer() {
    const MANY: usize = 4;
    const MANY_BYTES: usize = 8 << 20;
    const LARGE_BYTES: usize = 12 << 20;
    let gate = Gate::new();
    gate.open();
    let (many, large) = (waiting(&gate, MANY_BYTES).await, waiting(&gate, LARGE_BYTES).await);
    let broker = builder()
        .single_process()
        .auth_required()
        .config(json!({"limits": {"outbox_bytes_total": "40MiB"}}))
        .tenant("many")
        .tenant("large")
        .backend("many", "b", many.spec())
        .backend("large", "b", large.spec())
        .start()
        .await;
    let (key, session) = session_of(&broker, "many").await;
    let mut unread = Vec::new();
    for id in 0..MANY {
        unread.push(call_without_reading(&broker, (&key, &session), 90 + id as u64).await);
    }
    let waits = |bytes: f64| bytes >= (MANY * MANY_BYTES) as f64;
    broker.admin().wait_metric("mcp_outbox_bytes", &[], waits).await;
    let (key, session) = session_of(&broker, "large").await;
    let answer = call_without_reading(&broker, (&key, &session), 90).await;
    let scope = [("scope", "outbox_bytes_total")];
    broker.admin().wait_metric("mcp_rate_limited_total", &scope, |count| count == 1.0).await;
    let read = read_to_the_end(answer).await;
    assert!(read > LARGE_BYTES, "the largest answer, but not of the largest tenant: {read}");
    let mut whole = 0;
    for socket in unread {
        whole += usize::from(read_to_the_end(socket).await > MANY_BYTES);
    }
    assert_eq!(whole, MANY - 1);
}

/// Returns the resident memory of a process that is not that of a file, in bytes.
fn own_memory(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB"));
    kib.unwrap().parse::<usize>().unwrap() * 1024
}

#[tokio::test]
async fn memory_of_large_answers_is_returned_while_the_broker_is_idle() {
    const ANSWERS: usize = 20;
    const ANSWER_BYTES: usize = 4 << 20;
    let gate = Gate::new();
    let backend = waiting(&gate, ANSWER_BYTES).await;
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    let at_rest = own_memory(broker.pid());
    let calls: Vec<_> = (0..ANSWERS).map(|_| client.start_call("b__wait", json!({}))).collect();
    backend.wait_count("the calls", ANSWERS, |seen| seen.calls("wait")).await;
    gate.open();
    for call in calls {
        assert!(call.result().await.to_string().len() > ANSWER_BYTES);
    }
    // No request is made from here on.
    eventually_within(Duration::from_secs(30), "the memory to go back", || async {
        let held = own_memory(broker.pid()).saturating_sub(at_rest);
        if held < ANSWERS * ANSWER_BYTES / 4 { Ok(()) } else { Err(held) }
    })
    .await;
}
