//! Copies files of the broker whose synchronisation the models check.
//!
//! A copy differs from its original in these ways: its atomics are those of shuttle, its clock is
//! that of the models, its tests are left out, and the files of a folder are one file. So the models
//! run the code of the product, and fail to build when it leaves their reach.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// The files, by their path below the root of the repository.
const FILES: [&str; 8] = [
    "broker/src/admission/concurrency_limit.rs",
    "broker/src/admission/outbox_budget.rs",
    "broker/src/sessions/call/task_handoff.rs",
    "broker/src/sessions/deadline_list.rs",
    "broker/src/sessions/stream.rs",
    "rules/src/breaker.rs",
    "rules/src/retries.rs",
    "rules/src/shared_permits.rs",
];

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("..");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    for file in FILES {
        let original = root.join(file);
        let name = original.file_name().expect("a file has a name");
        fs::write(out.join(name), copied(&original)).expect("the folder is ours");
    }
}

/// Returns the file with the modules that it declares, changed as the models need it.
fn copied(original: &Path) -> String {
    println!("cargo::rerun-if-changed={}", original.display());
    let text = fs::read_to_string(original)
        .unwrap_or_else(|error| panic!("{}: {error}", original.display()));
    let product = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    // The comment about a file stands before its first item, and an included file may have none.
    let product =
        product.lines().filter(|line| !line.starts_with("//!") && line.trim() != "#[cfg(test)]");
    let folder = original.with_extension("");
    let lines = product.map(|line| match declared(line.trim()) {
        Some(name) => {
            format!("mod {name} {{\n{}}}\n", copied(&folder.join(name).with_extension("rs")))
        }
        None => format!("{line}\n"),
    });
    with_shuttle(&lines.collect::<String>()).replace("tokio::time::", "crate::clock::")
}

/// Returns the name of a module in another file that the line declares.
fn declared(line: &str) -> Option<&str> {
    line.strip_prefix("mod ")?.strip_suffix(';')
}

/// Takes the atomics out of the imports of `std` and imports those of shuttle.
fn with_shuttle(text: &str) -> String {
    let (mut kept, mut rest) = (String::new(), text);
    while let Some((before, found)) = rest.split_once("atomic::") {
        let end = match found.strip_prefix('{') {
            Some(names) => names.find('}').expect("a closed brace") + 2,
            None => found.find([',', ';', '}']).expect("the end of an import"),
        };
        let (names, after) = found.split_at(end);
        // The import that the atomics were a part of goes on behind them.
        let part_of = before.rfind("use ").expect("atomics are imported");
        kept += &before[..part_of];
        kept += &format!("use shuttle::sync::atomic::{names};\n");
        kept += &before[part_of..];
        let is_alone = before.ends_with("sync::");
        kept += if is_alone { "{}" } else { "" };
        rest = if is_alone { after } else { after.strip_prefix(',').unwrap_or(after) };
    }
    kept + rest
}
