//! Saturation and bad neighbours, in small: goodput past the peak, shares by weight, hung backends
//! next to good ones. Figures are printed. The assertions check shares, not speed: `make bench
//! WHAT=protection` measures that.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::json;
use testkit::{AdminClient, BrokerBuilder, FakeBackend, Reply, TestBroker, TestClient};
use tokio::task::JoinHandle;

use crate::{builder, kind};

/// Returns a backend with a tool that takes this long, for so many calls at a time.
async fn limited(at_once: usize, takes: Duration) -> FakeBackend {
    let permits = Arc::new(tokio::sync::Semaphore::new(at_once));
    FakeBackend::with_tool("t", move |_| {
        let permits = permits.clone();
        async move {
            let _permit = permits.acquire().await.unwrap();
            tokio::time::sleep(takes).await;
            Reply::text("done")
        }
    })
    .await
}

/// Outcomes of a load.
#[derive(Debug, Default)]
struct Tally {
    good: AtomicUsize,
    refused: AtomicUsize,
    late: AtomicUsize,
}

async fn one(client: TestClient, tally: Arc<Tally>) {
    let answer = client.request("tools/call", json!({"name": "b__t"})).await;
    match answer.get("error") {
        None => tally.good.fetch_add(1, Ordering::Relaxed),
        Some(error) if kind(error) == "overloaded" => tally.refused.fetch_add(1, Ordering::Relaxed),
        Some(_) => tally.late.fetch_add(1, Ordering::Relaxed),
    };
}

/// Runs the load for this time, with so many calls at a time; returns the goodput per second.
async fn at_the_peak(client: &TestClient, workers: usize, time: Duration) -> f64 {
    let (tally, started) = (Arc::new(Tally::default()), Instant::now());
    let workers: Vec<JoinHandle<()>> = (0..workers)
        .map(|_| {
            let (client, tally) = (client.clone(), tally.clone());
            tokio::spawn(async move {
                while started.elapsed() < time {
                    one(client.clone(), tally.clone()).await;
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    tally.good.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64()
}

/// Starts so many calls per second for this time, whatever their outcomes. Returns the goodput per
/// second.
async fn past_it(client: &TestClient, a_second: f64, time: Duration) -> (f64, Arc<Tally>) {
    let (tally, started) = (Arc::new(Tally::default()), Instant::now());
    let mut calls = Vec::new();
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / a_second));
    while started.elapsed() < time {
        ticks.tick().await;
        calls.push(tokio::spawn(one(client.clone(), tally.clone())));
    }
    for call in calls {
        call.await.unwrap();
    }
    (tally.good.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64(), tally)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r15_goodput_at_three_times_saturation_stays_near_the_peak() {
    const AT_ONCE: usize = 4;
    const ROUNDS_MAX: usize = 8;
    let backend = limited(AT_ONCE, Duration::from_millis(80)).await;
    let mut spec = backend.spec();
    spec["limits"] = json!({"calls_in_flight": AT_ONCE, "calls_queued": 1000});
    spec["timeouts"] = json!({"call": "1s"});
    let broker = builder().single_process().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    client.call("b__t", json!({})).await;

    // A broker that collapses does so in each round. Other work of this machine spoils some of them.
    let (mut rounds, mut stable_rounds) = (Vec::new(), 0);
    while stable_rounds < 2 && rounds.len() < ROUNDS_MAX {
        let peak = at_the_peak(&client, 2 * AT_ONCE, Duration::from_secs(1)).await;
        let (rate, tally) = past_it(&client, 3.0 * peak, Duration::from_secs(2)).await;
        let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        let (good, refused, late) = (count(&tally.good), count(&tally.refused), count(&tally.late));
        let share = rate / peak;
        rounds.push(format!(
            "goodput at three times the peak: {:.0} % of it; {good} done, {refused} refused, {late} late",
            100.0 * share
        ));
        // Calls beyond the capacity are refused, not begun and given up.
        stable_rounds += usize::from(share >= 0.8 && refused > late && refused * 4 > good);
    }
    println!("{rounds:#?}");
    assert_eq!(stable_rounds, 2, "it collapses: {rounds:#?}");
    assert_eq!(
        broker.admin().backend("default", "b").await["breaker"]["state"],
        "closed",
        "a wait in our queue does not count as a failure"
    );
}

/// Returns a backend for tenants of weight one to ten, in a broker that permits ten calls in
/// flight. [`served`] makes 160 more wait.
async fn ten_tenants(takes: Duration) -> (BrokerBuilder, FakeBackend) {
    let backend = FakeBackend::with_tool("t", move |_| async move {
        tokio::time::sleep(takes).await;
        Reply::text("done")
    })
    .await;
    let config =
        json!({"limits": {"calls_in_flight": 10, "connections_per_second_per_address": 0}});
    let mut building = builder().single_process().auth_required().config(config);
    for weight in 1..=10 {
        building = building.tenant(&format!("t{weight}")).backend(
            &format!("t{weight}"),
            "b",
            backend.spec(),
        );
    }
    (building, backend)
}

/// Returns a key for each, by weight.
async fn keys(operator: &AdminClient) -> Vec<(usize, String)> {
    let key = async |weight: usize| {
        let tenant = format!("t{weight}");
        operator.put_tenant(&tenant, json!({"weight": weight})).await;
        (weight, operator.create_key(&tenant).await)
    };
    futures_util::future::join_all((1..=10).map(key)).await
}

/// Counts calls by client, once all wait and each has had its turns, until so many are answered.
async fn served(
    clients: Vec<(usize, TestClient)>,
    all_wait: impl Future<Output = ()>,
    calls: usize,
) -> Vec<(usize, usize)> {
    let (over, answered) =
        (Arc::new(AtomicBool::new(false)), Arc::new(tokio::sync::Semaphore::new(0)));
    let counts: Arc<[AtomicUsize; 10]> = Arc::default();
    let mut workers = tokio::task::JoinSet::new();
    for (weight, client) in clients {
        for _ in 0..6 + 2 * weight {
            let (client, counts, over) = (client.clone(), counts.clone(), over.clone());
            let answered = answered.clone();
            workers.spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    client.call("b__t", json!({})).await;
                    counts[weight - 1].fetch_add(1, Ordering::Relaxed);
                    answered.add_permits(1);
                }
            });
        }
    }
    all_wait.await;
    // Calls that were in flight before all waited had no turn.
    answered.forget_permits(usize::MAX >> 4);
    let counted = async |calls: usize| {
        let enough = answered.acquire_many(calls as u32);
        tokio::time::timeout(Duration::from_secs(120), enough)
            .await
            .expect("calls go on")
            .unwrap()
            .forget();
        counts.each_ref().map(|count| count.load(Ordering::Relaxed))
    };
    let (before, after) = (counted(calls / 5).await, counted(calls).await);
    let served = (1..=10).map(|weight| (weight, after[weight - 1] - before[weight - 1])).collect();
    over.store(true, Ordering::Relaxed);
    workers.join_all().await;
    served
}

/// Checks that each share is within this part of a fair share. So many turns more or less at either
/// end of the time are allowed.
fn assert_shares(served: &[(usize, usize)], off: f64, turns: usize) {
    let all: usize = served.iter().map(|(_, served)| served).sum();
    let round = all as f64 / 55.0;
    let of_fair =
        |weight: usize, served: usize| 100.0 * (served as f64 / (round * weight as f64) - 1.0);
    let shares: Vec<String> = served
        .iter()
        .map(|(weight, served)| format!("{:+.1} %", of_fair(*weight, *served)))
        .collect();
    println!("{all} calls; off their share by weight 1 to 10: {}", shares.join(", "));
    for (weight, served) in served {
        let (fair, turns) = (round * *weight as f64, (turns * (weight + 1)) as f64);
        assert!(
            (*served as f64 - fair).abs() <= off * fair + turns,
            "weight {weight}: {served}, fair is {fair:.1}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r14_ten_tenants_at_saturation_get_shares_by_weight() {
    let (building, _backend) = ten_tenants(Duration::from_millis(40)).await;
    let broker = building.start().await;
    let mut clients = Vec::new();
    for (weight, key) in keys(&broker.admin()).await {
        clients.push((weight, broker.client("/mcp").bearer(&key).connected(json!({})).await));
    }
    let admin = broker.admin();
    let all_wait = async {
        admin.wait_metric("mcp_queue_depth", &[("queue", "calls")], |depth| depth > 155.0).await;
    };
    let served = served(clients, all_wait, 55 * 25).await;
    assert_shares(&served, 0.05, 1);
}

/// Each tenant has sessions on every replica, as behind a balancer. The sessions share each
/// replica's capacity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r14_ten_tenants_on_three_replicas_get_shares_by_weight() {
    let (building, _backend) = ten_tenants(Duration::from_millis(100)).await;
    let cluster = building.cluster(3).start().await;
    let mut clients = Vec::new();
    for (weight, key) in keys(&cluster.operator()).await {
        for replica in 0..3 {
            clients.push((
                weight,
                cluster.client_of(replica, "/mcp").bearer(&key).connected(json!({})).await,
            ));
        }
    }
    let all_wait = async {
        for replica in 0..3 {
            cluster
                .admin(replica)
                .wait_metric("mcp_queue_depth", &[("queue", "calls")], |depth| depth > 155.0)
                .await;
        }
    };
    let served = served(clients, all_wait, 55 * 25).await;
    assert_shares(&served, 0.10, 2);
}

/// Returns a broker in which one of fifty backends never answers, and a client of it.
async fn fifty(hung: &FakeBackend, good: &FakeBackend) -> (TestBroker, TestClient) {
    let mut spec = hung.spec();
    spec["timeouts"] = json!({"tools": {"hang": "700ms", "for_ever": "5m"}});
    spec["breaker"] = json!({"enabled": false});
    let mut building = builder().single_process().backend("default", "b0", spec);
    for n in 1..50 {
        building = building.backend("default", &format!("b{n}"), good.spec());
    }
    let broker = building.start().await;
    let client = broker.connected(json!({})).await;
    (broker, client)
}

/// Returns the median times of both. They take turns, so that other work of this machine affects
/// both.
async fn in_turns(
    here: &TestClient,
    there: &TestClient,
    count: usize,
    request: impl AsyncFn(&TestClient, usize),
) -> [Duration; 2] {
    let mut took = [Vec::new(), Vec::new()];
    for n in 0..count {
        for (client, took) in [here, there].into_iter().zip(&mut took) {
            let asked = Instant::now();
            request(client, n).await;
            took.push(asked.elapsed());
        }
    }
    took.map(|mut took| {
        took.sort_unstable();
        took[took.len() / 2]
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r13_one_hung_backend_of_fifty_does_not_affect_the_others() {
    let (hung, good) = (FakeBackend::start().await, FakeBackend::echo().await);
    for name in ["hang", "for_ever"] {
        hung.tool(name, |_| async { Reply::Hang });
    }
    let ((_broker, client), (_quiet, undisturbed)) =
        tokio::join!(fifty(&hung, &good), fifty(&hung, &good));
    let _held: Vec<_> = (0..8)
        .map(|_| client.start_request("tools/call", json!({"name": "b0__for_ever"})))
        .collect();
    hung.wait_count("the calls", 8, |seen| seen.calls("for_ever")).await;
    let lists = in_turns(&client, &undisturbed, 60, async |client, _| {
        client.result("tools/list", json!({})).await;
    });
    let lists = lists.await;
    let calls = in_turns(&client, &undisturbed, 98, async |client, n| {
        client.call(&format!("b{}__echo", n % 49 + 1), json!({})).await;
    });
    let calls = calls.await;
    println!(
        "medians during calls that hang, and without: lists {lists:?}, calls to others {calls:?}"
    );
    for [during, without] in [lists, calls] {
        assert!(
            during <= without * 3 / 2 + Duration::from_millis(3),
            "others wait for the hung one: {during:?}, {without:?}"
        );
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
