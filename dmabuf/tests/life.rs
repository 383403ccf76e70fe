//! Any order of exporting, cutting, attaching, passing, dropping, forking and closing, against a
//! model of what holds what: the modelled error each time, the modelled bytes, and in the end
//! nothing open.
//!
//! `GAUDI_TEST_CASES=1000000 cargo test --release -p gaudi-dmabuf --test life -- --nocapture` is
//! the long run; `GAUDI_TEST_SEED` replays from a seed.

#![expect(unsafe_code, reason = "fork(2) is among what is tested")]

mod device_memory;

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use gaudi_dmabuf::{Attachment, CpuAttachment, DmaBuf, ErrorKind, Hold, Window, leaks, receive, send, stats};
use gaudi_seam::{CloseError, DeviceSpec, Errno, SharedIo};
use gaudi_sys::random::SplitMix64;
use gaudi_uapi::memory::MemFlags;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use device_memory::DeviceMemory;

const PAGE: u64 = 4096;
/// The part of device memory that sequences work in.
const REACH: u64 = 16 * PAGE;
const LONG: Duration = Duration::from_secs(120);
const SPEC: &str = "mock:gaudi2?name=life&dram=768MiB";

/// An index below `count`, if there is one.
fn pick(random: &mut SplitMix64, count: usize) -> Option<usize> {
    (count > 0).then(|| random.below(count as u64) as usize)
}

/// What a test holds of a buffer.
enum Thing {
    Window(Window),
    Attached(Attachment),
    Cpu(CpuAttachment),
}

impl Thing {
    fn window(&self) -> &Window {
        match self {
            Self::Window(window) => window,
            Self::Attached(attachment) => attachment.window(),
            Self::Cpu(cpu) => cpu.window(),
        }
    }
}

/// The model's idea of a thing: which handle it is of, and which bytes of device memory it shows.
struct Idea {
    handle: usize,
    start: u64,
    len: u64,
    /// Of an attachment.
    name: Option<String>,
}

/// The model's idea of a descriptor that this process owns.
struct Handle {
    start: u64,
    size: u64,
    /// Whether the memory made it, and so may use it again; else it came over a socket.
    own: bool,
}

struct World {
    io: SharedIo,
    memory: Option<DeviceMemory>,
    things: Vec<(Thing, Idea)>,
    handles: Vec<Handle>,
    /// What the bytes must be.
    shadow: Vec<u8>,
    random: SplitMix64,
    made: u64,
}

impl World {
    fn new(io: &SharedIo, seed: u64) -> Self {
        Self {
            io: io.clone(),
            memory: None,
            things: Vec::new(),
            handles: Vec::new(),
            shadow: vec![0; REACH as usize],
            random: SplitMix64::new(seed),
            made: 0,
        }
    }

    fn is_live(&self, handle: usize) -> bool {
        self.things.iter().any(|(_, idea)| idea.handle == handle)
    }

    fn names_on(&self, handle: usize) -> Vec<&str> {
        let on = self.things.iter().filter(|(_, idea)| idea.handle == handle);
        on.filter_map(|(_, idea)| idea.name.as_deref()).collect()
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..25 => self.export(),
            25..40 => self.cut(),
            40..60 => self.attach(),
            60..70 => self.touch(),
            70..78 => self.pass(),
            78..90 => self.let_go(),
            90..95 => self.close_buffer(),
            95..99 => self.close_memory(),
            _ => self.fork_once(),
        }
    }

    /// A range that is right three times of four.
    fn range(&mut self, within: u64) -> (u64, u64) {
        match self.random.below(8) {
            0 => (self.random.next(), self.random.below(3 * PAGE)),
            1 => (self.random.below(within + 2), self.random.next()),
            _ => {
                let offset = self.random.below(within);
                (offset, 1 + self.random.below(within - offset))
            }
        }
    }

    fn export(&mut self) {
        let memory = self.memory.get_or_insert_with(|| {
            DeviceMemory::new(self.io.clone(), 1, MemFlags::NONE).expect("a page of device memory is free")
        });
        let whole = memory.len();
        let (mut offset, mut len) = (self.random.below(REACH), self.random.below(3 * PAGE));
        if self.random.below(8) == 0 {
            (offset, len) = (whole - self.random.below(PAGE), self.random.next());
        } else {
            len = len.min(REACH - offset);
        }
        let memory = self.memory.as_ref().expect("just made");
        let right = len > 0 && offset.checked_add(len).is_some_and(|end| end <= whole);
        match memory.window(offset, len) {
            Ok(window) => {
                assert!(right, "a window of {len} bytes at {offset:#x} was to be refused");
                let covers =
                    |handle: &Handle| handle.start <= offset && offset + len <= handle.start + handle.size;
                let known = self.handles.iter().enumerate();
                let mut known =
                    known.filter(|(at, handle)| handle.own && covers(handle) && self.is_live(*at));
                let handle = known.next().map(|(at, _)| at).unwrap_or_else(|| {
                    let start = offset / PAGE * PAGE;
                    let size = (offset + len).next_multiple_of(PAGE) - start;
                    self.handles.push(Handle {
                        start,
                        size,
                        own: true,
                    });
                    self.handles.len() - 1
                });
                let Handle { start, size, .. } = self.handles[handle];
                assert_eq!(
                    (window.offset(), window.len(), window.dmabuf().size()),
                    (offset - start, len, size),
                    "the window of {len} bytes at {offset:#x}"
                );
                self.hold(Thing::Window(window), handle, offset, len, None);
            }
            Err(error) => {
                assert!(!right, "a window of {len} bytes at {offset:#x}: {error}");
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            }
        }
    }

    fn hold(&mut self, thing: Thing, handle: usize, start: u64, len: u64, name: Option<String>) {
        let idea = Idea {
            handle,
            start,
            len,
            name,
        };
        self.things.push((thing, idea));
    }

    fn cut(&mut self) {
        let Some(at) = pick(&mut self.random, self.things.len()) else {
            return;
        };
        let (handle, start, within) = {
            let idea = &self.things[at].1;
            (idea.handle, idea.start, idea.len)
        };
        let (offset, len) = self.range(within);
        let right = len > 0 && offset.checked_add(len).is_some_and(|end| end <= within);
        match self.things[at].0.window().window(offset, len) {
            Ok(window) => {
                assert!(right, "{len} bytes at {offset:#x} of {within} were to be refused");
                self.hold(Thing::Window(window), handle, start + offset, len, None);
            }
            Err(error) => {
                assert!(!right, "{len} bytes at {offset:#x} of {within}: {error}");
                assert_eq!(error.errno(), Some(Errno::EINVAL), "{error}");
            }
        }
    }

    fn attach(&mut self) {
        let Some(at) = pick(&mut self.random, self.things.len()) else {
            return;
        };
        self.made += 1;
        let name = format!("holder {}", self.made);
        let idea = &self.things[at].1;
        let (handle, start, len) = (idea.handle, idea.start, idea.len);
        let window = self.things[at].0.window();
        let thing = if self.made % 2 == 0 {
            Thing::Attached(
                window
                    .attach_as(Hold::Region, &*name)
                    .expect("attaching maps nothing"),
            )
        } else {
            Thing::Cpu(window.attach_cpu(&*name).expect("memory can be mapped"))
        };
        self.hold(thing, handle, start, len, Some(name));
        assert_eq!(
            self.things[at].0.window().dmabuf().attachments(),
            self.names_on(handle),
            "those attached, oldest first"
        );
    }

    /// Reads all of a view, then writes a part of it.
    fn touch(&mut self) {
        let views: Vec<usize> = (0..self.things.len())
            .filter(|&at| matches!(self.things[at].0, Thing::Cpu(_)))
            .collect();
        let Some(view) = pick(&mut self.random, views.len()) else {
            return;
        };
        let (Thing::Cpu(cpu), idea) = &self.things[views[view]] else {
            unreachable!("only views were chosen")
        };
        let range = idea.start as usize..(idea.start + idea.len) as usize;
        let access = cpu.editing().expect("access begins");
        let mut seen = vec![0; range.len()];
        access.read(0, &mut seen).expect("inside");
        assert_eq!(seen, self.shadow[range.clone()], "the bytes of {range:?}");
        let (offset, byte) = (self.random.below(idea.len) as usize, self.random.next() as u8);
        access.write(offset, &[byte]).expect("inside");
        access
            .read(range.len(), &mut [0])
            .expect_err("nothing is read past the view");
        access.end().expect("access ends");
        self.shadow[range.start + offset] = byte;
    }

    /// Over a socket and back: another handle of the same buffer.
    fn pass(&mut self) {
        let Some(at) = pick(&mut self.random, self.things.len()) else {
            return;
        };
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        let window = self.things[at].0.window();
        send(&near, window, LONG).expect("there is room in a new socket");
        let came = receive(&far, LONG).expect("what was sent comes");
        assert_eq!(
            (came.dmabuf().identity(), came.offset(), came.len()),
            (window.dmabuf().identity(), window.offset(), window.len())
        );
        let idea = &self.things[at].1;
        let (start, len, of) = (idea.start, idea.len, &self.handles[idea.handle]);
        self.handles.push(Handle { own: false, ..*of });
        self.hold(Thing::Window(came), self.handles.len() - 1, start, len, None);
    }

    fn let_go(&mut self) {
        if let Some(at) = pick(&mut self.random, self.things.len()) {
            drop(self.things.remove(at));
        }
    }

    /// Closes the buffer of a window, which is taken away whatever comes of it.
    fn close_buffer(&mut self) {
        let Some(at) = pick(&mut self.random, self.things.len()) else {
            return;
        };
        let dmabuf: DmaBuf = self.things[at].0.window().dmabuf().clone();
        let (thing, idea) = self.things.remove(at);
        drop(thing);
        let names: Vec<String> = self
            .names_on(idea.handle)
            .into_iter()
            .map(str::to_owned)
            .collect();
        let on = self
            .things
            .iter()
            .filter(|(_, other)| other.handle == idea.handle);
        let others = on.filter(|(_, other)| other.name.is_none()).count();
        match dmabuf.close() {
            Ok(()) => assert_eq!((names.len(), others), (0, 0), "{names:?} hold on"),
            Err(CloseError { error, .. }) => {
                assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
                let expected = format!("attachments [{}] and {others} more handles", names.join(", "));
                assert!(
                    error.to_string().contains(&expected),
                    "wanted {expected:?}: {error}"
                );
                assert!(others > 0 || !names.is_empty(), "no reference is left: {error}");
            }
        }
    }

    fn close_memory(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let own = self.things.iter().any(|(_, idea)| self.handles[idea.handle].own);
        match memory.close() {
            Ok(()) => {
                assert!(self.things.is_empty(), "{} things hold on", self.things.len());
                self.shadow.fill(0);
            }
            Err(CloseError {
                object: memory,
                error,
            }) => {
                assert!(!self.things.is_empty(), "no reference is left: {error}");
                assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
                // Holders of this library are named before the driver is asked; it alone knows of
                // the others.
                assert_eq!(error.errno(), (!own).then_some(Errno::EINVAL), "{error}");
                for (_, idea) in &self.things {
                    let name = idea.name.as_deref().filter(|_| self.handles[idea.handle].own);
                    assert!(
                        name.is_none_or(|name| error.to_string().contains(name)),
                        "{error}"
                    );
                }
                self.memory = Some(memory);
            }
        }
    }

    /// A child may do nothing and takes nothing with it.
    fn fork_once(&mut self) {
        let Some(at) = pick(&mut self.random, self.things.len()) else {
            return;
        };
        // SAFETY: the child makes calls that answer at once, drops, and leaves by _exit; no other
        // thread of this program holds a lock.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                let window = self.things[at].0.window();
                let answers = [
                    window.attach("child").map(drop),
                    window.attach_cpu("child").map(drop),
                    window.offer().map(drop),
                    self.memory
                        .as_ref()
                        .map_or(window.offer().map(drop), |memory| memory.window(0, 1).map(drop)),
                ];
                let is_forked = |answer: &gaudi_dmabuf::Result<()>| {
                    answer.as_ref().is_err_and(|e| e.kind() == ErrorKind::Forked)
                };
                let all = answers.iter().all(is_forked);
                self.things.clear();
                self.memory = None;
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { nix::libc::_exit(i32::from(!all)) }
            }
            ForkResult::Parent { child } => {
                let status = waitpid(child, None).expect("the child ends");
                assert_eq!(
                    status,
                    WaitStatus::Exited(child, 0),
                    "every call of a child is Forked"
                );
            }
        }
    }

    /// Drops everything, in any order, and then the memory.
    fn end(mut self) {
        while !self.things.is_empty() {
            self.let_go();
        }
        if let Some(memory) = self.memory.take() {
            memory.close().expect("no reference is left");
        }
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Prints how to repeat the failure.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let seed = self.0;
            eprintln!(
                "seed={seed}; replay: GAUDI_TEST_SEED={seed} GAUDI_TEST_CASES=1 cargo test -p gaudi-dmabuf --test life"
            );
        }
    }
}

#[test]
fn random_operations_match_the_model() {
    let sequences = u64::from(gaudi_random::cases(10_000));
    let first = gaudi_random::seed();
    let begin = Instant::now();
    let spec: DeviceSpec = SPEC.parse().expect("a spec");
    let io = gaudi_hal::open(&spec).expect("a mock");
    let ledger = |what: &str| {
        let ledger = gaudi_hal::mock_ledger(&spec).expect("it is open");
        assert!(ledger.is_clean(), "{what}: {ledger:?}");
    };
    // What is opened once is opened now.
    World::new(&io, 0).end();
    let (open, live) = (descriptors(), stats().live);
    let mut steps = 0_u64;
    for index in 0..sequences {
        let seed = Seed(first.wrapping_add(index));
        let mut world = World::new(&io, seed.0);
        for _ in 0..4 + world.random.below(24) {
            world.step();
            steps += 1;
        }
        world.end();
        assert_eq!(stats().live, live, "buffers that live: {:?}", leaks());
        assert_eq!(descriptors(), open, "descriptors that are open");
        ledger("what the device still has");
    }
    println!(
        "{sequences} sequences, {steps} steps from seed {first} in {:.1} s",
        begin.elapsed().as_secs_f64()
    );
}
