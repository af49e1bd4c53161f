//! Sending of frames to a backend, by the kind of wire.

use std::sync::Arc;

use protocol::splice::Splice;
use transport::VectoredBody;

use super::{http::http_wire::HttpWire, queue::FrameQueue};

/// Size of a request from which writing it in pieces costs less than copying it.
const IN_PIECES_BYTES_MIN: usize = 8 * 1024;

/// The part of a connection that sends frames.
#[derive(Debug)]
pub enum WireSender {
    /// A queue, which the task of the pipe writes.
    Pipe(FrameQueue),
    /// One POST per frame.
    Http(Arc<HttpWire>),
}

impl WireSender {
    /// Returns whether all answers arrive on one stream, whose end is the end of all requests.
    pub fn is_one_stream(&self) -> bool {
        match self {
            Self::Pipe(_) => true,
            Self::Http(http) => http.is_one_stream(),
        }
    }

    /// Returns the edited request. A large one is not copied if the wire can write it in pieces.
    pub(super) fn finished(&self, mut splice: Splice<'_>) -> VectoredBody {
        match self {
            Self::Http(_) if splice.source_bytes() >= IN_PIECES_BYTES_MIN => {
                splice.finish_vectored().into()
            }
            Self::Http(_) | Self::Pipe(_) => splice.finish().into(),
        }
    }
}
