//! The `mcp-loadtest` program: its command line.

use std::{
    fs::OpenOptions,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Parser, Subcommand};
use loadtest::{
    backend::{self, Backend, BackendOptions},
    compare,
    era::Era,
    profile::{self, Profile},
    progress::ProgressDisplay,
    report::{self, Report},
    run::{self, Load},
    target::Target,
    wire::LoadTarget,
};
use tokio::sync::watch;
use transport::{descriptor_limit, tls::ClientTlsFiles};

/// Thousands of callers allocate small messages on every thread.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The load was carried out, and something was wrong.
const EXIT_FAILED: u8 = 1;
/// The load could not be carried out.
const EXIT_USAGE: u8 = 64;
/// A second Ctrl-C ended the program.
const EXIT_INTERRUPTED: i32 = 130;
/// File descriptors for other purposes than the connections of a load.
const DESCRIPTORS_OWN: u64 = 32;

/// Puts MCP servers under load, and checks every answer while it does.
#[derive(Debug, Parser)]
#[command(name = "mcp-loadtest", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One load on one target; exit code 1 if any answer was wrong.
    Run(RunArgs),
    /// One load on two targets in turns, with the ratios of the results.
    Compare(CompareArgs),
    /// A fast MCP server to put behind the measured target: tool `echo`, resources from
    /// `load://text/0` on.
    Backend(BackendArgs),
    /// Results of earlier runs (JSON) laid over each other and side by side, as one HTML page or one
    /// image.
    Report {
        #[arg(required = true)]
        results: Vec<PathBuf>,
        /// Write the page to this file. Default: loadtest.html, unless `--svg` is given.
        #[arg(long)]
        html: Option<PathBuf>,
        /// Write the charts of all runs to this file as one image.
        #[arg(long)]
        svg: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
struct Common {
    /// Profile: the calls, their rate and their time. The path of a YAML file, or the name of a
    /// bundled profile: closed, mixed, quick, ramp, soak, spike or steady.
    #[arg(long, short)]
    profile: String,
    /// API key; if given several times, sessions take the keys in turns.
    #[arg(long = "key")]
    keys: Vec<String>,
    /// File with an API key in each line.
    #[arg(long)]
    key_file: Option<PathBuf>,
    /// Revision of MCP, instead of the revision in the profile.
    #[arg(long)]
    era: Option<Era>,
    /// Authorities to trust in addition to the system's (PEM), for tls, wss and quic.
    #[arg(long)]
    ca: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// `http://HOST:PORT/mcp/BACKEND`, `ws[s]://HOST:PORT/ws/BACKEND`, `tcp|tls|quic://HOST:PORT[/BACKEND]`
    target: Target,
    #[command(flatten)]
    common: Common,
    /// Process of the target whose processor time and memory are sampled; may be given several
    /// times. The run fails if one of them ends.
    #[arg(long = "pid")]
    pids: Vec<u32>,
    /// Write the results to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write the results as a page to this file.
    #[arg(long)]
    html: Option<PathBuf>,
    /// Name of the run on pages that show several.
    #[arg(long, default_value = "")]
    name: String,
}

#[derive(Debug, Args)]
struct CompareArgs {
    a: Target,
    b: Target,
    #[command(flatten)]
    common: Common,
    #[arg(long = "pid-a")]
    pids_a: Vec<u32>,
    #[arg(long = "pid-b")]
    pids_b: Vec<u32>,
    /// Revision of MCP with the second target, if it differs.
    #[arg(long)]
    era_b: Option<Era>,
    /// Number of rounds for each target.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Write the results of all rounds as a page to this file.
    #[arg(long)]
    html: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct BackendArgs {
    /// Streamable HTTP on this address, any path.
    #[arg(long)]
    http: Option<String>,
    /// One message per line on this address.
    #[arg(long)]
    tcp: Option<String>,
    /// WebSocket on this address, any path.
    #[arg(long)]
    websocket: Option<String>,
    /// Standard input and output.
    #[arg(long, conflicts_with_all = ["http", "tcp", "websocket"])]
    stdio: bool,
    /// Number of tools in addition to `echo`.
    #[arg(long, default_value_t = 0)]
    tools: usize,
    #[arg(long, default_value_t = 10)]
    resources: usize,
    /// Milliseconds before the answer to a tool.
    #[arg(long, default_value_t = 0)]
    delay_ms: u64,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let done =
        runtime.context("no runtime").and_then(|runtime| runtime.block_on(execute(cli.command)));
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => EXIT_FAILED.into(),
        Err(error) => {
            for line in format!("{error:#}").lines() {
                eprintln!("mcp-loadtest: {line}");
            }
            EXIT_USAGE.into()
        }
    }
}

/// Returns whether the run found no fault.
async fn execute(command: Command) -> anyhow::Result<bool> {
    match command {
        Command::Run(arguments) => load_one(arguments).await,
        Command::Compare(arguments) => load_two(arguments).await,
        Command::Backend(arguments) => serve(arguments).await,
        Command::Report { results, html, svg } => {
            let runs =
                results.iter().map(|path| read_report(path)).collect::<anyhow::Result<Vec<_>>>()?;
            let html = html.or_else(|| svg.is_none().then(|| PathBuf::from("loadtest.html")));
            if let Some(path) = html {
                write(&path, &report::page(&runs))?;
            }
            if let Some(path) = svg {
                write(&path, &report::picture(&runs))?;
            }
            Ok(true)
        }
    }
}

impl Common {
    fn profile(&self, era: Option<Era>) -> anyhow::Result<Profile> {
        let path = &self.profile;
        let text = match profile::bundled(path) {
            Some(text) => text.to_owned(),
            None => std::fs::read_to_string(path).with_context(|| {
                let names: Vec<&str> = profile::BUNDLED.iter().map(|(name, _)| *name).collect();
                format!(
                    "cannot read {path}, and no bundled profile has this name ({})",
                    names.join(", ")
                )
            })?,
        };
        Profile::parse_for(era.or(self.era), &text)
            .map_err(|faults| anyhow::anyhow!("{path} is not a valid profile:\n{faults}"))
    }

    fn keys(&self) -> anyhow::Result<Vec<String>> {
        let mut keys = self.keys.clone();
        if let Some(path) = &self.key_file {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            keys.extend(
                text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned),
            );
        }
        Ok(keys)
    }

    fn load(&self, target: Target, era: Option<Era>, pids: Vec<u32>) -> anyhow::Result<Load> {
        let profile = self.profile(era)?;
        let tls = ClientTlsFiles { ca: self.ca.clone(), ..ClientTlsFiles::default() };
        let site = LoadTarget::new(target, &tls, profile.timeout)?.with_era(profile.era);
        let load = Load { site, profile, keys: self.keys()?, pids };
        fits_descriptors(load.connections_max())?;
        Ok(load)
    }
}

/// Raises the limit of file descriptors. Fails if the load needs more, because missing connections
/// would count as faults of the target.
fn fits_descriptors(connections: usize) -> anyhow::Result<()> {
    let limit = descriptor_limit::raise().unwrap_or_else(|error| error.soft);
    let needed = connections as u64 + DESCRIPTORS_OWN;
    ensure!(
        needed <= limit,
        "the load opens up to {connections} connections, and this process may have {limit} open files: raise the limit to {needed} (`ulimit -n`), or lower `sessions` or `in_flight` in the profile"
    );
    Ok(())
}

/// Returns a value that Ctrl-C makes true: the load ends, and the program reports what it has. A
/// second Ctrl-C ends the program.
fn interrupted() -> watch::Receiver<bool> {
    let (stop, requested) = watch::channel(false);
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_err() {
            return;
        }
        stop.send_replace(true);
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(EXIT_INTERRUPTED);
        }
    });
    requested
}

async fn load_one(arguments: RunArgs) -> anyhow::Result<bool> {
    let load = arguments.common.load(arguments.target, None, arguments.pids)?;
    for path in arguments.json.iter().chain(&arguments.html) {
        check_writable(path)?;
    }
    let shown = ProgressDisplay::default();
    let mut report = run::run_until(&load, interrupted(), |progress| shown.show(progress)).await?;
    shown.done();
    report.name = arguments.name;
    print!("{}", report.summary());
    if let Some(path) = arguments.json {
        write(&path, &serde_json::to_string_pretty(&report)?)?;
    }
    let is_good = report.is_good();
    if let Some(path) = arguments.html {
        write(&path, &report::page(&[report]))?;
    }
    Ok(is_good)
}

async fn load_two(arguments: CompareArgs) -> anyhow::Result<bool> {
    let CompareArgs { a, b, common, pids_a, pids_b, era_b, rounds, html } = arguments;
    let loads = [common.load(a, None, pids_a)?, common.load(b, era_b, pids_b)?];
    html.iter().try_for_each(|path| check_writable(path))?;
    let shown = ProgressDisplay::default();
    let rounds = usize::from(rounds);
    let rounds = compare::run_interleaved_until(&loads, rounds, &interrupted(), |progress| {
        shown.show(progress);
    })
    .await?;
    shown.done();
    print!("{}", rounds.summary());
    let faults = rounds.faults();
    faults.iter().for_each(|fault| println!("FAILED: {fault}"));
    if let Some(path) = html {
        write(&path, &report::page(&rounds.0.concat()))?;
    }
    Ok(faults.is_empty())
}

async fn serve(arguments: BackendArgs) -> anyhow::Result<bool> {
    // A backend with too few descriptors reports that itself.
    let _unraised = descriptor_limit::raise();
    let BackendArgs { http, tcp, websocket, stdio, tools, resources, delay_ms } = arguments;
    let offer = BackendOptions { tools, resources, delay: Duration::from_millis(delay_ms) };
    if stdio {
        backend::serve_stdio(&offer).await?;
        return Ok(true);
    }
    let mut listening = Vec::new();
    if let Some(address) = http {
        listening.push(("http", Backend::http(&address, &offer).await?));
    }
    if let Some(address) = tcp {
        listening.push(("tcp", Backend::tcp(&address, &offer).await?));
    }
    if let Some(address) = websocket {
        listening.push(("websocket", Backend::websocket(&address, &offer).await?));
    }
    if listening.is_empty() {
        bail!("nothing to listen on: give --http, --tcp, --websocket or --stdio");
    }
    for (wire, backend) in &listening {
        println!("{wire} {}", backend.address());
    }
    std::future::pending().await
}

fn read_report(path: &Path) -> anyhow::Result<Report> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut report: Report = serde_json::from_str(&text)
        .with_context(|| format!("{} holds no results", path.display()))?;
    if report.name.is_empty() {
        report.name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    }
    Ok(report)
}

/// Checks before a load that its results can be written afterwards. A new file does not stay.
fn check_writable(path: &Path) -> anyhow::Result<()> {
    let is_new = !path.exists();
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.with_context(|| format!("cannot write {}", path.display()))?;
    if is_new {
        std::fs::remove_file(path).with_context(|| format!("cannot replace {}", path.display()))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
