//! `mcp-broker audit verify`: requests the verification of every chain of the audit log, page by
//! page. Compares the chains with checkpoints that were stored outside the database.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
};

use http::Method;
use serde_json::{Value, json};

use super::{
    client::{AdminClient, ClientError, with_query},
    common_args::OutputOptions,
    output::{CommandOutput, render},
    table::{self, Column},
};

const CHAINS: &[Column] = &[
    ("tenant", "tenant"),
    ("verified", "verified"),
    ("removed", "removed"),
    ("covered", "covered"),
    ("last", "last"),
];
/// Number of records, or of chains, per request.
const PAGE: i64 = 1_000;
/// Largest number of checkpoints to keep from a file. From a longer file, every second checkpoint
/// of each chain is dropped.
const CHECKPOINTS_MAX: usize = 100_000;
/// First characters of a checkpoint in a line of text.
const PREFIX: &str = "{\"tenant\":";

/// Checkpoints by tenant (empty: no tenant) and count.
type KeptCheckpoints = BTreeMap<String, BTreeMap<i64, Value>>;

pub(super) async fn verify(
    client: &AdminClient,
    file: Option<&Path>,
    output: &OutputOptions,
) -> Result<CommandOutput, ClientError> {
    let mut kept = file.map_or_else(|| Ok(KeptCheckpoints::new()), read_checkpoints)?;
    let (mut rows, mut misfits, mut after, mut unchained_until) =
        (Vec::new(), Vec::new(), None::<String>, 0);
    loop {
        let parameters = [("after", after.as_deref()), ("limit", Some(&*PAGE.to_string()))];
        let page =
            client.request(Method::GET, &with_query("audit/chains", &parameters), None).await?;
        unchained_until = page["unchained_until"].as_i64().unwrap_or(unchained_until);
        let chains = page["chains"].as_array().ok_or_else(|| client.foreign(200))?;
        for chain in chains {
            let tenant = chain["tenant"].as_str();
            let found = verify_chain(
                client,
                tenant,
                kept.remove(tenant.unwrap_or_default()).unwrap_or_default(),
            )
            .await?;
            misfits.extend(found.misfit.map(|misfit| json!({"tenant": tenant, "number": misfit["number"], "detail": misfit["detail"]})));
            rows.push(json!({"tenant": tenant, "verified": found.records, "removed": chain["removed"], "covered": chain["covered"], "last": found.last}));
        }
        after = page["next"].as_str().map(str::to_owned);
        if after.is_none() {
            break;
        }
    }
    let uncompared = match kept.is_empty() {
        true => 0,
        false => drop_unseen(&mut kept, seen_tenants(client).await?.as_ref()),
    };
    // The remaining checkpoints are of chains that no longer exist.
    for (tenant, checkpoints) in kept {
        let tenant = Some(tenant).filter(|tenant| !tenant.is_empty());
        let found = verify_chain(client, tenant.as_deref(), checkpoints).await?;
        misfits.extend(found.misfit.map(|misfit| json!({"tenant": tenant, "number": misfit["number"], "detail": misfit["detail"]})));
    }
    let mut rendered = render_report(rows, misfits, unchained_until, output)?;
    rendered.note = note(unchained_until, uncompared);
    Ok(rendered)
}

/// Returns the tenants that the operator sees. `None`: all tenants, and records without a tenant.
async fn seen_tenants(client: &AdminClient) -> Result<Option<BTreeSet<String>>, ClientError> {
    client.request(Method::GET, "operator", None).await.map(|operator| tenants_of(&operator))
}

/// Returns the tenants of an operator, from the broker's answer about it.
fn tenants_of(operator: &Value) -> Option<BTreeSet<String>> {
    // An operator of backends has no tenants, but backends as TENANT/BACKEND.
    let names = operator["tenants"].as_array().or_else(|| operator["backends"].as_array())?;
    let tenants = names.iter().filter_map(|name| name.as_str()?.split('/').next());
    Some(tenants.map(str::to_owned).collect())
}

/// Drops the checkpoints of chains that the operator does not see. Returns the number of these
/// chains.
fn drop_unseen(kept: &mut KeptCheckpoints, seen: Option<&BTreeSet<String>>) -> usize {
    let before = kept.len();
    kept.retain(|tenant, _| seen.is_none_or(|seen| seen.contains(tenant)));
    before - kept.len()
}

/// Returns what the verification did not cover.
fn note(unchained_until: i64, uncompared: usize) -> String {
    let unchained = format!(
        "records up to number {unchained_until} are older than the chains, and nothing protects them"
    );
    let unseen = format!(
        "checkpoints of {uncompared} chains were not compared, because this operator does not see the chains"
    );
    let parts = [(unchained_until > 0, unchained), (uncompared > 0, unseen)];
    let parts = parts.into_iter().filter_map(|(applies, part)| applies.then_some(part));
    parts.collect::<Vec<_>>().join("; ")
}

fn render_report(
    rows: Vec<Value>,
    misfits: Vec<Value>,
    unchained_until: i64,
    output: &OutputOptions,
) -> Result<CommandOutput, ClientError> {
    let records: u64 = rows.iter().filter_map(|row| row["verified"].as_u64()).sum();
    let verdict = if misfits.is_empty() { "ok" } else { "misfit" };
    let summary = format!("ok: {records} records in {} chains\n", rows.len());
    let answer = json!({"verdict": verdict, "records": records, "unchained_until": unchained_until, "chains": rows, "misfits": misfits});
    let mut rendered = render(&answer, output, |answer| table::rows(&answer["chains"], CHAINS));
    let Some(first) =
        misfits.iter().min_by_key(|misfit| misfit["number"].as_i64().unwrap_or(i64::MAX))
    else {
        if !output.json {
            rendered.out += &summary;
        }
        return Ok(rendered);
    };
    let _closed = std::io::stdout().lock().write_all(rendered.out.as_bytes());
    Err(ClientError::refused(sentence(first, misfits.len())))
}

fn sentence(misfit: &Value, count: usize) -> String {
    let chain = misfit["tenant"].as_str().map_or_else(
        || "the chain without a tenant".to_owned(),
        |tenant| format!("the chain of tenant {tenant}"),
    );
    let detail = misfit["detail"].as_str().unwrap_or_default();
    let which = misfit["number"].as_i64().map_or_else(
        || format!("{chain} does not pass the verification"),
        |number| format!("record {number} of {chain} does not pass the verification"),
    );
    let more = if count > 1 {
        format!("; {} more chains do not pass the verification", count - 1)
    } else {
        String::new()
    };
    format!("{which}: {detail}{more}")
}

/// Result of one chain.
struct ChainReport {
    records: u64,
    last: Option<i64>,
    misfit: Option<Value>,
}

async fn verify_chain(
    client: &AdminClient,
    tenant: Option<&str>,
    checkpoints: BTreeMap<i64, Value>,
) -> Result<ChainReport, ClientError> {
    let (mut found, mut after, mut position) =
        (ChainReport { records: 0, last: None, misfit: None }, None::<String>, 0);
    loop {
        // A page ends at the next checkpoint, so that the first mismatch is found. The last
        // checkpoint is sent to the end of the chain.
        let next =
            checkpoints.range(position + 1..).next().or_else(|| checkpoints.last_key_value());
        let limit = page_limit(position, next.map(|(count, _)| *count)).to_string();
        let checkpoint = next.map(|(_, checkpoint)| checkpoint.to_string());
        let parameters = [
            ("tenant", tenant),
            ("after", after.as_deref()),
            ("limit", Some(&*limit)),
            ("checkpoint", checkpoint.as_deref()),
        ];
        let page =
            client.request(Method::GET, &with_query("audit/verify", &parameters), None).await?;
        found.records += page["records"].as_u64().unwrap_or_default();
        found.last = page["last"].as_i64().or(found.last);
        found.misfit = Some(page["misfit"].clone()).filter(|misfit| !misfit.is_null());
        after = page["next"].as_str().map(str::to_owned);
        let Some(next) = after.as_deref().filter(|_| found.misfit.is_none()) else {
            return Ok(found);
        };
        position =
            next.split('.').next().and_then(|number| number.parse().ok()).unwrap_or(position);
    }
}

/// Returns the number of records to request after `position`. A page ends at a checkpoint only if
/// the chain is not past it.
fn page_limit(position: i64, checkpoint: Option<i64>) -> i64 {
    match checkpoint {
        Some(count) if count > position => count.saturating_sub(position).min(PAGE),
        _ => PAGE,
    }
}

/// Reads checkpoints from the checkpoint file, or from the broker's log in either format. Skips
/// other lines.
fn read_checkpoints(path: &Path) -> Result<KeptCheckpoints, ClientError> {
    let unusable = |reason: String| ClientError::Usage(format!("{}: {reason}", path.display()));
    let (mut kept, mut count) = (KeptCheckpoints::new(), 0);
    for line in
        BufReader::new(File::open(path).map_err(|error| unusable(error.to_string()))?).lines()
    {
        let Some(checkpoint) = checkpoint_of(&line.map_err(|error| unusable(error.to_string()))?)
        else {
            continue;
        };
        let Some(position) = checkpoint["count"].as_i64() else { continue };
        let chain =
            kept.entry(checkpoint["tenant"].as_str().unwrap_or_default().to_owned()).or_default();
        count += usize::from(chain.insert(position, checkpoint).is_none());
        if count > CHECKPOINTS_MAX {
            count -= kept.values_mut().map(forget_half).sum::<usize>();
        }
    }
    if kept.is_empty() {
        Err(unusable("holds no checkpoint of the audit log".to_owned()))
    } else {
        Ok(kept)
    }
}

/// Drops every second checkpoint of a chain, but keeps the last one, which covers the most.
fn forget_half(chain: &mut BTreeMap<i64, Value>) -> usize {
    let (before, last) = (chain.len(), chain.last_key_value().map(|(count, _)| *count));
    let mut is_kept = false;
    chain.retain(|count, _| {
        is_kept = !is_kept;
        is_kept || Some(*count) == last
    });
    before - chain.len()
}

fn checkpoint_of(line: &str) -> Option<Value> {
    let is_whole = |value: &Value| {
        value["count"].is_i64() && value["head"].is_string() && value["signature"].is_string()
    };
    if let Ok(object) = serde_json::from_str::<Value>(line) {
        let inner =
            object["checkpoint"].as_str().or_else(|| object["fields"]["checkpoint"].as_str());
        return inner
            .map_or(Some(object.clone()), |text| serde_json::from_str(text).ok())
            .filter(is_whole);
    }
    let start = line.find(PREFIX)?;
    serde_json::Deserializer::from_str(&line[start..])
        .into_iter::<Value>()
        .next()?
        .ok()
        .filter(is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECKPOINT: &str = r#"{"tenant":"acme","count":7,"head":"sha256:AA","at":"2026-01-31T12:00:00Z","signature":"AA","key":"AA"}"#;

    #[test]
    fn s15_checkpoints_are_read_from_the_file_and_from_either_form_of_the_log() {
        let quoted = Value::from(CHECKPOINT).to_string();
        for line in [
            CHECKPOINT.to_owned(),
            format!(
                "2026-01-31T12:00:00Z  INFO broker: audit checkpoint checkpoint={CHECKPOINT} request_id=0"
            ),
            format!(
                r#"{{"level":"INFO","fields":{{"message":"audit checkpoint","checkpoint":{quoted}}}}}"#
            ),
            format!(r#"{{"level":"INFO","message":"audit checkpoint","checkpoint":{quoted}}}"#),
        ] {
            assert_eq!(checkpoint_of(&line).unwrap_or_else(|| panic!("{line}"))["count"], 7);
        }
        for line in [
            "",
            "INFO ready",
            r#"{"level":"INFO"}"#,
            r#"INFO x={"tenant":"acme"}"#,
            r#"INFO x={"tenant":"#,
        ] {
            assert_eq!(checkpoint_of(line), None, "{line}");
        }
    }

    #[test]
    fn s15_a_long_file_keeps_the_newest_checkpoint() {
        let mut chain: BTreeMap<i64, Value> = (1..=10).map(|count| (count, Value::Null)).collect();
        assert_eq!(forget_half(&mut chain), 4);
        assert_eq!(chain.into_keys().collect::<Vec<_>>(), [1, 3, 5, 7, 9, 10]);
    }

    #[test]
    fn s15_a_page_ends_at_the_next_checkpoint_and_is_whole_after_the_last_one() {
        for (position, checkpoint, limit) in [
            (0, None, PAGE),
            (0, Some(7), 7),
            (5, Some(7), 2),
            (0, Some(PAGE + 1), PAGE),
            (7, Some(7), PAGE),
            (2_000, Some(7), PAGE),
            (0, Some(-1), PAGE),
            (0, Some(i64::MAX), PAGE),
        ] {
            assert_eq!(page_limit(position, checkpoint), limit, "{position} {checkpoint:?}");
        }
    }

    #[test]
    fn s15_the_tenants_of_an_operator_are_those_of_its_scope() {
        let names = |names: &[&str]| -> Option<BTreeSet<String>> {
            Some(names.iter().map(|name| (*name).to_owned()).collect())
        };
        assert_eq!(tenants_of(&json!({"name": "admin", "role": "admin"})), None);
        assert_eq!(tenants_of(&json!({"tenants": ["acme", "b"]})), names(&["acme", "b"]));
        assert_eq!(tenants_of(&json!({"tenants": []})), names(&[]));
        let backends = json!({"backends": ["acme/files", "acme/mail"]});
        assert_eq!(tenants_of(&backends), names(&["acme"]));
    }

    /// A broker whose operator sees these tenants. It has the chain of acme only.
    async fn client_of(tenants: Option<&[&str]>) -> AdminClient {
        let mut operator = json!({"name": "o", "role": "auditor"});
        if let Some(tenants) = tenants {
            operator["tenants"] = json!(tenants);
        }
        let chains = json!({"chains": [{"tenant": "acme", "removed": 0, "covered": 7}], "unchained_until": 0});
        let page = |uri: http::Uri| async move {
            let is_there = uri.query().unwrap_or_default().contains("tenant=acme");
            axum::Json(match is_there {
                true => json!({"records": 7, "last": 9}),
                false => json!({"records": 0, "misfit": {"detail": "the chain is gone"}}),
            })
        };
        let router = axum::Router::new()
            .route(
                "/admin/v1/operator",
                axum::routing::get(move || async move { axum::Json(operator) }),
            )
            .route(
                "/admin/v1/audit/chains",
                axum::routing::get(move || async move { axum::Json(chains) }),
            )
            .route("/admin/v1/audit/verify", axum::routing::get(page));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        AdminClient::new(&format!("http://{address}"), None).unwrap()
    }

    #[tokio::test]
    async fn s15_checkpoints_of_chains_that_the_operator_does_not_see_are_not_compared() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("checkpoints.jsonl");
        let of = |tenant: &str| CHECKPOINT.replace(r#""acme""#, tenant);
        let lines = [of(r#""acme""#), of(r#""other""#), of("null")];
        std::fs::write(&file, lines.join("\n")).unwrap();
        let output = OutputOptions { json: false };
        let limited = client_of(Some(&["acme"])).await;
        let found = verify(&limited, Some(&file), &output).await.unwrap();
        assert!(found.out.ends_with("ok: 7 records in 1 chains\n"), "{}", found.out);
        assert!(
            found.note.starts_with("checkpoints of 2 chains were not compared"),
            "{}",
            found.note
        );
        // A chain that the operator should see, and all chains for an operator of the broker.
        for tenants in [Some(&["acme", "other"][..]), None] {
            let client = client_of(tenants).await;
            let error = verify(&client, Some(&file), &output).await.err();
            assert!(matches!(error, Some(ClientError::Refused(_))), "{tenants:?}: {error:?}");
        }
    }

    #[test]
    fn s15_the_first_record_that_does_not_fit_is_named() {
        let misfit = json!({"tenant": "acme", "number": 17, "detail": "it was edited"});
        assert_eq!(
            sentence(&misfit, 2),
            "record 17 of the chain of tenant acme does not pass the verification: it was edited; 1 more chains do not pass the verification"
        );
        assert_eq!(
            sentence(&json!({"tenant": null, "number": null, "detail": "gone"}), 1),
            "the chain without a tenant does not pass the verification: gone"
        );
    }
}
