//! Saturation and bad neighbours, in small: goodput past the peak, shares by weight, hung backends beside good ones. Figures
//! are printed; what is asserted is who gets what, and not how fast: `make bench WHAT=protection` measures that.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use testkit::{FakeBackend, Reply, TestBroker, TestClient};
use tokio::task::JoinHandle;

use crate::{builder, kind};

/// A tool that takes this long, for so many at a time.
async fn limited(at_once: usize, takes: Duration) -> FakeBackend {
    let room = Arc::new(tokio::sync::Semaphore::new(at_once));
    FakeBackend::with_tool("t", move |_| {
        let room = room.clone();
        async move {
            let _place = room.acquire().await.unwrap();
            tokio::time::sleep(takes).await;
            Reply::text("done")
        }
    })
    .await
}

/// What became of a load.
#[derive(Debug, Default)]
struct Tally {
    good: AtomicUsize,
    refused: AtomicUsize,
    late: AtomicUsize,
    refusal_us: AtomicUsize,
}

async fn one(client: TestClient, tally: Arc<Tally>) {
    let asked = Instant::now();
    let answer = client.request("tools/call", json!({"name": "b__t"})).await;
    match answer.get("error") {
        None => tally.good.fetch_add(1, Ordering::Relaxed),
        Some(error) if kind(error) == "overloaded" => {
            tally.refusal_us.fetch_add(asked.elapsed().as_micros() as usize, Ordering::Relaxed);
            tally.refused.fetch_add(1, Ordering::Relaxed)
        }
        Some(_) => tally.late.fetch_add(1, Ordering::Relaxed),
    };
}

/// For so long, from so many at a time.
async fn at_the_peak(client: &TestClient, workers: usize, time: Duration) -> f64 {
    let (tally, begun) = (Arc::new(Tally::default()), Instant::now());
    let workers: Vec<JoinHandle<()>> = (0..workers)
        .map(|_| {
            let (client, tally) = (client.clone(), tally.clone());
            tokio::spawn(async move {
                while begun.elapsed() < time {
                    one(client.clone(), tally.clone()).await;
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    tally.good.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64()
}

/// For so long, so many a second, whatever becomes of them. What was good of each second.
async fn past_it(client: &TestClient, a_second: f64, time: Duration) -> (f64, Arc<Tally>) {
    let (tally, begun) = (Arc::new(Tally::default()), Instant::now());
    let mut calls = Vec::new();
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / a_second));
    while begun.elapsed() < time {
        ticks.tick().await;
        calls.push(tokio::spawn(one(client.clone(), tally.clone())));
    }
    for call in calls {
        call.await.unwrap();
    }
    (tally.good.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64(), tally)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r15_goodput_at_three_times_saturation_stays_near_the_peak() {
    const AT_ONCE: usize = 4;
    let backend = limited(AT_ONCE, Duration::from_millis(80)).await;
    let mut spec = backend.spec();
    spec["limits"] = json!({"calls_in_flight": AT_ONCE, "calls_queued": 1000});
    spec["timeouts"] = json!({"call": "1s"});
    let broker = builder().alone().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    client.call("b__t", json!({})).await;

    // What else this machine does may be more in one half than in the other. What collapses does so again and again.
    for attempt in 1..=3 {
        let peak = at_the_peak(&client, 2 * AT_ONCE, Duration::from_secs(2)).await;
        let (rate, tally) = past_it(&client, 3.0 * peak, Duration::from_secs(4)).await;
        let [all, refused, late] = [&tally.good, &tally.refused, &tally.late].map(|count| count.load(Ordering::Relaxed));
        let mean_refusal = Duration::from_micros((tally.refusal_us.load(Ordering::Relaxed) / refused.max(1)) as u64);
        let told = format!(
            "peak {peak:.1}/s; three times that: goodput {rate:.1}/s ({:.0} %), {refused} refused in {mean_refusal:?} each, {late} late",
            100.0 * rate / peak
        );
        println!("{told}");
        // What can not be done is refused, and not begun and given up.
        if rate >= 0.8 * peak && mean_refusal < Duration::from_millis(500) && refused > late && refused * 4 > all {
            break;
        }
        assert!(attempt < 3, "it collapses: {told}");
    }
    assert_eq!(broker.admin().backend("default", "b").await["breaker"]["state"], "closed", "waiting in our queue is no failure");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_tenants_at_saturation_get_shares_by_weight() {
    let backend = FakeBackend::with_tool("t", |_| async {
        tokio::time::sleep(Duration::from_millis(40)).await;
        Reply::text("done")
    })
    .await;
    let mut building = builder().alone().auth_required().config(json!({"limits": {"calls_in_flight": 10}}));
    for weight in 1..=10 {
        building = building.tenant(&format!("t{weight}")).backend(&format!("t{weight}"), "b", backend.spec());
    }
    let broker = building.start().await;
    let over = Arc::new(AtomicBool::new(false));
    let counted = Arc::new(AtomicBool::new(false));
    let mut tenants = Vec::new();
    for weight in 1..=10_usize {
        let tenant = format!("t{weight}");
        broker.admin().put_tenant(&tenant, json!({"weight": weight})).await;
        let key = broker.admin().create_key(&tenant).await;
        let client = broker.client("/mcp").bearer(&key).connected(json!({})).await;
        let served = Arc::new(AtomicUsize::new(0));
        let workers: Vec<_> = (0..6 + 2 * weight)
            .map(|_| {
                let (client, served, counted, over) = (client.clone(), served.clone(), counted.clone(), over.clone());
                tokio::spawn(async move {
                    while !over.load(Ordering::Relaxed) {
                        client.call("b__t", json!({})).await;
                        served.fetch_add(usize::from(counted.load(Ordering::Relaxed)), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        tenants.push((weight, served, workers));
    }
    broker.admin().wait_metric("mcp_queue_depth", &[("queue", "calls")], |depth| depth > 100.0).await;
    counted.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(7)).await;
    counted.store(false, Ordering::Relaxed);
    let served: Vec<(usize, usize)> = tenants.iter().map(|(weight, served, _)| (*weight, served.load(Ordering::Relaxed))).collect();
    over.store(true, Ordering::Relaxed);
    for (.., workers) in tenants {
        for worker in workers {
            worker.await.unwrap();
        }
    }
    let all: usize = served.iter().map(|(_, served)| served).sum();
    let round = all as f64 / 55.0;
    let shares: Vec<String> =
        served.iter().map(|(weight, served)| format!("{:+.1} %", 100.0 * (*served as f64 / (round * *weight as f64) - 1.0))).collect();
    println!("{all} calls; off their share by weight 1 to 10: {}", shares.join(", "));
    for (weight, served) in served {
        let fair = round * weight as f64;
        // One turn more or less at either end of the time is nobody's fault.
        assert!((served as f64 - fair).abs() <= 0.05 * fair + weight as f64 + 1.0, "weight {weight}: {served}, fair is {fair:.1}");
    }
}

/// Latencies of so many requests, sorted.
async fn latencies<F: Future<Output = Value>>(count: usize, mut ask: impl FnMut() -> F) -> Vec<Duration> {
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let asked = Instant::now();
        ask().await;
        all.push(asked.elapsed());
    }
    all.sort();
    all
}

async fn typical(broker: &TestBroker, backends: usize) -> (Duration, Duration) {
    let client = broker.connected(json!({})).await;
    let lists = latencies(60, || client.result("tools/list", json!({}))).await;
    let mut at = 0;
    let calls = latencies(90, || {
        at = at % (backends - 1) + 1;
        let name = format!("b{at}__echo");
        let client = client.clone();
        async move { client.call(&name, json!({})).await }
    })
    .await;
    (lists[lists.len() / 2], calls[calls.len() / 2])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r13_one_of_fifty_backends_hangs_and_nobody_else_notices() {
    const BACKENDS: usize = 50;
    let (hung, good) = (FakeBackend::start().await, FakeBackend::echo().await);
    for name in ["hang", "for_ever"] {
        hung.tool(name, |_| async { Reply::Hang });
    }
    let mut spec = hung.spec();
    spec["timeouts"] = json!({"tools": {"hang": "700ms", "for_ever": "5m"}});
    spec["breaker"] = json!({"enabled": false});
    let mut building = builder().alone().backend("default", "b0", spec);
    for n in 1..BACKENDS {
        building = building.backend("default", &format!("b{n}"), good.spec());
    }
    let broker = building.start().await;
    let client = broker.connected(json!({})).await;

    // What else this machine does may be more in one half than in the other. Who waits for the hung one, does so every time.
    let mut held = Vec::new();
    for attempt in 1..=3 {
        let before = typical(&broker, BACKENDS).await;
        held.extend((0..4).map(|_| client.begin("tools/call", json!({"name": "b0__for_ever"}))));
        hung.wait_count("the calls", 4 * attempt, |seen| seen.calls("for_ever")).await;
        let during = typical(&broker, BACKENDS).await;
        println!("medians of lists and of calls to others: before {before:?}, during {during:?}");
        let well = |before: Duration, during: Duration| during <= 2 * before + Duration::from_millis(5);
        if well(before.0, during.0) && well(before.1, during.1) {
            break;
        }
        assert!(attempt < 3, "others wait for the hung one: before {before:?}, during {during:?}");
    }

    let callers: Vec<_> = (0..4)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                let asked = Instant::now();
                let error = client.error("tools/call", json!({"name": "b0__hang"})).await;
                assert_eq!(kind(&error), "timeout");
                asked.elapsed()
            })
        })
        .collect();
    for caller in callers {
        let took = caller.await.unwrap();
        println!("a caller of the hung backend was answered after {took:?} (700 ms allowed)");
        assert!((Duration::from_millis(700)..Duration::from_secs(5)).contains(&took), "{took:?}");
    }
    hung.wait_count("the cancellations", 4, |seen| seen.is("notifications/cancelled")).await;
}
