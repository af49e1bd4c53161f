//! Compares the cost of a call of 2026-07-28 with one of a session. Both go through the same broker
//! to the same backend, in turns.

use std::time::Duration;

use anyhow::ensure;
use benches::{Scale, Table, digits, shown};
use loadtest::{
    compare::{self, Figures},
    era::Era,
    run::Load,
};

use crate::testbed::{TestBed, load, of_broker};

const SIZES: [(usize, &str); 2] = [(256, "256 B"), (4096, "4 KB")];
const CONNECTIONS: [usize; 2] = [1, 16];
const ERAS: [Era; 2] = [Era::Sessions, Era::Stateless];

pub(crate) async fn table(ground: &TestBed, scale: Scale) -> anyhow::Result<String> {
    let mut table = Table::new([
        "payload",
        "connections",
        "revision",
        "calls/s",
        "p50",
        "CPU a call",
        "of 2025-11-25",
    ]);
    let time = scale.of(Duration::from_millis(1500), Duration::from_millis(50));
    let way = of_broker("broker", &ground.broker, &ground.key);
    for (bytes, size) in SIZES {
        for connections in scale.of(&CONNECTIONS[..], &CONNECTIONS[..1]) {
            let loads = ERAS.map(|era| {
                let load = load(&way, *connections, bytes, time)?;
                Ok(Load { site: load.site.with_era(era), ..load })
            });
            let loads = loads.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
            let rounds = compare::run_interleaved(&loads, scale.of(5, 1), |_| ()).await?;
            ensure!(rounds.faults().is_empty(), "{}", rounds.faults().join("\n"));
            let figures: Vec<Figures> = rounds.0.iter().map(|rounds| Figures::of(rounds)).collect();
            let legacy = figures[0].cpu_us_per_call;
            for (era, of) in ERAS.iter().zip(&figures) {
                // None if no call was over in time, as may happen in a quick run.
                let cpu = of.cpu_us_per_call.zip(legacy);
                table.row([
                    size.to_owned(),
                    connections.to_string(),
                    era.version().to_owned(),
                    digits(of.rate),
                    shown(Duration::from_secs_f64(of.p50 / 1000.0)),
                    cpu.map_or("-".to_owned(), |(cpu, _)| format!("{cpu:.1} µs")),
                    cpu.map_or("-".to_owned(), |(cpu, legacy)| format!("{:.2}", cpu / legacy)),
                ]);
            }
        }
    }
    let text = "`tools/call` over Streamable HTTP to a backend of 2025-11-25, by clients that open a session and by clients of 2026-07-28, which open none. Each request of the latter repeats the data of the handshake: about 200 bytes and three more headers. Each figure is the middle of five rounds taken in turns.";
    Ok(format!("### Both eras\n\n{text}\n\n{}\n", table.markdown()))
}
