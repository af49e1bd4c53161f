//! Tokens of authorization servers: the access that each gives, over every listener (MCP,
//! Authorization: the MCP server's side).

mod adapted;
mod bound;
mod expiry;
mod introspection;
mod keys;
mod metadata;
mod operators;
mod refusals;
pub(crate) mod reload;
mod revocation;
mod secrecy;
mod sessions;
mod stored;
mod wires;

use serde_json::{Value, json};
use testkit::{
    AuthorizationServer, BrokerBuilder, FakeBackend, TestBroker, TestClient, authorization::now,
    eventually,
};

use crate::{builder, initialize_body, restarts::back};

/// Path of the metadata of the resource.
const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";
/// Longer than the clocks of an issuer and of the broker may differ, in seconds.
const LEEWAY: i64 = 60;

/// Returns a broker that accepts tokens of `server` for tenant `acme`, and an echo backend `b` of
/// that tenant.
pub(crate) fn guarded(
    server: &AuthorizationServer,
    backend: &FakeBackend,
    more: Value,
) -> BrokerBuilder {
    // Tests of access fail more often than a client would.
    let unlimited = json!({"limits": {"sign_in_failures_per_minute": 0}});
    let builder = builder()
        .config(unlimited)
        .auth_required()
        .admin_token("operator-of-tests")
        .config(server.config("acme", more));
    builder.tenant("acme").backend("acme", "b", backend.spec())
}

async fn started() -> (TestBroker, AuthorizationServer, FakeBackend) {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    (guarded(&server, &backend, json!({})).start().await, server, backend)
}

/// Returns the end of a token that is good for so many seconds, the difference of clocks included.
fn ending_in(seconds: i64) -> Value {
    json!({"exp": now().checked_add_signed(seconds - LEEWAY).unwrap()})
}

fn client(broker: &TestBroker, token: &str) -> TestClient {
    broker.client("/mcp").bearer(token)
}

/// Returns a client of the same session with another token.
fn with_token(broker: &TestBroker, client: &TestClient, token: &str) -> TestClient {
    back(broker, client).bearer(token)
}

/// Returns the status of an `initialize` with a token.
pub(crate) async fn status(broker: &TestBroker, token: &str) -> u16 {
    client(broker, token).post(initialize_body("2025-11-25")).await.status
}

pub(crate) async fn until_status(broker: &TestBroker, token: &str, wanted: u16) {
    eventually(&format!("the status {wanted}"), || async {
        match status(broker, token).await {
            found if found == wanted => Ok(()),
            found => Err(found),
        }
    })
    .await;
}
