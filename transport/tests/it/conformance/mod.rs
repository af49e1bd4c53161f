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
            both_ways!(frames_sent_byte_by_byte_arrive_unchanged, wires::$wire, Setup { slice_bytes: Some(1), ..ROOMY });
            both_ways!(frames_sent_in_odd_pieces_arrive_unchanged, wires::$wire, Setup { slice_bytes: Some(1021), ..ROOMY });
            both_ways!(the_limit_is_exact, wires::$wire, Setup { frame_bytes_max: cases::LIMIT, ..ROOMY });
            both_ways!(a_frame_over_the_limit_is_reported_once, wires::$wire, Setup { frame_bytes_max: cases::LIMIT, ..ROOMY });
            both_ways!(empty_frames_are_nothing, wires::$wire, ROOMY);
            both_ways!(line_breaks_inside_a_frame_become_spaces, wires::$wire, ROOMY);
            both_ways!(a_dropped_next_future_loses_no_frame, wires::$wire, Setup { slice_bytes: Some(7), ..ROOMY });
            both_ways!(a_slow_reader_delays_the_writer_and_loses_no_frame, wires::$wire, ROOMY);
            both_ways!(an_orderly_end_ends_the_source, wires::$wire, ROOMY);
            both_ways!(a_vanished_peer_is_detected_without_a_partial_frame, wires::$wire, ROOMY);
            both_ways!(writing_to_a_closed_peer_fails_eventually, wires::$wire, ROOMY);
        }
    };
}

// Wires on which one direction can end without the other.
conformance!(stdio, the_end_of_one_direction_keeps_the_other_open);
conformance!(tcp, the_end_of_one_direction_keeps_the_other_open);
conformance!(tls, the_end_of_one_direction_keeps_the_other_open);
conformance!(websocket);
conformance!(websocket_tls);
conformance!(quic_control);
conformance!(quic_stream, the_end_of_one_direction_keeps_the_other_open);
