//! Calls that wait for the approval of a person.
//!
//! The store holds the approvals, so any replica decides and any replica continues. A call asks
//! for its approval, waits for the decision, and uses it once, immediately before it leaves. What
//! is sent is the request of the caller, never the stored arguments: an approval only lets an equal
//! request pass.
//!
//! Two kinds of calls wait: a call in flight, up to its deadline, and a durable task, up to its own
//! end and through crashes.

mod held_call;
mod passage;

pub(in crate::sessions) use self::{
    held_call::{HeldCall, OpenedApproval},
    passage::{
        await_decision, ended_unused, removed, tool_changed, unusable, use_approval, use_window,
    },
};
