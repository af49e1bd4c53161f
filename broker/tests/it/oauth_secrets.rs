//! No token leaves its way: what comes from callers, users and authorization servers is in no byte for
//! a backend that it is not meant for, and in nothing that the broker shows or stores in clear text.

use std::sync::Arc;

use serde_json::json;
use testkit::{
    AuthorizationServer, BrokerBuilder, Collector, PostgresServer, RedisServer, Topology,
    eventually,
};

use crate::{
    accounts::{Browser, World, call, outputs, outputs_containing, parameter},
    builder,
    oauth_exchange::{Protected, member, payload},
    stateless::Modern,
};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Returns a text that occurs nowhere by chance. Its middle, which the search looks for, tells what
/// it is.
fn canary(of: &str, number: usize) -> String {
    format!("canary-5e1d8b40-{of}-{number:08}-{of}-01234567890123")
}

/// What a run of the broker shows and stores, by output, and what came in.
struct Run {
    outputs: Vec<(String, Vec<u8>)>,
    /// Bytes that went to backends.
    sent: Vec<(String, Vec<u8>)>,
    /// Tokens of callers, and what is for authorization servers only.
    tokens: Vec<String>,
    /// Tokens for backends.
    for_backends: Vec<String>,
}

/// An argument of a task, which every store keeps.
const ARGUMENT: &str = "argument-canary-5e1d8b40-99999999-0123456789";

async fn run(broker: BrokerBuilder) -> Run {
    // One backend exchanges the tokens of callers, and users connect accounts at the other.
    let exchanging = Protected::start(|request| match member(request, "subject_token") {
        Some(subject) => Some(payload(&subject)["sub"].as_str()?.to_owned()),
        None => Some(canary("actor", 0)),
    })
    .await;
    let world = World::start(3600).await;
    let accepted = world.accepted.clone();
    world.server.answer_tokens(Arc::new(move |_, number| {
        let (access, refresh) = (canary("access", number), canary("refresh", number));
        accepted.lock().insert(format!("Bearer {access}"));
        (200, json!({"access_token": access, "token_type": "Bearer", "expires_in": 3600, "refresh_token": refresh}))
    }));
    let (issuer, collector) = (AuthorizationServer::start().await, Collector::start().await);
    let broker = broker
        .auth_required()
        .admin_token("operator-of-tests")
        .config(
            issuer
                .config("default", json!({"exchange": {"issuers": [exchanging.server.issuer()]}})),
        )
        .config(json!({
            "telemetry": {"traces": {"endpoint": collector.endpoint()}, "log": "debug"},
            "audit": {"calls": "arguments"},
        }))
        .start()
        .await;
    let admin = broker.admin();
    let auth = json!({"type": "token_exchange", "actor_token": "access_token", "client_secret": canary("secret", 1)});
    let path = "/admin/v1/tenants/default/backends/x?wait=false";
    assert_eq!(admin.put(path, &exchanging.spec(auth)).await.0, 201);
    let mut spec = world.spec();
    spec["auth"]["client_secret"] = json!(canary("secret", 2));
    assert_eq!(admin.put_backend("default", "b", &spec).await.0, 201);

    let claims = json!({"note": canary("claim", 0)});
    let token = issuer.token_with("ann", claims);
    let wrong = format!("{token}{}", canary("wrong", 0));
    let client = broker.client("/mcp").bearer(&token).header("traceparent", TRACE);
    let client = client.connected(json!({})).await;
    let refused = Modern::of(&broker, "/mcp").bearer(&wrong);
    assert_eq!(refused.post(json!(1), "tools/list", json!({})).await.status, 401);

    // The user connects an account.
    let principal = format!("{} ann", issuer.issuer());
    let body = json!({"principal": principal, "backend": "b"});
    let (status, link) = admin.post("/admin/v1/tenants/default/connections", &body).await;
    assert_eq!(status, 201, "{link}");
    let link = parameter(link["url"].as_str().unwrap(), "link").unwrap();
    let browser = Browser::new(&broker);
    assert_eq!(browser.send("POST", "/connect", &format!("link={link}")).await.status, 303);
    let request = browser.start_login().await;
    let (code, state) = (canary("code", 0), parameter(&request, "state").unwrap());
    assert_eq!(browser.answer(&request, &format!("&code={code}")).await, 200);
    client.wait_tools(&["b__echo", "x__echo"]).await;

    // Calls in both eras, a task, and a token that is not accepted any more.
    for tool in ["b__echo", "x__echo"] {
        assert_ne!(call(&client, tool).await["isError"], true);
        let modern = Modern::of(&broker, "/mcp").bearer(&token);
        assert_ne!(modern.call(tool, json!({})).await["isError"], true);
        let params = json!({"name": tool, "arguments": {"x": ARGUMENT}, "task": {"ttl": 600_000}});
        let created = client.result("tools/call", params).await;
        let id = json!({"taskId": created["task"]["taskId"]});
        eventually("the end of the task", || async {
            let task = client.result("tasks/get", id.clone()).await;
            if task["status"] == "completed" { Ok(()) } else { Err(task) }
        })
        .await;
    }
    world.accepted.lock().clear();
    assert_ne!(call(&client, "b__echo").await["isError"], true);
    eventually("spans", || async {
        if collector.spans().is_empty() { Err("none") } else { Ok(()) }
    })
    .await;

    let recorded = |seen: Vec<testkit::RecordedRequest>| format!("{seen:?}").into_bytes();
    let sent = vec![
        ("the backend x".to_owned(), recorded(exchanging.backend.recorded())),
        ("the backend b".to_owned(), recorded(world.backend.recorded())),
    ];
    let mut tokens = vec![token, wrong, link, code, state];
    tokens.extend([1, 2].map(|number| canary("secret", number)));
    tokens.extend([1, 2].map(|number| canary("refresh", number)));
    let asked = exchanging.server.take_token_requests();
    tokens.extend(asked.iter().filter_map(|one| member(one, "actor_token")));
    let for_backends: Vec<String> = [1, 2].map(|number| canary("access", number)).into();
    Run { outputs: outputs(&broker, &collector.spans()).await, sent, tokens, for_backends }
}

impl Run {
    fn check(&self) {
        let tokens: Vec<&str> = self.tokens.iter().map(String::as_str).collect();
        let own: Vec<&str> = self.for_backends.iter().map(String::as_str).collect();
        assert_eq!(
            outputs_containing(&own, &self.sent),
            ["the backend b"],
            "the search finds what is there"
        );
        for token in tokens {
            assert_eq!(outputs_containing(&[token], &self.sent), [""; 0], "{token}");
            assert_eq!(outputs_containing(&[token], &self.outputs), [""; 0], "{token}");
        }
        assert_eq!(outputs_containing(&own, &self.outputs), [""; 0]);
    }

    /// Returns where the argument of the tasks is, by the end of the output's name.
    fn has_argument(&self, name: &str) -> bool {
        outputs_containing(&[ARGUMENT], &self.outputs).iter().any(|found| found.ends_with(name))
    }
}

#[tokio::test]
async fn received_tokens_are_in_no_sqlite_file_and_at_no_backend() {
    let run = run(builder().on(Topology::Sqlite)).await;
    assert!(
        run.has_argument(".db") || run.has_argument("-wal"),
        "the search finds what the database holds: {:?}",
        run.outputs.iter().map(|(name, _)| name).collect::<Vec<_>>()
    );
    run.check();
}

#[tokio::test]
async fn received_tokens_are_in_no_dump_of_postgresql_and_redis() {
    let (postgres, redis) = (PostgresServer::start().await, RedisServer::start().await);
    let broker = builder().single_process().on_postgres(&postgres).await.with_redis(&redis);
    let mut run = run(broker).await;
    let databases = "SELECT datname FROM pg_database WHERE datname LIKE 'test_%'";
    let name = postgres.sql(&postgres.url(), databases).await;
    let url = format!("{}/{name}", postgres.url().rsplit_once('/').unwrap().0);
    redis.command(&["SET", "control", ARGUMENT]).await;
    run.outputs.push(("pg_dump".to_owned(), postgres.dump(&url).await));
    run.outputs.push(("redis".to_owned(), redis.dump().await));
    assert!(
        run.has_argument("pg_dump") && run.has_argument("redis"),
        "the search finds what is there"
    );
    run.check();
}
