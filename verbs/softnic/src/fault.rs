//! Faults that a NIC makes on purpose, by seed.

#![expect(unsafe_code, reason = "a rule reads one byte of claimed memory")]

use std::time::Duration;

use crate::nic::FaultRule;
use crate::region::Piece;
use crate::wire::{Header, Kind};

/// xorshift64*: small, and the same everywhere.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// Below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

/// What happens to a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Send,
    Lose,
    Damage,
    Twice,
    /// After the next one.
    HoldBack,
    Delay(Duration),
    /// It and all after it: the cable is cut.
    Cut,
}

/// The state of a [`FaultRule`] on one cable.
pub(crate) struct Fault {
    rule: Option<FaultRule>,
    rng: Rng,
    frames: u64,
    /// Bytes of payload that have left.
    payload: u64,
    /// The wrong byte, while it is on its way.
    byte: u8,
}

impl Fault {
    pub(crate) fn new(rule: Option<FaultRule>, link: usize) -> Self {
        let seed = match rule {
            Some(FaultRule::Storm { seed, .. }) => seed,
            _ => 0,
        };
        Self {
            rule,
            rng: Rng::new(seed.wrapping_add(link as u64).wrapping_mul(0x2545_f491_4f6c_dd1d)),
            frames: 0,
            payload: 0,
            byte: 0,
        }
    }

    /// Decides on the next frame.
    pub(crate) fn verdict(&mut self, header: &Header) -> Verdict {
        if self.rule.is_none() || header.kind == Kind::Hello {
            return Verdict::Send;
        }
        self.frames += 1;
        match self.rule {
            Some(FaultRule::CutCable { frame }) if self.frames > frame => Verdict::Cut,
            Some(FaultRule::Storm { permille, .. }) => {
                if self.rng.below(1000) >= u64::from(permille) {
                    return Verdict::Send;
                }
                match self.rng.below(5) {
                    0 => Verdict::Lose,
                    1 => Verdict::Damage,
                    2 => Verdict::Twice,
                    // Memory cannot be kept claimed for a frame that waits.
                    3 if header.payload == 0 => Verdict::HoldBack,
                    _ => Verdict::Delay(Duration::from_micros(self.rng.below(1000))),
                }
            }
            _ => Verdict::Send,
        }
    }

    /// Puts a changed copy in the place of the byte that the rule names; memory itself stays right.
    pub(crate) fn apply(&mut self, pieces: &mut Vec<Piece>) {
        let Some(FaultRule::FlipPayloadBit { byte, bit }) = self.rule else {
            return;
        };
        let mut left = byte.wrapping_sub(self.payload);
        let total: usize = pieces.iter().map(|piece| piece.len).sum();
        let before = self.payload;
        self.payload = self.payload.saturating_add(total as u64);
        if byte < before || byte >= self.payload {
            return;
        }
        for index in 0..pieces.len() {
            let Some(piece) = pieces.get(index).copied() else {
                return;
            };
            if left >= piece.len as u64 {
                left -= piece.len as u64;
                continue;
            }
            let (head, tail) = piece.split(usize::try_from(left).unwrap_or(usize::MAX));
            // SAFETY: the piece is claimed, hence mapped and readable.
            let Some(right) = (unsafe { tail.first_byte() }) else {
                return;
            };
            self.byte = right ^ 1 << (bit & 7);
            let wrong = Piece::of_byte(&mut self.byte);
            pieces.splice(index..=index, [head, wrong, tail.split(1).1]);
            return;
        }
    }
}
