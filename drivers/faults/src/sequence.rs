//! Random sequences of operations of `gaudi_device`, with a model of the bytes that they write.

use gaudi_device::Deadline;

use crate::invariant::Invariant;
use crate::op::{Kind, Op};
use crate::rig::{At, Rig, among};

impl Rig<'_, '_> {
    pub(crate) fn step(&mut self, op: Op) {
        self.run.record.begin();
        let Op { kind, a, b, c } = op;
        match kind {
            Kind::Alloc => self.alloc(self.free_buffer(a), b, c),
            Kind::AllocHost => self.alloc_host(self.free_host(a), c),
            Kind::HostWrite => self.host_write(self.host(a), c),
            Kind::CopyToDevice => self.copy(At::Buffer(self.buffer(a)), At::Host(self.host(b)), c),
            Kind::CopyToHost => self.copy(At::Host(self.host(a)), At::Buffer(self.buffer(b)), c),
            Kind::CopyInDevice => self.copy(At::Buffer(self.buffer(a)), At::Buffer(self.buffer(b)), c),
            Kind::Fill => self.fill(self.either(a, b), c),
            Kind::Write => self.write(self.buffer(a), c),
            Kind::Read => self.read(self.buffer(a)),
            Kind::Map => self.map(self.free_host(a), c),
            Kind::DropCached => self.drop_cached(self.host(a)),
            Kind::Poll => self.poll(a),
            Kind::Wait => self.wait(a, Deadline::NEVER),
            Kind::WaitNot => self.wait(a, std::time::Duration::ZERO.into()),
            Kind::Drain => self.drain(),
            Kind::Info => {
                let answer = self.device.info();
                // Queries that older drivers lack may fail.
                self.run.judge_memory("Device::info", &answer, &[], &[]);
            }
            Kind::DropBuffer => self.buffers[self.buffer(a)] = None,
            Kind::DropHost => self.hosts[self.host(a)] = None,
            Kind::CloseBuffer => self.close_buffer(self.buffer(a)),
            Kind::CloseHost => self.close_host(self.host(a)),
            Kind::AllocExclusive => self.alloc_exclusive(self.free_buffer(a), c),
            Kind::Export => self.export(self.buffer(a)),
            Kind::ReadExport => self.read_export(a),
            Kind::DropExport => self.drop_export(a),
            Kind::Check => self.check(self.either(a, b)),
            // Of other places.
            _ => {}
        }
    }

    /// The slot of a buffer that a word chooses.
    fn buffer(&self, word: u16) -> usize {
        among(&self.buffers, word, true)
    }

    /// The slot of a mapping that a word chooses.
    fn host(&self, word: u16) -> usize {
        among(&self.hosts, word, true)
    }

    /// The slot for a new buffer.
    fn free_buffer(&self, word: u16) -> usize {
        among(&self.buffers, word, false)
    }

    /// The slot for a new mapping.
    fn free_host(&self, word: u16) -> usize {
        among(&self.hosts, word, false)
    }

    /// A buffer or a mapping, as the second word chooses.
    fn either(&self, word: u16, which: u16) -> At {
        match which % 2 {
            0 => At::Buffer(self.buffer(word)),
            _ => At::Host(self.host(word)),
        }
    }

    /// Compares all memory whose bytes are known. No fault is armed any more.
    pub(crate) fn finish(mut self) {
        self.run.record.begin();
        {
            let record = self.run.record.lock();
            if record.work_failed || record.false_end || record.was_reset {
                return;
            }
        }
        self.drain();
        let (counted, taken) = (self.device.stats().submissions, self.run.record.lock().accepted);
        if counted != taken {
            let what = format!("the device counts {counted} submissions, and the driver accepted {taken}");
            self.violated(Invariant::EndsOnce, what);
        }
        for at in self.all() {
            self.run.record.begin();
            self.check(at);
        }
    }
}
