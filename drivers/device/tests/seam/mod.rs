//! A layer over the mock that changes single answers of the driver, for answers that no fault rule
//! can produce.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gaudi_device::{Device, DeviceSpec, DeviceVa, Options, Result};
use gaudi_seam::{
    CbCreate, CbHandle, CbInfo, CsAnswer, CsRequest, CsSeq, ExportRequest, InfoRequest, KernelIo, MapDevice,
    MapHost, MemAlloc, MemHandle, MmapRequest, Node, RawMapping, SharedIo, WaitAnswer,
};

type Hook<A, T> = Box<dyn FnMut(&dyn KernelIo, A) -> Result<T> + Send>;

/// Replacements for single operations. Each receives the node below. `None` forwards the call
/// unchanged.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) mem_unmap: Option<Hook<DeviceVa, ()>>,
    pub(crate) submit: Option<Hook<(), Option<CsAnswer>>>,
    pub(crate) wait_cs: Option<Hook<(CsSeq, Duration), WaitAnswer>>,
    /// Runs before the node closes.
    pub(crate) close: Option<Box<dyn FnOnce() + Send>>,
}

/// A device over a mock whose answers the test replaces.
#[derive(Clone)]
pub(crate) struct Seam(Arc<Mutex<Hooks>>);

impl Seam {
    /// Opens the spec's device under a seam without hooks.
    pub(crate) fn open(spec: &DeviceSpec, options: Options) -> (Device, Self) {
        let hooks = Arc::<Mutex<Hooks>>::default();
        let io = Layer {
            inner: gaudi_hal::open(spec).expect("the mock opens"),
            hooks: Arc::clone(&hooks),
        };
        let device = Device::with_options(Arc::new(io), options).expect("a device");
        (device, Self(hooks))
    }

    /// Changes the hooks.
    pub(crate) fn set(&self, change: impl FnOnce(&mut Hooks)) {
        change(&mut self.0.lock().expect("no hook panicked"));
    }
}

struct Layer {
    inner: SharedIo,
    hooks: Arc<Mutex<Hooks>>,
}

impl Layer {
    /// Runs a hook without the lock, so that a hook may block.
    fn hook<A, T>(
        &self,
        which: impl Fn(&mut Hooks) -> &mut Option<Hook<A, T>>,
        argument: A,
        forward: impl FnOnce(A) -> Result<T>,
    ) -> Result<T> {
        let hook = which(&mut self.hooks.lock().expect("no hook panicked")).take();
        let Some(mut hook) = hook else {
            return forward(argument);
        };
        let answer = hook(&*self.inner, argument);
        let mut hooks = self.hooks.lock().expect("no hook panicked");
        which(&mut hooks).get_or_insert(hook);
        answer
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        let close = self.hooks.lock().expect("no hook panicked").close.take();
        if let Some(close) = close {
            close();
        }
    }
}

impl KernelIo for Layer {
    fn node(&self) -> &Node {
        self.inner.node()
    }

    fn info(&self, request: InfoRequest, answer: &mut [u8]) -> Result<u32> {
        self.inner.info(request, answer)
    }

    fn cb_create(&self, request: CbCreate) -> Result<CbHandle> {
        self.inner.cb_create(request)
    }

    fn cb_destroy(&self, handle: CbHandle) -> Result<()> {
        self.inner.cb_destroy(handle)
    }

    fn cb_info(&self, handle: CbHandle, device_va: bool) -> Result<CbInfo> {
        self.inner.cb_info(handle, device_va)
    }

    fn submit(&self, request: &CsRequest<'_>) -> Result<CsAnswer> {
        match self.hook(|hooks| &mut hooks.submit, (), |()| Ok(None))? {
            Some(answer) => Ok(answer),
            None => self.inner.submit(request),
        }
    }

    fn wait_cs(&self, seq: CsSeq, timeout: Duration) -> Result<WaitAnswer> {
        self.hook(
            |hooks| &mut hooks.wait_cs,
            (seq, timeout),
            |(seq, timeout)| self.inner.wait_cs(seq, timeout),
        )
    }

    fn mem_alloc(&self, request: MemAlloc) -> Result<MemHandle> {
        self.inner.mem_alloc(request)
    }

    fn mem_free(&self, handle: MemHandle) -> Result<()> {
        self.inner.mem_free(handle)
    }

    fn mem_map_device(&self, request: MapDevice) -> Result<DeviceVa> {
        self.inner.mem_map_device(request)
    }

    #[expect(unsafe_code, reason = "the caller's promise is passed on")]
    unsafe fn mem_map_host(&self, request: MapHost) -> Result<DeviceVa> {
        // SAFETY: the contract is the same, and the caller fulfils it.
        unsafe { self.inner.mem_map_host(request) }
    }

    fn mem_unmap(&self, address: DeviceVa) -> Result<()> {
        self.hook(
            |hooks| &mut hooks.mem_unmap,
            address,
            |address| self.inner.mem_unmap(address),
        )
    }

    fn export_dmabuf(&self, request: ExportRequest) -> Result<OwnedFd> {
        self.inner.export_dmabuf(request)
    }

    /// The driver maps with `VM_DONTCOPY` (`memory_mgr.c:hl_mem_mgr_mmap`): a fork child has no
    /// command buffers.
    #[expect(unsafe_code, reason = "madvise(2) takes a pointer")]
    fn mmap(&self, request: MmapRequest) -> Result<RawMapping> {
        let mapping = self.inner.mmap(request)?;
        let start = mapping.as_ptr().as_ptr().cast();
        // SAFETY: the range is the mapping's, and the advice changes nothing in this process.
        let answer = unsafe { nix::libc::madvise(start, mapping.len(), nix::libc::MADV_DONTFORK) };
        assert_eq!(answer, 0, "MADV_DONTFORK");
        Ok(mapping)
    }

    fn register_events(&self, eventfd: BorrowedFd<'_>) -> Result<()> {
        self.inner.register_events(eventfd)
    }
}
