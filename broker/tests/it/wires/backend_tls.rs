//! Backends that require a certificate, on every wire that has TLS.

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{
    Authority, BrokerBuilder, FakeBackend, PipeBackend, Reply, TestBroker, TlsTerminator,
    authority::CertificateFiles, eventually, within,
};

use super::listening;
use crate::{builder, stdio, text_of};

/// A backend that requires a certificate.
struct TlsBackend {
    spec: Value,
    front: Option<TlsTerminator>,
    pipe: Option<PipeBackend>,
    _http: Option<FakeBackend>,
}

async fn tls_backend(wire: &str, authority: &Authority) -> TlsBackend {
    let config = authority.server("backend").server_config_for(authority);
    match wire {
        "quic" => {
            let pipe = PipeBackend::quic(&stdio(), config).await;
            TlsBackend { spec: pipe.spec(), front: None, pipe: Some(pipe), _http: None }
        }
        "https" => {
            let http = FakeBackend::with_tool("echo", |call| async move {
                Reply::text(&call.arguments().to_string())
            })
            .await;
            let front = TlsTerminator::start(http.address(), config).await;
            let spec = json!({"transport": {"type": "http", "url": format!("https://{}/mcp", front.address())}});
            TlsBackend { spec, front: Some(front), pipe: None, _http: Some(http) }
        }
        "wss" => {
            let pipe = PipeBackend::websocket(&stdio()).await;
            let front = TlsTerminator::start(pipe.address(), config).await;
            let spec = json!({"transport": {"type": "websocket", "url": format!("wss://{}/mcp", front.address())}});
            TlsBackend { spec, front: Some(front), pipe: Some(pipe), _http: None }
        }
        "tls" => {
            let pipe = PipeBackend::tcp(&stdio()).await;
            let front = TlsTerminator::start(pipe.address(), config).await;
            let spec = json!({"transport": {"type": "tcp", "address": front.address().to_string(), "tls": true}});
            TlsBackend { spec, front: Some(front), pipe: Some(pipe), _http: None }
        }
        other => panic!("no wire {other}"),
    }
}

fn with(spec: &Value, identity: &CertificateFiles) -> Value {
    let mut spec = spec.clone();
    spec["tls"] = json!({"client_cert": identity.cert, "client_key": identity.key});
    spec
}

fn trusting(authority: &Authority) -> BrokerBuilder {
    let folder = authority.ca().parent().unwrap().to_owned();
    listening()
        .config(json!({"tls": {"client_cert_folders": [folder]}}))
        .env("SSL_CERT_FILE", authority.ca().to_str().unwrap())
}

async fn presents_a_certificate_over(wire: &str) {
    let authority = Authority::new();
    let backend = tls_backend(wire, &authority).await;
    let identity = authority.client("default", "broker");
    let broker = trusting(&authority).start().await;
    let (status, without) = broker.admin().put_backend("default", "b", &backend.spec).await;
    assert_eq!(status, 201, "{without}");
    let view = broker
        .admin()
        .wait_backend("default", "b", "a failure", |view| !view["last_error"].is_null())
        .await;
    assert_ne!(view["state"], "ready", "{wire}: {view}");
    // The operator's view names the missing certificate.
    broker
        .admin()
        .wait_backend("default", "b", "why", |view| {
            view["last_error"].to_string().to_lowercase().contains("certificate")
        })
        .await;
    // The backend now has a certificate.
    let (status, stored) =
        broker.admin().put_backend("default", "b", &with(&backend.spec, &identity)).await;
    assert_eq!(status, 200, "{stored}");
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let client = broker.connected(json!({})).await;
    assert_eq!(text_of(&client.call("b__echo", json!({"n": 1})).await), "{\"n\":1}");
    if let Some(front) = &backend.front {
        assert!(
            front.client_certificates().iter().flatten().any(|shown| shown == identity.der()),
            "{wire}"
        );
    }
    let view = broker.admin().backend("default", "b").await;
    assert_eq!(
        view["settings"]["tls"],
        json!({"client_cert": identity.cert, "client_key": identity.key}),
        "{wire}"
    );
    let text = view.to_string();
    assert!(!text.contains("PRIVATE") && !broker.log().contains("PRIVATE"), "{text}");
}

#[tokio::test]
async fn an_https_backend_gets_the_brokers_certificate() {
    presents_a_certificate_over("https").await;
}

#[tokio::test]
async fn a_wss_backend_gets_the_brokers_certificate() {
    presents_a_certificate_over("wss").await;
}

#[tokio::test]
async fn a_tls_backend_gets_the_brokers_certificate() {
    presents_a_certificate_over("tls").await;
}

#[tokio::test]
async fn a_quic_backend_gets_the_brokers_certificate() {
    presents_a_certificate_over("quic").await;
}

async fn reloaded(broker: &TestBroker, times: usize) {
    broker.signal(Signal::HUP);
    eventually("the reload", || async {
        let seen = broker.log().matches("configuration reloaded").count();
        if seen == times { Ok(()) } else { Err(seen) }
    })
    .await;
}

#[tokio::test]
async fn a_reload_reads_the_certificate_again_and_ignores_a_broken_one() {
    let authority = Authority::new();
    let backend = tls_backend("tls", &authority).await;
    let (first, second) =
        (authority.client("default", "first"), authority.client("default", "second"));
    let broker =
        trusting(&authority).backend("default", "b", with(&backend.spec, &first)).start().await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    let (front, pipe) = (backend.front.as_ref().unwrap(), backend.pipe.as_ref().unwrap());
    let next_shown = async || {
        let before = front.client_certificates().len();
        pipe.cut();
        eventually("another connection", || async {
            // A call on the connection that is cut is lost.
            client.request("tools/call", json!({"name": "b__echo", "arguments": {}})).await;
            if front.client_certificates().len() > before { Ok(()) } else { Err(before) }
        })
        .await;
        front.client_certificates().last().unwrap().clone().unwrap()
    };
    let saved = [std::fs::read(&first.cert).unwrap(), std::fs::read(&first.key).unwrap()];
    // Half of a pair was replaced: the old one stays.
    std::fs::copy(&second.cert, &first.cert).unwrap();
    reloaded(&broker, 1).await;
    broker
        .wait_for_log(
            "the broker could not reload the client certificate of a backend and keeps the old one",
        )
        .await;
    assert_eq!(&within("a call", next_shown()).await, first.der());
    std::fs::copy(&second.key, &first.key).unwrap();
    reloaded(&broker, 2).await;
    assert_eq!(&within("a call", next_shown()).await, second.der());
    std::fs::write(&first.cert, &saved[0]).unwrap();
    std::fs::write(&first.key, &saved[1]).unwrap();
}

#[tokio::test]
async fn certificate_files_outside_of_the_listed_folders_are_refused() {
    let authority = Authority::new();
    let backend = tls_backend("tls", &authority).await;
    let identity = authority.client("default", "broker");
    let closed = listening().env("SSL_CERT_FILE", authority.ca().to_str().unwrap()).start().await;
    let (status, refused) =
        closed.admin().put_backend("default", "b", &with(&backend.spec, &identity)).await;
    assert_eq!(status, 400, "{refused}");
    assert!(refused.to_string().contains("tls.client_cert_folders"), "{refused}");

    let open = trusting(&authority).start().await;
    let folder = authority.ca().parent().unwrap().to_owned();
    for (cert, key, wrong) in [
        (folder.join("none.pem"), identity.key.clone(), "cannot be read"),
        (
            identity.cert.clone(),
            authority.client("default", "other").key,
            "cannot be used with the key",
        ),
        ("/etc/ssl/private/key.pem".into(), identity.key.clone(), "tls.client_cert_folders"),
        (folder.join("..").join("x.pem"), identity.key.clone(), "not an absolute path"),
    ] {
        let mut spec = backend.spec.clone();
        spec["tls"] = json!({"client_cert": cert, "client_key": key});
        let (status, refused) = open.admin().put_backend("default", "b", &spec).await;
        assert_eq!(status, 400, "{refused}");
        assert!(refused.to_string().contains(wrong), "{wrong}: {refused}");
    }
    // A declared backend may name any files, but they have to exist.
    let mut spec = backend.spec.clone();
    spec["tls"] = json!({"client_cert": folder.join("none.pem"), "client_key": identity.key});
    std::fs::write(folder.join("config.yaml"), json!({"backends": {"b": spec}}).to_string())
        .unwrap();
    let finished = builder().run(folder.as_path(), &["serve", "--config", "config.yaml"]).await;
    assert_eq!(finished.code, Some(64), "{finished:?}");
    assert!(format!("{finished:?}").contains("none.pem"), "{finished:?}");
}
