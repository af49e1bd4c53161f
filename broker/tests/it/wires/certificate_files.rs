//! Files of certificates, which the broker follows without a signal: a change is in force soon, and
//! files that do not fit together change nothing.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{
    Authority, BrokerBuilder, QuicPeer, TestBroker, authority::CertificateFiles, duplex::Wire,
    eventually, within,
};

use super::listening;
use crate::stdio;

const REFUSED: &str = "the changed certificates of the listeners are not applied";

/// A mounted Secret: its files are links, and one rename changes all of them.
struct MountedSecret(TempDir);

impl MountedSecret {
    fn new(files: &CertificateFiles) -> Self {
        let secret = Self(TempDir::new().unwrap());
        secret.replace("1", &std::fs::read(&files.cert).unwrap(), &files.key);
        for name in ["tls.crt", "tls.key"] {
            symlink(format!("..data/{name}"), secret.file(name)).unwrap();
        }
        secret
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn replace(&self, version: &str, cert: &[u8], key: &Path) {
        let data = self.file(&format!("..{version}"));
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("tls.crt"), cert).unwrap();
        std::fs::copy(key, data.join("tls.key")).unwrap();
        let link = self.file("..new");
        symlink(format!("..{version}"), &link).unwrap();
        std::fs::rename(link, self.file("..data")).unwrap();
    }

    fn broker(&self) -> BrokerBuilder {
        listening()
            .config(json!({
                "tls": {"cert_file": self.file("tls.crt"), "key_file": self.file("tls.key")},
                "include": {"interval": "100ms"},
            }))
            .backend("default", "b", stdio().spec())
    }
}

/// Returns the certificate that a listener presents.
async fn presented(authority: &Authority, port: u16) -> Result<Vec<u8>, String> {
    let stream = within("TLS", authority.connect(port, None, &[])).await;
    let stream = stream.map_err(|error| error.to_string())?;
    Ok(stream.get_ref().1.peer_certificates().unwrap()[0].to_vec())
}

async fn reloads(broker: &TestBroker, outcome: &str) -> Vec<Option<f64>> {
    let mut counts = Vec::new();
    for listener in ["clients", "operators"] {
        let labels = [("listener", listener), ("outcome", outcome)];
        counts.push(broker.admin().metric("mcp_certificate_reloads_total", &labels).await);
    }
    counts
}

fn certificate_reloads(audit: &Value) -> usize {
    let records = audit["records"].as_array().unwrap();
    let is_one = |record: &&Value| {
        record["principal"] == "configuration"
            && record["target"] == "the certificates of the listeners"
    };
    records.iter().filter(is_one).count()
}

#[tokio::test]
async fn every_listener_presents_changed_certificates_without_a_signal() {
    let (old, new) = (Authority::new(), Authority::new());
    let first = old.server("server");
    let secret = MountedSecret::new(&first);
    let broker = secret.broker().config(json!({"listen": {"quic": "127.0.0.1:0"}})).start().await;
    let ports = [broker.http_address(), broker.admin_address(), broker.tcp_address()]
        .map(|address| address.port());
    for port in ports {
        assert_eq!(presented(&old, port).await.as_deref(), Ok(first.der().as_ref()));
    }
    let stream = within("TLS", old.connect(ports[2], None, &["mcp"])).await.unwrap();
    let client = broker.duplex().over(Wire::lines(stream)).connected(json!({})).await;

    let lasts = Duration::from_secs(40 * 86_400);
    let second = new.server_for("server", lasts);
    secret.replace("2", &std::fs::read(&second.cert).unwrap(), &second.key);
    for port in ports {
        eventually("the new certificate", || async {
            let now = presented(&new, port).await;
            if now.as_deref() == Ok(second.der().as_ref()) { Ok(()) } else { Err(now) }
        })
        .await;
        assert!(presented(&old, port).await.is_err(), "the old certificate is gone");
    }
    QuicPeer::connect(broker.quic_address(), &new, None, "mcp").await.unwrap();
    client.call("b__echo", json!({})).await;

    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let end = (now + lasts).as_secs_f64();
    for listener in ["clients", "operators"] {
        let is_new = |at: f64| (end - at).abs() < 3_600.0;
        let labels = [("listener", listener)];
        broker.admin().wait_metric("mcp_certificate_expiry_seconds", &labels, is_new).await;
    }
    assert_eq!(reloads(&broker, "taken").await, [Some(1.0), Some(1.0)]);
    assert_eq!(reloads(&broker, "refused").await, [Some(0.0), Some(0.0)]);
    eventually("the audit record", || async {
        let (_, audit) = broker.admin().get("/admin/v1/audit?kind=admin").await;
        if certificate_reloads(&audit) == 1 { Ok(()) } else { Err(audit) }
    })
    .await;
}

#[tokio::test]
async fn files_that_do_not_fit_together_change_nothing_and_are_logged_once() {
    let authority = Authority::new();
    let (first, second) = (authority.server("first"), authority.server("second"));
    let secret = MountedSecret::new(&first);
    let broker = secret.broker().start().await;
    let port = broker.tcp_address().port();
    let whole = std::fs::read(&second.cert).unwrap();
    // The key of another certificate, and a certificate that is half written.
    for (version, cert, key) in
        [("2", &whole[..], &first.key), ("3", &whole[..whole.len() / 2], &second.key)]
    {
        let so_far = broker.log().matches(REFUSED).count();
        secret.replace(version, cert, key);
        eventually("the fault", || async {
            let now = broker.log().matches(REFUSED).count();
            if now > so_far { Ok(()) } else { Err(now) }
        })
        .await;
        assert_eq!(presented(&authority, port).await.as_deref(), Ok(first.der().as_ref()));
    }
    secret.replace("4", &whole, &second.key);
    eventually("the new certificate", || async {
        let now = presented(&authority, port).await;
        if now.as_deref() == Ok(second.der().as_ref()) { Ok(()) } else { Err(now) }
    })
    .await;
    assert_eq!(broker.log().matches(REFUSED).count(), 2, "each fault once: {}", broker.log());
    assert_eq!(reloads(&broker, "taken").await, [Some(1.0), Some(1.0)]);
    // An acceptor without client certificates reads the same files.
    assert_eq!(reloads(&broker, "refused").await, [Some(2.0), Some(2.0)]);
}
