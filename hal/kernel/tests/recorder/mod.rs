//! A file descriptor that records what is asked of it and answers what a test wants: a double at
//! the system-call boundary only.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![expect(
    unsafe_code,
    reason = "an INFO answer goes to the address in the request, as the kernel writes it"
)]

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gaudi_kernel::{Driver, Kernel, Syscalls};
use gaudi_seam::{KernelSelector, NodeKind};
use gaudi_sys::{Errno, RawMapping, SysResult};
use gaudi_uapi::drm::{DRM_IOCTL_VERSION, DrmVersion};
use gaudi_uapi::info::{HlInfoArgs, InfoOp};
use gaudi_uapi::ioctl::Parts;
use gaudi_uapi::{Era, Ioctl};
use zerocopy::{FromBytes, IntoBytes};

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Open(PathBuf),
    Ioctl { request: u32, args: Vec<u8> },
    Mmap { offset: u64, len: usize },
}

/// What is answered.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// Success; these bytes go to the front of the argument.
    Args(Vec<u8>),
    /// Success; these bytes go to `return_pointer`, cut to `return_size`, and this word to the
    /// union.
    Info(Vec<u8>, u32),
    /// Failure; as the kernel does it, the argument is overwritten all the same.
    Fails(Errno),
    /// A signal after this time: EINTR.
    Signal(Duration),
}

/// What stands behind the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// habanalabs of an era.
    Driver(Era),
    /// Another DRM driver.
    Other(&'static str),
    /// A file that knows no ioctl.
    File,
}

pub(crate) struct Recorder {
    behind: Mutex<Behind>,
    probes: Mutex<Vec<u32>>,
    asked: Mutex<Vec<Asked>>,
    replies: Mutex<VecDeque<Reply>>,
    opens: Mutex<HashMap<String, Errno>>,
    /// Whether only files that are there can be opened.
    strict: AtomicBool,
    /// What happens to the machine at the next open.
    at_open: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::of(Behind::Driver(Era::AccelDrm))
    }
}

impl Recorder {
    pub(crate) fn of(behind: Behind) -> Self {
        Self {
            behind: Mutex::new(behind),
            probes: Mutex::default(),
            asked: Mutex::default(),
            replies: Mutex::default(),
            opens: Mutex::default(),
            strict: AtomicBool::new(false),
            at_open: Mutex::default(),
        }
    }

    /// Puts something else behind the nodes that are opened from now on.
    pub(crate) fn put(&self, behind: Behind) {
        *self.behind.lock().unwrap() = behind;
    }

    /// The request numbers of the questions which interface a node speaks, since the last call.
    /// They are no part of what [`take`](Self::take) returns.
    pub(crate) fn probes(&self) -> Vec<u32> {
        std::mem::take(&mut self.probes.lock().unwrap())
    }

    /// Answers a question which interface the node speaks; nothing if this is another request.
    fn probe(&self, request: u32, args: &mut [u8]) -> Option<SysResult<()>> {
        let behind = self.behind.lock().unwrap().clone();
        let answer = if request == DRM_IOCTL_VERSION {
            let name = match behind {
                Behind::Driver(Era::AccelDrm) => Some("habanalabs"),
                Behind::Other(name) => Some(name),
                _ => None,
            };
            name.map(|name| {
                let mut version = DrmVersion::read_from_bytes(args).unwrap();
                let len = name.len().min(version.name_len as usize);
                let to = std::ptr::with_exposed_provenance_mut::<u8>(version.name as usize);
                // SAFETY: the caller promised that `name` is writable for `name_len` bytes.
                unsafe { std::ptr::copy_nonoverlapping(name.as_ptr(), to, len) };
                version.name_len = name.len() as u64;
                args.copy_from_slice(version.as_bytes());
            })
            .ok_or(Errno::ENOTTY)
        } else {
            let known = |era: Era| era.ioctl(request) == Some(Ioctl::Info);
            let info = HlInfoArgs::read_from_bytes(args).ok()?;
            let empty = (info.return_pointer, info.return_size) == (0, 0) && info.op == InfoOp::DEVICE_STATUS;
            if !empty || !(known(Era::AccelDrm) || known(Era::AccelH)) {
                return None;
            }
            match behind {
                Behind::Driver(era) if known(era) => Err(Errno::EINVAL),
                _ => Err(Errno::ENOTTY),
            }
        };
        self.probes.lock().unwrap().push(request);
        Some(answer)
    }

    /// Answers the next ioctls and mmaps in this order.
    pub(crate) fn reply(&self, replies: impl IntoIterator<Item = Reply>) {
        self.replies.lock().unwrap().extend(replies);
    }

    /// Changes the machine at the next open, before it succeeds.
    pub(crate) fn at_open(&self, what: impl FnOnce() + Send + 'static) {
        *self.at_open.lock().unwrap() = Some(Box::new(what));
    }

    /// Makes opens of a file name fail.
    pub(crate) fn refuse(&self, file_name: &str, errno: Errno) {
        self.opens.lock().unwrap().insert(file_name.to_owned(), errno);
    }

    /// Discards unused replies and the recorded requests.
    pub(crate) fn forget(&self) {
        self.replies.lock().unwrap().clear();
        self.take();
    }

    /// Makes opens of files that are not there fail as the kernel would.
    pub(crate) fn be_strict(&self) {
        self.strict.store(true, Ordering::Relaxed);
    }

    /// Makes opens of a file name succeed again.
    pub(crate) fn allow(&self, file_name: &str) {
        self.opens.lock().unwrap().remove(file_name);
    }

    /// Everything that was asked since the last call.
    pub(crate) fn take(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn next(&self) -> Reply {
        self.replies
            .lock()
            .unwrap()
            .pop_front()
            .expect("the backend asked more than the test expected")
    }
}

impl Syscalls for Recorder {
    fn open(&self, path: &Path) -> SysResult<OwnedFd> {
        self.asked.lock().unwrap().push(Asked::Open(path.to_path_buf()));
        if let Some(what) = self.at_open.lock().unwrap().take() {
            what();
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        match self.opens.lock().unwrap().get(name) {
            Some(&errno) => Err(errno),
            None if self.strict.load(Ordering::Relaxed) && !path.exists() => Err(Errno::ENOENT),
            None => Ok(File::open("/dev/null").unwrap().into()),
        }
    }

    unsafe fn ioctl(&self, _: BorrowedFd<'_>, request: u32, args: &mut [u8]) -> SysResult<()> {
        assert_eq!(
            args.len(),
            Parts::of(request).size,
            "the argument has the size of {request:#x}"
        );
        if let Some(answer) = self.probe(request, args) {
            return answer;
        }
        self.asked.lock().unwrap().push(Asked::Ioctl {
            request,
            args: args.to_vec(),
        });
        match self.next() {
            Reply::Args(bytes) => args[..bytes.len()].copy_from_slice(&bytes),
            Reply::Info(bytes, word) => {
                let mut info =
                    HlInfoArgs::read_from_bytes(args).expect("an INFO reply answers an INFO request");
                let len = bytes.len().min(info.return_size as usize);
                let to = std::ptr::with_exposed_provenance_mut::<u8>(info.return_pointer as usize);
                // SAFETY: the caller promised that `return_pointer` is writable for `return_size`
                // bytes.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, len) };
                info.arg = word;
                args.copy_from_slice(info.as_bytes());
            }
            Reply::Signal(after) => {
                std::thread::sleep(after);
                args.fill(0xee);
                return Err(Errno::EINTR);
            }
            Reply::Fails(errno) => {
                args.fill(0xee);
                return Err(errno);
            }
        }
        Ok(())
    }

    fn mmap(&self, _: BorrowedFd<'_>, offset: u64, len: usize) -> SysResult<RawMapping> {
        self.asked.lock().unwrap().push(Asked::Mmap { offset, len });
        match self.next() {
            Reply::Fails(errno) => Err(errno),
            _ => RawMapping::anonymous(len, false),
        }
    }
}

/// Node 0 of a machine, opened, with all that was asked till then forgotten.
pub(crate) fn open_node(
    driver: &Driver<dyn Syscalls>,
    recorder: &Recorder,
    kind: NodeKind,
) -> Kernel<dyn Syscalls> {
    let kernel = driver.open(KernelSelector::Index(0), kind).unwrap();
    recorder.take();
    recorder.probes();
    kernel
}

/// An open node 0 of the newest era and its recorder.
pub(crate) fn open(kind: NodeKind) -> (Kernel<dyn Syscalls>, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    let driver = Driver::at("/nowhere", Arc::clone(&recorder) as Arc<dyn Syscalls>);
    let kernel = open_node(&driver, &recorder, kind);
    (kernel, recorder)
}

/// Little-endian words, low half first where a field has 64 bits.
pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}
