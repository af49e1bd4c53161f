//! A TCP proxy with faults of a bad network, which a test switches on and off while it runs.
//!
//! It stands between the broker and a store, a backend or another broker. *Up* is from the client
//! towards the target, *down* is back. Without a fault, bytes pass unchanged and at once; an end of
//! one side is passed on to the other.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::abort_on_drop::AbortOnDrop;

/// Most bytes of one read.
const CHUNK_BYTES: usize = 16 * 1024;
/// Chunks on their way in one direction of one connection.
const CHUNKS_HELD: usize = 256;
/// Time that one write under a rate limit represents.
const RATE_STEP: Duration = Duration::from_millis(10);

/// Direction of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Towards the target.
    Upstream,
    /// Back to the client.
    Downstream,
}

/// Faults of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetworkFault {
    /// Delay of each byte.
    pub latency: Duration,
    /// Set to drop bytes (and the end) for good.
    pub hole: bool,
    /// Set to hold bytes (and the end) until it is cleared, as in a network partition.
    pub hold: bool,
    /// Bytes per second.
    pub rate: Option<u32>,
    /// Set to send each byte in a segment of its own.
    pub slice: bool,
}

/// A running proxy; gone, with its connections, when dropped.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<ProxyShared>,
    accepting: tokio::sync::Mutex<Option<AbortOnDrop>>,
}

#[derive(Debug)]
struct ProxyShared {
    up: watch::Sender<NetworkFault>,
    down: watch::Sender<NetworkFault>,
    state: Mutex<ProxyState>,
}

#[derive(Debug)]
struct ProxyState {
    target: SocketAddr,
    /// Ends the connections that are open now.
    reset: CancellationToken,
    /// The next connection to carry this many more bytes up (down) is cut there.
    cut_up: Option<u64>,
    cut_down: Option<u64>,
    cuts: u64,
    accepted: u64,
    open: u64,
}

impl FaultProxy {
    /// Listens on a free port of 127.0.0.1.
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let state = ProxyState {
            target,
            reset: CancellationToken::new(),
            cut_up: None,
            cut_down: None,
            cuts: 0,
            accepted: 0,
            open: 0,
        };
        let shared = Arc::new(ProxyShared {
            up: watch::Sender::default(),
            down: watch::Sender::default(),
            state: Mutex::new(state),
        });
        let accepting = AbortOnDrop(tokio::spawn(accept(shared.clone(), listener)));
        Self { address, shared, accepting: tokio::sync::Mutex::new(Some(accepting)) }
    }

    /// Returns the address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the target of new connections.
    pub fn set_target(&self, target: SocketAddr) {
        self.shared.lock().target = target;
    }

    /// Changes the faults of one direction, for open connections too.
    pub fn fault(&self, way: Direction, change: impl FnOnce(&mut NetworkFault)) {
        self.shared.faults(way).send_modify(change);
    }

    pub fn latency(&self, way: Direction, latency: Duration) {
        self.fault(way, |fault| fault.latency = latency);
    }

    /// Drops bytes until switched off; dropped bytes stay lost.
    pub fn hole(&self, way: Direction, on: bool) {
        self.fault(way, |fault| fault.hole = on);
    }

    /// Holds bytes back, until switched off.
    pub fn hold(&self, way: Direction, on: bool) {
        self.fault(way, |fault| fault.hold = on);
    }

    pub fn rate(&self, way: Direction, bytes_per_second: Option<u32>) {
        self.fault(way, |fault| fault.rate = bytes_per_second);
    }

    pub fn slice(&self, way: Direction, on: bool) {
        self.fault(way, |fault| fault.slice = on);
    }

    /// Removes all faults of both directions, and a cut that was not reached.
    pub fn heal(&self) {
        self.shared.up.send_replace(NetworkFault::default());
        self.shared.down.send_replace(NetworkFault::default());
        let mut state = self.shared.lock();
        (state.cut_up, state.cut_down) = (None, None);
    }

    /// Ends one connection: the one that carries the last of the next `bytes` in this direction,
    /// counted over all connections. Bytes before the cut do arrive.
    pub fn cut_after(&self, way: Direction, bytes: u64) {
        *self.shared.lock().cut(way) = Some(bytes);
    }

    /// Returns how many connections [`FaultProxy::cut_after`] ended.
    pub fn cuts(&self) -> u64 {
        self.shared.lock().cuts
    }

    /// Ends every open connection with a TCP reset on both sides.
    pub fn reset(&self) {
        std::mem::take(&mut self.shared.lock().reset).cancel();
    }

    /// Refuses new connections; open ones continue.
    pub async fn refuse(&self) {
        if let Some(mut accepting) = self.accepting.lock().await.take() {
            accepting.0.abort();
            let _ = (&mut accepting.0).await; // the listener is closed
        }
    }

    /// Accepts connections again after [`FaultProxy::refuse`], on the same port.
    pub async fn accept_again(&self) {
        let mut accepting = self.accepting.lock().await;
        if accepting.is_none() {
            let listener = TcpListener::bind(self.address).await.expect("the port is still free");
            *accepting = Some(AbortOnDrop(tokio::spawn(accept(self.shared.clone(), listener))));
        }
    }

    /// Returns the number of connections accepted so far.
    pub fn connections(&self) -> u64 {
        self.shared.lock().accepted
    }

    pub fn open_connections(&self) -> u64 {
        self.shared.lock().open
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.reset();
    }
}

impl ProxyShared {
    fn lock(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock()
    }

    fn faults(&self, way: Direction) -> &watch::Sender<NetworkFault> {
        match way {
            Direction::Upstream => &self.up,
            Direction::Downstream => &self.down,
        }
    }

    /// Returns how many of `bytes` may still go this way, and whether the connection ends after
    /// them.
    fn spend(&self, way: Direction, bytes: usize) -> (usize, bool) {
        let mut state = self.lock();
        let Some(remaining) = state.cut(way) else { return (bytes, false) };
        if *remaining > bytes as u64 {
            *remaining -= bytes as u64;
            return (bytes, false);
        }
        let allowed = *remaining as usize;
        *state.cut(way) = None;
        state.cuts += 1;
        (allowed, true)
    }
}

impl ProxyState {
    fn cut(&mut self, way: Direction) -> &mut Option<u64> {
        match way {
            Direction::Upstream => &mut self.cut_up,
            Direction::Downstream => &mut self.cut_down,
        }
    }
}

async fn accept(shared: Arc<ProxyShared>, listener: TcpListener) {
    while let Ok((client, _)) = listener.accept().await {
        let mut state = shared.lock();
        state.accepted += 1;
        state.open += 1;
        let (target, reset) = (state.target, state.reset.clone());
        drop(state);
        let shared = shared.clone();
        tokio::spawn(async move {
            carry(&shared, client, target, reset).await;
            shared.lock().open -= 1;
        });
    }
}

/// Reason why bytes stop in one direction, other than an end that was passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PumpEnd {
    Cut,
    Reset,
}

async fn carry(
    shared: &ProxyShared,
    mut client: TcpStream,
    target: SocketAddr,
    reset: CancellationToken,
) {
    let connected = tokio::select! {
        () = reset.cancelled() => None,
        connected = TcpStream::connect(target) => connected.ok(),
    };
    let Some(mut server) = connected else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let stop = {
        let (client_reads, client_writes) = client.split();
        let (server_reads, server_writes) = server.split();
        let both = async {
            tokio::try_join!(
                pump(shared, Direction::Upstream, client_reads, server_writes),
                pump(shared, Direction::Downstream, server_reads, client_writes)
            )
        };
        tokio::select! {
            () = reset.cancelled() => Some(PumpEnd::Reset),
            ended = both => ended.err(),
        }
    };
    // After a cut the bytes before it must arrive, which a reset could prevent.
    if stop == Some(PumpEnd::Reset) {
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
}

type Chunk = (Instant, Vec<u8>);

/// Carries one direction of one connection. `Ok` once an end was passed on. Reads continue while a
/// write waits, so that a latency does not reduce the throughput.
async fn pump(
    shared: &ProxyShared,
    way: Direction,
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
) -> Result<(), PumpEnd> {
    let (queue, chunks) = mpsc::channel::<Chunk>(CHUNKS_HELD);
    let read = async move {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let read = from.read(&mut buffer).await.map_err(|_| PumpEnd::Reset)?;
            let due = Instant::now() + shared.faults(way).borrow().latency;
            // An empty chunk is the end.
            if queue.send((due, buffer[..read].to_vec())).await.is_err() || read == 0 {
                return Ok(());
            }
        }
    };
    tokio::try_join!(read, write(shared, way, chunks, &mut to)).map(|_| ())
}

async fn write(
    shared: &ProxyShared,
    way: Direction,
    mut chunks: mpsc::Receiver<Chunk>,
    to: &mut WriteHalf<'_>,
) -> Result<(), PumpEnd> {
    let mut faults = shared.faults(way).subscribe();
    while let Some((due, chunk)) = chunks.recv().await {
        tokio::time::sleep_until(due).await;
        let _ = faults.wait_for(|fault| !fault.hold).await;
        if faults.borrow().hole {
            if chunk.is_empty() {
                std::future::pending::<()>().await; // nobody learns of the end
            }
            continue;
        }
        if chunk.is_empty() {
            return to.shutdown().await.map_err(|_| PumpEnd::Reset);
        }
        let (allowed, cut) = shared.spend(way, chunk.len());
        write_slowly(&faults, &chunk[..allowed], to).await.map_err(|_| PumpEnd::Reset)?;
        if cut {
            return Err(PumpEnd::Cut);
        }
    }
    Ok(())
}

async fn write_slowly(
    faults: &watch::Receiver<NetworkFault>,
    mut bytes: &[u8],
    to: &mut WriteHalf<'_>,
) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let fault = *faults.borrow();
        let by_rate = fault
            .rate
            .map(|rate| (rate as usize / (1_000 / RATE_STEP.as_millis() as usize)).max(1));
        let length = if fault.slice { 1 } else { by_rate.unwrap_or(bytes.len()).min(bytes.len()) };
        let (now, rest) = bytes.split_at(length);
        to.write_all(now).await?;
        bytes = rest;
        match fault.rate {
            Some(rate) => {
                tokio::time::sleep(Duration::from_secs_f64(length as f64 / f64::from(rate.max(1))))
                    .await
            }
            None if fault.slice => tokio::task::yield_now().await,
            None => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deadline::{eventually, within};

    /// Starts a server that sends back what it receives, and a proxy in front of it.
    async fn echo() -> (AbortOnDrop, FaultProxy) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut reads, mut writes) = stream.split();
                    let _ = tokio::io::copy(&mut reads, &mut writes).await;
                });
            }
        });
        (AbortOnDrop(serving), FaultProxy::start(target).await)
    }

    async fn heard(stream: &mut TcpStream, length: usize) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        within("bytes back", stream.read_exact(&mut bytes)).await?;
        Ok(bytes)
    }

    #[tokio::test]
    async fn the_proxy_forwards_bytes_and_ends_and_counts_connections() {
        let (_server, proxy) = echo().await;
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        let sent: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        let (mut reads, mut writes) = client.split();
        let mut back = Vec::new();
        let send = async {
            writes.write_all(&sent).await.unwrap();
            writes.shutdown().await.unwrap();
        };
        let (_, read) =
            within("all of it", async { tokio::join!(send, reads.read_to_end(&mut back)) }).await;
        assert_eq!((read.unwrap(), back == sent), (sent.len(), true));
        assert_eq!(proxy.connections(), 1);
        eventually("the connection to end", async || {
            if proxy.open_connections() == 0 { Ok(()) } else { Err("open") }
        })
        .await;
    }

    #[tokio::test]
    async fn the_proxy_holds_slices_and_delays_bytes() {
        let (_server, proxy) = echo().await;
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        proxy.hold(Direction::Downstream, true);
        proxy.slice(Direction::Upstream, true);
        client.write_all(b"abc").await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(50), client.readable()).await.is_err());
        proxy.heal();
        assert_eq!(heard(&mut client, 3).await.unwrap(), b"abc");
        proxy.latency(Direction::Upstream, Duration::from_millis(60));
        proxy.rate(Direction::Downstream, Some(1_000));
        let started = Instant::now();
        client.write_all(&[7; 50]).await.unwrap();
        heard(&mut client, 50).await.unwrap();
        assert!(started.elapsed() >= Duration::from_millis(100), "{:?}", started.elapsed());
    }

    #[tokio::test]
    async fn the_proxy_drops_bytes_and_cuts_at_an_exact_byte() {
        let (_server, proxy) = echo().await;
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        proxy.hole(Direction::Upstream, true);
        client.write_all(b"lost").await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(50), client.readable()).await.is_err());
        proxy.hole(Direction::Upstream, false);
        proxy.cut_after(Direction::Downstream, 5);
        client.write_all(b"arrives").await.unwrap();
        let mut back = Vec::new();
        within("the end", client.read_to_end(&mut back)).await.unwrap();
        assert_eq!((&back[..], proxy.cuts()), (&b"arriv"[..], 1));
        let mut next = TcpStream::connect(proxy.address()).await.unwrap();
        next.write_all(b"whole again").await.unwrap();
        assert_eq!(heard(&mut next, 11).await.unwrap(), b"whole again");
    }

    #[tokio::test]
    async fn the_proxy_resets_refuses_and_accepts_again() {
        let (server, proxy) = echo().await;
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client.write_all(b"x").await.unwrap();
        heard(&mut client, 1).await.unwrap();
        proxy.reset();
        assert_eq!(
            heard(&mut client, 1).await.unwrap_err().kind(),
            std::io::ErrorKind::ConnectionReset
        );
        proxy.refuse().await;
        let refused = TcpStream::connect(proxy.address()).await;
        assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
        proxy.accept_again().await;
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client.write_all(b"y").await.unwrap();
        heard(&mut client, 1).await.unwrap();
        drop(server);
    }
}
