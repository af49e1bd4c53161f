//! Turns of a reader. A peer can send input without end that holds no message: empty lines, pings,
//! empty fragments. Its reader then must not hold a thread, also outside the budget of tokio.

use std::task::{Context, Poll};

/// Steps of one turn: frames, lines and reads.
const STEPS_PER_TURN: u32 = 64;

/// Steps left in the turn of a reader.
#[derive(Debug)]
pub(crate) struct ReadTurns {
    remaining: u32,
}

impl ReadTurns {
    pub(crate) const fn new() -> Self {
        Self { remaining: STEPS_PER_TURN }
    }

    /// Takes a step. At the end of the turn it wakes the task and is pending once.
    pub(crate) fn poll_step(&mut self, context: &Context<'_>) -> Poll<()> {
        match self.remaining.checked_sub(1) {
            Some(remaining) => {
                self.remaining = remaining;
                Poll::Ready(())
            }
            None => {
                self.remaining = STEPS_PER_TURN;
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}
