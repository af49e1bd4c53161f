//! Measures what toolsets cost: the first page of a list, the first use of a toolset after a
//! change, a search, and the memory of a snapshot. Fifty tools of each of a hundred backends, ten
//! toolsets, and a policy of a hundred rules.

use std::{
    collections::BTreeMap,
    hint::black_box,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use benches::{Scale, Table, median, shown};
use broker::sessions::tenant_access::TenantCatalog;
use protocol::ids::{BackendId, PrincipalId, TenantId, ToolsetId};
use rules::{
    access::{Policy, Subject},
    catalog::{BackendLists, Catalog, ListKind, TaskHost, read_page},
    endpoint::Endpoint,
    toolsets::{Toolset, Toolsets},
};
use serde_json::json;

const BACKENDS: usize = 100;
const TOOLS_EACH: usize = 50;
const TOOLSETS: usize = 10;
const RULES: usize = 100;

fn main() -> ExitCode {
    benches::main("toolsets", bench)
}

async fn bench(scale: Scale) -> anyhow::Result<()> {
    let (full, policy) = (Arc::new(catalog()?), Arc::new(policy()?));
    let tenant = |toolsets: &Arc<Toolsets>| {
        Arc::new(TenantCatalog::new(full.clone(), Some(policy.clone()), toolsets.clone()))
    };
    let (none, ten) = (Arc::default(), Arc::new(toolsets()?));
    let (plain, bundled) = (tenant(&none), tenant(&ten));
    let ann = Subject::of_principal(PrincipalId::new("ann"));
    let set = Endpoint::Toolset(ToolsetId::parse("s0")?);
    let page = |tenant: &Arc<TenantCatalog>, endpoint: &Endpoint| {
        let list = tenant.at(endpoint).visible(&ann).list(endpoint, ListKind::Tools, None);
        list.is_ok_and(|page| page.len() > 1_000)
    };
    ensure!(page(&plain, &Endpoint::Aggregated) && page(&bundled, &set), "pages have tools");
    let (rounds, count) = (scale.of(15, 1), scale.of(2_000, 2));
    let each = |run: &dyn Fn() -> bool, count: u32| {
        let time = || {
            let started = Instant::now();
            for _ in 0..count {
                black_box(run());
            }
            started.elapsed().as_secs_f64() / f64::from(count)
        };
        median((0..rounds).map(|_| time()).collect())
    };
    let (without, with) = (
        each(&|| page(&plain, &Endpoint::Aggregated), count),
        each(&|| page(&bundled, &set), count),
    );
    let published = each(&|| page(&tenant(&ten), &set), 1);
    let searched = Endpoint::Toolset(ToolsetId::parse("s9")?);
    let search = || {
        let catalog = bundled.at(&searched).visible(&ann);
        catalog
            .search()
            .is_some_and(|search| !search.best("read the file number 42", 10).is_empty())
    };
    ensure!(search(), "a search finds tools");
    let mut table = Table::new(["what", "time", "ratio"]);
    let secs = |time: f64| shown(Duration::from_secs_f64(time));
    for (name, time, ratio) in [
        ("a page of tools/list at /mcp", without, String::new()),
        ("a page of tools/list at a toolset", with, format!("{:.2}", with / without)),
        ("the first page after a change of lists", published, String::new()),
        ("a search", each(&search, scale.of(50, 1)), String::new()),
    ] {
        table.row([name.to_owned(), secs(time), ratio]);
    }
    table.print("Ten toolsets over 5,000 tools of 100 backends");
    let bytes = bundled.at(&set).full.bytes() / (BACKENDS * TOOLS_EACH);
    println!("A toolset of all tools holds {bytes} bytes of pages for each tool.");
    Ok(())
}

fn toolsets() -> anyhow::Result<Toolsets> {
    let mut all = Vec::new();
    for number in 0..TOOLSETS {
        let document = json!({
            "published": true, "include": {"tools": ["*"]}, "names": "unique",
            "exclude": {"tools": [format!("b{number}/*")]}, "search": number == TOOLSETS - 1,
            "overrides": {"b42/tool_7": {"description": "Another one."}},
        });
        let id = ToolsetId::parse(&format!("s{number}"))?;
        let toolset = Toolset::compile(id, &serde_json::from_value(document)?, None);
        all.push((Arc::new(toolset.map_err(|faults| anyhow::anyhow!("{faults:?}"))?), true));
    }
    Ok(Toolsets::new(all))
}

fn policy() -> anyhow::Result<Policy> {
    let rule = |number: usize| {
        json!({
            "id": format!("r{number}"), "effect": "deny",
            "objects": {"tools": [format!("b{number}/tool_4*")]},
        })
    };
    let document = json!({"rules": (0..RULES).map(rule).collect::<Vec<_>>()});
    let compiled = Policy::compile(&serde_json::from_value(document)?, None);
    compiled.map_err(|faults| anyhow::anyhow!("{faults:?}"))
}

fn catalog() -> anyhow::Result<Catalog> {
    let backends: anyhow::Result<BTreeMap<_, _>> = (0..BACKENDS).map(backend).collect();
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &[1; 32]);
    Ok(Catalog::build(TenantId::parse("acme")?, key, backends?))
}

fn backend(number: usize) -> anyhow::Result<(BackendId, Arc<BackendLists>)> {
    let id = BackendId::parse(&format!("b{number}"))?;
    let tools: Vec<_> = (0..TOOLS_EACH)
        .map(|tool| {
            json!({
                "name": format!("tool_{tool}"), "inputSchema": {"type": "object"},
                "description": format!("Reads the file number {tool} of the backend {number}."),
            })
        })
        .collect();
    let list = json!({"tools": tools}).to_string();
    let page = read_page(ListKind::Tools, &id, TaskHost::Backend, list.as_bytes());
    let lists = BackendLists {
        tools: page.map_err(anyhow::Error::msg)?.entries,
        ..BackendLists::declaring(br#"{"tools":{}}"#).context("capabilities")?
    };
    Ok((id, Arc::new(lists)))
}
