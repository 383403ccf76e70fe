//! The name that programs record when they link the library, and where it looks for libhl-thunk.so.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libSynapse.so");
    // Beside itself, after LD_LIBRARY_PATH.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-rpath,$ORIGIN");
}
