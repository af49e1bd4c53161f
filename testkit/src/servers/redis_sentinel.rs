//! A master of Redis, its replica, and three sentinels that watch them. They end with their handle.

use super::redis::{RedisReply, RedisServer};
use crate::deadline::eventually;

const PASSWORD: &str = "secret-of-the-servers";
const SENTINEL_PASSWORD: &str = "secret-of-the-sentinels";
/// The name of the master at the sentinels.
const SERVICE: &str = "broker";
const SENTINELS: usize = 3;
/// Sentinels that must agree that the master is down.
const QUORUM: usize = 2;

/// Two servers and their sentinels.
#[derive(Debug)]
pub struct RedisWithSentinels {
    /// The master at the start, and its replica.
    servers: [RedisServer; 2],
    sentinels: Vec<RedisServer>,
}

impl RedisWithSentinels {
    /// Starts everything. Waits until the sentinels know the replica and each other.
    pub async fn start() -> Self {
        let replication = ["--repl-diskless-sync-delay", "0"];
        let master = RedisServer::start_with_password(PASSWORD, &replication).await;
        let port = master.address().port().to_string();
        let options = [&replication[..], &["--replicaof", "127.0.0.1", &port]].concat();
        let replica = RedisServer::start_with_password(PASSWORD, &options).await;
        eventually("the replica to follow its master", || replica.has_role("connected")).await;
        let mut sentinels = Vec::new();
        for _ in 0..SENTINELS {
            let configuration = format!(
                "sentinel monitor {SERVICE} 127.0.0.1 {port} {QUORUM}\n\
                 sentinel auth-pass {SERVICE} {PASSWORD}\n\
                 sentinel down-after-milliseconds {SERVICE} 500\n\
                 sentinel failover-timeout {SERVICE} 2000\n"
            );
            let sentinel = RedisServer::start_sentinel(SENTINEL_PASSWORD, &configuration).await;
            sentinel.command(&QUICK.split(' ').collect::<Vec<_>>()).await;
            sentinels.push(sentinel);
        }
        for sentinel in &sentinels {
            eventually("a sentinel to know the others", async || {
                let others = sentinel.command(&["SENTINEL", "SENTINELS", SERVICE]).await;
                let replicas = sentinel.command(&["SENTINEL", "REPLICAS", SERVICE]).await;
                match (&others, &replicas) {
                    (RedisReply::List(others), RedisReply::List(replicas))
                        if others.len() == SENTINELS - 1 && replicas.len() == 1 =>
                    {
                        Ok(())
                    }
                    _ => Err((others, replicas)),
                }
            })
            .await;
        }
        Self { servers: [master, replica], sentinels }
    }

    /// Returns the URL for the broker. It names all sentinels.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|sentinel| sentinel.address().to_string()).collect();
        let hosts = hosts.join(",");
        format!(
            "redis+sentinel://:{PASSWORD}@{hosts}/{SERVICE}?sentinel_password={SENTINEL_PASSWORD}"
        )
    }

    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// Cuts the replica off: it gets no further write of its master.
    pub async fn stop_replication(&self) {
        let master = self.master().await.address();
        let replica = self.servers.iter().find(|server| server.address() != master);
        let replica = replica.expect("there are two servers");
        replica.command(&["CONFIG", "SET", "masterauth", "a wrong one"]).await;
        replica.command(&["CLIENT", "KILL", "TYPE", "master"]).await;
    }

    /// Starts a server that the sentinels do not know, with the password of the others.
    pub async fn stranger(&self) -> RedisServer {
        RedisServer::start_with_password(PASSWORD, &[]).await
    }

    /// Makes the sentinels name this server, without a failover.
    pub async fn name(&self, server: &RedisServer) {
        // A sentinel that still has the old master would announce it to the others.
        for sentinel in &self.sentinels {
            sentinel.command(&["SENTINEL", "REMOVE", SERVICE]).await;
        }
        let port = server.address().port().to_string();
        for sentinel in &self.sentinels {
            let monitor = ["SENTINEL", "MONITOR", SERVICE, "127.0.0.1", &port, "2"];
            sentinel.command(&monitor).await;
        }
    }

    /// Lets the two servers change their roles, and waits until they have.
    pub async fn change_roles(&self) {
        let old = self.master().await;
        self.sentinels[0].command(&["SENTINEL", "FAILOVER", SERVICE]).await;
        eventually("the master to be a replica", || old.has_role("connected")).await;
    }

    /// Returns the server that is the master now.
    pub async fn master(&self) -> &RedisServer {
        eventually("one server to be the master", async || {
            for server in self.servers.iter().filter(|server| server.is_started()) {
                if server.has_role("master").await.is_ok() {
                    return Ok(server);
                }
            }
            Err("none is")
        })
        .await
    }

    /// Kills the master. Waits until the other server took over and all sentinels name it.
    pub async fn fail_over(&self) -> &RedisServer {
        self.master().await.kill().await;
        let new = self.master().await;
        let port = RedisReply::Text(new.address().port().to_string());
        for sentinel in &self.sentinels {
            eventually("a sentinel to name the new master", async || {
                let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
                let named = sentinel.command(&command).await;
                match &named {
                    RedisReply::List(parts) if parts.contains(&port) => Ok(()),
                    _ => Err(named),
                }
            })
            .await;
        }
        new
    }
}

/// Intervals of a sentinel in milliseconds, shorter than usual. A replica can take over if its last
/// `INFO` is younger than five pings. Once the master is down, a sentinel asks for it each second.
const QUICK: &str = "SENTINEL DEBUG info-period 200 ping-period 300 ask-period 100 publish-period 500 min-link-reconnect-period 100 election-timeout 1000";

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_replica_takes_over_with_its_data_and_the_old_master_follows_it() {
        let redis = RedisWithSentinels::start().await;
        let old = redis.master().await;
        old.command(&["SET", "a", "b"]).await;
        assert_eq!(old.command(&["WAIT", "1", "5000"]).await.number(), 1);
        let new = redis.fail_over().await;
        assert_ne!(new.address(), old.address());
        assert_eq!(new.command(&["GET", "a"]).await.text(), "b");
        old.start_again().await;
        eventually("the old master to be a replica", || old.has_role("connected")).await;
        assert_eq!(old.command(&["GET", "a"]).await.text(), "b");
    }
}
