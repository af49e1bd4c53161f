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
use rules::limits::EVENT_PIECE_BYTES;

use crate::{
    admission::outbox_budget::UnreadOwner,
    listeners::http2_stall::take_piece,
    sessions::{
        shared::Shared,
        unread_answer::{AnswerCut, UnreadAnswer},
    },
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
    pub(super) rest: Bytes,
    pub(super) unread: Arc<UnreadAnswer>,
}

impl HttpBody for UnreadBody {
    type Data = Bytes;
    type Error = BodyAborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyAborted>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        if self.unread.is_cut() {
            self.rest = Bytes::new();
            return Poll::Ready(Some(Err(BodyAborted)));
        }
        Poll::Ready(Some(Ok(Frame::data(take_piece(&mut self.rest)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// The events of a stream, in pieces.
pub(super) struct EventBody {
    pub(super) unread_counter: Option<UnreadCounter>,
    pub(super) events: BoxStream<'static, Bytes>,
    /// The part of the current event that is not sent.
    pub(super) rest: Bytes,
}

/// Counts a large event in the budget of unread bytes until the client has taken it.
pub(super) struct UnreadCounter {
    pub(super) shared: Arc<Shared>,
    pub(super) owner: UnreadOwner,
    /// The current event, if it is large.
    pub(super) current: Option<Arc<UnreadAnswer>>,
    /// Shows a cut of any of the events.
    pub(super) cut: AnswerCut,
}

impl HttpBody for EventBody {
    type Data = Bytes;
    type Error = BodyAborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyAborted>>> {
        if let Some(counter) = &self.unread_counter
            && counter.cut.is_cut()
        {
            counter.shared.metrics.dropped_notification("slow_client");
            let rest = std::mem::take(&mut self.rest);
            return Poll::Ready((!rest.is_empty()).then_some(Err(BodyAborted)));
        }
        if self.rest.is_empty() {
            if let Some(counter) = &mut self.unread_counter {
                counter.current = None;
            }
            let Some(event) = ready!(self.events.poll_next_unpin(context)) else {
                return Poll::Ready(None);
            };
            if let Some(UnreadCounter { shared, owner, current, cut }) = &mut self.unread_counter {
                let (cut, owner) = (|| cut.clone(), || owner.clone());
                *current = UnreadAnswer::count_as(cut, &shared.unread_budget, event.len(), owner);
            }
            self.rest = event;
        }
        let length = self.rest.len().min(EVENT_PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
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
        let body = |bytes: usize| UnreadBody {
            rest: Bytes::from(vec![7; bytes]),
            unread: UnreadAnswer::count(&budget, bytes, UnreadOwner::default).unwrap(),
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
