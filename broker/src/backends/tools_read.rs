//! The last read of a backend's tools after it refused the headers of a request.
//!
//! A client decides which headers it sends, so each of its requests could cause a read. Therefore a
//! backend gets one such read at a time, with an interval between two. If each principal has tools of
//! its own, this counts per link, so that principals do not wait for each other. Requests that were
//! refused before a read share it.

use std::time::Instant;

use protocol::ids::PrincipalId;

use super::link::failure::Failure;

/// A read of tools that has started.
#[derive(Debug)]
pub(super) struct ToolsRead {
    pub(super) started: Instant,
    /// The principal of the link, if it has only one.
    principal: Option<PrincipalId>,
    /// `None`: it runs, or its request ended before it.
    pub(super) outcome: Option<Result<(), Failure>>,
}

impl ToolsRead {
    pub(super) fn start(principal: Option<PrincipalId>) -> Self {
        Self { started: Instant::now(), principal, outcome: None }
    }

    /// Returns the outcome for a request that was refused at this time. `None`: the request needs
    /// another read. A failure may come from the connection or the token of a principal, so it counts
    /// for this principal only.
    pub(super) fn outcome_for(
        &self,
        principal: Option<&PrincipalId>,
        refused_at: Instant,
    ) -> Option<Result<(), Failure>> {
        let outcome = self.outcome.as_ref().filter(|_| self.started >= refused_at)?;
        let is_shared = outcome.is_ok() || self.principal.as_ref() == principal;
        is_shared.then(|| outcome.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_read_serves_the_requests_that_were_refused_before_it() {
        let mut read = ToolsRead::start(None);
        let (before, after) = (read.started, read.started + Duration::from_millis(1));
        assert_eq!(read.outcome_for(None, before), None, "it is not over");
        read.outcome = Some(Ok(()));
        assert_eq!(read.outcome_for(None, before), Some(Ok(())));
        assert_eq!(read.outcome_for(None, after), None, "the tools may have changed since");
    }

    #[test]
    fn a_failed_read_of_one_principal_fails_no_request_of_another() {
        let (ann, bob) = (PrincipalId::new("ann"), PrincipalId::new("bob"));
        let mut read = ToolsRead::start(Some(ann.clone()));
        let refused_at = read.started;
        let failed = Err(Failure::Lost("the connection of ann ended".to_owned()));
        read.outcome = Some(failed.clone());
        assert_eq!(read.outcome_for(Some(&ann), refused_at), Some(failed));
        assert_eq!(read.outcome_for(Some(&bob), refused_at), None);
        read.outcome = Some(Ok(()));
        assert_eq!(read.outcome_for(Some(&bob), refused_at), Some(Ok(())), "they share the tools");
    }
}
