//! The connections that have read a stream. Only the latest one reads.

/// The latest reader of a stream, and how many there were before it.
#[derive(Debug, Default)]
pub(super) struct LatestReader {
    /// Number of readers so far. It names the latest one.
    generation: u64,
    /// Set while the latest reader holds a connection.
    is_connected: bool,
    /// Position of the latest reader.
    read_through: u64,
}

impl LatestReader {
    /// Notes a new reader from `position` on. Returns the number that names it.
    pub(super) fn connect(&mut self, position: u64) -> u64 {
        *self =
            Self { generation: self.generation + 1, is_connected: true, read_through: position };
        self.generation
    }

    /// Notes that a reader has closed its connection. Returns false for an earlier reader, which
    /// changes nothing.
    pub(super) fn disconnect(&mut self, generation: u64) -> bool {
        self.is_connected &= !self.is_latest(generation);
        self.is_latest(generation)
    }

    /// Notes that the latest reader has read up to `position`.
    pub(super) fn advance(&mut self, position: u64) {
        self.read_through = position;
    }

    pub(super) fn is_latest(&self, generation: u64) -> bool {
        self.generation == generation
    }

    pub(super) fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Returns how many connections have read the stream.
    pub(super) fn count(&self) -> u64 {
        self.generation
    }

    /// Returns the position through which old events may expire. A connected reader still gets the
    /// events after its position.
    pub(super) fn expirable_through(&self) -> u64 {
        if self.is_connected { self.read_through } else { u64::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_reader_disconnects() {
        let mut reader = LatestReader::default();
        assert_eq!((reader.count(), reader.is_connected()), (0, false));
        let (first, second) = (reader.connect(0), reader.connect(7));
        assert!(!reader.disconnect(first));
        assert!(reader.is_connected() && reader.is_latest(second) && !reader.is_latest(first));
        assert!(reader.disconnect(second));
        assert_eq!((reader.count(), reader.is_connected()), (2, false));
    }

    #[test]
    fn events_that_a_connection_has_not_read_do_not_expire() {
        let mut reader = LatestReader::default();
        assert_eq!(reader.expirable_through(), u64::MAX, "it has no reader");
        let generation = reader.connect(3);
        reader.advance(5);
        assert_eq!(reader.expirable_through(), 5);
        assert!(reader.disconnect(generation));
        assert_eq!(reader.expirable_through(), u64::MAX);
    }
}
