//! Who waits for something on a stream: its latest reader, or the connection that writes what was read. There is one of each, so that
//! none of them is on a list; who waits is noted under the stream's lock, so that nothing is missed in between.

use std::{
    sync::MutexGuard,
    task::{Context, Waker},
};

use super::State;

#[derive(Debug, Default)]
pub(super) struct Waits {
    /// The latest reader, by anything.
    reader: Option<Waker>,
    /// Who writes what was read, if the stream is cut meanwhile.
    writer: Option<Waker>,
}

impl Waits {
    /// The reader is woken by whatever changes.
    pub(super) fn read(&mut self, context: &Context<'_>) {
        be_woken(&mut self.reader, context);
    }

    /// The reader sees what changes without being told.
    pub(super) fn look(&mut self) {
        self.reader = None;
    }

    /// Who writes is woken if the stream is cut.
    pub(super) fn write(&mut self, context: &Context<'_>) {
        be_woken(&mut self.writer, context);
    }
}

/// Something has changed: lets go of the lock, and wakes whom it concerns.
pub(super) fn let_know(mut state: MutexGuard<'_, State>) {
    let reader = state.waits.reader.take();
    let writer = if state.log.was_cut() { state.waits.writer.take() } else { None };
    drop(state);
    reader.into_iter().chain(writer).for_each(Waker::wake);
}

fn be_woken(place: &mut Option<Waker>, context: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(context.waker()),
        None => *place = Some(context.waker().clone()),
    }
}
