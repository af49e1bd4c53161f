//! How what is for a backend leaves a connection.

use std::sync::Arc;

use protocol::splice::Splice;
use transport::VectoredBody;

use super::{http::HttpWire, queue::FrameQueue};

/// Below this the pieces of a request cost more than to copy it.
const IN_PIECES_BYTES_MIN: usize = 8 * 1024;

/// How frames leave.
#[derive(Debug)]
pub enum WireSender {
    /// Into the writer's queue.
    Pipe(FrameQueue),
    /// A POST each.
    Http(Arc<HttpWire>),
}

impl WireSender {
    /// The edited request. A large one is not copied where it can be written in pieces.
    pub(super) fn finished(&self, mut splice: Splice<'_>) -> VectoredBody {
        match self {
            Self::Http(_) if splice.source_bytes() >= IN_PIECES_BYTES_MIN => {
                splice.finish_in_pieces().into()
            }
            Self::Http(_) | Self::Pipe(_) => splice.finish().into(),
        }
    }
}
