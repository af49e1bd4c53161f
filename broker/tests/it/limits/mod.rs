//! Limits of rates by scope, connections and load, over every wire and over replicas. Tests are
//! named after their faults and promises.

mod connections;
mod notifications;
mod overload;
pub(crate) mod replicas;
mod scopes;
mod shared_permits;
mod sizes;
mod wires;

use serde_json::{Value, json};
use testkit::{RawResponse, TestBroker};

use crate::{kind, refused};

/// Returns a key of this principal.
async fn key_of(broker: &TestBroker, tenant: &str, principal: &str) -> String {
    let (status, body) = broker
        .admin()
        .post(&format!("/admin/v1/tenants/{tenant}/keys"), &json!({"principal": principal}))
        .await;
    assert_eq!(status, 201, "{body}");
    body["key"].as_str().unwrap().to_owned()
}

/// Checks the refusal of a rate, which is the same on every wire.
#[track_caller]
fn assert_rate_limited(error: &Value, scope: &str) {
    assert_eq!((&error["code"], kind(error)), (&json!(1003), "rate_limited"), "{error}");
    assert_eq!(
        (&error["data"]["refusalCode"], &error["data"]["retryable"]),
        (&json!(1003), &json!(true)),
        "{error}"
    );
    assert_eq!(error["data"]["scope"], scope, "{error}");
    let wait = error["data"]["retryAfterMs"]
        .as_u64()
        .unwrap_or_else(|| panic!("a time to come back: {error}"));
    assert!((1..=1_000).contains(&wait), "{error}");
}

/// Checks the refusal of a rate on HTTP.
async fn assert_too_many_requests(response: RawResponse, scope: &str) {
    assert_eq!(response.header("retry-after"), Some("1"), "whole seconds, rounded up");
    let (status, error) = refused(response).await;
    assert_eq!(status, 429);
    assert_rate_limited(&error, scope);
}
