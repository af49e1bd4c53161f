//! Compares readers of JSON for whole documents of which many parts are read.
//!
//! The walker (`json::Document`) walks from a value's start for every part. simd-json's tape
//! (`json::Tape`) has the places of all values. Key sets are also read with serde's tree. Of the
//! last document only the first member is read.

mod shapes;

use std::{
    hint::black_box,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::ensure;
use benches::{Scale, Table, digits, median, shown};

use crate::shapes::SHAPES;

const SIZES: [usize; 4] = [128, 2048, 65_536, 1_048_576];

fn main() -> ExitCode {
    benches::main("documents", bench)
}

async fn bench(scale: Scale) -> anyhow::Result<()> {
    for shape in &SHAPES {
        let mut table = Table::new(["document", "reader", "time", "GB/s", "of the walker"]);
        for bytes in SIZES {
            let text = (shape.written)(bytes);
            let expected = (shape.readers[0].1)(text.as_bytes());
            for (name, read) in shape.readers {
                ensure!(
                    read(text.as_bytes()) == expected,
                    "{name} reads something else of {}",
                    shape.name
                );
            }
            let mut times = vec![Vec::new(); shape.readers.len()];
            for _ in 0..scale.of(15, 1) {
                for ((_, read), times) in shape.readers.iter().zip(&mut times) {
                    times.push(time(*read, text.as_bytes(), scale).as_secs_f64());
                }
            }
            let times: Vec<f64> = times.into_iter().map(median).collect();
            for ((name, _), time) in shape.readers.iter().zip(&times) {
                let rate = digits(text.len() as f64 / time / 1e9);
                let ratio = format!("{:.2}", time / times[0]);
                table.row([
                    size(text.len()),
                    (*name).to_owned(),
                    shown(Duration::from_secs_f64(*time)),
                    rate,
                    ratio,
                ]);
            }
        }
        table.print(shape.name);
    }
    Ok(())
}

/// Returns a number of bytes as a reader would write it.
fn size(bytes: usize) -> String {
    match bytes {
        ..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} KB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MB", bytes as f64 / 1024.0 / 1024.0),
    }
}

/// Returns how long one reading takes, on average.
fn time(read: shapes::Read, text: &[u8], scale: Scale) -> Duration {
    let count = scale.of((1024 * 1024 / text.len()).clamp(3, 1_000), 1) as u32;
    let started = Instant::now();
    for _ in 0..count {
        black_box(read(black_box(text)));
    }
    started.elapsed() / count
}
