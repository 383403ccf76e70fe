//! `cargo xtask lab smoke`: one card's whole chain, boot after boot: probe, export, region, RDMA
//! write, read and atomic, each verified.
//!
//! - *No boot may fail, and none is retried*: the first that fails ends the series; its logs stay.
//! - *No warning is known here*: those that other tests of the machine provoke are failures.
//! - *Seconds are printed, not judged*: they depend on the machine. Memory is judged.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;

use super::bench::{Which, one};
use super::build;
use super::guest::{Variant, Verdict};
use super::kernels::Kernels;
use super::memory::Peak;
use super::suite::{CRATE, Test};
use crate::ledger::{self, Row};
use crate::workspace::Workspace;

/// The machine of `kernels.toml`, and the test program and test that are the chain.
const MACHINE: &str = "gaudi2-chain";
const PROGRAM: &str = "gaudi-lab/card_chain";
const TEST: &str = "rdma_reaches_the_cards_memory";
/// Bytes of the host's memory that QEMU and the servers of cards may take.
const MEMORY: u64 = 2 << 30;

#[derive(Args)]
pub(crate) struct Selection {
    #[command(flatten)]
    which: Which,
    /// The number of boots
    #[arg(long, value_name = "TIMES", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    boots: u32,
}

pub(crate) fn run(workspace: &Workspace, choice: &Selection) -> anyhow::Result<ExitCode> {
    let kernels = Kernels::load(&workspace.root)?;
    let shape = kernels.shape(MACHINE)?.strict();
    let built = build::tests(workspace, &[CRATE.to_owned()], &kernels.guest, false)?;
    let (kernel, _lock) = one(workspace, &kernels, &choice.which)?;
    if let Err(need) = &kernel.rxe {
        bail!("the chain needs the lab's own build of rdma_rxe: {need}");
    }
    let is_chain = |binary: &&build::Binary| binary.name == PROGRAM;
    let test = Test {
        workspace,
        kernels: &kernels,
        kernel: &kernel,
        binaries: built.binaries.iter().filter(is_chain).collect(),
        variant: Variant::of(Some(shape)),
        built: &built,
        words: &["--exact".to_owned(), TEST.to_owned()],
    };
    let (mut rows, mut booted) = (Vec::new(), Vec::new());
    for turn in 1..=choice.boots {
        let name = format!("smoke {} {turn}/{}", kernel.id, choice.boots);
        let mut verdict = Verdict::default();
        let row = Row::time(&name, |row| {
            verdict = test.run(row)?;
            judge(row, &verdict);
            Ok(())
        });
        let failed = row.counts.failed > 0;
        let word = if failed { "FAIL" } else { "ok  " };
        println!(
            "{word}  {name}  {:.1} s, memory {}",
            verdict.wall,
            peak(verdict.memory.as_ref())
        );
        rows.push(row);
        booted.push(verdict);
        if failed {
            break; // its logs must not be overwritten
        }
    }
    println!("\nboot  seconds  to init  memory");
    for (turn, verdict) in booted.iter().enumerate() {
        println!("{:>4}  {}", turn + 1, columns(verdict));
    }
    println!("\nsmoke {}: {}", kernel.id, summary(&booted, choice.boots));
    Ok(ledger::finish(&rows))
}

/// Fails the row if the test did not run, or if the guest used too much memory.
fn judge(row: &mut Row, verdict: &Verdict) {
    let (passed, skipped) = (row.counts.passed, row.counts.skipped);
    if row.counts.failed == 0 && (passed, skipped) != (1, 0) {
        row.fail(format!("{TEST} did not run: {passed} passed, {skipped} skipped"));
    }
    if let Some(peak) = verdict.memory.as_ref().filter(|peak| peak.bytes > MEMORY) {
        row.fail(format!(
            "the guest and its card used {peak}; at most 2048 MiB are allowed"
        ));
    }
}

fn peak(peak: Option<&Peak>) -> String {
    peak.map_or_else(|| "unknown".to_owned(), ToString::to_string)
}

fn columns(verdict: &Verdict) -> String {
    let bytes = verdict.memory.as_ref().map_or(0, |peak| peak.bytes);
    let boot = verdict.boot.unwrap_or_default(); // a guest that never came up
    format!(
        "{:>7.1}  {boot:>7.1}  {:>4} MiB",
        verdict.wall,
        (bytes + (1 << 19)) >> 20
    )
}

/// Median, least, most and spread of the seconds, and the most memory of all.
fn summary(booted: &[Verdict], wanted: u32) -> String {
    let mut seconds: Vec<_> = booted.iter().map(|verdict| verdict.wall).collect();
    seconds.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (seconds.first(), seconds.last()) else {
        return "no boot".to_owned();
    };
    let (low, high) = (seconds[(seconds.len() - 1) / 2], seconds[seconds.len() / 2]);
    let most_memory = booted
        .iter()
        .filter_map(|verdict| verdict.memory.as_ref())
        .max_by_key(|peak| peak.bytes);
    format!(
        "{} of {wanted} boots; seconds: median {:.1}, min {least:.1}, max {most:.1}, spread {:.1}; memory: {} at most, 2048 MiB allowed",
        booted.len(),
        (low + high) / 2.0,
        most - least,
        peak(most_memory),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(wall: f64, mebibytes: u64) -> Verdict {
        Verdict {
            wall,
            memory: Some(Peak {
                bytes: mebibytes << 20,
                how: "guessed",
            }),
            ..Verdict::default()
        }
    }

    fn judged(passed: usize, skipped: usize, mebibytes: u64) -> Vec<String> {
        let mut row = Row::default();
        (row.counts.passed, row.counts.skipped) = (passed, skipped);
        judge(&mut row, &verdict(20.0, mebibytes));
        row.failures
    }

    #[test]
    fn the_summary_has_median_ends_and_spread() {
        let all = [verdict(22.0, 900), verdict(19.5, 1100), verdict(20.0, 1000)];
        assert_eq!(
            summary(&all, 20),
            "3 of 20 boots; seconds: median 20.0, min 19.5, max 22.0, spread 2.5; memory: 1100 MiB (guessed) at most, 2048 MiB allowed"
        );
        assert!(
            summary(&all[..2], 2).contains("median 20.8"),
            "of an even number, between two"
        );
        assert_eq!(summary(&[], 20), "no boot");
    }

    #[test]
    fn boot_that_skips_or_exceeds_memory_fails() {
        assert_eq!(judged(1, 0, 2048), [""; 0], "just fits");
        for (passed, skipped, mebibytes, part) in [
            (0, 1, 900, "did not run: 0 passed, 1 skipped"),
            (0, 0, 900, "did not run: 0 passed, 0 skipped"),
            (1, 0, 2049, "2049 MiB (guessed)"),
        ] {
            let failures = judged(passed, skipped, mebibytes);
            assert!(failures[0].contains(part), "{part:?} is not in {failures:?}");
        }
    }
}
