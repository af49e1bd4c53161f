//! Lists: their entries, their pages, and their changes.

use serde_json::{Value, json};
use testkit::eventually;

use super::{Cell, Found, Of, Pair, REVISIONS, ensure, features, refused};

fn back_of(pair: &Pair) -> Of {
    REVISIONS
        .iter()
        .position(|revision| pair.name.starts_with(&super::name_of(revision)))
        .expect("a revision")
}

/// Returns the first page of a list.
async fn first_page(pair: &Pair, method: &str) -> Result<Value, String> {
    let answer = pair.client.request(method, json!({})).await;
    let result = answer.result()?.clone();
    let is_hinted = result["ttlMs"].is_u64()
        && result["cacheScope"].is_string()
        && result["resultType"] == "complete";
    let is_bare =
        ["ttlMs", "cacheScope", "resultType"].iter().all(|key| result.get(*key).is_none());
    ensure(if pair.is_modern_client() { is_hinted } else { is_bare }, || {
        format!("the form of a result: {}", answer.text)
    })?;
    Ok(result)
}

async fn entry(pair: &Pair, method: &str, member: &str) -> Found {
    let page = first_page(pair, method).await?;
    let wanted = features::entries(member, back_of(pair))[0].clone();
    let key = if wanted.get("uri").is_some() { "uri" } else { "name" };
    let entries = page[member].as_array().ok_or_else(|| page.to_string())?;
    let mut found = entries
        .iter()
        .find(|entry| entry[key] == wanted[key])
        .ok_or("it is not in the list")?
        .clone();
    if found == wanted {
        return Ok(Cell::Same);
    }
    // The broker offers every tool as a task to clients that know tasks.
    let offered = found.as_object_mut().expect("an object").remove("execution");
    ensure(found == wanted && offered == Some(json!({"taskSupport": "optional"})), || {
        format!("{found} instead of {wanted}")
    })?;
    Ok(Cell::Translated)
}

pub(super) async fn tools(pair: &Pair) -> Found {
    entry(pair, "tools/list", "tools").await
}

pub(super) async fn prompts(pair: &Pair) -> Found {
    entry(pair, "prompts/list", "prompts").await
}

pub(super) async fn resources(pair: &Pair) -> Found {
    entry(pair, "resources/list", "resources").await
}

pub(super) async fn templates(pair: &Pair) -> Found {
    entry(pair, "resources/templates/list", "resourceTemplates").await
}

/// Checks that every entry is there once and in order, over as many pages as it takes.
pub(super) async fn pages(pair: &Pair) -> Found {
    let (mut uris, mut params, mut pages) = (Vec::new(), json!({}), 0);
    loop {
        let page = pair.client.request("resources/list", params).await;
        let page = page.result()?;
        uris.extend(
            page["resources"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|entry| entry["uri"].as_str().unwrap_or("").to_owned()),
        );
        pages += 1;
        match page.get("nextCursor") {
            Some(cursor) => params = json!({"cursor": cursor}),
            None => break,
        }
    }
    let wanted: Vec<String> =
        (0..features::RESOURCES).map(|number| format!("test://r/{number}")).collect();
    ensure(uris.iter().filter(|uri| uri.starts_with("test://r/")).eq(&wanted), || {
        format!("{uris:?}")
    })?;
    ensure(pages == 2, || format!("{pages} pages"))?;
    Ok(Cell::Same)
}

pub(super) async fn foreign_cursor(pair: &Pair) -> Found {
    let answer = pair.client.request("tools/list", json!({"cursor": "page:40"})).await;
    refused(answer.message.get("error").ok_or_else(|| answer.text.clone())?)
}

/// Tests an output schema that is not an object, which only 2026-07-28 has.
pub(super) async fn other_output_schema(pair: &Pair) -> Found {
    if !pair.is_modern_back() {
        return Ok(Cell::Absent);
    }
    let schema = json!({"type": "array", "items": {"type": "number"}});
    let entry = json!({"name": "other", "inputSchema": {"type": "object"}, "outputSchema": schema});
    pair.back.add("tools", back_of(pair), entry.clone()).await;
    let found = wait_listed(pair, "tools/list", "tools", "name", "other").await?;
    match found.get("outputSchema") {
        Some(found) if *found == schema => Ok(Cell::Same),
        None => Ok(Cell::Translated),
        Some(other) => Err(other.to_string()),
    }
}

/// Reads the list until it holds the entry whose `key` has this value.
pub(super) async fn wait_listed(
    pair: &Pair,
    method: &str,
    member: &str,
    key: &str,
    value: &str,
) -> Result<Value, String> {
    eventually("the entry in the list", || async {
        find_listed(pair, method, member, key, value).await.transpose().ok_or("it is not listed")
    })
    .await
}

/// Returns the entry whose `key` has this value, if a page of the list holds it.
async fn find_listed(
    pair: &Pair,
    method: &str,
    member: &str,
    key: &str,
    value: &str,
) -> Result<Option<Value>, String> {
    let mut params = json!({});
    loop {
        let page = pair.client.request(method, params).await;
        let page = page.result()?;
        let mut entries = page[member].as_array().into_iter().flatten();
        if let Some(found) = entries.find(|entry| entry[key] == value) {
            return Ok(Some(found.clone()));
        }
        match page.get("nextCursor") {
            Some(cursor) => params = json!({"cursor": cursor}),
            None => return Ok(None),
        }
    }
}

async fn changed(pair: &Pair, list: &'static str, entry: Value) -> Found {
    let (key, method) = if list == "resources" {
        ("uri", "resources/list")
    } else {
        ("name", if list == "tools" { "tools/list" } else { "prompts/list" })
    };
    let notification = format!("notifications/{list}/list_changed");
    let listening = if pair.is_modern_client() {
        let filter = json!({format!("{list}ListChanged"): true});
        let listening = pair
            .client
            .start_request("subscriptions/listen", json!({"notifications": filter}))
            .await;
        pair.client
            .wait_for_message("the acknowledgement", |message| {
                message["method"] == "notifications/subscriptions/acknowledged"
            })
            .await;
        Some(listening)
    } else {
        None
    };
    if !pair.is_modern_back() {
        pair.client.call("say", json!({"result": r#"{"content":[]}"#})).await.result()?;
    }
    pair.back.add(list, back_of(pair), entry.clone()).await;
    let received = pair
        .client
        .wait_for_message("the change", |message| message["method"] == notification.as_str())
        .await;
    if let Some(listening) = listening {
        let id = &received["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"];
        ensure(*id == json!(listening.id), || received.to_string())?;
        pair.client.cancel(listening.id).await;
    } else {
        ensure(!received.to_string().contains("subscriptionId"), || received.to_string())?;
    }
    let value = entry[key].as_str().expect("a name");
    wait_listed(pair, method, list, key, value).await?;
    Ok(pair.by_era())
}

pub(super) async fn tools_changed(pair: &Pair) -> Found {
    changed(pair, "tools", json!({"name": "added", "inputSchema": {"type": "object"}})).await
}

pub(super) async fn prompts_changed(pair: &Pair) -> Found {
    changed(pair, "prompts", json!({"name": "added"})).await
}

pub(super) async fn resources_changed(pair: &Pair) -> Found {
    changed(pair, "resources", json!({"uri": "test://added", "name": "added"})).await
}
