//! An object of another tenant looks like one that never existed, in status, text and time. Every
//! method that takes an id, a name, a URI or a cursor is tested.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{FakeBackend, RawResponse, Reply, TestBroker, TestClient};

use crate::{builder, counts::count, request};

/// Returns a backend with one object of each kind, under names that both tenants have.
async fn with_everything() -> FakeBackend {
    let backend = FakeBackend::with_tool("t", |_| async { Reply::text("done") }).await;
    backend.list("resources", vec![json!({"uri": "test://r", "name": "r"})]);
    backend.list("resources/templates", vec![json!({"uriTemplate": "test://{x}", "name": "x"})]);
    backend.list(
        "prompts",
        (0..120).map(|n| json!({"name": format!("p{n}"), "arguments": [{"name": "a"}]})).collect(),
    );
    backend.on("resources/read", |call| async move {
        Reply::Result(json!({"contents": [{"uri": call.params()["uri"], "text": "r"}]}))
    });
    backend.on("prompts/get", |_| async { Reply::Result(json!({"messages": []})) });
    backend.on("completion/complete", |_| async {
        Reply::Result(json!({"completion": {"values": []}}))
    });
    backend
}

/// Returns a broker with two tenants. The backend of `red` has a name that is unknown to `blue`,
/// and the other way round.
async fn two_tenants() -> (TestBroker, [FakeBackend; 2], [TestClient; 2], String) {
    let backends = [with_everything().await, with_everything().await];
    let building =
        builder().auth_required().tenant("red").backend("red", "crimson", backends[0].spec());
    let broker =
        building.tenant("blue").backend("blue", "turkish", backends[1].spec()).start().await;
    let (red, blue) =
        (broker.admin().create_key("red").await, broker.admin().create_key("blue").await);
    let [of_red, of_blue] = [&red, &blue].map(|key| broker.client("/mcp").bearer(key));
    let clients = [of_red.connected(json!({})).await, of_blue.connected(json!({})).await];
    (broker, backends, clients, blue)
}

/// Returns an id of the same shape that was never issued.
fn never_was(id: &str) -> String {
    let next = |letter: char| match letter {
        '0'..='8' | 'a'..='y' | 'A'..='Y' => char::from(letter as u8 + 1),
        '9' => '0',
        'z' => 'a',
        'Z' => 'A',
        other => other,
    };
    id.chars().map(next).collect()
}

/// A request with an id: its method and params, and a foreign and an absent id.
struct CrossRequest {
    method: &'static str,
    params: fn(&str) -> Value,
    foreign: String,
    absent: String,
}

fn cross_requests(task: &str, cursor: &str) -> Vec<CrossRequest> {
    let cross_request = |method, foreign: &str, absent: &str, params| CrossRequest {
        method,
        params,
        foreign: foreign.into(),
        absent: absent.into(),
    };
    let (tool, prompt, uri) = (
        ["crimson__t", "magenta__t"],
        ["crimson__p1", "magenta__p1"],
        ["crimson+test://r", "magenta+test://r"],
    );
    let mut all = vec![
        cross_request("tools/call", tool[0], tool[1], |id| json!({"name": id, "arguments": {}})),
        cross_request(
            "tools/call",
            tool[0],
            tool[1],
            |id| json!({"name": id, "arguments": {}, "task": {}}),
        ),
        cross_request("prompts/get", prompt[0], prompt[1], |id| json!({"name": id})),
        cross_request(
            "completion/complete",
            prompt[0],
            prompt[1],
            |id| json!({"ref": {"type": "ref/prompt", "name": id}, "argument": {"name": "a", "value": "v"}}),
        ),
        cross_request(
            "completion/complete",
            uri[0],
            uri[1],
            |id| json!({"ref": {"type": "ref/resource", "uri": id}, "argument": {"name": "x", "value": "v"}}),
        ),
        cross_request("prompts/list", cursor, &never_was(cursor), |id| json!({"cursor": id})),
    ];
    for method in ["resources/read", "resources/subscribe", "resources/unsubscribe"] {
        all.push(cross_request(method, uri[0], uri[1], |id| json!({"uri": id})));
    }
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        all.push(cross_request(method, task, &never_was(task), |id| json!({"taskId": id})));
    }
    all
}

/// Returns status and body. Removes the parts that differ between requests, and the id of the
/// request.
async fn normalized(response: RawResponse, id: &str) -> (u16, String) {
    let (status, text) = (response.status, response.text().await);
    let mut body: Value = serde_json::from_str(&text).unwrap_or(Value::String(text));
    if let Some(data) = body.pointer_mut("/error/data").and_then(Value::as_object_mut) {
        data.remove("requestId");
    }
    (status, body.to_string().replace(id, "<id>"))
}

async fn send(client: &TestClient, cross_request: &CrossRequest, id: &str) -> (u16, String) {
    let response = client.post(request(1, cross_request.method, (cross_request.params)(id))).await;
    normalized(response, id).await
}

/// Compares the median times of both. They take turns, so that other load of the machine affects
/// both. Runs only at full counts, which have the machine for themselves.
async fn as_fast(what: &str, mut foreign: impl AsyncFnMut(), mut absent: impl AsyncFnMut()) {
    let mut took = [Vec::new(), Vec::new()];
    let rounds = count(0, 201);
    if rounds == 0 {
        return;
    }
    for _ in 0..rounds {
        let asked = Instant::now();
        foreign().await;
        took[0].push(asked.elapsed());
        let asked = Instant::now();
        absent().await;
        took[1].push(asked.elapsed());
    }
    let [foreign, absent] = took.map(|mut took| {
        took.sort_unstable();
        took[took.len() / 2]
    });
    let apart = foreign.abs_diff(absent);
    assert!(
        apart <= absent / 10 + Duration::from_micros(150),
        "{what}: {foreign:?} for a foreign one, {absent:?} for one that never was"
    );
}

#[tokio::test]
async fn r23_every_method_reports_a_foreign_object_as_absent() {
    let (_broker, backends, [red, blue], _key) = two_tenants().await;
    let task = red
        .result(
            "tools/call",
            json!({"name": "crimson__t", "arguments": {}, "task": {"ttl": 60000}}),
        )
        .await;
    let cursor = red.result("prompts/list", json!({})).await["nextCursor"].clone();
    let cross_requests =
        cross_requests(task["task"]["taskId"].as_str().unwrap(), cursor.as_str().unwrap());
    for cross_request in &cross_requests {
        let [foreign, absent] = [&cross_request.foreign, &cross_request.absent];
        let refused = send(&blue, cross_request, foreign).await;
        assert_eq!(refused, send(&blue, cross_request, absent).await, "{}", cross_request.method);
        assert!(refused.1.contains("\"error\""), "{}: {refused:?}", cross_request.method);
        as_fast(
            &format!("{} {}", cross_request.method, (cross_request.params)("…")),
            async || drop(send(&blue, cross_request, foreign).await),
            async || drop(send(&blue, cross_request, absent).await),
        )
        .await;
        // The owner of the object can use it.
        let own = send(&red, cross_request, foreign).await;
        assert_ne!(own.1, refused.1, "{}", cross_request.method);
    }
    assert_eq!(
        backends[1].count(|seen| seen.body.windows(7).any(|bytes| bytes == b"crimson")),
        0,
        "nothing of it reached blue's backend"
    );
}

#[tokio::test]
async fn r23_foreign_sessions_streams_and_endpoints_are_reported_as_absent() {
    let (broker, _backends, [red, blue], key) = two_tenants().await;
    let foreign = red.session().unwrap();
    let absent = never_was(&foreign);
    let own = blue.session();
    let event = red.open_get_stream().await.next().await.unwrap().id.unwrap();
    let ping = request(1, "ping", json!({}));
    let try_session = async |method: &str, id: &str| {
        blue.set_session(Some(id));
        let response = match method {
            "POST" => blue.post(ping.clone()).await,
            "GET" => blue.get_stream_raw(None).await,
            _ => blue.send_with("DELETE", blue.usual_headers(), Vec::new()).await,
        };
        normalized(response, id).await
    };
    for method in ["POST", "GET", "DELETE"] {
        let refused = try_session(method, &foreign).await;
        assert_eq!(refused, try_session(method, &absent).await, "{method}");
        assert_eq!(refused.0, 404, "{method}: {refused:?}");
        let (foreign, absent) = (
            async || drop(try_session(method, &foreign).await),
            async || drop(try_session(method, &absent).await),
        );
        as_fast(method, foreign, absent).await;
    }
    blue.set_session(own.as_deref());
    let resumed = async |id: &str| normalized(blue.get_stream_raw(Some(id)).await, id).await;
    let refused = resumed(&event).await;
    assert_eq!(refused, resumed(&never_was(&event)).await, "Last-Event-ID");
    assert!(refused.0 >= 400, "{refused:?}");
    let at = async |path: &str| {
        let response =
            broker.client(path).bearer(&key).post(crate::initialize_body("2025-11-25")).await;
        normalized(response, path.trim_start_matches("/mcp/")).await
    };
    let refused = at("/mcp/crimson").await;
    assert_eq!((refused.0, &refused), (404, &at("/mcp/magenta").await));
    // The session continues as if no such request had come.
    assert_eq!(red.request("ping", json!({})).await["result"], json!({}));
}
