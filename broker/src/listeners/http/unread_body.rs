//! A large answer that the HTTP library sends. The library takes it in pieces, and the answer counts
//! in the budget of unread bytes until the last of them.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use rules::limits::HTTP2_PIECE_BYTES;

use super::response::BodyAborted;
use crate::sessions::unread_answer::UnreadAnswer;

#[derive(Debug)]
pub(super) struct UnreadBody {
    pub(super) rest: Bytes,
    pub(super) unread: Arc<UnreadAnswer>,
}

impl Body for UnreadBody {
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
        let length = self.rest.len().min(HTTP2_PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
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
            unread: UnreadAnswer::count(&budget, bytes).unwrap(),
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
