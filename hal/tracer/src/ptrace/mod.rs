//! Tier C: ptrace(2). Spawned programs get a seccomp filter, so that only calls that may be
//! recorded stop. Processes that were attached to stop at every system call.

mod memory;
mod seccomp;
mod stops;
mod wake;

use std::collections::{HashMap, HashSet};
use std::process::{Child, Command};

use gaudi_capture::record::{IoctlRecord, Memory, Moment};
use nix::errno::Errno;
use nix::libc;

use crate::calls::{AUDIT_ARCH, COMPAT_IOCTL, Call, DUPLICATES, MAP_ANONYMOUS, X32_IOCTL};
use crate::error::{Error, ErrorKind};
use crate::options::Options;
use crate::process::{self, FileKind};
use crate::ptrace::memory::{Budget, Buffers};
use crate::ptrace::seccomp::Filter;
use crate::ptrace::stops::{Stop, Syscall};
use crate::recorder::{Finished, Recorder, TableId, is_errno};
use gaudi_capture::pointers::{Row, argument_size, table};

pub(crate) use crate::ptrace::wake::Waiter;

/// Maximum length of a recorded path (`PATH_MAX`), and of a message's control data.
const MAX_PATH: usize = 4096;
const MAX_CONTROL: usize = 1 << 16;

/// A call between its entry and its exit.
#[derive(Debug)]
struct Entered {
    call: Call,
    compat: bool,
    time_ns: u64,
    arguments: [u64; 6],
    file: FileKind,
    /// The bytes read at entry: the argument of an ioctl, or the path of an open.
    input: Vec<u8>,
    memory: Vec<Memory>,
    budget: Budget,
}

#[derive(Debug)]
struct Tracee {
    pid: u32,
    table: TableId,
    entered: Option<Entered>,
}

/// What the event loop does with a stopped thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Record,
    /// Detaches from the processes that were attached to.
    Detach,
    /// Continues to trace without recording. A program with the filter cannot run without a tracer.
    Follow,
}

#[derive(Debug)]
pub(crate) struct Ptrace {
    types: Vec<u8>,
    files: bool,
    command_buffers: Option<u64>,
    filtered: bool,
    mode: Mode,
    pointers: Vec<Row>,
    tracees: HashMap<u32, Tracee>,
    /// New threads that stopped before their creator reported them, with the creator's process. In
    /// `Mode::Detach`, this process no longer traces them.
    early: HashMap<u32, u32>,
    buffers: HashMap<u32, Buffers>,
    tables: TableId,
    /// The spawned process, and its status after it exited.
    root: Option<u32>,
    pub(crate) status: Option<u32>,
    pub(crate) not_followed: u64,
}

impl Ptrace {
    fn new(options: &Options, filtered: bool) -> Result<Self, Error> {
        if options.cgroup.is_some() {
            return Err(Error::new(ErrorKind::Unsupported("a cgroup"), None));
        }
        Ok(Self {
            types: options.types.clone(),
            files: options.files,
            command_buffers: options.command_buffers,
            filtered,
            mode: Mode::Record,
            pointers: table(),
            tracees: HashMap::new(),
            early: HashMap::new(),
            buffers: HashMap::new(),
            tables: 0,
            root: None,
            status: None,
            not_followed: 0,
        })
    }

    pub(crate) fn spawn(
        command: Command,
        options: &Options,
        recorder: &mut Recorder,
    ) -> Result<(Self, Child), Error> {
        let mut this = Self::new(options, true)?;
        let filter = Filter::new(options);
        let child = crate::spawn::spawn(
            command,
            move || filter.install(),
            |pid| {
                stops::seize(pid, true).map_err(|errno| refused(pid, errno))?;
                this.add(pid, pid, recorder, false);
                this.root = Some(pid);
                Ok(())
            },
        )?;
        Ok((this, child))
    }

    pub(crate) fn attach(pids: &[u32], options: &Options, recorder: &mut Recorder) -> Result<Self, Error> {
        let mut this = Self::new(options, false)?;
        for &pid in pids {
            if let Err(error) = this.attach_process(pid, recorder) {
                // The kernel would detach the processes attached so far only when this thread
                // exits.
                this.mode = Mode::Detach;
                this.release(recorder);
                return Err(error);
            }
        }
        Ok(this)
    }

    fn attach_process(&mut self, pid: u32, recorder: &mut Recorder) -> Result<(), Error> {
        let mut tried = HashSet::new();
        let mut last = Errno::ESRCH;
        let mut attached = false;
        // Repeat: a thread can create others until it is seized.
        loop {
            let new: Vec<u32> = process::threads(pid)
                .into_iter()
                .filter(|&tid| tried.insert(tid))
                .collect();
            if new.is_empty() {
                break;
            }
            for tid in new {
                if self.tracees.contains_key(&tid) {
                    attached = true;
                    continue;
                }
                let seized = stops::seize(tid, false).and_then(|()| stops::interrupt(tid));
                match seized {
                    Ok(()) => {
                        attached = true;
                        self.add(pid, tid, recorder, true);
                    }
                    // The thread exited, or a traced thread created it.
                    Err(Errno::ESRCH) => {}
                    Err(errno) if process::is_alive(tid) && !attached => last = errno,
                    Err(_) => self.not_followed += 1,
                }
            }
        }
        if attached { Ok(()) } else { Err(refused(pid, last)) }
    }

    fn new_table(&mut self) -> TableId {
        self.tables += 1;
        self.tables
    }

    /// Adds a thread that was not created by a traced thread.
    fn add(&mut self, pid: u32, tid: u32, recorder: &mut Recorder, ran_before: bool) {
        let same = self
            .tracees
            .iter()
            .find(|&(&other, tracee)| stops::share_files(other, tid).unwrap_or(tracee.pid == pid));
        let table = same.map(|(_, tracee)| tracee.table);
        let table = table.unwrap_or_else(|| self.new_table());
        self.tracees.insert(
            tid,
            Tracee {
                pid,
                table,
                entered: None,
            },
        );
        let program = ran_before.then(|| process::program(pid));
        recorder.found(pid, tid, table, program.as_deref());
    }

    /// Traces until no thread is left. `next` is called after every stop, and returns whether to
    /// continue recording.
    pub(crate) fn run(
        &mut self,
        recorder: &mut Recorder,
        mut next: impl FnMut(&mut Recorder) -> bool,
    ) -> Result<(), Error> {
        loop {
            if !next(recorder) && self.mode == Mode::Record {
                self.stop();
            }
            if self.is_done() {
                return Ok(());
            }
            match stops::wait() {
                Ok((tid, stop)) => self.stopped(tid, stop, recorder),
                Err(Errno::EINTR) => {}
                Err(Errno::ECHILD) => return Ok(()),
                Err(errno) => return Err(Error::system("waitpid(2)", errno)),
            }
        }
    }

    fn stop(&mut self) {
        self.mode = if self.filtered { Mode::Follow } else { Mode::Detach };
        if self.mode == Mode::Detach {
            for &tid in self.tracees.keys() {
                // The thread stops soon, or waitpid(2) reports its exit.
                stops::interrupt(tid).unwrap_or(());
            }
            for &tid in self.early.keys() {
                // ESRCH: the thread was killed; waitpid(2) reports it.
                stops::detach(tid, 0).unwrap_or(());
            }
        }
    }

    /// Detaches from every thread.
    fn release(&mut self, recorder: &mut Recorder) {
        self.stop();
        while !self.is_done() {
            match stops::wait() {
                Ok((tid, stop)) => self.stopped(tid, stop, recorder),
                Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
    }

    /// Returns whether no thread is left. A new thread whose creator was killed is traced but not
    /// known until it stops, so only waitpid(2) knows that there is none (ECHILD). If this thread
    /// has children that are not traced, waitpid(2) would wait for them as well.
    fn is_done(&self) -> bool {
        let none_waits = self.early.is_empty() || self.mode == Mode::Detach;
        self.tracees.is_empty() && none_waits && process::has_children()
    }

    fn stopped(&mut self, tid: u32, stop: Stop, recorder: &mut Recorder) {
        if let Stop::Dead(status) = stop {
            self.dead(tid, status, recorder);
            return;
        }
        if self.mode == Mode::Detach {
            let signal = if let Stop::Signal(signal) = stop {
                signal
            } else {
                0
            };
            let new = (stop == Stop::Cloned).then(|| stops::message(tid).ok()).flatten();
            // If the thread is dead, waitpid(2) reports it.
            stops::detach(tid, signal).unwrap_or(());
            if self.tracees.remove(&tid).is_none() {
                self.early.insert(tid, 0);
            }
            recorder.forget(tid);
            if let Some(new) = new.filter(|new| self.early.remove(new).is_none()) {
                // It stops soon.
                let tracee = Tracee {
                    pid: new,
                    table: 0,
                    entered: None,
                };
                self.tracees.insert(new, tracee);
            }
            return;
        }
        if !self.tracees.contains_key(&tid) {
            // The creator reports the thread soon. Until then its process is unknown, so its calls
            // cannot be recorded.
            self.early.insert(tid, process::creator(tid).unwrap_or(0));
            self.adopt(recorder, 0);
            return;
        }
        let mut signal = 0;
        match stop {
            Stop::Syscall | Stop::Filtered => self.syscall(tid, recorder),
            Stop::Cloned => self.cloned(tid, recorder),
            Stop::Executed => self.executed(tid, recorder),
            Stop::Group => {
                // ESRCH: the thread was killed; waitpid(2) reports it.
                stops::listen(tid).unwrap_or(());
                return;
            }
            Stop::Signal(number) => signal = number,
            Stop::Trap | Stop::Dead(_) => {}
        }
        self.resume(tid, signal);
    }

    fn resume(&self, tid: u32, signal: i32) {
        let entered = self
            .tracees
            .get(&tid)
            .is_some_and(|tracee| tracee.entered.is_some());
        // ESRCH: the thread was killed; waitpid(2) reports it.
        stops::resume(tid, signal, entered || !self.filtered).unwrap_or(());
    }

    fn dead(&mut self, tid: u32, status: u32, recorder: &mut Recorder) {
        self.early.remove(&tid);
        if self.root == Some(tid) {
            self.status = Some(status);
        }
        if let Some(mut tracee) = self.tracees.remove(&tid) {
            // The thread died in an ioctl: record it without an answer.
            if let Some(entered) = tracee
                .entered
                .take()
                .filter(|entered| entered.call == Call::Ioctl)
            {
                let record = ioctl_record(
                    &tracee,
                    tid,
                    entered,
                    -i64::from(crate::ERESTARTSYS),
                    0,
                    Vec::new(),
                );
                recorder.ioctl(tracee.table, false, record);
            }
            recorder.exited(process::now_ns(), tracee.pid, tid, status);
            if tid == tracee.pid {
                self.buffers.remove(&tid);
            }
        }
        if self.mode != Mode::Detach {
            self.adopt(recorder, 0);
        }
    }

    /// Adds the early threads whose creators are dead, and so do not report them. exec(2) has ended
    /// all other threads of the process `executed`.
    fn adopt(&mut self, recorder: &mut Recorder, executed: u32) {
        let is_alive = |creator| self.tracees.values().any(|tracee| tracee.pid == creator);
        let orphans = self.early.iter();
        let orphans: Vec<u32> = orphans
            .filter(|&(_, &creator)| creator == executed || !is_alive(creator))
            .map(|(&tid, _)| tid)
            .collect();
        for tid in orphans {
            self.early.remove(&tid);
            if let Some(pid) = process::thread_group(tid) {
                self.add(pid, tid, recorder, true);
            }
            self.resume(tid, 0);
        }
    }

    fn cloned(&mut self, parent: u32, recorder: &mut Recorder) {
        // ESRCH: the creator was killed; `adopt` adds the threads that it created.
        let Ok(tid) = stops::message(parent) else {
            return;
        };
        let Some((parent_pid, parent_table)) =
            self.tracees.get(&parent).map(|tracee| (tracee.pid, tracee.table))
        else {
            return;
        };
        let was_early = self.early.remove(&tid).is_some();
        if self.tracees.contains_key(&tid) {
            return;
        }
        let pid = process::thread_group(tid).unwrap_or(tid);
        let shares = stops::share_files(parent, tid).unwrap_or(pid == parent_pid);
        let table = if shares { parent_table } else { self.new_table() };
        self.tracees.insert(
            tid,
            Tracee {
                pid,
                table,
                entered: None,
            },
        );
        if pid != parent_pid {
            if let Some(buffers) = self.buffers.get(&parent_pid).cloned() {
                self.buffers.insert(pid, buffers);
            }
        }
        let name = process::name(tid);
        recorder.started(
            process::now_ns(),
            (parent_pid, parent),
            parent_table,
            pid,
            tid,
            table,
            &name,
        );
        if was_early {
            self.resume(tid, 0);
        }
    }

    fn executed(&mut self, pid: u32, recorder: &mut Recorder) {
        let old = stops::message(pid).unwrap_or(pid);
        let table = self.tracees.remove(&old).or_else(|| self.tracees.remove(&pid));
        let mut table = table.map_or(0, |tracee| tracee.table);
        // The kernel reports the exit of the other threads, except for the one that took the
        // leader's id.
        self.tracees.remove(&pid);
        // exec(2) unshares the table.
        if self
            .tracees
            .values()
            .any(|tracee| tracee.table == table && tracee.pid != pid)
        {
            table = self.new_table();
        }
        self.tracees.insert(
            pid,
            Tracee {
                pid,
                table,
                entered: None,
            },
        );
        self.buffers.remove(&pid);
        let is_open = |fd| process::file_kind(pid, fd).open;
        recorder.executed(
            process::now_ns(),
            pid,
            old,
            table,
            &process::program(pid),
            is_open,
        );
        self.adopt(recorder, pid);
    }

    fn syscall(&mut self, tid: u32, recorder: &mut Recorder) {
        match stops::syscall(tid) {
            Ok(Syscall::Entry {
                arch,
                number,
                arguments,
            }) => {
                let entered = if self.mode == Mode::Record {
                    self.entered(tid, arch, number, arguments, recorder)
                } else {
                    None
                };
                if let Some(tracee) = self.tracees.get_mut(&tid) {
                    tracee.entered = entered;
                }
            }
            Ok(Syscall::Exit { result }) => {
                let entered = self
                    .tracees
                    .get_mut(&tid)
                    .and_then(|tracee| tracee.entered.take());
                if let Some(entered) = entered {
                    self.returned(tid, entered, result, recorder);
                }
            }
            // Killed: waitpid(2) reports it.
            Ok(Syscall::None) | Err(_) => {}
        }
    }

    /// Handles the entry of a call. Returns the call if its exit is needed.
    fn entered(
        &self,
        tid: u32,
        arch: u32,
        number: u64,
        mut arguments: [u64; 6],
        recorder: &Recorder,
    ) -> Option<Entered> {
        let native = arch == AUDIT_ARCH;
        let compat = if native {
            number == u64::from(X32_IOCTL)
        } else {
            number == u64::from(COMPAT_IOCTL)
        };
        let call = match (native, compat) {
            (_, true) => Call::Ioctl,
            (true, false) => Call::of_number(number)?,
            (false, false) => return None,
        };
        if call != Call::Ioctl && !self.files {
            return None;
        }
        let [_, second, third, fourth, ..] = arguments;
        let request = second as u32;
        let mut file = FileKind::default();
        if let Some(index) = call.fd() {
            file = process::file_kind(tid, arguments[index] as i32);
        }
        let takes = match call {
            Call::Ioctl => self.types.contains(&((request >> 8) as u8)) && recorder.records_ioctl(file),
            Call::Fcntl => DUPLICATES.contains(&request) && recorder.records_file(file),
            Call::Mmap => fourth as u32 & MAP_ANONYMOUS == 0 && recorder.records_file(file),
            Call::Munmap => self
                .tracees
                .get(&tid)
                .is_some_and(|tracee| recorder.has_mappings(tracee.pid)),
            Call::DupTo => {
                recorder.records_file(file) || recorder.records_file(process::file_kind(tid, second as i32))
            }
            Call::Close | Call::Dup => recorder.records_file(file),
            _ => true,
        };
        if !takes {
            return None;
        }
        let mut budget = Budget::default();
        let mut memory = Vec::new();
        let mut input = Vec::new();
        if call == Call::Ioctl {
            if third != 0 {
                input = memory::read(tid, third, argument_size(request));
            }
            // Structs of the 32-bit ABI have other layouts, so pointers are not followed.
            if !compat {
                let at = Moment::Entry;
                memory = memory::follow(&self.pointers, tid, request, third, &input, at, &mut budget);
                let more = memory::of_attributes(tid, request, &memory, at, &mut budget);
                let none = Buffers::default();
                let pid = self.tracees.get(&tid).map_or(tid, |tracee| tracee.pid);
                let buffers = self.buffers.get(&pid).unwrap_or(&none);
                let limit = self.command_buffers;
                let chunks = buffers.of_chunks(tid, request, &input, &memory, limit, &mut budget);
                memory.extend(more);
                memory.extend(chunks);
            }
        } else if let Some(index) = call.path() {
            input = text(memory::read(tid, arguments[index], MAX_PATH));
            if call == Call::OpenAt2 {
                let how = memory::read(tid, third, 8);
                arguments[2] = how.try_into().map_or(0, u64::from_ne_bytes);
            }
        }
        Some(Entered {
            call,
            compat,
            time_ns: process::now_ns(),
            arguments,
            file,
            input,
            memory,
            budget,
        })
    }

    /// Handles the exit of a call.
    fn returned(&mut self, tid: u32, mut entered: Entered, result: i64, recorder: &mut Recorder) {
        let Some(tracee) = self.tracees.get(&tid) else {
            return;
        };
        let duration_ns = process::now_ns().saturating_sub(entered.time_ns);
        let (pid, table) = (tracee.pid, tracee.table);
        let [_, request, argument, ..] = entered.arguments;
        let request = request as u32;
        if entered.call == Call::Ioctl {
            let mut output = Vec::new();
            if argument != 0 {
                output = memory::read(tid, argument, argument_size(request));
            }
            if !entered.compat {
                let (at, budget) = (Moment::Exit, &mut entered.budget);
                let mut pieces =
                    memory::follow(&self.pointers, tid, request, argument, &entered.input, at, budget);
                let more = memory::of_attributes(tid, request, &pieces, at, budget);
                pieces.extend(more);
                entered.memory.extend(pieces);
                if result == 0 && self.command_buffers.is_some() {
                    let buffers = self.buffers.entry(pid).or_default();
                    buffers.completed(request, &entered.input, &output);
                }
            }
            let open = entered.file.open;
            let record = ioctl_record(tracee, tid, entered, result, duration_ns, output);
            recorder.ioctl(table, open, record);
            return;
        }
        let call = entered.call;
        let mut file = entered.file;
        let mut control = Vec::new();
        if call.opens() {
            match i32::try_from(result) {
                Ok(fd) if fd >= 0 => {
                    file = process::file_kind(tid, fd);
                    if !recorder.records_file(file) {
                        return;
                    }
                }
                // A failed open has no file: record it if its path is in /dev.
                _ if entered.input.starts_with(b"/dev/") => {}
                _ => return,
            }
        }
        if call == Call::RecvMsg && !is_errno(result) {
            // `msg_control` and `msg_controllen` of `struct msghdr`.
            let header = memory::read(tid, entered.arguments[1].saturating_add(32), 16);
            if let Some((address, length)) = header.split_at_checked(8) {
                let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
                let length = usize::try_from(word(length))
                    .unwrap_or(usize::MAX)
                    .min(MAX_CONTROL);
                control = memory::read(tid, word(address), length);
            }
        }
        if self.command_buffers.is_some() && !is_errno(result) {
            let [address, length, _, _, _, offset] = entered.arguments;
            let buffers = self.buffers.entry(pid).or_default();
            match call {
                Call::Mmap => buffers.mapped(offset, result as u64, length),
                Call::Munmap => buffers.unmapped(address, length),
                _ => {}
            }
        }
        recorder.call(&Finished {
            call,
            pid,
            tid,
            table,
            time_ns: entered.time_ns,
            duration_ns,
            arguments: entered.arguments,
            result,
            file,
            path: &entered.input,
            control: &control,
            open_flags: call.open_flags(entered.arguments),
        });
    }
}

fn ioctl_record(
    tracee: &Tracee,
    tid: u32,
    entered: Entered,
    result: i64,
    duration_ns: u64,
    output: Vec<u8>,
) -> IoctlRecord {
    let [fd, request, argument, ..] = entered.arguments;
    IoctlRecord {
        time_ns: entered.time_ns,
        duration_ns,
        pid: tracee.pid,
        tid,
        fd: fd as i32,
        device: entered.file.device,
        request: request as u32,
        argument,
        compat: entered.compat,
        result,
        input: entered.input,
        output,
        memory: entered.memory,
    }
}

/// Returns the bytes before the first NUL.
fn text(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    bytes
}

fn refused(pid: u32, errno: Errno) -> Error {
    let kind = match errno {
        Errno::ENOSYS | Errno::EIO => ErrorKind::PtraceRefused,
        _ => ErrorKind::Attach { pid },
    };
    Error::new(kind, std::io::Error::from(errno))
}

/// A killed call returns this value, which programs never see (include/linux/errno.h).
const _: () = assert!(crate::ERESTARTSYS > libc::EHWPOISON);

#[cfg(test)]
mod tests {
    use std::process::Stdio;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Usually the first child stops before its creator.
    const MOST_CHILDREN: usize = 100;

    #[test]
    fn early_thread_is_released() {
        let mut command = Command::new("sh");
        command.args(["-c", "while read line; do sleep 60 & done; wait"]);
        command.stdin(Stdio::piped());
        // waitpid(2) looks at the thread's own children first.
        let ((started, start), (ended, end)) = (mpsc::channel(), mpsc::channel::<()>());
        let parent = thread::spawn(move || {
            started.send(command.spawn().unwrap()).unwrap();
            end.recv()
        });
        let mut shell = start.recv().unwrap();
        let options = Options::default();
        let mut recorder = Recorder::new(&options);
        let mut ptrace = Ptrace::attach(&[shell.id()], &options, &mut recorder).unwrap();
        let mut pipe = shell.stdin.take().unwrap();
        let mut children = Vec::new();
        for _ in 0..MOST_CHILDREN {
            if !ptrace.early.is_empty() {
                break;
            }
            std::io::Write::write_all(&mut pipe, b"go\n").unwrap();
            let known = ptrace.tracees.len();
            while ptrace.tracees.len() == known && ptrace.early.is_empty() {
                // Until both have stopped: waitpid(2) returns the newest.
                thread::sleep(Duration::from_millis(5));
                let (tid, stop) = stops::wait().unwrap();
                ptrace.stopped(tid, stop, &mut recorder);
            }
            children = ptrace
                .tracees
                .keys()
                .chain(ptrace.early.keys())
                .copied()
                .collect();
        }
        let was_early = !ptrace.early.is_empty();
        ptrace.release(&mut recorder);
        let tracer = |tid: &u32| {
            let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap();
            let line = status.lines().find(|line| line.starts_with("TracerPid")).unwrap();
            line.to_owned()
        };
        let tracers: Vec<String> = children.iter().map(tracer).collect();
        for tid in &children {
            let pid = nix::unistd::Pid::from_raw(*tid as i32);
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        shell.wait().unwrap();
        drop(ended);
        parent.join().unwrap().unwrap_err();
        assert!(tracers.iter().all(|line| line == "TracerPid:\t0"), "{tracers:?}");
        assert!(
            was_early,
            "none of {MOST_CHILDREN} children stopped before its creator"
        );
    }
}
