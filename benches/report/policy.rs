//! Compares calls and lists under a large access policy with those of a tenant without one.

use anyhow::ensure;
use benches::Scale;
use loadtest::backend::{Backend, BackendOptions};
use serde_json::{Value, json};
use testkit::TestBroker;

use crate::{
    crowd,
    lists::request_of,
    repeated::{CONNECTIONS, compared, in_turns},
    testbed::{TestBed, behind, broker, of_broker},
};

pub(crate) async fn table(ground: &TestBed, scale: Scale) -> anyhow::Result<String> {
    let (rules, tools) = scale.of((1_000, 5_000), (10, 50));
    let many = Backend::http(
        "127.0.0.1:0",
        &BackendOptions { tools: tools - 1, ..BackendOptions::default() },
    )
    .await?;
    let (open, open_key) = tenant(ground, &many).await?;
    let (ruled, ruled_key) = tenant(ground, &many).await?;
    let path = "/admin/v1/tenants/default/policy";
    let (status, answer) = ruled.admin().put(path, &policy(rules)).await;
    ensure!(status == 201, "{answer}");

    let names = ["without a policy", "with a policy"];
    let ways = [of_broker(names[0], &open, &open_key), of_broker(names[1], &ruled, &ruled_key)];
    let calls = crowd::compared(&ways, scale).await?;
    let (without, body) = request_of(&open, &open_key, "many").await?;
    let (with, body_with) = request_of(&ruled, &ruled_key, "many").await?;
    ensure!(body.len() == body_with.len(), "the policy allows every tool");
    let figures = in_turns(&[without, with], scale).await?;
    let table = compared(["broker", "lists/s", "CPU a list"], names, &figures);
    let text = format!(
        "Calls of 256 B and first pages of `tools/list`, over {CONNECTIONS} connections, with {tools} tools. The policy has {rules} rules, which name other principals."
    );
    Ok(format!("### Access policies\n\n{text}\n\n{calls}\n{table}\n"))
}

/// Starts a broker with the fast backend and the one of many tools.
async fn tenant(ground: &TestBed, many: &Backend) -> anyhow::Result<(TestBroker, String)> {
    let broker = broker(json!({})).await?;
    let admin = broker.admin();
    admin.put_ready_backend("default", "fast", &behind(&ground.backend)).await;
    admin.put_ready_backend("default", "many", &behind(many)).await;
    let key = admin.create_key("default").await;
    Ok((broker, key))
}

fn policy(rules: usize) -> Value {
    let rule = |number: usize| {
        json!({
            "id": format!("r{number}"),
            "effect": if number.is_multiple_of(2) { "allow" } else { "deny" },
            "subjects": {"principals": [format!("p{}", number % 50)]},
            "objects": {"tools": [format!("many/tool_{number}*"), "fast/*"]},
        })
    };
    json!({"rules": (0..rules).map(rule).collect::<Vec<_>>()})
}
