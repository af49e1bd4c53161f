//! The collector of traces as a program: `otlp-collector ADDRESS FILE`.
//!
//! It prints `ready http=ADDRESS`, and adds each span to the file as a line of JSON. A reader finds
//! a line whole or not at all. It ends by a signal, or by itself after `LIFE_MAX`.

use std::{fs::OpenOptions, io::Write as _, time::Duration};

use testkit::collector::Collector;
use tokio::net::TcpListener;

/// Interval at which received spans are written.
const WRITES_EVERY: Duration = Duration::from_millis(50);
/// Longest life of the process, longer than any test.
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
