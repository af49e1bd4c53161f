//! Approvals over two replicas on PostgreSQL.

use serde_json::json;
use testkit::{FakeBackend, TestCluster};

use super::{
    approval_of, bank, decide, id_of, key, pending, policy_requiring_approval,
    stateless::required,
    tasks::{outcome, start},
    to,
};
use crate::{builder, stateless::Modern, text_of};

struct Pair {
    cluster: TestCluster,
    backend: FakeBackend,
    key: String,
}

impl Pair {
    async fn start() -> Self {
        let backend = bank().await;
        let cluster = builder()
            .auth_required()
            .config(json!({"timeouts": {"call": "5s"}}))
            .backend("default", "b", backend.spec())
            .cluster(2)
            .start()
            .await;
        let key = key(&cluster.admin(0), "ann").await;
        let (status, answer) =
            cluster.admin(0).put(super::POLICY, &policy_requiring_approval(json!({}))).await;
        assert_eq!(status, 201, "{answer}");
        // The other replica has the policy within a second.
        testkit::eventually("the policy at the other replica", || async {
            let (status, answer) = cluster.admin(1).get(super::POLICY).await;
            if status == 200 { Ok(()) } else { Err(answer) }
        })
        .await;
        Self { cluster, backend, key }
    }

    fn modern(&self, replica: usize) -> Modern {
        let address = self.cluster.replicas()[replica].http_address();
        Modern::at(address, "/mcp", json!({})).bearer(&self.key)
    }

    fn sent(&self) -> usize {
        self.backend.count(|seen| seen.calls("send"))
    }
}

#[tokio::test]
async fn a_waiting_task_moves_to_the_other_replica_when_its_own_is_killed() {
    let mut pair = Pair::start().await;
    let client = pair.cluster.client_of(0, "/mcp").bearer(&pair.key).connected(json!({})).await;
    let task = start(&client, "ann").await;
    let id = id_of(&pending(&pair.cluster.admin(0), 1).await[0]);
    pair.cluster.kill(0).await;
    assert_eq!(decide(&pair.cluster.admin(1), &id, "approve").await.0, 200);
    let client = pair.cluster.client_of(1, "/mcp").bearer(&pair.key).connected(json!({})).await;
    let answer = outcome(&client, &task).await;
    assert_eq!((text_of(&answer["result"]), pair.sent()), ("sent ann", 1));
}

#[tokio::test]
async fn a_request_state_of_a_killed_replica_is_accepted_at_the_other_one() {
    let mut pair = Pair::start().await;
    let (state, id) = required(&pair.modern(0).call("b__send", to("ann")).await);
    pair.cluster.kill(0).await;
    let other = pair.modern(1);
    let admin = pair.cluster.admin(1);
    let retry = other.retry("b__send", to("ann"), &state, json!({}));
    let (answer, decided) = tokio::join!(retry, decide(&admin, &id, "approve"));
    assert_eq!((text_of(&answer["result"]), decided.0), ("sent ann", 200));
    assert_eq!(pair.sent(), 1);
}

#[tokio::test]
async fn calls_at_both_replicas_join_one_approval_and_one_of_them_is_executed() {
    let pair = Pair::start().await;
    let mut clients = Vec::new();
    for replica in [0, 1] {
        let client = pair.cluster.client_of(replica, "/mcp").bearer(&pair.key);
        clients.push(client.connected(json!({})).await);
    }
    let calls: Vec<_> = (0..6).map(|at| clients[at % 2].start_call("b__send", to("ann"))).collect();
    let id = id_of(&pending(&pair.cluster.admin(1), 1).await[0]);
    assert_eq!(pair.sent(), 0);
    let (one, other) = (pair.cluster.admin(0), pair.cluster.admin(1));
    let (one, other) = tokio::join!(decide(&one, &id, "approve"), decide(&other, &id, "deny"));
    let mut statuses = [one.0, other.0];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409], "one decision counts");
    let is_approved = one.0 == 200;
    let mut executed = 0;
    for call in calls {
        let result = call.result().await;
        if result["isError"] == true {
            approval_of(&result);
        } else {
            executed += 1;
        }
    }
    let expected = usize::from(is_approved);
    assert_eq!((executed, pair.sent()), (expected, expected));
}
