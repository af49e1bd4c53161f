//! Exports the replaced `getrandom` from the program. Some crates look the function up by its name
//! at run time.

fn main() {
    println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=getrandom");
    println!("cargo:rerun-if-changed=build.rs");
}
