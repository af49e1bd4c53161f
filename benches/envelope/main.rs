//! Compares readers of JSON for envelopes, with messages of a few sizes: prose (long strings) and
//! dense (many small members).
//!
//! - the broker's own reader: one pass, all of a message validated
//! - the tape of simd-json: a copy and two passes, validated
//! - serde with raw values
//! - sonic-rs with lazy values
//! - a scanner written by hand that validates nothing

mod readers;

use std::{
    hint::black_box,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::ensure;
use benches::{Scale, Table, digits, median, shown};
use bytes::Bytes;

use crate::readers::{ParsedCall, READERS};

const SIZES: [(usize, &str); 4] =
    [(256, "256 B"), (2048, "2 KB"), (65_536, "64 KB"), (1_048_576, "1 MB")];

fn main() -> ExitCode {
    benches::main("envelope", bench)
}

async fn bench(scale: Scale) -> anyhow::Result<()> {
    for (shape, message) in [("prose", prose as fn(usize) -> Bytes), ("dense", dense)] {
        let mut table = Table::new(["message", "reader", "time", "GB/s", "of ours"]);
        for (bytes, size) in SIZES {
            let frame = message(bytes);
            for (name, read) in READERS {
                ensure!(
                    read(&frame) == Some(ParsedCall { id: 7, tool: "files__write".to_owned() }),
                    "{name} reads another message than was written"
                );
            }
            let mut times = [const { Vec::new() }; READERS.len()];
            for _ in 0..scale.of(9, 1) {
                for ((_, read), times) in READERS.iter().zip(&mut times) {
                    times.push(time(*read, &frame, scale).as_secs_f64());
                }
            }
            let times = times.map(median);
            for ((name, _), time) in READERS.iter().zip(times) {
                let rate = digits(frame.len() as f64 / time / 1e9);
                table.row([
                    size.to_owned(),
                    (*name).to_owned(),
                    shown(Duration::from_secs_f64(time)),
                    rate,
                    format!("{:.2}", time / times[0]),
                ]);
            }
        }
        table.print(&format!("Envelope of a tools/call, {shape}"));
    }
    Ok(())
}

/// Returns the average time of one reading.
fn time(read: readers::Reader, frame: &Bytes, scale: Scale) -> Duration {
    let count = scale.of((8 * 1024 * 1024 / frame.len()).clamp(8, 10_000), 2) as u32;
    let started = Instant::now();
    for _ in 0..count {
        black_box(read(black_box(frame)));
    }
    started.elapsed() / count
}

const HEAD: &str = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"files__write","arguments":{"text":""#;

fn prose(bytes: usize) -> Bytes {
    const TEXT: &str =
        "It was the best of times, it was the worst of times; \\\"it was\\\" the age of wisdom.\\n";
    let mut text = HEAD.to_owned();
    while text.len() + TEXT.len() + 4 < bytes {
        text.push_str(TEXT);
    }
    text.extend(std::iter::repeat_n('x', bytes.saturating_sub(text.len() + 4)));
    (text + r#""}}}"#).into()
}

fn dense(bytes: usize) -> Bytes {
    let mut text = format!("{HEAD}\",\"rows\":[");
    let mut number = 0;
    loop {
        let row = format!(
            r#"{}{{"k":{number},"v":[true,null,{}],"s":"a{number}"}}"#,
            if number > 0 { "," } else { "" },
            number * 7
        );
        if text.len() + row.len() + 4 > bytes {
            return (text + "]}}}").into();
        }
        text.push_str(&row);
        number += 1;
    }
}
