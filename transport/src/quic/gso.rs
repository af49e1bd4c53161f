//! How many datagrams a connection hands to the system at once.
//!
//! The library makes room for as many as the system takes with the first datagram of a connection, and keeps it: some 14 KiB, while
//! most connections send little and then wait. So here a connection begins with one at a time, and may have all once it has shown
//! that it has more to say. Used by the listener and by clients, as the runtime of their endpoints.

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

/// So many times a connection may have had more than one datagram to send at once, and still be one that waits most of the time: a
/// handshake is one or two of them, the answer to `initialize` another.
const BURSTS_OF_THE_IDLE: u8 = 4;

thread_local! {
    /// Of the connection that is driven on this thread at the moment: drivers are polled to their end before another is.
    static SEGMENT_BUDGET: Cell<SegmentBudget> = const { Cell::new(SegmentBudget { at_once_max: usize::MAX, sent: 0 }) };
}

#[derive(Debug, Clone, Copy)]
struct SegmentBudget {
    at_once_max: usize,
    /// Calls to the system that sent something.
    sent: usize,
}

/// tokio, with connections that begin small.
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

/// What drives one connection. (The driver of the endpoint is one too, and sends no bursts.)
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

/// The endpoint's socket, which all its connections send on.
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

    /// What it may send at once at each of its turns, of which it sends so many datagrams.
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
    async fn a_connection_gets_all_at_once_when_it_has_much_to_send() {
        let socket =
            GsoLimitRuntime.wrap_udp_socket(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        let mut ready = socket.clone().create_io_poller();
        poll_fn(|context| ready.as_mut().poll_writable(context)).await.unwrap();
        let of_the_system = socket.max_transmit_segments();
        let ((mut idle, of_idle), (mut busy, of_busy)) = (driven(&socket, 1), driven(&socket, 2));
        let mut context = Context::from_waker(Waker::noop());
        // In turns on one thread, as connections are: neither counts for the other.
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
