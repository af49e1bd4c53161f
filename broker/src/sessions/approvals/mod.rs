//! Calls that wait for the approval of a person.
//!
//! The store holds the approvals, so an operator can decide at any replica. A call requests its
//! approval, waits for the decision, and uses it once, directly before the broker sends the call.
//! The broker sends the request of the caller, never the stored arguments: an approval only lets an
//! equal request pass.
//!
//! Two kinds of calls wait: a call in flight up to its deadline, and a task up to its end, also
//! through crashes.

mod held_call;
mod passage;

pub(in crate::sessions) use self::{
    held_call::{HeldCall, OpenedApproval},
    passage::{
        DrainMode, await_decision, ended_unused, is_kept, removed, tool_changed, unusable,
        use_approval, use_window,
    },
};
