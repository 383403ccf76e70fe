//! A parent with every kind of object, its fork child, and the checks of both.

use super::*;

pub(crate) const LEN: usize = 4096;
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Everything that an attacker may hold.
pub(crate) struct Loot {
    pub(crate) device: Device,
    pub(crate) buffer: Buffer,
    pub(crate) pages: Buffer,
    pub(crate) host: HostMapping,
    pub(crate) host_buffer: HostBuffer,
    pub(crate) cached: HostMapping,
    pub(crate) sob: Sob,
    /// Without commands.
    pub(crate) idle: Queue,
    /// With commands that are not submitted.
    pub(crate) open: Queue,
    /// With a submission that waits for `sob`.
    pub(crate) waiting: Queue,
    pub(crate) pending: Completion,
    pub(crate) done: Completion,
    pub(crate) dmabuf: DmaBuf,
}

/// A parent with its objects, and what must not change.
pub(crate) struct Parent {
    /// One test at a time: a child of another test would hold this test's dma-buf too.
    _alone: MutexGuard<'static, ()>,
    pub(crate) spec: DeviceSpec,
    pub(crate) seam: Seam,
    _control: SharedIo,
    pub(crate) loot: Option<Loot>,
    pub(crate) before: Ledger,
}

impl Parent {
    pub(crate) fn new(name: &str) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let spec: DeviceSpec = format!("mock:gaudi2?name=child-{name}").parse().expect("a spec");
        let control = gaudi_hal::control(&spec).expect("a control node");
        let (device, seam) = Seam::open(&spec, Options::default());
        let queue = || device.queue(PDMA_0_1).expect("a queue");
        let (buffer, pages) = (device.alloc(LEN as u64), device.alloc_exclusive(LEN as u64));
        let (buffer, pages) = (buffer.expect("a buffer"), pages.expect("pages"));
        let host = device.alloc_host(LEN).expect("a mapping");
        host.fill(0, LEN, 0x5a).expect("filled");
        let host_buffer = HostBuffer::new(LEN).expect("host memory");
        host_buffer.write(0, &[0x77; LEN]).expect("filled");
        let cached = device.map(&host_buffer).expect("a mapping");
        let sob = device.sob().expect("a sync object");
        let done = device.copy(&buffer, &host).expect("submitted");
        done.wait(Deadline::NEVER).expect("done");
        let (mut open, mut waiting) = (
            queue(),
            device.queue(edma(0, 1).expect("an engine")).expect("a queue"),
        );
        let pending = waiting
            .set(&sob, 0)
            .and_then(|queue| queue.wait(&sob, 1))
            .and_then(|queue| queue.memset(&pages, 0x2222_2222))
            .and_then(|queue| queue.submit())
            .expect("submitted");
        open.memset(&buffer, 0x1111_1111).expect("it fits");
        let loot = Loot {
            idle: queue(),
            dmabuf: pages.export(..).expect("a dma-buf"),
            device,
            buffer,
            pages,
            host,
            host_buffer,
            cached,
            sob,
            open,
            waiting,
            pending,
            done,
        };
        let before = mock_ledger(&spec).expect("the mock");
        Self {
            _alone: alone,
            spec,
            seam,
            _control: control,
            loot: Some(loot),
            before,
        }
    }

    pub(crate) fn loot(&mut self) -> &mut Loot {
        self.loot.as_mut().expect("the parent's own")
    }

    /// Runs an attack in a fork child, then uses every object of the parent.
    pub(crate) fn withstands(mut self, attack: impl FnOnce(&mut Checks, &mut Option<Loot>, &DeviceSpec)) {
        self.endures(attack);
        self.works();
    }

    /// Runs an attack in a fork child. The child must end in time, without a signal and without a
    /// failed check.
    pub(crate) fn endures(&mut self, attack: impl FnOnce(&mut Checks, &mut Option<Loot>, &DeviceSpec)) {
        let (loot, spec) = (&mut self.loot, &self.spec);
        let status = in_child(|| {
            let mut checks = Checks::default();
            attack(&mut checks, loot, spec);
            checks.failed
        });
        assert_eq!(status, Ok(0), "the child's failed checks are on stderr");
        assert_eq!(
            mock_ledger(&self.spec).expect("the mock"),
            self.before,
            "the driver's objects are as they were"
        );
    }

    /// Every object of the parent works, and only the parent's commands were executed.
    pub(crate) fn works(mut self) {
        let wait = |completion: Completion| completion.wait(DEADLINE).expect("done");
        let loot = self.loot();
        let mut seen = [0; LEN];
        loot.device.read(&loot.buffer, 0, &mut seen).expect("read");
        assert_eq!(seen, [0x5a; LEN], "no command of the child wrote here");
        wait(loot.open.submit().expect("the open commands are submitted"));
        loot.device.read(&loot.buffer, 0, &mut seen).expect("read");
        assert_eq!(seen, [0x11; LEN], "the parent's command is the last");
        assert_eq!(loot.pending.poll(), Ok(false), "the sync object is not signalled");
        wait(
            loot.idle
                .signal(&loot.sob, 1)
                .and_then(|queue| queue.submit())
                .expect("submitted"),
        );
        wait(loot.pending.clone());
        loot.device.read(&loot.pages, 0, &mut seen).expect("read");
        assert_eq!(seen, [0x22; LEN], "the waiting commands are executed once");
        for host in [&loot.host, &loot.cached] {
            wait(loot.device.copy(&loot.buffer, host).expect("submitted"));
        }
        loot.device.read(&loot.buffer, 0, &mut seen).expect("read");
        assert_eq!(seen, [0x77; LEN], "the host memory is the parent's");
        assert_eq!(loot.done.poll(), Ok(true));
        wait(
            loot.waiting
                .fence()
                .and_then(|queue| queue.submit())
                .expect("submitted"),
        );
        let other = loot.device.sob().expect("a sync object");
        assert_ne!(other.index(), loot.sob.index(), "the child freed no sync object");
        drop(other);
        let loot = self.loot.take().expect("the parent's own");
        drop((loot.idle, loot.open, loot.waiting, loot.pending, loot.done));
        drop((loot.sob, loot.buffer, loot.host, loot.cached, loot.host_buffer));
        let (device, pages, dmabuf) = (loot.device, loot.pages, loot.dmabuf);
        dmabuf.close().map_err(Error::from).expect("no window is left");
        pages.close().map_err(Error::from).expect("no other handle");
        device.close().map_err(Error::from).expect("no handle is left");
        assert!(mock_ledger(&self.spec).expect("the mock").is_clean());
    }
}

/// What a child found.
#[derive(Default)]
pub(crate) struct Checks {
    pub(crate) failed: i32,
}

impl Checks {
    pub(crate) fn holds(&mut self, what: &str, is_right: bool) {
        if !is_right {
            self.failed += 1;
            // SAFETY: the child's standard error stays open, and is not closed here.
            let mut stderr = std::mem::ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(2) });
            let _ = writeln!(stderr, "in the fork child: {what}");
        }
    }

    pub(crate) fn forked<T>(&mut self, what: &str, answer: Result<T>) {
        let kind = answer.map(drop).map_err(|error| error.kind());
        self.holds(
            &format!("{what} returned {kind:?}"),
            kind == Err(ErrorKind::Forked),
        );
    }

    pub(crate) fn refused<T>(
        &mut self,
        what: &str,
        answer: std::result::Result<(), gaudi_device::CloseError<T>>,
    ) {
        self.forked(what, answer.map_err(Error::from));
    }

    /// Every call on a device and its memory.
    pub(crate) fn device(&mut self, loot: &mut Loot) {
        let device = &loot.device;
        self.forked("info", device.info());
        self.forked("alloc", device.alloc(1));
        self.forked("alloc of nothing", device.alloc(0));
        self.forked("alloc_aligned", device.alloc_aligned(1, 3));
        self.forked("alloc_exclusive", device.alloc_exclusive(1));
        self.forked("alloc_host", device.alloc_host(0));
        self.forked("queue", device.queue(PDMA_0_1));
        self.forked("sob", device.sob());
        self.forked("copy", device.copy(&loot.buffer, &loot.host));
        self.forked("fill", device.fill(&loot.buffer, 1));
        self.forked("memset", device.memset(&loot.host, 1));
        self.forked("drain", device.drain(Deadline::NEVER));
        self.forked("flush", device.flush_pci_hbw_writes());
        self.forked("map", device.map(&loot.host_buffer));
        self.forked("write", device.write(&loot.buffer, 0, &[1; LEN]));
        self.forked("write of nothing", device.write(&loot.buffer, 0, &[]));
        self.forked("read", device.read(&loot.buffer, 0, &mut [1; LEN]));
        self.forked("Buffer::export", loot.pages.export(..));
        self.forked("Buffer::window", loot.pages.window(..));
        self.forked("StatusHandle::query", loot.buffer.status_handle().query());
        self.refused("Device::close", device.clone().close());
        self.refused("Buffer::close", loot.buffer.clone().close());
        self.refused("HostMapping::close", loot.host.clone().close());
        self.holds("page_bytes", device.page_bytes() == 768 << 20);
        let _ = (
            device.stats(),
            device.cache_stats(),
            format!("{device:?} {:?}", loot.pages),
        );
    }

    #[expect(
        clippy::multiple_unsafe_ops_per_block,
        reason = "every call is refused for the same reason"
    )]
    pub(crate) fn host(&mut self, loot: &Loot) {
        let mut bytes = [0];
        self.forked("HostMapping::read", loot.host.read(0, &mut bytes));
        self.forked("HostMapping::write", loot.host.write(0, &bytes));
        self.forked("HostMapping::fill", loot.host.fill(0, 1, 1));
        self.forked("copy_on_cpu", loot.host.copy_on_cpu(0, &loot.cached, 0, 1));
        self.forked("HostBuffer::read", loot.host_buffer.read(0, &mut bytes));
        self.forked("HostBuffer::write", loot.host_buffer.write(0, &bytes));
        let start = NonNull::from(&mut bytes).cast();
        self.forked("deregister", loot.device.deregister(start, 1));
        // SAFETY: the calls are refused; the byte lives longer than they do.
        unsafe {
            self.forked("register", loot.device.register(start, 1));
            self.forked("register of nothing", loot.device.register(start, 0));
        }
    }

    /// Every call on a queue.
    pub(crate) fn queue(&mut self, queue: &mut Queue, buffer: &Buffer, host: &HostMapping, sob: &Sob) {
        self.forked("Queue::copy", queue.copy(buffer, host).map(drop));
        self.forked("Queue::memset", queue.memset(buffer, 0x3333_3333).map(drop));
        self.forked("Queue::fence", queue.fence().map(drop));
        self.forked("Queue::set", queue.set(sob, 1).map(drop));
        self.forked("Queue::signal", queue.signal(sob, 1).map(drop));
        self.forked("Queue::wait", queue.wait(sob, 1).map(drop));
        self.forked("Queue::submit", queue.submit());
        self.forked("Queue::try_clone", queue.try_clone());
    }

    pub(crate) fn queues(&mut self, loot: &mut Loot) {
        for queue in [&mut loot.idle, &mut loot.open, &mut loot.waiting] {
            self.queue(queue, &loot.buffer, &loot.host, &loot.sob);
        }
    }

    pub(crate) fn completion(&mut self, completion: &Completion) {
        self.forked("Completion::poll", completion.poll());
        self.forked("Completion::wait", completion.wait(Deadline::NEVER));
        self.forked("Completion::event_fd", completion.event_fd());
    }

    pub(crate) fn everything(&mut self, loot: &mut Loot) {
        self.device(loot);
        self.host(loot);
        self.queues(loot);
        self.completion(&loot.pending);
        self.completion(&loot.done);
    }
}

/// Runs `child` in a fork child. Returns its exit code, or how else it ended.
pub(crate) fn in_child(child: impl FnOnce() -> i32) -> std::result::Result<i32, String> {
    // SAFETY: the child uses the objects of the test alone, and ends without returning into the
    // test.
    match unsafe { fork() }.expect("fork works") {
        ForkResult::Child => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(99);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) }
        }
        ForkResult::Parent { child } => {
            let number = u32::try_from(child.as_raw()).expect("a process");
            let process = gaudi_sys::pidfd::open(number).expect("a descriptor");
            let ended = gaudi_sys::poll::readable([process.as_fd()], DEADLINE).expect("poll works");
            if ended == [false] {
                // SAFETY: takes two numbers, and the child is not reaped yet.
                unsafe { libc::kill(child.as_raw(), libc::SIGKILL) };
            }
            match waitpid(child, None).expect("the child ends") {
                _ if ended == [false] => Err("the child hangs".into()),
                WaitStatus::Exited(_, code) => Ok(code),
                other => Err(format!("{other:?}")),
            }
        }
    }
}

pub(crate) fn readable(fd: &impl std::os::fd::AsFd, timeout: u16) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::from(timeout)).expect("poll works") > 0
}

pub(crate) fn take(loot: &mut Option<Loot>) -> Loot {
    loot.take().expect("the child's copy")
}

pub(crate) fn held(loot: &mut Option<Loot>) -> &mut Loot {
    loot.as_mut().expect("the child's copy")
}
