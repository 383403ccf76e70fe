//! Tracks what descriptors, handles and addresses refer to: a state machine over the records.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hash;

use gaudi_spec::{ASICS, Asic, QueueId};
use gaudi_uapi::cb::{CbOp, HlCbIn, HlCbOut};
use gaudi_uapi::info::{HlInfoArgs, HlInfoHwIpInfo, InfoOp};
use gaudi_uapi::memory::{
    HlMemIn, HlMemInAlloc, HlMemInExportDmabufFd, HlMemInMapDevice, HlMemInMapHost, HlMemInUnmap, HlMemOut,
    MemFlags, MemOp,
};
use gaudi_uapi::view::{CALLS, CallView, OTHERS, OtherIoctl, Part, Shape};
use gaudi_uapi::{Era, Ioctl, Node, dmabuf, drm};
use zerocopy::{FromBytes, IntoBytes};

use crate::record::{Event, FdSource, IoctlRecord, Moment, OpenRecord, ProcessChange, ProcessRecord};
use crate::text::escaped;
use crate::walk::{number_of, recorded};

/// Maximum number of tracked objects. Objects above the limit are not resolved.
const MOST: usize = if cfg!(test) { 1 << 10 } else { 1 << 20 };
/// Maximum length of a file's description, of which each event has a copy.
const LONGEST_LABEL: usize = 4096;

/// Maximum length of the name of a driver that is kept: longer than this driver's.
const LONGEST_NAME: usize = 64;

/// An open file. Several descriptors can refer to it.
#[derive(Debug, Default)]
struct File {
    label: String,
    /// The number of its descriptors. Without one, nothing refers to it.
    descriptors: usize,
    era: Option<Era>,
    /// The name that DRM_IOCTL_VERSION returned.
    driver: Option<Vec<u8>>,
    /// The PCI device that INFO returned.
    pci_device: Option<u32>,
    /// Size of each allocation in bytes, by handle.
    memory: HashMap<u64, u64>,
    /// Mappings, by device address.
    mappings: BTreeMap<u64, Mapping>,
    /// Command buffers by handle: the size in bytes, and the process and address of the mapping.
    buffers: HashMap<u64, (u64, Option<(u32, u64)>)>,
    /// Number of elements of each timestamp buffer, by handle.
    timestamps: HashMap<u64, u64>,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    /// Size in bytes; 0 if unknown.
    size: u64,
    of: Mapped,
}

#[derive(Clone, Copy, Debug)]
enum Mapped {
    Host { pid: u32, address: u64 },
    Memory { handle: u64 },
}

/// What is known about the descriptors, handles and addresses of the traced processes.
#[derive(Debug, Default)]
pub struct Names {
    files: HashMap<u64, File>,
    /// The number of files so far.
    next: u64,
    /// Descriptors: (table, descriptor number) to file.
    fds: HashMap<(u32, i32), u64>,
    /// The descriptor table of each process that shares one.
    tables: HashMap<u32, u32>,
    /// The objects of all files.
    objects: usize,
}

/// A size in bytes, printed in the largest unit that divides it.
pub(crate) struct Size(pub(crate) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        let fits = |&(shift, _): &(u32, &str)| self.0 != 0 && self.0 % (1 << shift) == 0;
        match units.into_iter().find(fits) {
            Some((shift, unit)) => write!(f, "{} {unit}", self.0 >> shift),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

/// Reads a struct from the start of `bytes`. Missing bytes are zero.
pub(crate) fn view<T: FromBytes + IntoBytes>(bytes: &[u8]) -> T {
    let mut whole = T::new_zeroed();
    let to = whole.as_mut_bytes();
    to.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    whole
}

/// The layout of an ioctl's argument.
pub(crate) struct IoctlView {
    /// The driver's ioctl; `None` for an ioctl of another driver.
    pub(crate) call: Option<Ioctl>,
    pub(crate) name: &'static str,
    pub(crate) input: Shape,
    pub(crate) output: &'static [Part],
    answers_with: &'static [i32],
}

impl IoctlView {
    /// Returns whether the driver writes the answer when the ioctl returns `result`.
    pub(crate) fn has_answer(&self, result: i64) -> bool {
        let is_named = || self.answers_with.iter().any(|errno| i64::from(-errno) == result);
        result >= 0 || is_named()
    }
}

impl Names {
    fn table(&self, pid: u32) -> u32 {
        self.tables.get(&pid).copied().unwrap_or(pid)
    }

    fn file(&self, pid: u32, fd: i32) -> Option<&File> {
        let id = self.fds.get(&(self.table(pid), fd))?;
        self.files.get(id)
    }

    fn file_mut(&mut self, pid: u32, fd: i32) -> Option<&mut File> {
        let id = self.fds.get(&(self.table(pid), fd))?;
        self.files.get_mut(id)
    }

    /// Returns the path of a descriptor's file, or the way it was created, in printable form.
    pub fn fd(&self, pid: u32, fd: i32) -> Option<&str> {
        let label = self.file(pid, fd)?.label.as_str();
        (!label.is_empty()).then_some(label)
    }

    /// Returns the layout of an ioctl's argument; `None` if gaudi-uapi does not define the ioctl.
    pub(crate) fn view_of(&self, ioctl: &IoctlRecord) -> Option<IoctlView> {
        let path = || self.fd(ioctl.pid, ioctl.fd);
        let is_it = |other: &&OtherIoctl| {
            other.request == ioctl.request && other.node.is_none_or(|node| path() == Some(node))
        };
        if let Some(other) = OTHERS.iter().find(is_it) {
            return Some(IoctlView {
                call: None,
                name: other.name,
                input: other.input,
                output: other.output,
                answers_with: &[],
            });
        }
        let (pid, fd) = (ioctl.pid, ioctl.fd);
        let (is_drm, call) = call_of(ioctl.request).filter(|_| !self.is_foreign(pid, fd))?;
        let era = Self::era(is_drm, self.file(pid, fd));
        let base = CALLS.iter().find(|row| row.ioctl == call);
        let base = base.expect("every ioctl has a row").input.base;
        let row = CallView::find(call, Some(era), |name| number_of(base, &ioctl.input, name));
        // A truncated request does not show which view of a union it uses.
        let is_cut = ioctl.input.len() < base.size;
        let whole = Shape {
            base,
            parts: &[],
            pointers: &[],
        };
        Some(IoctlView {
            call: Some(call),
            name: call.name(),
            input: if is_cut { whole } else { row.input },
            output: row.output,
            answers_with: row.answers_with,
        })
    }

    /// Returns the interface of an ioctl. Numbers of type `'H'` belong to the misc driver, unless
    /// the path is an accel node.
    fn era(is_drm: bool, file: Option<&File>) -> Era {
        match (is_drm, file.and_then(|file| file.era)) {
            (true, _) => Era::AccelDrm,
            (false, Some(Era::AccelDrm)) => Era::AccelH,
            (false, _) => Era::HlMisc,
        }
    }

    /// Returns whether the descriptor is known to belong to another driver.
    fn is_foreign(&self, pid: u32, fd: i32) -> bool {
        self.file(pid, fd).is_some_and(|file| match &file.driver {
            Some(name) => name.as_slice() != drm::DRIVER_NAME.as_bytes(),
            None => file.label.starts_with("/dev/") && file.era.is_none(),
        })
    }

    /// Returns the engine that takes the work of a queue, such as `tpc 3`. `None` if the chip of
    /// the descriptor is not known or has no such queue.
    pub fn engine(&self, pid: u32, fd: i32, queue: u64) -> Option<String> {
        let id = QueueId(u32::try_from(queue).ok()?);
        let row = (self.asic(pid, fd)?.queue)(id)?;
        Some(format!("{:?} {}", row.engine, row.instance).to_lowercase())
    }

    /// Returns the chip of a descriptor; the default chip if INFO was not recorded.
    pub(crate) fn asic(&self, pid: u32, fd: i32) -> Option<&'static Asic> {
        let device = self.file(pid, fd).and_then(|file| file.pci_device);
        match device {
            Some(device) => ASICS.into_iter().find(|asic| u32::from(asic.device) == device),
            None => ASICS.first().copied(),
        }
    }

    /// Returns the address of a command buffer in the submitting process. `at` is a device address
    /// if `is_mapped`, otherwise a handle.
    pub(crate) fn command_buffer(&self, pid: u32, fd: i32, at: u64, is_mapped: bool) -> Option<u64> {
        let file = self.file(pid, fd)?;
        if !is_mapped {
            let (owner, address) = file.buffers.get(&at)?.1?;
            return (owner == pid).then_some(address);
        }
        let (start, mapping) = file.mappings.range(..=at).next_back()?;
        match mapping.of {
            Mapped::Host { pid: owner, address } if owner == pid && at - start < mapping.size => {
                address.checked_add(at - start)
            }
            _ => None,
        }
    }

    /// Describes the object that the value of a field refers to.
    pub(crate) fn describe(
        &self,
        ioctl: &IoctlRecord,
        call: Option<Ioctl>,
        name: &str,
        value: u64,
    ) -> Option<String> {
        if matches!(name, "fd" | "fd2" | "memfd" | "eventfd" | "fence") {
            return self.fd(ioctl.pid, i32::try_from(value).ok()?).map(str::to_owned);
        }
        let file = self.file(ioctl.pid, ioctl.fd)?;
        match (call?, name) {
            (Ioctl::Memory, "handle") => {
                let size = Size(*file.memory.get(&value)?);
                let is_of =
                    |mapping: &Mapping| matches!(mapping.of, Mapped::Memory { handle } if handle == value);
                let place = file.mappings.iter().find(|(_, mapping)| is_of(mapping));
                Some(match place {
                    Some((address, _)) => format!("{size}, mapped at {address:#x}"),
                    None => size.to_string(),
                })
            }
            (Ioctl::Memory, "device_virt_addr" | "addr") => file.mapping(value),
            (Ioctl::Cs, "cb_handle") => match file.buffers.get(&value) {
                Some((size, _)) => Some(Size(*size).to_string()),
                None => file.mapping(value),
            },
            (Ioctl::Cb, "cb_handle") => file.buffers.get(&value).map(|(size, _)| Size(*size).to_string()),
            (Ioctl::WaitCs, "timestamp_handle") => {
                let elements = file.timestamps.get(&value)?;
                Some(format!("{elements} elements"))
            }
            (Ioctl::WaitCs, "cq_counters_handle") => {
                let (size, _) = file.buffers.get(&value)?;
                Some(Size(*size).to_string())
            }
            _ => None,
        }
    }

    /// Updates the state with an event.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Open(open) => self.opened(open),
            Event::Close {
                pid, fd, result: 0, ..
            } => {
                self.close((self.table(*pid), *fd));
            }
            Event::Dup { pid, fd, result, .. } => {
                let from = self.fds.get(&(self.table(*pid), *fd)).copied();
                if let Ok(to @ 0..) = i32::try_from(*result) {
                    self.set_fd(*pid, to, from);
                }
            }
            Event::Mmap(mmap) if !(-4095..0).contains(&mmap.result) => {
                let (pid, offset, address) = (mmap.pid, mmap.offset, mmap.result as u64);
                if let Some(file) = self.file_mut(pid, mmap.fd) {
                    if let Some((_, place)) = file.buffers.get_mut(&offset) {
                        *place = Some((pid, address));
                    }
                }
            }
            Event::Process(process) => self.process(process),
            Event::Ioctl(ioctl) if !ioctl.compat => self.ioctl(ioctl),
            _ => {}
        }
    }

    fn set_fd(&mut self, pid: u32, fd: i32, file: Option<u64>) {
        let key = (self.table(pid), fd);
        if file.is_some() && self.fds.get(&key).copied() == file {
            return;
        }
        self.close(key);
        let Some((id, file)) = file.and_then(|id| Some((id, self.files.get_mut(&id)?))) else {
            return;
        };
        if self.fds.len() < MOST {
            file.descriptors += 1;
            self.fds.insert(key, id);
        }
    }

    /// Removes a descriptor, and its file with the last one.
    fn close(&mut self, key: (u32, i32)) {
        let Some(id) = self.fds.remove(&key) else { return };
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        file.descriptors -= 1;
        if file.descriptors == 0 {
            self.objects -= file.objects();
            self.files.remove(&id);
        }
    }

    fn add_file(&mut self, pid: u32, fd: i32, file: File) {
        // Each file has a descriptor, so their number limits that of the files.
        let key = (self.table(pid), fd);
        self.close(key);
        if self.fds.len() < MOST {
            let id = self.next;
            self.next += 1;
            let mut file = File {
                descriptors: 1,
                ..file
            };
            if self.objects >= MOST {
                file.label = String::new();
            }
            self.objects += file.objects();
            self.files.insert(id, file);
            self.fds.insert(key, id);
        }
    }

    fn opened(&mut self, open: &OpenRecord) {
        let Ok(fd @ 0..) = i32::try_from(open.result) else {
            return;
        };
        let label = match (open.path.is_empty(), open.source) {
            (false, _) => printable(&open.path[..open.path.len().min(LONGEST_LABEL)]),
            (true, FdSource::Received) => "received over a socket".to_owned(),
            (true, FdSource::Inherited) => "inherited".to_owned(),
            (true, FdSource::Taken) => "from pidfd_getfd".to_owned(),
            (true, FdSource::Open | FdSource::Created) => String::new(),
        };
        let file = File {
            era: era_of(&open.path),
            label,
            ..File::default()
        };
        self.add_file(open.pid, fd, file);
    }

    fn process(&mut self, process: &ProcessRecord) {
        let pid = process.pid;
        match &process.change {
            ProcessChange::Start { parent, .. } if *parent == 0 || *parent == pid => {}
            ProcessChange::Start {
                parent,
                shares_files: true,
                ..
            } => {
                let table = self.table(*parent);
                if self.tables.len() < MOST {
                    self.tables.insert(pid, table);
                }
            }
            ProcessChange::Start { parent, .. } => {
                self.tables.remove(&pid);
                let table = self.table(*parent);
                self.copy_table(table, pid);
            }
            // exec(2) unshares the descriptor table.
            ProcessChange::Exec { .. } => {
                if let Some(table) = self.tables.remove(&pid) {
                    self.copy_table(table, pid);
                }
            }
            ProcessChange::Exit { .. } if process.tid == pid => {
                let shared = self.tables.values().any(|table| *table == pid);
                if self.tables.remove(&pid).is_none() && !shared {
                    let of_process = self.fds.keys().filter(|(owner, _)| *owner == pid);
                    for key in of_process.copied().collect::<Vec<_>>() {
                        self.close(key);
                    }
                }
            }
            ProcessChange::Exit { .. } => {}
        }
    }

    /// Copies a descriptor table for a process.
    fn copy_table(&mut self, table: u32, pid: u32) {
        let of_table = self.fds.iter().filter(|((owner, _), _)| *owner == table);
        let copies: Vec<_> = of_table.map(|((_, fd), file)| (*fd, *file)).collect();
        for (fd, file) in copies {
            self.set_fd(pid, fd, Some(file));
        }
    }

    fn ioctl(&mut self, ioctl: &IoctlRecord) {
        if ioctl.result < 0 {
            return;
        }
        let (pid, fd) = (ioctl.pid, ioctl.fd);
        let file_of = |label: String| File {
            label,
            ..File::default()
        };
        match ioctl.request {
            dmabuf::UDMABUF_CREATE | dmabuf::UDMABUF_CREATE_LIST => {
                if let Ok(new) = i32::try_from(ioctl.result) {
                    self.add_file(pid, new, file_of("dma-buf of udmabuf".to_owned()));
                }
                return;
            }
            dmabuf::DMA_HEAP_IOCTL_ALLOC => {
                let data: dmabuf::DmaHeapAllocationData = view(&ioctl.output);
                if let Ok(new) = i32::try_from(data.fd) {
                    let label = format!("dma-buf of a heap, {}", Size(data.len));
                    self.add_file(pid, new, file_of(label));
                }
                return;
            }
            dmabuf::DMA_BUF_IOCTL_EXPORT_SYNC_FILE => {
                let data: dmabuf::DmaBufExportSyncFile = view(&ioctl.output);
                return self.add_file(pid, data.fd, file_of("sync_file".to_owned()));
            }
            dmabuf::SYNC_IOC_MERGE => {
                let data: dmabuf::SyncMergeData = view(&ioctl.output);
                return self.add_file(pid, data.fence, file_of("sync_file".to_owned()));
            }
            drm::DRM_IOCTL_VERSION => {
                let data: drm::DrmVersion = view(&ioctl.output);
                let name = recorded(&ioctl.memory, data.name, Moment::Exit);
                let Some((_, name)) = name else { return };
                let len = usize::try_from(data.name_len).unwrap_or(usize::MAX);
                let name = name[..name.len().min(len).min(LONGEST_NAME)].to_vec();
                if let Some(file) = self.file_mut(pid, fd) {
                    let is_ours = name == drm::DRIVER_NAME.as_bytes();
                    file.era = is_ours.then_some(Era::AccelDrm);
                    file.driver = Some(name);
                }
                return;
            }
            _ => {}
        }
        if self.is_foreign(pid, fd) {
            return;
        }
        let Some((is_drm, call)) = call_of(ioctl.request) else {
            return;
        };
        let key = (self.table(pid), fd);
        let id = self.fds.get(&key).copied();
        let before = self.file(pid, fd).map_or(0, File::objects);
        self.changed(ioctl, is_drm, call);
        // A descriptor that the ioctl returned can have replaced this one, which `close` counts.
        if id.is_none() || self.fds.get(&key).copied() == id {
            let after = self.file(pid, fd).map_or(0, File::objects);
            self.objects = self.objects + after - before;
        }
    }

    /// Updates the state of the driver's file with a successful ioctl.
    fn changed(&mut self, ioctl: &IoctlRecord, is_drm: bool, call: Ioctl) {
        let (pid, fd) = (ioctl.pid, ioctl.fd);
        let is_full = self.objects >= MOST;
        match call {
            Ioctl::Memory => self.memory(ioctl, is_drm),
            Ioctl::Cb => {
                let request: HlCbIn = view(&ioctl.input);
                let answer: HlCbOut = view(&ioctl.output);
                let Some(file) = self.known(pid, fd) else { return };
                match request.op {
                    CbOp::CREATE => {
                        let size = u64::from(request.cb_size);
                        put(&mut file.buffers, is_full, answer.cb_handle(), (size, None));
                    }
                    CbOp::DESTROY => {
                        file.buffers.remove(&request.cb_handle);
                    }
                    _ => {}
                }
            }
            Ioctl::Info => {
                let request: HlInfoArgs = view(&ioctl.input);
                if request.op != InfoOp::HW_IP_INFO {
                    return;
                }
                let answer = recorded(&ioctl.memory, request.return_pointer, Moment::Exit);
                let Some((_, bytes)) = answer else { return };
                let info: HlInfoHwIpInfo = view(bytes);
                if let Some(file) = self.known(pid, fd).filter(|_| info.device_id != 0) {
                    file.pci_device = Some(info.device_id);
                }
            }
            _ => {}
        }
    }

    /// Returns the file of a descriptor; creates one if its open was not recorded.
    fn known(&mut self, pid: u32, fd: i32) -> Option<&mut File> {
        if self.file(pid, fd).is_none() {
            self.add_file(pid, fd, File::default());
        }
        self.file_mut(pid, fd)
    }

    fn memory(&mut self, ioctl: &IoctlRecord, is_drm: bool) {
        let (pid, fd) = (ioctl.pid, ioctl.fd);
        let is_full = self.objects >= MOST;
        let request: HlMemIn = view(&ioctl.input);
        let answer: HlMemOut = view(&ioctl.output);
        let argument = request.arg.as_bytes();
        let Some(file) = self.known(pid, fd) else { return };
        match request.op {
            MemOp::ALLOC => {
                let alloc: HlMemInAlloc = view(argument);
                put(&mut file.memory, is_full, answer.handle(), alloc.mem_size);
            }
            MemOp::FREE => {
                file.memory.remove(&request.arg[0]);
            }
            MemOp::MAP if request.flags.contains(MemFlags::USERPTR) => {
                let map: HlMemInMapHost = view(argument);
                let mapping = Mapping {
                    size: map.mem_size,
                    of: Mapped::Host {
                        pid,
                        address: map.host_virt_addr,
                    },
                };
                file.map(is_full, answer.device_virt_addr(), mapping);
            }
            MemOp::MAP => {
                let map: HlMemInMapDevice = view(argument);
                let mapping = Mapping {
                    size: file.memory.get(&map.handle).copied().unwrap_or(0),
                    of: Mapped::Memory { handle: map.handle },
                };
                file.map(is_full, answer.device_virt_addr(), mapping);
            }
            MemOp::UNMAP => {
                let unmap: HlMemInUnmap = view(argument);
                file.mappings.remove(&unmap.device_virt_addr);
            }
            MemOp::TS_ALLOC => {
                let elements = request.num_of_elements.into();
                put(&mut file.timestamps, is_full, answer.handle(), elements);
            }
            MemOp::EXPORT_DMABUF_FD => {
                let export: HlMemInExportDmabufFd = view(argument);
                let of = match Self::era(is_drm, Some(file)) {
                    // The header of Linux 6.1 stores the handle in this field.
                    Era::HlMisc => "of handle",
                    _ => "at",
                };
                let label = format!("dma-buf, {} {of} {:#x}", Size(export.mem_size), export.addr);
                let dmabuf = File {
                    label,
                    ..File::default()
                };
                if answer.fd() >= 0 {
                    self.add_file(pid, answer.fd(), dmabuf);
                }
            }
            _ => {}
        }
    }
}

/// Adds an object. If there are too many, removes the earlier object of the key instead: no
/// description is better than a stale one.
fn put<K: Eq + Hash, V>(to: &mut HashMap<K, V>, is_full: bool, key: K, value: V) {
    if is_full {
        to.remove(&key);
    } else {
        to.insert(key, value);
    }
}

impl File {
    /// Returns the number of objects. A long label counts as several.
    fn objects(&self) -> usize {
        let label = self.label.len() / 64;
        label + self.memory.len() + self.mappings.len() + self.buffers.len() + self.timestamps.len()
    }

    /// Adds a mapping, as [`put`] does.
    fn map(&mut self, is_full: bool, address: u64, mapping: Mapping) {
        if is_full {
            self.mappings.remove(&address);
        } else {
            self.mappings.insert(address, mapping);
        }
    }

    /// Describes the mapping that contains a device address.
    fn mapping(&self, at: u64) -> Option<String> {
        let (start, mapping) = self.mappings.range(..=at).next_back()?;
        let offset = at - start;
        if offset >= mapping.size.max(1) {
            return None;
        }
        let inside = match offset {
            0 => String::new(),
            offset => format!("{offset:#x} into "),
        };
        let size = Size(mapping.size);
        Some(match mapping.of {
            Mapped::Host { address, .. } => format!("{inside}{size} of host memory at {address:#x}"),
            Mapped::Memory { handle } => format!("{inside}{size}, handle {handle:#x}"),
        })
    }
}

/// Returns the ioctl of a request number, and whether the number is of DRM's type.
fn call_of(request: u32) -> Option<(bool, Ioctl)> {
    let drm = Era::AccelDrm.ioctl(request).map(|call| (true, call));
    drm.or_else(|| Era::HlMisc.ioctl(request).map(|call| (false, call)))
}

/// Returns the interface of a device node, from its path.
fn era_of(path: &[u8]) -> Option<Era> {
    let path = std::str::from_utf8(path).ok()?;
    let (dir, name) = path.rsplit_once('/')?;
    let era = [Era::HlMisc, Era::AccelDrm]
        .into_iter()
        .find(|era| era.dev_dir() == dir)?;
    Node::from_file_name(era, name).map(|_| era)
}

/// Formats a path as printable text, without quotes.
fn printable(bytes: &[u8]) -> String {
    let text = escaped(bytes);
    text[1..text.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use gaudi_uapi::Era;
    use zerocopy::{FromZeros as _, IntoBytes as _};

    use super::*;
    use crate::decode::Decoder;
    use crate::walk::Limits;

    /// A successful HL_IOCTL_MEMORY on descriptor 3.
    fn memory_ioctl(op: MemOp, arg: [u64; 2], handle: u64) -> Event {
        let mut request = HlMemIn::new_zeroed();
        request.op = op;
        request.arg[..2].copy_from_slice(&arg);
        Event::Ioctl(IoctlRecord {
            fd: 3,
            request: Era::HlMisc.request(Ioctl::Memory).unwrap(),
            input: request.as_bytes().to_vec(),
            output: handle.to_le_bytes().to_vec(),
            ..IoctlRecord::default()
        })
    }

    #[test]
    fn freed_objects_do_not_count() {
        let mut decoder = Decoder::new(Limits::LINE);
        let (alloc, free) = (
            memory_ioctl(MemOp::ALLOC, [8192, 0], 1),
            memory_ioctl(MemOp::FREE, [1, 0], 0),
        );
        for _ in 0..=MOST {
            decoder.decode(&alloc);
            decoder.decode(&free);
        }
        decoder.decode(&memory_ioctl(MemOp::ALLOC, [4096, 0], 2));
        let line = decoder.decode(&memory_ioctl(MemOp::FREE, [2, 0], 0)).to_string();
        assert!(line.contains("4 KiB"), "{line}");
    }

    #[test]
    fn closed_files_do_not_count() {
        let open = |path: &[u8]| {
            Event::Open(OpenRecord {
                time_ns: 0,
                duration_ns: 0,
                pid: 0,
                tid: 0,
                path: path.to_vec(),
                flags: 0,
                result: 3,
                device: None,
                source: FdSource::Open,
            })
        };
        let close = Event::Close {
            time_ns: 0,
            pid: 0,
            tid: 0,
            fd: 3,
            result: 0,
        };
        let mut names = Names::default();
        let first = open(&[b'x'; 4096]);
        for _ in 0..=MOST {
            names.apply(&first);
            names.apply(&close);
        }
        names.apply(&open(b"/dev/hl0"));
        assert_eq!(names.fd(0, 3), Some("/dev/hl0"));
        names.apply(&open(&vec![b'x'; 1 << 20]));
        assert_eq!(names.fd(0, 3).map(str::len), Some(4096), "a label has a limit");
    }
}
