//! `tools/list` from the catalog, compared with nginx that serves the very same bytes from a file.

use std::time::Duration;

use anyhow::ensure;
use benches::{Scale, Table, digits, shown};
use loadtest::{
    backend::{Backend, BackendOptions},
    target::Target,
    wire::{HttpStream, http::post_head},
};
use testkit::TestBroker;

use crate::{
    repeated::{CONNECTIONS, RepeatedRequest, in_turns, open_session},
    testbed::{TestBed, behind},
};

const TOOLS: usize = 500;
const LIST: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#;

/// Returns the request for the first page of a backend's tools, and the answer's body.
pub(crate) async fn request_of(
    broker: &TestBroker,
    key: &str,
    backend: &str,
) -> anyhow::Result<(RepeatedRequest, Vec<u8>)> {
    let target: Target = format!("http://{}/mcp/{backend}", broker.http_address()).parse()?;
    let session = open_session(&target, key).await?;
    let head = post_head(&target, Some(key), Some(&session));
    let mut stream = HttpStream::connect(&target.address).await?;
    let answer = stream.post(&head, LIST).await?;
    ensure!(answer.status == 200, "tools/list got status {}", answer.status);
    let body = answer.body.to_vec();
    let request = RepeatedRequest {
        address: target.address,
        heads: vec![head],
        body: LIST,
        answer_bytes: body.len(),
        pids: vec![broker.pid()],
    };
    Ok((request, body))
}

pub(crate) async fn table(ground: &TestBed, scale: Scale) -> anyhow::Result<String> {
    let many = Backend::http(
        "127.0.0.1:0",
        &BackendOptions { tools: TOOLS - 1, ..BackendOptions::default() },
    )
    .await?;
    ground.broker.admin().put_ready_backend("default", "many", &behind(&many)).await;
    let (of_broker, body) = request_of(&ground.broker, &ground.key, "many").await?;
    ground.nginx.serve_list(&body)?;
    let file: Target = format!("http://{}/list", ground.nginx.address).parse()?;
    let answer_bytes = body.len();
    let of_file = RepeatedRequest {
        address: file.address.clone(),
        heads: vec![post_head(&file, None, None)],
        body: LIST,
        answer_bytes,
        pids: ground.nginx.pids()?,
    };
    let [nginx, broker] = in_turns(&[of_file, of_broker], scale).await?;
    let mut table =
        Table::new(["way", "lists/s", "of nginx", "p50", "of nginx", "CPU a list", "of nginx"]);
    for (name, of) in [("nginx, a file", nginx), ("broker", broker)] {
        table.row([
            name.to_owned(),
            digits(of.rate),
            format!("{:.2}", of.rate / nginx.rate),
            shown(Duration::from_secs_f64(of.p50)),
            format!("{:.2}", of.p50 / nginx.p50),
            format!("{:.1} µs", of.cpu),
            format!("{:.2}", of.cpu / nginx.cpu),
        ]);
    }
    let text = format!(
        "The first page of `tools/list` with {TOOLS} tools, {answer_bytes} bytes, over {CONNECTIONS} connections."
    );
    Ok(format!("### Lists compared with a file\n\n{text}\n\n{}\n", table.markdown()))
}
