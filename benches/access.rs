//! Measures what an access policy costs: the decision about one call, a page of a list, the first
//! request of a subject, and a change of the policy. A thousand rules over five thousand tools.

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
use protocol::{
    error::{ErrorKind, Refusal},
    ids::{BackendId, PrincipalId, TenantId},
    method::Method,
};
use rules::{
    access::{AccessCheck, Attribute, Object, Policy, Subject},
    catalog::{BackendLists, Catalog, ListKind, TaskHost, read_page},
    endpoint::Endpoint,
};
use serde_json::json;

const RULES: usize = 1_000;
const TOOLS: usize = 5_000;
const TOOL: &str = "tool_4321";

fn main() -> ExitCode {
    benches::main("access", bench)
}

async fn bench(scale: Scale) -> anyhow::Result<()> {
    let catalog = Arc::new(catalog()?);
    let policy = Arc::new(policy()?);
    let (open, ruled) = (
        TenantCatalog::new(catalog.clone(), None, Arc::default()),
        TenantCatalog::new(catalog.clone(), Some(policy.clone()), Arc::default()),
    );
    let (ann, backend) = (subject("ann"), BackendId::parse("files")?);
    let call = |tenant: &TenantCatalog| {
        let view = tenant.view(&ann);
        let visible = view.as_ref().map_or(&tenant.full, |view| &view.catalog);
        let traits = visible.traits(&backend, TOOL).unwrap_or_default();
        let object = Object::Tool { backend: &backend, name: TOOL, traits };
        let absent = || Refusal::new(ErrorKind::ToolNotFound, "unknown name");
        let check = view.as_ref().map(|view| AccessCheck::new(view, &ann));
        check.map_or(Ok(()), |check| check.check(Method::ToolsCall, &object, absent)).is_ok()
    };
    let page = |tenant: &TenantCatalog| {
        let list = tenant.visible(&ann).list(&Endpoint::Aggregated, ListKind::Tools, None);
        list.is_ok_and(|page| !page.is_empty())
    };
    ensure!(call(&ruled) && page(&ruled), "the subject may use the tool");
    let rounds = scale.of(15, 1);
    let pair = |count: u32, run: &dyn Fn(&TenantCatalog) -> bool| {
        let mut times = [const { Vec::new() }; 2];
        for _ in 0..rounds {
            for (tenant, times) in [&open, &ruled].into_iter().zip(&mut times) {
                let started = Instant::now();
                for _ in 0..count {
                    black_box(run(black_box(tenant)));
                }
                times.push(started.elapsed().as_secs_f64() / f64::from(count));
            }
        }
        times.map(median)
    };
    let calls = pair(scale.of(100_000, 10), &call);
    let pages = pair(scale.of(2_000, 2), &page);
    let mut table = Table::new(["what", "without a policy", "with one", "ratio"]);
    let secs = |time: f64| shown(Duration::from_secs_f64(time));
    for (name, [without, with]) in
        [("the decision about a call", calls), ("a page of tools/list", pages)]
    {
        table.row([name.to_owned(), secs(without), secs(with), format!("{:.2}", with / without)]);
    }
    let once = |run: &dyn Fn(usize) -> bool| {
        let time = |number| {
            let started = Instant::now();
            black_box(run(number));
            started.elapsed().as_secs_f64()
        };
        median((0..rounds).map(time).collect())
    };
    let first = once(&|number| ruled.view(&subject(&format!("p{number}"))).is_some());
    let change = once(&|_| {
        TenantCatalog::new(catalog.clone(), Some(policy.clone()), Arc::default())
            .view(&ann)
            .is_some()
    });
    for (name, time) in
        [("the first request of a subject", first), ("a change of policy or lists", change)]
    {
        table.row([name.to_owned(), String::new(), secs(time), String::new()]);
    }
    table.print("An access policy of 1,000 rules over 5,000 tools");
    Ok(())
}

fn subject(name: &str) -> Subject {
    let groups = Attribute::of(["g1", "g2", "g3"]);
    Subject { groups, ..Subject::of_principal(PrincipalId::new(name)) }
}

fn policy() -> anyhow::Result<Policy> {
    let rule = |number: usize| {
        json!({
            "id": format!("r{number}"),
            "effect": if number.is_multiple_of(2) { "allow" } else { "deny" },
            "subjects": {"groups": [format!("g{}", number % 50)]},
            "objects": {"tools": [format!("files/tool_{number}*")]},
        })
    };
    let document = json!({"rules": (0..RULES).map(rule).collect::<Vec<_>>()});
    let compiled = Policy::compile(&serde_json::from_value(document)?, None);
    compiled.map_err(|faults| anyhow::anyhow!("{faults:?}"))
}

fn catalog() -> anyhow::Result<Catalog> {
    let tools: Vec<String> = (0..TOOLS)
        .map(|number| format!(r#"{{"name":"tool_{number}","inputSchema":{{"type":"object"}}}}"#))
        .collect();
    let list = format!(r#"{{"tools":[{}]}}"#, tools.join(","));
    let backend = BackendId::parse("files")?;
    let page = read_page(ListKind::Tools, &backend, TaskHost::Broker, list.as_bytes());
    let lists = BackendLists {
        tools: page.map_err(anyhow::Error::msg)?.entries,
        ..BackendLists::declaring(br#"{"tools":{}}"#).context("capabilities")?
    };
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &[1; 32]);
    let tenant = TenantId::parse("acme")?;
    Ok(Catalog::build(tenant, key, BTreeMap::from([(backend, Arc::new(lists))])))
}
