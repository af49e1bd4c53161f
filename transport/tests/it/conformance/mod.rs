//! Behaviours that all wires must share, run over each wire and in both directions.
//!
//! `wires` makes connected ends, `cases` contains the behaviours, and the macro here combines them.
//! Features of a single wire (close codes, streams, handshakes) have their own tests.

mod cases;
pub(crate) mod wires;

use transport::{FrameSink, FrameSource};

/// One end of a connection.
pub(crate) struct End<R, W> {
    pub(crate) source: R,
    pub(crate) sink: W,
}

impl<R: FrameSource, W: FrameSink> End<R, W> {
    pub(crate) fn new((source, sink): (R, W)) -> Self {
        Self { source, sink }
    }
}

/// Settings of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    /// Largest message that either end accepts.
    pub(crate) frame_bytes_max: usize,
    /// Size of the pieces in which bytes arrive. Wires over UDP have their own packets and ignore
    /// it.
    pub(crate) slice_bytes: Option<usize>,
}

const ROOMY: Setup = Setup { frame_bytes_max: 4 * 1024 * 1024, slice_bytes: None };

/// Runs a case from the server to the client and from the client to the server.
macro_rules! both_ways {
    ($case:ident, $connect:path, $setup:expr) => {
        #[tokio::test]
        async fn $case() {
            let (server, client) = $connect($setup).await;
            cases::$case(server, client).await;
            let (server, client) = $connect($setup).await;
            cases::$case(client, server).await;
        }
    };
}

macro_rules! conformance {
    ($wire:ident $(, $more:ident)*) => {
        mod $wire {
            use super::{ROOMY, Setup, cases, wires};

            $(both_ways!($more, wires::$wire, ROOMY);)*

            both_ways!(frames_arrive_whole_and_in_order, wires::$wire, ROOMY);
            both_ways!(both_directions_at_once, wires::$wire, ROOMY);
            both_ways!(megabytes_arrive_as_sent, wires::$wire, ROOMY);
            both_ways!(byte_by_byte_is_no_different, wires::$wire, Setup { slice_bytes: Some(1), ..ROOMY });
            both_ways!(odd_pieces_are_no_different, wires::$wire, Setup { slice_bytes: Some(1021), ..ROOMY });
            both_ways!(the_limit_is_exact, wires::$wire, Setup { frame_bytes_max: cases::LIMIT, ..ROOMY });
            both_ways!(over_the_limit_is_said_once, wires::$wire, Setup { frame_bytes_max: cases::LIMIT, ..ROOMY });
            both_ways!(empty_frames_are_nothing, wires::$wire, ROOMY);
            both_ways!(line_breaks_inside_a_frame_are_spaces, wires::$wire, ROOMY);
            both_ways!(a_dropped_next_loses_nothing, wires::$wire, Setup { slice_bytes: Some(7), ..ROOMY });
            both_ways!(a_slow_reader_holds_the_writer_and_loses_nothing, wires::$wire, ROOMY);
            both_ways!(an_orderly_end_is_an_end, wires::$wire, ROOMY);
            both_ways!(a_vanished_peer_is_noticed_and_leaves_no_half_frame, wires::$wire, ROOMY);
            both_ways!(writing_to_nobody_fails_in_the_end, wires::$wire, ROOMY);
        }
    };
}

// Wires on which one direction can end without the other.
conformance!(stdio, a_direction_that_ends_leaves_the_other);
conformance!(tcp, a_direction_that_ends_leaves_the_other);
conformance!(tls, a_direction_that_ends_leaves_the_other);
conformance!(websocket);
conformance!(websocket_tls);
conformance!(quic_control);
conformance!(quic_stream, a_direction_that_ends_leaves_the_other);
