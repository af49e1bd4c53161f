//! A load of calls to `echo`, as the load tester carries it out.

use std::time::Duration;

use loadtest::{
    era::Era,
    mix::{Mix, Operation},
    profile::{LoopModel, Profile},
    run::Load,
    schedule::{Phase, Schedule},
    tool_call::ToolCall,
    wire::LoadTarget,
};
use transport::tls::ClientTlsFiles;

/// Server that the load is sent to.
#[derive(Debug, Clone, Default)]
pub struct CallTarget {
    pub target: String,
    pub keys: Vec<String>,
    /// Processes whose processor time is counted.
    pub pids: Vec<u32>,
}

/// Settings of the load.
#[derive(Debug, Clone, Copy)]
pub struct CallLoad {
    pub connections: usize,
    /// Calls in flight on each connection.
    pub in_flight: usize,
    /// Bytes of each call.
    pub bytes: usize,
    /// Rate at which calls begin, whatever became of earlier ones. `None`: each begins when the one
    /// before is answered.
    pub per_second: Option<f64>,
    pub era: Era,
}

impl CallLoad {
    /// Returns the load, with a quarter of the time in addition before anything is measured.
    pub fn into_load(self, to: CallTarget, time: Duration) -> anyhow::Result<Load> {
        let warm_up = time / 4;
        let rate = self.per_second.unwrap_or_default();
        let profile = Profile {
            kind: if self.per_second.is_some() { LoopModel::Open } else { LoopModel::Closed },
            era: self.era,
            sessions: self.connections,
            in_flight: self.in_flight,
            schedule: Schedule::new(vec![Phase { time: time + warm_up, from: rate, to: rate }]),
            warm_up,
            timeout: Duration::from_secs(30),
            mix: Mix::new(vec![(Operation::Call(ToolCall::echo(vec![self.bytes])), 1)]),
            refused_max: 0.0,
            listen: false,
        };
        let site =
            LoadTarget::new(to.target.parse()?, &ClientTlsFiles::default(), profile.timeout)?
                .with_era(self.era);
        Ok(Load { site, profile, keys: to.keys, pids: to.pids })
    }
}
