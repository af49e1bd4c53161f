//! Resolves host names for the connections of every wire.
//!
//! Called by [`crate::connect`] and [`crate::connection_watch`]. The system resolves a name on a
//! thread for blocking work. Such a lookup does not end when its caller gives up. If the name
//! servers are silent, it takes half a minute. Invariants:
//! - Callers share the lookups of a name. One name occupies at most [`LOOKUPS_PER_NAME_MAX`]
//!   threads, however many callers wait for it.
//! - A name whose last lookup was slow occupies no thread of the other names.
//! - All names of one resolver together occupy at most half of the runtime's threads for blocking
//!   work. The rest is for the start of children, and for the checks of new connections that health
//!   probes and replicas wait for.

use std::{
    collections::{HashMap, HashSet},
    fmt, io,
    net::{SocketAddr, ToSocketAddrs as _},
    sync::{Arc, LazyLock},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, watch},
    task::spawn_blocking,
    time::Instant,
};

/// Lookups of one name at the same time. The second one serves callers while the first one waits
/// for a lost packet.
const LOOKUPS_PER_NAME_MAX: usize = 2;
/// Time after which a lookup is slow. Another caller then starts the second lookup.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// Lookups at the same time, without those of slow names.
const LOOKUPS_MAX: usize = 192;
/// Lookups of slow names at the same time.
const SLOW_LOOKUPS_MAX: usize = 64;
/// Slow names that a resolver remembers. Further ones count as fast.
const SLOW_NAMES_MAX: usize = 4_096;
/// Threads that tokio starts for blocking work.
const BLOCKING_THREADS: usize = 512;

const _: () = assert!(LOOKUPS_MAX + SLOW_LOOKUPS_MAX <= BLOCKING_THREADS / 2); // children and health probes need threads too

/// The resolver of all names but those of replicas.
static SHARED: LazyLock<Resolver> = LazyLock::new(Resolver::of_system);

type Lookup = dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync;
type Found = Result<Arc<[SocketAddr]>, Arc<str>>;

/// Resolver of host names. Clones share the lookups.
#[derive(Clone)]
pub struct Resolver(Arc<ResolverInner>);

struct ResolverInner {
    lookup: Box<Lookup>,
    /// The names that are being resolved.
    names: Mutex<HashMap<String, NameLookups>>,
    /// The names whose last lookup was slow.
    slow_names: Mutex<HashSet<String>>,
    threads: Arc<Semaphore>,
    slow_threads: Arc<Semaphore>,
}

struct NameLookups {
    running: usize,
    /// Time at which the last lookup started. `None` after a result: lookups that still run are
    /// slower than the one that gave it, so the next caller does not wait for them alone.
    started_at: Option<Instant>,
    /// Gets the result of the first lookup that ends.
    answer: watch::Sender<Option<Found>>,
}

/// A lookup that runs, or waits for its thread. Its drop reports the result.
struct RunningLookup {
    resolver: Resolver,
    host: String,
    found: Found,
    was_slow: bool,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

impl Resolver {
    /// Creates a resolver that calls `lookup` for each lookup. The port of its results has no
    /// meaning.
    pub fn new(
        lookup: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(ResolverInner {
            lookup: Box::new(lookup),
            names: Mutex::default(),
            slow_names: Mutex::default(),
            threads: Arc::new(Semaphore::new(LOOKUPS_MAX)),
            slow_threads: Arc::new(Semaphore::new(SLOW_LOOKUPS_MAX)),
        }))
    }

    /// Creates a resolver that asks the system, with threads of its own.
    pub(crate) fn of_system() -> Self {
        Self::new(|host| Ok((host, 0_u16).to_socket_addrs()?.collect()))
    }

    /// Returns the resolver of this process for backends and all other servers.
    pub(crate) fn shared() -> &'static Self {
        &SHARED
    }

    /// Returns the addresses of a host with this port, or the reason why there are none. Waits
    /// without limit. The caller limits the time of the whole connect.
    pub(crate) async fn addresses(
        &self,
        host: &str,
        port: u16,
    ) -> Result<Vec<SocketAddr>, Arc<str>> {
        let mut answer = self.join(host);
        let found = match answer.wait_for(Option::is_some).await {
            Ok(found) => found.clone(),
            Err(_) => None,
        };
        let addresses = found.unwrap_or_else(|| Err("the lookup did not end".into()))?;
        let with_port = |address: &SocketAddr| {
            let mut address = *address;
            address.set_port(port);
            address
        };
        Ok(addresses.iter().map(with_port).collect())
    }

    /// Returns the place of the next result for this name. Starts a lookup if one is due.
    fn join(&self, host: &str) -> watch::Receiver<Option<Found>> {
        let now = Instant::now();
        let is_slow = self.0.slow_names.lock().contains(host);
        let may_repeat = !is_slow && self.0.threads.available_permits() > LOOKUPS_MAX / 2;
        let (answer, is_due) = {
            let mut names = self.0.names.lock();
            let name = names.entry(host.to_owned()).or_insert_with(|| NameLookups {
                running: 0,
                started_at: None,
                answer: watch::Sender::new(None),
            });
            let is_late = name.started_at.is_none_or(|started| now - started >= SLOW_AFTER);
            let repeats = may_repeat && is_late && name.running < LOOKUPS_PER_NAME_MAX;
            let is_due = name.running == 0 || repeats;
            if is_due {
                name.running += 1;
                name.started_at = Some(now);
            }
            (name.answer.subscribe(), is_due)
        };
        if is_due {
            self.start(host, is_slow);
        }
        answer
    }

    fn start(&self, host: &str, is_slow: bool) {
        let mut running = RunningLookup {
            resolver: self.clone(),
            host: host.to_owned(),
            found: Err("the lookup was stopped".into()),
            was_slow: false,
        };
        let threads = if is_slow { &self.0.slow_threads } else { &self.0.threads }.clone();
        tokio::spawn(async move {
            let Ok(permit) = threads.acquire_owned().await else { return };
            drop(spawn_blocking(move || {
                let started_at = Instant::now();
                let found = (running.resolver.0.lookup)(&running.host);
                running.found = found.map(Arc::from).map_err(|error| error.to_string().into());
                running.was_slow = started_at.elapsed() >= SLOW_AFTER;
                drop((permit, running));
            }));
        });
    }

    fn record_speed(&self, host: &str, was_slow: bool) {
        let mut slow_names = self.0.slow_names.lock();
        if !was_slow {
            slow_names.remove(host);
        } else if slow_names.len() < SLOW_NAMES_MAX {
            slow_names.insert(host.to_owned());
        }
    }

    /// Gives the result to all callers that wait for this name.
    fn report(&self, host: &str, found: Found) {
        let mut names = self.0.names.lock();
        let Some(name) = names.get_mut(host) else { return };
        name.running -= 1;
        name.started_at = None;
        let answer = std::mem::replace(&mut name.answer, watch::Sender::new(None));
        if name.running == 0 {
            names.remove(host);
        }
        drop(names);
        answer.send_replace(Some(found));
    }
}

impl Drop for RunningLookup {
    fn drop(&mut self) {
        self.resolver.record_speed(&self.host, self.was_slow);
        self.resolver.report(&self.host, self.found.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    use futures_util::{FutureExt as _, future::join_all};
    use tokio::time::advance;

    use super::*;

    /// A resolver whose lookups of `silent.test` wait for a message each, or for the drop of the
    /// sender, and the number of these lookups.
    fn resolver() -> (Resolver, mpsc::Sender<()>, Arc<AtomicUsize>) {
        let (hold, held) = mpsc::channel::<()>();
        let (held, lookups) = (Mutex::new(held), Arc::<AtomicUsize>::default());
        let counted = lookups.clone();
        let resolver = Resolver::new(move |host| {
            if host == "silent.test" {
                counted.fetch_add(1, Ordering::SeqCst);
                let _released = held.lock().recv();
            }
            Ok(vec!["[fe80::1%3]:0".parse().unwrap(), "192.0.2.1:0".parse().unwrap()])
        });
        (resolver, hold, lookups)
    }

    #[tokio::test(start_paused = true)]
    async fn callers_of_a_silent_name_leave_threads_for_other_names() {
        let (resolver, hold, lookups) = resolver();
        // Twice as many as the runtime has threads.
        let mut waiting: Vec<_> =
            (0..1_024).map(|_| Box::pin(resolver.addresses("silent.test", 80))).collect();
        assert!(waiting.iter_mut().all(|caller| caller.now_or_never().is_none()));
        let found = resolver.addresses("other.test", 443).await.unwrap();
        let expected =
            ["[fe80::1%3]:443", "192.0.2.1:443"].map(|text| text.parse::<SocketAddr>().unwrap());
        assert_eq!(found, expected);
        drop(hold);
        let answers = join_all(waiting).await;
        assert!(answers.iter().all(|found| found.as_ref().is_ok_and(|found| found.len() == 2)));
        assert_eq!(lookups.load(Ordering::SeqCst), 1);
        assert!(resolver.0.names.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_caller_starts_a_second_lookup_and_no_third() {
        let (resolver, hold, lookups) = resolver();
        let mut waiting: Vec<_> =
            (0..4).map(|_| Box::pin(resolver.addresses("silent.test", 80))).collect();
        let running = || resolver.0.names.lock()["silent.test"].running;
        let mut expected = [1, 2, 2, 2].into_iter();
        for caller in &mut waiting {
            assert!(caller.now_or_never().is_none());
            assert_eq!(Some(running()), expected.next());
            advance(SLOW_AFTER).await;
        }
        drop(hold);
        assert!(join_all(waiting).await.iter().all(Result::is_ok));
        assert!(lookups.load(Ordering::SeqCst) <= LOOKUPS_PER_NAME_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn after_an_answer_no_caller_waits_only_for_a_lookup_that_is_still_silent() {
        let (hold, held) = mpsc::channel::<()>();
        let (held, lookups) = (Mutex::new(held), Arc::<AtomicUsize>::default());
        let counted = lookups.clone();
        let resolver = Resolver::new(move |_| {
            if counted.fetch_add(1, Ordering::SeqCst) == 0 {
                let _released = held.lock().recv();
            }
            Ok(Vec::new())
        });
        let running = || resolver.0.names.lock()["a.test"].running;
        let mut first = Box::pin(resolver.addresses("a.test", 80));
        assert!(first.as_mut().now_or_never().is_none());
        while lookups.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        advance(SLOW_AFTER).await;
        for _ in 0..3 {
            let mut next = Box::pin(resolver.addresses("a.test", 80));
            assert!(next.as_mut().now_or_never().is_none());
            assert_eq!(running(), 2, "one of them is the silent one");
            assert_eq!(next.await, Ok(Vec::new()));
            assert_eq!(running(), 1, "the silent one");
        }
        assert_eq!(first.await, Ok(Vec::new()));
        drop(hold);
    }

    #[test]
    fn a_slow_name_stays_slow_when_no_further_one_is_remembered() {
        let resolver = Resolver::of_system();
        for number in 0..=SLOW_NAMES_MAX {
            resolver.record_speed(&number.to_string(), true);
        }
        resolver.record_speed("0", true);
        let slow_names = resolver.0.slow_names.lock();
        assert_eq!(slow_names.len(), SLOW_NAMES_MAX);
        assert!(slow_names.contains("0"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_was_slow_uses_no_thread_of_other_names() {
        let (resolver, hold, lookups) = resolver();
        let free = || {
            let Resolver(inner) = &resolver;
            (inner.threads.available_permits(), inner.slow_threads.available_permits())
        };
        let used = [(LOOKUPS_MAX - 1, SLOW_LOOKUPS_MAX), (LOOKUPS_MAX, SLOW_LOOKUPS_MAX - 1)];
        for (earlier, expected) in used.into_iter().enumerate() {
            let mut caller = Box::pin(resolver.addresses("silent.test", 80));
            assert!(caller.as_mut().now_or_never().is_none());
            while lookups.load(Ordering::SeqCst) == earlier {
                tokio::task::yield_now().await;
            }
            assert_eq!(free(), expected);
            if earlier == 0 {
                advance(SLOW_AFTER).await;
            }
            hold.send(()).unwrap();
            caller.await.unwrap();
        }
        assert!(resolver.0.slow_names.lock().is_empty(), "the last lookup was fast");
    }

    #[tokio::test]
    async fn a_failed_lookup_has_its_reason_and_the_next_caller_starts_another_one() {
        let lookups = AtomicUsize::new(0);
        let resolver = Resolver::new(move |_| match lookups.fetch_add(1, Ordering::SeqCst) {
            0 => Err(io::Error::other("no such name")),
            1 => panic!("a lookup that panics"),
            _ => Ok(Vec::new()),
        });
        let failed = resolver.addresses("a.test", 1).await.unwrap_err();
        assert_eq!(&*failed, "no such name");
        let stopped = resolver.addresses("a.test", 1).await.unwrap_err();
        assert_eq!(&*stopped, "the lookup was stopped");
        assert_eq!(resolver.addresses("a.test", 1).await, Ok(Vec::new()));
    }
}
