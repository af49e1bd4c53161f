//! `tools/call` where proxy, load and backend share both processors.

use std::thread;

use anyhow::Context as _;
use benches::Scale;

use crate::{
    calls,
    testbed::{self, Cores, TestBed},
};

const CONNECTIONS: [usize; 2] = [16, 64];

pub(crate) async fn table(scale: Scale) -> anyhow::Result<String> {
    // A runtime of its own: the threads of the other one stay on the processor of the load.
    let measurement = thread::spawn(move || {
        testbed::pin_to(Cores::Both);
        tokio::runtime::Runtime::new()?.block_on(measure(scale))
    });
    let ended = tokio::task::spawn_blocking(|| measurement.join()).await?;
    ended.ok().context("the measurement panicked")?
}

async fn measure(scale: Scale) -> anyhow::Result<String> {
    let ground = TestBed::start(Cores::Both).await?;
    let connections = scale.of(&CONNECTIONS[..], &CONNECTIONS[..1]);
    let table = calls::compared(&ground, connections, scale).await?;
    let text = "The same calls, with two threads of the broker, two workers of nginx, and two threads of the load with its backend. The kernel places them on both processors.";
    Ok(format!("### Calls on two processors\n\n{text}\n\n{table}\n"))
}
