//! A process that passes bytes on and reads none: the least cost of any proxy.

use std::{
    collections::{HashMap, hash_map::Entry},
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, ExitCode, Stdio},
    sync::Arc,
};

use anyhow::Context as _;
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// Argument before a kind and an address: the program is the byte proxy.
const PROXY: &str = "--byte-proxy";
const DATAGRAM_BYTES_MAX: usize = 64 * 1024;

/// This program, started again as a byte proxy.
pub(crate) struct ByteProxy {
    pub(crate) address: SocketAddr,
    child: Child,
}

impl ByteProxy {
    /// Starts the proxy. `datagrams`: set for a wire over UDP.
    pub(crate) fn start(target: SocketAddr, datagrams: bool) -> anyhow::Result<Self> {
        let kind = if datagrams { "datagrams" } else { "streams" };
        let arguments = [PROXY, kind, &target.to_string()];
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("it has an output")?).read_line(&mut line)?;
        Ok(Self { address: line.trim().parse()?, child })
    }
}

impl Drop for ByteProxy {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Runs the proxy if the arguments of this process ask for it.
pub(crate) fn run_if_requested() -> Option<ExitCode> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, command, kind, target] = &arguments[..] else { return None };
    (command == PROXY).then(|| proxy(kind, target))
}

fn proxy(kind: &str, target: &str) -> ExitCode {
    let serving = async {
        let target: SocketAddr = target.parse()?;
        if kind == "datagrams" { datagrams(target).await } else { streams(target).await }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let served: anyhow::Result<()> =
        runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(serving));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the byte proxy ended: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn streams(target: SocketAddr) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (mut client, _) = listener.accept().await?;
        let _delayed_only = client.set_nodelay(true);
        tokio::spawn(async move {
            let mut server = TcpStream::connect(target).await?;
            server.set_nodelay(true)?;
            tokio::io::copy_bidirectional(&mut client, &mut server).await?;
            anyhow::Ok(())
        });
    }
}

/// Passes datagrams on. Each client has a socket of its own towards the server, through which its
/// answers return.
async fn datagrams(target: SocketAddr) -> anyhow::Result<()> {
    let front = Arc::new(UdpSocket::bind("127.0.0.1:0").await?);
    println!("{}", front.local_addr()?);
    let mut ways = HashMap::<SocketAddr, Arc<UdpSocket>>::new();
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let (length, client) = front.recv_from(&mut buffer).await?;
        let way = match ways.entry(client) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let way = Arc::new(UdpSocket::bind("127.0.0.1:0").await?);
                way.connect(target).await?;
                tokio::spawn(back(way.clone(), front.clone(), client));
                new.insert(way)
            }
        };
        // A datagram may be lost, as on any network.
        let _lost = way.send(&buffer[..length]).await;
    }
}

async fn back(way: Arc<UdpSocket>, front: Arc<UdpSocket>, client: SocketAddr) {
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    while let Ok(length) = way.recv(&mut buffer).await {
        let _lost = front.send_to(&buffer[..length], client).await;
    }
}
