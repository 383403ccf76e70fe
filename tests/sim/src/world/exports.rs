//! Operations on dma-bufs: export, send and receive, attach, drop.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use gaudi_dmabuf::{CpuAttachment, DmaBuf, Window};
use gaudi_seam::Operation;

use super::{At, HeldExport, World};

/// An object that keeps an export alive.
pub(super) enum Part {
    Whole(DmaBuf),
    Window(Window),
    #[expect(dead_code, reason = "held, so that the export stays mapped")]
    Attached(CpuAttachment),
}

const MOST: usize = 6;

impl World {
    pub(super) fn export(&mut self, slot: usize, b: usize, c: u16) {
        let Some(memory) = self.buffers[slot].as_ref() else {
            return;
        };
        if memory.unmapped {
            return;
        }
        let (id, buffer) = (memory.id, memory.object.clone());
        if self.held.len() >= MOST {
            return;
        }
        let len = buffer.len();
        let answer = match (c % 3, len > 4096) {
            (0, _) => buffer.export(..),
            (1, true) => buffer.export(4096..),
            _ => buffer.export(..4096),
        };
        self.judge("Buffer::export", &answer, &[Operation::ExportDmabuf], &[]);
        let Ok(dmabuf) = answer else { return };
        let token = self.token();
        let whole = dmabuf.size() == len;
        if b % 2 == 0 && whole {
            self.look(&dmabuf, slot, &token, id);
        }
        let what = Part::Whole(dmabuf);
        self.held.push(HeldExport {
            what,
            token,
            buffer: Some(id),
        });
    }

    /// Checks that an importer reads the bytes of the buffer.
    fn look(&mut self, dmabuf: &DmaBuf, slot: usize, token: &Arc<()>, id: u64) {
        let attached = dmabuf.whole().and_then(|window| window.attach_cpu("case"));
        self.judge("Window::attach_cpu", &attached, &[], &[]);
        let Ok(attached) = attached else { return };
        let trusts = self.trusts();
        let memory = self.buffers[slot]
            .as_ref()
            .filter(|memory| memory.is_idle() && trusts);
        if let Some(content) = memory.and_then(|memory| memory.content.as_ref()) {
            let mut seen = vec![0; content.len()];
            if attached.read(0, &mut seen).is_err() || seen != *content {
                self.violated(format!(
                    "an importer does not read the bytes of {:?}",
                    At::Buffer(slot)
                ));
            }
        }
        self.held.push(HeldExport {
            what: Part::Attached(attached),
            token: Arc::clone(token),
            buffer: Some(id),
        });
    }

    /// Sends a window through a socket and receives another descriptor of the same export.
    pub(super) fn pass(&mut self, a: usize, c: u16) {
        if self.held.is_empty() || self.held.len() >= MOST {
            return;
        }
        let held = &self.held[a % self.held.len()];
        let window = match &held.what {
            Part::Whole(dmabuf) => match c % 2 {
                0 => dmabuf.whole(),
                _ => dmabuf.window(u64::from(c) % dmabuf.size(), 1),
            },
            Part::Window(window) => Ok(window.clone()),
            Part::Attached(_) => return,
        };
        let (token, buffer) = (Arc::clone(&held.token), held.buffer);
        if self.sockets.is_none() {
            self.sockets = UnixStream::pair().ok();
        }
        let Some((near, far)) = &self.sockets else { return };
        let second = Duration::from_secs(1);
        let passed = window.and_then(|window| {
            gaudi_dmabuf::send(near, &window, second)?;
            let received = gaudi_dmabuf::receive(far, second)?;
            Ok((window, received))
        });
        self.judge("dma-buf send and receive", &passed, &[], &[]);
        let Ok((sent, received)) = passed else { return };
        let same = sent.dmabuf().identity() == received.dmabuf().identity()
            && (sent.offset(), sent.len()) == (received.offset(), received.len());
        if !same {
            self.violated(format!("{sent:?} was sent, but {received:?} was received"));
        }
        self.held.push(HeldExport {
            what: Part::Window(received),
            token,
            buffer,
        });
    }

    pub(super) fn drop_export(&mut self, a: usize) {
        if !self.held.is_empty() {
            let at = a % self.held.len();
            self.held.swap_remove(at);
        }
    }
}
