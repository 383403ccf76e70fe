//! Generates submissions: programs, invalid chunks, signals, and waits for them.

use gaudi_spec::gaudi2;

use super::*;
use crate::op::{Chunk, End, Op, Packets, Program, Ref};

impl Plan {
    fn program(&mut self) -> Packets {
        Packets::Of(
            self.rng
                .pick(&[Program::Nop, Program::Barrier, Program::Nops, Program::Sob]),
        )
    }

    fn good_chunk(&mut self) -> Chunk {
        Chunk {
            queue: self.rng.pick(&QUEUES),
            packets: self.program(),
            kernel_buffer: false,
        }
    }

    /// Returns a chunk that the driver refuses in every state.
    fn bad_chunk(&mut self) -> Chunk {
        let good = self.good_chunk();
        match self.rng.below(5) {
            0 => Chunk {
                queue: self.rng.pick(&[2, 3, 5, 7, 156, 251, 260, 261, u32::MAX]),
                ..good
            },
            1 => Chunk {
                kernel_buffer: true,
                ..good
            },
            2 => Chunk {
                packets: Packets::Wrong {
                    address: Ref::raw(gaudi2::HOST_VA.start.0),
                    size: 0,
                },
                ..good
            },
            3 => Chunk {
                packets: Packets::Wrong {
                    address: self.buffer_handle(),
                    size: 64,
                },
                kernel_buffer: true,
                ..good
            },
            _ => Chunk {
                packets: Packets::Wrong {
                    address: Ref::raw(self.rng.pick(&[
                        0,
                        8,
                        0xffff_ffff_0000_0000,
                        gaudi2::HOST_HUGE_VA.end.0,
                        0x1000_0000_0000_0000,
                    ])),
                    size: 64,
                },
                ..good
            },
        }
    }

    fn buffer_handle(&mut self) -> Ref {
        match self.state.buffers.clone()[..] {
            [] => Ref::raw(0x2 << 59),
            ref buffers => Ref::to(self.rng.pick(buffers)),
        }
    }

    pub(super) fn submit(&mut self) -> Op {
        let mut flags = self.rng.pick(&[0, 0, 0, TIMESTAMP]);
        let mut restore = Vec::new();
        let mut chunks: Vec<_> = (0..self.rng.pick(&[1, 1, 1, 2, 3, 8]))
            .map(|_| self.good_chunk())
            .collect();
        if self.state.held.is_some() {
            // On another queue it would be a race whether the submission has ended at the wait.
            chunks.iter_mut().for_each(|chunk| chunk.queue = HELD);
        }
        match self.rng.below(20) {
            0..8 => {}
            8 => chunks.clear(),
            9 => chunks = vec![self.good_chunk(); 513],
            // Kinds exclude each other; Gaudi2 does not support staged submissions.
            10 => flags |= self.rng.pick(&[SIGNAL | WAIT, 0x40, 0xc0, 0x3000, 0x8 | 0x4]),
            11 => flags |= self.rng.pick(&[0x8000, SIGNAL | 0x8000]),
            12 if self.state.held.is_none() => {
                flags |= FORCE_RESTORE;
                restore = match self.rng.below(3) {
                    0 => vec![self.bad_chunk()],
                    1 => Vec::new(),
                    _ => vec![self.good_chunk()],
                };
            }
            _ => {
                let at = self.rng.below(chunks.len() as u64) as usize;
                chunks[at] = self.bad_chunk();
            }
        }
        self.state.submissions.push(self.now);
        Op::Submit {
            chunks,
            restore,
            flags,
            timeout: 0,
        }
    }

    pub(super) fn copy(&mut self) -> Op {
        let mapped = self.state.mappings.clone();
        let mut end = || match self.rng.below(6) {
            0..2 => End::Host,
            2 => End::Sram,
            3 if !mapped.is_empty() => match self.rng.pick(&mapped) {
                (number, size) if size == gaudi2::DRAM_PAGE => End::Mapped(number),
                _ => End::Dram,
            },
            _ => End::Dram,
        };
        let (to, from) = (end(), end());
        let to = if to == End::Host && from == End::Host {
            End::Dram
        } else {
            to
        };
        Op::Copy {
            queue: self.rng.pick(&COPIES),
            to,
            from,
            at: self.rng.pick(&[0, 1, 64, 4093, 8192]),
            len: self.rng.pick(&[1, 7, 64, 128, 1000, 4096, 5001, 20_000]),
            seed: self.rng.below(256) as u8,
        }
    }

    pub(super) fn submission(&mut self) -> Ref {
        match self.state.submissions.clone()[..] {
            [] => Ref::raw(self.rng.pick(&[0, u64::MAX])),
            ref all => match self.rng.below(12) {
                0 => Ref {
                    of: Some(self.rng.pick(all)),
                    plus: self.rng.pick(&[1, 100, 1 << 20, 1 << 40, u64::MAX]),
                },
                1 => Ref::raw(self.rng.pick(&[0, u64::MAX, u64::MAX - 1, 1 << 40])),
                _ => Ref::to(self.rng.pick(all)),
            },
        }
    }

    pub(super) fn signal(&mut self) -> Op {
        let waits_for = match self.rng.percent(50) {
            true => Some(self.submission()),
            false => None,
        };
        let kind = if waits_for.is_some() { WAIT } else { SIGNAL };
        let extra = match self.wrong() {
            true => self
                .rng
                .pick(&[TIMESTAMP, ENCAP_SIGNALS, COLLECTIVE_WAIT, 0x2000]),
            false => 0,
        };
        self.state.submissions.push(self.now);
        Op::Signal {
            queue: match self.wrong() {
                true => self.rng.pick(&[156, 251, 261, u32::MAX]),
                false if self.state.held.is_some() => HELD,
                false => self.rng.pick(&[0, 1, 4]),
            },
            flags: kind | extra,
            waits_for,
            size: self.rng.pick(&[1, 1, 1, 0, 2]),
        }
    }

    pub(super) fn reserve(&mut self) -> Op {
        self.state.reservations.push(self.now);
        Op::Reserve {
            count: self.rng.pick(&[0, 1, 2, 5, 1 << 15, (1 << 15) + 1, u32::MAX]),
            queue: match self.wrong() {
                true => self.rng.pick(&[156, 260, 261, u32::MAX]),
                false => self.rng.pick(&[0, 1, 8]),
            },
        }
    }

    pub(super) fn unreserve(&mut self) -> Op {
        let reservations = self.state.reservations.clone();
        let reservation = self.one_of(&reservations, &[]);
        self.take(|state| &mut state.reservations, reservation);
        Op::Unreserve { reservation }
    }

    pub(super) fn engines(&mut self) -> Op {
        let ids = match self.rng.below(4) {
            0 => Vec::new(),
            1 => vec![self.rng.pick(&[69, 70, 1000, u32::MAX])],
            2 => vec![0, 1, 2],
            _ => vec![self.rng.below(69) as u32],
        };
        Op::Engines {
            cores: self.rng.percent(50),
            ids,
            command: self.rng.pick(&[0, 1, 2, 1, 5, 99, u32::MAX]),
        }
    }

    pub(super) fn hold(&mut self) -> Op {
        if self.state.held.is_some() {
            return self.release_held();
        }
        self.state.held = Some(MAX_HOLD_OPS);
        self.state.submissions.push(self.now);
        Op::Hold { queue: HELD }
    }

    pub(super) fn release_held(&mut self) -> Op {
        self.state.held = None;
        Op::Release
    }

    pub(super) fn wait_cs(&mut self) -> Op {
        Op::WaitCs {
            submission: self.submission(),
            micros: self.rng.pick(&[0, 0, 1, 500, 2000]),
        }
    }
}
