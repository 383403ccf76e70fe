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
    programs: Vec<Program>,
    links: Vec<OwnedFd>,
    ring: Ring,
    /// The counter values that were already reported.
    reported: u64,
    cgroup: bool,
    /// Maps that only the programs access.
    _others: [Map; 5],
}

impl Bpf {
    pub(crate) fn new(options: &Options) -> Result<Self, Error> {
        Self::load(options, true)
    }

    /// Loads the programs. With `direct` they read the kernel's structs by loads if the kernel
    /// accepts that.
    fn load(options: &Options, direct: bool) -> Result<Self, Error> {
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
        let scratch = map(MapType::PerCpuArray, slot::SIZE as usize, 1, "per-CPU array map")?;

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
        // A kernel without the helpers of direct reads rejects the first of these programs.
        let mut calls = load("gaudi_exit", programs.exit());
        if programs.direct && calls.is_err() {
            programs.direct = false;
            calls = load("gaudi_exit", programs.exit());
        }
        let mut enter = load("gaudi_enter", programs.enter());
        if programs.direct && enter.is_err() {
            programs.direct = false;
            enter = load("gaudi_enter", programs.enter());
        }
        // Attach the process programs first, so that a thread is known before its calls are
        // recorded.
        let programs = [
            (c"sched_process_fork", load("gaudi_fork", programs.fork())?),
            (c"sched_process_exec", load("gaudi_exec", programs.exec())?),
            (
                c"sched_process_exit",
                load("gaudi_exit_task", programs.exit_task())?,
            ),
            (c"sys_exit", calls?),
            (c"sys_enter", enter?),
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
        let counted: u64 = counters
            .chunks_exact(8)
            .map(|word| word.try_into().map_or(0, u64::from_ne_bytes))
            .sum();
        let skipped: u64 = self.programs.iter().map(Program::skipped).sum();
        let lost = counted.saturating_add(skipped);
        recorder.lose(lost.saturating_sub(self.reported));
        self.reported = lost;
    }

    /// Detaches the programs. Records already in the ring can still be read.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verifier_accepts_both_kinds_of_reads() {
        for direct in [true, false] {
            match Bpf::load(&Options::default(), direct) {
                Ok(_) => {}
                Err(error)
                    if matches!(
                        error.kind,
                        crate::ErrorKind::BpfRefused(BpfRefusal::Permission { .. })
                    ) =>
                {
                    println!("skipped: root: {error}");
                }
                Err(error) => panic!("direct {direct}: {error}"),
            }
        }
    }
}
