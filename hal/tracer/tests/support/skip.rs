//! Skips that `cargo xtask test` counts.

/// Counts a test that cannot run here.
pub(crate) fn skip(need: &str) {
    println!("skipped: {need}");
    if let Some(log) = std::env::var_os("GAUDI_SKIP_LOG") {
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("tracer");
        let file = std::fs::OpenOptions::new().append(true).create(true).open(log);
        let line = format!("SKIP {test}: {need}\n");
        std::io::Write::write_all(&mut file.expect("the log of skips"), line.as_bytes()).expect("a line");
    }
}
