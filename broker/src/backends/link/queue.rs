//! Bounded queue of frames to a backend: all frames of a pipe, and the notifications and answers
//! over HTTP.
//!
//! A connection fills it. One task that writes empties it. A frame counts in `mcp_queue_depth`
//! while it is in the queue, until it is taken or dropped with the queue. The queue is bounded in
//! frames and in bytes, because a backend that does not read leaves the frames of cancelled calls
//! in it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use bytes::Bytes;
use parking_lot::Mutex;
use prometheus::IntGauge;
use protocol::ids::{BackendId, TenantId};
use rules::limits::LINK_QUEUE_BYTES_MAX;
use tokio::sync::mpsc;

use super::failure::Failure;
use crate::metrics::{Direction, Metrics, Side};

/// The backend of a queue, as the log names it.
#[derive(Debug, Clone)]
pub struct QueueOwner {
    pub tenant: TenantId,
    pub backend: BackendId,
}

impl QueueOwner {
    pub fn new(tenant: &TenantId, backend: &BackendId) -> Self {
        Self { tenant: tenant.clone(), backend: backend.clone() }
    }
}

/// The sending end, which never waits.
#[derive(Debug)]
pub struct FrameQueue {
    pub owner: QueueOwner,
    /// `None` once closed.
    frames: Mutex<Option<mpsc::Sender<QueuedFrame>>>,
    contents: Arc<QueueContents>,
}

/// A frame in the queue.
#[derive(Debug)]
pub struct QueuedFrame {
    frame: Bytes,
    _place: QueuePlace,
}

/// The counts of a frame in its queue. Dropping it takes them back.
#[derive(Debug)]
struct QueuePlace {
    contents: Arc<QueueContents>,
    bytes: usize,
    coalesced: bool,
}

/// The counts of all frames in a queue.
#[derive(Debug)]
struct QueueContents {
    depth: IntGauge,
    bytes: AtomicUsize,
    /// Set while a coalesced frame is in the queue.
    has_coalesced: AtomicBool,
}

impl FrameQueue {
    /// Creates a queue with its receiving end, which ends after [`FrameQueue::close`].
    pub fn new(
        owner: QueueOwner,
        frames_max: usize,
        depth: IntGauge,
    ) -> (Self, mpsc::Receiver<QueuedFrame>) {
        let (frames, receiver) = mpsc::channel(frames_max);
        let contents = QueueContents {
            depth,
            bytes: AtomicUsize::default(),
            has_coalesced: AtomicBool::default(),
        };
        (Self { owner, frames: Mutex::new(Some(frames)), contents: Arc::new(contents) }, receiver)
    }

    pub fn push(&self, frame: Bytes) -> Result<(), Failure> {
        self.push_with(frame, false)
    }

    /// Queues a notification or an answer. A frame that does not fit is dropped, counted and
    /// logged.
    pub fn push_or_drop(&self, frame: Bytes, metrics: &Metrics) {
        metrics.bytes(Direction::Out, Side::Backend, frame.len());
        if let Err(failure) = self.push(frame) {
            metrics.dropped_notification("to_backend");
            let QueueOwner { tenant, backend } = &self.owner;
            tracing::debug!(%tenant, %backend, %failure, "a notification or answer did not reach the backend");
        }
    }

    /// Queues a notification, unless an equal one is in the queue already.
    pub fn push_coalesced_or_drop(&self, frame: Bytes, metrics: &Metrics) {
        let bytes = frame.len();
        match self.push_coalesced(frame) {
            Ok(true) => metrics.bytes(Direction::Out, Side::Backend, bytes),
            Ok(false) => metrics.dropped_notification("repeated"),
            Err(failure) => {
                metrics.dropped_notification("to_backend");
                let QueueOwner { tenant, backend } = &self.owner;
                tracing::debug!(%tenant, %backend, %failure, "a notification did not reach the backend");
            }
        }
    }

    /// Returns `false` if an equal frame is in the queue.
    fn push_coalesced(&self, frame: Bytes) -> Result<bool, Failure> {
        if self.contents.has_coalesced.swap(true, Ordering::AcqRel) {
            return Ok(false);
        }
        self.push_with(frame, true).map(|()| true)
    }

    /// Queues a frame. A frame above the limit of bytes fits if no other frame has any.
    fn push_with(&self, frame: Bytes, coalesced: bool) -> Result<(), Failure> {
        let frames = self.frames.lock();
        let others = self.contents.bytes.load(Ordering::Acquire);
        let place = QueuePlace::take(&self.contents, frame.len(), coalesced);
        let Some(frames) = frames.as_ref() else {
            return Err(Failure::NotSent("the connection is closed".to_owned()));
        };
        if others > 0 && others.saturating_add(frame.len()) > LINK_QUEUE_BYTES_MAX {
            return Err(Failure::QueueFull);
        }
        frames.try_send(QueuedFrame { frame, _place: place }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Failure::QueueFull,
            mpsc::error::TrySendError::Closed(_) => {
                Failure::NotSent("the connection is closed".to_owned())
            }
        })
    }

    /// Returns whether no frame can be queued any more.
    pub fn is_closed(&self) -> bool {
        self.frames.lock().as_ref().is_none_or(mpsc::Sender::is_closed)
    }

    /// Closes the queue for new frames. Queued frames can still be taken.
    pub fn close(&self) {
        self.frames.lock().take();
    }
}

impl QueuedFrame {
    /// Takes the frame out of the queue.
    pub fn into_frame(self) -> Bytes {
        self.frame
    }
}

impl QueuePlace {
    fn take(contents: &Arc<QueueContents>, bytes: usize, coalesced: bool) -> Self {
        contents.depth.inc();
        contents.bytes.fetch_add(bytes, Ordering::AcqRel);
        Self { contents: contents.clone(), bytes, coalesced }
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.contents.depth.dec();
        self.contents.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        if self.coalesced {
            self.contents.has_coalesced.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
impl FrameQueue {
    pub fn for_tests(frames_max: usize, depth: IntGauge) -> (Self, mpsc::Receiver<QueuedFrame>) {
        let (tenant, backend) = (TenantId::parse("acme"), BackendId::parse("b"));
        let owner = QueueOwner::new(&tenant.unwrap(), &backend.unwrap());
        Self::new(owner, frames_max, depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_depth_follows_frames_in_and_out() {
        let metrics = Metrics::new(false);
        let depth = metrics.queue_depth("pipe");
        let (queue, mut frames) = FrameQueue::for_tests(2, depth.clone());
        queue.push(Bytes::from_static(b"one")).unwrap();
        queue.push(Bytes::from_static(b"two")).unwrap();
        assert_eq!(queue.push(Bytes::from_static(b"three")), Err(Failure::QueueFull));
        assert!(metrics.render().contains(r#"mcp_queue_depth{queue="pipe"} 2"#));
        assert_eq!(frames.try_recv().unwrap().into_frame(), "one");
        assert_eq!(depth.get(), 1);
        queue.close();
        assert!(matches!(queue.push(Bytes::new()), Err(Failure::NotSent(_))));
        assert_eq!(frames.try_recv().unwrap().into_frame(), "two");
        assert_eq!(depth.get(), 0);
    }

    #[test]
    fn queued_frames_are_bounded_in_bytes() {
        let depth = Metrics::new(false).queue_depth("pipe");
        let (queue, mut frames) = FrameQueue::for_tests(10, depth.clone());
        let push = |bytes: usize| queue.push(Bytes::from(vec![b' '; bytes]));
        // A frame that is alone always fits.
        assert_eq!(push(LINK_QUEUE_BYTES_MAX + 1), Ok(()));
        assert_eq!(push(1), Err(Failure::QueueFull));
        drop(frames.try_recv());
        let half = LINK_QUEUE_BYTES_MAX / 2;
        assert_eq!((push(half), push(half), push(1)), (Ok(()), Ok(()), Err(Failure::QueueFull)));
        // A taken frame makes room. A refused one leaves no bytes.
        assert_eq!(frames.try_recv().unwrap().into_frame().len(), half);
        assert_eq!((push(half + 1), push(half)), (Err(Failure::QueueFull), Ok(())));
        drop(frames);
        assert_eq!((depth.get(), queue.contents.bytes.load(Ordering::Acquire)), (0, 0));
    }

    #[test]
    fn s09_equal_notifications_are_queued_once() {
        let depth = Metrics::new(false).queue_depth("pipe");
        let (queue, mut frames) = FrameQueue::for_tests(2, depth.clone());
        let push = || queue.push_coalesced(Bytes::from_static(b"changed"));
        assert_eq!((push(), push(), depth.get()), (Ok(true), Ok(false), 1));
        assert_eq!(frames.try_recv().unwrap().into_frame(), "changed");
        assert_eq!((push(), push(), depth.get()), (Ok(true), Ok(false), 1));
        drop(frames.try_recv());
        queue.push(Bytes::from_static(b"one")).unwrap();
        queue.push(Bytes::from_static(b"two")).unwrap();
        // A frame that did not fit does not suppress the next one.
        assert_eq!((push(), push()), (Err(Failure::QueueFull), Err(Failure::QueueFull)));
        drop(frames.try_recv());
        assert_eq!(push(), Ok(true));
        drop(frames);
        assert!(!queue.contents.has_coalesced.load(Ordering::Acquire));
    }

    #[test]
    fn frames_of_a_dropped_queue_are_not_counted() {
        let depth = Metrics::new(false).queue_depth("pipe");
        let (queue, frames) = FrameQueue::for_tests(2, depth.clone());
        queue.push(Bytes::from_static(b"one")).unwrap();
        drop(frames);
        assert!(matches!(queue.push(Bytes::new()), Err(Failure::NotSent(_))));
        assert_eq!(depth.get(), 0);
    }
}
