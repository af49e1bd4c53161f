//! Real servers in the default sandbox, with a user of their own if the test can give them one: two
//! from npm and one from PyPI.
//!
//! The installed peers may be in a home that is closed to other users, so they are linked to an
//! open path.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use testkit::{TestBroker, TestClient, Topology};

use super::install::Peers;
use crate::{builder, text_of};

/// Makes the same files at another path, by hard links if possible.
fn link(from: &Path, to: &Path) {
    let copied = |how: &str| {
        Command::new("cp")
            .args([how, "--"])
            .arg(from)
            .arg(to)
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap()
            .success()
    };
    if !copied("-al") {
        let _half = std::fs::remove_dir_all(to);
        assert!(copied("-a"), "{} cannot be copied to {}", from.display(), to.display());
    }
}

fn open(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Returns the interpreter of the virtual environment where every user can run it, and its
/// packages.
fn python(peers: &Peers, folder: &Path) -> (PathBuf, PathBuf) {
    let python = peers.python_of_servers();
    let code = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let output = Command::new(&python).args(["-c", code]).output().unwrap();
    let packages = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    link(&packages, &folder.join("packages"));
    let real = python.canonicalize().unwrap();
    let prefix = real.parent().and_then(Path::parent).unwrap();
    if prefix == Path::new("/usr") {
        return (real, folder.join("packages"));
    }
    link(prefix, &folder.join("python"));
    (folder.join("python/bin").join(real.file_name().unwrap()), folder.join("packages"))
}

async fn call(broker: &TestBroker, name: &str, arguments: Value) -> Value {
    // The client is not judged: the `_meta` of these servers is their own.
    TestClient::new(broker.http_address(), "/mcp")
        .connected(json!({}))
        .await
        .call(name, arguments)
        .await
}

#[tokio::test]
async fn s03_real_servers_work_in_the_default_sandbox() {
    let peers = Peers::installed();
    let folder = tempfile::tempdir().unwrap();
    open(folder.path(), 0o755);
    link(&peers.node_folder(), &folder.path().join("node"));
    let node = folder.path().join("node/node_modules/.bin/node");
    let server = |name: &str| {
        folder
            .path()
            .join("node/node_modules/@modelcontextprotocol")
            .join(name)
            .join("dist/index.js")
    };
    let files = folder.path().join("files");
    std::fs::create_dir(&files).unwrap();
    open(&files, 0o777);
    let (python, packages) = python(&peers, folder.path());
    // A shared interpreter looks for its library where it was built, which may be closed.
    let libraries = folder.path().join("python/lib");
    let everything = json!({"transport": {"type": "stdio", "command": node, "args": [server("server-everything"), "stdio"]}});
    let filesystem = json!({"transport": {"type": "stdio", "command": node, "args": [server("server-filesystem"), files]}, "sandbox": {"write": [files]}});
    let time = json!({
        "transport": {"type": "stdio", "command": python, "args": ["-m", "mcp_server_time"], "env": {"PYTHONPATH": packages, "LD_LIBRARY_PATH": libraries}},
        "sandbox": {"read": [packages], "network": false},
    });
    let builder = builder().single_process().on(Topology::Sqlite);
    let broker = builder
        .backend("default", "all", everything)
        .backend("default", "files", filesystem)
        .backend("default", "time", time)
        .start()
        .await;

    let expected = if rustix::process::geteuid().is_root() { "uid+landlock" } else { "landlock" };
    for backend in ["all", "files", "time"] {
        let view = broker.admin().backend("default", backend).await;
        assert_eq!(view["sandbox"], expected, "{backend}: {view}");
    }
    assert!(
        text_of(&call(&broker, "all__echo", json!({"message": "from a sandbox"})).await)
            .contains("from a sandbox")
    );
    let path = files.join("written");
    call(&broker, "files__write_file", json!({"path": path, "content": "from a sandbox"})).await;
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "from a sandbox");
    let elsewhere = json!({"path": "/etc/hosts", "content": "x"});
    assert_eq!(call(&broker, "files__write_file", elsewhere).await["isError"], true);
    assert!(
        text_of(&call(&broker, "time__get_current_time", json!({"timezone": "UTC"})).await)
            .contains("UTC")
    );
}
