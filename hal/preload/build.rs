//! Sets `naked` if the compiler has naked functions (Rust 1.88): vfork(2) can only be replaced by
//! one. Without it, the calls of a child of vfork(2) are recorded as its parent's.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(naked)");
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let minor = text.ok().and_then(|text| {
        let version = text.split(' ').nth(1)?;
        version.split('.').nth(1)?.parse::<u32>().ok()
    });
    if minor.is_some_and(|minor| minor >= 88) {
        println!("cargo::rustc-cfg=naked");
    }
}
