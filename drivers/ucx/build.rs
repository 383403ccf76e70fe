//! Sets the SONAME that UCX's loader expects, and keeps the library loaded: UCX holds pointers into
//! it until the process ends.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libuct_gaudi.so.0");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
