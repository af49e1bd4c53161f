//! Tests of connections to names whose addresses change, with a resolver of the test.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::time::timeout;
use transport::{
    EgressPolicy, HttpClient, HttpClientConfig, HttpResponse, Resolver, ResponseBody, read_body,
    tls::{ClientIdentity, ClientIdentityFiles},
};

use crate::{
    certificates,
    http_server::{Authority, Server},
    soon, until,
};

const HOST: &str = "backend.test";
const FIRST: [u8; 4] = [127, 0, 0, 1];
const SECOND: [u8; 4] = [127, 0, 0, 2];
/// More lookups than any rule counts.
const MANY: usize = 50;

/// Addresses that the lookup of this number returns. `None`: no answer.
type Answers = fn(usize) -> Option<[u8; 4]>;

/// A resolver whose answers the test changes.
struct Names {
    answers: Mutex<Answers>,
    lookups: AtomicUsize,
}

impl Names {
    fn new(answers: Answers) -> Arc<Self> {
        Arc::new(Self { answers: Mutex::new(answers), lookups: AtomicUsize::new(0) })
    }

    fn look_up(&self) -> io::Result<Vec<SocketAddr>> {
        let number = self.lookups.fetch_add(1, Ordering::SeqCst);
        let found = (*self.answers.lock())(number);
        found
            .map(|address| vec![SocketAddr::from((address, 0))])
            .ok_or_else(|| io::Error::other("no answer"))
    }

    /// Waits until the client has looked up the name many times.
    async fn many_lookups(&self) {
        let before = self.lookups.load(Ordering::SeqCst);
        until("a lookup", || self.lookups.load(Ordering::SeqCst) >= before + MANY).await;
    }
}

/// An authority, and a client that trusts it.
struct Rig {
    authority: Authority,
    client: HttpClient,
}

impl Rig {
    fn new(names: &Arc<Names>) -> Self {
        let (authority, names) = (Authority::new(), Arc::clone(names));
        let client = HttpClient::new(HttpClientConfig {
            extra_roots: vec![authority.certificate.clone()],
            egress: Arc::new(EgressPolicy { loopback: true, ..EgressPolicy::default() }),
            resolver: Resolver::new(move |_| names.look_up()),
            address_check_interval: Duration::from_millis(5),
            idle_timeout: Duration::from_secs(60),
            ..HttpClientConfig::default()
        });
        Self { authority, client: client.unwrap() }
    }

    async fn server(&self, scheme: &str, address: impl Into<SocketAddr>) -> Server {
        Server::at(address.into(), (scheme == "https").then(|| self.tls())).await
    }

    fn tls(&self) -> ServerConfig {
        self.authority.server(&[HOST])
    }
}

async fn send(client: &HttpClient, url: &str) -> HttpResponse<ResponseBody> {
    let request = Request::post(url).body(Full::new(Bytes::from("ping"))).unwrap();
    soon("an answer", client.send(request)).await.unwrap()
}

async fn echoed(response: HttpResponse<ResponseBody>) {
    assert_eq!(read_body(response.into_body(), 1_000).await.unwrap(), "ping");
}

#[tokio::test]
async fn an_outage_of_the_name_servers_keeps_a_connection() {
    for scheme in ["http", "https"] {
        let names = Names::new(|_| Some(FIRST));
        let rig = Rig::new(&names);
        let server = rig.server(scheme, (FIRST, 0)).await;
        let url = format!("{scheme}://{HOST}:{}/", server.port);
        echoed(send(&rig.client, &url).await).await;
        *names.answers.lock() = |_| None;
        names.many_lookups().await;
        for _ in 0..3 {
            echoed(send(&rig.client, &url).await).await;
        }
        assert_eq!(server.connections(), 1, "{scheme}");
    }
}

#[tokio::test]
async fn a_moved_name_retires_its_connection_without_a_failed_request() {
    for scheme in ["http", "https"] {
        let names = Names::new(|_| Some(FIRST));
        let rig = Rig::new(&names);
        let first = rig.server(scheme, (FIRST, 0)).await;
        let second = rig.server(scheme, (SECOND, first.port)).await;
        let url = format!("{scheme}://{HOST}:{}/", first.port);
        let unread = send(&rig.client, &url).await;
        echoed(send(&rig.client, &url).await).await;
        *names.answers.lock() = |_| Some(SECOND);
        let moving = async {
            while second.requests() == 0 {
                echoed(send(&rig.client, &url).await).await;
            }
        };
        soon("a request to the new address", moving).await;
        let at_first = first.requests();
        for _ in 0..3 {
            echoed(send(&rig.client, &url).await).await;
        }
        assert_eq!(first.requests(), at_first, "{scheme}: no request returns");
        assert_eq!(second.connections(), 1, "{scheme}");
        echoed(unread).await;
    }
}

/// The old address may belong to a process that hangs.
#[tokio::test]
async fn a_retired_connection_gets_no_further_request_although_its_server_answers_none() {
    let names = Names::new(|_| Some(FIRST));
    let rig = Rig::new(&names);
    let first = rig.server("https", (FIRST, 0)).await;
    let second = rig.server("https", (SECOND, first.port)).await;
    let url = |path: &str| format!("https://{HOST}:{}/{path}", first.port);
    echoed(send(&rig.client, &url("echo")).await).await;
    *names.answers.lock() = |_| Some(SECOND);
    let moving = async {
        while second.requests() == 0 {
            let request = Request::post(url("hang")).body(Full::default()).unwrap();
            let given_up = timeout(Duration::from_millis(200), rig.client.send(request)).await;
            assert!(given_up.is_err(), "no server answers");
        }
    };
    soon("a request to the new address", moving).await;
}

#[tokio::test]
async fn a_name_with_one_address_at_a_time_keeps_its_connection() {
    for scheme in ["http", "https"] {
        let names =
            Names::new(|number| Some(if number.is_multiple_of(3) { FIRST } else { SECOND }));
        let rig = Rig::new(&names);
        let server = rig.server(scheme, (FIRST, 0)).await;
        let url = format!("{scheme}://{HOST}:{}/", server.port);
        echoed(send(&rig.client, &url).await).await;
        names.many_lookups().await;
        echoed(send(&rig.client, &url).await).await;
        assert_eq!(server.connections(), 1, "{scheme}");
    }
}

#[tokio::test]
async fn a_connection_to_the_address_of_its_url_causes_no_lookup() {
    let names = Names::new(|number| Some(if number % 10 == 0 { FIRST } else { SECOND }));
    let rig = Rig::new(&names);
    let servers = [rig.server("http", (FIRST, 0)).await, rig.server("http", (FIRST, 0)).await];
    echoed(send(&rig.client, &format!("http://127.0.0.1:{}/", servers[0].port)).await).await;
    assert_eq!(names.lookups.load(Ordering::SeqCst), 0);
    let by_name = format!("http://{HOST}:{}/", servers[1].port);
    echoed(send(&rig.client, &by_name).await).await;
    names.many_lookups().await;
    echoed(send(&rig.client, &format!("http://127.0.0.1:{}/", servers[0].port)).await).await;
    assert_eq!(servers[0].connections(), 1);
}

#[tokio::test]
async fn a_reload_retires_the_connections_with_the_old_client_certificate() {
    let names = Names::new(|_| Some(FIRST));
    let rig = Rig::new(&names);
    let issuer = certificates::Authority::new();
    let (old, new) = (issuer.sign("old", |_| {}), issuer.sign("new", |_| {}));
    let files = ClientIdentityFiles { cert: old.0.clone(), key: old.1.clone() };
    let identity = Arc::new(ClientIdentity::load(files).unwrap());
    let client = rig.client.with_client_identity(Arc::clone(&identity)).unwrap();
    let server = rig.server("https", (FIRST, 0)).await;
    let url = format!("https://{HOST}:{}/", server.port);
    echoed(send(&client, &url).await).await;
    identity.reload().unwrap();
    names.many_lookups().await;
    echoed(send(&client, &url).await).await;
    assert_eq!(server.connections(), 1, "the certificate is the same");
    certificates::replace(&new, &old);
    identity.reload().unwrap();
    let renewing = async {
        while server.connections() == 1 {
            echoed(send(&client, &url).await).await;
        }
    };
    soon("a connection with the new certificate", renewing).await;
}
