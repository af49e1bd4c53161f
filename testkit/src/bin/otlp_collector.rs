//! The collector of traces as a program: `otlp-collector ADDRESS FILE`. Says `ready http=ADDRESS`, and adds each span to the file
//! as a line of JSON, which a reader finds whole or not at all. Ends by a signal, or by itself when nobody ends it.

use std::{fs::OpenOptions, io::Write as _, time::Duration};

use testkit::collector::Collector;
use tokio::net::TcpListener;

/// How often what came is written down.
const WRITES_EVERY: Duration = Duration::from_millis(50);
/// Longer than any test.
const LIFE_MAX: Duration = Duration::from_secs(1_800);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, file] = arguments.as_slice() else {
        eprintln!("otlp-collector ADDRESS FILE");
        std::process::exit(64);
    };
    let listener = TcpListener::bind(address).await.expect("the address is free");
    println!("ready http={}", listener.local_addr().expect("a bound listener has an address"));
    let collector = Collector::on(listener);
    let mut out =
        OpenOptions::new().create(true).append(true).open(file).expect("the file can be written");
    let writing = async {
        let mut written = 0;
        let mut ticks = tokio::time::interval(WRITES_EVERY);
        loop {
            ticks.tick().await;
            let spans = collector.spans();
            let lines: String =
                spans[written..].iter().map(|span| format!("{}\n", span.to_json())).collect();
            out.write_all(lines.as_bytes()).expect("the file can be written");
            written = spans.len();
        }
    };
    let _forgotten = tokio::time::timeout(LIFE_MAX, writing).await;
}
