//! Converts calls from both tiers to events. Tracks, for each descriptor table, the descriptors
//! that the capture has introduced, and the recorded mappings.
//!
//! A descriptor whose creation was not recorded is introduced directly before its first use, so the
//! capture contains every descriptor before an ioctl on it.

use std::collections::{HashMap, VecDeque};

use gaudi_capture::record::{
    DeviceNumber, Event, FdSource, IoctlRecord, Losses, LostCause, Memory, MmapRecord, Moment, OpenRecord,
    ProcessChange, ProcessRecord, WriteRecord,
};

use crate::calls::Call;
use crate::options::Options;
use crate::process::{self, FileKind};

/// Maximum number of tracked descriptors per table, and of tracked ranges per process.
const MAX_KNOWN: usize = 1 << 16;
/// The flags of close_range(2) (linux/close_range.h).
const CLOSE_RANGE_CLOEXEC: u64 = 1 << 2;

/// The id of a descriptor table (`struct files_struct`), which threads can share.
pub(crate) type TableId = u64;

/// A completed call other than ioctl.
#[derive(Debug)]
pub(crate) struct Finished<'a> {
    pub(crate) call: Call,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) table: TableId,
    pub(crate) time_ns: u64,
    pub(crate) duration_ns: u64,
    pub(crate) arguments: [u64; 6],
    pub(crate) result: i64,
    /// The file of the descriptor that the call takes (at entry) or returns (at exit).
    pub(crate) file: FileKind,
    /// The path of an open.
    pub(crate) path: &'a [u8],
    /// The control data of a received message.
    pub(crate) control: &'a [u8],
    /// The flags of an open; for openat2(2), the first word of `struct open_how`.
    pub(crate) open_flags: u32,
}

/// A known thread.
#[derive(Clone, Debug)]
struct Thread {
    pid: u32,
    table: TableId,
}

#[derive(Debug, Default)]
pub(crate) struct Recorder {
    devices: Vec<crate::DeviceMatch>,
    files: bool,
    pub(crate) events: VecDeque<Event>,
    threads: HashMap<u32, Thread>,
    tables: HashMap<TableId, HashMap<i32, Option<DeviceNumber>>>,
    /// The ranges recorded as mapped in each process: start and length.
    mappings: HashMap<u32, Vec<(u64, u64)>>,
    pub(crate) cut: u64,
    pub(crate) unreadable: u64,
    pub(crate) ioctls: u64,
    pub(crate) lost: Losses,
}

impl Recorder {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            devices: options.devices.clone(),
            files: options.files,
            ..Self::default()
        }
    }

    /// Returns whether ioctls on the file are recorded, provided that the type byte is selected.
    pub(crate) fn records_ioctl(&self, file: FileKind) -> bool {
        file.device.is_none_or(|device| self.records_device(device))
    }

    /// Returns whether opens and closes of the file are recorded.
    pub(crate) fn records_file(&self, file: FileKind) -> bool {
        match file.device {
            Some(device) => self.records_device(device),
            None => file.from_driver,
        }
    }

    fn records_device(&self, device: DeviceNumber) -> bool {
        self.devices.is_empty() || self.devices.iter().any(|row| row.matches(device))
    }

    pub(crate) fn is_known(&self, tid: u32) -> bool {
        self.threads.contains_key(&tid)
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = u32> + '_ {
        self.threads.keys().copied()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.threads.is_empty()
    }

    /// Moves the thread to `table`. A table without other users starts as a copy of the thread's
    /// previous table.
    fn enter(&mut self, pid: u32, tid: u32, table: TableId) {
        let old = self
            .threads
            .insert(tid, Thread { pid, table })
            .map(|thread| thread.table);
        if old == Some(table) {
            return;
        }
        let shared = self
            .threads
            .iter()
            .any(|(&other, thread)| other != tid && thread.table == table);
        if !shared {
            let copy = old.and_then(|old| self.tables.get(&old)).cloned();
            self.tables.insert(table, copy.unwrap_or_else(HashMap::new));
        }
        if let Some(old) = old {
            self.drop_table(old);
        }
    }

    fn drop_table(&mut self, table: TableId) {
        if self.threads.values().all(|thread| thread.table != table) {
            self.tables.remove(&table);
        }
    }

    fn table(&mut self, table: TableId) -> &mut HashMap<i32, Option<DeviceNumber>> {
        let known = self.tables.entry(table).or_default();
        // A cleared table only causes descriptors to be introduced again.
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known
    }

    /// Adds a thread that existed before tracing, with its recorded descriptors. A child of the
    /// tracer that has not yet executed its program has none.
    pub(crate) fn found(&mut self, pid: u32, tid: u32, table: TableId, program: Option<&[u8]>) {
        let time_ns = process::now_ns();
        let is_new_table = !self.tables.contains_key(&table);
        self.enter(pid, tid, table);
        self.process(
            time_ns,
            pid,
            tid,
            ProcessChange::Start {
                parent: 0,
                shares_files: false,
                name: process::name(tid),
            },
        );
        let Some(program) = program else {
            return;
        };
        if tid == pid && !program.is_empty() {
            self.process(
                time_ns,
                pid,
                tid,
                ProcessChange::Exec {
                    path: program.to_vec(),
                },
            );
        }
        if !(is_new_table && self.files) {
            return;
        }
        for fd in process::descriptors(tid) {
            let file = process::file_kind(tid, fd);
            if file.open && self.records_file(file) {
                self.introduce(pid, tid, table, fd, file.device, FdSource::Inherited, time_ns);
            }
        }
    }

    /// Records that a traced thread created another.
    #[expect(clippy::too_many_arguments, reason = "the fields of a record")]
    pub(crate) fn started(
        &mut self,
        time_ns: u64,
        parent: (u32, u32),
        parent_table: TableId,
        pid: u32,
        tid: u32,
        table: TableId,
        name: &[u8],
    ) {
        // Update the parent first, so that a copied table contains its descriptors.
        self.enter(parent.0, parent.1, parent_table);
        let shares_files = parent_table == table;
        if !shares_files {
            let copy = self.tables.get(&parent_table).cloned();
            self.tables.insert(table, copy.unwrap_or_else(HashMap::new));
        }
        self.threads.insert(tid, Thread { pid, table });
        if pid != parent.0 {
            let inherited = self.mappings.get(&parent.0).cloned();
            self.mappings.insert(pid, inherited.unwrap_or_else(Vec::new));
        }
        let change = ProcessChange::Start {
            parent: parent.0,
            shares_files,
            name: name.to_vec(),
        };
        self.process(time_ns, pid, tid, change);
    }

    /// Records that a thread executed a program: other threads of the process are dead, and
    /// close-on-exec descriptors are closed. `is_open` reports whether a descriptor is still open.
    pub(crate) fn executed(
        &mut self,
        time_ns: u64,
        pid: u32,
        old_tid: u32,
        table: TableId,
        path: &[u8],
        is_open: impl Fn(i32) -> bool,
    ) {
        if let Some(thread) = self.threads.remove(&old_tid) {
            if let Some(leader) = self.threads.insert(pid, thread) {
                self.drop_table(leader.table);
            }
        }
        self.enter(pid, pid, table);
        let stale: Vec<u32> = self
            .threads
            .iter()
            .filter(|row| row.1.pid == pid && *row.0 != pid)
            .map(|row| *row.0)
            .collect();
        for tid in stale {
            self.threads.remove(&tid);
        }
        self.mappings.remove(&pid);
        self.process(time_ns, pid, pid, ProcessChange::Exec { path: path.to_vec() });
        let mut closed: Vec<i32> = self
            .table(table)
            .keys()
            .copied()
            .filter(|&fd| !is_open(fd))
            .collect();
        closed.sort_unstable();
        for fd in closed {
            self.close(time_ns, pid, pid, table, fd, 0);
        }
    }

    pub(crate) fn exited(&mut self, time_ns: u64, pid: u32, tid: u32, status: u32) {
        if let Some(thread) = self.threads.remove(&tid) {
            self.drop_table(thread.table);
        }
        if tid == pid {
            self.mappings.remove(&pid);
        }
        self.process(time_ns, pid, tid, ProcessChange::Exit { status });
    }

    /// Removes a thread whose exit was not observed.
    pub(crate) fn forget(&mut self, tid: u32) {
        if let Some(thread) = self.threads.remove(&tid) {
            self.drop_table(thread.table);
        }
    }

    fn process(&mut self, time_ns: u64, pid: u32, tid: u32, change: ProcessChange) {
        self.events.push_back(Event::Process(ProcessRecord {
            time_ns,
            pid,
            tid,
            change,
        }));
    }

    pub(crate) fn lose(&mut self, cause: LostCause, count: u64) {
        if count > 0 {
            self.lost.add(cause, count);
            self.events.push_back(Event::Lost {
                time_ns: process::now_ns(),
                count,
                cause,
            });
        }
    }

    /// Introduces a descriptor whose creation was not recorded.
    #[expect(clippy::too_many_arguments, reason = "the fields of a record")]
    fn introduce(
        &mut self,
        pid: u32,
        tid: u32,
        table: TableId,
        fd: i32,
        device: Option<DeviceNumber>,
        source: FdSource,
        time_ns: u64,
    ) {
        self.table(table).insert(fd, device);
        // `/proc` shows the current file. Use its path only if it is still the file of the call.
        let same = process::file_kind(tid, fd);
        let path = if same.open && same.device == device {
            process::fd_target(tid, fd)
        } else {
            Vec::new()
        };
        self.events.push_back(Event::Open(OpenRecord {
            time_ns,
            duration_ns: 0,
            pid,
            tid,
            source,
            path,
            flags: 0,
            device,
            result: i64::from(fd),
        }));
    }

    /// Introduces a descriptor unless the capture contains it with the same device.
    fn introduce_if_new(
        &mut self,
        call: (u32, u32, TableId),
        fd: i32,
        device: Option<DeviceNumber>,
        time_ns: u64,
    ) {
        let (pid, tid, table) = call;
        if self.files && self.table(table).get(&fd) != Some(&device) {
            self.introduce(pid, tid, table, fd, device, FdSource::Inherited, time_ns);
        }
    }

    pub(crate) fn ioctl(&mut self, table: TableId, file_is_open: bool, record: IoctlRecord) {
        let (pid, tid) = (record.pid, record.tid);
        self.enter(pid, tid, table);
        if file_is_open {
            self.introduce_if_new((pid, tid, table), record.fd, record.device, record.time_ns);
        }
        self.ioctls += 1;
        self.count_memory(&record.memory);
        let size = gaudi_uapi::ioctl::Parts::of(record.request).size;
        match record.input.len() {
            0 if size > 0 => self.unreadable += 1,
            read if read < size => self.cut += 1,
            _ => {}
        }
        self.events.push_back(Event::Ioctl(record));
    }

    /// Records a command to an RDMA device.
    pub(crate) fn write(&mut self, table: TableId, file_is_open: bool, record: WriteRecord) {
        let (pid, tid) = (record.pid, record.tid);
        self.enter(pid, tid, table);
        if file_is_open {
            self.introduce_if_new((pid, tid, table), record.fd, record.device, record.time_ns);
        }
        self.count_memory(&record.memory);
        self.events.push_back(Event::Write(record));
    }

    fn count_memory(&mut self, memory: &[Memory]) {
        for piece in memory {
            match piece.bytes.len() as u64 {
                0 => self.unreadable += 1,
                read if read < piece.whole => self.cut += 1,
                _ => {}
            }
        }
    }

    fn close(&mut self, time_ns: u64, pid: u32, tid: u32, table: TableId, fd: i32, result: i64) {
        self.table(table).remove(&fd);
        self.events.push_back(Event::Close {
            time_ns,
            pid,
            tid,
            fd,
            result,
        });
    }

    pub(crate) fn call(&mut self, finished: &Finished<'_>) {
        let Finished {
            pid,
            tid,
            table,
            time_ns,
            duration_ns,
            result,
            file,
            ..
        } = *finished;
        self.enter(pid, tid, table);
        let [first, second, third, ..] = finished.arguments;
        let fd = first as i32;
        let end_ns = time_ns.saturating_add(duration_ns);
        let thread = (pid, tid, table);
        match finished.call {
            // Ioctls are recorded by `ioctl`.
            Call::Ioctl | Call::Write => {}
            Call::Open | Call::Creat | Call::OpenAt | Call::OpenAt2 | Call::PidfdGetfd => {
                if let Ok(number) = i32::try_from(result) {
                    if number >= 0 {
                        self.table(table).insert(number, file.device);
                    }
                }
                let taken = finished.call == Call::PidfdGetfd;
                let source = if taken { FdSource::Taken } else { FdSource::Open };
                let path = match i32::try_from(result) {
                    Ok(number) if taken && number >= 0 => process::fd_target(tid, number),
                    _ => finished.path.to_vec(),
                };
                let flags = finished.open_flags;
                let device = file.device;
                self.events.push_back(Event::Open(OpenRecord {
                    time_ns,
                    duration_ns,
                    pid,
                    tid,
                    source,
                    path,
                    flags,
                    device,
                    result,
                }));
            }
            Call::Close => {
                self.introduce_if_new(thread, fd, file.device, time_ns);
                self.close(end_ns, pid, tid, table, fd, result);
            }
            Call::CloseRange => {
                if result == 0 && third & CLOSE_RANGE_CLOEXEC == 0 {
                    let range = first..=second;
                    let known = self.table(table).keys().copied();
                    let mut closed: Vec<i32> = known
                        .filter(|&fd| u64::try_from(fd).is_ok_and(|fd| range.contains(&fd)))
                        .collect();
                    closed.sort_unstable();
                    for fd in closed {
                        self.close(end_ns, pid, tid, table, fd, 0);
                    }
                }
            }
            Call::Dup | Call::DupTo | Call::Fcntl => {
                let new = i32::try_from(result).ok().filter(|&new| new >= 0);
                if !self.records_file(file) {
                    // Only the descriptor that dup2(2) closed is recorded.
                    if let Some(new) = new.filter(|&new| new != fd) {
                        if self.table(table).contains_key(&new) {
                            self.close(end_ns, pid, tid, table, new, 0);
                        }
                    }
                    return;
                }
                self.introduce_if_new(thread, fd, file.device, time_ns);
                if let Some(new) = new {
                    self.table(table).insert(new, file.device);
                }
                self.events.push_back(Event::Dup {
                    time_ns: end_ns,
                    pid,
                    tid,
                    fd,
                    result,
                });
            }
            Call::Mmap => self.mapped(finished),
            Call::Munmap => self.unmapped(end_ns, pid, tid, (first, second), result),
            Call::RecvMsg => {
                for fd in received(finished.control) {
                    let file = process::file_kind(tid, fd);
                    if file.open && self.records_file(file) {
                        self.introduce(pid, tid, table, fd, file.device, FdSource::Received, end_ns);
                    }
                }
            }
        }
    }

    fn mapped(&mut self, finished: &Finished<'_>) {
        let [address, length, protection, flags, fd, offset] = finished.arguments;
        let Finished {
            pid,
            tid,
            time_ns,
            duration_ns,
            result,
            file,
            ..
        } = *finished;
        self.introduce_if_new((pid, tid, finished.table), fd as i32, file.device, time_ns);
        if let Some(start) = u64::try_from(result).ok().filter(|_| !is_errno(result)) {
            let ranges = self.mappings.entry(pid).or_default();
            if ranges.len() < MAX_KNOWN {
                ranges.push((start, length));
            }
        }
        self.events.push_back(Event::Mmap(MmapRecord {
            time_ns,
            duration_ns,
            pid,
            tid,
            address,
            length,
            protection: protection as u32,
            flags: flags as u32,
            fd: fd as i32,
            device: file.device,
            offset,
            result,
        }));
    }

    fn unmapped(&mut self, time_ns: u64, pid: u32, tid: u32, range: (u64, u64), result: i64) {
        let (address, length) = range;
        let end = address.saturating_add(length);
        let Some(ranges) = self.mappings.get_mut(&pid) else {
            return;
        };
        let touches = |&(start, bytes): &(u64, u64)| start < end && address < start.saturating_add(bytes);
        if !ranges.iter().any(touches) {
            return;
        }
        if result == 0 {
            // The parts before and after the range stay mapped.
            let old = std::mem::take(ranges);
            for (start, bytes) in old {
                let stop = start.saturating_add(bytes);
                if !touches(&(start, bytes)) {
                    ranges.push((start, bytes));
                    continue;
                }
                if start < address {
                    ranges.push((start, address - start));
                }
                if end < stop {
                    ranges.push((end, stop - end));
                }
            }
        }
        self.events.push_back(Event::Munmap {
            time_ns,
            pid,
            tid,
            address,
            length,
            result,
        });
    }

    /// Returns whether the process has recorded mappings left.
    pub(crate) fn has_mappings(&self, pid: u32) -> bool {
        self.mappings.get(&pid).is_some_and(|ranges| !ranges.is_empty())
    }
}

/// Returns whether a system call's result is -errno (`IS_ERR_VALUE`).
pub(crate) fn is_errno(result: i64) -> bool {
    (-4095..0).contains(&result)
}

/// Returns the descriptors in a received message's control data (cmsg(3), `SCM_RIGHTS`).
fn received(control: &[u8]) -> Vec<i32> {
    const HEADER: usize = 16;
    const SOL_SOCKET: u32 = nix::libc::SOL_SOCKET as u32;
    const SCM_RIGHTS: u32 = nix::libc::SCM_RIGHTS as u32;
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_ne_bytes);
    let mut fds = Vec::new();
    let mut rest = control;
    while let Some((header, _)) = rest.split_at_checked(HEADER) {
        let length = u64::from_ne_bytes(header[..8].try_into().unwrap_or([0; 8]));
        let (level, kind) = (word(&header[8..12]), word(&header[12..16]));
        let Some(length) = usize::try_from(length).ok().filter(|&bytes| bytes >= HEADER) else {
            break;
        };
        let data = rest.get(HEADER..length.min(rest.len())).unwrap_or(&[]);
        if (level, kind) == (SOL_SOCKET, SCM_RIGHTS) {
            fds.extend(data.chunks_exact(4).map(|fd| word(fd) as i32));
        }
        let Some(next) = length
            .checked_next_multiple_of(8)
            .and_then(|next| rest.get(next..))
        else {
            break;
        };
        rest = next;
    }
    fds
}

/// Reads the memory that a pointer of an ioctl refers to. `read` returns the bytes before the first
/// one that cannot be read.
pub(crate) fn piece(
    target: (u64, u64),
    at: Moment,
    limit: usize,
    mut read: impl FnMut(u64, usize) -> Vec<u8>,
) -> Memory {
    let (address, whole) = target;
    let wanted = usize::try_from(whole).unwrap_or(usize::MAX).min(limit);
    Memory {
        address,
        at,
        bytes: read(address, wanted),
        whole,
    }
}
