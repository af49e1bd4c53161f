//! Every revision of clients in front of every revision of backends, behaviour by behaviour. One
//! table ([`table::ROWS`]) states the expected outcome of each pair, and the tests compare it with
//! the wires.
//!
//! `docs/compatibility.md` is written from the same table. Both sides follow their revision
//! strictly, over real sockets. The broker's messages to either side are judged by the schema of
//! the receiver's revision (V-04).

mod back;
mod content;
mod errors;
mod features;
mod flow;
mod front;
mod kept;
mod lists;
mod opening;
mod page;
mod questions;
mod strict;
mod table;
mod tasks;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt as _, future::BoxFuture, stream};
use serde_json::{Value, json};
use testkit::TestBroker;
use tokio::{sync::OnceCell, time::timeout};

use self::{
    back::Back,
    front::{Client, Front, everything},
    kept::Keeper,
    table::ROWS,
};
use crate::builder;

/// A revision, as its index in [`REVISIONS`].
type Of = usize;

const REVISIONS: [&str; 5] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", STATELESS];
const STATELESS: &str = "2026-07-28";
/// Pairs that are tested at the same time. More would only wait for the processors.
const PAIRS_AT_A_TIME: usize = 10;
/// Longest time of a behaviour; a longer one hangs.
const AT_ONCE: Duration = Duration::from_secs(45);

/// Outcome of a behaviour between two revisions.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cell {
    /// The message passes unchanged.
    Same,
    /// The message is translated to the other side's revision.
    Translated,
    /// The requester gets a refusal: `error.code` and `error.data.kind`.
    Refused(i64, String),
    /// The side that would begin does not know the behaviour.
    Absent,
}

/// The observed outcome, or the reason why it is none of these.
type Found = Result<Cell, String>;

/// One behaviour.
struct Row {
    /// Name in the documentation.
    name: &'static str,
    run: fn(Arc<Pair>) -> BoxFuture<'static, Found>,
    /// A line for each revision of the client, in it a letter for each revision of the backend: `=`
    /// same, `t` translated, `-` absent, and letters of `refusals`.
    cells: [&'static str; 5],
    refusals: &'static [Refusal],
    /// Remark that the letters cannot express.
    note: &'static str,
}

struct Refusal {
    letter: char,
    code: i64,
    kind: &'static str,
    why: &'static str,
}

impl Row {
    fn expected(&self, client: Of, backend: Of) -> Cell {
        let letter = self.letter(client, backend);
        match letter {
            '=' => Cell::Same,
            't' => Cell::Translated,
            '-' => Cell::Absent,
            _ => {
                let refusal = self.refusal(letter);
                Cell::Refused(refusal.code, refusal.kind.to_owned())
            }
        }
    }

    fn letter(&self, client: Of, backend: Of) -> char {
        let line: Vec<char> = self.cells[client].chars().filter(|letter| *letter != ' ').collect();
        assert_eq!(line.len(), REVISIONS.len(), "{}: {line:?}", self.name);
        line[backend]
    }

    fn refusal(&self, letter: char) -> &Refusal {
        self.refusals
            .iter()
            .find(|refusal| refusal.letter == letter)
            .unwrap_or_else(|| panic!("{}: what is {letter}?", self.name))
    }
}

/// A client of one revision and a backend of another, with the broker between them.
struct Pair {
    client: Client,
    back: Back,
    broker: Arc<TestBroker>,
    front: Front,
    name: String,
    /// A client of the same revision that declares nothing.
    plain: OnceCell<Client>,
    /// A client that leaves its answers to the test.
    silent: OnceCell<Client>,
    /// A client of 2026-07-28 that supports tasks.
    tasker: OnceCell<Client>,
    /// A backend of the same revision that hosts tasks, if that has them, and a client in front of
    /// it.
    keeper: Option<Keeper>,
    at_keeper: OnceCell<Client>,
    number: AtomicU64,
}

impl Pair {
    /// Returns the client's revision.
    fn client_of(&self) -> Of {
        self.client.of
    }

    fn is_modern_client(&self) -> bool {
        self.client.is_modern()
    }

    fn is_modern_back(&self) -> bool {
        matches!(self.back, Back::Modern(_))
    }

    /// Returns whether the backend's revision is this one, or a later one.
    fn back_since(&self, revision: &str) -> bool {
        self.name.as_str() >= name_of(revision).as_str()
    }

    fn client_since(&self, revision: &str) -> bool {
        REVISIONS[self.client_of()] >= revision
    }

    /// Returns the expected cell of a message that is translated between the eras only.
    fn by_era(&self) -> Cell {
        if self.is_modern_client() == self.is_modern_back() { Cell::Same } else { Cell::Translated }
    }

    /// Returns a mark that distinguishes this behaviour's requests from all others of the pair.
    fn mark(&self) -> String {
        format!("m{}", self.number.fetch_add(1, Ordering::Relaxed))
    }

    async fn silent(&self) -> &Client {
        self.silent
            .get_or_init(|| Client::silent(&self.broker, self.front, self.client_of(), &self.name))
            .await
    }

    async fn tasker(&self) -> &Client {
        let mut capabilities = everything(self.client_of());
        capabilities["extensions"] = json!({"io.modelcontextprotocol/tasks": {}});
        self.tasker
            .get_or_init(|| {
                Client::open(&self.broker, self.front, self.client_of(), &self.name, capabilities)
            })
            .await
    }

    async fn plain(&self) -> &Client {
        self.plain
            .get_or_init(|| {
                Client::open(&self.broker, self.front, self.client_of(), &self.name, json!({}))
            })
            .await
    }
}

/// Returns the name of a backend of this revision: letters first, so that names are ordered as
/// revisions are.
fn name_of(revision: &str) -> String {
    format!("r{}", revision.replace('-', ""))
}

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

/// Returns `error.code` and `error.data.kind` of a refusal.
fn refused(error: &Value) -> Found {
    let (Some(code), Some(kind)) = (error["code"].as_i64(), error["data"]["kind"].as_str()) else {
        return Err(format!("no refusal of the broker: {error}"));
    };
    Ok(Cell::Refused(code, kind.to_owned()))
}

/// Two revisions, and the transport of the backend.
struct Between {
    client: Of,
    backend: Of,
    name: String,
    back: Back,
    keeper: Option<Keeper>,
}

/// Runs every row between these two; returns the deviations.
async fn try_pair(broker: Arc<TestBroker>, front: Front, between: Between) -> Vec<String> {
    let Between { client, backend, name, back, keeper } = between;
    let opened = Client::open(&broker, front, client, &name, everything(client)).await;
    let (plain, silent, tasker, at_keeper) =
        (OnceCell::new(), OnceCell::new(), OnceCell::new(), OnceCell::new());
    let pair = Pair {
        client: opened,
        back,
        broker,
        front,
        name,
        plain,
        silent,
        tasker,
        keeper,
        at_keeper,
        number: AtomicU64::new(0),
    };
    let pair = Arc::new(pair);
    let mut wrong = Vec::new();
    for row in ROWS {
        let expected = row.expected(client, backend);
        let running = tokio::spawn((row.run)(pair.clone()));
        let at_the_latest = running.abort_handle();
        let found = match timeout(AT_ONCE, running).await {
            Ok(Ok(found)) => found,
            Ok(Err(panicked)) => Err(format!("panicked: {panicked}")),
            Err(_) => {
                at_the_latest.abort();
                Err("hangs".to_owned())
            }
        };
        if found.as_ref() != Ok(&expected) {
            wrong.push(format!(
                "{} in front of {}: {}: expected {expected:?}, found {found:?}",
                REVISIONS[client], REVISIONS[backend], row.name
            ));
        }
    }
    wrong
}

/// Runs one broker with a backend for each of these pairs, and tests some of them at a time.
async fn every_cell(front: Front, pipe: bool, wanted: impl Fn(Of, Of) -> bool) {
    // Calls of clients that support tasks become one soon. All clients have one address, and each
    // request over HTTP has a connection of its own.
    let config = json!({
        "tasks": {"promote_after": "100ms"},
        "limits": {"connections_per_second_per_address": 0},
    });
    let mut builder = builder().config(config).single_process();
    let mut pairs = Vec::new();
    for client in 0..REVISIONS.len() {
        for backend in (0..REVISIONS.len()).filter(|backend| wanted(client, *backend)) {
            let back = Back::start(backend, pipe).await;
            let name = format!("{}c{client}", name_of(REVISIONS[backend]));
            builder = builder.backend("default", &name, back.spec());
            let keeper = if REVISIONS[backend] == "2025-11-25" {
                Some(Keeper::beside(&name, pipe).await)
            } else {
                None
            };
            if let Some(keeper) = &keeper {
                builder = builder.backend("default", &keeper.name, keeper.backend.spec());
            }
            pairs.push(Between { client, backend, name, back, keeper });
        }
    }
    let broker = Arc::new(builder.start().await);
    let tried = stream::iter(pairs)
        .map(|between| tokio::spawn(try_pair(broker.clone(), front, between)))
        .buffer_unordered(PAIRS_AT_A_TIME);
    let mut wrong = Vec::new();
    for tried in tried.collect::<Vec<_>>().await {
        match tried {
            Ok(found) => wrong.extend(found),
            Err(panicked) => wrong.push(format!("a pair panicked: {panicked}")),
        }
    }
    wrong.sort();
    assert!(
        wrong.is_empty(),
        "{} cells are not as the table says:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn br_01_br_04_br_07_every_pair_of_revisions_matches_the_table_over_http() {
    every_cell(Front::Http, false, |_, _| true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn br_01_requests_across_eras_match_the_table_over_other_wires() {
    let is_modern = |of: Of| REVISIONS[of] == STATELESS;
    every_cell(Front::WebSocket, true, |client, backend| is_modern(client) != is_modern(backend))
        .await;
}
