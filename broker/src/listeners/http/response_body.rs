//! Bodies of responses.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::{StreamExt, stream::BoxStream};
use http_body_util::{Either, Full, combinators::UnsyncBoxBody};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use rules::limits::{EVENT_PIECE_BYTES, HTTP2_PIECE_BYTES};

use crate::{
    admission::outbox_budget::UnreadOwner,
    sessions::{shared::Shared, unread_answer::UnreadAnswer},
};

pub(in crate::listeners) type Body = Either<Full<Bytes>, UnsyncBoxBody<Bytes, BodyAborted>>;

/// The rest of an answer is lost: its replica was, or its client does not read.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the rest of the answer was lost")]
pub(in crate::listeners) struct BodyAborted;

/// A body that ends at a given time.
pub(super) struct ExpiringBody {
    pub(super) body: UnsyncBoxBody<Bytes, BodyAborted>,
    pub(super) end: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl HttpBody for ExpiringBody {
    type Data = Bytes;
    type Error = BodyAborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyAborted>>> {
        if self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A large answer that the HTTP library sends. The library takes it in pieces, and the answer counts
/// in the budget of unread bytes until the last of them.
#[derive(Debug)]
pub(super) struct UnreadBody {
    unread: Arc<UnreadAnswer>,
    /// Set once the library knows that the rest was cut.
    is_aborted: bool,
}

impl UnreadBody {
    pub(super) fn new(answer: Bytes, unread: Arc<UnreadAnswer>) -> Self {
        unread.hold(answer);
        Self { unread, is_aborted: false }
    }
}

impl HttpBody for UnreadBody {
    type Data = Bytes;
    type Error = BodyAborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyAborted>>> {
        let piece = self.unread.take_piece(HTTP2_PIECE_BYTES);
        if !piece.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let aborts = self.unread.is_cut() && !std::mem::replace(&mut self.is_aborted, true);
        Poll::Ready(aborts.then_some(Err(BodyAborted)))
    }

    fn is_end_stream(&self) -> bool {
        self.unread.left() == 0 && (self.is_aborted || !self.unread.is_cut())
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.unread.left() as u64)
    }
}

/// The events of a stream, in pieces.
pub(super) struct EventBody {
    pub(super) unread_counter: Option<UnreadCounter>,
    pub(super) events: BoxStream<'static, Bytes>,
    /// The part of a small event that is not sent.
    pub(super) rest: Bytes,
}

/// Counts a large event in the budget of unread bytes until the client has taken it.
pub(super) struct UnreadCounter {
    pub(super) shared: Arc<Shared>,
    pub(super) owner: UnreadOwner,
    /// The current event, if it is large. It has its own rest.
    pub(super) current: Option<Arc<UnreadAnswer>>,
}

impl EventBody {
    /// Takes the next piece of the current event. Empty: the event is over.
    fn take_piece(&mut self) -> Bytes {
        match self.unread_counter.as_ref().and_then(|counter| counter.current.as_ref()) {
            Some(unread) => unread.take_piece(EVENT_PIECE_BYTES),
            None => self.rest.split_to(self.rest.len().min(EVENT_PIECE_BYTES)),
        }
    }
}

impl HttpBody for EventBody {
    type Data = Bytes;
    type Error = BodyAborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyAborted>>> {
        let mut piece = self.take_piece();
        if piece.is_empty() {
            if let Some(counter) = &mut self.unread_counter
                && counter.current.take().is_some_and(|unread| unread.is_cut())
            {
                counter.shared.metrics.dropped_notification("slow_client");
                return Poll::Ready(Some(Err(BodyAborted)));
            }
            let Some(event) = ready!(self.events.poll_next_unpin(context)) else {
                return Poll::Ready(None);
            };
            let counted = self.unread_counter.as_mut().is_some_and(|counter| {
                let UnreadCounter { shared, owner, current } = counter;
                let owner = || owner.clone();
                *current = UnreadAnswer::count(&shared.unread_budget, event.len(), owner);
                current.as_ref().map(|unread| unread.hold(event.clone())).is_some()
            });
            if !counted {
                self.rest = event;
            }
            piece = self.take_piece();
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use rules::limits::OUTBOX_STEP_BYTES;

    use super::*;
    use crate::{metrics::Metrics, sessions::stream::UnreadBudget};

    #[tokio::test]
    async fn an_answer_cut_by_the_budget_breaks_off_and_others_complete() {
        let budget = UnreadBudget::new(4 * OUTBOX_STEP_BYTES, Arc::new(Metrics::new(false)));
        let body = |bytes: usize| {
            let unread = UnreadAnswer::count(&budget, bytes, UnreadOwner::default).unwrap();
            UnreadBody::new(Bytes::from(vec![7; bytes]), unread)
        };
        let mut large = body(3 * OUTBOX_STEP_BYTES);
        assert!(large.frame().await.unwrap().is_ok());
        let small = body(2 * OUTBOX_STEP_BYTES);
        assert!(large.frame().await.unwrap().is_err());
        assert!(large.frame().await.is_none());
        let whole = small.collect().await.unwrap().to_bytes();
        assert_eq!(whole.len(), 2 * OUTBOX_STEP_BYTES);
    }
}
