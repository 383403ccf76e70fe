//! The plan of a measurement. The connecting end proposes it; the listening end checks it against
//! its own options.

use std::fmt::Display;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use gaudi::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

use super::op::{MOST, Measure, OPERATION, Op};
use crate::args_rdma::{Memory, PerfRdma, Way, What};
use crate::exit::Usage;

const SIZES: [u64; 4] = [8, 4 << 10, 64 << 10, 1 << 20];
/// Limits of a plan that a peer proposes: those of the command line.
const MOST_SIZES: usize = 64;
const MOST_OPERATIONS: u32 = 10_000_000;
const MOST_WARM_UP: u32 = 1_000_000;
const MOST_WINDOW: u32 = 2048;
const MOST_IN_A_ROW: u32 = 1024;
const MOST_QPS: u32 = 64;
const MOST_MILLISECONDS: u64 = 86_400_000;

/// The options that must agree at both ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) op: Op,
    pub(super) memory: Memory,
    pub(super) dmabuf: Way,
    pub(super) sizes: Vec<u64>,
    pub(super) measure: What,
    pub(super) iterations: u32,
    /// Instead of `iterations`.
    pub(super) duration_ms: Option<u64>,
    pub(super) warm_up: u32,
    pub(super) window: u32,
    pub(super) signal: u32,
    pub(super) post_list: u32,
    pub(super) qps: u32,
    pub(super) mtu_bytes: Option<u32>,
    pub(super) bidirectional: bool,
    pub(super) histogram: bool,
}

/// Returns the name of a value on the command line.
fn name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

fn list(sizes: &[u64]) -> String {
    sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

/// Formats a value that only one of the ends may have.
fn given(value: Option<impl Display>) -> String {
    value.map_or("none".to_owned(), |value| value.to_string())
}

fn seconds(ms: u64) -> String {
    format!("{} s", ms as f64 / 1e3)
}

fn millis(duration: Duration) -> u64 {
    // The command line allows a day at most: it fits.
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Compares options of the two ends: name, value here if it was given, and value there.
///
/// # Errors
/// The first that differs with both values, in words for both ends.
pub(super) fn differ<const N: usize>(options: [(&str, Option<String>, String); N]) -> Result<(), String> {
    for (option, here, there) in options {
        if let Some(here) = here.filter(|here| *here != there) {
            return Err(format!(
                "{option}: the listening end has {here}, the connecting end {there}"
            ));
        }
    }
    Ok(())
}

impl Plan {
    /// Returns the plan of a command line, with its defaults.
    ///
    /// # Errors
    /// [`Usage`]: a size out of range, or options that exclude one another.
    pub(super) fn new(op: Op, perf: &PerfRdma) -> Result<Self> {
        let sizes = match op {
            Op::Atomic => vec![8],
            _ => perf.sizes.clone().unwrap_or(SIZES.to_vec()),
        };
        if let Some(size) = sizes.iter().find(|&&size| size == 0 || size > MOST) {
            return Err(Usage(format!("--sizes: an operation has 1 byte to 1 GiB, not {size}")).into());
        }
        if sizes.len() > MOST_SIZES {
            return Err(Usage(format!("--sizes: at most {MOST_SIZES} values")).into());
        }
        let plan = Self {
            op,
            memory: perf.memory.unwrap_or(Memory::Host),
            dmabuf: perf.dmabuf.unwrap_or(Way::Try),
            sizes,
            measure: perf.measure.unwrap_or(What::Both),
            iterations: perf.iterations.unwrap_or(1000),
            duration_ms: perf.duration.map(millis),
            warm_up: perf.warm_up.unwrap_or(100),
            window: perf.window.unwrap_or(128),
            signal: perf.signal.unwrap_or(16),
            post_list: perf.post_list.unwrap_or(1),
            qps: perf.qps.unwrap_or(1),
            mtu_bytes: perf.mtu,
            bidirectional: perf.bidirectional,
            histogram: perf.histogram,
        };
        if plan.post_list > plan.window {
            return Err(Usage(format!(
                "--post-list {} does not fit --window {}",
                plan.post_list, plan.window
            ))
            .into());
        }
        // An option that no row uses would be ignored.
        if let (What::Latency, Some(option)) = (plan.measure, plan.bandwidth_option()) {
            return Err(Usage(format!("{option} applies to bandwidth, but --measure is latency")).into());
        }
        if plan.histogram && plan.measure == What::Bandwidth {
            return Err(
                Usage("--histogram applies to latency, but --measure is bandwidth".to_owned()).into(),
            );
        }
        Ok(plan)
    }

    /// Checks a peer's plan against the options that were given here. An option that was not given
    /// here follows the peer.
    ///
    /// # Errors
    /// The option with both values, in words for both ends.
    pub(super) fn agrees(&self, op: Op, perf: &PerfRdma, devices: bool) -> Result<(), String> {
        let text = |number: Option<u32>| number.map(|number| number.to_string());
        let sizes = perf.sizes.as_deref().filter(|_| op != Op::Atomic).map(list);
        let counted = self.duration_ms.is_none().then_some(self.iterations);
        let duration = perf.duration.map(|duration| seconds(millis(duration)));
        let both_ways = perf.bidirectional.then(|| "true".to_owned());
        differ([
            (
                "the operation",
                Some(op.name().to_owned()),
                self.op.name().to_owned(),
            ),
            ("--memory", perf.memory.map(name), name(self.memory)),
            ("--dmabuf", perf.dmabuf.map(name), name(self.dmabuf)),
            ("--sizes", sizes, list(&self.sizes)),
            ("--measure", perf.measure.map(name), name(self.measure)),
            ("--iterations", text(perf.iterations), given(counted)),
            ("--duration", duration, given(self.duration_ms.map(seconds))),
            ("--warm-up", text(perf.warm_up), self.warm_up.to_string()),
            ("--window", text(perf.window), self.window.to_string()),
            ("--signal", text(perf.signal), self.signal.to_string()),
            ("--post-list", text(perf.post_list), self.post_list.to_string()),
            ("--qps", text(perf.qps), self.qps.to_string()),
            ("--mtu", text(perf.mtu), given(self.mtu_bytes)),
            ("--bidirectional", both_ways, self.bidirectional.to_string()),
        ])?;
        if devices && self.memory == Memory::Host {
            return Err(
                "--device: the listening end has one, but the connecting end measures host memory".to_owned(),
            );
        }
        Ok(())
    }

    /// Checks that a peer's plan is within the command line's limits.
    ///
    /// # Errors
    /// `Protocol`: it is not.
    pub(super) fn check(&self) -> Result<(), Error> {
        let fits = (1..=MOST_SIZES).contains(&self.sizes.len())
            && self.sizes.iter().all(|size| (1..=MOST).contains(size))
            && (self.op != Op::Atomic || self.sizes == [8])
            && (2..=MOST_OPERATIONS).contains(&self.iterations)
            && self
                .duration_ms
                .is_none_or(|ms| (1..=MOST_MILLISECONDS).contains(&ms))
            && self.warm_up <= MOST_WARM_UP
            && (1..=MOST_WINDOW).contains(&self.window)
            && (1..=MOST_IN_A_ROW).contains(&self.signal)
            && (1..=MOST_IN_A_ROW.min(self.window)).contains(&self.post_list)
            && (1..=MOST_QPS).contains(&self.qps)
            && self
                .mtu_bytes
                .is_none_or(|mtu| [256, 512, 1024, 2048, 4096].contains(&mtu));
        if fits {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Protocol, OPERATION)
            .because("the other end's plan is outside the limits of the options")
            .saw(format!("{self:?}"), "values in the ranges of the options"))
    }

    /// Returns the first given option that only a bandwidth over queue pairs has.
    pub(super) fn bandwidth_option(&self) -> Option<&'static str> {
        [
            ("--bidirectional", self.bidirectional),
            ("--qps", self.qps > 1),
            ("--post-list", self.post_list > 1),
        ]
        .into_iter()
        .find_map(|(option, given)| given.then_some(option))
    }

    pub(super) fn kinds(&self) -> &'static [Measure] {
        match self.measure {
            What::Bandwidth => &[Measure::Bandwidth],
            What::Latency => &[Measure::Latency],
            What::Both => &[Measure::Bandwidth, Measure::Latency],
        }
    }

    pub(super) fn duration(&self) -> Option<Duration> {
        self.duration_ms.map(Duration::from_millis)
    }

    /// Returns the bytes of the largest row.
    pub(super) fn most_bytes(&self) -> u64 {
        self.sizes.iter().copied().max().unwrap_or(1)
    }

    /// Returns work requests of each send queue: the window, and an operation that closes a group.
    pub(super) fn depth(&self) -> u32 {
        self.window + 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Measured;
    use crate::{Cli, Command};
    use clap::Parser as _;

    fn options(arguments: &[&str]) -> PerfRdma {
        let words = [&["gaudi", "perf", "write"], arguments].concat();
        match Cli::try_parse_from(words).unwrap().command {
            Some(Command::Perf(perf)) => match perf.of {
                Measured::Write(perf) => perf,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn defaults_follow_the_peer() {
        let plan = Plan::new(
            Op::Write,
            &options(&["-s", "8,64k", "-D", "2", "-b", "--qps", "4"]),
        )
        .unwrap();
        assert_eq!(plan.agrees(Op::Write, &options(&[]), false), Ok(()));
        assert_eq!(
            plan.agrees(Op::Write, &options(&["-D", "2", "--qps", "4"]), false),
            Ok(())
        );
        plan.check().unwrap();
    }

    #[test]
    fn differing_options_are_named_with_values() {
        let theirs = Plan::new(Op::Write, &options(&[])).unwrap();
        for (ours, option, values) in [
            (&["--memory", "device"][..], "--memory", ["device", "host"]),
            (&["--dmabuf", "never"], "--dmabuf", ["never", "try"]),
            (&["--sizes", "64k"], "--sizes", ["65536", "8,4096,65536,1048576"]),
            (&["--measure", "latency"], "--measure", ["latency", "both"]),
            (&["--iterations", "7"], "--iterations", ["7", "1000"]),
            (&["--duration", "2.5"], "--duration", ["2.5 s", "none"]),
            (&["--warm-up", "7"], "--warm-up", ["7", "100"]),
            (&["--window", "7"], "--window", ["7", "128"]),
            (&["--signal", "7"], "--signal", ["7", "16"]),
            (&["--post-list", "7"], "--post-list", ["7", "1"]),
            (&["--qps", "7"], "--qps", ["7", "1"]),
            (&["--mtu", "1024"], "--mtu", ["1024", "none"]),
            (&["--bidirectional"], "--bidirectional", ["true", "false"]),
        ] {
            let error = theirs.agrees(Op::Write, &options(ours), false).unwrap_err();
            let [here, there] = values;
            assert_eq!(
                error,
                format!("{option}: the listening end has {here}, the connecting end {there}")
            );
        }
        assert!(theirs.agrees(Op::Read, &options(&[]), false).is_err());
        assert!(
            theirs.agrees(Op::Write, &options(&[]), true).is_err(),
            "a device without a use"
        );
    }

    #[test]
    fn options_without_effect_are_rejected() {
        for wrong in [
            &["--measure", "latency", "-b"][..],
            &["--measure", "latency", "--qps", "2"],
            &["--measure", "latency", "-l", "2"],
            &["--measure", "bandwidth", "-H"],
            &["--window", "4", "-l", "8"],
            &["--sizes", "0"],
        ] {
            assert!(Plan::new(Op::Write, &options(wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn plans_out_of_range_are_rejected() {
        let right = Plan::new(Op::Write, &options(&[])).unwrap();
        let wrong: [fn(&mut Plan); 8] = [
            |plan| plan.sizes = vec![],
            |plan| plan.sizes = vec![MOST + 1],
            |plan| plan.sizes = vec![1; 65],
            |plan| plan.window = u32::MAX,
            |plan| plan.qps = 0,
            |plan| plan.post_list = plan.window + 1,
            |plan| plan.mtu_bytes = Some(9000),
            |plan| plan.duration_ms = Some(u64::MAX),
        ];
        for change in wrong {
            let mut plan = right.clone();
            change(&mut plan);
            assert_eq!(plan.check().unwrap_err().kind(), ErrorKind::Protocol, "{plan:?}");
        }
    }
}
