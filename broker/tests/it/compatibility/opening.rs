//! The opening requests of a client, and pings of both sides.

use serde_json::{Value, json};

use super::{Cell, Found, Pair, REVISIONS, STATELESS, ensure, features, refused};

pub(super) async fn handshake(pair: &Pair) -> Found {
    let opened = &pair.client.opened;
    let info = if pair.is_modern_client() {
        ensure(opened["supportedVersions"] == json!(REVISIONS), || format!("versions: {opened}"))?;
        ensure(opened["ttlMs"].is_u64() && opened["cacheScope"] == "private", || {
            format!("no hint: {opened}")
        })?;
        &opened["_meta"]["io.modelcontextprotocol/serverInfo"]
    } else {
        ensure(opened["protocolVersion"] == REVISIONS[pair.client_of()], || {
            format!("another revision: {opened}")
        })?;
        &opened["serverInfo"]
    };
    let of = REVISIONS
        .iter()
        .position(|revision| pair.name.starts_with(&super::name_of(revision)))
        .expect("a revision");
    ensure(*info == features::server_info(of), || format!("another server: {opened}"))?;
    ensure(opened["instructions"] == "be modern", || format!("no instructions: {opened}"))?;
    let capabilities = &opened["capabilities"];
    ensure(capabilities["resources"] == json!({"subscribe": true, "listChanged": true}), || {
        format!("{capabilities}")
    })?;
    ensure(
        capabilities.get("tasks").is_none() || REVISIONS[pair.client_of()] == "2025-11-25",
        || format!("{capabilities}"),
    )?;
    Ok(pair.by_era())
}

pub(super) async fn ping(pair: &Pair) -> Found {
    let answer = pair.client.request("ping", json!({})).await;
    match answer.message.get("error") {
        Some(error) => refused(error),
        None => {
            ensure(answer.message["result"] == json!({}), || answer.text.clone())?;
            Ok(Cell::Same)
        }
    }
}

pub(super) async fn ping_of_the_backend(pair: &Pair) -> Found {
    if pair.is_modern_back() {
        return Ok(Cell::Absent);
    }
    let answer = pair.client.call("ask", json!({"method": "ping", "params": {}})).await;
    let received: Value =
        serde_json::from_str(answer.text_result()?).map_err(|error| error.to_string())?;
    ensure(received == json!({"result": {}}), || received.to_string())?;
    ensure(pair.client.requests_received().is_empty(), || "the client was asked".to_owned())?;
    Ok(Cell::Same)
}

/// Tests methods that 2026-07-28 removed.
pub(super) async fn removed_methods(pair: &Pair) -> Found {
    if !pair.is_modern_client() {
        return Ok(Cell::Absent);
    }
    let mut found = Ok(Cell::Absent);
    for (method, params) in [
        ("logging/setLevel", json!({"level": "info"})),
        ("resources/subscribe", json!({"uri": "test://r/0"})),
        ("resources/unsubscribe", json!({"uri": "test://r/0"})),
        ("tasks/list", json!({})),
        ("tasks/result", json!({"taskId": "t"})),
    ] {
        let answer = pair.client.request(method, params).await;
        found = refused(answer.message.get("error").ok_or_else(|| answer.text.clone())?);
        ensure(found == Ok(Cell::Refused(-32601, "method_not_found".to_owned())), || {
            format!("{method}: {}", answer.text)
        })?;
    }
    found
}

/// Tests the notification of changed roots, which 2026-07-28 removed.
pub(super) async fn roots_changed(pair: &Pair) -> Found {
    if pair.is_modern_client() {
        return Ok(Cell::Absent);
    }
    // A call comes first, so that there is a link to notify.
    pair.client.call("say", json!({"result": r#"{"content":[]}"#})).await.result()?;
    pair.client.notify("notifications/roots/list_changed", json!({})).await;
    if pair.is_modern_back() {
        pair.client.call("say", json!({"result": r#"{"content":[]}"#})).await.result()?;
        ensure(pair.back.seen_of("notifications/roots/list_changed").is_empty(), || {
            format!("{STATELESS} has no such notification")
        })?;
        return Ok(Cell::Absent);
    }
    pair.back.wait_for("the change", |seen| seen.is("notifications/roots/list_changed")).await;
    Ok(Cell::Same)
}
