//! Number of open connections of each client address, with a limit.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;

/// Number of open connections by client address.
#[derive(Debug, Clone)]
pub(super) struct AddressCounts {
    max: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl AddressCounts {
    pub(super) fn new(max: usize) -> Self {
        Self { max, open: Arc::default() }
    }

    /// Returns a slot, or `None` if the address has as many connections as it may have.
    pub(super) fn acquire(&self, address: IpAddr) -> Option<AddressSlot> {
        let mut open = self.open.lock();
        let count = open.entry(address).or_insert(0);
        if *count >= self.max {
            return None;
        }
        *count += 1;
        Some(AddressSlot { addresses: self.clone(), address })
    }
}

/// Slot of one connection, released on drop.
#[derive(Debug)]
pub(super) struct AddressSlot {
    addresses: AddressCounts,
    address: IpAddr,
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        let mut open = self.addresses.open.lock();
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}
