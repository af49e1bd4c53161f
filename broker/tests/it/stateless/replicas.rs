//! Stateless requests in front of several replicas: both halves of an exchange at different ones,
//! on every wire. In one test the replica of the first half is killed between them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use serde_json::{Value, json};
use testkit::{
    Authority, DuplexClient, FakeBackend, FakeClock, Ledger, QuicPeer, Reply, StatelessBackend,
    StatelessReply, TestCluster, eventually,
};

use super::{Modern, inputs, meta};
use crate::{builder, clocks, cluster, kind, text_of};

/// The wires. QUIC has two ways: the second is a stream of its own for each request.
const WIRES: [&str; 5] = ["http", "tcp", "websocket", "quic", "a stream of quic"];
/// Longest time of an immediate answer on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(5);

fn everything() -> Value {
    json!({"sampling": {}, "roots": {}, "elicitation": {}})
}

/// Returns each kind of request of a backend with its client's answer.
fn kinds() -> [(&'static str, Value, Value); 3] {
    let form = json!({"mode": "form", "message": "who?", "requestedSchema": {"type": "object", "properties": {}}});
    let sampled =
        json!({"role": "assistant", "content": {"type": "text", "text": "Paris"}, "model": "m"});
    [
        ("elicitation/create", form, json!({"action": "accept", "content": {"name": "Ada"}})),
        ("sampling/createMessage", json!({"messages": [], "maxTokens": 9}), sampled),
        ("roots/list", json!({}), json!({"roots": [{"uri": "file:///a"}]})),
    ]
}

/// Two replicas that listen on every wire, in front of a backend that sends requests to its client.
struct Pair {
    cluster: TestCluster,
    backend: FakeBackend,
    authority: Authority,
}

impl Pair {
    async fn start() -> Self {
        let (authority, backend) = (Authority::new(), inputs::backend_with_questions().await);
        let server = authority.server("server");
        let listen = json!({"tcp": "127.0.0.1:0", "quic": "127.0.0.1:0"});
        // HTTP without TLS, as the test is about something else.
        let config =
            json!({"listen": listen, "tls": {"cert_file": server.cert, "key_file": server.key}});
        let cluster = builder()
            .config(config)
            .backend("default", "b", backend.spec())
            .cluster(2)
            .start()
            .await;
        Self { cluster, backend, authority }
    }

    /// Makes one call over a connection of its own.
    async fn call(&self, wire: &str, replica: usize, mut params: Value) -> Value {
        let replica = &self.cluster.replicas()[replica];
        params["name"] = json!("b__ask");
        if wire == "http" {
            return Modern::at(replica.http_address(), "/mcp", everything())
                .answer("tools/call", params)
                .await;
        }
        params["_meta"] = meta(everything());
        let duplex = DuplexClient::builder();
        let client = match wire {
            "tcp" => duplex.tcp(replica.tcp_address().unwrap()).await,
            "websocket" => duplex.websocket(replica.http_address(), "/ws", &[]).await.unwrap().0,
            _ => {
                let peer = QuicPeer::connect(
                    replica.quic_address().unwrap(),
                    &self.authority,
                    None,
                    "mcp",
                )
                .await
                .unwrap();
                let control = duplex.over(peer.control().await);
                if wire == "quic" {
                    return control.request("tools/call", params).await;
                }
                control.result("tools/list", json!({"_meta": meta(json!({}))})).await;
                let (_writer, reader) = peer.request(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})).await;
                return QuicPeer::lines(reader).await.pop().expect("an answer");
            }
        };
        client.request("tools/call", params).await
    }

    /// Makes the first half, which ends with `input_required`; returns the params to come back
    /// with.
    async fn first_half(
        &self,
        wire: &str,
        replica: usize,
        method: &str,
        params: &Value,
        answer: &Value,
    ) -> Value {
        let arguments = json!({"asks": [[method, params]]});
        let required = self.call(wire, replica, json!({"arguments": arguments})).await;
        let (key, _) = inputs::only(&required["result"]);
        json!({"arguments": arguments, "requestState": required["result"]["requestState"], "inputResponses": {key: answer}})
    }
}

#[tokio::test]
async fn br_03_an_exchange_continues_at_another_replica_over_every_wire() {
    let pair = Pair::start().await;
    for (at, wire) in WIRES.into_iter().enumerate() {
        let (asked, answered) = (at % 2, 1 - at % 2);
        for (method, params, answer) in kinds() {
            let before = pair.backend.count(|seen| seen.calls("ask"));
            let back = pair.first_half(wire, asked, method, &params, &answer).await;
            // A second half of another principal, or a changed one, finds nothing and removes
            // nothing.
            let mut changed = back.clone();
            changed["arguments"]["asks"] = json!([]);
            assert_eq!(
                pair.call(wire, answered, changed).await["error"]["code"],
                -32602,
                "{wire} {method}"
            );
            let done = pair.call(wire, answered, back.clone()).await;
            assert_eq!(done["result"]["resultType"], "complete", "{wire} {method}: {done}");
            assert_eq!(
                serde_json::from_str::<Value>(text_of(&done["result"])).unwrap(),
                json!([answer]),
                "{wire}"
            );
            let again = pair.call(wire, answered, back).await;
            assert!(
                again["error"]["message"].as_str().unwrap_or_default().contains("expired"),
                "{wire}: {again}"
            );
            assert_eq!(
                pair.backend.count(|seen| seen.calls("ask")),
                before + 1,
                "{wire}: the call was made once"
            );
        }
    }
    // The exchange begins over one wire and continues over another.
    let (method, params, answer) = &kinds()[0];
    let back = pair.first_half("http", 0, method, params, answer).await;
    assert_eq!(pair.call("tcp", 1, back).await["result"]["resultType"], "complete");
}

#[tokio::test]
async fn a_search_for_a_lost_replica_takes_from_the_rate_of_its_caller() {
    let mut pair = Pair::start().await;
    let (method, params, answer) = &kinds()[0];
    let back = pair.first_half("http", 0, method, params, answer).await;
    pair.cluster.kill(0).await;
    let limits = json!({"limits": {"requests_per_second": 1, "burst": 4}});
    pair.cluster.admin(1).put_tenant("default", limits).await;
    let again = (0..40).map(|_| pair.call("http", 1, back.clone()));
    let answers = join_all(again).await;
    let found: Vec<&str> = answers.iter().map(|lost| kind(&lost["error"])).collect();
    assert!(found.contains(&"outcome_unknown"), "{found:?}");
    assert!(found.contains(&"rate_limited"), "{found:?}");
}

#[tokio::test]
async fn f_28_an_exchange_continues_at_a_replica_whose_clock_is_ahead() {
    let (clock, backend) = (FakeClock::set_to("+0"), inputs::backend_with_questions().await);
    let replicas = builder().backend("default", "b", backend.spec()).cluster(2);
    let env = clock.env();
    let replicas = env.iter().fold(replicas, |all, (name, value)| all.env_of(1, name, value));
    let cluster = replicas.start().await;
    clocks::set(&cluster, &clock, "+1h").await;
    let at = |replica: usize| {
        Modern::at(cluster.replicas()[replica].http_address(), "/mcp", everything())
    };
    let (method, params, answer) = &kinds()[0];
    let arguments = json!({"asks": [[method, params]]});
    let required = at(0).call("b__ask", arguments.clone()).await;
    let (key, _) = inputs::only(&required);
    let state = &required["requestState"];
    let done = at(1).retry("b__ask", arguments, state, json!({key: answer})).await;
    assert_eq!(done["result"]["resultType"], "complete", "{done}");
    assert_eq!(backend.count(|seen| seen.calls("ask")), 1, "the call was made once");
}

#[tokio::test]
async fn br_03_a_request_continued_at_another_replica_is_counted_at_its_clients_replica() {
    let pair = Pair::start().await;
    let counts = async || {
        let labels = [("version", "2026-07-28"), ("side", "client")];
        let count = |replica| {
            let admin = pair.cluster.admin(replica);
            async move { admin.metric("mcp_protocol_version_negotiated_total", &labels).await }
        };
        [count(0).await, count(1).await]
    };
    let (method, params, answer) = &kinds()[0];
    let back = pair.first_half("http", 0, method, params, answer).await;
    assert_eq!(counts().await, [Some(1.0), Some(0.0)]);
    assert_eq!(pair.call("http", 1, back).await["result"]["resultType"], "complete");
    assert_eq!(counts().await, [Some(1.0), Some(1.0)]);
}

#[tokio::test]
async fn br_03_a_call_of_a_killed_replica_is_never_repeated() {
    let mut pair = Pair::start().await;
    let mut parked = Vec::new();
    for wire in WIRES {
        for (method, params, answer) in kinds() {
            parked.push((wire, pair.first_half(wire, 0, method, &params, &answer).await));
        }
    }
    pair.cluster.kill(0).await;
    let asked = Instant::now();
    let again = parked.into_iter().map(|(wire, back)| pair.call(wire, 1, back));
    for lost in join_all(again).await {
        assert_eq!(kind(&lost["error"]), "outcome_unknown", "{lost}");
    }
    assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
    let (method, params, answer) = &kinds()[0];
    let back = pair.first_half("tcp", 1, method, params, answer).await;
    assert_eq!(
        pair.call("tcp", 1, back).await["result"]["resultType"],
        "complete",
        "and can be started again"
    );
}

#[tokio::test]
async fn br_03_a_request_continued_at_another_replica_is_executed_once() {
    let (cluster, ledger, key) = cluster::two().await;
    let at = |replica: usize| {
        Modern::at(cluster.replicas()[replica].http_address(), "/mcp", json!({"elicitation": {}}))
            .bearer(&key)
    };
    for (asked, answered) in [(0, 1), (1, 0)] {
        let arguments = json!({"key": format!("k{asked}")});
        let required = at(asked).call("b__ask", arguments.clone()).await;
        let (input, _) = inputs::only(&required);
        let answer = json!({input: {"action": "accept", "content": {"word": "yes"}}});
        let done = at(answered).retry("b__ask", arguments, &required["requestState"], answer).await;
        assert!(text_of(&done["result"]).ends_with("told \"yes\""), "{done}");
        assert_eq!(ledger.results(&format!("k{asked}")).len(), 1, "the effect came once");
    }
}

/// Two replicas behind proxies to the database, and a call at the first one that waits for input.
struct ParkedCall {
    cluster: TestCluster,
    ledger: Ledger,
    key: String,
    required: Value,
}

impl ParkedCall {
    async fn start() -> Self {
        let ledger = Ledger::start().await;
        let cluster = cluster::on(&ledger).cluster(2).behind_proxies().start().await;
        let key = cluster.operator().create_key("default").await;
        let mut parked = Self { cluster, ledger, key, required: Value::Null };
        parked.required = parked.at(0).call("b__ask", json!({"key": "k"})).await;
        parked
    }

    fn at(&self, replica: usize) -> Modern {
        let address = self.cluster.replicas()[replica].http_address();
        Modern::at(address, "/mcp", json!({"elicitation": {}})).bearer(&self.key)
    }

    /// Sends the call again to the second replica, with the input.
    async fn answer(&self) -> Value {
        let (input, _) = inputs::only(&self.required);
        let answer = json!({input: {"action": "accept", "content": {"word": "yes"}}});
        self.at(1)
            .retry("b__ask", json!({"key": "k"}), &self.required["requestState"], answer)
            .await
    }

    async fn completes(&self) {
        let done = self.answer().await;
        assert!(text_of(&done["result"]).ends_with("told \"yes\""), "{done}");
        assert_eq!(self.ledger.results("k").len(), 1, "the effect came once");
    }

    /// Waits until this query has a result.
    async fn until(&self, query: &str) {
        eventually(query, || async {
            if self.cluster.sql(query).await.is_empty() { Err(()) } else { Ok(()) }
        })
        .await;
    }
}

#[tokio::test]
async fn br_03_a_suspended_call_continues_at_a_replica_without_the_database() {
    let parked = ParkedCall::start().await;
    parked.cluster.cut_from_postgres(1);
    parked.completes().await;
}

#[tokio::test]
async fn br_03_a_suspended_call_continues_at_an_owner_with_a_new_name() {
    let parked = ParkedCall::start().await;
    let first = "SELECT node FROM nodes ORDER BY node LIMIT 1";
    let former = parked.cluster.sql(first).await;
    parked
        .cluster
        .sql(&format!("UPDATE nodes SET lease_until_us = 0 WHERE node = '{former}'"))
        .await;
    let (id, _) = former.rsplit_once('/').unwrap();
    parked
        .until(&format!(
            "SELECT node FROM nodes WHERE node LIKE '{id}/%' AND lease_until_us > now_us()"
        ))
        .await;
    parked.completes().await;
}

#[tokio::test]
async fn br_03_a_suspended_call_of_a_frozen_replica_is_not_reported_as_expired() {
    let mut parked = ParkedCall::start().await;
    parked.cluster.freeze(0);
    let refused = parked.answer().await;
    assert!(
        ["outcome_unknown", "session_elsewhere"].contains(&kind(&refused["error"])),
        "{refused}"
    );
    parked.cluster.thaw(0);
}

#[tokio::test]
async fn br_03_a_drain_waits_for_suspended_calls() {
    let parked = ParkedCall::start().await;
    let drain = parked.cluster.admin(0).send("POST", "/admin/v1/drain", None).await;
    assert_eq!(drain.status, 202);
    parked.until("SELECT node FROM nodes WHERE draining").await;
    parked.completes().await;
    parked.until("SELECT 'it left' FROM nodes HAVING count(*) = 1").await;
}

/// Returns a backend whose prompts and resources need input too, and with a tool that requires a
/// URL every second time.
async fn backend_with_all_questions() -> FakeBackend {
    let backend = inputs::backend_with_questions().await;
    backend.list("prompts", vec![json!({"name": "p"})]);
    backend.list("resources", vec![json!({"uri": "test://r", "name": "r"})]);
    backend.on("prompts/get", |call| async move {
        let received = call.request("roots/list", json!({})).await["result"].to_string();
        Reply::Result(
            json!({"messages": [{"role": "user", "content": {"type": "text", "text": received}}]}),
        )
    });
    backend.on("resources/read", |call| async move {
        let received = call.request("roots/list", json!({})).await["result"].to_string();
        Reply::Result(json!({"contents": [{"uri": call.params()["uri"], "text": received}]}))
    });
    let calls = Arc::new(AtomicU64::new(0));
    backend.tool("url", move |_| {
        let calls = calls.clone();
        async move {
            if calls.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
                return Reply::text("done");
            }
            let url = json!({"mode": "url", "elicitationId": "e", "url": "https://example.org/in", "message": "sign in"});
            Reply::Error(json!({"code": -32042, "message": "first", "data": {"elicitations": [url]}}))
        }
    });
    backend
}

#[tokio::test]
async fn br_03_other_kinds_of_exchanges_continue_or_expire_like_calls() {
    let (backend, modern) = (backend_with_all_questions().await, StatelessBackend::http().await);
    modern.tool("named", |call| async move {
        match call.input("who") {
            Value::Null => {
                StatelessReply::needs(json!({"who": {"method": "roots/list"}}), Some("s"))
            }
            _ => StatelessReply::text(call.state().unwrap_or_default()),
        }
    });
    let building =
        builder().backend("default", "b", backend.spec()).backend("default", "m", modern.spec());
    let mut cluster = building.cluster(2).start().await;
    let addresses: Vec<_> = cluster.replicas().iter().map(testkit::Replica::http_address).collect();
    let at = |replica: usize| {
        Modern::at(
            addresses[replica],
            "/mcp",
            json!({"roots": {}, "elicitation": {"form": {}, "url": {}}}),
        )
    };
    let kinds = [
        ("prompts/get", json!({"name": "b__p"})),
        ("resources/read", json!({"uri": "b+test://r"})),
        ("tools/call", json!({"name": "b__url", "arguments": {}})),
        ("tools/call", json!({"name": "m__named", "arguments": {}})),
    ];
    let back = |params: &Value, required: &Value| {
        let (key, request) = inputs::only(required);
        let answer = if request["method"] == "roots/list" {
            json!({"roots": []})
        } else {
            json!({"action": "accept"})
        };
        let mut params = params.clone();
        (params["requestState"], params["inputResponses"]) =
            (required["requestState"].clone(), json!({key: answer}));
        params
    };
    for (index, (method, params)) in kinds.iter().enumerate() {
        let (asked, answered) = (index % 2, 1 - index % 2);
        let again = back(params, &at(asked).result(method, params.clone()).await);
        let done = at(answered).result(method, again.clone()).await;
        assert_eq!(done["resultType"], "complete", "{method} {params}: {done}");
        assert_eq!(
            at(answered).error(method, again).await["code"],
            -32602,
            "{method} {params}: it is good once"
        );
    }
    // Each round may come to another replica than the one before.
    let rounds =
        json!({"name": "b__ask", "arguments": {"asks": [["roots/list", {}], ["roots/list", {}]]}});
    let second = at(1)
        .result("tools/call", back(&rounds, &at(0).result("tools/call", rounds.clone()).await))
        .await;
    let done = at(0).result("tools/call", back(&rounds, &second)).await;
    assert_eq!(text_of(&done), r#"[{"roots":[]},{"roots":[]}]"#);
    let mut parked = Vec::new();
    for (method, params) in &kinds {
        parked.push((*method, back(params, &at(0).result(method, params.clone()).await)));
    }
    cluster.kill(0).await;
    // The call of a stateless backend was answered once, so it may have had an effect. The other
    // requests did nothing, or may be repeated.
    for (method, again) in parked {
        let asked = Instant::now();
        let again_name = again["name"].clone();
        let expired = at(1).error(method, again).await;
        if again_name == json!("m__named") {
            assert_eq!(kind(&expired), "outcome_unknown", "{expired}");
            continue;
        }
        assert!(
            expired["message"].as_str().unwrap().contains("expired") && expired["code"] == -32602,
            "{method}: {expired}"
        );
        assert!(asked.elapsed() < AT_ONCE, "{method}: {:?}", asked.elapsed());
    }
}
