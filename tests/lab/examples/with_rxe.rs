//! Runs a command in a guest that has soft-RoCE: `cargo xtask lab run --
//! target/debug/examples/with_rxe patched gaudi nics`.
//!
//! `stock` is the kernel's own module, which registers no dma-bufs; `patched` the lab's, which
//! does.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode};

use gaudi_lab::rxe::{self, Build};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (build, program, arguments) = match words.as_slice() {
        [build, program, arguments @ ..] if build == "stock" => (Build::Stock, program, arguments),
        [build, program, arguments @ ..] if build == "patched" => (Build::Patched, program, arguments),
        _ => {
            eprintln!("usage: with_rxe stock|patched COMMAND…");
            return ExitCode::from(2);
        }
    };
    if build == Build::Patched {
        if let Some(need) = rxe::need() {
            eprintln!("no patched rdma_rxe here: {need}");
            return ExitCode::FAILURE;
        }
    }
    rxe::device(build, "rxe0", "eth0", "10.77.0.1");
    match Command::new(program).args(arguments).status() {
        Ok(status) => {
            let code = status.code().or(status.signal().map(|signal| 128 + signal));
            ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
        }
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::from(127)
        }
    }
}
