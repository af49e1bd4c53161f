//! Verifies chains of the audit log: the links between records, and the signatures about a chain.
//!
//! Used before each signature, and by operators who verify the log. Pure functions: they take rows
//! and return the first mismatch.

use records::{AuditChain, AuditChainPage, AuditCheckpoint, AuditTruncation, ChainedAuditRecord};

/// A position in a chain. All records up to it are verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChainPosition {
    pub position: i64,
    /// Number of the record at this position. 0 if it is unknown.
    pub number: i64,
    pub hash: Vec<u8>,
}

/// The first record that does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChainMismatch {
    /// `None`: the chain as a whole, of which no record is left or known.
    pub number: Option<i64>,
    pub detail: String,
}

impl ChainMismatch {
    fn new(number: i64, detail: String) -> Self {
        Self { number: Some(number).filter(|number| *number > 0), detail }
    }

    /// Returns a mismatch of a text about a chain that the broker's key did not sign.
    pub(super) fn unsigned(what: &str) -> Self {
        Self { number: None, detail: format!("{what} was not signed with this broker's secret") }
    }
}

impl ChainPosition {
    pub(super) fn after_cut(cut: &AuditTruncation) -> Self {
        Self { position: cut.position, number: 0, hash: cut.hash.clone() }
    }

    pub(super) fn at_checkpoint(checkpoint: &AuditCheckpoint) -> Self {
        Self { position: checkpoint.count, number: 0, hash: checkpoint.head.clone() }
    }

    /// Advances to the next record if the link fits.
    pub(super) fn follow(&mut self, link: &ChainedAuditRecord) -> Result<(), ChainMismatch> {
        let expected = self.position + 1;
        if link.position != expected {
            let detail = format!(
                "its position in the chain is {}, but {expected} was expected: earlier records are missing",
                link.position
            );
            return Err(ChainMismatch::new(link.number, detail));
        }
        if link.hash != link.hash_after(&self.hash) {
            return Err(ChainMismatch::new(
                link.number,
                "its hash does not follow from its contents and the record before it".to_owned(),
            ));
        }
        *self = Self { position: link.position, number: link.number, hash: link.hash.clone() };
        Ok(())
    }

    /// Compares the record at this position with a checkpoint for it.
    fn agrees_with(&self, checkpoint: &AuditCheckpoint) -> Result<(), ChainMismatch> {
        if checkpoint.count != self.position || checkpoint.head == self.hash {
            return Ok(());
        }
        let detail = format!(
            "the record does not match the checkpoint of {}: this record or an earlier one was replaced",
            moment(checkpoint.at_us)
        );
        Err(ChainMismatch::new(self.number, detail))
    }

    /// Checks that the chain ends at this position.
    fn ends(
        &self,
        chain: &AuditChain,
        checkpoints: &[&AuditCheckpoint],
    ) -> Result<(), ChainMismatch> {
        if let Some(later) = checkpoints.iter().find(|checkpoint| checkpoint.count > self.position)
        {
            let detail = format!(
                "the chain ends after {} records, but the checkpoint of {} counts {}",
                self.position,
                moment(later.at_us),
                later.count
            );
            return Err(ChainMismatch::new(self.number, detail));
        }
        if self.position == chain.length && self.hash == chain.head {
            return Ok(());
        }
        let detail = format!(
            "the chain ends after {} records, but its head counts {}",
            self.position, chain.length
        );
        Err(ChainMismatch::new(self.number, detail))
    }
}

/// Verifies a page of a chain from a position on. With `is_last`, the chain must end with the page.
pub(super) fn verify_page(
    mut position: ChainPosition,
    page: &AuditChainPage,
    is_last: bool,
    checkpoints: &[&AuditCheckpoint],
) -> Result<ChainPosition, ChainMismatch> {
    let agrees = |position: &ChainPosition| {
        checkpoints.iter().try_for_each(|checkpoint| position.agrees_with(checkpoint))
    };
    agrees(&position)?;
    for link in &page.records {
        position.follow(link)?;
        agrees(&position)?;
    }
    if is_last {
        position.ends(&page.chain, checkpoints)?;
    }
    Ok(position)
}

fn moment(at_us: i64) -> String {
    jiff::Timestamp::from_microsecond(at_us).unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use records::AUDIT_GENESIS;

    use super::*;

    fn chained(count: i64) -> AuditChainPage {
        let mut chain = AuditChain::empty("acme");
        let mut links = Vec::new();
        for position in 1..=count {
            let mut link = ChainedAuditRecord {
                number: 3 * position,
                position,
                id: vec![position as u8; 16],
                at_us: position,
                kind: "call".into(),
                tenant: Some("acme".into()),
                body: format!("{{\"n\":{position}}}").into_bytes(),
                hash: Vec::new(),
            };
            link.hash = link.hash_after(&chain.head).to_vec();
            (chain.length, chain.head) = (position, link.hash.clone());
            links.push(link);
        }
        AuditChainPage { chain, records: links }
    }

    fn judged(
        page: &AuditChainPage,
        checkpoints: &[&AuditCheckpoint],
    ) -> Result<ChainPosition, ChainMismatch> {
        verify_page(ChainPosition::after_cut(&page.chain.start), page, true, checkpoints)
    }

    fn checkpoint(page: &AuditChainPage, count: usize) -> AuditCheckpoint {
        AuditCheckpoint {
            count: count as i64,
            head: page.records[count - 1].hash.clone(),
            at_us: 1,
            signature: Vec::new(),
        }
    }

    /// Edits that an attacker could make in a record.
    const EDITS: [fn(&mut ChainedAuditRecord); 8] = [
        |link| link.number += 1,
        |link| link.position += 1,
        |link| link.id[0] ^= 1,
        |link| link.at_us -= 1,
        |link| link.kind = "admin".into(),
        |link| link.tenant = None,
        |link| link.body.push(b' '),
        |link| link.hash[31] ^= 1,
    ];

    proptest! {
        #[test]
        fn s15_an_edited_record_is_named(count in 1..12_i64, at in 0..12_usize, edit in 0..8_usize) {
            let mut page = chained(count);
            let at = at % page.records.len();
            EDITS[edit](&mut page.records[at]);
            let misfit = judged(&page, &[]).unwrap_err();
            // The head of the chain reveals a change of the last hash.
            prop_assert_eq!(misfit.number, Some(page.records[at].number), "{}", misfit.detail);
        }

        #[test]
        fn s15_removed_and_swapped_records_are_found(count in 2..12_i64, at in 0..12_usize) {
            let mut removed = chained(count);
            let at = at % (removed.records.len() - 1);
            removed.records.remove(at);
            prop_assert_eq!(judged(&removed, &[]).unwrap_err().number, Some(removed.records[at].number));
            let mut swapped = chained(count);
            let (one, other) = (swapped.records[at].body.clone(), swapped.records[at + 1].body.clone());
            (swapped.records[at].body, swapped.records[at + 1].body) = (other, one);
            prop_assert_eq!(judged(&swapped, &[]).unwrap_err().number, Some(swapped.records[at].number));
        }
    }

    #[test]
    fn s15_a_truncated_log_is_detected_by_its_head_and_its_checkpoint() {
        let whole = chained(9);
        let signed = checkpoint(&whole, 8);
        assert_eq!(judged(&whole, &[&signed]).unwrap().position, 9);
        let mut cut = whole.clone();
        cut.records.truncate(5);
        assert_eq!(judged(&cut, &[]).unwrap_err().number, Some(15));
        // The head was moved back, so only the checkpoint reveals the removal.
        (cut.chain.length, cut.chain.head) = (5, cut.records[4].hash.clone());
        assert!(judged(&cut, &[]).is_ok());
        let misfit = judged(&cut, &[&signed]).unwrap_err();
        assert!(misfit.number == Some(15) && misfit.detail.contains("counts 8"), "{misfit:?}");
        let emptied = AuditChainPage { chain: AuditChain::empty("acme"), records: Vec::new() };
        assert_eq!(judged(&emptied, &[&signed]).unwrap_err().number, None);
    }

    #[test]
    fn s15_a_recomputed_chain_does_not_match_the_signed_checkpoint() {
        let (whole, mut other) = (chained(6), chained(6));
        other.records[2].body = b"{}".to_vec();
        let mut hash = AUDIT_GENESIS.to_vec();
        for link in &mut other.records {
            link.hash = link.hash_after(&hash).to_vec();
            hash.clone_from(&link.hash);
        }
        other.chain.head = hash;
        assert!(judged(&other, &[]).is_ok(), "hashes alone have no key");
        assert!(
            judged(&other, &[&checkpoint(&whole, 2)]).is_ok(),
            "what was signed before is as it was"
        );
        assert_eq!(judged(&other, &[&checkpoint(&whole, 4)]).unwrap_err().number, Some(12));
    }

    #[test]
    fn s15_a_page_starts_where_the_previous_one_ended() {
        let whole = chained(10);
        let pages = [(0..4, false), (4..10, true)];
        let mut position = ChainPosition::after_cut(&whole.chain.start);
        for (range, is_last) in pages {
            let page = AuditChainPage {
                chain: whole.chain.clone(),
                records: whole.records[range].to_vec(),
            };
            position = verify_page(position, &page, is_last, &[]).unwrap();
        }
        assert_eq!((position.position, position.number), (10, 30));
        let beyond = AuditChainPage {
            chain: AuditChain { length: 9, ..whole.chain.clone() },
            records: Vec::new(),
        };
        assert!(
            verify_page(position, &beyond, true, &[]).is_err(),
            "a record after the head does not belong there"
        );
    }
}
