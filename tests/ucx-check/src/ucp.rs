//! The part of UCP that the check uses, opened at run time.

#![allow(unsafe_code, reason = "functions of libucp")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use libloading::os::unix::Library;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::allocator::{Failure, Memory};
use crate::control::Control;

/// Longest time that one operation may take.
const LIMIT: Duration = Duration::from_secs(60);
const IN_PROGRESS: i8 = 1;
const TAG: u64 = 5;
const AM_ID: c_uint = 3;
/// `UCP_FEATURE_TAG | RMA | STREAM | AM`.
const FEATURES: u64 = 1 | 1 << 1 | 1 << 5 | 1 << 6;
/// `UCP_AM_RECV_ATTR_FLAG_RNDV`.
const RENDEZVOUS: u64 = 1 << 17;
/// `UCP_OP_ATTR_FIELD_FLAGS`, and `UCP_STREAM_RECV_FLAG_WAITALL`.
const WAIT_ALL: [u32; 2] = [1 << 4, 1];
/// `UCP_OP_ATTR_FIELD_FLAGS`, and `UCP_EP_CLOSE_FLAG_FORCE`.
const FORCE: [u32; 2] = [1 << 4, 1];
/// `UCP_ERR_HANDLING_MODE_PEER`.
const HANDLES_PEER: u64 = 1;

type Pointer = *mut c_void;
/// A parameter structure of the API: zeros, with the field mask first.
type Params = [u64; 40];

static NONE: Params = [0; 40];

macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($type:ty),*) $(-> $result:ty)?;)*) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
        }

        impl Functions {
            fn open(library: &Library) -> Result<Self, Failure> {
                Ok(Self {
                    $($name: {
                        // SAFETY: ucp/api/ucp.h declares the function so.
                        let found = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                        *found.map_err(|error| error.to_string())?
                    },)*
                })
            }
        }
    };
}

functions! {
    init = "ucp_init_version": fn(c_uint, c_uint, *const Params, Pointer, *mut Pointer) -> i8;
    cleanup = "ucp_cleanup": fn(Pointer);
    worker_create = "ucp_worker_create": fn(Pointer, *const Params, *mut Pointer) -> i8;
    worker_destroy = "ucp_worker_destroy": fn(Pointer);
    worker_address = "ucp_worker_get_address": fn(Pointer, *mut Pointer, *mut usize) -> i8;
    release_address = "ucp_worker_release_address": fn(Pointer, Pointer);
    progress = "ucp_worker_progress": fn(Pointer) -> c_uint;
    ep_create = "ucp_ep_create": fn(Pointer, *const Params, *mut Pointer) -> i8;
    ep_close = "ucp_ep_close_nbx": fn(Pointer, *const Params) -> Pointer;
    ep_flush = "ucp_ep_flush_nbx": fn(Pointer, *const Params) -> Pointer;
    tag_send = "ucp_tag_send_nbx": fn(Pointer, *const u8, usize, u64, *const Params) -> Pointer;
    tag_receive = "ucp_tag_recv_nbx": fn(Pointer, *mut u8, usize, u64, u64, *const Params) -> Pointer;
    stream_send = "ucp_stream_send_nbx": fn(Pointer, *const u8, usize, *const Params) -> Pointer;
    stream_receive = "ucp_stream_recv_nbx": fn(Pointer, *mut u8, usize, *mut usize, *const Params) -> Pointer;
    am_handler = "ucp_worker_set_am_recv_handler": fn(Pointer, *const Params) -> i8;
    am_send = "ucp_am_send_nbx": fn(Pointer, c_uint, *const u8, usize, *const u8, usize, *const Params) -> Pointer;
    am_receive = "ucp_am_recv_data_nbx": fn(Pointer, Pointer, *mut u8, usize, *const Params) -> Pointer;
    mem_map = "ucp_mem_map": fn(Pointer, *const Params, *mut Pointer) -> i8;
    mem_unmap = "ucp_mem_unmap": fn(Pointer, Pointer) -> i8;
    rkey_pack = "ucp_rkey_pack": fn(Pointer, Pointer, *mut Pointer, *mut usize) -> i8;
    rkey_release = "ucp_rkey_buffer_release": fn(Pointer);
    rkey_unpack = "ucp_ep_rkey_unpack": fn(Pointer, *const u8, *mut Pointer) -> i8;
    rkey_destroy = "ucp_rkey_destroy": fn(Pointer);
    put = "ucp_put_nbx": fn(Pointer, *const u8, usize, u64, Pointer, *const Params) -> Pointer;
    get = "ucp_get_nbx": fn(Pointer, *mut u8, usize, u64, Pointer, *const Params) -> Pointer;
    request_status = "ucp_request_check_status": fn(Pointer) -> i8;
    request_free = "ucp_request_free": fn(Pointer);
    request_cancel = "ucp_request_cancel": fn(Pointer, Pointer);
}

/// A context and a worker.
pub(crate) struct Ucp {
    call: Functions,
    context: Pointer,
    worker: Pointer,
    status_string: unsafe extern "C" fn(i8) -> *const c_char,
}

impl Ucp {
    pub(crate) fn open() -> Result<Self, Failure> {
        let open = |name: &str| {
            // SAFETY: UCX's own libraries.
            let library = unsafe { Library::open(Some(name), libloading::os::unix::RTLD_NOW) };
            library
                .map(|library| &*Box::leak(Box::new(library)))
                .map_err(|error| error.to_string())
        };
        let call = Functions::open(open("libucp.so.0")?)?;
        let ucs = open("libucs.so.0")?;
        // SAFETY: ucs/type/status.h declares it so.
        let status_string = *unsafe { ucs.get(b"ucs_status_string\0") }.map_err(|error| error.to_string())?;
        let mut ucp = Self {
            call,
            context: null_mut(),
            worker: null_mut(),
            status_string,
        };
        let mut params = NONE;
        (params[0], params[1]) = (1, FEATURES);
        // SAFETY: structures whose field mask has the fields that are set; a NULL configuration is
        // the environment's.
        let status = unsafe { (ucp.call.init)(1, 18, &raw const params, null_mut(), &raw mut ucp.context) };
        ucp.check("ucp_init", status)?;
        // SAFETY: as above.
        let status = unsafe { (ucp.call.worker_create)(ucp.context, &raw const NONE, &raw mut ucp.worker) };
        ucp.check("ucp_worker_create", status)?;
        Ok(ucp)
    }

    fn check(&self, operation: &str, status: i8) -> Result<(), Failure> {
        match status {
            0 => Ok(()),
            status => {
                // SAFETY: the function takes any status.
                let text = unsafe { (self.status_string)(status) };
                // SAFETY: UCX returns a terminated string for every status.
                let text = unsafe { CStr::from_ptr(text) };
                Err(format!("{operation}: {}", text.to_string_lossy()))
            }
        }
    }

    /// Exchanges addresses and connects. If `learns_of_death`, operations fail when the other
    /// process ends.
    pub(crate) fn connect(&self, control: &mut Control, learns_of_death: bool) -> Result<Peer<'_>, Failure> {
        let (mut address, mut len) = (null_mut(), 0);
        // SAFETY: valid pointers.
        let status = unsafe { (self.call.worker_address)(self.worker, &raw mut address, &raw mut len) };
        self.check("ucp_worker_get_address", status)?;
        // SAFETY: UCX gave the address and its length.
        let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), len) }.to_vec();
        // SAFETY: the address is not used afterwards.
        unsafe { (self.call.release_address)(self.worker, address) };
        let mut peer = Peer {
            ucp: self,
            ep: null_mut(),
            arrived: Box::new(Arrived::default()),
            ended: Box::new(0),
            kill: None,
        };
        peer.send_message(control, &bytes)?;
        let theirs = peer.wait_message(control)?;
        let mut params = NONE;
        (params[0], params[1]) = (1, theirs.as_ptr().expose_provenance() as u64);
        if learns_of_death {
            let ended: *mut i8 = &raw mut *peer.ended;
            params[0] |= 1 << 1 | 1 << 2;
            params[2] = HANDLES_PEER;
            params[3] = (handle_end as *const c_void).expose_provenance() as u64;
            params[4] = ended.expose_provenance() as u64;
        }
        // SAFETY: the address lives until the call returns, the handler's argument as long as the
        // endpoint.
        let status = unsafe { (self.call.ep_create)(self.worker, &raw const params, &raw mut peer.ep) };
        self.check("ucp_ep_create", status)?;
        let arg: *mut Arrived = &raw mut *peer.arrived;
        let mut params = NONE;
        params[0] = 1 | 1 << 2 | 1 << 3;
        params[1] = u64::from(AM_ID);
        params[2] = (handle_am as *const c_void).expose_provenance() as u64;
        params[3] = arg.expose_provenance() as u64;
        // SAFETY: identifier, callback and argument, which live as long as the worker.
        let status = unsafe { (self.call.am_handler)(self.worker, &raw const params) };
        self.check("ucp_worker_set_am_recv_handler", status)?;
        Ok(peer)
    }
}

impl Drop for Ucp {
    fn drop(&mut self) {
        if !self.worker.is_null() {
            // SAFETY: the worker's endpoints are closed.
            unsafe { (self.call.worker_destroy)(self.worker) };
        }
        if !self.context.is_null() {
            // SAFETY: the context's worker is destroyed.
            unsafe { (self.call.cleanup)(self.context) };
        }
    }
}

/// The active message that arrived last.
#[derive(Default)]
struct Arrived {
    /// Data of an eager message.
    eager: Option<Vec<u8>>,
    /// Descriptor of a rendezvous message.
    rendezvous: Option<Pointer>,
}

/// `ucp_am_recv_param_t`.
#[repr(C)]
struct AmParams {
    attributes: u64,
    reply_ep: Pointer,
}

/// # Safety
/// UCX's contract of the callback.
unsafe extern "C" fn handle_am(
    arg: *mut Arrived,
    _header: *const c_void,
    _header_len: usize,
    data: Pointer,
    len: usize,
    params: *const AmParams,
) -> i8 {
    // SAFETY: the worker's argument, which nothing else borrows during progress.
    let arrived = unsafe { &mut *arg };
    // SAFETY: UCX's structure.
    let attributes = unsafe { (*params).attributes };
    if attributes & RENDEZVOUS != 0 {
        arrived.rendezvous = Some(data);
        return IN_PROGRESS;
    }
    let bytes = match len {
        0 => Vec::new(),
        // SAFETY: `len` bytes of host memory during the callback.
        _ => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec(),
    };
    arrived.eager = Some(bytes);
    0
}

/// Stores why the endpoint failed.
///
/// # Safety
/// UCX's contract of the callback.
unsafe extern "C" fn handle_end(ended: *mut i8, _ep: Pointer, status: i8) {
    // SAFETY: the endpoint's argument, which nothing else borrows during progress.
    unsafe { *ended = status };
}

/// A connection to the other process.
pub(crate) struct Peer<'a> {
    ucp: &'a Ucp,
    ep: Pointer,
    arrived: Box<Arrived>,
    /// UCX's status once the other process is dead; 0 before.
    ended: Box<i8>,
    /// The process that `progress` kills, after this number of calls.
    kill: Option<(Pid, u32)>,
}

impl Peer<'_> {
    fn progress(&mut self) {
        // SAFETY: the worker is open.
        unsafe { (self.ucp.call.progress)(self.ucp.worker) };
        if let Some((peer, left)) = &mut self.kill {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => {
                    // A child of this process's parent, which has not waited for it.
                    let _ = kill(*peer, Signal::SIGKILL);
                    self.kill = None;
                }
            }
        }
    }

    /// Kills the other process after so many calls of progress.
    pub(crate) fn kill_after(&mut self, peer: Pid, calls: u32) {
        self.kill = Some((peer, calls));
    }

    /// Whether the other process is still to be killed.
    pub(crate) fn will_kill(&self) -> bool {
        self.kill.is_some()
    }

    /// Whether UCX knows that the other process is dead.
    fn is_ended(&self) -> bool {
        // SAFETY: the callback writes it during progress alone.
        unsafe { (&raw const *self.ended).read_volatile() != 0 }
    }

    /// Waits until UCX reports the end of the other process. Returns its status as text.
    pub(crate) fn await_end(&mut self) -> Result<String, Failure> {
        let begin = Instant::now();
        while !self.is_ended() {
            self.progress();
            if begin.elapsed() > LIMIT {
                return Err("UCX does not report the end of the peer".to_owned());
            }
        }
        let status = *self.ended;
        self.ucp
            .check("the endpoint", status)
            .err()
            .ok_or_else(|| "the endpoint failed with UCS_OK".to_owned())
    }

    /// Waits until `ready` returns something.
    fn wait_for<T>(
        &mut self,
        what: &str,
        mut ready: impl FnMut(&mut Self) -> Result<Option<T>, Failure>,
    ) -> Result<T, Failure> {
        let begin = Instant::now();
        loop {
            self.progress();
            if let Some(value) = ready(self)? {
                return Ok(value);
            }
            if self.is_ended() {
                return Err(format!("{what}: the peer is dead"));
            }
            if begin.elapsed() > LIMIT {
                return Err(format!("{what}: not complete after {} s", LIMIT.as_secs()));
            }
        }
    }

    /// Waits for a request, which `ucp_*_nbx` returned.
    fn wait(&mut self, what: &str, request: Pointer) -> Result<(), Failure> {
        let value = request as usize as isize;
        if value == 0 {
            return Ok(());
        }
        if (-100..0).contains(&value) {
            return self.ucp.check(what, value as i8);
        }
        let mut status = self.wait_request(what, request);
        if status.is_err() && self.is_ended() {
            // A receive that no sender completes.
            // SAFETY: a live request.
            unsafe { (self.ucp.call.request_cancel)(self.ucp.worker, request) };
            let begin = Instant::now();
            while status.is_err() && begin.elapsed() < LIMIT {
                self.progress();
                // SAFETY: a live request.
                let seen = unsafe { (self.ucp.call.request_status)(request) };
                if seen != IN_PROGRESS {
                    status = Ok(seen);
                }
            }
        }
        let status = status?;
        // SAFETY: a live request, which is not used afterwards.
        unsafe { (self.ucp.call.request_free)(request) };
        self.ucp.check(what, status)
    }

    fn wait_request(&mut self, what: &str, request: Pointer) -> Result<i8, Failure> {
        self.wait_for(what, |peer| {
            // SAFETY: a live request.
            let status = unsafe { (peer.ucp.call.request_status)(request) };
            Ok((status != IN_PROGRESS).then_some(status))
        })
    }

    pub(crate) fn send_message(&mut self, control: &mut Control, message: &[u8]) -> Result<(), Failure> {
        control
            .send(message)
            .map_err(|error| format!("control socket: {error}"))
    }

    pub(crate) fn wait_message(&mut self, control: &mut Control) -> Result<Vec<u8>, Failure> {
        self.wait_for("control message", |_| {
            control
                .receive()
                .map_err(|error| format!("control socket: {error}"))
        })
    }

    pub(crate) fn send_tag(&mut self, from: &Memory, start: usize, len: usize) -> Result<(), Failure> {
        let buffer = from.address().wrapping_add(start);
        // SAFETY: the memory outlives the wait.
        let request = unsafe { (self.ucp.call.tag_send)(self.ep, buffer, len, TAG, &raw const NONE) };
        self.wait("ucp_tag_send_nbx", request)
    }

    pub(crate) fn receive_tag(&mut self, to: &Memory, start: usize, len: usize) -> Result<(), Failure> {
        let (buffer, call) = (to.address().wrapping_add(start), &self.ucp.call);
        // SAFETY: the memory outlives the wait.
        let request =
            unsafe { (call.tag_receive)(self.ucp.worker, buffer, len, TAG, u64::MAX, &raw const NONE) };
        self.wait("ucp_tag_recv_nbx", request)
    }

    pub(crate) fn send_stream(&mut self, from: &Memory, start: usize, len: usize) -> Result<(), Failure> {
        let buffer = from.address().wrapping_add(start);
        // SAFETY: the memory outlives the wait.
        let request = unsafe { (self.ucp.call.stream_send)(self.ep, buffer, len, &raw const NONE) };
        self.wait("ucp_stream_send_nbx", request)
    }

    pub(crate) fn receive_stream(&mut self, to: &Memory, start: usize, len: usize) -> Result<(), Failure> {
        let mut params = NONE;
        params[0] = u64::from(WAIT_ALL[0]) | u64::from(WAIT_ALL[1]) << 32;
        let (buffer, mut received) = (to.address().wrapping_add(start), 0);
        // SAFETY: the memory and `received` outlive the wait.
        let request = unsafe {
            (self.ucp.call.stream_receive)(self.ep, buffer, len, &raw mut received, &raw const params)
        };
        self.wait("ucp_stream_recv_nbx", request)
    }

    pub(crate) fn send_am(&mut self, from: &Memory, start: usize, len: usize) -> Result<(), Failure> {
        let buffer = from.address().wrapping_add(start);
        // SAFETY: the memory outlives the wait. The message has no header.
        let request =
            unsafe { (self.ucp.call.am_send)(self.ep, AM_ID, null(), 0, buffer, len, &raw const NONE) };
        self.wait("ucp_am_send_nbx", request)
    }

    pub(crate) fn receive_am(&mut self, to: &Memory, start: usize, len: usize) -> Result<(), Failure> {
        let arrived = self.wait_for("active message", |peer| {
            let arrived = std::mem::take(&mut *peer.arrived);
            Ok((arrived.eager.is_some() || arrived.rendezvous.is_some()).then_some(arrived))
        })?;
        if let Some(bytes) = arrived.eager {
            return match bytes.len() == len {
                true => to.write(start, &bytes),
                false => Err(format!("{} bytes arrived, {len} were sent", bytes.len())),
            };
        }
        let descriptor = arrived.rendezvous.ok_or("no active message")?;
        let buffer = to.address().wrapping_add(start);
        // SAFETY: UCX's descriptor; the memory outlives the wait.
        let request =
            unsafe { (self.ucp.call.am_receive)(self.ucp.worker, descriptor, buffer, len, &raw const NONE) };
        self.wait("ucp_am_recv_data_nbx", request)
    }

    /// Lets the other process access memory, until its message arrives.
    pub(crate) fn offer(
        &mut self,
        control: &mut Control,
        memory: &Memory,
        start: usize,
    ) -> Result<(), Failure> {
        let mut params = NONE;
        params[0] = 1 | 1 << 1;
        params[1] = memory.address().expose_provenance() as u64;
        params[2] = memory.len() as u64;
        let mut handle = null_mut();
        let call = &self.ucp.call;
        // SAFETY: address and length of live memory.
        let status = unsafe { (call.mem_map)(self.ucp.context, &raw const params, &raw mut handle) };
        self.ucp.check("ucp_mem_map", status)?;
        let (mut buffer, mut len) = (null_mut(), 0);
        // SAFETY: a live handle.
        let status = unsafe { (call.rkey_pack)(self.ucp.context, handle, &raw mut buffer, &raw mut len) };
        self.ucp.check("ucp_rkey_pack", status)?;
        let address = memory.address().expose_provenance() as u64 + start as u64;
        let mut message = address.to_le_bytes().to_vec();
        // SAFETY: UCX gave the key and its length.
        message.extend_from_slice(unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), len) });
        // SAFETY: the key is not used afterwards.
        unsafe { (call.rkey_release)(buffer) };
        let answer = self.send_message(control, &message);
        let answer = answer.and_then(|()| self.wait_message(control).map(drop));
        // SAFETY: the other process has ended its accesses, or is dead.
        let status = unsafe { (self.ucp.call.mem_unmap)(self.ucp.context, handle) };
        answer.and_then(|()| self.ucp.check("ucp_mem_unmap", status))
    }

    fn with_key(
        &mut self,
        message: &[u8],
        access: impl FnOnce(&mut Self, u64, Pointer) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (address, key) = message
            .split_first_chunk::<8>()
            .ok_or("a key without an address")?;
        let mut rkey = null_mut();
        // SAFETY: the bytes that the peer's UCX packed.
        let status = unsafe { (self.ucp.call.rkey_unpack)(self.ep, key.as_ptr(), &raw mut rkey) };
        self.ucp.check("ucp_ep_rkey_unpack", status)?;
        let answer = access(self, u64::from_le_bytes(*address), rkey);
        // SAFETY: no access uses the key.
        unsafe { (self.ucp.call.rkey_destroy)(rkey) };
        answer
    }

    fn flush(&mut self) -> Result<(), Failure> {
        // SAFETY: the endpoint is open.
        let request = unsafe { (self.ucp.call.ep_flush)(self.ep, &raw const NONE) };
        self.wait("ucp_ep_flush_nbx", request)
    }

    pub(crate) fn put(&mut self, from: &Memory, start: usize, len: usize, key: &[u8]) -> Result<(), Failure> {
        self.with_key(key, |peer, address, rkey| {
            let (buffer, call) = (from.address().wrapping_add(start), &peer.ucp.call);
            // SAFETY: the memory outlives the wait.
            let request = unsafe { (call.put)(peer.ep, buffer, len, address, rkey, &raw const NONE) };
            peer.wait("ucp_put_nbx", request)?;
            peer.flush()
        })
    }

    pub(crate) fn get(&mut self, to: &Memory, start: usize, len: usize, key: &[u8]) -> Result<(), Failure> {
        self.with_key(key, |peer, address, rkey| {
            let (buffer, call) = (to.address().wrapping_add(start), &peer.ucp.call);
            // SAFETY: the memory outlives the wait.
            let request = unsafe { (call.get)(peer.ep, buffer, len, address, rkey, &raw const NONE) };
            peer.wait("ucp_get_nbx", request)?;
            peer.flush()
        })
    }

    /// Closes the endpoint of a dead process.
    pub(crate) fn close_at_once(&mut self) -> Result<(), Failure> {
        let mut params = NONE;
        params[0] = u64::from(FORCE[0]) | u64::from(FORCE[1]) << 32;
        *self.ended = 0;
        // SAFETY: the endpoint is open and not used afterwards.
        let request = unsafe { (self.ucp.call.ep_close)(self.ep, &raw const params) };
        self.wait("ucp_ep_close_nbx", request)
    }

    /// Closes the endpoint.
    pub(crate) fn close(&mut self) -> Result<(), Failure> {
        // SAFETY: the endpoint is open and not used afterwards.
        let request = unsafe { (self.ucp.call.ep_close)(self.ep, &raw const NONE) };
        self.wait("ucp_ep_close_nbx", request)
    }
}

/// The sizes that the API's C types have here.
const _: () = assert!(size_of::<c_int>() == 4 && size_of::<Pointer>() == 8);
