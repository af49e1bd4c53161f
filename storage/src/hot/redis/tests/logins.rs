//! Tests of logins that change while the store is open.

use std::path::Path;

use testkit::{
    eventually,
    servers::{RedisServer, RedisWithSentinels},
};

use super::{HOUR, RedisOptions, RedisStore, SESSION, hint, options};
use crate::{HotStore, OwnerHint};

/// Lets the user of the store log in with this password only, and ends its connections.
async fn change_password(server: &RedisServer, password: &str) {
    let password = format!(">{password}");
    let user = ["ACL", "SETUSER", "broker", "on", "resetpass", &password, "~*", "&*", "+@all"];
    server.command(&user).await;
    server.command(&["CLIENT", "KILL", "USER", "broker"]).await;
}

/// Returns a store whose login is in this file.
async fn open(url: String, file: &Path) -> RedisStore {
    std::fs::write(file, &url).unwrap();
    let options = RedisOptions { url_file: Some(file.to_owned()), ..options(url) };
    let store = RedisStore::open(&options).await.unwrap();
    eventually("a hint to be kept", || kept(&store)).await;
    store
}

async fn kept(store: &RedisStore) -> Result<OwnerHint, ()> {
    store.put_owner_hint(&SESSION, &hint(), HOUR).await;
    store.owner_hint(&SESSION).await.ok_or(())
}

#[tokio::test]
async fn a_refused_login_is_replaced_by_that_of_the_file() {
    let server = RedisServer::start().await;
    let url_of = |login: &str| server.url().replace("redis://", &format!("redis://{login}@"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("redis-url");
    change_password(&server, "one").await;
    let store = open(url_of("broker:one"), &file).await;

    // Another server needs a restart.
    std::fs::write(&file, "redis://broker:two@127.0.0.1:1").unwrap();
    change_password(&server, "two").await;
    let is_connected = |wanted| {
        let found = store.is_connected();
        std::future::ready(if found == wanted { Ok(()) } else { Err(found) })
    };
    eventually("the end of the wake-ups", || is_connected(false)).await;
    assert_eq!(kept(&store).await, Err(()));

    std::fs::write(&file, format!("{}\n", url_of("broker:two"))).unwrap();
    eventually("a hint to be kept", || kept(&store)).await;
    eventually("wake-ups", || is_connected(true)).await;
}

#[tokio::test]
async fn a_dead_sentinel_does_not_hide_a_refused_login() {
    let redis = RedisWithSentinels::start().await;
    let [_, _, last] = redis.sentinels() else { panic!("three sentinels") };
    let url = redis.url();
    let (_, servers) = url.split_once('@').unwrap();
    let url_of = |login: &str| format!("redis+sentinel://{login}@{servers}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("redis-url");
    let master = redis.master().await;
    change_password(master, "one").await;
    let store = open(url_of("broker:one"), &file).await;

    last.kill().await;
    std::fs::write(&file, url_of("broker:two")).unwrap();
    change_password(master, "two").await;
    eventually("a hint to be kept", || kept(&store)).await;
}
