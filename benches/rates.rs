//! Measures the cost of a decision about a rate. governor in the broker's
//! `rules::local_rate_limit`, alone and in a table of addresses, is compared with the budget that
//! replicas share (`rules::gcra`).

use std::{
    hint::black_box,
    net::{IpAddr, Ipv4Addr},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use benches::{Scale, Table, median, shown};
use rules::{
    gcra::{GcraLimiter, Rate},
    limits::ADDRESSES_METERED_MAX,
    local_rate_limit::{KeyedRateLimiter, LocalRateLimiter, per_second},
};

const RATE: u32 = 1_000;
const BURST: u32 = 2_000;

/// Decides about one event of an address.
type Decide = Box<dyn FnMut(u32, Duration) -> bool>;

fn main() -> ExitCode {
    benches::main("rates", bench)
}

async fn bench(scale: Scale) -> anyhow::Result<()> {
    let (quota, rate) = (per_second(RATE, BURST), Rate::new(RATE, BURST));
    let (quota, rate) = (quota.context("a rate above zero")?, rate.context("a rate above zero")?);
    let (budget, mut single) = (GcraLimiter::default(), LocalRateLimiter::new(quota));
    let keyed = |addresses: u32| -> Decide {
        let mut rates = KeyedRateLimiter::new(quota, ADDRESSES_METERED_MAX);
        Box::new(move |number, now| {
            rates.check(&IpAddr::from(Ipv4Addr::from_bits(number % addresses)), now).is_ok()
        })
    };
    let mut deciders: [(&str, Decide); 5] = [
        (
            "the shared budget's cell",
            Box::new(move |_, now| budget.try_acquire(rate, 1, now).is_ok()),
        ),
        ("governor, one rate", Box::new(move |_, now| single.check(now).is_ok())),
        ("governor, ten addresses", keyed(10)),
        ("governor, as many addresses as the table holds", keyed(ADDRESSES_METERED_MAX as u32)),
        ("governor, an address for each event", keyed(u32::MAX)),
    ];
    let count = scale.of(100_000_u32, 100);
    let mut times = [const { Vec::new() }; 5];
    for round in 0..scale.of(25_u32, 1) {
        for ((_, decide), times) in deciders.iter_mut().zip(&mut times) {
            let started = Instant::now();
            for number in 0..count {
                // A tenth above the rate of one, so that both answers occur.
                let now = Duration::from_micros(u64::from(round * count + number) * 900);
                black_box(decide(black_box(number.wrapping_mul(2_654_435_761)), now));
            }
            times.push(started.elapsed().as_secs_f64() / f64::from(count));
        }
    }
    let times = times.map(median);
    let mut table = Table::new(["who decides", "a decision", "of the shared budget's"]);
    for ((name, _), time) in deciders.iter().zip(times) {
        table.row([
            (*name).to_owned(),
            shown(Duration::from_secs_f64(time)),
            format!("{:.1}", time / times[0]),
        ]);
    }
    table.print("One decision about a rate, without the lock around it");
    Ok(())
}
