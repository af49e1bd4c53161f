//! Limits the number of datagrams that a connection passes to the system at once.
//!
//! With the first datagram of a connection, the library allocates space for as many datagrams as
//! the system accepts, and keeps it. This takes about 14 KiB, while most connections send little
//! and then wait. So a connection starts with one datagram at a time, and gets the full number
//! after several bursts. The listener and the clients use this as the runtime of their endpoints.

use std::{
    cell::Cell,
    fmt,
    future::Future,
    io::{self, IoSliceMut},
    net::{SocketAddr, UdpSocket},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use quinn::{
    AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller,
    udp::{RecvMeta, Transmit},
};

/// Number of bursts after which a connection counts as busy. A burst is a turn with more than one
/// datagram. A handshake has one or two bursts, and the answer to `initialize` one more.
const BURSTS_OF_THE_IDLE: u8 = 4;

thread_local! {
    /// Budget of the connection whose driver this thread polls. Each poll of a driver ends before
    /// the next begins.
    static SEGMENT_BUDGET: Cell<SegmentBudget> = const { Cell::new(SegmentBudget { at_once_max: usize::MAX, sent: 0 }) };
}

#[derive(Debug, Clone, Copy)]
struct SegmentBudget {
    at_once_max: usize,
    /// Number of system calls that sent data.
    sent: usize,
}

/// The tokio runtime, with small first buffers for connections.
#[derive(Debug)]
pub(super) struct GsoLimitRuntime;

impl Runtime for GsoLimitRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, driver: Pin<Box<dyn Future<Output = ()> + Send>>) {
        tokio::spawn(ConnectionDriver { driver, bursts: 0 });
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Ok(Arc::new(GsoLimitSocket(TokioRuntime.wrap_udp_socket(socket)?)))
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

/// Driver of one connection. It also wraps the driver of the endpoint, which sends no bursts.
struct ConnectionDriver {
    driver: Pin<Box<dyn Future<Output = ()> + Send>>,
    bursts: u8,
}

impl Future for ConnectionDriver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let is_busy = self.bursts >= BURSTS_OF_THE_IDLE;
        SEGMENT_BUDGET
            .set(SegmentBudget { at_once_max: if is_busy { usize::MAX } else { 1 }, sent: 0 });
        let polled = self.driver.as_mut().poll(context);
        if SEGMENT_BUDGET.get().sent > 1 {
            self.bursts = self.bursts.saturating_add(1);
        }
        polled
    }
}

/// The endpoint's socket, on which all its connections send.
struct GsoLimitSocket(Arc<dyn AsyncUdpSocket>);

impl fmt::Debug for GsoLimitSocket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl AsyncUdpSocket for GsoLimitSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.0.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let sent = self.0.try_send(transmit);
        if sent.is_ok() {
            let turn = SEGMENT_BUDGET.get();
            SEGMENT_BUDGET.set(SegmentBudget { sent: turn.sent + 1, ..turn });
        }
        sent
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        bytes: &mut [IoSliceMut<'_>],
        about: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_recv(context, bytes, about)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.0.max_transmit_segments().min(SEGMENT_BUDGET.get().at_once_max)
    }

    fn max_receive_segments(&self) -> usize {
        self.0.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.0.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, task::Waker};

    use parking_lot::Mutex;

    use super::*;

    /// Returns a driver that sends this many datagrams in each turn, and the segment limits that it
    /// saw.
    fn driven(
        socket: &Arc<dyn AsyncUdpSocket>,
        datagrams: usize,
    ) -> (ConnectionDriver, Arc<Mutex<Vec<usize>>>) {
        let (socket, seen) = (socket.clone(), Arc::<Mutex<Vec<usize>>>::default());
        let seen_by_driver = seen.clone();
        let driver = poll_fn(move |_| {
            seen_by_driver.lock().push(socket.max_transmit_segments());
            let destination = socket.local_addr().unwrap();
            for _ in 0..datagrams {
                socket
                    .try_send(&Transmit {
                        destination,
                        ecn: None,
                        contents: b"words",
                        segment_size: None,
                        src_ip: None,
                    })
                    .unwrap();
            }
            Poll::Pending
        });
        (ConnectionDriver { driver: Box::pin(driver), bursts: 0 }, seen)
    }

    #[tokio::test]
    async fn a_busy_connection_gets_the_full_number_of_datagrams() {
        let socket =
            GsoLimitRuntime.wrap_udp_socket(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        let mut ready = socket.clone().create_io_poller();
        poll_fn(|context| ready.as_mut().poll_writable(context)).await.unwrap();
        let of_the_system = socket.max_transmit_segments();
        let ((mut idle, of_idle), (mut busy, of_busy)) = (driven(&socket, 1), driven(&socket, 2));
        let mut context = Context::from_waker(Waker::noop());
        // The two connections take turns on one thread. The bursts of one must not count for the
        // other.
        for _ in 0..8 {
            let _pending = Pin::new(&mut idle).poll(&mut context);
            let _pending = Pin::new(&mut busy).poll(&mut context);
        }
        assert_eq!(*of_idle.lock(), [1; 8]);
        let bursts = usize::from(BURSTS_OF_THE_IDLE);
        assert_eq!(of_busy.lock()[..bursts], vec![1; bursts]);
        assert_eq!(of_busy.lock()[bursts..], vec![of_the_system; 8 - bursts]);
    }
}
