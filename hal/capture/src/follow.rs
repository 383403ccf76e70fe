//! Selects the memory of a traced process that decoding an ioctl needs, for tracers that follow
//! pointers.

use gaudi_uapi::cs::{CsChunkFlags, HlCsChunk};
use gaudi_uapi::view::{Pointee, Shape, Way};

use crate::names::{Names, view};
use crate::record::{IoctlRecord, Memory, Moment};
use crate::walk::{Target, target};

/// Maximum number of bytes that are read for one ioctl: half of an event's limit.
const MOST: usize = crate::gcap::MAX_PAYLOAD / 2;

/// Reads the memory that the pointers of an ioctl refer to: at [`Moment::Entry`] the memory that
/// the driver reads, at [`Moment::Exit`] the memory that it wrote. At exit, `output` and `result`
/// of the record must be set.
///
/// `names` must have seen all earlier events, because it records where command buffers are mapped.
/// `read` returns the bytes at an address, up to the requested length.
pub fn follow(
    names: &Names,
    ioctl: &IoctlRecord,
    at: Moment,
    read: &mut dyn FnMut(u64, usize) -> Vec<u8>,
) -> Vec<Memory> {
    let Some(view) = names.view_of(ioctl).filter(|_| !ioctl.compat) else {
        return Vec::new();
    };
    let mut follow = Follow {
        names,
        ioctl,
        at,
        read,
        left: MOST,
        memory: Vec::new(),
    };
    match at {
        Moment::Entry => {
            for pointer in view
                .input
                .pointers
                .iter()
                .filter(|pointer| pointer.way != Way::Out)
            {
                follow.take(target(&view.input, pointer, (&ioctl.input, None), ioctl.argument));
            }
        }
        Moment::Exit if view.has_answer(ioctl.result) => {
            let answer = Some((view.output, &ioctl.output[..]));
            for pointer in view
                .input
                .pointers
                .iter()
                .filter(|pointer| pointer.way != Way::In)
            {
                follow.take(target(
                    &view.input,
                    pointer,
                    (&ioctl.input, answer),
                    ioctl.argument,
                ));
            }
        }
        Moment::Exit => {}
    }
    follow.memory
}

struct Follow<'a> {
    names: &'a Names,
    ioctl: &'a IoctlRecord,
    at: Moment,
    read: &'a mut dyn FnMut(u64, usize) -> Vec<u8>,
    left: usize,
    memory: Vec<Memory>,
}

impl Follow<'_> {
    fn take(&mut self, target: Option<Target>) {
        let Some(Target { address, to, len, .. }) = target else {
            return;
        };
        let is_known = |piece: &Memory| piece.address == address && piece.whole >= len;
        if address == 0 || len == 0 || self.memory.iter().any(is_known) {
            return;
        }
        let wanted = usize::try_from(len).unwrap_or(usize::MAX).min(self.left);
        let mut bytes = match wanted {
            0 => Vec::new(),
            wanted => (self.read)(address, wanted),
        };
        bytes.truncate(wanted);
        self.left -= bytes.len();
        if let Pointee::Structs(shape) = to {
            self.elements(shape, &bytes);
        }
        self.memory.push(Memory {
            address,
            at: self.at,
            bytes,
            whole: len,
        });
    }

    /// Follows the pointers in each element of an array.
    fn elements(&mut self, shape: &Shape, bytes: &[u8]) {
        for element in bytes.chunks_exact(shape.base.size) {
            for pointer in shape.pointers {
                self.take(target(shape, pointer, (element, None), 0));
            }
            if shape.has_command_buffer() {
                let chunk: HlCsChunk = view(element);
                let is_mapped = chunk.cs_chunk_flags.contains(CsChunkFlags::USER_ALLOC_CB);
                let (pid, fd) = (self.ioctl.pid, self.ioctl.fd);
                let address = self.names.command_buffer(pid, fd, chunk.cb_handle, is_mapped);
                self.take(address.map(|address| Target {
                    address,
                    to: Pointee::Bytes,
                    len: chunk.cb_size.into(),
                    is_list: false,
                }));
            }
        }
    }
}
