//! Blocks of work by several threads at once.
//!
//! Each thread runs on its own processor and measures its own time, starting when all threads are
//! ready, so that a block does not contain the start of a thread. A disturbed block is marked,
//! because other load affected it.

#![expect(
    unsafe_code,
    reason = "sched_setaffinity(2) and sched_getaffinity(2) fill and read a set"
)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::resource::{UsageWho, getrusage};

/// The time of one block.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lap {
    /// The time of the slowest thread.
    pub time: Duration,
    /// A thread lost its processor, or the threads did not run at the same time.
    pub disturbed: bool,
}

impl Lap {
    /// A block in which threads lost their processors `switches` times, and `together` of `whole`
    /// was the time in which all of them ran.
    pub fn new(time: Duration, switches: u64, together: Duration, whole: Duration) -> Self {
        Self {
            time,
            disturbed: switches > 0 || together * 10 < whole * 9,
        }
    }
}

fn empty() -> libc::cpu_set_t {
    // SAFETY: a set of zeros is the empty set.
    unsafe { std::mem::zeroed() }
}

/// The processors that this process may run on.
pub fn processors() -> Vec<usize> {
    let mut set = empty();
    // SAFETY: the set is exclusively borrowed; its size is the second argument.
    let answer = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    if answer != 0 {
        return vec![0];
    }
    let most = 8 * size_of_val(&set);
    // SAFETY: the number is below the number of the set's bits.
    (0..most)
        .filter(|&number| unsafe { libc::CPU_ISSET(number, &set) })
        .collect()
}

/// Binds this thread to a processor. Returns false if the kernel refuses.
fn pin(processor: usize) -> bool {
    let mut set = empty();
    if processor >= 8 * size_of_val(&set) {
        return false;
    }
    // SAFETY: the number is below the number of the set's bits.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: the set is borrowed; its size is the second argument.
    let answer = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    answer == 0
}

/// How often the scheduler took the processor from this thread.
fn switches() -> u64 {
    let usage = getrusage(UsageWho::RUSAGE_THREAD);
    usage.map_or(0, |usage| usage.involuntary_context_switches().unsigned_abs())
}

/// One thread's part of a block.
struct Part<T> {
    answer: T,
    start: Instant,
    end: Instant,
    switches: u64,
}

/// Runs `work` in one thread for each of the processors, with the thread's number. Returns their
/// results and the block's time.
pub fn together<T: Send>(processors: &[usize], work: impl Fn(usize) -> T + Sync) -> (Vec<T>, Lap) {
    let ready = AtomicUsize::new(0);
    let part = |thread: usize, processor: usize| {
        let pinned = pin(processor);
        ready.fetch_add(1, Ordering::AcqRel);
        while ready.load(Ordering::Acquire) < processors.len() {
            std::thread::yield_now();
        }
        let before = switches();
        let start = Instant::now();
        let answer = work(thread);
        let end = Instant::now();
        Part {
            answer,
            start,
            end,
            switches: switches() - before + u64::from(!pinned),
        }
    };
    let part = &part;
    let parts: Vec<Part<T>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(processors)
            .map(|(thread, &processor)| scope.spawn(move || part(thread, processor)))
            .collect();
        let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.filter_map(Result::ok).collect()
    });
    let lap = lap(&parts);
    (parts.into_iter().map(|part| part.answer).collect(), lap)
}

fn lap<T>(parts: &[Part<T>]) -> Lap {
    let times = || parts.iter().map(|part| (part.start, part.end));
    let (Some(first), Some(last)) = (times().map(|at| at.0).min(), times().map(|at| at.1).max()) else {
        return Lap::default();
    };
    let all_run = times().map(|at| at.0).max().unwrap_or(first);
    let one_ends = times().map(|at| at.1).min().unwrap_or(last);
    Lap::new(
        times().map(|at| at.1 - at.0).max().unwrap_or_default(),
        parts.iter().map(|part| part.switches).sum(),
        one_ends.saturating_duration_since(all_run),
        last - first,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn switches_or_little_overlap_disturb_a_lap() {
        assert!(!Lap::new(10 * MS, 0, 10 * MS, 11 * MS).disturbed);
        assert!(Lap::new(10 * MS, 1, 10 * MS, 11 * MS).disturbed);
        assert!(Lap::new(10 * MS, 0, 9 * MS, 11 * MS).disturbed);
        assert!(Lap::new(10 * MS, 0, Duration::ZERO, 20 * MS).disturbed);
    }

    #[test]
    fn lap_excludes_thread_start() {
        let processors: Vec<usize> = processors().into_iter().cycle().take(2).collect();
        let (answers, lap) = together(&processors, |thread| thread);
        assert_eq!(answers, [0, 1]);
        // Two threads that do nothing: a lap that includes their start takes tens of microseconds.
        // A busy machine may preempt one block, but not all.
        let shortest = (0..100).map(|_| together(&processors, |_| ()).1.time).min();
        assert!(shortest < Some(Duration::from_micros(5)), "{shortest:?}, {lap:?}");
    }

    #[test]
    fn threads_on_one_processor_are_disturbed() {
        let one = processors()[0];
        let busy = |_| {
            let end = Instant::now() + 50 * MS;
            while Instant::now() < end {
                std::hint::spin_loop();
            }
        };
        assert!(together(&[one, one], busy).1.disturbed);
    }
}
