//! Which running tasks another process can go on with at no loss, when this one goes away.

use super::{
    Tasks,
    run::{RunState, Stop, TaskRun},
};
use crate::config::spec::TransportSpec;

impl Tasks {
    /// Gives away what loses nothing by that: calls that were not sent, backends' own tasks that can be watched from anywhere,
    /// and with `again` calls that are harmless to send again. Any other call stays until its answer, which only this
    /// process can get.
    pub fn hand_over(&self, again: bool) {
        for run in self.all_runs() {
            run.stop_if(Stop::Released, |state| run.can_go_on_elsewhere(state, again));
        }
    }
}

impl TaskRun {
    fn can_go_on_elsewhere(&self, state: &RunState, again: bool) -> bool {
        if state.is_untouched() {
            return true;
        }
        match &state.mirrored {
            // Only this process can give the backend the answer.
            Some(_) if !state.inputs.is_empty() => false,
            // A child process, and its task with it, ends with this one.
            Some(mirrored) => matches!(mirrored.link.backend.spec.transport, TransportSpec::Http { .. }),
            None => again && !state.creating && self.details.is_repeatable(),
        }
    }
}
