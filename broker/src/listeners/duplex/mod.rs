//! The data plane over connections that are sessions: a client's messages come in, and everything for it goes out, on one
//! connection.
//!
//! [`serve`] is the life of such a connection, whatever wire it has: a session is opened ([`opening`]), spoken with
//! ([`conversation`]), and ended with a goodbye. Generic over the two frame traits; each wire has a file that accepts.

mod conversation;
mod opening;
pub mod tcp;

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;
use transport::frame::{FrameSink, FrameSource, Goodbye, farewell};

use self::conversation::Silence;
use crate::{
    actors::session::Session,
    broker::Broker,
    limits::{HALF_CLOSED_MAX, LAST_FRAMES_WAIT},
};

/// Who is at the other end, as far as the wire says.
#[derive(Debug)]
struct Guest {
    transport: &'static str,
}

/// Serves one connection to its end.
async fn serve<Source, Sink>(broker: Arc<Broker>, guest: Guest, mut source: Source, mut sink: Sink, stop: CancellationToken)
where
    Source: FrameSource,
    Sink: FrameSink,
{
    let limit = broker.shared.config.timeouts.handshake;
    let opened = tokio::select! {
        biased;
        opened = opening::session(&broker, &guest, &mut source, &mut sink) => opened,
        () = stop.cancelled() => Err(Goodbye::GoingAway),
        () = tokio::time::sleep(limit) => {
            tracing::debug!(transport = guest.transport, "no session was opened in time");
            Err(Goodbye::Policy)
        }
    };
    match opened {
        Ok(session) => {
            let seat = Seat { broker, session };
            if let Some(goodbye) = converse(&seat, &mut source, &mut sink).await {
                drop(seat);
                farewell(&mut source, &mut sink, goodbye).await;
            }
        }
        Err(goodbye) => farewell(&mut source, &mut sink, goodbye).await,
    }
}

/// Speaks until one side has had enough. `None`: the connection is beyond goodbyes.
async fn converse(seat: &Seat, source: &mut impl FrameSource, sink: &mut impl FrameSink) -> Option<Goodbye> {
    let session = &seat.session;
    let mut outbox = session.open_outbox()?;
    let stream = outbox.stream.clone();
    let room = tokio::sync::Notify::new();
    let writing = conversation::write(session, &mut outbox, sink, &room);
    tokio::pin!(writing);
    let silence = tokio::select! {
        biased;
        goodbye = &mut writing => return goodbye,
        silence = conversation::read(session, &stream, source, &room) => silence,
    };
    let goodbye = match silence {
        Silence::Gone => return None,
        Silence::Fault(goodbye) => goodbye,
        // A client that closed its sending half still wants its answers.
        Silence::Said => {
            tokio::select! {
                biased;
                goodbye = &mut writing => return goodbye,
                () = conversation::at_rest(session, &room) => {}
                () = tokio::time::sleep(HALF_CLOSED_MAX) => {}
            }
            Goodbye::Done
        }
    };
    seat.leave("its connection ended");
    in_time(LAST_FRAMES_WAIT, writing).await.map(|_over| goodbye)
}

/// `None` when it takes too long, or when it says so itself.
async fn in_time<T>(limit: Duration, work: impl Future<Output = Option<T>>) -> Option<T> {
    tokio::time::timeout(limit, work).await.ok().flatten()
}

/// A session and the connection it lives and dies with.
struct Seat {
    broker: Arc<Broker>,
    session: Arc<Session>,
}

impl Seat {
    fn leave(&self, why: &str) {
        if !self.session.is_leaving() {
            self.broker.close_session(&self.session, why);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave("its connection ended");
    }
}
