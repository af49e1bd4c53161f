//! Label values of an open set, of which a limited number have series of their own.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::OTHER;

/// Label values of an open set of names, which backends or tenants hold. Past the cap, the holder of
/// a new name gets `other`. A label is free after its last holder.
pub(super) struct CappedLabels {
    /// Number of holders by label.
    holders: Mutex<BTreeMap<String, usize>>,
    max: usize,
}

impl CappedLabels {
    pub(super) fn new(max: usize) -> Self {
        Self { holders: Mutex::default(), max }
    }

    /// Returns the label for a new holder of the name, which [`Self::release`] ends.
    pub(super) fn acquire(&self, name: &str) -> String {
        let mut holders = self.holders.lock();
        let own = holders.len() - usize::from(holders.contains_key(OTHER));
        let label = if holders.contains_key(name) || own < self.max { name } else { OTHER };
        *holders.entry(label.to_owned()).or_default() += 1;
        label.to_owned()
    }

    /// Ends the hold of one holder. After the last one, `remove_series` removes the series of the
    /// label, before another holder can acquire it.
    pub(super) fn release(&self, label: &str, remove_series: impl FnOnce()) {
        let mut holders = self.holders.lock();
        let Some(count) = holders.get_mut(label) else { return };
        *count -= 1;
        if *count == 0 {
            holders.remove(label);
            remove_series();
        }
    }
}
