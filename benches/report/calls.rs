//! `tools/call` through each path: calls per second, the time of one, and the processor time of the
//! proxy in the middle.

use std::time::Duration;

use anyhow::ensure;
use benches::{Scale, Table, digits, shown};
use loadtest::compare::{self, Figures};

use crate::testbed::{TestBed, load};

const SIZES: [(usize, &str); 3] = [(256, "256 B"), (4096, "4 KB"), (65_536, "64 KB")];
const CONNECTIONS: [usize; 3] = [1, 16, 64];

pub(crate) async fn table(ground: &TestBed, scale: Scale) -> anyhow::Result<String> {
    let text = "`tools/call` over Streamable HTTP. The broker checks an API key, the session, the rate and the name, and counts; nginx passes requests on over connections it keeps. *Direct* is the load on the backend itself. Each figure is the middle of three rounds taken in turns.";
    let table = compared(ground, scale.of(&CONNECTIONS[..], &CONNECTIONS[..1]), scale).await?;
    Ok(format!("### Calls compared with a plain reverse proxy\n\n{text}\n\n{table}\n"))
}

/// Returns a table of calls of each size over so many connections.
pub(crate) async fn compared(
    ground: &TestBed,
    connections: &[usize],
    scale: Scale,
) -> anyhow::Result<String> {
    let mut table = Table::new([
        "payload",
        "connections",
        "way",
        "calls/s",
        "of nginx",
        "p50",
        "of nginx",
        "CPU a call",
        "of nginx",
    ]);
    let time = scale.of(Duration::from_millis(1500), Duration::from_millis(50));
    for (bytes, size) in SIZES {
        for connections in connections {
            let ways = ground.paths()?;
            let loads = ways
                .iter()
                .map(|way| load(way, *connections, bytes, time))
                .collect::<anyhow::Result<Vec<_>>>()?;
            let rounds = compare::run_interleaved(&loads, scale.of(3, 1), |_| ()).await?;
            ensure!(rounds.faults().is_empty(), "{}", rounds.faults().join("\n"));
            let figures: Vec<Figures> = rounds.0.iter().map(|rounds| Figures::of(rounds)).collect();
            let nginx = figures[1];
            for (way, of) in ways.iter().zip(&figures) {
                let cpu = of.cpu_us_per_call.zip(nginx.cpu_us_per_call);
                table.row([
                    size.to_owned(),
                    connections.to_string(),
                    way.name.to_owned(),
                    digits(of.rate),
                    format!("{:.2}", of.rate / nginx.rate),
                    shown(Duration::from_secs_f64(of.p50 / 1000.0)),
                    format!("{:.2}", of.p50 / nginx.p50),
                    cpu.map_or("-".to_owned(), |(cpu, _)| format!("{cpu:.1} µs")),
                    cpu.map_or("-".to_owned(), |(cpu, nginx)| format!("{:.2}", cpu / nginx)),
                ]);
            }
        }
    }
    Ok(table.markdown())
}
