//! Counts what sessions, calls, tasks and events cost PostgreSQL and Redis, with 1 to 16 replicas,
//! by the counters of both servers. Then it ends replicas, and counts what the others pay.
//!
//! Counts of PostgreSQL depend neither on the build nor on the machine, unlike times. Those of Redis
//! do a little, because what comes within some milliseconds shares commands.

mod counters;
mod kept;
mod operations;
mod site;
mod takeover;

use std::{process::ExitCode, time::Duration};

use benches::{Scale, Table, digits, growth::growth, shown};
use futures_util::future::try_join_all;

use self::{
    counters::Cost,
    kept::{Client, KeptRecords, KeptSessions},
    operations::Costs,
    takeover::{End, Takeover},
};

/// Statements that are named: those that an operation sends at least this often.
const NAMED_FROM: f64 = 0.05;
const STATEMENT_SHOWN: usize = 70;

fn main() -> ExitCode {
    benches::main("cluster", bench)
}

async fn bench(scale: Scale) -> anyhow::Result<()> {
    let mut costs = Vec::new();
    for replicas in scale.of(&[1, 2, 4, 8, 16][..], &[2]) {
        costs.push(operations::measure(*replicas, scale).await?);
    }
    rest(&costs);
    per_operation(&costs);
    kinds(&costs);
    connections(&costs);
    let at_once = scale.of(&[1, 8, 32, 128][..], &[1, 2]);
    batches(at_once, scale.of(256, 2), scale).await?;
    // Sessions that do nothing take nothing from the others.
    let kept = try_join_all(Client::ALL.map(|client| kept::sessions(client, scale)));
    let (kept, records, ends) =
        tokio::try_join!(kept, kept::records(scale), takeover::measure(scale))?;
    kept_tables(&kept, &records);
    takeovers(&ends);
    Ok(())
}

/// A count of a server, with the difference that is only noise.
type Figure = (&'static str, fn(&Cost) -> f64, f64);

const FIGURES: [Figure; 5] = [
    ("statements of PostgreSQL", Cost::statements, 0.1),
    ("rows of PostgreSQL", Cost::rows, 0.1),
    ("bytes of PostgreSQL's log (WAL)", |cost| cost.wal_bytes, 200.0),
    ("commands of Redis", Cost::commands, 1.5),
    ("bytes from and to Redis", |cost| cost.redis_bytes, 150.0),
];

fn rest(costs: &[Costs]) {
    let mut table =
        Table::new(["replicas", "statements", "rows", "WAL bytes", "commands", "bytes of Redis"]);
    for cost in costs {
        let figures = FIGURES.map(|(_, figure, _)| digits(figure(&cost.rest)));
        let [statements, rows, wal, commands, bytes] = figures;
        table.row([cost.replicas.to_string(), statements, rows, wal, commands, bytes]);
    }
    let growths = FIGURES.map(|(_, figure, least)| {
        let points: Vec<_> = costs.iter().map(|cost| (cost.replicas, figure(&cost.rest))).collect();
        growth(&points, least).map_or("-".to_owned(), |growth| growth.to_string())
    });
    let [statements, rows, wal, commands, bytes] = growths;
    table.row(["growth".to_owned(), statements, rows, wal, commands, bytes]);
    table.print("All replicas at rest together, in a second");
}

fn per_operation(costs: &[Costs]) {
    let Some(last) = costs.last() else { return };
    for (title, figure, least) in FIGURES {
        let mut table = Table::new(["operation", "1", "2", "4", "8", "16", "growth"]);
        for (name, _) in &last.operations {
            let points: Vec<(usize, f64)> = costs
                .iter()
                .filter_map(|cost| {
                    let (_, found) = cost.operations.iter().find(|(known, _)| known == name)?;
                    Some((cost.replicas, figure(found)))
                })
                .collect();
            let cell = |replicas: usize| {
                let point = points.iter().find(|(measured, _)| *measured == replicas);
                point.map_or("-".to_owned(), |(_, value)| digits(*value))
            };
            let growth = growth(&points, least).map_or("-".to_owned(), |growth| growth.to_string());
            let [one, two, four, eight, sixteen] = [1, 2, 4, 8, 16].map(cell);
            table.row([(*name).to_owned(), one, two, four, eight, sixteen, growth]);
        }
        table.print(&format!("The {title} for one operation, by the number of replicas"));
    }
}

/// Names the statements and commands behind the counts, with the most replicas.
fn kinds(costs: &[Costs]) {
    let Some(last) = costs.last() else { return };
    let mut table = Table::new(["operation", "how often", "statement or command"]);
    for (name, cost) in &last.operations {
        let statements = cost.statements.iter().map(|(kind, (calls, _))| {
            (*calls, kind.text.chars().take(STATEMENT_SHOWN).collect::<String>())
        });
        let commands = cost.commands.iter().map(|(name, calls)| (*calls, name.to_uppercase()));
        for (calls, what) in statements.chain(commands).filter(|(calls, _)| *calls >= NAMED_FROM) {
            table.row([(*name).to_owned(), digits(calls), what]);
        }
    }
    table.print(&format!("What is behind the counts, with {} replicas", last.replicas));
}

fn connections(costs: &[Costs]) {
    let mut table = Table::new([
        "replicas",
        "connections to PostgreSQL",
        "to Redis",
        "descriptors of a replica",
    ]);
    for cost in costs {
        let open = &cost.connections;
        table.row([
            cost.replicas.to_string(),
            open.postgres.to_string(),
            open.redis.to_string(),
            open.descriptors.to_string(),
        ]);
    }
    table.print("Connections after these operations");
}

async fn batches(at_once: &[usize], count: usize, scale: Scale) -> anyhow::Result<()> {
    let mut table =
        Table::new(["clients at once", "statements", "WAL bytes", "commands", "bytes of Redis"]);
    for (clients, cost) in operations::batches(at_once, count, scale).await? {
        table.row([
            clients.to_string(),
            digits(cost.statements()),
            digits(cost.wal_bytes),
            digits(cost.commands()),
            digits(cost.redis_bytes),
        ]);
    }
    table.print("A session opened, with so many clients at a time at one replica");
    Ok(())
}

fn kept_tables(sessions: &[KeptSessions], records: &KeptRecords) {
    let mut table = Table::new([
        "client",
        "statements",
        "rows",
        "WAL bytes",
        "commands",
        "bytes of Redis",
        "kept in PostgreSQL",
        "kept in Redis",
    ]);
    for kept in sessions {
        let hour = FIGURES.map(|(_, figure, _)| digits(figure(&kept.hour)));
        let [statements, rows, wal, commands, bytes] = hour;
        let [database, redis] = [kept.in_postgres, kept.in_redis].map(bytes_shown);
        table.row([
            kept.client.name().to_owned(),
            statements,
            rows,
            wal,
            commands,
            bytes,
            database,
            redis,
        ]);
    }
    table.print("A session in an hour, by what its client does (measured for a minute, times 60)");
    let mut table = Table::new(["record", "kept"]);
    table.row(["finished task, in PostgreSQL".to_owned(), bytes_shown(records.task)]);
    table.row(["event of a stream, in Redis".to_owned(), bytes_shown(records.event)]);
    table.print("What records take");
}

fn bytes_shown(bytes: f64) -> String {
    if bytes < 1_024.0 { format!("{bytes:.0} B") } else { format!("{:.1} KiB", bytes / 1_024.0) }
}

fn takeovers(ends: &[Takeover]) {
    let mut table = Table::new([
        "end",
        "state",
        "drain",
        "answered again, median",
        "last",
        "statements, each",
        "WAL bytes, each",
        "commands, each",
        "ready again",
    ]);
    for end in ends {
        let name = match end.end {
            End::Killed => "killed",
            End::Drained => "drained",
        };
        let time = |time: Option<Duration>| time.map_or("-".to_owned(), shown);
        table.row([
            name.to_owned(),
            format!("{} {}", end.count, end.what),
            time(end.drain),
            shown(end.back.median()),
            shown(end.back.max()),
            digits(end.each.statements()),
            digits(end.each.wal_bytes),
            digits(end.each.commands()),
            shown(end.restart),
        ]);
    }
    table.print(
        "A replica of four that ends, with a lease of 2 s; all its clients come back at once",
    );
    let mut table = Table::new(["end", "of each", "how often", "statement"]);
    for end in ends {
        for (kind, (calls, _)) in &end.each.statements {
            if *calls >= NAMED_FROM {
                let text = kind.text.chars().take(STATEMENT_SHOWN).collect();
                let name = format!("{:?} {}", end.end, end.count);
                table.row([name, end.what.to_owned(), digits(*calls), text]);
            }
        }
    }
    table.print("The statements of the others");
}
