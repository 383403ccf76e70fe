//! A peer that is loaded at run time must call this program's ioctl, so that both call the same
//! one.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg=-Wl,--export-dynamic-symbol=ioctl");
}
