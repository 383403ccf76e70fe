//! Sets the vendor's SONAME, which has no version.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libhl-thunk.so");
}
