//! [`Objects`]: the lifetimes of device memory, mappings, command buffers and dma-bufs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::RangeBounds;

use gaudi_capture::decode::Decoded;
use gaudi_capture::record::{Event, ProcessChange};
use gaudi_capture::value::Value;

/// The most objects that exist at a time, and the most lanes of a sort.
const MOST: usize = 1 << 16;
const MOST_ROWS: usize = 24;

/// What lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Sort {
    Memory,
    Region,
    Buffer,
    DmaBuf,
}

impl Sort {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Region => "region",
            Self::Buffer => "command buffer",
            Self::DmaBuf => "dma-buf",
        }
    }
}

/// An object by its process, the descriptor of the node or of the dma-buf, and its name.
type Place = (u32, i32, Sort, u64);

/// The places of a process with these descriptors.
fn places(pid: u32, first: i32, last: i32) -> impl RangeBounds<Place> {
    (pid, first, Sort::Memory, 0)..=(pid, last, Sort::DmaBuf, u64::MAX)
}

#[derive(Debug)]
struct Object {
    start_ns: u64,
    row: usize,
    text: String,
}

/// An object whose life is drawn.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) sort: Sort,
    /// Its lane among those of the sort: objects that live at the same time have different ones.
    pub(super) row: usize,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    pub(super) text: String,
}

/// The objects that live at a time of the capture.
#[derive(Debug, Default)]
pub(super) struct Objects {
    live: BTreeMap<Place, Object>,
    /// How many objects are in each lane.
    rows: HashMap<Sort, [usize; MOST_ROWS]>,
    /// Descriptors with a duplicate: a close of one does not close the file.
    shared: HashSet<(u32, i32)>,
    /// Objects that exceed [`MOST`].
    pub(super) omitted: u64,
}

fn number(value: Option<&Value>) -> Option<u64> {
    match value? {
        Value::Unsigned(number) | Value::Hex(number) => Some(*number),
        Value::Signed(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

impl Objects {
    /// Follows an event. Returns what ended.
    pub(super) fn add(&mut self, event: &Event, decoded: &Decoded, end_ns: u64, text: &str) -> Vec<Life> {
        match event {
            &Event::Close {
                pid, fd, result: 0, ..
            } if !self.shared.contains(&(pid, fd)) => self.end_all(end_ns, places(pid, fd, fd)),
            &Event::Dup { pid, fd, result, .. } if result >= 0 && self.shared.len() < MOST => {
                self.shared.insert((pid, fd));
                Vec::new()
            }
            Event::Process(process) => match process.change {
                ProcessChange::Exit { .. } if process.pid == process.tid => {
                    self.end_all(end_ns, places(process.pid, i32::MIN, i32::MAX))
                }
                _ => Vec::new(),
            },
            Event::Ioctl(ioctl) if ioctl.result == 0 => self.call(ioctl.pid, ioctl.fd, decoded, end_ns, text),
            _ => Vec::new(),
        }
    }

    fn call(&mut self, pid: u32, fd: i32, decoded: &Decoded, end_ns: u64, text: &str) -> Vec<Life> {
        let op = decoded.request.get("op").map(ToString::to_string);
        let (sort, name, begins) = match (decoded.call.as_str(), op.as_deref()) {
            ("HL_IOCTL_MEMORY", Some("ALLOC")) => (Sort::Memory, "handle", true),
            ("HL_IOCTL_MEMORY", Some("FREE")) => (Sort::Memory, "handle", false),
            ("HL_IOCTL_MEMORY", Some("MAP")) => (Sort::Region, "device_virt_addr", true),
            ("HL_IOCTL_MEMORY", Some("UNMAP")) => (Sort::Region, "device_virt_addr", false),
            ("HL_IOCTL_MEMORY", Some("EXPORT_DMABUF_FD")) => (Sort::DmaBuf, "fd", true),
            ("HL_IOCTL_CB", Some("CREATE")) => (Sort::Buffer, "cb_handle", true),
            ("HL_IOCTL_CB", Some("DESTROY")) => (Sort::Buffer, "cb_handle", false),
            _ => return Vec::new(),
        };
        let fields = if begins { &decoded.answer } else { &decoded.request };
        let Some(value) = number(fields.get(name)) else {
            return Vec::new();
        };
        let place = match (sort, i32::try_from(value)) {
            (Sort::DmaBuf, Ok(file)) => (pid, file, sort, 0),
            _ => (pid, fd, sort, value),
        };
        let ended = self.end(place, end_ns);
        if begins {
            self.begin(place, end_ns, text);
        }
        Vec::from_iter(ended)
    }

    fn begin(&mut self, place: Place, start_ns: u64, text: &str) {
        if self.live.len() >= MOST {
            self.omitted += 1;
            return;
        }
        let rows = self.rows.entry(place.2).or_default();
        // The last lane takes what exceeds the lanes.
        let row = rows.iter().position(|&count| count == 0).unwrap_or(MOST_ROWS - 1);
        rows[row] += 1;
        let text = format!("{}: {text}", place.2.name());
        let object = Object { start_ns, row, text };
        self.live.insert(place, object);
    }

    fn end(&mut self, place: Place, end_ns: u64) -> Option<Life> {
        let object = self.live.remove(&place)?;
        if let Some(rows) = self.rows.get_mut(&place.2) {
            rows[object.row] -= 1;
        }
        Some(Life {
            sort: place.2,
            row: object.row,
            start_ns: object.start_ns,
            // The times of a capture can be in any order.
            end_ns: end_ns.max(object.start_ns),
            text: object.text,
        })
    }

    /// Ends the objects of a file or a process, in the order of their begin.
    pub(super) fn end_all(&mut self, end_ns: u64, ended: impl RangeBounds<Place>) -> Vec<Life> {
        let ended: Vec<Place> = self.live.range(ended).map(|(place, _)| *place).collect();
        let mut ended: Vec<Life> = ended
            .into_iter()
            .filter_map(|place| self.end(place, end_ns))
            .collect();
        ended.sort_by_key(|life| life.start_ns);
        ended
    }
}
