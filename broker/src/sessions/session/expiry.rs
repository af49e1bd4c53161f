//! Expiry of a session's questions and streams.

use std::{sync::Arc, time::Instant};

use super::{Session, questions};

/// Expires old questions and streams.
pub fn expire(session: &Arc<Session>, now: Instant) {
    let expired = {
        let mut state = session.lock();
        state.streams.expire(now, session.shared.config.events.retain);
        let limit = session.shared.config.timeouts.client_request;
        state.questions.older_than(limit, now)
    };
    expired.into_iter().for_each(|question| questions::expire(session, question));
}
