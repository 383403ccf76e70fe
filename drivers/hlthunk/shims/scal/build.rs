//! Sets the SONAME, and the run path to find libhl-thunk.so.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libscal.so");
    // The library's own directory, after LD_LIBRARY_PATH.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-rpath,$ORIGIN");
}
