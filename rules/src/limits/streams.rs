//! Limits of the event streams of a session.

/// GETs of one session per minute that open or resume an event stream at no cost to a rate.
pub const STREAM_OPENINGS_FREE_PER_MINUTE: u32 = 30;
