//! [`Nodes`]: the open nodes of the program, and their ioctls.

#![expect(unsafe_code, reason = "an ioctl's argument can map host memory to the device")]

use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use gaudi_codec::UserMemory;
use gaudi_hal::DeviceSpec;
use gaudi_node::VirtualNode;
use gaudi_seam::NodeKind;
use gaudi_sys::{lock, pidfd};
use gaudi_uapi::Ioctl;
use gaudi_uapi::cs::{CsFlags, HlCsArgs, HlCsChunk, HlCsInChunks};
use gaudi_uapi::era::DRM_IOCTL_BASE;
use gaudi_uapi::info::{HlInfoArgs, InfoOp};
use gaudi_uapi::ioctl::{Parts, READ, WRITE};
use gaudi_uapi::memory::{HlMemArgs, MemFlags, MemOp};
use gaudi_uapi::wait::{HlWaitCsArgs, WaitCsFlags};
use nix::errno::Errno;
use zerocopy::{FromBytes, IntoBytes, KnownLayout};

use crate::host::{Budget, Mirror, Mirrors};
use crate::notify::{Listener, Reply, Request};
use crate::remote::{Remote, Space};

/// An address that no process has: the kernel's half.
const NOWHERE: u64 = 1 << 63;
/// The most sequence numbers of a wait for signals that are read.
const MOST_SIGNALS: usize = 512;

/// An open node of the program.
pub(crate) struct Opened {
    node: VirtualNode,
    pub(crate) kind: NodeKind,
    pub(crate) index: u32,
    mirrors: Mutex<Mirrors>,
    mirrored: Arc<Budget>,
}

/// The open nodes of the program and its descendants.
pub(crate) struct Nodes {
    devices: Vec<Device>,
    open: Mutex<Vec<Arc<Opened>>>,
    mirrored: Arc<Budget>,
}

struct Device {
    spec: DeviceSpec,
    /// Held while a node of the device is closed and opened, which can take long. An open that
    /// follows a close must find the node closed.
    changes: Mutex<()>,
}

/// The address of a list, which stays when the vector is moved.
fn address_of<T>(value: &[T]) -> u64 {
    value.as_ptr().expose_provenance() as u64
}

fn view<T: FromBytes + IntoBytes + KnownLayout>(argument: &mut [u8]) -> Option<&mut T> {
    // Arguments are in a buffer of words, so a struct of words is aligned.
    T::mut_from_prefix(argument).ok().map(|(view, _)| view)
}

/// The chunks of a submission with addresses of this process in place of the program's.
struct Chunks {
    remote: Remote,
    at: u64,
    bytes: Vec<u8>,
}

impl UserMemory for Chunks {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        if address == self.at && bytes.len() <= self.bytes.len() {
            bytes.copy_from_slice(&self.bytes[..bytes.len()]);
            return Ok(());
        }
        self.remote.read(address, bytes)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.remote.write(address, bytes)
    }
}

/// What a call needs until it ends, and what follows its success.
#[derive(Default)]
struct Translated {
    /// Descriptors and lists that the argument refers to.
    fds: Vec<OwnedFd>,
    lists: Vec<Vec<u64>>,
    mirror: Option<Mirror>,
    /// The program's descriptor number, which the argument has again after the call.
    number: Option<u32>,
    unmaps: Option<u64>,
    exports: bool,
    /// The device may access host memory.
    works: bool,
}

impl Nodes {
    pub(crate) fn new(specs: Vec<DeviceSpec>) -> Self {
        let device = |spec| Device {
            spec,
            changes: Mutex::new(()),
        };
        Self {
            devices: specs.into_iter().map(device).collect(),
            open: Mutex::default(),
            mirrored: Arc::new(Budget::of_machine()),
        }
    }

    /// Closes the nodes of a device that the program has closed.
    fn sweep(&self, index: u32) {
        let is_closed = |node: &Arc<Opened>| node.index == index && node.node.is_released();
        let mut open = lock(&self.open);
        let (closed, left) = std::mem::take(&mut *open)
            .into_iter()
            .partition::<Vec<_>, _>(is_closed);
        *open = left;
        // Closing can take long, and other calls need the list.
        drop(open);
        drop(closed);
    }

    /// Opens a node and returns the program's descriptor.
    pub(crate) fn open(&self, kind: NodeKind, index: u32) -> Result<OwnedFd, Errno> {
        let device = self.devices.get(index as usize).ok_or(Errno::ENXIO)?;
        let _changes = lock(&device.changes);
        self.sweep(index);
        let (node, fd) = VirtualNode::open(&device.spec, kind).map_err(|error| {
            tracing::info!(%error, "the program's open fails");
            gaudi_codec::errno_of(&error)
        })?;
        lock(&self.open).push(Arc::new(Opened {
            node,
            kind,
            index,
            mirrors: Mutex::default(),
            mirrored: Arc::clone(&self.mirrored),
        }));
        Ok(fd)
    }

    /// The node of a file. `None` if the file is not a node.
    pub(crate) fn find(&self, identity: (u64, u64)) -> Option<Arc<Opened>> {
        let open = lock(&self.open);
        open.iter().find(|node| node.node.identity() == identity).cloned()
    }
}

impl Opened {
    /// Serves an ioctl.
    pub(crate) fn ioctl(&self, listener: &Listener, request: &Request) -> Reply {
        Reply::from(self.serve(listener, request).map(|()| 0))
    }

    fn serve(&self, listener: &Listener, request: &Request) -> Result<(), Errno> {
        let number = request.arguments[1] as u32;
        let address = request.arguments[2];
        let remote = Remote::of(request.tid);
        let parts = Parts::of(number);
        let size = parts.size;
        let ioctl = match self.kind {
            // Some numbers reach it that no era has.
            NodeKind::Control => Some(Ioctl::Info),
            NodeKind::Compute => Ioctl::of_request(number),
        };
        // DRM pads a short argument with zeros. The translation must see the whole struct: an
        // address that it does not see would be used as one of this process.
        let len = size.max(ioctl.map_or(0, Ioctl::args_size));
        let mut words = vec![0_u64; len.div_ceil(8)];
        let argument = &mut words.as_mut_slice().as_mut_bytes()[..len];
        // As `gaudi_codec::serve`: DRM copies in the directions of the number.
        let direction = match (parts.kind, self.kind) {
            (DRM_IOCTL_BASE, NodeKind::Compute) => parts.direction,
            _ => READ | WRITE,
        };
        if size > 0 && direction & WRITE != 0 {
            remote.read(address, &mut argument[..size])?;
        }
        let number = match ioctl {
            Some(_) => Parts {
                direction: READ | WRITE,
                size: len,
                ..parts
            }
            .request(),
            None => number,
        };
        let asked = argument.to_vec();
        let mut memory = Chunks {
            remote,
            at: 0,
            bytes: Vec::new(),
        };
        let mut translated = match ioctl {
            Some(ioctl) => self.translate(ioctl, argument, listener, request, &mut memory)?,
            None => Translated::default(),
        };
        let given = argument.to_vec();
        // A mapping in another thread can get the device address that an unmap frees: its mirror
        // must not be the one that the unmap removes.
        let is_mapping = translated.mirror.is_some() || translated.unmaps.is_some();
        let mut held = is_mapping.then(|| lock(&self.mirrors));
        let compare = |held: &mut Option<MutexGuard<'_, Mirrors>>| match held {
            Some(mirrors) => mirrors.compare(),
            None => lock(&self.mirrors).compare(),
        };
        if translated.works {
            compare(&mut held);
        }
        // SAFETY: mapped host memory is a mirror of this process, which lives until its mapping is
        // removed or the node is closed: `Opened` drops the node before the mirrors.
        let result = unsafe { self.node.ioctl(number, argument, &memory) };
        if translated.works {
            compare(&mut held);
        }
        // Without an answer, the program gets its own addresses and descriptors back.
        if *argument == *given {
            argument.copy_from_slice(&asked);
        }
        if let (Ok(()), Some(mirrors)) = (result, &mut held) {
            if let (Some(mirror), Some(args)) = (translated.mirror.take(), view::<HlMemArgs>(argument)) {
                mirrors.insert(args.0[0], mirror);
            }
            if let Some(va) = translated.unmaps {
                mirrors.remove(va);
            }
        }
        drop(held);
        if result.is_ok() && translated.exports {
            hand_over(listener, request, argument)?;
        }
        if let (Some(number), Some(args)) = (translated.number, view::<HlInfoArgs>(argument)) {
            args.arg = number;
        }
        // The thread may have been killed during a wait, and its id reused.
        if size > 0 && direction & READ != 0 && listener.is_valid(request) {
            remote.write(address, &argument[..size])?;
        }
        result
    }

    /// Replaces addresses and descriptors of the program in an argument by those of this process.
    fn translate(
        &self,
        ioctl: Ioctl,
        argument: &mut [u8],
        listener: &Listener,
        request: &Request,
        memory: &mut Chunks,
    ) -> Result<Translated, Errno> {
        let remote = memory.remote;
        let mut done = Translated::default();
        match ioctl {
            Ioctl::Info => {
                if let Some(args) = view::<HlInfoArgs>(argument) {
                    if args.op == InfoOp::REGISTER_EVENTFD {
                        let fd = fetch(request, args.arg)?;
                        done.number = Some(args.arg);
                        args.arg = fd.as_raw_fd() as u32;
                        done.fds.push(fd);
                    }
                }
            }
            Ioctl::Memory => {
                if let Some(args) = view::<HlMemArgs>(argument) {
                    let input = args.request();
                    match input.op {
                        MemOp::MAP if input.flags.contains(MemFlags::USERPTR) => {
                            // An invalid range is passed on as it is: the node rejects it.
                            let [address, size] = [input.arg[0], input.arg[2]];
                            let space = self.space(listener, request, address)?;
                            match Mirror::new(space, address, size, &self.mirrored) {
                                Ok(mirror) => {
                                    args.0[0] = mirror.here();
                                    done.mirror = Some(mirror);
                                }
                                // Addresses of this process are not the program's.
                                Err(Errno::EINVAL) => {}
                                // The node rejects this address as it does the program's.
                                Err(Errno::EFAULT) => args.0[0] = NOWHERE,
                                Err(errno) => return Err(errno),
                            }
                        }
                        MemOp::UNMAP => {
                            done.unmaps = Some(input.arg[0]);
                            done.works = true;
                        }
                        MemOp::EXPORT_DMABUF_FD => done.exports = true,
                        MemOp::REG_DMABUF_FD => {
                            let number = u32::try_from(input.arg[0]).map_err(|_| Errno::EBADF)?;
                            let fd = fetch(request, number)?;
                            args.0[0] = fd.as_raw_fd() as u64;
                            done.fds.push(fd);
                        }
                        _ => {}
                    }
                }
            }
            Ioctl::Cs => {
                done.works = true;
                if let Some(args) = view::<HlCsArgs>(argument) {
                    signals(args, memory, &mut done)?;
                }
            }
            Ioctl::WaitCs => {
                done.works = true;
                if let Some(args) = view::<HlWaitCsArgs>(argument) {
                    let input = args.request();
                    let on_counter = input
                        .flags
                        .contains(WaitCsFlags::INTERRUPT | WaitCsFlags::INTERRUPT_KERNEL_CQ);
                    if input.flags.contains(WaitCsFlags::INTERRUPT) && !on_counter {
                        args.0[0] = self.watched(remote, input.arg[0], &mut done)?;
                    }
                }
            }
            Ioctl::Cb | Ioctl::Debug | Ioctl::Nic => {}
        }
        Ok(done)
    }

    /// The address space of the thread that makes a call.
    fn space(&self, listener: &Listener, request: &Request, address: u64) -> Result<Arc<Space>, Errno> {
        // The thread can end before the mapping.
        let process = process_of(request.tid);
        // Descriptors are limited, mappings are not.
        let known = lock(&self.mirrors).space(process, address);
        let space = known.map_or_else(|| Space::of(process).map(Arc::new), Ok)?;
        if listener.is_valid(request) {
            Ok(space)
        } else {
            Err(Errno::ESRCH)
        }
    }

    /// The address in this process of a word that a wait watches. A word that is not in mapped
    /// memory does not change during the wait: only the device can change it.
    fn watched(&self, remote: Remote, address: u64, done: &mut Translated) -> Result<u64, Errno> {
        if let Some(here) = lock(&self.mirrors).here(address) {
            return Ok(here);
        }
        let mut word = vec![0_u64];
        remote.read(address, word.as_mut_slice().as_mut_bytes())?;
        let at = address_of(&word);
        done.lists.push(word);
        Ok(at)
    }
}

/// Replaces the lists of sequence numbers of waits for signals.
fn signals(args: &HlCsArgs, memory: &mut Chunks, done: &mut Translated) -> Result<(), Errno> {
    let input = args.request();
    if input.cs_flags.0 & (CsFlags::WAIT.0 | CsFlags::COLLECTIVE_WAIT.0) == 0 || input.num_chunks_execute != 1
    {
        return Ok(());
    }
    let Ok((chunks, _)) = HlCsInChunks::read_from_prefix(input.arg.as_bytes()) else {
        return Ok(());
    };
    let mut bytes = vec![0; size_of::<HlCsChunk>()];
    memory.remote.read(chunks.chunks_execute, &mut bytes)?;
    if let Ok((chunk, _)) = HlCsChunk::mut_from_prefix(&mut bytes) {
        let count = (chunk.cb_size as usize).min(MOST_SIGNALS);
        let mut list = vec![0_u64; count.max(1)];
        let read = memory
            .remote
            .read(chunk.cb_handle, list.as_mut_slice()[..count].as_mut_bytes());
        // The driver rejects an unreadable list itself: address 8 is mapped in no process.
        chunk.cb_handle = if read.is_ok() { address_of(&list) } else { 8 };
        done.lists.push(list);
    }
    memory.at = chunks.chunks_execute;
    memory.bytes = bytes;
    Ok(())
}

/// Duplicates a descriptor of the program into this process.
pub(crate) fn fetch(request: &Request, number: u32) -> Result<OwnedFd, Errno> {
    pidfd::getfd(pidfd::open(process_of(request.tid))?, number)
}

/// The process of a thread.
fn process_of(tid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|line| line.trim().parse().ok()).unwrap_or(tid)
}

/// Gives the program the new descriptor in an answer, and writes its number there.
fn hand_over(listener: &Listener, request: &Request, argument: &mut [u8]) -> Result<(), Errno> {
    let Some(args) = view::<HlMemArgs>(argument) else {
        return Ok(());
    };
    let number = i32::try_from(args.0[0]).map_err(|_| Errno::EBADF)?;
    // SAFETY: the export put a new descriptor of this process into the answer, which nothing else
    // owns.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    let close_on_exec = gaudi_sys::fd::is_close_on_exec(&fd).unwrap_or(true);
    let theirs = listener.add_fd(request, fd.as_fd(), close_on_exec, false)?;
    args.0[0] = theirs as u64;
    Ok(())
}
