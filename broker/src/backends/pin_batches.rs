//! Batches of sightings of pins: the store takes each in one transaction, within its deadline.

use records::PinSighting;
use rules::limits::pins::{PINS_STORED_AT_ONCE, PINS_STORED_BYTES_AT_ONCE};

/// Splits sightings into batches. A large sighting has a batch of its own.
pub(super) fn batches(mut seen: &[PinSighting]) -> Vec<&[PinSighting]> {
    let mut batches = Vec::new();
    while !seen.is_empty() {
        let mut bytes = 0;
        let fits = |sighting: &&PinSighting| {
            let is_first = bytes == 0;
            bytes += sighting.definition.len() + sighting.findings.len();
            is_first || bytes <= PINS_STORED_BYTES_AT_ONCE
        };
        let count = seen.iter().take(PINS_STORED_AT_ONCE).take_while(fits).count();
        let (batch, rest) = seen.split_at(count);
        batches.push(batch);
        seen = rest;
    }
    batches
}

#[cfg(test)]
mod tests {
    use records::{PinKey, PinKind};

    use super::*;

    fn sightings(sizes: &[usize]) -> Vec<PinSighting> {
        let sighting = |(number, size): (usize, &usize)| PinSighting {
            key: PinKey { kind: PinKind::Tool, name: format!("t{number}") },
            hash: String::new(),
            definition: "x".repeat(*size),
            findings: "[]".to_owned(),
        };
        sizes.iter().enumerate().map(sighting).collect()
    }

    #[test]
    fn a_batch_is_bounded_by_its_sightings_and_their_bytes() {
        const MAX: usize = PINS_STORED_BYTES_AT_ONCE;
        let counts = |sizes: &[usize]| -> Vec<usize> {
            let seen = sightings(sizes);
            let batches = batches(&seen);
            assert_eq!(batches.concat(), seen, "in their order, each once");
            batches.iter().map(|batch| batch.len()).collect()
        };
        assert!(counts(&[]).is_empty());
        assert_eq!(counts(&[MAX / 4; 9]), [3, 3, 3]);
        assert_eq!(counts(&[1, 3 * MAX, 1, 1]), [1, 1, 2]);
        assert_eq!(counts(&[1; PINS_STORED_AT_ONCE + 1]), [PINS_STORED_AT_ONCE, 1]);
    }
}
