//! The log filter that an operator sets for a time on a running broker.

use serde_json::{Value, json};
use testkit::{AdminClient, TestBroker, eventually};

use crate::{builder, tokens::reload::reload};

const LOG: &str = "/admin/v1/log";
/// Logged at `debug` for a request that the role does not permit.
const REFUSED: &str = "an admin request is refused";

async fn start() -> TestBroker {
    builder()
        .single_process()
        .admin_token("an-admin-token-of-a-test")
        .config(json!({"telemetry": {"log": "info"}}))
        .start()
        .await
}

async fn set(admin: &AdminClient, body: Value) -> Value {
    let (status, view) = admin.put(LOG, &body).await;
    assert_eq!(status, 200, "{view}");
    view
}

async fn viewer(admin: &AdminClient) -> AdminClient {
    let body = json!({"name": "vera", "role": "viewer"});
    let (_, made) = admin.post("/admin/v1/operators", &body).await;
    admin.with_token(made["token"].as_str())
}

async fn wait_for_filter(admin: &AdminClient, wanted: &str) -> Value {
    eventually("the log filter", || async {
        let (_, view) = admin.get(LOG).await;
        if view["filter"] == wanted { Ok(view) } else { Err(view) }
    })
    .await
}

#[tokio::test]
async fn a_log_filter_is_in_force_at_once_and_ends_at_its_time() {
    let broker = start().await;
    let admin = broker.admin();
    let viewer = viewer(&admin).await;
    let (status, before) = viewer.get(LOG).await;
    assert_eq!(
        (status, &before["filter"], &before["configured"]),
        (200, &json!("info"), &json!("info"))
    );
    assert!(before.get("remaining_seconds").is_none() && before["node"].is_string(), "{before}");
    assert_eq!(viewer.put(LOG, &json!({"filter": "debug"})).await.0, 403);
    assert!(!broker.log().contains(REFUSED));

    let view = set(&admin, json!({"filter": "info,broker=debug"})).await;
    assert_eq!(view["filter"], "info,broker=debug");
    let remaining = view["remaining_seconds"].as_u64().unwrap();
    assert!((590..=600).contains(&remaining), "ten minutes by default: {view}");
    assert_eq!(viewer.put(LOG, &json!({"filter": "debug"})).await.0, 403);
    broker.wait_for_log(REFUSED).await;

    set(&admin, json!({"filter": "warn", "for": "1s"})).await;
    let view = wait_for_filter(&viewer, "info").await;
    assert!(view.get("remaining_seconds").is_none(), "{view}");

    let (_, audit) = admin.get("/admin/v1/audit?kind=admin&order=newest").await;
    let record = audit["records"]
        .as_array()
        .unwrap()
        .iter()
        .find(|record| record["action"] == "PUT /admin/v1/log" && record["outcome"] == "ok");
    let record = record.unwrap_or_else(|| panic!("{audit}"));
    assert_eq!(record["before"], json!({"filter": "info,broker=debug"}), "{record}");
    assert_eq!(record["after"], json!({"filter": "warn", "for": "1s"}), "{record}");
}

#[tokio::test]
async fn a_reload_with_another_filter_and_a_reset_end_the_filter_of_an_operator() {
    let broker = start().await;
    let admin = broker.admin();
    set(&admin, json!({"filter": "info,broker=debug", "for": "24h"})).await;
    reload(&broker, |config| config["tenants"] = json!({"acme": {}})).await;
    let (_, view) = admin.get(LOG).await;
    assert_eq!(view["filter"], "info,broker=debug", "the configured filter has not changed");
    reload(&broker, |config| config["telemetry"]["log"] = json!("info,hyper=warn")).await;
    let (_, view) = admin.get(LOG).await;
    let filters = [&view["filter"], &view["configured"]];
    assert_eq!(filters, ["info,hyper=warn"; 2], "{view}");
    assert!(view.get("remaining_seconds").is_none(), "{view}");

    set(&admin, json!({"filter": "error", "for": "1h"})).await;
    let (status, view) = admin.delete(LOG).await;
    assert_eq!((status, &view["filter"]), (200, &json!("info,hyper=warn")));
    assert_eq!(admin.delete(LOG).await.0, 200, "there is nothing to reset");
}

#[tokio::test]
async fn an_invalid_log_filter_is_refused_with_what_is_allowed() {
    let broker = start().await;
    let admin = broker.admin();
    for (body, field, allowed) in [
        (json!({"filter": "loud"}), "filter", "a level (error, warn, info, debug, trace)"),
        (json!({"filter": "broker=loud"}), "filter", "a level (error, warn, info, debug, trace)"),
        (json!({"filter": " "}), "filter", "a level"),
        (json!({"filter": "a=debug,".repeat(200)}), "filter", "at most 1024"),
        (json!({"filter": "debug", "for": "25h"}), "for", "a duration from 1s to 24h"),
        (json!({"filter": "debug", "for": "1ms"}), "for", "a duration from 1s to 24h"),
        (json!({"filter": "debug", "until": "1h"}), "until", "filter"),
        (json!({"for": "1h"}), "filter", ""),
    ] {
        let (status, problem) = admin.put(LOG, &body).await;
        assert_eq!((status, &problem["field"]), (400, &json!(field)), "{body}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(allowed), "{body}: {problem}");
    }
    assert_eq!(admin.get(LOG).await.1["filter"], "info");
}

#[tokio::test]
async fn the_shell_sets_shows_and_resets_the_log_filter() {
    let broker = start().await;
    let set = broker.cli(&["log", "set", "info,broker=debug", "--for", "5m", "--json"]).await;
    let view: Value = serde_json::from_str(&set.stdout).unwrap();
    assert_eq!(view["filter"], "info,broker=debug", "{set:?}");
    let shown = broker.cli(&["log", "show"]).await;
    assert!(shown.stdout.contains("info,broker=debug"), "{shown:?}");
    let wrong = broker.cli(&["log", "set", "loud"]).await;
    assert_eq!(wrong.code, Some(1), "{wrong:?}");
    assert!(wrong.stderr.contains("is not a log filter"), "{wrong:?}");
    assert_eq!(broker.cli(&["log", "reset"]).await.code, Some(0));
    wait_for_filter(&broker.admin(), "info").await;
}
