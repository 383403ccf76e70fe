//! Tier B: eBPF programs on the system call tracepoints, loaded through bpf(2).
//!
//! Raw tracepoints only: every kernel with a ring buffer map (5.8) has them (4.17), and unlike
//! plain tracepoints they need no tracefs.

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

use nix::errno::Errno;

use crate::bpf::btf::{Btf, Offsets};
use crate::bpf::kernel::{Map, MapType, Program, Rejected};
use crate::bpf::program::{COUNTERS, Maps, Programs};
use crate::bpf::ring::Ring;
use crate::bpf::slot::Record;
use crate::calls::Call;
use crate::error::{BpfRefusal, Error};
use crate::options::Options;
use crate::process;
use crate::recorder::{Finished, Recorder};

/// `PROC_PID_INIT_INO` (linux/proc_ns.h): the inode of the host's pid namespace.
const HOST_PID_NAMESPACE: u64 = 0xefff_fffc;
/// The most threads that are followed at a time.
const MAX_THREADS: u32 = 1 << 15;
/// The smallest ring in bytes: it holds several of the largest records.
const MIN_RING: u32 = 1 << 16;
/// The largest (`RINGBUF_MAX_DATA_SZ` is above).
const MAX_RING: u32 = 1 << 30;
/// Records that are read before the caller gets their events.
const BATCH: usize = 1024;

/// The loaded programs, and what they write to.
#[derive(Debug)]
pub(crate) struct Bpf {
    threads: Map,
    counters: Map,
    programs: Vec<Program>,
    links: Vec<OwnedFd>,
    ring: Ring,
    /// What of the counters was reported.
    reported: u64,
    cgroup: bool,
    /// Maps that only the programs use.
    _others: [Map; 5],
}

impl Bpf {
    pub(crate) fn new(options: &Options) -> Result<Self, Error> {
        if let Ok(namespace) = fs::metadata("/proc/self/ns/pid") {
            if namespace.ino() != HOST_PID_NAMESPACE {
                return Err(Error::refused(BpfRefusal::PidNamespace));
            }
        }
        let size = options.ring_bytes.clamp(MIN_RING, MAX_RING).next_power_of_two();
        let map =
            |kind, value, entries, what| Map::new(kind, value, entries).map_err(|errno| refused(errno, what));
        // The ring first: a kernel without it is the likeliest lack.
        let ring = map(MapType::Ringbuf, 0, size, "ring buffer map (Linux 5.8)")?;
        let threads = map(MapType::Hash, 8, MAX_THREADS, "hash map")?;
        let mappers = map(MapType::Hash, 8, MAX_THREADS, "hash map")?;
        let slots = map(
            MapType::Hash,
            slot::SIZE as usize,
            options.threads.max(1),
            "map of that many threads",
        )?;
        let empty = map(MapType::Array, slot::SIZE as usize, 1, "array map")?;
        let counters = map(MapType::Array, COUNTERS, 1, "array map")?;
        let scratch = map(
            MapType::PerCpuArray,
            slot::SIZE as usize,
            1,
            "array map per processor",
        )?;

        let types = fs::read("/sys/kernel/btf/vmlinux");
        let types =
            types.map_err(|_| Error::refused(BpfRefusal::NoTypes("its structs (CONFIG_DEBUG_INFO_BTF)")))?;
        let types = Btf::parse(&types)
            .ok_or("its structs in a known form")
            .and_then(|btf| Offsets::of(&btf))
            .map_err(|what| Error::refused(BpfRefusal::NoTypes(what)))?;
        let cgroup = options.cgroup.as_deref().map(cgroup).transpose()?;
        let programs = Programs {
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
            files: options.files,
            cgroup,
            pointers: crate::pointers::table(),
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
        // Processes are followed before their calls are recorded.
        let programs = [
            (c"sched_process_fork", load("gaudi_fork", programs.fork())?),
            (c"sched_process_exec", load("gaudi_exec", programs.exec())?),
            (
                c"sched_process_exit",
                load("gaudi_exit_task", programs.exit_task())?,
            ),
            (c"sys_exit", load("gaudi_exit", programs.exit())?),
            (c"sys_enter", load("gaudi_enter", programs.enter())?),
        ];
        let links = programs
            .iter()
            .map(|(tracepoint, program)| program.attach(tracepoint))
            .collect::<Result<_, _>>()
            .map_err(|errno| refused(errno, "raw tracepoints (Linux 4.17)"))?;
        let mapped =
            Ring::new(&ring, size as usize).map_err(|errno| Error::system("mmap(2) of the ring", errno))?;
        Ok(Self {
            threads,
            counters,
            programs: programs.into_iter().map(|(_, program)| program).collect(),
            links,
            ring: mapped,
            reported: 0,
            cgroup: cgroup.is_some(),
            _others: [mappers, slots, empty, scratch, ring],
        })
    }

    /// Whether it follows a cgroup, which has no end.
    pub(crate) fn follows_cgroup(&self) -> bool {
        self.cgroup
    }

    /// Follows one thread, and every thread that it makes from now on.
    pub(crate) fn follow(&self, tid: u32) -> Result<(), Error> {
        self.threads
            .set(tid, &1_u64.to_ne_bytes())
            .map_err(|errno| Error::system("bpf(2)", errno))
    }

    /// Follows all threads of a process.
    pub(crate) fn follow_process(&self, pid: u32, recorder: &mut Recorder) -> Result<(), Error> {
        let program = process::program(pid);
        // The address of the thread's table is not known before its first call, so each process
        // gets a number of its own that no kernel address has.
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

    /// Reads some records. Returns how many there were.
    pub(crate) fn read(&mut self, recorder: &mut Recorder) -> usize {
        self.ring.drain(BATCH, |bytes| take(recorder, Record(bytes)))
    }

    /// Reports what was lost since the last time.
    pub(crate) fn count_lost(&mut self, recorder: &mut Recorder) {
        // The map exists as long as its descriptor, so the lookup cannot fail.
        let counters: [u8; COUNTERS] = self.counters.get(0).unwrap_or([0; COUNTERS]);
        let counted: u64 = counters
            .chunks_exact(8)
            .map(|word| word.try_into().map_or(0, u64::from_ne_bytes))
            .sum();
        let skipped: u64 = self.programs.iter().map(Program::skipped).sum();
        let lost = counted.saturating_add(skipped);
        recorder.lose(lost.saturating_sub(self.reported));
        self.reported = lost;
    }

    /// Removes the programs from the tracepoints; what they wrote can still be read.
    pub(crate) fn detach(&mut self) {
        self.links.clear();
    }
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

/// The id of a cgroup, and its level below the root of cgroup2.
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

/// Makes events of a record.
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
                // What lies beyond the bitmap is taken as open: its next use shows the truth.
                byte.is_none_or(|byte| byte >> (fd % 8) & 1 != 0)
            };
            recorder.executed(time_ns, pid, old_tid as u32, table, record.path(), is_open);
        }
        slot::EXITED => recorder.exited(time_ns, pid, tid, record.word(slot::RESULT) as u32),
        kind => match Call::from_kind(kind) {
            Some(Call::Ioctl) => recorder.ioctl(table, record.file().open, record.ioctl()),
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
            None => recorder.lose(1),
        },
    }
}
