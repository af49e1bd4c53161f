//! A broker in a runtime of its caller, on stores that the caller opened. The simulation runs its
//! replicas like this, many of them in one process.
//!
//! It listens, drains and ends like the program. Signals, the log and the protection of the process
//! stay with the caller.

use std::{path::PathBuf, sync::Arc};

use super::{
    ConfigFiles, RunningBroker, ServeError, ServeOptions, inherited_sockets::InheritedSockets,
    signals::Signals,
};
use crate::{control::Control, persistence::Stores};

/// A started broker.
pub struct EmbeddedBroker(RunningBroker);

impl EmbeddedBroker {
    /// Starts with this configuration file. Its stores are not opened.
    pub async fn start(config: PathBuf, stores: Stores) -> Result<Self, ServeError> {
        let options = ServeOptions { config: Some(config), demo: false };
        let (files, config) = ConfigFiles::read(&options)?;
        let inherited = InheritedSockets::default();
        RunningBroker::start(files, config, None, inherited, Some(stores)).await.map(Self)
    }

    /// Returns the operators' access to the broker.
    pub fn control(&self) -> Arc<Control> {
        Arc::clone(&self.0.control)
    }

    /// Serves until a drain was requested ([`crate::broker::Broker::drain`]) and is over.
    pub async fn run(mut self) -> Result<(), ServeError> {
        let mut signals = Signals::ignored();
        self.0.run_until_stopped(&mut signals).await?;
        self.0.drain(&mut signals).await;
        Ok(())
    }
}
