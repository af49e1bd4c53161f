//! Calls at the replica that owns their session, compared with calls at another one, which forwards
//! them.

use anyhow::ensure;
use benches::Scale;
use futures_util::future::try_join_all;
use loadtest::{
    target::Target,
    wire::{HttpStream, http::post_head},
};

use crate::{
    repeated::{CONNECTIONS, RepeatedRequest, compared, in_turns, open_session},
    testbed::{self, TestBed, behind},
};

const CALL: &[u8] = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"message":""#,
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
    "0123456789012345678901234567890123456789012345678901",
    r#""}}}"#
)
.as_bytes();

pub(crate) async fn table(ground: &TestBed, scale: Scale) -> anyhow::Result<String> {
    let builder = testbed::builder()?.auth_required().cluster(2);
    let mut cluster = testbed::start_cluster(builder).await;
    let operator = cluster.operator();
    operator.put_ready_backend("default", "fast", &behind(&ground.backend)).await;
    let key = operator.create_key("default").await;
    cluster.ready().await;
    let replicas = cluster.replicas();
    let [owner, other] = [&replicas[0], &replicas[1]];

    let target: Target = format!("http://{}/mcp/fast", owner.http_address()).parse()?;
    let sessions = (0..CONNECTIONS).map(|_| open_session(&target, &key));
    let sessions = try_join_all(sessions).await?;
    let heads: Vec<String> =
        sessions.iter().map(|session| post_head(&target, Some(&key), Some(session))).collect();
    let mut first = HttpStream::connect(&target.address).await?;
    let answer = first.post(&heads[0], CALL).await?;
    let text = String::from_utf8_lossy(&answer.body);
    ensure!(answer.status == 200 && !text.contains("isError\":true"), "tools/call got {text}");
    let at_owner = RepeatedRequest {
        address: target.address,
        heads,
        body: CALL,
        answer_bytes: answer.body.len(),
        pids: vec![owner.pid(), other.pid()],
    };
    let at_other =
        RepeatedRequest { address: other.http_address().to_string(), ..at_owner.clone() };

    let names = ["at the owner of the session", "at another replica"];
    let figures = in_turns(&[at_owner, at_other], scale).await?;
    // Stopped in order: a program with counters writes them at its exit (`make pgo`).
    for replica in 0..cluster.replicas().len() {
        ensure!(cluster.terminate(replica).await, "replica {replica} did not stop cleanly");
    }
    let table = compared(["call", "calls/s", "CPU a call"], names, &figures);
    let text = format!(
        "Calls of {} B over {CONNECTIONS} connections, on two replicas that share PostgreSQL, Redis and one processor. The processor time is that of both replicas.",
        CALL.len()
    );
    Ok(format!("### Calls at another replica\n\n{text}\n\n{table}\n"))
}
