//! [`FaultRule`]: faults injected by seed.

#![expect(unsafe_code, reason = "a rule reads one byte of claimed memory")]

use std::time::Duration;

use gaudi_sys::random::SplitMix64;

use crate::error::defect;
use crate::region::Piece;
use crate::wire::{Header, Kind};

/// A fault that a NIC injects into the frames that it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultRule {
    /// Flips one bit of one sent payload byte. The registered memory stays correct.
    FlipPayloadBit {
        /// Index of the byte in all payload that this NIC sends, read responses included.
        byte: u64,
        /// Bit of that byte, 0 to 7.
        bit: u8,
    },
    /// Cuts a cable after a number of frames.
    CutCable {
        /// Frames that each cable still sends.
        frame: u64,
    },
    /// Loses, corrupts, duplicates, delays and reorders frames of all kinds, as a network may.
    /// Connections recover. The receiver drops corrupt frames, as it drops a wrong checksum.
    Storm {
        /// Seed of the decisions.
        seed: u64,
        /// Frames per thousand that get one of these faults.
        permille: u16,
    },
}

/// Decision about a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Send,
    Lose,
    Corrupt,
    Duplicate,
    /// Send it after the next frame.
    HoldBack,
    Delay(Duration),
    /// Drop it and cut the cable.
    Cut,
}

/// The state of a [`FaultRule`] on one cable.
pub(crate) struct Fault {
    rule: Option<FaultRule>,
    rng: SplitMix64,
    frames: u64,
    /// Payload bytes of all frames so far.
    payload: u64,
    /// The flipped byte, while it is being sent.
    byte: [u8; 1],
}

impl Fault {
    pub(crate) fn new(rule: Option<FaultRule>, link: usize) -> Self {
        let seed = match rule {
            Some(FaultRule::Storm { seed, .. }) => seed,
            _ => 0,
        };
        Self {
            rule,
            rng: SplitMix64::new(SplitMix64::nth(seed, link as u64 + 1)),
            frames: 0,
            payload: 0,
            byte: [0],
        }
    }

    /// Decides on the next frame. The GID is always sent.
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
                    1 => Verdict::Corrupt,
                    2 => Verdict::Duplicate,
                    // A waiting frame must not keep memory claimed.
                    3 if header.payload == 0 => Verdict::HoldBack,
                    _ => Verdict::Delay(Duration::from_micros(self.rng.below(1000))),
                }
            }
            _ => Verdict::Send,
        }
    }

    /// Replaces the byte that a `FlipPayloadBit` rule names by a changed copy.
    pub(crate) fn apply(&mut self, pieces: &mut Vec<Piece>) {
        let Some(FaultRule::FlipPayloadBit { byte, bit }) = self.rule else {
            return;
        };
        let mut hit = None;
        for (index, piece) in pieces.iter().enumerate() {
            let start = self.payload;
            self.payload = start.saturating_add(piece.len as u64);
            if (start..self.payload).contains(&byte) {
                // Less than the piece's length, which is a usize.
                hit = Some((index, piece.split((byte - start) as usize)));
            }
        }
        let Some((index, (head, tail))) = hit else { return };
        // SAFETY: the piece is claimed, hence mapped and readable.
        let Some(right) = (unsafe { tail.first_byte() }) else {
            return defect("the byte to flip lies outside of its piece");
        };
        self.byte = [right ^ 1 << (bit & 7)];
        let wrong = Piece::of_bytes(&mut self.byte);
        pieces.splice(index..=index, [head, wrong, tail.split(1).1]);
    }
}
