//! Calls that wait for the approval of a person: the canonical form of their arguments, and what
//! their clients are told.

mod arguments;
mod notice;

pub use self::{
    arguments::{arguments_hash, canonical_arguments},
    notice::{APPROVAL_META, ApprovalNotice, ApprovalStanding},
};
