//! Which running tasks another process can go on with at no loss, when this one goes away.

use super::{
    Tasks,
    run::{Stop, TaskRun},
};
use crate::config::spec::TransportSpec;

impl Tasks {
    /// Gives away what loses nothing by that: calls that were not sent, backends' own tasks that can be watched from anywhere,
    /// and with `again` calls that are harmless to send again. Any other call stays until its answer, which only this
    /// process can get.
    pub fn hand_over(&self, again: bool) {
        self.all_runs().iter().filter(|run| run.can_go_on_elsewhere(again)).for_each(|run| run.stop(Stop::Released));
    }
}

impl TaskRun {
    fn can_go_on_elsewhere(&self, again: bool) -> bool {
        if self.is_untouched() {
            return true;
        }
        let state = self.lock();
        match &state.mirrored {
            // A child process, and its task with it, ends with this one.
            Some(mirrored) => matches!(mirrored.link.backend.spec.transport, TransportSpec::Http { .. }),
            None => again && !state.creating && self.details.is_repeatable(),
        }
    }
}
