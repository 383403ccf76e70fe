//! Random sequences of operations of `gaudi_device`, with a model of the bytes that they write.

use gaudi_device::Deadline;

use crate::invariant::Invariant;
use crate::op::{Kind, Op};
use crate::rig::{At, Rig, among};

impl Rig<'_, '_> {
    pub(crate) fn step(&mut self, op: Op) {
        self.run.record.begin();
        let Op { kind, a, b, c } = op;
        let (buffer, other) = (among(&self.buffers, a, true), among(&self.buffers, b, true));
        let (host, other_host) = (among(&self.hosts, a, true), among(&self.hosts, b, true));
        match kind {
            Kind::Alloc => self.alloc(among(&self.buffers, a, false), b, c),
            Kind::AllocHost => self.alloc_host(among(&self.hosts, a, false), c),
            Kind::HostWrite => self.host_write(host, c),
            Kind::CopyToDevice => self.copy(At::Buffer(buffer), At::Host(other_host), c),
            Kind::CopyToHost => self.copy(At::Host(host), At::Buffer(other), c),
            Kind::CopyInDevice => self.copy(At::Buffer(buffer), At::Buffer(other), c),
            Kind::Fill => self.fill(
                if b % 2 == 0 {
                    At::Buffer(buffer)
                } else {
                    At::Host(host)
                },
                c,
            ),
            Kind::Write => self.write(buffer, c),
            Kind::Read => self.read(buffer),
            Kind::Map => self.map(among(&self.hosts, a, false), c),
            Kind::DropCached => self.drop_cached(host),
            Kind::Poll => self.poll(a),
            Kind::Wait => self.wait(a, Deadline::NEVER),
            Kind::WaitNot => self.wait(a, std::time::Duration::ZERO.into()),
            Kind::Drain => self.drain(),
            Kind::Info => {
                let answer = self.device.info();
                // Queries that older drivers lack may fail.
                self.judge("Device::info", &answer, &[], &[]);
            }
            Kind::DropBuffer => self.buffers[buffer] = None,
            Kind::DropHost => self.hosts[host] = None,
            Kind::CloseBuffer => self.close_buffer(buffer),
            Kind::CloseHost => self.close_host(host),
            Kind::AllocExclusive => self.alloc_exclusive(among(&self.buffers, a, false), c),
            Kind::Export => self.export(buffer),
            Kind::ReadExport => self.read_export(a),
            Kind::DropExport => self.drop_export(a),
            Kind::Check => self.check(if b % 2 == 0 {
                At::Buffer(buffer)
            } else {
                At::Host(host)
            }),
            // Of other places.
            _ => {}
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
