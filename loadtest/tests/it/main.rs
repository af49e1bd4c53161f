//! Tests of the load tester: against servers with known faults, against its own backend, and
//! through the broker.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod brokers;
mod command;
mod fault_server;
mod faults;
mod open_loop;

use std::sync::Arc;

use loadtest::{
    profile::Profile,
    report::Report,
    run::{self, Load},
    wire::LoadTarget,
};
use transport::tls::ClientTlsFiles;

/// Creates a load from a YAML profile.
fn load(target: &str, profile: &str) -> Load {
    let profile = Profile::parse(profile).expect("the test's profile is good");
    let site: Arc<LoadTarget> = LoadTarget::new(
        target.parse().expect("a target"),
        &ClientTlsFiles::default(),
        profile.timeout,
    )
    .expect("TLS is there");
    Load { site, profile, keys: Vec::new(), pids: Vec::new() }
}

async fn report(target: &str, profile: &str) -> Report {
    run::run(&load(target, profile), |_| ()).await.expect("the load is carried out")
}
