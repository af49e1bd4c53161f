//! Futures that are created on the heap.
//!
//! Used for the large futures of a request. `Box::pin(large())` creates the future on the stack and
//! copies all its kilobytes onto the heap, though most of them are unset yet. This module allocates
//! first, so that only the initial state is written.

use std::pin::Pin;

/// Creates a future directly on the heap.
pub(crate) fn box_pin_with<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let allocation: Box<std::mem::MaybeUninit<F>> = Box::new_uninit();
    Box::into_pin(Box::write(allocation, make()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_boxed_future_returns_its_result() {
        let (one, text) = (1, String::from("two"));
        let made = box_pin_with(|| async move {
            let buffer = [one; 4096];
            tokio::task::yield_now().await;
            (buffer.len(), text)
        });
        assert_eq!(made.await, (4096, "two".to_owned()));
    }
}
