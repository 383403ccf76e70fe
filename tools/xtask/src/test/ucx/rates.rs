//! `cargo xtask bench ucx`: ucx_perftest's rate of device memory over shared memory, beside what
//! the rate of host memory and the engines' rate of the same run allow.
//!
//! A message goes from device memory to host memory, through shared memory, and to device memory.
//! One after the other, these take 1/h + 2/c: h is the rate of host memory, c that of the engines.
//! UCX copies a message in parts, and short copies have a lower rate: the result names the length
//! of a part, and what the engines' rate at that length allows. The goal uses the rate at the
//! message's length.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use super::{LIMIT, Release, Setting, TESTS, TRANSPORTS, build_as, field, statistics};
use crate::ledger::Row;
use crate::missing::or_missing;
use crate::packages::Pins;
use crate::run::{self, Outcome};
use crate::workspace::Workspace;

/// Bytes of a message, and the number of messages: enough that the fragments of 32 messages in
/// flight, which UCX allocates when it first needs them, are a small part.
const MESSAGES: [(u64, u32); 4] = [(1 << 20, 4000), (4 << 20, 1000), (16 << 20, 400), (64 << 20, 160)];
/// Runs of each measurement; the best one counts.
const ROUNDS: usize = 8;
/// The most that UCX and the plugin may add to a query.
const QUERY_GOAL: f64 = 1.5;
/// The least part of the bound.
const GOAL: f64 = 0.8;

/// Builds for speed and measures every release.
pub(crate) fn row(workspace: &Workspace) -> Row {
    Row::time("ucx rates", |row| {
        let built = build_as(workspace, "release", &["--release", "--package", "gaudi-cli"])?;
        let target = built.check.parent().context("a folder")?;
        for judge in Pins::load(&workspace.root)?.ucx_judges {
            let release = match or_missing(Release::prepare(&judge, &built, workspace))? {
                Ok(release) => release,
                Err(need) => {
                    row.skip(format!("ucx {}", judge.version), need);
                    continue;
                }
            };
            let id = format!("ucx {} mem_query", judge.version);
            row.settle(&id, release.queries());
            for (test, function) in TESTS {
                for (size, rates) in release.rates(test, function, &target.join("gaudi"))? {
                    let id = format!("ucx {} {test} {} MiB", judge.version, size >> 20);
                    row.settle(&id, rates.judge());
                }
            }
        }
        Ok(())
    })
}

/// Rates of one size, in MiB/s.
#[derive(Debug, Clone, Copy, Default)]
struct Rates {
    host: f64,
    engine: f64,
    device: f64,
    parts: Parts,
}

/// UCX's copies of a run.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    /// Bytes of a copy, on average.
    bytes: u64,
    /// The engines' rate at that length, in MiB/s.
    engine: f64,
}

impl Rates {
    fn judge(self) -> anyhow::Result<String> {
        let Self {
            host,
            engine,
            device,
            parts,
        } = self;
        let bound = |engine: f64| 1.0 / (1.0 / host + 2.0 / engine);
        let text = format!(
            "h {host:.0}, c {engine:.0}, device {device:.0} MiB/s: {:.2} of 1/(1/h + 2/c); \
             in parts of {} bytes, c {:.0}: {:.2}",
            device / bound(engine),
            parts.bytes,
            parts.engine,
            device / bound(parts.engine)
        );
        ensure!(device >= GOAL * bound(engine), "{text}");
        Ok(text)
    }
}

impl Release<'_> {
    /// A query of type and device through UCX, beside the library's own.
    fn queries(&self) -> anyhow::Result<String> {
        let mut command = self.program(
            &self.built.check,
            Setting {
                transports: None,
                has_card: true,
            },
        );
        command.arg("query");
        let (_, text) = self.output("query", &command)?;
        let line = text.lines().find_map(|line| line.strip_prefix("query: "));
        let line = line.context("ucp-check query prints no result")?;
        let ratio: f64 = line.rsplit(' ').next().unwrap_or_default().parse()?;
        ensure!(ratio <= QUERY_GOAL, "{line}: more than {QUERY_GOAL}");
        Ok(line.to_owned())
    }

    fn rates(&self, test: &str, function: &str, gaudi: &Path) -> anyhow::Result<Vec<(u64, Rates)>> {
        let (name, transports) = TRANSPORTS[1];
        let setting = Setting {
            transports: Some(transports),
            has_card: true,
        };
        let mut all = MESSAGES.map(|(size, _)| (size, Rates::default()));
        let mut parts = Parts::default();
        for _ in 0..ROUNDS {
            for kind in ["host", self.judge.memory_type.as_str()] {
                let log = format!("rates-{test}-{kind}-{name}");
                let [_, client] = self.perftest(&log, function, kind, setting, &MESSAGES)?;
                for (size, rates) in &mut all {
                    let slot = if kind == "host" {
                        &mut rates.host
                    } else {
                        &mut rates.device
                    };
                    *slot = slot.max(rate_of(&client, *size)?);
                }
                if kind != "host" {
                    let stats = statistics(&client)?;
                    parts.bytes = field(&stats, "copied_bytes")? / field(&stats, "copies")?.max(1);
                    parts.engine = parts.engine.max(self.engine(gaudi, parts.bytes)?);
                }
            }
            for (size, rates) in &mut all {
                rates.engine = rates.engine.max(self.engine(gaudi, *size)?);
            }
        }
        Ok(all.map(|(size, rates)| (size, Rates { parts, ..rates })).to_vec())
    }

    /// The engines' rate: as much from the device as to it.
    fn engine(&self, gaudi: &Path, size: u64) -> anyhow::Result<f64> {
        let mut command = Command::new(gaudi);
        command.args(["perf", "copy", "-d", "mock:gaudi2", "--json"]);
        command.args(["--sizes", &size.to_string()]);
        // The first short copies take several times as long as the later ones.
        let iterations = (64 << 20) / size.max(1);
        command.args(["--iterations", &iterations.clamp(20, 5000).to_string()]);
        let report: serde_json::Value = serde_json::from_str(&run::text(&mut command)?)?;
        let rows = report["rows"].as_array().context("rows")?;
        let seconds = |from: &str, to: &str| {
            let row = rows
                .iter()
                .find(|row| row["from"] == from && row["to"] == to && row["backend"] == "mock");
            let ns = row.and_then(|row| row["median_ns"].as_f64());
            ns.with_context(|| format!("no row from {from} to {to}"))
        };
        let ns = seconds("host", "device")? + seconds("device", "host")?;
        Ok(2.0 * size as f64 / ns * 1e9 / f64::from(1 << 20))
    }
}

/// ucx_perftest's overall bandwidth of a size.
fn rate_of(client: &Outcome, size: u64) -> anyhow::Result<f64> {
    let name = format!("size-{size},");
    let line = client.lines().find(|line| line.starts_with(&name));
    let line = line.with_context(|| format!("no result for {size} bytes within {} s", LIMIT.as_secs()))?;
    let field = line.split(',').nth(6).context("the overall bandwidth")?;
    field
        .trim()
        .parse()
        .with_context(|| format!("not a number in {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_device_memory_is_a_failure() {
        let rates = |device| Rates {
            host: 1000.0,
            engine: 2000.0,
            device,
            parts: Parts {
                bytes: 8192,
                engine: 1000.0,
            },
        };
        let text = rates(400.0).judge().expect("0.8 of 500 MiB/s");
        assert!(text.contains("0.80 of"), "{text}");
        assert!(text.ends_with("in parts of 8192 bytes, c 1000: 1.20"), "{text}");
        assert!(rates(399.0).judge().is_err(), "less than the goal");
    }
}
