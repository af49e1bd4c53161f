//! Requests that stand alone in front of several replicas.

use serde_json::json;
use testkit::TestCluster;

use super::Modern;
use crate::{cluster::two, text_of};

fn at(cluster: &TestCluster, replica: usize, key: &str) -> Modern {
    Modern::at(cluster.replicas()[replica].http_address(), "/mcp", json!({"elicitation": {}})).bearer(key)
}

#[tokio::test]
async fn br_03_a_request_is_gone_on_with_at_either_replica() {
    let (cluster, ledger, key) = two().await;
    for (asked, answered) in [(0, 1), (1, 0)] {
        let arguments = json!({"key": format!("k{asked}")});
        let required = at(&cluster, asked, &key).call("b__ask", arguments.clone()).await;
        let input = required["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        let answer = json!({input: {"action": "accept", "content": {"word": "yes"}}});
        let there = at(&cluster, answered, &key);
        let done = there.retry("b__ask", arguments.clone(), &required["requestState"], answer.clone()).await;
        assert!(text_of(&done["result"]).ends_with("told \"yes\""), "{done}");
        let again = there.retry("b__ask", arguments, &required["requestState"], answer).await;
        assert_eq!(again["error"]["code"], -32602, "{again}");
        assert_eq!(ledger.results(&format!("k{asked}")).len(), 1, "the effect came once");
    }
}

#[tokio::test]
async fn br_03_a_request_whose_replica_died_is_expired() {
    let (mut cluster, ledger, key) = two().await;
    let arguments = json!({"key": "lost"});
    let required = at(&cluster, 0, &key).call("b__ask", arguments.clone()).await;
    let input = required["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let answer = json!({input: {"action": "decline"}});
    cluster.kill(0).await;
    let there = at(&cluster, 1, &key);
    let expired = there.retry("b__ask", arguments.clone(), &required["requestState"], answer).await;
    assert_eq!(expired["error"]["code"], -32602, "{expired}");
    assert!(expired["error"]["message"].as_str().unwrap().contains("expired"));
    let anew = there.call("b__ask", arguments).await;
    assert_eq!(anew["resultType"], "input_required", "and can be begun anew");
    assert!(ledger.results("lost").len() <= 2);
}
