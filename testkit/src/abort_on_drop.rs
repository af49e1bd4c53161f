//! A task that ends with its handle: clients, servers and readers of this crate leave no task
//! behind.

use tokio::task::JoinHandle;

/// Ends its task when dropped.
#[derive(Debug)]
pub struct AbortOnDrop(pub JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
