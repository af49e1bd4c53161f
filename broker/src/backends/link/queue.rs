//! Bounded queue of frames to a backend: all frames of a pipe, and the notifications and answers
//! over HTTP.
//!
//! A connection fills it. One task that writes empties it. A frame counts in `mcp_queue_depth`
//! while it is in the queue, until it is taken or dropped with the queue.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use parking_lot::Mutex;
use prometheus::IntGauge;
use tokio::sync::mpsc;

use super::failure::Failure;
use crate::metrics::{Direction, Metrics, Side};

/// The sending end, which never waits.
#[derive(Debug)]
pub struct FrameQueue {
    /// `None` once closed.
    frames: Mutex<Option<mpsc::Sender<QueuedFrame>>>,
    depth: IntGauge,
    /// Set while a coalesced frame is in the queue.
    coalesced_queued: Arc<AtomicBool>,
}

/// A frame in the queue.
#[derive(Debug)]
pub struct QueuedFrame {
    frame: Bytes,
    _depth: DepthGuard,
    _waiting: Option<CoalesceGuard>,
}

/// Marks that a coalesced frame is in the queue. Dropping it clears the mark.
#[derive(Debug)]
struct CoalesceGuard(Arc<AtomicBool>);

impl Drop for CoalesceGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A counted slot of the queue.
#[derive(Debug)]
struct DepthGuard(IntGauge);

impl FrameQueue {
    /// Creates a queue with its receiving end, which ends after [`FrameQueue::close`].
    pub fn new(frames_max: usize, depth: IntGauge) -> (Self, mpsc::Receiver<QueuedFrame>) {
        let (frames, receiver) = mpsc::channel(frames_max);
        (
            Self { frames: Mutex::new(Some(frames)), depth, coalesced_queued: Arc::default() },
            receiver,
        )
    }

    pub fn push(&self, frame: Bytes) -> Result<(), Failure> {
        self.push_with(frame, None)
    }

    /// Queues a notification or an answer. A frame that does not fit is dropped, counted and
    /// logged.
    pub fn push_or_drop(&self, frame: Bytes, metrics: &Metrics) {
        metrics.bytes(Direction::Out, Side::Backend, frame.len());
        if let Err(failure) = self.push(frame) {
            metrics.dropped_notification("to_backend");
            tracing::debug!(%failure, "a notification or answer did not reach the backend");
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
                tracing::debug!(%failure, "a notification did not reach the backend");
            }
        }
    }

    /// Returns `false` if an equal frame is in the queue.
    fn push_coalesced(&self, frame: Bytes) -> Result<bool, Failure> {
        if self.coalesced_queued.swap(true, Ordering::AcqRel) {
            return Ok(false);
        }
        self.push_with(frame, Some(CoalesceGuard(self.coalesced_queued.clone()))).map(|()| true)
    }

    fn push_with(&self, frame: Bytes, waiting: Option<CoalesceGuard>) -> Result<(), Failure> {
        let frames = self.frames.lock();
        let Some(frames) = frames.as_ref() else {
            return Err(Failure::NotSent("the connection is closed".to_owned()));
        };
        frames
            .try_send(QueuedFrame {
                frame,
                _depth: DepthGuard::take(&self.depth),
                _waiting: waiting,
            })
            .map_err(|error| match error {
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

impl DepthGuard {
    fn take(depth: &IntGauge) -> Self {
        depth.inc();
        Self(depth.clone())
    }
}

impl Drop for DepthGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_depth_follows_frames_in_and_out() {
        let metrics = Metrics::new(false);
        let depth = metrics.queue_depth("pipe");
        let (queue, mut frames) = FrameQueue::new(2, depth.clone());
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
    fn s09_equal_notifications_are_queued_once() {
        let depth = Metrics::new(false).queue_depth("pipe");
        let (queue, mut frames) = FrameQueue::new(2, depth.clone());
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
        assert!(!queue.coalesced_queued.load(Ordering::Acquire));
    }

    #[test]
    fn frames_of_a_dropped_queue_are_not_counted() {
        let depth = Metrics::new(false).queue_depth("pipe");
        let (queue, frames) = FrameQueue::new(2, depth.clone());
        queue.push(Bytes::from_static(b"one")).unwrap();
        drop(frames);
        assert!(matches!(queue.push(Bytes::new()), Err(Failure::NotSent(_))));
        assert_eq!(depth.get(), 0);
    }
}
