//! Compares the cost of the broker with that of a plain reverse proxy.
//!
//! - Streamable HTTP through the broker, through nginx and directly, in turns
//! - lists, compared with nginx and a file
//! - calls and lists under an access policy, compared with those without one
//! - a crowded broker, compared with an empty one
//! - calls at another replica than that of their session, compared with calls at that one
//! - starts and new sessions
//!
//! The broker and nginx share one processor. The load and the backend share another, if there are
//! two. In one table all share both. `--write` puts the tables into docs/performance.md,
//! `--only=NAME` makes one of them.

mod both_processors;
mod calls;
mod crowd;
mod eras;
mod lists;
mod openings;
mod policy;
mod repeated;
mod replicas;
mod testbed;

use std::{path::Path, process::ExitCode};

use anyhow::{Context as _, ensure};
use benches::Scale;

use crate::testbed::{Cores, TestBed};

const PARTS: [&str; 8] =
    ["calls", "both_processors", "eras", "lists", "policy", "crowd", "replicas", "openings"];
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/performance.md");
const BEGIN: &str = "<!-- report -->\n";
const END: &str = "<!-- end of report -->";

fn main() -> ExitCode {
    // Before the runtime starts: its threads stay on the processor of this one.
    testbed::pin_to(Cores::Load);
    benches::main("report", report)
}

async fn report(scale: Scale) -> anyhow::Result<()> {
    let ground = TestBed::start(Cores::Proxies).await?;
    let mut report = Report::default();
    // One word: two would be the name of a bench, too.
    let only =
        std::env::args().find_map(|argument| Some(argument.strip_prefix("--only=")?.to_owned()));
    let is_wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    ensure!(
        only.is_none() || PARTS.iter().any(|name| is_wanted(name)),
        "--only= takes one of {}",
        PARTS.join(", ")
    );
    for name in PARTS.into_iter().filter(|name| is_wanted(name)) {
        let table = match name {
            "calls" => calls::table(&ground, scale).await,
            "both_processors" => both_processors::table(scale).await,
            "eras" => eras::table(&ground, scale).await,
            "lists" => lists::table(&ground, scale).await,
            "policy" => policy::table(&ground, scale).await,
            "crowd" => crowd::table(&ground, scale).await,
            "replicas" => replicas::table(&ground, scale).await,
            _ => openings::table(&ground, scale).await,
        };
        report.add(name, table);
    }
    if std::env::args().any(|argument| argument == "--write")
        && scale == Scale::Full
        && only.is_none()
    {
        write(Path::new(PAGE), &report.text)?;
    }
    ensure!(report.failed.is_empty(), "{}", report.failed.join("\n"));
    Ok(())
}

/// Tables so far. A table that fails does not cost the others, which took minutes.
#[derive(Default)]
struct Report {
    text: String,
    failed: Vec<String>,
}

impl Report {
    fn add(&mut self, name: &str, table: anyhow::Result<String>) {
        match table {
            Ok(table) => {
                println!("\n{table}");
                self.text += &table;
            }
            Err(error) => self.failed.push(format!("{name}: {error:#}")),
        }
    }
}

/// Puts the text between the page's marks.
fn write(page: &Path, text: &str) -> anyhow::Result<()> {
    let old = std::fs::read_to_string(page)?;
    let (before, rest) = old.split_once(BEGIN).context("the page has no place for the report")?;
    let (_, after) = rest.split_once(END).context("the report's place has no end")?;
    std::fs::write(page, format!("{before}{BEGIN}{text}{END}{after}"))?;
    println!("written to docs/performance.md");
    Ok(())
}
