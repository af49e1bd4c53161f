//! A page of a list of tasks, read until it is full. Further rows replace the unreadable ones, so
//! that a short page is the last one.

use records::{StoredTask, TaskListPosition};

pub(crate) struct TaskPage {
    limit: u32,
    found: Vec<StoredTask>,
    after: Option<TaskListPosition>,
    is_over: bool,
}

impl TaskPage {
    pub(crate) fn new(after: Option<&TaskListPosition>, limit: u32) -> Self {
        Self { limit, found: Vec::new(), after: after.cloned(), is_over: limit == 0 }
    }

    /// Returns the position after which to read rows, and the number of rows that are missing.
    /// `None` if the page is complete.
    pub(crate) fn missing(&self) -> Option<(Option<TaskListPosition>, u32)> {
        (!self.is_over).then(|| (self.after.clone(), self.missing_rows()))
    }

    /// Adds the readable tasks of the rows that were read. `last` is the position of the last row.
    pub(crate) fn add(
        &mut self,
        rows: usize,
        last: Option<TaskListPosition>,
        readable: Vec<StoredTask>,
    ) {
        let was_short = rows < self.missing_rows() as usize;
        self.found.extend(readable);
        self.is_over = was_short || last.is_none() || self.missing_rows() == 0;
        self.after = last;
    }

    pub(crate) fn into_tasks(self) -> Vec<StoredTask> {
        self.found
    }

    fn missing_rows(&self) -> u32 {
        self.limit.saturating_sub(u32::try_from(self.found.len()).unwrap_or(u32::MAX))
    }
}
