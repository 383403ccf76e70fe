//! [`Files`]: opens and queries of the paths in the [`Tree`].

use std::collections::HashMap;
use std::io::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Mutex;

use gaudi_codec::UserMemory as _;
use gaudi_seam::NodeKind;
use gaudi_sys::lock;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::Mode;
use nix::unistd::{Whence, lseek};

use crate::filter::Call;
use crate::nodes::Nodes;
use crate::notify::{Listener, Reply, Request};
use crate::remote::Remote;
use crate::tree::{Entry, Tree, number};

/// The most bytes of directory entries that one call returns.
const MOST_ENTRIES: usize = 1 << 16;

/// The files of the tree, and those that the program has open.
#[derive(Debug)]
pub(crate) struct Files {
    tree: Tree,
    /// A file in memory of each path that was opened, by path and by identity.
    contents: Mutex<Contents>,
}

#[derive(Debug, Default)]
struct Contents {
    by_path: HashMap<String, OwnedFd>,
    by_identity: HashMap<(u64, u64), String>,
}

/// Attributes of a file, for stat(2).
#[derive(Debug, Clone, Copy)]
struct Attributes {
    mode: u32,
    /// Major and minor number.
    device: (u32, u32),
    inode: u64,
    size: u64,
}

/// Returns the identity of a descriptor's file: device and inode number.
pub(crate) fn identity_of(tid: u32, fd: i32) -> Option<(u64, u64)> {
    if fd < 0 {
        return None;
    }
    let data = std::fs::metadata(format!("/proc/{tid}/fd/{fd}")).ok()?;
    Some((data.dev(), data.ino()))
}

/// A path for the kernel, or the reply to a call on the tree.
enum Named<'a> {
    /// Not the supervisor's: the kernel performs the call.
    Other,
    Missing,
    Found(&'a str, &'a Entry),
}

impl Files {
    pub(crate) fn new(tree: Tree) -> Self {
        Self {
            tree,
            contents: Mutex::default(),
        }
    }

    /// The path in the tree of an open file. `None` for other files.
    fn path_of(&self, tid: u32, fd: i32) -> Option<String> {
        let identity = identity_of(tid, fd)?;
        lock(&self.contents).by_identity.get(&identity).cloned()
    }

    /// Finds what the path at an address names.
    fn named(&self, request: &Request, directory: i32, address: u64) -> Named<'_> {
        // The kernel reports what is wrong with an unreadable path.
        let Ok(path) = Remote::of(request.tid).path(address) else {
            return Named::Other;
        };
        let Ok(mut path) = String::from_utf8(path) else {
            return Named::Other;
        };
        if !path.starts_with('/') {
            if directory == libc::AT_FDCWD || path.is_empty() {
                return Named::Other;
            }
            let Some(above) = self.path_of(request.tid, directory) else {
                return Named::Other;
            };
            path = format!("{above}/{path}");
        }
        match self.tree.find(&path) {
            None => Named::Other,
            Some(None) => Named::Missing,
            Some(Some((path, entry))) => Named::Found(path, entry),
        }
    }

    /// Answers a call other than ioctl(2).
    pub(crate) fn answer(&self, call: Call, nodes: &Nodes, listener: &Listener, request: &Request) -> Reply {
        let arguments = request.arguments;
        let fd = arguments[0] as i32;
        const HERE: i32 = libc::AT_FDCWD;
        match call {
            Call::Open => self.open(nodes, listener, request, HERE, arguments[0], arguments[1]),
            Call::OpenAt => self.open(nodes, listener, request, fd, arguments[1], arguments[2]),
            Call::OpenAt2 => {
                // `struct open_how` starts with the flags.
                let mut flags = [0; 8];
                match Remote::of(request.tid).read(arguments[2], &mut flags) {
                    Ok(()) => self.open(
                        nodes,
                        listener,
                        request,
                        fd,
                        arguments[1],
                        u64::from_le_bytes(flags),
                    ),
                    Err(_) => Reply::Continue,
                }
            }
            Call::Stat | Call::Lstat => self.stat(
                listener,
                request,
                HERE,
                arguments[0],
                arguments[1],
                call == Call::Stat,
            ),
            Call::Fstat => self.fstat(nodes, listener, request, fd, arguments[1]),
            Call::StatAt => {
                let flags = arguments[3] as i32;
                if flags & libc::AT_EMPTY_PATH != 0 && self.is_empty(request, arguments[1]) {
                    self.fstat(nodes, listener, request, fd, arguments[2])
                } else {
                    let follows = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
                    self.stat(listener, request, fd, arguments[1], arguments[2], follows)
                }
            }
            Call::Statx => self.statx(nodes, listener, request),
            Call::Access => self.access(request, HERE, arguments[0]),
            Call::AccessAt => self.access(request, fd, arguments[1]),
            Call::ReadLink => {
                self.read_link(listener, request, HERE, arguments[0], arguments[1], arguments[2])
            }
            Call::ReadLinkAt => {
                self.read_link(listener, request, fd, arguments[1], arguments[2], arguments[3])
            }
            Call::GetDents => self.entries(listener, request, fd),
            Call::Ioctl => Reply::Continue,
        }
    }

    fn is_empty(&self, request: &Request, address: u64) -> bool {
        // A null pointer means the same (Linux 6.11).
        address == 0
            || Remote::of(request.tid)
                .path(address)
                .is_ok_and(|path| path.is_empty())
    }

    fn open(
        &self,
        nodes: &Nodes,
        listener: &Listener,
        request: &Request,
        directory: i32,
        path: u64,
        flags: u64,
    ) -> Reply {
        let flags = flags as i32;
        let (path, entry) = match self.named(request, directory, path) {
            Named::Other => return Reply::Continue,
            Named::Missing => return Reply::Errno(Errno::ENOENT),
            Named::Found(path, entry) => (path, entry),
        };
        let is_directory = self.tree.is_directory(path, entry);
        if flags & libc::O_DIRECTORY != 0 && !is_directory {
            return Reply::Errno(Errno::ENOTDIR);
        }
        let opened = match entry {
            &Entry::Node { kind, index } => nodes.open(kind, index),
            _ if flags & libc::O_ACCMODE != libc::O_RDONLY => Err(Errno::EACCES),
            Entry::Link(_) if flags & libc::O_NOFOLLOW != 0 => Err(Errno::ELOOP),
            Entry::Link(_) if !is_directory => Err(Errno::ENOENT),
            _ => self.content(path, entry),
        };
        let close_on_exec = flags & libc::O_CLOEXEC != 0;
        let added = opened.and_then(|fd| listener.add_fd(request, fd.as_fd(), close_on_exec, true));
        match added {
            Ok(_) => Reply::Sent,
            Err(errno) => Reply::Errno(errno),
        }
    }

    /// Opens the content of a path for reading.
    fn content(&self, path: &str, entry: &Entry) -> Result<OwnedFd, Errno> {
        let mut contents = lock(&self.contents);
        if !contents.by_path.contains_key(path) {
            let file = self.make(path, entry)?;
            let data = nix::sys::stat::fstat(&file)?;
            contents
                .by_identity
                .insert((data.st_dev, data.st_ino), path.to_owned());
            contents.by_path.insert(path.to_owned(), file);
        }
        let Some(file) = contents.by_path.get(path) else {
            unreachable!("the file was just inserted");
        };
        // A descriptor with an offset of its own, which cannot write.
        let again = format!("/proc/self/fd/{}", file.as_raw_fd());
        open(&*again, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
    }

    /// Makes the file of a path: its bytes, or the entries of a directory.
    fn make(&self, path: &str, entry: &Entry) -> Result<OwnedFd, Errno> {
        let bytes = match entry {
            Entry::File(bytes) => bytes.clone(),
            _ => self.directory(path),
        };
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(c"gaudi-run", flags)?;
        let mut file = std::fs::File::from(file);
        let written = file.write_all(&bytes);
        written.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
        let seals =
            SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SEAL;
        let _ = fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(file.into())
    }

    /// The entries of a directory in the form of getdents64(2).
    fn directory(&self, path: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let listed = self.tree.list(path);
        let names = [(".", libc::DT_DIR), ("..", libc::DT_DIR)]
            .into_iter()
            .chain(listed.into_iter().map(|(name, entry)| {
                let kind = match entry {
                    Entry::Directory => libc::DT_DIR,
                    Entry::File(_) => libc::DT_REG,
                    Entry::Link(_) => libc::DT_LNK,
                    Entry::Node { .. } => libc::DT_CHR,
                };
                (name, kind)
            }));
        for (name, kind) in names {
            // d_ino, d_off, d_reclen, d_type, d_name
            let len = (19 + name.len() + 1).next_multiple_of(8);
            let end = bytes.len() + len;
            bytes.extend(inode(&format!("{path}/{name}")).to_le_bytes());
            bytes.extend((end as u64).to_le_bytes());
            bytes.extend((len as u16).to_le_bytes());
            bytes.push(kind);
            bytes.extend(name.as_bytes());
            bytes.resize(end, 0);
        }
        bytes
    }

    /// getdents64(2) on a directory of the tree: the file has the entries, and its offset is the
    /// position.
    fn entries(&self, listener: &Listener, request: &Request, fd: i32) -> Reply {
        let Some(path) = self.path_of(request.tid, fd) else {
            return Reply::Continue;
        };
        if let Some(Some((path, entry))) = self.tree.find(&path) {
            if !self.tree.is_directory(path, entry) {
                return Reply::Errno(Errno::ENOTDIR);
            }
        }
        let most = usize::try_from(request.arguments[2])
            .unwrap_or(usize::MAX)
            .min(MOST_ENTRIES);
        let read = || -> Result<i64, Errno> {
            let number = u32::try_from(fd).map_err(|_| Errno::EBADF)?;
            let file = crate::nodes::fetch(request, number)?;
            let at = lseek(&file, 0, Whence::SeekCur)?;
            let mut bytes = vec![0; most];
            let got = nix::sys::uio::pread(&file, &mut bytes, at)?;
            let mut len = 0;
            while let Some(size) = bytes[len..got].get(16..18) {
                let size = usize::from(u16::from_le_bytes([size[0], size[1]]));
                if size == 0 || len + size > got {
                    break;
                }
                len += size;
            }
            if len == 0 && got > 0 {
                return Err(Errno::EINVAL);
            }
            write(listener, request, request.arguments[1], &bytes[..len])?;
            lseek(&file, at + len as i64, Whence::SeekSet)?;
            Ok(len as i64)
        };
        read().into()
    }

    fn attributes(&self, path: &str, entry: &Entry, follows: bool) -> Attributes {
        let is_directory = self.tree.is_directory(path, entry);
        let (mode, size, device) = match entry {
            Entry::Link(target) if !follows || !is_directory => (libc::S_IFLNK | 0o777, target.len(), (0, 0)),
            Entry::Directory | Entry::Link(_) => (libc::S_IFDIR | 0o755, 0, (0, 0)),
            Entry::File(bytes) => (libc::S_IFREG | 0o444, bytes.len(), (0, 0)),
            &Entry::Node { kind, index } => (libc::S_IFCHR | 0o666, 0, number(kind, index)),
        };
        Attributes {
            mode,
            device,
            inode: inode(path),
            size: size as u64,
        }
    }

    fn stat(
        &self,
        listener: &Listener,
        request: &Request,
        directory: i32,
        path: u64,
        buffer: u64,
        follows: bool,
    ) -> Reply {
        match self.named(request, directory, path) {
            Named::Other => Reply::Continue,
            Named::Missing => Reply::Errno(Errno::ENOENT),
            Named::Found(path, entry) => {
                let attributes = self.attributes(path, entry, follows);
                write(listener, request, buffer, &stat_bytes(attributes)).into()
            }
        }
    }

    /// The attributes of an open node or file of the tree. `None` for other files.
    fn of_fd(&self, nodes: &Nodes, tid: u32, fd: i32) -> Option<Attributes> {
        let identity = identity_of(tid, fd)?;
        if let Some(node) = nodes.find(identity) {
            let name = match node.kind {
                NodeKind::Compute => "accel",
                NodeKind::Control => "accel_controlD",
            };
            let entry = Entry::Node {
                kind: node.kind,
                index: node.index,
            };
            let path = format!("/dev/accel/{name}{}", node.index);
            return Some(self.attributes(&path, &entry, true));
        }
        let path = lock(&self.contents).by_identity.get(&identity).cloned()?;
        let (path, entry) = self.tree.find(&path)??;
        Some(self.attributes(path, entry, true))
    }

    fn fstat(&self, nodes: &Nodes, listener: &Listener, request: &Request, fd: i32, buffer: u64) -> Reply {
        match self.of_fd(nodes, request.tid, fd) {
            Some(attributes) => write(listener, request, buffer, &stat_bytes(attributes)).into(),
            None => Reply::Continue,
        }
    }

    fn statx(&self, nodes: &Nodes, listener: &Listener, request: &Request) -> Reply {
        let [directory, path, flags, _, buffer, _] = request.arguments;
        let (directory, flags) = (directory as i32, flags as i32);
        let attributes = if flags & libc::AT_EMPTY_PATH != 0 && self.is_empty(request, path) {
            self.of_fd(nodes, request.tid, directory)
        } else {
            match self.named(request, directory, path) {
                Named::Other => None,
                Named::Missing => return Reply::Errno(Errno::ENOENT),
                Named::Found(path, entry) => {
                    let follows = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
                    Some(self.attributes(path, entry, follows))
                }
            }
        };
        match attributes {
            Some(attributes) => write(listener, request, buffer, &statx_bytes(attributes)).into(),
            None => Reply::Continue,
        }
    }

    fn access(&self, request: &Request, directory: i32, path: u64) -> Reply {
        match self.named(request, directory, path) {
            Named::Other => Reply::Continue,
            Named::Missing => Reply::Errno(Errno::ENOENT),
            Named::Found(..) => Reply::Value(0),
        }
    }

    fn read_link(
        &self,
        listener: &Listener,
        request: &Request,
        directory: i32,
        path: u64,
        buffer: u64,
        size: u64,
    ) -> Reply {
        match self.named(request, directory, path) {
            Named::Other => Reply::Continue,
            Named::Missing => Reply::Errno(Errno::ENOENT),
            Named::Found(_, Entry::Link(target)) => {
                let len = usize::try_from(size).unwrap_or(usize::MAX).min(target.len());
                let written = write(listener, request, buffer, &target.as_bytes()[..len]);
                written.map(|_| len as i64).into()
            }
            Named::Found(..) => Reply::Errno(Errno::EINVAL),
        }
    }
}

/// Writes a part of the answer to a call, unless its thread was killed and its id may be that of
/// another.
fn write(listener: &Listener, request: &Request, address: u64, bytes: &[u8]) -> Result<i64, Errno> {
    if !listener.is_valid(request) {
        return Err(Errno::ESRCH);
    }
    Remote::of(request.tid).write(address, bytes).map(|()| 0)
}

/// A stable inode number of a path (FNV-1a).
fn inode(path: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    path.bytes().fold(0xcbf2_9ce4_8422_2325, step) | 1
}

/// Puts numbers at the offsets of a struct's fields.
macro_rules! fields {
    ($type:ty { $($field:ident: $value:expr),* $(,)? }) => {{
        let mut bytes = vec![0_u8; size_of::<$type>()];
        $(
            let value = $value.to_ne_bytes();
            let at = std::mem::offset_of!($type, $field);
            bytes[at..at + value.len()].copy_from_slice(&value);
        )*
        bytes
    }};
}

fn stat_bytes(of: Attributes) -> Vec<u8> {
    let (major, minor) = of.device;
    fields!(libc::stat {
        st_mode: of.mode,
        st_ino: of.inode,
        st_nlink: 1 as libc::nlink_t,
        st_rdev: libc::makedev(major, minor),
        st_size: of.size,
        st_blksize: 4096 as libc::blksize_t,
    })
}

/// `STATX_BASIC_STATS`, linux/stat.h.
const BASIC_STATS: u32 = 0x7ff;

fn statx_bytes(of: Attributes) -> Vec<u8> {
    let (major, minor) = of.device;
    fields!(libc::statx {
        stx_mask: BASIC_STATS,
        stx_blksize: 4096_u32,
        stx_nlink: 1_u32,
        stx_mode: of.mode as u16,
        stx_ino: of.inode,
        stx_size: of.size,
        stx_rdev_major: major,
        stx_rdev_minor: minor,
    })
}
