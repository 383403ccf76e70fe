//! Blocks of ours, the peer's and a probe's, in random order in one run; medians, best, ratios and
//! verdicts.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};

use crate::threads::Lap;

/// What making a row may fail with.
pub type Made<T> = Result<T, Box<dyn std::error::Error>>;

/// One of those that are compared: does so many operations.
pub type Work<'a> = Box<dyn FnMut(u32) + 'a>;

/// The time of the last block, set by works of several threads.
pub type Laps = Rc<Cell<Lap>>;

/// How often a disturbed block is repeated.
const REPEATS: usize = 20;

/// How blocks of several threads are measured: printed below a table with such rows.
pub const RULES: &str = "region cache: each thread runs on a processor of its own and takes its own time. A block in which a thread lost \
                         its processor, or in which all threads ran for less than 9 tenths of it, is discarded and repeated, at most 20 \
                         times; a side with fewer than a third of its blocks has no ratio.";

/// What ours must be beside the peer's.
#[derive(Debug, Clone, Copy)]
pub enum Goal {
    /// So many times the peer's time at most.
    AtMost(f64),
    /// So many times the peer's speed at least.
    AtLeast(f64),
}

/// A comparison.
pub struct Row<'a> {
    /// What is measured.
    pub name: String,
    /// What it is compared with.
    pub peer: String,
    /// Ours.
    pub ours: Work<'a>,
    /// The peer's, or why it is not there.
    pub theirs: Result<Work<'a>, String>,
    /// What both pay and neither can help: taken from both.
    pub probe: Option<Work<'a>>,
    /// The times of both sides, if their threads measure them.
    pub laps: Option<Laps>,
    /// Bytes that one operation moves, where it moves any.
    pub bytes: u64,
    /// What must hold.
    pub goal: Goal,
    /// Further notes, counted after the run.
    pub note: Box<dyn Fn() -> String + 'a>,
}

/// Blocks of one contender: nanoseconds an operation.
#[derive(Debug, Clone, Default)]
pub struct Blocks(Vec<f64>);

impl Blocks {
    /// The fastest block.
    pub fn best(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The middle one.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// What is above another's blocks, best and median: the difference of the best blocks, and the
    /// middle one of the differences within each round. Blocks of a round follow one another, so
    /// that what slows the machine for longer than a round is in both.
    fn above(&self, probe: &Self) -> (f64, f64) {
        let differences = self.0.iter().zip(&probe.0).map(|(own, probe)| own - probe);
        (self.best() - probe.best(), Self(differences.collect()).median())
    }
}

/// How long a run takes.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Blocks of each contender.
    pub rounds: usize,
    /// How long a block is to be.
    pub block: Duration,
}

impl Effort {
    /// For figures.
    pub const FULL: Self = Self {
        rounds: 61,
        block: Duration::from_millis(4),
    };
    /// To see that everything runs.
    pub const QUICK: Self = Self {
        rounds: 3,
        block: Duration::from_micros(200),
    };
}

/// What a comparison came to.
#[derive(Debug)]
pub struct Outcome {
    name: String,
    peer: String,
    /// Ours and the peer's: best and median, less the probe's.
    ours: (f64, f64),
    theirs: Result<(f64, f64), String>,
    bytes: u64,
    goal: Goal,
    note: String,
    /// Both sides have enough blocks.
    is_steady: bool,
    /// By threads that measure their own times.
    pub by_laps: bool,
}

fn shuffle(order: &mut [usize], seed: &mut u64) {
    for last in (1..order.len()).rev() {
        *seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        order.swap(last, (*seed >> 33) as usize % (last + 1));
    }
}

fn time(work: &mut Work<'_>, count: u32, laps: Option<&Laps>) -> Lap {
    let start = Instant::now();
    work(count);
    let whole = Lap {
        time: start.elapsed(),
        disturbed: false,
    };
    laps.map_or(whole, |laps| laps.get())
}

/// Runs a comparison.
pub fn run(row: Row<'_>, effort: Effort, seed: &mut u64) -> Outcome {
    let laps = row.laps.as_ref();
    // Shorter than a time slice, so that most blocks are not disturbed.
    let block = if laps.is_some() {
        effort.block / 4
    } else {
        effort.block
    };
    let absent = row.theirs.as_ref().err().cloned();
    let mut all: Vec<Work<'_>> = vec![row.ours];
    all.extend(row.probe);
    let has_probe = all.len() == 2;
    all.extend(row.theirs.ok());
    // Once for warmth, then as many as fill a block.
    let counts: Vec<u32> = all
        .iter_mut()
        .map(|work| {
            work(2);
            let mut count = 4;
            loop {
                // A fast one shows that the others were interrupted.
                let fills = (0..8).all(|_| time(work, count, laps).time > block / 2);
                if fills || count > 1 << 26 {
                    return count.max(1);
                }
                count *= 2;
            }
        })
        .collect();
    let mut blocks = vec![Blocks::default(); all.len()];
    let mut order: Vec<usize> = (0..all.len()).collect();
    let mut discarded = vec![0; all.len()];
    for _ in 0..effort.rounds {
        shuffle(&mut order, seed);
        for &at in &order {
            for _ in 0..=REPEATS {
                let lap = time(&mut all[at], counts[at], laps);
                if !lap.disturbed {
                    let ns = lap.time.as_nanos() as f64 / f64::from(counts[at]);
                    blocks[at].0.push(ns);
                    break;
                }
                discarded[at] += 1;
            }
        }
    }
    let is_steady = blocks.iter().all(|blocks| blocks.0.len() * 3 >= effort.rounds);
    let probe = has_probe.then(|| blocks[1].clone());
    let of = |blocks: &Blocks| match &probe {
        Some(probe) => blocks.above(probe),
        None => (blocks.best(), blocks.median()),
    };
    let ours = of(&blocks[0]);
    let theirs = match absent {
        None => blocks.last().map(of).ok_or_else(String::new),
        Some(why) => Err(why),
    };
    drop(all);
    let mut note = (row.note)();
    if laps.is_some() {
        let kept = |at: usize| -> Option<String> {
            let blocks = blocks.get(at)?;
            Some(format!("{} of {}", discarded[at], discarded[at] + blocks.0.len()))
        };
        let sides = [("ours", kept(0)), ("peer", kept(1))];
        let counts = sides.map(|(side, kept)| kept.map(|kept| format!("{side} {kept}")));
        let gap = if note.is_empty() { "" } else { "; " };
        let counts: Vec<String> = counts.into_iter().flatten().collect();
        note += &format!("{gap}blocks discarded: {}", counts.join(", "));
    }
    Outcome {
        name: row.name,
        peer: row.peer,
        ours,
        theirs,
        bytes: row.bytes,
        goal: row.goal,
        note,
        is_steady,
        by_laps: row.laps.is_some(),
    }
}

impl Outcome {
    /// Ours over the peer's: of times, or of speeds where bytes move; best and median. Nothing
    /// where there is no peer, or where the probe's time was taken off and left nothing to divide
    /// by: such blocks measured noise.
    fn ratios(&self) -> Option<(f64, f64)> {
        let theirs = self.theirs.as_ref().ok().filter(|_| self.is_steady)?;
        let divisor = match self.goal {
            Goal::AtMost(_) => *theirs,
            Goal::AtLeast(_) => self.ours,
        };
        if divisor.0 <= 0.0 || divisor.1 <= 0.0 {
            return None;
        }
        let ratio = |ours: f64, theirs: f64| match self.goal {
            Goal::AtMost(_) => ours / theirs,
            Goal::AtLeast(_) => theirs / ours,
        };
        Some((ratio(self.ours.0, theirs.0), ratio(self.ours.1, theirs.1)))
    }

    /// Whether the goal is met by the best blocks or by the medians; nothing where there is no
    /// peer.
    pub fn is_met(&self) -> Option<bool> {
        let (best, median) = self.ratios()?;
        Some(match self.goal {
            Goal::AtMost(most) => best.min(median) <= most,
            Goal::AtLeast(least) => best.max(median) >= least,
        })
    }

    fn figure(&self, of: (f64, f64)) -> String {
        let one = |ns: f64| match self.bytes {
            0 => format!("{ns:.1}"),
            bytes => format!("{:.2}", bytes as f64 / ns),
        };
        let unit = if self.bytes == 0 { "ns" } else { "GB/s" };
        format!("{} ({}) {unit}", one(of.1), one(of.0))
    }
}

/// The outcomes as a table.
pub fn table(outcomes: &[Outcome]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_header(["what", "ours", "peer", "", "ratio", "goal", "verdict", "note"]);
    for outcome in outcomes {
        let (theirs, ratio) = match (&outcome.theirs, outcome.ratios()) {
            (Ok(theirs), Some((best, median))) => {
                (outcome.figure(*theirs), format!("{median:.2} ({best:.2})"))
            }
            (Ok(theirs), None) if outcome.is_steady => (outcome.figure(*theirs), "within noise".to_owned()),
            (Ok(theirs), None) => (outcome.figure(*theirs), "machine too busy".to_owned()),
            (Err(_), _) => ("peer absent".to_owned(), "-".to_owned()),
        };
        let goal = match outcome.goal {
            Goal::AtMost(most) => format!("≤ {most}"),
            Goal::AtLeast(least) => format!("≥ {least}"),
        };
        let verdict = match outcome.is_met() {
            Some(true) => "met",
            Some(false) => "missed",
            None => "-",
        };
        let note = match &outcome.theirs {
            Err(why) if outcome.note.is_empty() => why.clone(),
            Err(why) => format!("{}; {why}", outcome.note),
            Ok(_) => outcome.note.clone(),
        };
        table.add_row([
            outcome.name.clone(),
            outcome.figure(outcome.ours),
            outcome.peer.clone(),
            theirs,
            ratio,
            goal,
            verdict.to_owned(),
            note,
        ]);
    }
    for column in [1, 3, 4, 5] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
