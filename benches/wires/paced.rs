//! How long do calls wait that come at half the rate a wire has to bear? By a schedule that waits for no answer, so that a
//! stall shows in all the calls that should have begun meanwhile.

use std::time::Duration;

use anyhow::ensure;
use benches::{
    Scale, Table, digits,
    load::{Calls, To},
    shown,
};
use loadtest::{
    compare::{self, Figures},
    era::Era,
};
use testkit::TestBroker;

use crate::{Wire, clients::MESSAGE_BYTES};

/// Half of 100,000 messages a second, two a call.
const CALLS_PER_SECOND: f64 = 25_000.0;
const CONNECTIONS: usize = 4;
const IN_FLIGHT: usize = 64;

/// A row of the table for one wire.
pub(crate) async fn row(table: &mut Table, wire: Wire, broker: &TestBroker, scale: Scale) -> anyhow::Result<()> {
    let target = match wire {
        Wire::Tcp => format!("tcp://{}/b", broker.tcp_address()),
        Wire::WebSocket => format!("ws://{}/ws/b", broker.http_address()),
        Wire::Quic | Wire::Http => return Ok(()),
    };
    let calls = Calls {
        connections: CONNECTIONS,
        in_flight: IN_FLIGHT,
        bytes: MESSAGE_BYTES,
        per_second: Some(scale.of(CALLS_PER_SECOND, 200.0)),
        era: Era::Sessions,
    };
    let time = scale.of(Duration::from_secs(5), Duration::from_millis(200));
    let load = calls.over(To { target, ..To::default() }, time)?;
    let rounds = compare::in_turns(&[load], scale.of(3, 1), |_| ()).await?;
    ensure!(rounds.faults().is_empty(), "{}", rounds.faults().join("\n"));
    let of = Figures::of(&rounds.0[0]);
    let ms = |value: f64| shown(Duration::from_secs_f64(value / 1000.0));
    table.row([format!("{wire:?}"), digits(2.0 * of.rate), ms(of.p50), ms(of.p99)]);
    Ok(())
}
