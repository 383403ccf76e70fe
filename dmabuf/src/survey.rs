//! Every dma-buf of the machine and its holders, from `/proc`, debugfs and sysfs. A pure
//! reader: nothing is opened that could change anything, and it can be pointed at a copy of another
//! machine's files.
//!
//! - *`/proc/PID/fdinfo` and `/proc/PID/maps`*: processes with descriptors and mappings; root sees
//!   all processes.
//! - *debugfs `dma_buf/bufinfo`*: all buffers, those that only the kernel holds too, and the
//!   devices that are attached; root only.
//! - *sysfs `kernel/dmabuf/buffers`*: where `CONFIG_DMABUF_SYSFS_STATS` is built in.
//! - *What could not be read is named*, with the reason: a short list is not taken for a whole one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind as IoKind, Read as _};
use std::path::Path;

use gaudi_sys::parse::hexadecimal;
use gaudi_sys::standin;

use crate::export::Exporter;

/// More of one file than this is not read.
const MOST: u64 = 64 << 20;

/// A process that holds a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its name (`comm`), with control characters escaped.
    pub name: String,
    /// Descriptors of the buffer.
    pub descriptors: u32,
    /// Mappings of the buffer.
    pub mappings: u32,
}

/// One buffer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// Its inode.
    pub inode: u64,
    /// Where a stand-in starts in its file; 0 for a dma-buf.
    pub start: u64,
    /// Its bytes, if a source has them.
    pub size: Option<u64>,
    /// Its exporter as tables show it; empty where unknown.
    pub exporter: String,
    /// Its name, where it has one, with control characters escaped.
    pub name: Option<String>,
    /// References to its file: descriptors, mappings, devices, messages in flight.
    pub references: Option<u64>,
    /// Whether this is a memfd that stands in for a dma-buf.
    pub stand_in: bool,
    /// Processes that hold it, by number.
    pub processes: Vec<Process>,
    /// Devices attached to it (debugfs).
    pub devices: Vec<String>,
}

/// What could not be read, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// The file, or how many of which.
    pub what: String,
    /// The reason and, where there is one, what helps.
    pub why: String,
}

/// All that was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Survey {
    /// Buffers, by inode.
    pub buffers: Vec<Found>,
    /// What is missing.
    pub unread: Vec<Unread>,
}

/// Looks at this machine.
pub fn survey() -> Survey {
    survey_at(Path::new("/"))
}

/// Looks at a machine whose `/proc` and `/sys` are below `root`.
pub fn survey_at(root: &Path) -> Survey {
    let mut found = Gathered::default();
    found.processes(&root.join("proc"));
    found.bufinfo(&root.join("sys/kernel/debug/dma_buf/bufinfo"));
    found.sysfs(&root.join("sys/kernel/dmabuf/buffers"));
    let mut buffers: Vec<Found> = found.buffers.into_values().collect();
    for buffer in &mut buffers {
        buffer.processes.sort_by_key(|process| process.pid);
    }
    Survey {
        buffers,
        unread: found.unread,
    }
}

/// Dma-bufs and stand-ins may have the same inode, in two file systems.
type Key = (bool, u64, u64);

#[derive(Default)]
struct Gathered {
    buffers: BTreeMap<Key, Found>,
    unread: Vec<Unread>,
}

/// What a link in `/proc/PID/fd` or a path in `/proc/PID/maps` shows.
fn kind_of(link: &str) -> Option<bool> {
    let marker = format!("/memfd:{}", standin::MEMFD_NAME.to_string_lossy());
    if link.starts_with("/dmabuf:") || link == "anon_inode:dmabuf" {
        return Some(false);
    }
    let rest = link.strip_prefix(&marker)?;
    (rest.is_empty() || rest.starts_with(' ')).then_some(true)
}

impl Gathered {
    fn entry(&mut self, stand_in: bool, inode: u64, start: u64) -> &mut Found {
        self.buffers
            .entry((stand_in, inode, start))
            .or_insert_with(|| Found {
                inode,
                start,
                stand_in,
                exporter: if stand_in {
                    Exporter::StandIn.name().to_owned()
                } else {
                    String::new()
                },
                ..Found::default()
            })
    }

    fn missing(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.unread.push(Unread {
            what: what.into(),
            why: why.into(),
        });
    }

    fn processes(&mut self, proc: &Path) {
        let entries = match std::fs::read_dir(proc) {
            Ok(entries) => entries,
            Err(error) => return self.missing(proc.display().to_string(), error.to_string()),
        };
        let pids = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut pids: Vec<u32> = pids.collect();
        pids.sort_unstable();
        let mut refused: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for pid in pids {
            let folder = proc.join(pid.to_string());
            for answer in [self.descriptors(pid, &folder), self.mappings(pid, &folder)] {
                match answer {
                    Ok(()) => {}
                    // It ended while it was looked at.
                    Err(error) if error.kind() == IoKind::NotFound => {}
                    Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => {}
                    Err(error) => {
                        let pids = refused.entry(error.kind().to_string()).or_default();
                        if pids.last() != Some(&pid) {
                            pids.push(pid);
                        }
                    }
                }
            }
        }
        for (why, pids) in refused {
            let shown: Vec<String> = pids.iter().take(4).map(u32::to_string).collect();
            let more = if pids.len() > shown.len() { ", …" } else { "" };
            self.missing(
                match pids.len() {
                    1 => format!("1 process ({})", shown.join(", ")),
                    all => format!("{all} processes ({}{more})", shown.join(", ")),
                },
                format!("{why}: only root sees the descriptors of other users' processes"),
            );
        }
    }

    fn descriptors(&mut self, pid: u32, folder: &Path) -> std::io::Result<()> {
        for entry in std::fs::read_dir(folder.join("fd"))? {
            let entry = entry?;
            let Ok(link) = std::fs::read_link(entry.path()) else {
                continue;
            };
            let link = link.to_string_lossy();
            let Some(stand_in) = kind_of(&link) else {
                continue;
            };
            let Ok(notes) = read(&folder.join("fdinfo").join(entry.file_name())) else {
                continue;
            };
            let kind = (stand_in, link.starts_with('/'));
            self.descriptor(pid, folder, &entry.path(), kind, &notes);
        }
        Ok(())
    }

    /// Books a descriptor that looks like a stand-in, or like a dma-buf by a path that anybody
    /// could have named so.
    fn descriptor(
        &mut self,
        pid: u32,
        folder: &Path,
        fd: &Path,
        (stand_in, named): (bool, bool),
        notes: &str,
    ) {
        let field = |name: &str| {
            let mut lines = notes.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
        };
        let window = standin::window_in(notes);
        if stand_in && window.is_none() {
            // The memory itself, not an export of it.
            return;
        }
        // Any file can have a dma-buf's path; the kernel notes the exporter of dma-bufs alone.
        if !stand_in && named && field("exp_name").is_none() {
            return;
        }
        // Before Linux 5.14 fdinfo has no inode.
        let inode = field("ino").and_then(|text| text.parse().ok()).or_else(|| {
            use std::os::unix::fs::MetadataExt as _;
            std::fs::metadata(fd).ok().map(|meta| meta.ino())
        });
        // The process closed the descriptor during the survey.
        let Some(inode) = inode else { return };
        let buffer = self.entry(
            stand_in,
            inode,
            window.filter(|_| stand_in).map_or(0, |w| w.offset),
        );
        match window {
            Some(window) if stand_in => buffer.size = Some(window.len),
            _ => {
                buffer.size = field("size").and_then(|text| text.parse().ok()).or(buffer.size);
                buffer.references = field("count").and_then(|text| text.parse().ok());
                if let Some(exporter) = field("exp_name") {
                    buffer.exporter = shown(Exporter::from_name(exporter).name());
                }
                buffer.name = field("name").filter(|name| !name.is_empty()).map(shown);
            }
        }
        holder(buffer, pid, folder).descriptors += 1;
    }

    fn mappings(&mut self, pid: u32, folder: &Path) -> std::io::Result<()> {
        for line in read(&folder.join("maps"))?.lines() {
            let Some((inode, offset, path)) = mapping(line) else {
                continue;
            };
            let Some(stand_in) = kind_of(path) else { continue };
            let key = if stand_in {
                // Which export a mapping of the memory came from is not shown: that whose window it
                // starts in.
                let mut known = self.buffers.iter();
                let inside = |found: &Found| {
                    // A buffer of unknown size contains no offset.
                    let end = found.start.saturating_add(found.size.unwrap_or(0));
                    found.stand_in && found.inode == inode && (found.start..end).contains(&offset)
                };
                let Some((&key, _)) = known.find(|(_, found)| inside(found)) else {
                    continue;
                };
                key
            } else {
                (false, inode, 0)
            };
            let buffer = self.entry(key.0, key.1, key.2);
            holder(buffer, pid, folder).mappings += 1;
        }
        Ok(())
    }

    fn bufinfo(&mut self, path: &Path) {
        let text = match read(path) {
            Ok(text) => text,
            Err(error) => {
                let help = match error.kind() {
                    IoKind::NotFound => {
                        "debugfs is not mounted, or the kernel has none: sudo mount -t debugfs none /sys/kernel/debug"
                    }
                    _ => "only root reads debugfs",
                };
                return self.missing(path.display().to_string(), format!("{}: {help}", error.kind()));
            }
        };
        let mut current = None;
        let mut in_devices = false;
        for line in text.lines() {
            if let Some(row) = BufinfoRow::parse(line) {
                let buffer = self.entry(false, row.inode, 0);
                buffer.size = Some(row.size);
                buffer.references = Some(row.references);
                buffer.exporter = shown(Exporter::from_name(row.exporter).name());
                if row.name != "<none>" {
                    buffer.name = Some(shown(row.name));
                }
                (current, in_devices) = (Some(row.inode), false);
            } else if line.trim() == "Attached Devices:" {
                in_devices = true;
            } else if line.starts_with("Total ") {
                (current, in_devices) = (None, false);
            } else if let (true, Some(inode), Some(device)) = (in_devices, current, line.strip_prefix('\t')) {
                self.entry(false, inode, 0).devices.push(shown(device));
            }
        }
    }

    fn sysfs(&mut self, folder: &Path) {
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == IoKind::NotFound => {
                return self.missing(
                    folder.display().to_string(),
                    "this kernel has no CONFIG_DMABUF_SYSFS_STATS",
                );
            }
            Err(error) => return self.missing(folder.display().to_string(), error.kind().to_string()),
        };
        for entry in entries.flatten() {
            let Some(inode) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let text = |name: &str| read(&entry.path().join(name)).ok();
            let (size, exporter) = (text("size"), text("exporter_name"));
            let buffer = self.entry(false, inode, 0);
            buffer.size = size.and_then(|text| text.trim().parse().ok()).or(buffer.size);
            if let Some(exporter) = exporter {
                buffer.exporter = shown(Exporter::from_name(exporter.trim()).name());
            }
        }
    }
}

/// A line of `bufinfo` that describes a buffer (drivers/dma-buf/dma-buf.c `dma_buf_debug_show`).
struct BufinfoRow<'a> {
    size: u64,
    references: u64,
    exporter: &'a str,
    inode: u64,
    name: &'a str,
}

impl<'a> BufinfoRow<'a> {
    /// Numbers have the kernel's widths (`%08zu\t%08x\t%08x\t%08ld`): a buffer's name may hold line
    /// breaks, but of 31 bytes it cannot make such a row.
    fn parse(line: &'a str) -> Option<Self> {
        let wide = |text: &'a str| (text.len() >= 8).then_some(text);
        let mut fields = line.splitn(7, '\t');
        let size = wide(fields.next()?)?.parse().ok()?;
        let (_flags, _mode) = (wide(fields.next()?)?, wide(fields.next()?)?);
        Some(Self {
            size,
            references: wide(fields.next()?)?.parse().ok()?,
            exporter: fields.next()?,
            inode: fields.next()?.parse().ok()?,
            name: fields.next().unwrap_or("<none>"),
        })
    }
}

/// Inode, file offset and path of a line in `/proc/PID/maps` (proc_pid_maps(5)).
fn mapping(line: &str) -> Option<(u64, u64, &str)> {
    let mut rest = line;
    let mut word = || {
        let text = rest.trim_start_matches(' ');
        let end = text.find(' ').unwrap_or(text.len());
        let (word, tail) = text.split_at(end);
        rest = tail;
        (!word.is_empty()).then_some(word)
    };
    let (_range, _rights) = (word()?, word()?);
    let offset = hexadecimal(word()?)?;
    let _device = word()?;
    let inode = word()?.parse().ok()?;
    Some((inode, offset, rest.trim_start_matches(' ')))
}

fn holder<'a>(buffer: &'a mut Found, pid: u32, folder: &Path) -> &'a mut Process {
    let at = match buffer.processes.iter().position(|process| process.pid == pid) {
        Some(at) => at,
        None => {
            let name =
                read(&folder.join("comm")).map_or_else(|_| "?".to_owned(), |text| shown(text.trim_end()));
            buffer.processes.push(Process {
                pid,
                name,
                descriptors: 0,
                mappings: 0,
            });
            buffer.processes.len() - 1
        }
    };
    &mut buffer.processes[at]
}

/// Text that another process chose, fit for a terminal.
fn shown(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let escaped = c.is_control().then(|| c.escape_default());
            let plain = escaped.is_none().then_some(c);
            escaped.into_iter().flatten().chain(plain)
        })
        .collect()
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
