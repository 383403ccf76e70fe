//! The part of MPI that the check uses, of Open MPI 5 or MPICH 4, opened at run time.
//!
//! The two differ in their handles: Open MPI's are pointers to its objects, MPICH's are numbers. A
//! word holds either, since both are passed in a register.

#![allow(unsafe_code, reason = "functions of an MPI library")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the calls of one block have one reason: MPI's contract of a handle"
)]

use std::ffi::{c_int, c_void};
use std::ptr::null;

use libloading::os::unix::Library;

use crate::allocator::Failure;

/// A communicator, type, window, info or request.
pub(crate) type Handle = usize;

macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($type:ty),*);)*) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($type),*) -> c_int,)*
        }

        impl Functions {
            fn open(library: &Library) -> Result<Self, Failure> {
                Ok(Self {
                    $($name: {
                        // SAFETY: both libraries declare the function so, up to the handles.
                        let found = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                        *found.map_err(|error| error.to_string())?
                    },)*
                })
            }
        }
    };
}

type Memory = *mut u8;

functions! {
    init = "MPI_Init": fn(*const c_int, *const c_void);
    finalize = "MPI_Finalize": fn();
    rank = "MPI_Comm_rank": fn(Handle, *mut c_int);
    size = "MPI_Comm_size": fn(Handle, *mut c_int);
    send = "MPI_Send": fn(Memory, c_int, Handle, c_int, c_int, Handle);
    receive = "MPI_Recv": fn(Memory, c_int, Handle, c_int, c_int, Handle, usize);
    isend = "MPI_Isend": fn(Memory, c_int, Handle, c_int, c_int, Handle, *mut c_void);
    ireceive = "MPI_Irecv": fn(Memory, c_int, Handle, c_int, c_int, Handle, *mut c_void);
    wait = "MPI_Wait": fn(*mut c_void, usize);
    bcast = "MPI_Bcast": fn(Memory, c_int, Handle, c_int, Handle);
    barrier = "MPI_Barrier": fn(Handle);
    type_vector = "MPI_Type_vector": fn(c_int, c_int, c_int, Handle, *mut Handle);
    type_commit = "MPI_Type_commit": fn(*mut Handle);
    type_free = "MPI_Type_free": fn(*mut Handle);
    win_create = "MPI_Win_create": fn(Memory, isize, c_int, Handle, Handle, *mut Handle);
    win_lock_all = "MPI_Win_lock_all": fn(c_int, Handle);
    win_flush = "MPI_Win_flush": fn(c_int, Handle);
    win_unlock_all = "MPI_Win_unlock_all": fn(Handle);
    win_free = "MPI_Win_free": fn(*mut Handle);
    put = "MPI_Put": fn(Memory, c_int, Handle, c_int, isize, c_int, Handle, Handle);
    get = "MPI_Get": fn(Memory, c_int, Handle, c_int, isize, c_int, Handle, Handle);
}

/// An initialized MPI.
pub(crate) struct Mpi {
    call: Functions,
    world: Handle,
    byte: Handle,
    no_info: Handle,
    /// `MPI_STATUS_IGNORE`.
    no_status: usize,
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

fn check(operation: &str, code: c_int) -> Result<(), Failure> {
    match code {
        0 => Ok(()),
        code => Err(format!("{operation}: MPI's error {code}")),
    }
}

fn int(value: usize) -> c_int {
    c_int::try_from(value).expect("a count of the check is small")
}

impl Mpi {
    /// Initializes the MPI of a file name.
    pub(crate) fn open(file: &str) -> Result<Self, Failure> {
        // SAFETY: an MPI library, which stays loaded. Its symbols are global, as in a program that
        // is linked with it: Open MPI's components look for them.
        let library = unsafe {
            Library::open(
                Some(file),
                libloading::os::unix::RTLD_NOW | libloading::os::unix::RTLD_GLOBAL,
            )
        };
        let library: &Library = Box::leak(Box::new(library.map_err(|error| error.to_string())?));
        let call = Functions::open(library)?;
        let object = |name: &str| {
            // SAFETY: only the address is used.
            unsafe { library.get::<*const c_void>(name.as_bytes()) }.map(|symbol| symbol.into_raw() as Handle)
        };
        let mut mpi = match object("ompi_mpi_comm_world\0") {
            Ok(world) => Self {
                call,
                world,
                byte: object("ompi_mpi_byte\0").map_err(|error| error.to_string())?,
                no_info: object("ompi_mpi_info_null\0").map_err(|error| error.to_string())?,
                no_status: 0,
                rank: 0,
                size: 0,
            },
            // Numbers of MPICH's mpi.h.
            Err(_) => Self {
                call,
                world: 0x4400_0000,
                byte: 0x4c00_010d,
                no_info: 0x1c00_0000,
                no_status: 1,
                rank: 0,
                size: 0,
            },
        };
        // SAFETY: MPI takes no arguments for none.
        check("MPI_Init", unsafe { (mpi.call.init)(null(), null()) })?;
        let (mut rank, mut size) = (0, 0);
        // SAFETY: valid pointers and a communicator.
        unsafe {
            check("MPI_Comm_rank", (mpi.call.rank)(mpi.world, &raw mut rank))?;
            check("MPI_Comm_size", (mpi.call.size)(mpi.world, &raw mut size))?;
        }
        mpi.rank = usize::try_from(rank).map_err(|error| error.to_string())?;
        mpi.size = usize::try_from(size).map_err(|error| error.to_string())?;
        Ok(mpi)
    }

    pub(crate) fn finalize(self) -> Result<(), Failure> {
        // SAFETY: it is initialized, and nothing is in flight.
        check("MPI_Finalize", unsafe { (self.call.finalize)() })
    }

    pub(crate) fn barrier(&self) -> Result<(), Failure> {
        // SAFETY: a communicator.
        check("MPI_Barrier", unsafe { (self.call.barrier)(self.world) })
    }

    /// Sends `count` elements of a type; of bytes, if there is none.
    pub(crate) fn send(
        &self,
        at: Memory,
        count: usize,
        kind: Option<&Vector<'_>>,
        to: usize,
    ) -> Result<(), Failure> {
        let kind = kind.map_or(self.byte, |kind| kind.handle);
        // SAFETY: the caller's memory has the elements.
        let code = unsafe { (self.call.send)(at, int(count), kind, int(to), 7, self.world) };
        check("MPI_Send", code)
    }

    /// Receives as [`send`](Self::send) sends.
    pub(crate) fn receive(
        &self,
        at: Memory,
        count: usize,
        kind: Option<&Vector<'_>>,
        from: usize,
    ) -> Result<(), Failure> {
        let kind = kind.map_or(self.byte, |kind| kind.handle);
        // SAFETY: the caller's memory has room for the elements.
        let code =
            unsafe { (self.call.receive)(at, int(count), kind, int(from), 7, self.world, self.no_status) };
        check("MPI_Recv", code)
    }

    /// Begins to send bytes.
    pub(crate) fn isend(&self, at: Memory, len: usize, to: usize, tag: usize) -> Result<Request, Failure> {
        let mut request = Request(0);
        let into = (&raw mut request.0).cast();
        // SAFETY: as in `send`; the caller waits before the memory ends.
        let code = unsafe { (self.call.isend)(at, int(len), self.byte, int(to), int(tag), self.world, into) };
        check("MPI_Isend", code).map(|()| request)
    }

    /// Begins to receive bytes.
    pub(crate) fn ireceive(
        &self,
        at: Memory,
        len: usize,
        from: usize,
        tag: usize,
    ) -> Result<Request, Failure> {
        let mut request = Request(0);
        let into = (&raw mut request.0).cast();
        // SAFETY: as in `receive`; the caller waits before the memory ends.
        let code =
            unsafe { (self.call.ireceive)(at, int(len), self.byte, int(from), int(tag), self.world, into) };
        check("MPI_Irecv", code).map(|()| request)
    }

    pub(crate) fn wait(&self, mut request: Request) -> Result<(), Failure> {
        // SAFETY: a request that was not waited for.
        let code = unsafe { (self.call.wait)((&raw mut request.0).cast(), self.no_status) };
        check("MPI_Wait", code)
    }

    pub(crate) fn bcast(&self, at: Memory, len: usize, root: usize) -> Result<(), Failure> {
        // SAFETY: the caller's memory has the bytes.
        let code = unsafe { (self.call.bcast)(at, int(len), self.byte, int(root), self.world) };
        check("MPI_Bcast", code)
    }

    /// A type of blocks of bytes at a stride.
    pub(crate) fn vector(&self, blocks: usize, len: usize, stride: usize) -> Result<Vector<'_>, Failure> {
        let mut handle = 0;
        // SAFETY: valid pointers.
        unsafe {
            let code =
                (self.call.type_vector)(int(blocks), int(len), int(stride), self.byte, &raw mut handle);
            check("MPI_Type_vector", code)?;
            check("MPI_Type_commit", (self.call.type_commit)(&raw mut handle))?;
        }
        Ok(Vector { mpi: self, handle })
    }

    /// A window over memory of every process.
    pub(crate) fn window(&self, at: Memory, len: usize) -> Result<Window<'_>, Failure> {
        let mut handle = 0;
        // SAFETY: the caller's memory has the bytes until the window is freed.
        let code =
            unsafe { (self.call.win_create)(at, len as isize, 1, self.no_info, self.world, &raw mut handle) };
        check("MPI_Win_create", code)?;
        Ok(Window { mpi: self, handle })
    }
}

/// What was begun.
pub(crate) struct Request(Handle);

/// A committed type.
pub(crate) struct Vector<'a> {
    mpi: &'a Mpi,
    handle: Handle,
}

impl Drop for Vector<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing uses the type any more.
        unsafe { (self.mpi.call.type_free)(&raw mut self.handle) };
    }
}

/// Memory that the other processes access.
pub(crate) struct Window<'a> {
    mpi: &'a Mpi,
    handle: Handle,
}

impl Window<'_> {
    /// Performs operations on the memory of `target`. They are complete there and here when it
    /// returns.
    pub(crate) fn access(
        &self,
        target: usize,
        operations: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let call = &self.mpi.call;
        // SAFETY: a window.
        check("MPI_Win_lock_all", unsafe { (call.win_lock_all)(0, self.handle) })?;
        operations()?;
        // Not MPI_Win_fence or MPI_Win_unlock_all alone: Open MPI ends them with ucp_worker_flush,
        // which does not see requests that wait for room in the peer's shared memory.
        // SAFETY: a window.
        check("MPI_Win_flush", unsafe {
            (call.win_flush)(int(target), self.handle)
        })?;
        // SAFETY: a window.
        check("MPI_Win_unlock_all", unsafe {
            (call.win_unlock_all)(self.handle)
        })
    }

    pub(crate) fn put(&self, at: Memory, len: usize, to: usize, offset: usize) -> Result<(), Failure> {
        let (byte, count) = (self.mpi.byte, int(len));
        // SAFETY: the caller's memory has the bytes until `access` returns.
        let code = unsafe {
            (self.mpi.call.put)(
                at,
                count,
                byte,
                int(to),
                offset as isize,
                count,
                byte,
                self.handle,
            )
        };
        check("MPI_Put", code)
    }

    pub(crate) fn get(&self, at: Memory, len: usize, from: usize, offset: usize) -> Result<(), Failure> {
        let (byte, count) = (self.mpi.byte, int(len));
        // SAFETY: the caller's memory has room for the bytes until `access` returns.
        let code = unsafe {
            (self.mpi.call.get)(
                at,
                count,
                byte,
                int(from),
                offset as isize,
                count,
                byte,
                self.handle,
            )
        };
        check("MPI_Get", code)
    }

    pub(crate) fn free(mut self) -> Result<(), Failure> {
        // SAFETY: a window without operations in flight.
        check("MPI_Win_free", unsafe {
            (self.mpi.call.win_free)(&raw mut self.handle)
        })
    }
}
