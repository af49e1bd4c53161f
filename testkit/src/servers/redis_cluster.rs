//! A Redis Cluster: three masters, and a replica of the first one. The servers end with their handle.

use super::redis::RedisServer;
use crate::deadline::eventually;

const PASSWORD: &str = "secret-of-the-nodes";
const MASTERS: usize = 3;
const SLOTS: usize = 16_384;
/// Time in milliseconds after which a silent node counts as dead.
const NODE_TIMEOUT: &str = "700";

/// Four nodes.
#[derive(Debug)]
pub struct RedisCluster {
    /// The masters, then the replica of the first one.
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts all nodes. Waits until they serve all slots and the replica follows its master.
    pub async fn start() -> Self {
        let (mut nodes, mut buses) = (Vec::new(), Vec::new());
        for _ in 0..=MASTERS {
            let options = [
                "--cluster-enabled",
                "yes",
                "--cluster-node-timeout",
                NODE_TIMEOUT,
                "--repl-diskless-sync-delay",
                "0",
            ];
            let (node, bus) = RedisServer::start_node(PASSWORD, &options).await;
            nodes.push(node);
            buses.push(bus);
        }
        for (number, node) in nodes.iter().enumerate().take(MASTERS) {
            let bound = |number: usize| number * SLOTS / MASTERS;
            let (first, last) = (bound(number), bound(number + 1) - 1);
            let slots = ["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()];
            node.command(&slots).await;
        }
        for (number, node) in nodes.iter().enumerate() {
            let epoch = (number + 1).to_string();
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await;
        }
        for (node, bus) in nodes.iter().zip(&buses).skip(1) {
            let port = node.address().port().to_string();
            nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port, bus]).await;
        }
        let known = format!("cluster_known_nodes:{}", MASTERS + 1);
        for node in &nodes {
            wait_for_info(node, &[&known]).await;
        }
        let id = id_of(&nodes[0]).await;
        nodes[MASTERS].command(&["CLUSTER", "REPLICATE", &id]).await;
        for node in &nodes {
            wait_for_info(node, &["cluster_state:ok", "cluster_size:3"]).await;
        }
        let cluster = Self { nodes };
        cluster.wait_for_replica().await;
        cluster
    }

    /// Returns the URL for the broker. It names two of the nodes.
    pub fn url(&self) -> String {
        let [first, second, ..] = self.nodes.as_slice() else { unreachable!("four nodes") };
        format!("redis+cluster://:{PASSWORD}@{},{}", first.address(), second.address())
    }

    /// The masters at the start, then the replica of the first one.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Removes all keys.
    pub async fn flush_all(&self) {
        for node in &self.nodes[..MASTERS] {
            node.flush_all().await;
        }
    }

    /// Begins to move a slot from the first master to the second one.
    pub async fn begin_move(&self, slot: u16) {
        let slot = slot.to_string();
        let [from, to, ..] = self.nodes.as_slice() else { unreachable!("four nodes") };
        let (from_id, to_id) = (id_of(from).await, id_of(to).await);
        to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]).await;
        from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]).await;
    }

    /// Moves keys of the slot.
    pub async fn migrate(&self, keys: &[&str]) {
        let [from, to, ..] = self.nodes.as_slice() else { unreachable!("four nodes") };
        let port = to.address().port().to_string();
        let head = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "AUTH", PASSWORD, "KEYS"];
        let moved = from.command(&[&head, keys].concat()).await;
        assert_eq!(moved.text(), "OK");
    }

    /// Gives the slot to the second master.
    pub async fn end_move(&self, slot: u16) {
        let to = id_of(&self.nodes[1]).await;
        for node in [&self.nodes[1], &self.nodes[0]] {
            node.command(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &to]).await;
        }
    }

    /// Waits until the replica has the data of the first master.
    async fn wait_for_replica(&self) {
        let replica = &self.nodes[MASTERS];
        eventually("the replica to follow its master", || replica.has_role("connected")).await;
        for node in &self.nodes {
            eventually("a node to know the replica", async || {
                let nodes = node.command(&["CLUSTER", "NODES"]).await.text().to_owned();
                if nodes.contains("slave") { Ok(()) } else { Err(nodes) }
            })
            .await;
        }
    }

    /// Cuts the replica off: it gets no further write of its master.
    pub async fn stop_replication(&self) {
        let replica = &self.nodes[MASTERS];
        replica.command(&["CONFIG", "SET", "masterauth", "a wrong one"]).await;
        replica.command(&["CLIENT", "KILL", "TYPE", "master"]).await;
    }

    /// Kills the first master. Waits until its replica took over and all slots are served again.
    pub async fn fail_over(&self) {
        self.nodes[0].kill().await;
        let replica = &self.nodes[MASTERS];
        eventually("the replica to take over", || replica.has_role("master")).await;
        for node in &self.nodes[1..] {
            wait_for_info(node, &["cluster_state:ok"]).await;
        }
    }
}

async fn id_of(node: &RedisServer) -> String {
    node.command(&["CLUSTER", "MYID"]).await.text().to_owned()
}

async fn wait_for_info(node: &RedisServer, lines: &[&str]) {
    eventually("the nodes to know each other", async || {
        let info = node.command(&["CLUSTER", "INFO"]).await.text().to_owned();
        let has = |line: &&str| info.lines().any(|there| there == *line);
        if lines.iter().all(has) { Ok(()) } else { Err(info) }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::RedisReply;

    #[tokio::test]
    async fn a_replica_takes_over_the_slots_of_its_master() {
        let cluster = RedisCluster::start().await;
        let [first, second, _, replica] = cluster.nodes() else { panic!("four nodes") };
        // The slot of this key is 3300.
        first.command(&["SET", "b", "1"]).await;
        assert!(
            matches!(second.try_command(&["GET", "b"]).await, RedisReply::Error(moved) if moved.starts_with("MOVED 3300"))
        );
        assert_eq!(first.command(&["WAIT", "1", "5000"]).await.number(), 1);
        cluster.fail_over().await;
        assert_eq!(replica.command(&["GET", "b"]).await.text(), "1");
    }
}
