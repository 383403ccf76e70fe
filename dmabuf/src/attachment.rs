//! What an importer holds: a counted, named [`Attachment`], with or without a CPU view.

use std::fmt;
use std::ptr::NonNull;

use gaudi_seam::{Errno, Error, Result};
use gaudi_sys::{RawMapping, SysResult};

use crate::cpu_access::{CpuAccess, Directions, Editing, Reading, Writing};
use crate::holders::Hold;
use crate::window::Window;

/// The record of one importer: while it lives the buffer stays open and names it.
///
/// An importer in the kernel (`ibv_reg_dmabuf_mr`) is given [`DmaBuf`](crate::DmaBuf)'s descriptor
/// and keeps this beside its own object. An importer in this process keeps a [`CpuAttachment`].
pub struct Attachment {
    window: Window,
    ticket: u64,
}

impl Window {
    /// Records `importer` as attached. Nothing is mapped.
    ///
    /// # Errors
    /// `Forked`: this is a fork child of the process that made the buffer.
    pub fn attach(&self, importer: impl Into<String>) -> Result<Attachment> {
        self.attach_as(Hold::Other, importer)
    }

    /// Records `importer` as attached, with this use. Nothing is mapped.
    ///
    /// # Errors
    /// `Forked`: this is a fork child of the process that made the buffer.
    pub fn attach_as(&self, hold: Hold, importer: impl Into<String>) -> Result<Attachment> {
        self.dmabuf().check_process("dma-buf attach")?;
        let ticket = self.dmabuf().holders().add(hold, importer.into());
        Ok(Attachment {
            window: self.clone(),
            ticket,
        })
    }

    /// Attaches `importer` with a mapping of the window for the CPU.
    ///
    /// # Errors
    /// - `Unsupported`: the exporter has no mmap; only devices can access a habanalabs dma-buf.
    /// - `Forked`: this is a fork child of the process that made the buffer.
    /// - mmap(2)'s.
    pub fn attach_cpu(&self, importer: impl Into<String>) -> Result<CpuAttachment> {
        const OPERATION: &str = "dma-buf CPU attach";
        let dmabuf = self.dmabuf();
        dmabuf.check_process(OPERATION)?;
        let refused = |why: &str| {
            Error::unsupported(OPERATION, why)
                .saw(
                    dmabuf.exporter(),
                    "an exporter with mmap: udmabuf, system heap, stand-in",
                )
                .helped_by("register the window with a NIC, or copy with the device's DMA engine")
        };
        if let Some(why) = dmabuf.exporter().refuses_cpu() {
            return Err(refused(why));
        }
        let failed = |errno| Error::from_errno(OPERATION, errno);
        let len = usize::try_from(self.len()).map_err(|_| failed(Errno::EOVERFLOW))?;
        let start = dmabuf
            .identity()
            .start
            .checked_add(self.offset())
            .ok_or_else(|| failed(Errno::EOVERFLOW))?;
        // `of_fd` rounds to pages itself; the mapping it returns starts at the window's first byte.
        let mapping = RawMapping::of_fd(dmabuf, start, len).map_err(|errno| match errno {
            // dma_buf_mmap_internal answers EINVAL for an exporter without mmap; our range was
            // checked.
            Errno::EINVAL if dmabuf.exporter().is_dmabuf() => refused("the exporter has no mmap operation"),
            errno => failed(errno),
        })?;
        Ok(CpuAttachment {
            mapping,
            attachment: self.attach_as(Hold::Mapping, importer)?,
        })
    }
}

impl Attachment {
    /// What is attached.
    pub fn window(&self) -> &Window {
        &self.window
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // In a fork child the list may stay locked: the thread that held it does not exist there.
        if self.window.dmabuf().check_process("dma-buf detach").is_err() {
            return;
        }
        self.window.dmabuf().holders().remove(self.ticket);
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attachment to {:?}", self.window)
    }
}

/// An attachment with the window mapped for the CPU: raw memory that others write at any time.
#[derive(Debug)]
pub struct CpuAttachment {
    // Before the attachment: once the attachment is removed, the mapping is unmapped too.
    mapping: RawMapping,
    attachment: Attachment,
}

impl CpuAttachment {
    /// What is attached.
    pub fn window(&self) -> &Window {
        self.attachment.window()
    }

    /// Begins to read: waits for work that writes, and makes its bytes visible.
    ///
    /// # Errors
    /// As for [`begin`](Self::begin).
    pub fn reading(&self) -> Result<Reading<'_>> {
        Reading::begin(self.window(), &self.mapping, Directions::Read)
    }

    /// Begins to write: waits for all work on the buffer.
    ///
    /// # Errors
    /// As for [`begin`](Self::begin).
    pub fn writing(&self) -> Result<Writing<'_>> {
        Writing::begin(self.window(), &self.mapping, Directions::Write)
    }

    /// Begins to read and write.
    ///
    /// # Errors
    /// As for [`begin`](Self::begin).
    pub fn editing(&self) -> Result<Editing<'_>> {
        Editing::begin(self.window(), &self.mapping, Directions::ReadWrite)
    }

    /// Begins CPU access; required around every access of a real dma-buf (`DMA_BUF_IOCTL_SYNC`).
    /// [`reading`](Self::reading), [`writing`](Self::writing) and [`editing`](Self::editing) allow
    /// the access that they began and no other.
    ///
    /// # Errors
    /// - `Forked`: this is a fork child of the process that made the buffer.
    /// - ioctl(2)'s.
    pub fn begin(&self, directions: Directions) -> Result<CpuAccess<'_>> {
        CpuAccess::begin(self.window(), &self.mapping, directions)
    }

    /// Returns the address of `len` bytes at `offset` in the window, valid while this lives.
    ///
    /// # Errors
    /// `EFAULT`: the range leaves the window.
    pub fn at(&self, offset: usize, len: usize) -> SysResult<NonNull<u8>> {
        self.mapping.at(offset, len)
    }

    /// Copies bytes out, between [`begin`](Self::begin) and its end.
    ///
    /// # Errors
    /// `EFAULT`: the range leaves the window.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> SysResult<()> {
        self.mapping.read(offset, into)
    }

    /// Copies bytes in, between [`begin`](Self::begin) and its end.
    ///
    /// # Errors
    /// `EFAULT`: the range leaves the window.
    pub fn write(&self, offset: usize, from: &[u8]) -> SysResult<()> {
        self.mapping.write(offset, from)
    }
}

#[cfg(test)]
mod tests {
    #![expect(unsafe_code, reason = "fork(2) is what is tested")]

    use gaudi_sys::{Memfd, standin};
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    use crate::buffer::DmaBuf;

    #[test]
    fn fork_child_detaches_while_list_is_locked() {
        let memory = Memfd::sparse(standin::MEMFD_NAME, 4096).expect("a memfd");
        let range = standin::Window { offset: 0, len: 4096 };
        let fd = standin::export(&memory, range).expect("a stand-in");
        let buffer = DmaBuf::from_fd(fd).expect("a buffer");
        let window = buffer.whole().expect("a window");
        let attachment = window.attach("parent").expect("attached");
        // The state of a fork while another thread attaches: the list is locked.
        let list = buffer.holders();
        // SAFETY: the child only drops and exits by _exit; the alarm ends it if the drop blocks.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                // SAFETY: alarm(2) sets a timer of this process, and nothing else.
                unsafe { nix::libc::alarm(10) };
                drop(attachment);
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { nix::libc::_exit(0) }
            }
            ForkResult::Parent { child } => {
                let status = waitpid(child, None);
                assert_eq!(status, Ok(WaitStatus::Exited(child, 0)), "the drop returns");
            }
        }
        drop(list);
        assert_eq!(buffer.attachments(), ["parent"], "the parent's list is unchanged");
        drop(attachment);
        assert!(buffer.attachments().is_empty());
    }
}
