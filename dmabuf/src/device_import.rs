//! Import into a device: another exporter's memory in a Gaudi's address space, where its driver
//! offers that.

use std::fmt;
use std::os::fd::AsFd;

use gaudi_seam::{CloseError, DeviceVa, Error, ErrorKind, RegisterDmabuf, Result, SharedIo};

use crate::attachment::Attachment;
use crate::holders::Hold;
use crate::window::Window;

const OPERATION: &str = "HL_MEM_OP_REG_DMABUF_FD";

/// A window that a device reaches by addresses of its own, until this is closed or dropped.
pub struct DeviceImport {
    io: SharedIo,
    /// Where the driver put the buffer's first byte.
    base: DeviceVa,
    /// Where the window's is.
    va: DeviceVa,
    live: bool,
    attachment: Attachment,
}

impl Window {
    /// Maps the window's buffer into a device's address space and attaches it by the device's name.
    ///
    /// # Errors
    /// - `Unsupported`: the driver has no such operation. Mainline has none; drivers of the Gaudi3
    ///   header do. The device's DMA engine can copy through pinned host memory instead.
    /// - `Forked`: this is a fork child of the process that made the buffer.
    /// - `Protocol`: the device's address leaves the address space.
    pub fn import(&self, io: SharedIo) -> Result<DeviceImport> {
        let dmabuf = self.dmabuf();
        dmabuf.check_process(OPERATION)?;
        let device = io.node().device;
        let request = RegisterDmabuf {
            dmabuf: dmabuf.as_fd(),
            len: dmabuf.size(),
        };
        let attachment = self.attach_as(Hold::DeviceMap, format!("device {device}"))?;
        let base = io.register_dmabuf(request).map_err(|error| match error.kind() {
            ErrorKind::Unsupported => error
                .because("this driver imports no dma-bufs: the operation came with the Gaudi3 header and is not in mainline")
                .helped_by("map host memory (HL_MEM_USERPTR), or let a NIC write into device memory that was exported"),
            _ => error,
        })?;
        let mut import = DeviceImport {
            io,
            base,
            va: base,
            live: true,
            attachment,
        };
        let Some(va) = base.checked_add(self.offset()) else {
            import.unmap()?;
            return Err(Error::new(ErrorKind::Protocol, OPERATION)
                .on(device)
                .because("the device's answer leaves the address space"));
        };
        import.va = va;
        Ok(import)
    }
}

impl DeviceImport {
    /// Where the device sees the window's first byte.
    pub fn address(&self) -> DeviceVa {
        self.va
    }

    /// What is imported.
    pub fn window(&self) -> &Window {
        self.attachment.window()
    }

    /// Unmaps the buffer from the device's address space, or returns it, still mapped, with the
    /// error.
    ///
    /// # Errors
    /// - `Forked`: this is a fork child of the process that made the buffer.
    /// - The driver's own error.
    pub fn close(mut self) -> Result<(), CloseError<Self>> {
        match self.unmap() {
            Ok(()) => Ok(()),
            Err(error) => Err(CloseError::new(self, error)),
        }
    }

    fn unmap(&mut self) -> Result<()> {
        self.window().dmabuf().check_process("HL_MEM_OP_UNMAP")?;
        if self.live {
            self.io.mem_unmap(self.base)?;
            self.live = false;
        }
        Ok(())
    }
}

impl Drop for DeviceImport {
    fn drop(&mut self) {
        if self.window().dmabuf().check_process("HL_MEM_OP_UNMAP").is_err() {
            return;
        }
        if let Err(error) = self.unmap() {
            tracing::warn!(%error, import = ?self, "an imported dma-buf was not unmapped from the device");
        }
    }
}

impl fmt::Debug for DeviceImport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.io.node().device;
        write!(f, "{:?} at {} of {device}", self.window(), self.va)
    }
}
