//! Chooses the next operation. Operations come in the proportions of a profile, evenly spread, in
//! the same order in every run.

use crate::tool_call::ToolCall;

/// One kind of operation of a client.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    Call(ToolCall),
    ListTools,
    Read {
        uri: String,
    },
    Ping,
    /// Subscribes to a resource, and unsubscribes.
    Subscribe {
        uri: String,
    },
    /// Calls the tool as a task (MCP 2025-11-25): creates the task and waits for its end.
    Task(ToolCall),
}

impl Operation {
    /// Returns the name in profiles and reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Call(_) => "tools/call",
            Self::ListTools => "tools/list",
            Self::Read { .. } => "resources/read",
            Self::Ping => "ping",
            Self::Subscribe { .. } => "subscription",
            Self::Task(_) => "task",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Mix {
    /// Operations with their weights.
    operations: Vec<(Operation, u32)>,
    /// Indexes of `operations`, one for each unit of weight.
    turns: Vec<usize>,
}

impl Mix {
    /// `operations` have weights, of which at least one is not zero.
    pub fn new(operations: Vec<(Operation, u32)>) -> Self {
        let total: u32 = operations.iter().map(|(_, weight)| weight).sum();
        // The operation furthest behind its share is next, so that rare ones do not cluster.
        let mut credit = vec![0_i64; operations.len()];
        let turns = (0..total).map(|_| {
            credit
                .iter_mut()
                .zip(&operations)
                .for_each(|(credit, (_, weight))| *credit += i64::from(*weight));
            let next =
                (0..credit.len()).rev().max_by_key(|index| credit[*index]).unwrap_or_default();
            credit[next] -= i64::from(total);
            next
        });
        Self { turns: turns.collect(), operations }
    }

    /// Returns the operations, in the order of the profile.
    pub fn operations(&self) -> impl Iterator<Item = &Operation> {
        self.operations.iter().map(|(operation, _)| operation)
    }

    pub fn weights(&self) -> &[(Operation, u32)] {
        &self.operations
    }

    /// Returns the operation of the call with this number, and its index among
    /// [`Self::operations`].
    pub fn operation_at(&self, number: u64) -> (usize, &Operation) {
        let index = self.turns[(number % self.turns.len() as u64) as usize];
        (index, &self.operations[index].0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_follow_their_proportions_and_are_spread_evenly() {
        let call = Operation::Call(ToolCall::echo(vec![1]));
        let mix = Mix::new(vec![(call, 6), (Operation::Ping, 3), (Operation::ListTools, 1)]);
        let turns: Vec<usize> = (0..10).map(|number| mix.operation_at(number).0).collect();
        assert_eq!(
            [0, 1, 2].map(|index| turns.iter().filter(|turn| **turn == index).count()),
            [6, 3, 1]
        );
        assert!(
            turns.windows(4).all(|four| four.iter().any(|turn| *turn != 0)),
            "they come in bunches: {turns:?}"
        );
        assert_eq!(mix.operation_at(3).0, mix.operation_at(13).0);
    }
}
