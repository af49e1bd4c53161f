//! R20, F-24: the disk of an SQLite database is full. The test uses a small file system of its own,
//! if the machine permits the mount.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use testkit::{FakeBackend, TestBroker, TestClient, eventually};

use crate::{
    builder, kind,
    tasks::{start, wait_status},
    text_of,
};

/// A file system of a few megabytes, which ends with the test.
struct SmallDisk {
    folder: tempfile::TempDir,
    fillers: usize,
}

impl SmallDisk {
    /// Mounts the file system. `None`: this machine permits no mount.
    fn mount(mebibytes: usize) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={mebibytes}m");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "none"])
            .arg(folder.path())
            .output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self { folder, fillers: 0 })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn filler(&self, number: usize) -> PathBuf {
        self.path().join(format!("filler-{number}"))
    }

    /// Fills the remaining space, to the last byte.
    fn fill(&mut self) {
        let mut file = std::fs::File::create(self.filler(self.fillers)).unwrap();
        self.fillers += 1;
        for size in [1 << 20, 4_096, 1] {
            let some = vec![0; size];
            while file.write_all(&some).is_ok() {}
        }
    }

    fn make_room(&mut self) {
        (0..self.fillers).for_each(|number| drop(std::fs::remove_file(self.filler(number))));
        self.fillers = 0;
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _best_effort = Command::new("umount").arg("-l").arg(self.folder.path()).status();
    }
}

/// Checks that an acknowledged task has its result.
async fn collected(client: &TestClient, task: &str) {
    assert_eq!(
        text_of(&client.result("tasks/result", json!({"taskId": task})).await),
        "echoed",
        "{task}"
    );
}

/// Sends a request that must be stored; returns the answer.
async fn makes_a_task(client: &TestClient) -> Value {
    let params =
        json!({"name": "b__t", "arguments": {"a": "x".repeat(20_000)}, "task": {"ttl": 600_000}});
    client.request("tools/call", params).await
}

#[tokio::test]
async fn r20_f_24_a_full_disk_loses_no_acknowledged_write_and_calls_continue() {
    let Some(mut disk) = SmallDisk::mount(8) else {
        println!("not run: no file system can be mounted here");
        return;
    };
    let backend = FakeBackend::with_tool("t", |_| async { testkit::Reply::text("echoed") }).await;
    let config =
        json!({"storage": {"url": format!("sqlite:{}", disk.path().join("broker.db").display())}});
    let mut broker: TestBroker = builder()
        .single_process()
        .auth_required()
        .config(config)
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let key = broker.admin().create_key("default").await;
    let client = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    let mut acknowledged = vec![start(&client, "b__t").await];
    wait_status(&client, &acknowledged[0], "completed").await;

    // Free pages in the file accept a few more writes.
    let mut refused = Value::Null;
    for _ in 0..200 {
        disk.fill();
        let answer = makes_a_task(&client).await;
        let Some(task) = answer["result"]["task"]["taskId"].as_str() else {
            refused = answer["error"].clone();
            break;
        };
        acknowledged.push(task.to_owned());
    }
    assert_eq!((refused["code"].as_i64(), kind(&refused)), (Some(1004), "store_full"), "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("disk is full"), "{refused}");
    // Requests that need no disk continue, and stored rows can be read.
    for _ in 0..20 {
        assert_eq!(text_of(&client.call("b__t", json!({})).await), "echoed");
    }
    assert_eq!(client.tool_names().await, ["b__t"]);
    collected(&client, &acknowledged[0]).await;
    assert_eq!(broker.admin().get("/healthz").await.0, 200);
    broker.wait_for_log("the disk that holds the database is full").await;
    println!("while the disk is full: {:?}", broker.admin().get("/readyz").await);

    disk.make_room();
    let again = eventually("tasks to be stored again, without a restart", || async {
        let answer = makes_a_task(&client).await;
        answer["result"]["task"]["taskId"].as_str().map(str::to_owned).ok_or(answer)
    })
    .await;
    acknowledged.push(again);
    eventually("readiness", || async {
        let (status, body) = broker.admin().get("/readyz").await;
        if status == 200 { Ok(()) } else { Err(body) }
    })
    .await;
    for task in &acknowledged {
        wait_status(&client, task, "completed").await;
        collected(&client, task).await;
    }
    // All results also survive a SIGKILL.
    broker.kill().await;
    broker.restart().await;
    let client = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    for task in &acknowledged {
        collected(&client, task).await;
    }
}
