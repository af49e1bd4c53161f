//! Returns freed memory to the system while the process rests.
//!
//! The allocator keeps freed memory for a second. It then returns the memory when a thread next frees
//! a large block. A process without requests frees none, and would keep what its last load freed.

use std::{hint::black_box, time::Duration};

use crate::ticks::ticks;

const RETURN_INTERVAL: Duration = Duration::from_secs(1);
/// Size of a block that the allocator takes from the system's memory, not from a page of blocks.
const LARGE_BLOCK_BYTES: usize = 2 * 1024 * 1024;

/// Frees a large block again and again. The block is never written, so it needs no memory.
pub(super) async fn run() {
    let mut ticks = ticks(RETURN_INTERVAL);
    loop {
        ticks.tick().await;
        drop(black_box(Vec::<u8>::with_capacity(LARGE_BLOCK_BYTES)));
    }
}
