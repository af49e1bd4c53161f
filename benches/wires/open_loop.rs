//! Measures the wait of calls at half the rate that a wire has to sustain. The schedule does not
//! wait for answers, so that a stall shows in all calls that should have begun meanwhile. The same
//! run has the load without the broker: the share of clients, backend and machine.

use std::{net::SocketAddr, time::Duration};

use anyhow::ensure;
use benches::{
    Scale, Table, digits,
    load::{CallLoad, CallTarget},
    shown,
};
use loadtest::{
    compare::{self, Figures},
    era::Era,
};

use crate::{Wire, clients::MESSAGE_BYTES};

/// Half of 100,000 messages per second, with two messages per call.
const CALLS_PER_SECOND: f64 = 25_000.0;
const CONNECTIONS: usize = 4;
const IN_FLIGHT: usize = 64;

/// Returns the rows of the table for one wire, over which `ways` lead to a backend.
pub(crate) async fn rows(
    table: &mut Table,
    wire: Wire,
    ways: &[(&str, SocketAddr); 3],
    scale: Scale,
) -> anyhow::Result<()> {
    let target = |name: &str, address: &SocketAddr| match (wire, name) {
        (Wire::Tcp, "broker") => Some(format!("tcp://{address}/b")),
        (Wire::Tcp, _) => Some(format!("tcp://{address}")),
        (Wire::WebSocket, "broker") => Some(format!("ws://{address}/ws/b")),
        (Wire::WebSocket, _) => Some(format!("ws://{address}/")),
        (Wire::Quic | Wire::Http, _) => None,
    };
    let calls = CallLoad {
        connections: CONNECTIONS,
        in_flight: IN_FLIGHT,
        bytes: MESSAGE_BYTES,
        per_second: Some(scale.of(CALLS_PER_SECOND, 200.0)),
        era: Era::Sessions,
    };
    let time = scale.of(Duration::from_secs(5), Duration::from_millis(200));
    let loads = ways.iter().filter_map(|(name, address)| target(name, address));
    let loads = loads
        .map(|target| calls.into_load(CallTarget { target, ..CallTarget::default() }, time))
        .collect::<anyhow::Result<Vec<_>>>()?;
    if loads.is_empty() {
        return Ok(());
    }
    let rounds = compare::run_interleaved(&loads, scale.of(3, 1), |_| ()).await?;
    ensure!(rounds.faults().is_empty(), "{}", rounds.faults().join("\n"));
    let ms = |value: f64| shown(Duration::from_secs_f64(value / 1000.0));
    for ((name, _), rounds) in ways.iter().zip(&rounds.0) {
        let of = Figures::of(rounds);
        table.row([
            format!("{wire:?}"),
            (*name).to_owned(),
            digits(2.0 * of.rate),
            ms(of.p50),
            ms(of.p99),
        ]);
    }
    Ok(())
}
