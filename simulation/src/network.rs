//! The network between clients, replicas and backends: doors at which connections come in, and are
//! led to one of several targets. It delays pieces and cuts connections, as the weather decides. So
//! pieces on different connections overtake each other.

use std::{io, net::SocketAddr, pin::pin, sync::Arc, time::Instant};

use parking_lot::Mutex;
use testkit::history::{History, InjectedFault};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use crate::{
    trace,
    weather::{Weather, pause},
};

const PIECE_BYTES: usize = 64 * 1024;
/// Answer of a balancer whose replicas are all away. Nothing was sent to any of them.
const NO_REPLICA: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Histories that get to know each cut.
pub(crate) type Histories = Arc<Mutex<Vec<History>>>;

pub(crate) fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

#[derive(Clone)]
pub(crate) struct Network {
    weather: Weather,
    histories: Histories,
}

impl Network {
    pub(crate) fn new(weather: &Weather, histories: &Histories) -> Self {
        Self { weather: weather.clone(), histories: Arc::clone(histories) }
    }

    /// Opens a door for clients, which leads to one of these replicas, chosen for each connection.
    pub(crate) async fn open_balancer(
        &self,
        port: u16,
        replicas: Vec<SocketAddr>,
    ) -> io::Result<()> {
        let listener = TcpListener::bind(at(port)).await?;
        let network = self.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (network, replicas) = (network.clone(), replicas.clone());
                tokio::spawn(async move {
                    if let Some(mut client) = network.lead(client, &replicas).await {
                        let _gone = client.read(&mut [0; PIECE_BYTES]).await;
                        let _gone = client.write_all(NO_REPLICA).await;
                    }
                });
            }
        });
        Ok(())
    }

    /// Opens a door that leads to this target.
    pub(crate) async fn open_door(&self, port: u16, target: SocketAddr) -> io::Result<()> {
        let listener = TcpListener::bind(at(port)).await?;
        let network = self.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let network = network.clone();
                tokio::spawn(async move { network.lead(client, &[target]).await });
            }
        });
        Ok(())
    }

    /// Returns the connection if every target refuses it.
    async fn lead(&self, client: TcpStream, targets: &[SocketAddr]) -> Option<TcpStream> {
        let first = self.weather.index(targets.len());
        for number in 0..targets.len() {
            let target = targets[(first + number) % targets.len()];
            let Ok(server) = TcpStream::connect(target).await else { continue };
            let (client_reads, client_writes) = client.into_split();
            let (server_reads, server_writes) = server.into_split();
            let (out, back) = (
                self.pass_on(client_reads, server_writes),
                self.pass_on(server_reads, client_writes),
            );
            let (mut out, mut back) = (pin!(out), pin!(back));
            // A half ends well where its source ends. A cut ends both.
            tokio::select! {
                ended = &mut out => if ended.is_ok() { let _cut = back.await; },
                ended = &mut back => if ended.is_ok() { let _cut = out.await; },
            }
            return None;
        }
        Some(client)
    }

    /// Passes on what comes until the end, or until the connection is cut.
    async fn pass_on(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let length = from.read(&mut piece).await?;
            if length == 0 {
                return to.shutdown().await;
            }
            let Some(delay) = self.weather.piece() else {
                trace::record("cut", length as u64);
                let now = Instant::now();
                let histories = self.histories.lock();
                histories.iter().for_each(|of| of.record_fault(InjectedFault::ConnectionCut, now));
                return Err(io::ErrorKind::ConnectionReset.into());
            };
            pause(delay).await;
            to.write_all(&piece[..length]).await?;
        }
    }
}
