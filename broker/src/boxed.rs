//! Futures made where they stay.
//!
//! Called for the large futures of a request. `Box::pin(large())` makes the future on the stack and copies it onto the heap, all
//! its kilobytes, most of which hold nothing yet. Here the place is there first, so that only what the future begins with is
//! written.

use std::pin::Pin;

/// A future on the heap, which was never anywhere else.
pub(crate) fn in_place<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let place: Box<std::mem::MaybeUninit<F>> = Box::new_uninit();
    Box::into_pin(Box::write(place, make()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_the_future_that_was_made() {
        let (one, text) = (1, String::from("two"));
        let made = in_place(|| async move {
            let room = [one; 4096];
            tokio::task::yield_now().await;
            (room.len(), text)
        });
        assert_eq!(made.await, (4096, "two".to_owned()));
    }
}
