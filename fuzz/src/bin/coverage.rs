//! Gives libFuzzer the target that `MCP_BROKER_FUZZ_TARGET` names. `scripts/fuzz.sh` builds and runs
//! it.

#![no_main]

use std::sync::OnceLock;

use fuzz::Target;

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fn named() -> &'static Target {
    let name = std::env::var("MCP_BROKER_FUZZ_TARGET").unwrap_or_default();
    fuzz::target(&name)
        .unwrap_or_else(|| panic!("MCP_BROKER_FUZZ_TARGET names no target: {name:?}"))
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    (TARGET.get_or_init(named).check)(input);
});
