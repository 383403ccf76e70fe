//! Exports the array that the plugin fills in, as ucx_perftest's executable does.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol=ucx_perf_mem_type_allocators");
}
