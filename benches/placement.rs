//! Compares one runtime whose threads take work from each other with one for each processor that
//! shares nothing.
//!
//! The first is the broker as it is. The second is as many brokers as there are processors, each
//! with one thread on a processor of its own and the same port. The kernel spreads connections over
//! them, and each has links to the backend of its own. This is the best case of a runtime per
//! processor: messages between its parts would cost more, and cost nothing here.

use std::{num::NonZero, process::ExitCode, thread, time::Duration};

use anyhow::ensure;
use benches::{
    Scale, Table, digits,
    load::{CallLoad, CallTarget},
    shown,
};
use loadtest::{
    backend::{Backend, BackendOptions},
    compare::{self, Figures},
    era::Era,
    run::Load,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};
use testkit::{BrokerBuilder, TestBroker};

const BYTES: usize = 256;
/// Connections, and calls in flight on each.
const LOADS: [(Wire, usize, usize); 4] =
    [(Wire::Http, 16, 1), (Wire::Http, 64, 1), (Wire::Tcp, 16, 1), (Wire::Tcp, 16, 16)];

#[derive(Debug, Clone, Copy)]
enum Wire {
    Http,
    Tcp,
}

fn main() -> ExitCode {
    benches::main("placement", bench)
}

async fn bench(scale: Scale) -> anyhow::Result<()> {
    let backends = [
        Backend::http("127.0.0.1:0", &BackendOptions::default()).await?,
        Backend::tcp("127.0.0.1:0", &BackendOptions::default()).await?,
    ];
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let shared = [broker("127.0.0.1:0", "127.0.0.1:0", processors, &backends).await];
    let apart = one_each(processors, &backends).await?;
    let mut table = Table::new([
        "wire",
        "load",
        "placement",
        "calls/s",
        "ratio",
        "p50",
        "p99",
        "CPU a call",
        "ratio",
    ]);
    for (wire, connections, in_flight) in scale.of(&LOADS[..], &LOADS[..1]) {
        let loads = [&shared[..], &apart[..]]
            .map(|brokers| load(*wire, brokers, *connections, *in_flight, scale));
        let loads = loads.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let rounds = compare::run_interleaved(&loads, scale.of(5, 1), |_| ()).await?;
        ensure!(rounds.faults().is_empty(), "{}", rounds.faults().join("\n"));
        let figures: Vec<Figures> = rounds.0.iter().map(|rounds| Figures::of(rounds)).collect();
        for (placement, of) in ["one runtime", "one each"].iter().zip(&figures) {
            let cpu = of.cpu_us_per_call.zip(figures[0].cpu_us_per_call);
            table.row([
                format!("{wire:?}"),
                format!("{connections} x {in_flight}"),
                (*placement).to_owned(),
                digits(of.rate),
                format!("{:.2}", of.rate / figures[0].rate),
                shown(Duration::from_secs_f64(of.p50 / 1000.0)),
                shown(Duration::from_secs_f64(of.p99 / 1000.0)),
                cpu.map_or("-".to_owned(), |(cpu, _)| format!("{cpu:.1} µs")),
                cpu.map_or("-".to_owned(), |(cpu, first)| format!("{:.2}", cpu / first)),
            ]);
        }
    }
    table.print(&format!("Calls of {BYTES} B on {processors} processors, which client and backend share; connections x calls in flight"));
    Ok(())
}

/// Starts a broker for each processor, all of them behind the same ports.
async fn one_each(processors: usize, backends: &[Backend; 2]) -> anyhow::Result<Vec<TestBroker>> {
    let all = sched_getaffinity(None)?;
    let mut brokers: Vec<TestBroker> = Vec::new();
    for number in 0..processors {
        let (http, tcp) = brokers.first().map_or_else(
            || ("127.0.0.1:0".to_owned(), "127.0.0.1:0".to_owned()),
            |first| (first.http_address().to_string(), first.tcp_address().to_string()),
        );
        let mut one = CpuSet::new();
        one.set(number);
        // Processes started from here on inherit the processor.
        let _where_it_is_allowed = sched_setaffinity(None, &one);
        brokers.push(broker(&http, &tcp, 1, backends).await);
        sched_setaffinity(None, &all)?;
    }
    Ok(brokers)
}

async fn broker(
    http: &str,
    tcp: &str,
    threads: usize,
    [over_http, over_tcp]: &[Backend; 2],
) -> TestBroker {
    let config = json!({
        "listen": {"http": http, "tcp": tcp, "reuse_port": true},
        "limits": {"requests_per_second": 1_000_000, "burst": 1_000_000, "connections_per_second_per_address": 0},
    });
    let builder = BrokerBuilder::new(benches::broker_binary().expect("it was built"))
        .config(config)
        .single_process();
    let builder = builder.env("TOKIO_WORKER_THREADS", &threads.to_string());
    let behind = |transport: Value| json!({"transport": transport});
    let builder = builder.backend(
        "default",
        "http",
        behind(json!({"type": "http", "url": format!("http://{}/mcp", over_http.address())})),
    );
    builder
        .backend(
            "default",
            "tcp",
            behind(json!({"type": "tcp", "address": over_tcp.address().to_string()})),
        )
        .start()
        .await
}

fn load(
    wire: Wire,
    brokers: &[TestBroker],
    connections: usize,
    in_flight: usize,
    scale: Scale,
) -> anyhow::Result<Load> {
    let (target, era) = match wire {
        // Without sessions: requests may come on any connection, and so to a broker that does not
        // know the session.
        Wire::Http => (format!("http://{}/mcp/http", brokers[0].http_address()), Era::Stateless),
        Wire::Tcp => (format!("tcp://{}/tcp", brokers[0].tcp_address()), Era::Sessions),
    };
    let calls = CallLoad { connections, in_flight, bytes: BYTES, per_second: None, era };
    let to = CallTarget {
        target,
        keys: Vec::new(),
        pids: brokers.iter().map(TestBroker::pid).collect(),
    };
    calls.into_load(to, scale.of(Duration::from_secs(2), Duration::from_millis(50)))
}
