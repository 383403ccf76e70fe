//! Tier B: eBPF programs on the system call tracepoints, loaded through bpf(2).
//!
//! Uses only raw tracepoints: every kernel with a ring buffer map (5.8) supports them (4.17), and
//! unlike plain tracepoints they do not need tracefs.

mod asm;
mod btf;
mod kernel;
mod program;
mod ring;
mod slot;

use std::collections::HashSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gaudi_capture::record::{Losses, LostCause};
use nix::errno::Errno;

use crate::bpf::btf::{Btf, Offsets};
use crate::bpf::kernel::{Map, MapType, Program, Rejected};
use crate::bpf::program::{
    COUNTERS, Copy, LOST_EXIT, LOST_RING, LOST_SLOT, LOST_TASK, Maps, Programs, SCRATCHES,
};
use crate::bpf::ring::Ring;
use crate::bpf::slot::Record;
use crate::calls::Call;
use crate::error::{BpfRefusal, Error};
use crate::options::Options;
use crate::process;
use crate::recorder::{Finished, Recorder};

/// `PROC_PID_INIT_INO` (linux/proc_ns.h): the inode of the host's pid namespace.
const HOST_PID_NAMESPACE: u64 = 0xefff_fffc;
/// Maximum number of threads that are traced at the same time.
const MAX_THREADS: u32 = 1 << 15;
/// Minimum size of the ring in bytes: it holds several records of maximum size.
const MIN_RING: u32 = 1 << 16;
/// Maximum size of the ring in bytes (`RINGBUF_MAX_DATA_SZ` is larger).
const MAX_RING: u32 = 1 << 30;
/// Maximum number of records read before their events are passed to the caller.
pub(crate) const BATCH: usize = 1024;

/// The loaded programs and their maps.
#[derive(Debug)]
pub(crate) struct Bpf {
    threads: Map,
    counters: Map,
    /// The programs of each tracepoint but sys_exit, whose losses the programs of sys_enter count.
    counted: [Vec<Program>; 4],
    _exits: Vec<Program>,
    links: Vec<OwnedFd>,
    ring: Ring,
    /// The losses that were already reported.
    reported: Losses,
    cgroup: bool,
    /// Maps that only the programs access.
    _others: [Map; 5],
}

impl Bpf {
    pub(crate) fn new(options: &Options) -> Result<Self, Error> {
        let copies: &[Copy] = match preempts_programs() {
            true => &[Copy::First, Copy::Second],
            false => &[Copy::First],
        };
        Self::load(options, true, copies)
    }

    /// Loads the programs. With `direct` they read the kernel's structs by loads if the kernel
    /// accepts that. The programs of system calls and of fork are loaded in each of `copies`.
    fn load(options: &Options, direct: bool, copies: &[Copy]) -> Result<Self, Error> {
        if let Ok(namespace) = fs::metadata("/proc/self/ns/pid") {
            if namespace.ino() != HOST_PID_NAMESPACE {
                return Err(Error::refused(BpfRefusal::PidNamespace));
            }
        }
        let size = options.ring_bytes.clamp(MIN_RING, MAX_RING).next_power_of_two();
        let map =
            |kind, value, entries, what| Map::new(kind, value, entries).map_err(|errno| refused(errno, what));
        // Create the ring first: it is the feature most likely to be missing.
        let ring = map(MapType::Ringbuf, 0, size, "ring buffer map (Linux 5.8)")?;
        let threads = map(MapType::Hash, 8, MAX_THREADS, "hash map")?;
        let mappers = map(MapType::Hash, 8, MAX_THREADS, "hash map")?;
        let slots = map(
            MapType::Hash,
            slot::SIZE as usize,
            options.threads.max(1),
            "hash map with that many entries",
        )?;
        let empty = map(MapType::Array, slot::SIZE as usize, 1, "array map")?;
        let counters = map(MapType::Array, COUNTERS, 1, "array map")?;
        let scratch = map(
            MapType::PerCpuArray,
            slot::SIZE as usize,
            SCRATCHES,
            "per-CPU array map",
        )?;

        let types = fs::read("/sys/kernel/btf/vmlinux");
        let types =
            types.map_err(|_| Error::refused(BpfRefusal::NoTypes("its structs (CONFIG_DEBUG_INFO_BTF)")))?;
        let types = Btf::parse(&types)
            .ok_or("its structs in a known form")
            .and_then(|btf| Offsets::of(&btf))
            .map_err(|what| Error::refused(BpfRefusal::NoTypes(what)))?;
        let cgroup = options.cgroup.as_deref().map(cgroup).transpose()?;
        let mut programs = Programs {
            maps: Maps {
                ring: ring.number(),
                threads: threads.number(),
                mappers: mappers.number(),
                slots: slots.number(),
                empty: empty.number(),
                counters: counters.number(),
                scratch: scratch.number(),
            },
            offsets: types,
            types: options.types.clone(),
            devices: options.devices.clone(),
            rdma: options.rdma.clone(),
            files: options.files,
            cgroup,
            pointers: gaudi_capture::pointers::table(),
            direct,
        };
        let load = |name, code: Vec<u8>| {
            Program::load(&code, name).map_err(|Rejected { errno, log }| match errno {
                Errno::EPERM => refused(errno, name),
                _ => Error::refused(BpfRefusal::Rejected {
                    program: name,
                    log: format!("{errno}: {log}"),
                }),
            })
        };
        let load_calls = |programs: &Programs| -> Result<(Vec<_>, Vec<_>), Error> {
            let exits = copies.iter().map(|_| load("gaudi_exit", programs.exit()));
            let enters = copies
                .iter()
                .map(|&copy| load("gaudi_enter", programs.enter(copy)));
            Ok((
                exits.collect::<Result<_, _>>()?,
                enters.collect::<Result<_, _>>()?,
            ))
        };
        let mut calls = load_calls(&programs);
        if programs.direct && calls.is_err() {
            // The kernel lacks the helpers of direct reads.
            programs.direct = false;
            calls = load_calls(&programs);
        }
        let (exits, enters) = calls?;
        let forks = copies.iter().map(|&copy| load("gaudi_fork", programs.fork(copy)));
        // Attach the process programs first, so that a thread is known before its calls are
        // recorded.
        let processes = [
            (c"sched_process_fork", forks.collect::<Result<_, _>>()?),
            (c"sched_process_exec", vec![load("gaudi_exec", programs.exec())?]),
            (
                c"sched_process_exit",
                vec![load("gaudi_exit_task", programs.exit_task())?],
            ),
        ];
        let mut links = Vec::new();
        let calls = [(c"sys_exit", &exits), (c"sys_enter", &enters)];
        let all = processes.iter().map(|(name, programs)| (*name, programs));
        for (tracepoint, programs) in all.chain(calls) {
            for program in programs {
                let link = program.attach(tracepoint);
                links.push(link.map_err(|errno| refused(errno, "raw tracepoints (Linux 4.17)"))?);
            }
        }
        let [forks, execs, task_exits] = processes.map(|(_, programs)| programs);
        let mapped =
            Ring::new(&ring, size as usize).map_err(|errno| Error::system("mmap(2) of the ring", errno))?;
        Ok(Self {
            threads,
            counters,
            counted: [forks, execs, task_exits, enters],
            _exits: exits,
            links,
            ring: mapped,
            reported: Losses::default(),
            cgroup: cgroup.is_some(),
            _others: [mappers, slots, empty, scratch, ring],
        })
    }

    /// Returns whether a cgroup is traced. Such a run does not end by itself.
    pub(crate) fn follows_cgroup(&self) -> bool {
        self.cgroup
    }

    /// Traces one thread, and every thread that it creates from now on.
    pub(crate) fn follow(&self, tid: u32) -> Result<(), Error> {
        self.threads
            .set(tid, &1_u64.to_ne_bytes())
            .map_err(|errno| Error::system("bpf(2)", errno))
    }

    /// Traces all threads of a process.
    pub(crate) fn follow_process(&self, pid: u32, recorder: &mut Recorder) -> Result<(), Error> {
        let program = process::program(pid);
        // The address of the process's `files_struct` is unknown until its first call. Use the pid
        // as the table id until then: it is not a kernel address.
        let table = u64::from(pid);
        let mut seen = HashSet::new();
        loop {
            let new: Vec<u32> = process::threads(pid)
                .into_iter()
                .filter(|&tid| seen.insert(tid))
                .collect();
            if new.is_empty() {
                break;
            }
            for tid in new {
                self.follow(tid)?;
                if !recorder.is_known(tid) {
                    recorder.found(pid, tid, table, Some(&program));
                }
            }
        }
        if seen.is_empty() {
            return Err(Error::new(
                crate::ErrorKind::Attach { pid },
                std::io::Error::from(Errno::ESRCH),
            ));
        }
        Ok(())
    }

    /// Reads a batch of records. Returns their number.
    pub(crate) fn read(&mut self, recorder: &mut Recorder) -> usize {
        self.ring.drain(BATCH, |bytes| take(recorder, Record(bytes)))
    }

    /// Reports events lost since the last call.
    pub(crate) fn count_lost(&mut self, recorder: &mut Recorder) {
        // The map exists while its descriptor is open, so the lookup cannot fail.
        let counters: [u8; COUNTERS] = self.counters.get(0).unwrap_or([0; COUNTERS]);
        let counter = |at: i16| {
            let bytes = counters[at as usize..].first_chunk();
            bytes.copied().map_or(0, u64::from_ne_bytes)
        };
        let mut lost = Losses::default();
        lost.add(LostCause::BufferFull, counter(LOST_RING));
        lost.add(LostCause::TooManyThreads, counter(LOST_SLOT));
        lost.add(LostCause::TooManyThreads, counter(LOST_TASK));
        lost.add(LostCause::Skipped, counter(LOST_EXIT));
        for programs in &self.counted {
            // An event is lost only if the kernel skipped every program of its tracepoint.
            let skipped = programs.iter().map(Program::skipped).min();
            lost.add(LostCause::Skipped, skipped.unwrap_or(0));
        }
        for cause in LostCause::ALL {
            recorder.lose(cause, lost.of(cause).saturating_sub(self.reported.of(cause)));
        }
        self.reported = lost;
    }

    /// Detaches the programs. Records already in the ring can still be read.
    pub(crate) fn detach(&mut self) {
        // Entries first: the next entry would count a call without its exit as lost.
        while self.links.pop().is_some() {}
    }
}

/// Returns whether a program at a tracepoint can be preempted: since Linux 7.0 (`__bpf_trace_run`
/// of kernel/trace/bpf_trace.c disables migration only).
///
/// The kernel skips a program that is already running on the same CPU, so a thread that preempts
/// another inside a program would lose its call. A second copy of the program has its own state.
fn preempts_programs() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let major = release
        .split('.')
        .next()
        .and_then(|major| major.parse::<u32>().ok());
    major.is_some_and(|major| major >= 7)
}

fn refused(errno: Errno, what: &'static str) -> Error {
    match errno {
        Errno::EPERM | Errno::EACCES => {
            let value = fs::read_to_string("/proc/sys/kernel/unprivileged_bpf_disabled");
            let value = value.ok().and_then(|text| text.trim().parse().ok());
            Error::refused(BpfRefusal::Permission {
                unprivileged_bpf_disabled: value,
            })
        }
        Errno::EINVAL | Errno::ENOSYS | Errno::ENOENT | Errno::E2BIG => {
            Error::refused(BpfRefusal::NoKernelSupport(what))
        }
        _ => Error::system("bpf(2)", errno),
    }
}

/// Returns the id of a cgroup and its depth below the root of cgroup2.
fn cgroup(directory: &Path) -> Result<(u64, i32), Error> {
    let no_cgroup = |_| Error::refused(BpfRefusal::NoCgroup);
    let directory = directory.canonicalize().map_err(no_cgroup)?;
    let is_cgroup =
        |path: &Path| path.join("cgroup.procs").exists() && path.join("cgroup.controllers").exists();
    if !is_cgroup(&directory) {
        return Err(Error::refused(BpfRefusal::NoCgroup));
    }
    let id = fs::metadata(&directory).map_err(no_cgroup)?.ino();
    let level = directory
        .ancestors()
        .skip(1)
        .take_while(|path| is_cgroup(path))
        .count();
    Ok((id, i32::try_from(level).unwrap_or(i32::MAX)))
}

/// Converts a record to events.
fn take(recorder: &mut Recorder, record: Record<'_>) {
    let (pid, tid) = (record.half(slot::PID), record.half(slot::TID));
    let (table, time_ns) = (record.word(slot::TABLE), record.word(slot::ENTER));
    match record.kind() {
        slot::STARTED => {
            let [parent_pid, parent_tid, parent_table, ..] = record.arguments();
            let parent = (parent_pid as u32, parent_tid as u32);
            recorder.started(time_ns, parent, parent_table, pid, tid, table, record.path());
        }
        slot::EXECUTED => {
            let [old_tid, ..] = record.arguments();
            let bitmap = record.data(slot::MAX_PATH as usize, record.half(slot::OUTPUT) as usize);
            let is_open = |fd: i32| {
                let byte = usize::try_from(fd / 8).ok().and_then(|at| bitmap.get(at));
                // Descriptors beyond the bitmap are assumed open; their next use corrects it.
                byte.is_none_or(|byte| byte >> (fd % 8) & 1 != 0)
            };
            recorder.executed(time_ns, pid, old_tid as u32, table, record.path(), is_open);
        }
        slot::EXITED => recorder.exited(time_ns, pid, tid, record.word(slot::RESULT) as u32),
        kind => match Call::from_kind(kind) {
            Some(Call::Ioctl) => recorder.ioctl(table, record.file().open, record.ioctl()),
            Some(Call::Write) => recorder.write(table, record.file().open, record.write()),
            Some(call) => {
                let arguments = record.arguments();
                recorder.call(&Finished {
                    call,
                    pid,
                    tid,
                    table,
                    time_ns,
                    duration_ns: record.duration_ns(),
                    arguments,
                    result: record.result(),
                    file: record.file(),
                    path: record.path(),
                    control: record.control(),
                    open_flags: call.open_flags(arguments),
                });
            }
            // The programs write no other kind.
            None => recorder.lose(LostCause::Unknown, 1),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::IsTerminal;
    use std::thread;

    use gaudi_capture::record::{Event, ProcessChange, ProcessRecord};
    use nix::unistd::gettid;

    use super::*;

    const BOTH: [Copy; 2] = [Copy::First, Copy::Second];

    /// Loads the programs; `None`, which is reported, without the permission.
    fn loaded(options: &Options, direct: bool, copies: &[Copy]) -> Option<Bpf> {
        match Bpf::load(options, direct, copies) {
            Ok(bpf) => Some(bpf),
            Err(error) => {
                let refusal = &error.kind;
                assert!(
                    matches!(
                        refusal,
                        crate::ErrorKind::BpfRefused(BpfRefusal::Permission { .. })
                    ),
                    "direct {direct}, copies {copies:?}: {error}"
                );
                gaudi_harness::skip(&format!("root: {error}"));
                None
            }
        }
    }

    #[test]
    fn verifier_accepts_all_programs() {
        for direct in [true, false] {
            drop(loaded(&Options::default(), direct, &BOTH));
        }
    }

    #[test]
    fn rdma_commands_have_their_responses() {
        use std::io::Write as _;
        let null = crate::DeviceMatch {
            major: 1,
            minor: Some(3),
        };
        let options = Options {
            rdma: vec![null],
            ..Options::default()
        };
        for direct in [true, false] {
            let Some(mut bpf) = loaded(&options, direct, &BOTH) else {
                return;
            };
            let mut recorder = Recorder::new(&options);
            let mut file = File::options().write(true).open("/dev/null").expect("it opens");
            let response = [7_u8, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16];
            let address = response.as_ptr().expose_provenance() as u64;
            let head = |command: u32, out: u8| {
                let words = [4, 0, out, 0];
                [&command.to_le_bytes()[..], &words, &address.to_le_bytes()].concat()
            };
            // ALLOC_PD with 4 bytes, an extended command with 16, DEALLOC_PD without a response.
            let mut extended = head(0x8000_0032, 1);
            extended.extend([0, 0, 1, 0, 0, 0, 0, 0]);
            let commands = [head(3, 1), extended, head(4, 0)];
            bpf.follow(gettid().as_raw().unsigned_abs())
                .expect("it is followed");
            for command in &commands {
                file.write_all(command).expect("it is written");
            }
            bpf.count_lost(&mut recorder);
            bpf.detach();
            while bpf.read(&mut recorder) > 0 {}
            let writes = recorder.events.iter().filter_map(|event| match event {
                Event::Write(write) => Some(write),
                _ => None,
            });
            let writes = writes.collect::<Vec<_>>();
            let lengths = [Some(4), Some(16), None];
            assert_eq!(writes.len(), commands.len(), "direct {direct}: {writes:?}");
            for ((write, command), length) in writes.iter().zip(&commands).zip(lengths) {
                assert_eq!(write.result, command.len() as i64);
                assert_eq!(write.memory[0].bytes, *command);
                let answer = write.memory.get(1).map(|piece| piece.bytes.as_slice());
                assert_eq!(answer, length.map(|length| &response[..length]), "{write:?}");
            }
            assert_eq!(recorder.lost.total(), 0);
        }
    }

    /// The second copies alone stand for a kernel that always skips the first ones.
    #[test]
    fn each_copy_records_every_call_once() {
        const CALLS: usize = 100;
        for copies in [&BOTH[..1], &BOTH[1..], &BOTH[..]] {
            let options = Options {
                types: vec![b'T'],
                ..Options::default()
            };
            let Some(mut bpf) = loaded(&options, true, copies) else {
                return;
            };
            let mut recorder = Recorder::new(&options);
            let null = File::open("/dev/null").expect("it opens");
            let calls = || {
                for _ in 0..CALLS {
                    // TCGETS, which /dev/null refuses.
                    assert!(!null.is_terminal());
                }
            };
            bpf.follow(gettid().as_raw().unsigned_abs())
                .expect("it is followed");
            calls();
            thread::scope(|scope| scope.spawn(calls).join()).expect("the thread ends");
            bpf.detach();
            while bpf.read(&mut recorder) > 0 {}
            bpf.count_lost(&mut recorder);
            let count = |is_counted: fn(&Event) -> bool| {
                recorder.events.iter().filter(|event| is_counted(event)).count()
            };
            let started = |event: &Event| {
                matches!(
                    event,
                    Event::Process(ProcessRecord {
                        change: ProcessChange::Start { .. },
                        ..
                    })
                )
            };
            assert_eq!(
                (
                    count(|event| matches!(event, Event::Ioctl(_))),
                    count(started),
                    recorder.lost.total()
                ),
                (2 * CALLS, 1, 0),
                "{copies:?}"
            );
        }
    }
}
