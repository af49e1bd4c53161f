//! Lists of backends that give each user other tools: whose tokens fetch them, who sees them, and what
//! stands for them before a user comes.

use futures_util::future::join_all;
use serde_json::{Value, json};
use testkit::{AuthorizationServer, Reply, TestBroker, TestClient, eventually};

use crate::{
    accounts::{Browser, World, call, parameter},
    builder, kind,
    oauth_exchange::{Protected, broker_for, member, payload},
    restarts::back,
    stateless::Modern,
    text_of,
};

fn tool(name: &str) -> Value {
    json!({"name": name, "inputSchema": {"type": "object"}})
}

/// A backend that shows `shared` to all users, and `only-of-USER` to each.
async fn personal() -> Protected {
    let protected = Protected::start(|request| {
        Some(payload(&member(request, "subject_token")?)["sub"].as_str()?.to_owned())
    })
    .await;
    show(&protected, "only-of");
    protected
}

fn show(protected: &Protected, prefix: &'static str) {
    protected.backend.on("tools/list", move |call| async move {
        let header = call.headers.get("authorization").and_then(|text| text.to_str().ok());
        let user = header.and_then(|text| text.strip_prefix("Bearer for-")?.split('-').next());
        let user = user.expect("a token of a user").to_owned();
        Reply::Result(json!({"tools": [tool("shared"), tool(&format!("{prefix}-{user}"))]}))
    });
}

/// Returns the names of the tools that a client without a session sees.
async fn listed(client: &Modern) -> Vec<String> {
    let result = client.result("tools/list", json!({})).await;
    let tools = result["tools"].as_array().expect("a list").iter();
    tools.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn lists_of_one_user_are_never_shown_to_another() {
    let protected = personal().await;
    let issuer = AuthorizationServer::start().await;
    let auth = json!({"type": "token_exchange", "catalog_auth": "per_principal"});
    let mut broker = broker_for(&issuer, true, &protected.spec(auth)).await;
    let key = broker.admin().create_key("default").await;
    let tokens = ["ann", "bob"].map(|user| issuer.token(user));
    let wanted = ["ann", "bob"].map(|user| {
        ["shared".to_owned(), format!("only-of-{user}")].map(|name| format!("b__{name}"))
    });

    // The first requests of both come at once, in both eras.
    let first = join_all(tokens.iter().map(|token| {
        let modern = Modern::of(&broker, "/mcp").bearer(token);
        async move { listed(&modern).await }
    }));
    let opened = join_all(
        tokens.iter().map(|token| broker.client("/mcp").bearer(token).connected(json!({}))),
    );
    let (first, clients) = tokio::join!(first, opened);
    let stranger = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    for (names, wanted) in first.iter().zip(&wanted) {
        assert_eq!(names, wanted);
    }
    for _ in 0..10 {
        let lists = join_all(clients.iter().map(TestClient::tool_names)).await;
        assert_eq!(lists, wanted);
        let moderns = tokens.iter().map(|token| Modern::of(&broker, "/mcp").bearer(token));
        let moderns: Vec<_> = moderns.collect();
        assert_eq!(join_all(moderns.iter().map(listed)).await, wanted);
        assert_eq!(stranger.tool_names().await, ["b__connect"]);
    }
    let answer = call(&stranger, "b__connect").await;
    assert!(answer["isError"] == true && text_of(&answer).contains("access token"), "{answer}");
    let own = broker.client("/mcp/b").bearer(&tokens[1]).connected(json!({})).await;
    assert_eq!(own.tool_names().await, ["shared", "only-of-bob"]);

    // A user can call its own tools only.
    assert_ne!(call(&clients[0], "b__only-of-ann").await["isError"], true);
    let arguments = json!({"name": "b__only-of-bob", "arguments": {}});
    assert_eq!(kind(&clients[0].error("tools/call", arguments.clone()).await), "tool_not_found");
    let modern = Modern::of(&broker, "/mcp").bearer(&tokens[0]);
    assert_eq!(kind(&modern.error("tools/call", arguments).await), "tool_not_found");

    // The backend announces a change on the link of a session. Only its user is notified.
    let mut answer = clients[0].open_get_stream().await;
    answer.next().await;
    show(&protected, "new-of");
    eventually("an open stream of the backend", || async {
        match protected.backend.notify("notifications/tools/list_changed", json!({})).await {
            0 => Err("none"),
            _ => Ok(()),
        }
    })
    .await;
    answer.find(|message| message["method"] == "notifications/tools/list_changed").await;
    clients[0].wait_tools(&["b__shared", "b__new-of-ann"]).await;
    assert_eq!(listed(&modern).await, ["b__shared", "b__new-of-ann"]);

    // After a restart the lists are read again, each with the token of its user.
    drop(answer);
    broker.kill().await;
    broker.restart().await;
    let ann = back(&broker, &clients[0]).bearer(&tokens[0]);
    let bob = back(&broker, &clients[1]).bearer(&tokens[1]);
    ann.wait_tools(&["b__shared", "b__new-of-ann"]).await;
    bob.wait_tools(&["b__shared", "b__new-of-bob"]).await;
    back(&broker, &stranger).bearer(&key).wait_tools(&["b__connect"]).await;
    for (token, user) in tokens.iter().zip(["ann", "bob"]) {
        let modern = Modern::of(&broker, "/mcp").bearer(token);
        assert_eq!(listed(&modern).await, ["b__shared".to_owned(), format!("b__new-of-{user}")]);
    }
    let seen = protected.backend.recorded_of("tools/list");
    assert!(seen.iter().all(|one| one.header("authorization").unwrap().starts_with("Bearer for-")));
}

#[tokio::test]
async fn a_backend_that_fails_for_one_user_keeps_its_listed_tools() {
    let protected = personal().await;
    let issuer = AuthorizationServer::start().await;
    let auth = json!({"type": "token_exchange", "catalog_auth": "per_principal"});
    let broker = broker_for(&issuer, true, &protected.spec(auth)).await;
    let client = broker.client("/mcp").bearer(&issuer.token("ann")).connected(json!({})).await;
    client.wait_tools(&["b__shared", "b__only-of-ann"]).await;
    protected.backend.on("tools/list", |_| async { Reply::status(503) });
    // An operator has the lists read again.
    let (status, _) =
        broker.admin().post("/admin/v1/tenants/default/backends/b/probe", &json!({})).await;
    assert!((200..300).contains(&status), "{status}");
    eventually("the failure", || async {
        let view = broker.admin().backend("default", "b").await;
        if view["last_error"].is_null() { Err(view) } else { Ok(()) }
    })
    .await;
    assert_eq!(client.tool_names().await, ["b__shared", "b__only-of-ann"]);
    // A user whose first lists cannot be read sees what stands for them, and an unknown name does not
    // prove that the tool does not exist.
    let other = broker.client("/mcp").bearer(&issuer.token("bob")).connected(json!({})).await;
    assert_eq!(other.tool_names().await, ["b__connect"]);
    let arguments = json!({"name": "b__shared", "arguments": {}});
    assert_eq!(kind(&other.error("tools/call", arguments).await), "backend_unavailable");
}

#[tokio::test]
async fn a_user_sees_its_own_lists_once_its_account_is_connected() {
    let world = World::start(3600).await;
    world.backend.list("prompts", vec![json!({"name": "hello"})]);
    let broker = builder().single_process().start().await;
    let mut spec = world.spec();
    spec["auth"]["catalog_auth"] = json!("per_principal");
    assert_eq!(broker.admin().put_backend("default", "b", &spec).await.0, 201);
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let client = broker.connected(json!({"elicitation": {"url": {}}})).await;
    let modern = Modern::of(&broker, "/mcp").with(json!({"elicitation": {"url": {}}}));
    assert_eq!(client.tool_names().await, ["b__connect"]);
    assert_eq!(listed(&modern).await, ["b__connect"]);
    assert_eq!(client.list_all("prompts/list", "prompts").await, [json!(null); 0]);
    let asked = modern.answer("tools/call", json!({"name": "b__connect", "arguments": {}})).await;
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    let error = client.error("tools/call", json!({"name": "b__connect", "arguments": {}})).await;
    let id = error["data"]["elicitations"][0]["elicitationId"].clone();
    let mut events = client.open_get_stream().await;
    events.next().await;
    assert_eq!(Browser::new(&broker).connect().await, 200);
    events
        .find(|message| {
            message["method"] == "notifications/elicitation/complete"
                && message["params"]["elicitationId"] == id
        })
        .await;
    client.wait_tools(&["b__echo"]).await;
    // The session was opened before, and sees the prompts too.
    assert_eq!(client.list_all("prompts/list", "prompts").await[0]["name"], "b__hello");
    assert_eq!(listed(&modern).await, ["b__echo"]);
    // Both clients repeat the call that asked for the account.
    let again = call(&client, "b__connect").await;
    assert!(text_of(&again).contains("is connected"), "{again}");
    let requests = asked["result"]["inputRequests"].as_object().unwrap();
    let answers: serde_json::Map<String, Value> =
        requests.keys().map(|key| (key.clone(), json!({"action": "accept"}))).collect();
    let state = &asked["result"]["requestState"];
    let again = modern.retry("b__connect", json!({}), state, Value::Object(answers)).await;
    assert!(text_of(&again["result"]).contains("is connected"), "{again}");
    assert_ne!(call(&client, "b__echo").await["isError"], true);
    let own = broker.client("/mcp/b").connected(json!({})).await;
    let again = call(&own, "connect").await;
    assert!(text_of(&again).contains("is connected"), "{again}");

    // After the end of the connection the tools stay, and lead to the page.
    let path = "/admin/v1/tenants/default/connections/anonymous/b";
    let tested = || async { broker.admin().post(&format!("{path}/test"), &json!({})).await };
    assert_eq!(tested().await, (200, json!({"ok": true})));
    let printed = broker.cli(&["connection", "test", "anonymous", "b"]).await;
    assert!(printed.stdout.contains("accepts the account"), "{printed:?}");
    assert_eq!(broker.admin().delete(path).await.0, 204);
    eventually("the end", || async {
        let events = call(&own, "echo").await;
        if events.to_string().contains("/connect/b") { Ok(()) } else { Err(events) }
    })
    .await;
    assert_eq!(client.tool_names().await, ["b__echo"]);
    let again = call(&own, "connect").await;
    assert!(again.to_string().contains("/connect/b"), "{again}");
    let (status, events) = tested().await;
    assert_eq!((status, &events["ok"]), (200, &json!(false)));
    assert!(events["error"].as_str().unwrap().contains("no account"), "{events}");
}

/// Returns a browser that is signed in as this principal.
async fn browser_of(broker: &TestBroker, principal: &str) -> Browser {
    let path = "/admin/v1/tenants/default/connections";
    let wanted = json!({"principal": principal, "backend": "b"});
    let (status, link) = broker.admin().post(path, &wanted).await;
    assert_eq!(status, 201, "{link}");
    let secret = parameter(link["url"].as_str().unwrap(), "link").unwrap();
    let browser = Browser::new(broker);
    assert_eq!(browser.send("POST", "/connect", &format!("link={secret}")).await.status, 303);
    browser
}

/// The oldest grant is for the earlier URL. Another replica may still use it.
#[tokio::test]
async fn after_a_change_of_the_url_the_first_user_of_the_new_one_fetches_the_lists() {
    let world = World::start(3600).await;
    let broker =
        builder().single_process().auth_required().admin_token("operator-of-tests").start().await;
    let admin = broker.admin();
    let mut spec = world.spec();
    assert_eq!(admin.put_backend("default", "b", &spec).await.0, 201);
    assert_eq!(browser_of(&broker, "ann").await.connect().await, 200);
    admin.wait_backend_state("default", "b", "ready").await;
    spec["transport"]["url"] = json!(format!("{}?moved=1", world.backend.url()));
    assert_eq!(admin.put_backend("default", "b", &spec).await.0, 200);
    admin.wait_backend_state("default", "b", "degraded").await;
    assert_eq!(browser_of(&broker, "bob").await.connect().await, 200);
    admin.wait_backend_state("default", "b", "ready").await;
    let (_, list) = admin.get("/admin/v1/tenants/default/connections").await;
    for (number, principal) in ["ann", "bob"].iter().enumerate() {
        let connection = &list["connections"][number];
        assert_eq!(connection["principal"], json!(principal), "{list}");
        assert_eq!(connection["state"], "connected", "{list}");
    }
}

fn declared() -> Value {
    json!({
        "tools": [{"name": "echo", "title": "Echo", "inputSchema": {"type": "object", "required": ["x"], "properties": {"x": {"type": "string"}}}, "annotations": {"readOnlyHint": true}}],
        "prompts": [{"name": "hello"}],
        "resource_templates": [{"name": "page", "uriTemplate": "page://{name}"}],
    })
}

#[tokio::test]
async fn lists_declared_by_an_operator_are_served_without_the_backend() {
    let world = World::start(3600).await;
    let mut broker = builder().single_process().start().await;
    let mut spec = world.spec();
    spec["auth"]["catalog_auth"] = json!("declared");
    spec["auth"]["catalog"] = declared();
    spec["tools"] = json!({"validate_arguments": true});
    broker.admin().put_ready_backend("default", "b", &spec).await;
    let view = broker.admin().backend("default", "b").await;
    assert_eq!((&view["tools"], &view["prompts"]), (&json!(1), &json!(1)), "{view}");
    let check = async |broker: &TestBroker| {
        let client = broker.connected(json!({})).await;
        assert_eq!(client.tool_names().await, ["b__echo"]);
        assert_eq!(listed(&Modern::of(broker, "/mcp")).await, ["b__echo"]);
        let templates = client.list_all("resources/templates/list", "resourceTemplates").await;
        assert_eq!(templates[0]["uriTemplate"], "b+page://{name}");
        client
    };
    let client = check(&broker).await;
    let wrong = client.error("tools/call", json!({"name": "b__echo", "arguments": {}})).await;
    assert_eq!(kind(&wrong), "arguments_invalid", "the declared schema applies: {wrong}");
    let params = json!({"name": "b__echo", "arguments": {"x": "y"}});
    let answer = client.result("tools/call", params.clone()).await;
    assert!(answer.to_string().contains("/connect/b"), "{answer}");
    assert_eq!(world.backend.recorded_of("tools/list").len(), 0);
    broker.kill().await;
    broker.restart().await;
    let client = check(&broker).await;
    assert_eq!(Browser::new(&broker).connect().await, 200);
    assert_ne!(client.result("tools/call", params).await["isError"], true);
    assert_eq!(world.backend.recorded_of("tools/list").len(), 0, "its lists are not read");
    // Other lists are announced.
    let mut answer = client.open_get_stream().await;
    answer.next().await;
    spec["auth"]["catalog"]["tools"][0]["name"] = json!("other");
    assert_eq!(broker.admin().put_backend("default", "b", &spec).await.0, 200);
    answer.find(|message| message["method"] == "notifications/tools/list_changed").await;
    client.wait_tools(&["b__other"]).await;
}

#[tokio::test]
async fn a_connect_tool_is_listed_for_a_backend_before_its_first_caller() {
    let protected = Protected::start(|request| {
        Some(payload(&member(request, "subject_token")?)["sub"].as_str()?.to_owned())
    })
    .await;
    let issuer = AuthorizationServer::start().await;
    let spec = protected.spec(json!({"type": "token_exchange"}));
    let broker = broker_for(&issuer, true, &spec).await;
    let key = broker.admin().create_key("default").await;
    let client = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    assert_eq!(client.tool_names().await, ["b__connect"]);
    assert_eq!(listed(&Modern::of(&broker, "/mcp").bearer(&key)).await, ["b__connect"]);
    let mut events = client.open_get_stream().await;
    events.next().await;
    // The first caller with a token waits for the lists, in both eras.
    let first = Modern::of(&broker, "/mcp").bearer(&issuer.token("ann"));
    assert_eq!(listed(&first).await, ["b__echo"]);
    events.find(|message| message["method"] == "notifications/tools/list_changed").await;
    client.wait_tools(&["b__echo"]).await;
}

#[tokio::test]
async fn the_broker_fetches_lists_with_its_own_token_if_permitted() {
    let protected = Protected::start(|request| match member(request, "subject_token") {
        Some(subject) => Some(payload(&subject)["sub"].as_str()?.to_owned()),
        None => Some("service".to_owned()),
    })
    .await;
    let issuer = AuthorizationServer::start().await;
    let spec = protected.spec(json!({"type": "token_exchange", "catalog_auth": "service"}));
    let broker = broker_for(&issuer, true, &spec).await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let key = broker.admin().create_key("default").await;
    let client = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    assert_eq!(client.tool_names().await, ["b__echo"]);
    let answer = call(&client, "b__echo").await;
    assert!(answer["isError"] == true && text_of(&answer).contains("access token"), "{answer}");
    let asked = protected.server.take_token_requests();
    assert!(
        asked.iter().all(|one| member(one, "grant_type").as_deref() == Some("client_credentials"))
    );
}
