//! What a list shows can be used, and nothing else, for random policies and subjects: on every
//! wire, on every kind of endpoint and in both eras. A call that needs an approval reaches no backend.

use std::collections::HashMap;

use futures_util::future::join_all;
use proptest::{prelude::*, strategy::ValueTree as _, test_runner::TestRunner};
use serde_json::{Value, json};
use testkit::{
    Authority, DuplexClient, FakeBackend, QuicPeer, Reply, TestBroker, TestClient, duplex::Wire,
    eventually,
};

use crate::{builder, stateless::Modern};

const POLICIES: usize = 12;
const SEATS_AT_ONCE: usize = 18;
const TOOLS: [&str; 6] = ["aa", "ab", "ba", "bb", "ca", "cb"];
const URIS: [&str; 4] = ["file:///a/a", "file:///a/b", "file:///b/a", "file:///b/b"];

/// A rule over groups, names, URIs and classes. Challenges are left out: what is challenged is
/// listed, and needs a scope.
fn rule() -> impl Strategy<Value = Value> {
    let groups = prop::option::of(prop::collection::vec("[a-b]", 1..3));
    let names = || prop::option::of(prop::collection::vec("[a-c]?\\*?[a-b]", 1..3));
    let uris = prop::option::of(prop::collection::vec("file:///[a-b]/[a-b]?\\*?", 1..3));
    let classes = prop::option::of(prop::sample::select(vec!["read", "write", "destructive"]));
    let effects = prop::sample::select(vec!["allow", "deny", "approve"]);
    (groups, names(), names(), uris, classes, effects, any::<bool>()).prop_map(
        |(groups, tools, prompts, uris, class, effect, shadow)| {
            let mut objects = serde_json::Map::new();
            for (member, names) in [("tools", tools), ("prompts", prompts), ("resources", uris)] {
                // Approvals are for tools.
                let names = names.filter(|_| effect != "approve" || member == "tools");
                if let Some(names) = names {
                    let named: Vec<_> = names.iter().map(|name| format!("b/{name}")).collect();
                    objects.insert(member.to_owned(), named.into());
                }
            }
            if let Some(class) = class {
                objects.insert("classes".to_owned(), json!([class]));
            }
            let mut rule = json!({"effect": effect});
            if !objects.is_empty() {
                rule["objects"] = Value::Object(objects);
            }
            if let Some(groups) = groups {
                rule["subjects"] = json!({"groups": groups});
            }
            if shadow {
                rule["mode"] = json!("shadow");
            }
            rule
        },
    )
}

fn policy() -> impl Strategy<Value = Value> {
    (prop::collection::vec(rule(), 1..6), any::<bool>()).prop_map(|(mut rules, denies)| {
        for (at, rule) in rules.iter_mut().enumerate() {
            rule["id"] = format!("r{at}").into();
        }
        json!({"default": if denies { "deny" } else { "allow" }, "rules": rules})
    })
}

async fn backend() -> FakeBackend {
    let backend = FakeBackend::start().await;
    let tools = TOOLS.iter().enumerate().map(|(at, name)| {
        backend.tool(name, |_| async { Reply::text("done") });
        let hints = json!({"readOnlyHint": at % 2 == 0, "destructiveHint": at % 3 == 0});
        json!({"name": name, "inputSchema": {"type": "object"}, "annotations": hints})
    });
    backend.list("tools", tools.collect());
    backend.list("prompts", TOOLS.iter().map(|name| json!({"name": name})).collect());
    backend.list("resources", URIS.iter().map(|uri| json!({"uri": uri, "name": uri})).collect());
    backend.on("resources/read", |_| async { Reply::Result(json!({"contents": []})) });
    backend.on("prompts/get", |_| async { Reply::Result(json!({"messages": []})) });
    backend
}

enum Client {
    Http(TestClient),
    Duplex(DuplexClient),
    Stateless(Modern),
}

/// A client on one wire, and the endpoint that it uses.
struct Seat {
    label: String,
    groups: &'static [&'static str],
    /// What stands before the names of tools and prompts, and before URIs.
    prefixes: [&'static str; 2],
    client: Client,
}

impl Seat {
    /// Repeats a call that a busy machine did not send before its short deadline.
    async fn answer(&self, method: &str, params: Value) -> Value {
        eventually("an answer in time", || async {
            let answer = self.attempt(method, params.clone()).await;
            if answer["error"]["data"]["kind"] == "timeout" { Err(answer) } else { Ok(answer) }
        })
        .await
    }

    async fn attempt(&self, method: &str, params: Value) -> Value {
        match &self.client {
            Client::Http(client) => client.request(method, params).await,
            Client::Duplex(client) => client.request(method, params).await,
            Client::Stateless(client) => client.answer(method, params).await,
        }
    }

    /// Compares each list with the use of everything that could be on it. Returns how many objects
    /// were listed, and how many were not.
    async fn compare(&self, verdicts: &Verdicts) -> (usize, usize) {
        let [prefix, scheme] = self.prefixes;
        let mut counts = (0, 0);
        for (list, member, key, names, method, prefix) in [
            ("tools/list", "tools", "name", TOOLS.as_slice(), "tools/call", prefix),
            ("prompts/list", "prompts", "name", TOOLS.as_slice(), "prompts/get", prefix),
            ("resources/list", "resources", "uri", URIS.as_slice(), "resources/read", scheme),
        ] {
            let listed = self.answer(list, json!({})).await;
            // A backend of which nothing may be used does not exist: it has no endpoint, and the
            // broker declares none of its capabilities to clients without a session.
            let refused = listed["error"]["data"]["kind"].as_str().unwrap_or_default();
            let is_absent = ["not_found", "capability_missing"].contains(&refused);
            let entries = match listed["result"][member].as_array() {
                Some(entries) => entries.as_slice(),
                None => {
                    assert!(is_absent, "{}: {listed}", self.label);
                    &[]
                }
            };
            let listed: Vec<&str> =
                entries.iter().filter_map(|entry| entry[key].as_str()).collect();
            for native in names {
                let name = format!("{prefix}{native}");
                let answer = self.answer(method, json!({key: name})).await;
                let is_listed = listed.contains(&name.as_str());
                assert_eq!(
                    answer.get("result").is_some(),
                    is_listed,
                    "{} {method} {name}: {answer}",
                    self.label
                );
                let kind = answer["error"]["data"]["kind"].as_str().unwrap_or_default();
                let is_hidden = kind.ends_with("not_found") || kind == "capability_missing";
                assert!(is_listed || is_hidden, "{}: {answer}", self.label);
                if method == "tools/call" && is_listed {
                    let is_executed = answer["result"]["content"][0]["text"] == "done";
                    let verdict = verdicts[&(self.groups, *native)].as_str();
                    assert!(["allow", "approve"].contains(&verdict), "{}: {verdict}", self.label);
                    let is_allowed = verdict == "allow";
                    assert_eq!(is_executed, is_allowed, "{} {name}: {answer}", self.label);
                }
                counts = (counts.0 + usize::from(is_listed), counts.1 + usize::from(!is_listed));
            }
        }
        counts
    }
}

/// What the policy decides about the tools, by groups and tool.
type Verdicts = HashMap<(&'static [&'static str], &'static str), String>;

const GROUPS: [&[&str]; 3] = [&[], &["a"], &["a", "b"]];

async fn verdicts(broker: &TestBroker) -> Verdicts {
    let mut verdicts = Verdicts::new();
    for groups in GROUPS {
        for tool in TOOLS {
            let object = format!("b/{tool}");
            let asked = json!({"as": {"groups": groups}, "method": "tools/call", "object": object});
            let path = "/admin/v1/tenants/default/policy/check";
            let (status, answer) = broker.admin().post(path, &asked).await;
            assert_eq!(status, 200, "{answer}");
            verdicts.insert((groups, tool), answer["verdict"].as_str().unwrap().to_owned());
        }
    }
    verdicts
}

async fn key(broker: &TestBroker, groups: &[&str]) -> String {
    let keys = "/admin/v1/tenants/default/keys";
    let (status, key) = broker.admin().post(keys, &json!({"groups": groups})).await;
    assert_eq!(status, 201, "{key}");
    key["key"].as_str().unwrap().to_owned()
}

/// Each kind of endpoint: the end of its path, its name on wires without paths, and what stands before
/// names and URIs there.
const ENDPOINTS: [(&str, Option<&str>, [&str; 2]); 3] =
    [("", None, ["b__", "b+"]), ("/b", Some("b"), ["", ""]), ("/t/set", Some("t/set"), ["", "b+"])];

/// Opens a client of this key on every wire, at every kind of endpoint.
async fn seats(
    broker: &TestBroker,
    authority: &Authority,
    groups: &'static [&'static str],
) -> Vec<Seat> {
    let key = &key(broker, groups).await;
    let mut seats = Vec::new();
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str())];
    for (end, name, prefixes) in ENDPOINTS {
        let mut add = |wire: &str, client: Client| {
            seats.push(Seat { label: format!("{wire}{end} {groups:?}"), groups, prefixes, client });
        };
        let path = format!("/mcp{end}");
        let client = broker.client(&path).bearer(key).connected(json!({})).await;
        add("http", Client::Http(client));
        add("stateless", Client::Stateless(Modern::of(broker, &path).bearer(key)));
        let address = broker.http_address();
        let opened = broker.duplex().websocket(address, &format!("/ws{end}"), &headers).await;
        add("websocket", Client::Duplex(opened.unwrap().0.connected(json!({})).await));
        let legacy = Wire::http_sse(address, &format!("/sse{end}"), &headers).await.unwrap();
        add("sse", Client::Duplex(broker.duplex().over(legacy).connected(json!({})).await));
        let mut meta = json!({"dev.mcp-broker/token": key});
        if let Some(name) = name {
            meta["dev.mcp-broker/backend"] = json!(name);
        }
        let lines = broker.duplex().tcp(broker.tcp_address()).await;
        add("tcp", Client::Duplex(lines.connected_with(json!({}), meta.clone()).await));
        let peer = QuicPeer::connect(broker.quic_address(), authority, None, "mcp").await.unwrap();
        let control = broker.duplex().over(peer.control().await);
        add("quic", Client::Duplex(control.connected_with(json!({}), meta).await));
    }
    seats
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_the_listed_objects_are_usable_on_every_wire() {
    let (backend, authority) = (backend().await, Authority::new());
    let signed = authority.server("server");
    let broker = builder()
        .single_process()
        .auth_required()
        .config(json!({
            "listen": {"tcp": "127.0.0.1:0", "quic": "127.0.0.1:0"},
            "tls": {"cert_file": signed.cert, "key_file": signed.key},
            // A call that waits for an approval answers at three quarters of its time.
            "timeouts": {"call": "800ms"},
        }))
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let set = json!({
        "published": true, "names": "unique",
        "include": {"tools": ["b/*"], "prompts": ["b/*"], "resources": ["b/*"]},
        "exclude": {"tools": ["b/cb"], "prompts": ["b/aa"], "resources": ["b/file:///b/b"]}
    });
    let path = "/admin/v1/tenants/default/toolsets/set";
    assert_eq!(broker.admin().put(path, &set).await.0, 201);
    let mut all = Vec::new();
    for groups in GROUPS {
        all.extend(seats(&broker, &authority, groups).await);
    }
    let mut runner = TestRunner::deterministic();
    let (mut listed, mut hidden, mut tried, mut held) = (0, 0, 0, 0);
    while tried < POLICIES {
        let policy = policy().new_tree(&mut runner).unwrap().current();
        let path = "/admin/v1/tenants/default/policy";
        let (status, answer) = broker.admin().put(path, &policy).await;
        if status == 422 {
            continue; // a rule that says nothing, such as classes with prompts
        }
        assert!([200, 201].contains(&status), "{policy}: {answer}");
        tried += 1;
        let verdicts = verdicts(&broker).await;
        held += verdicts.values().filter(|verdict| *verdict == "approve").count();
        // Not all at once: a call that is not sent in its time has to be repeated.
        for seats in all.chunks(SEATS_AT_ONCE) {
            let compared = join_all(seats.iter().map(|seat| seat.compare(&verdicts))).await;
            for (shown, kept) in compared {
                (listed, hidden) = (listed + shown, hidden + kept);
            }
        }
    }
    assert!(listed > 500 && hidden > 500, "{listed} listed, {hidden} hidden");
    assert!(held > 10, "{held} decisions ask for an approval");
}
