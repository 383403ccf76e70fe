//! The sync manager: counters, monitors that watch them, completion queues.
//!
//! A monitor that fires is put on a list, once, and its writes are done by the chip when it takes
//! the list up. So a chain of monitors that set off one another is work for a budget, never
//! recursion, and the list is never longer than there are monitors.

use std::collections::VecDeque;

use gaudi_spec::DeviceVa;
use gaudi_spec::gaudi2::sync::{
    CQ_BASE_H, CQ_BASE_L, CQ_INC_MODE, CQ_LBW_ADDR_H, CQ_LBW_ADDR_L, CQ_LBW_DATA, CQ_PI, CQ_SIZE_LOG2, CQS,
    Compare, DCORES, FIRST_USER_CQ, FIRST_USER_MONITOR, FIRST_USER_SOB, GROUP, LONG, LONG_MAX, MON_ARM,
    MON_CONFIG, MON_PAY_ADDRH, MON_PAY_ADDRL, MON_PAY_DATA, MON_STATUS, MONITORS, MonArm, MonConfig, SOB_MAX,
    SOB_OBJ, SOBS, SobUpdate, long_parts,
};

use crate::gaudi2::event::Unsupported;

const WORDS: usize = MONITORS as usize / 64;
const LONG_BITS: u32 = 15;

#[derive(Clone, Copy, Debug, Default)]
struct Monitor {
    address: u64,
    data: u32,
    arm: MonArm,
    config: MonConfig,
    queued: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cq {
    base: u64,
    size_log2: u32,
    entries: u32,
    // A 64-bit counter instead of a ring of words.
    counts: bool,
    message_address: u64,
    message_data: u32,
}

#[derive(Debug)]
struct Dcore {
    sobs: Vec<u16>,
    monitors: Vec<Monitor>,
    // A bit a monitor that is armed and waits.
    armed: [u64; WORDS],
    cqs: Vec<Cq>,
}

impl Dcore {
    fn new() -> Self {
        Self {
            sobs: vec![0; SOBS as usize],
            monitors: vec![Monitor::default(); MONITORS as usize],
            armed: [0; WORDS],
            cqs: vec![Cq::default(); CQS as usize],
        }
    }

    // Four objects in a row as one number; `None` past the last.
    fn long(&self, first: usize) -> Option<u64> {
        let parts = self.sobs.get(first..first + LONG as usize)?;
        let number = parts
            .iter()
            .rev()
            .fold(0, |number, &part| number << LONG_BITS | u64::from(part));
        Some(number)
    }

    fn set_long(&mut self, first: usize, number: u64) {
        for (object, part) in self.sobs.iter_mut().skip(first).zip(long_parts(number)) {
            *object = part;
        }
    }

    // The first of the four monitors that compare as one, where `index` is another of them.
    fn long_master(&self, index: usize) -> Option<usize> {
        let master = index - index % LONG as usize;
        let long = self.monitors.get(master)?.config.long();
        (long && master != index).then_some(master)
    }

    // As `awaited`, in long mode: the value is in the arm words of this monitor and the three after
    // it, and its own says how to compare.
    fn awaited_long(&self, index: usize, first: usize) -> u8 {
        let Some(monitor) = self.monitors.get(index) else {
            return u8::MAX;
        };
        let high = if monitor.config.long_high_group() { LONG } else { 0 };
        let wanted = self.monitors.iter().skip(index).take(LONG as usize).rev();
        let wanted = wanted.fold(0, |number, part| {
            number << LONG_BITS | u64::from(part.arm.value())
        });
        let met = self
            .long(first + high as usize)
            .is_some_and(|number| match monitor.arm.compare() {
                Compare::AtLeast => number >= wanted,
                Compare::Equal => number == wanted,
            });
        if met { 0 } else { 1 << high }
    }

    // The group's objects that the monitor still waits for, a bit each.
    fn awaited(&self, index: usize) -> u8 {
        let Some(monitor) = self.monitors.get(index) else {
            return u8::MAX;
        };
        let group = usize::from(monitor.arm.group()) | usize::from(monitor.config.group_high()) << 8;
        let first = group * GROUP as usize;
        if monitor.config.long() {
            return self.awaited_long(index, first);
        }
        let mut awaited = 0;
        for bit in 0..GROUP as usize {
            if monitor.arm.mask() >> bit & 1 != 0 {
                continue;
            }
            // guess: a group past the last object never comes true.
            let met = self
                .sobs
                .get(first + bit)
                .is_some_and(|&value| match monitor.arm.compare() {
                    Compare::AtLeast => value >= monitor.arm.value(),
                    Compare::Equal => value == monitor.arm.value(),
                });
            if !met {
                awaited |= 1 << bit;
            }
        }
        awaited
    }

    fn is_armed(&self, monitor: usize) -> bool {
        self.armed
            .get(monitor / 64)
            .is_some_and(|word| word >> (monitor % 64) & 1 != 0)
    }

    fn set_armed(&mut self, monitor: usize, armed: bool) {
        if let Some(word) = self.armed.get_mut(monitor / 64) {
            let bit = 1 << (monitor % 64);
            *word = if armed { *word | bit } else { *word & !bit };
        }
    }
}

/// A monitor that fired, to be carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fired {
    pub(crate) dcore: u32,
    pub(crate) monitor: u32,
    pub(crate) action: Action,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// Up to four words: how many, and what goes where.
    Writes(u8, [(DeviceVa, u32); 4]),
    /// An entry of a completion queue, or what is added to its counter, and the word that may
    /// follow.
    Cq {
        entry: (DeviceVa, u32),
        counts: bool,
        message: Option<(DeviceVa, u32)>,
    },
}

#[derive(Debug)]
pub(crate) struct SyncManager {
    dcores: Vec<Dcore>,
    fired: VecDeque<(u32, u32)>,
}

impl SyncManager {
    pub(crate) fn new() -> Self {
        Self {
            dcores: (0..DCORES).map(|_| Dcore::new()).collect(),
            fired: VecDeque::new(),
        }
    }

    pub(crate) fn sob(&self, dcore: u32, sob: u32) -> Option<u16> {
        self.dcores.get(dcore as usize)?.sobs.get(sob as usize).copied()
    }

    /// Whether a monitor has fired that was not carried out yet.
    pub(crate) fn has_fired(&self) -> bool {
        !self.fired.is_empty()
    }

    /// Writes a word of an `OBJS` block. `None` if there is no such register; the inner error is
    /// what the word requests.
    pub(crate) fn write(&mut self, dcore: u32, offset: u32, value: u32) -> Option<Result<(), Unsupported>> {
        let core = self.dcores.get_mut(dcore as usize)?;
        if offset < MON_PAY_ADDRL {
            let sob = offset / 4;
            let update = SobUpdate::from_bits(value);
            if update.long() {
                return self.write_long(dcore, sob, update);
            }
            let object = core.sobs.get_mut(sob as usize)?;
            *object = match update.amount() {
                Some(amount) => (i32::from(*object) + i32::from(amount)).clamp(0, SOB_MAX as i32) as u16,
                None => update.value(),
            };
            self.group_changed(dcore, sob / GROUP);
            return Some(Ok(()));
        }
        let (register, index) = monitor_register(offset)?;
        let monitor = core.monitors.get_mut(index)?;
        match register {
            MON_PAY_ADDRL => monitor.address = monitor.address & !0xffff_ffff | u64::from(value),
            MON_PAY_ADDRH => monitor.address = monitor.address & 0xffff_ffff | u64::from(value) << 32,
            MON_PAY_DATA => monitor.data = value,
            MON_CONFIG => {
                let config = MonConfig::from_bits(value);
                if config.long() && index % LONG as usize != 0 {
                    return Some(Err(Unsupported::LongSyncObject));
                }
                monitor.config = config;
                if config.long() {
                    (1..LONG as usize).for_each(|ahead| core.set_armed(index + ahead, false));
                }
            }
            MON_ARM => {
                monitor.arm = MonArm::from_bits(value);
                // A part of a long comparison is not armed itself (`source: inferred`: programs arm
                // the first monitor last).
                let armed = core.long_master(index).unwrap_or(index);
                if armed == index {
                    core.set_armed(index, true);
                }
                self.evaluate(dcore, armed as u32);
            }
            // The driver clears a monitor by a status without the armed bit (gaudi2.c:10902).
            _ => {
                core.set_armed(index, value & 1 != 0);
                self.evaluate(dcore, index as u32);
            }
        }
        Some(Ok(()))
    }

    pub(crate) fn read(&self, dcore: u32, offset: u32) -> Option<u32> {
        let core = self.dcores.get(dcore as usize)?;
        if offset < MON_PAY_ADDRL {
            return core.sobs.get(offset as usize / 4).map(|&value| u32::from(value));
        }
        let (register, index) = monitor_register(offset)?;
        let monitor = core.monitors.get(index)?;
        Some(match register {
            MON_PAY_ADDRL => monitor.address as u32,
            MON_PAY_ADDRH => (monitor.address >> 32) as u32,
            MON_PAY_DATA => monitor.data,
            MON_CONFIG => monitor.config.into_bits(),
            MON_ARM => monitor.arm.into_bits(),
            _ if core.is_armed(index) => 1 | u32::from(core.awaited(index)) << 1,
            _ => 0,
        })
    }

    /// Writes a word of a `GLBL` block, as [`write`](Self::write).
    pub(crate) fn write_global(
        &mut self,
        dcore: u32,
        offset: u32,
        value: u32,
    ) -> Option<Result<(), Unsupported>> {
        let (register, index) = cq_register(offset)?;
        let cq = self.dcores.get_mut(dcore as usize)?.cqs.get_mut(index)?;
        let value64 = u64::from(value);
        match register {
            CQ_BASE_L => cq.base = cq.base & !0xffff_ffff | value64,
            CQ_BASE_H => cq.base = cq.base & 0xffff_ffff | value64 << 32,
            CQ_SIZE_LOG2 => cq.size_log2 = value & 0xff,
            CQ_PI => cq.entries = value,
            CQ_INC_MODE => cq.counts = value & 1 != 0,
            CQ_LBW_ADDR_L => cq.message_address = cq.message_address & !0xffff_ffff | value64,
            CQ_LBW_ADDR_H => cq.message_address = cq.message_address & 0xffff_ffff | value64 << 32,
            _ => cq.message_data = value,
        }
        Some(Ok(()))
    }

    pub(crate) fn read_global(&self, dcore: u32, offset: u32) -> Option<u32> {
        let (register, index) = cq_register(offset)?;
        let cq = self.dcores.get(dcore as usize)?.cqs.get(index)?;
        Some(match register {
            CQ_BASE_L => cq.base as u32,
            CQ_BASE_H => (cq.base >> 32) as u32,
            CQ_SIZE_LOG2 => cq.size_log2,
            CQ_PI => cq.entries,
            CQ_LBW_ADDR_L => cq.message_address as u32,
            CQ_LBW_ADDR_H => (cq.message_address >> 32) as u32,
            CQ_LBW_DATA => cq.message_data,
            _ => u32::from(cq.counts),
        })
    }

    /// Takes the monitor that fired first.
    pub(crate) fn take_fired(&mut self) -> Option<Fired> {
        let (dcore, monitor) = self.fired.pop_front()?;
        let core = self.dcores.get_mut(dcore as usize)?;
        let master = core.monitors.get_mut(monitor as usize)?;
        master.queued = false;
        let master = *master;
        let action = if master.config.cq_en() {
            let cq = core.cqs.get_mut(master.address as usize % CQS as usize)?;
            // guess: an unset size holds one entry.
            let size = 1u64.checked_shl(cq.size_log2.clamp(2, 40)).unwrap_or(4);
            // `source: inferred`: a counter stays at the start of the queue, whatever its size.
            let ahead = match cq.counts {
                true => 0,
                false => u64::from(cq.entries) * 4 % size,
            };
            let at = cq.base.wrapping_add(ahead);
            cq.entries = cq.entries.wrapping_add(1);
            Action::Cq {
                entry: (DeviceVa(at), master.data),
                counts: cq.counts,
                message: master
                    .config
                    .lbw_en()
                    .then_some((DeviceVa(cq.message_address), cq.message_data)),
            }
        } else {
            let mut writes = [(DeviceVa(0), 0); 4];
            let wanted = usize::from(master.config.extra_writes()) + 1;
            let payloads = core.monitors.iter().skip(monitor as usize).take(wanted);
            let mut count = 0;
            for (write, payload) in writes.iter_mut().zip(payloads) {
                *write = (DeviceVa(payload.address), payload.data);
                count += 1;
            }
            Action::Writes(count, writes)
        };
        Some(Fired {
            dcore,
            monitor,
            action,
        })
    }

    /// Looks again whether a monitor that was carried out, and perhaps armed meanwhile, fires once
    /// more.
    pub(crate) fn carried_out(&mut self, fired: &Fired) {
        self.evaluate(fired.dcore, fired.monitor);
    }

    /// Everything as after power-on.
    pub(crate) fn reset(&mut self) {
        for core in &mut self.dcores {
            core.sobs.fill(0);
            core.monitors.fill(Monitor::default());
            core.armed = [0; WORDS];
            core.cqs.fill(Cq::default());
        }
        self.fired.clear();
    }

    /// What the driver clears when a context ends: what users may use (gaudi2.c:10848
    /// `gaudi2_restore_user_sm_registers`).
    pub(crate) fn clear_user(&mut self) {
        self.fired
            .retain(|&(dcore, monitor)| dcore == 0 && monitor < FIRST_USER_MONITOR);
        for (dcore, core) in self.dcores.iter_mut().enumerate() {
            let first = |of_first_core: u32| if dcore == 0 { of_first_core as usize } else { 0 };
            core.sobs
                .iter_mut()
                .skip(first(FIRST_USER_SOB))
                .for_each(|sob| *sob = 0);
            core.cqs
                .iter_mut()
                .skip(first(FIRST_USER_CQ))
                .for_each(|cq| *cq = Cq::default());
            for index in first(FIRST_USER_MONITOR)..core.monitors.len() {
                core.set_armed(index, false);
                if let Some(monitor) = core.monitors.get_mut(index) {
                    (monitor.config, monitor.queued) = (MonConfig::new(), false);
                }
            }
        }
    }

    // Setting clears the three objects after the first (hl-thunk gaudi2_add_write_to_sob_pkt);
    // adding carries over all four.
    fn write_long(&mut self, dcore: u32, sob: u32, update: SobUpdate) -> Option<Result<(), Unsupported>> {
        if sob % LONG != 0 {
            return Some(Err(Unsupported::LongSyncObject));
        }
        let core = self.dcores.get_mut(dcore as usize)?;
        let number = core.long(sob as usize)?;
        let number = match update.amount() {
            Some(amount) => number.saturating_add_signed(i64::from(amount)).min(LONG_MAX),
            None => u64::from(update.value()),
        };
        core.set_long(sob as usize, number);
        self.group_changed(dcore, sob / GROUP);
        Some(Ok(()))
    }

    fn group_changed(&mut self, dcore: u32, group: u32) {
        for word in 0..WORDS {
            let armed = self
                .dcores
                .get(dcore as usize)
                .and_then(|core| core.armed.get(word));
            let mut bits = armed.copied().unwrap_or(0);
            while bits != 0 {
                let monitor = word as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                let watches = self
                    .dcores
                    .get(dcore as usize)
                    .and_then(|core| core.monitors.get(monitor as usize));
                let watches = watches.is_some_and(|monitor| {
                    u32::from(monitor.arm.group()) | u32::from(monitor.config.group_high()) << 8 == group
                });
                if watches {
                    self.evaluate(dcore, monitor);
                }
            }
        }
    }

    // guess: a monitor that is armed again before its writes went out fires once more after them,
    // however often it was armed; a monitor with every object masked out has nothing to wait for
    // and fires at once; objects of a group are compared at the same moment, not remembered one by
    // one.
    fn evaluate(&mut self, dcore: u32, monitor: u32) {
        let Some(core) = self.dcores.get_mut(dcore as usize) else {
            return;
        };
        let index = monitor as usize;
        let Some(state) = core.monitors.get(index) else {
            return;
        };
        if state.queued || !core.is_armed(index) || core.awaited(index) != 0 {
            return;
        }
        core.set_armed(index, false);
        if let Some(state) = core.monitors.get_mut(index) {
            state.queued = true;
        }
        self.fired.push_back((dcore, monitor));
    }
}

// The register's table and the monitor's number.
fn monitor_register(offset: u32) -> Option<(u32, usize)> {
    let table = [
        MON_STATUS,
        MON_CONFIG,
        MON_ARM,
        MON_PAY_DATA,
        MON_PAY_ADDRH,
        MON_PAY_ADDRL,
    ];
    let register = table.into_iter().find(|&register| offset >= register)?;
    Some((register, (offset - register) as usize / 4)).filter(|&(_, index)| index < MONITORS as usize)
}

fn cq_register(offset: u32) -> Option<(u32, usize)> {
    let table = [
        CQ_INC_MODE,
        CQ_LBW_DATA,
        CQ_LBW_ADDR_H,
        CQ_LBW_ADDR_L,
        CQ_PI,
        CQ_SIZE_LOG2,
        CQ_BASE_H,
        CQ_BASE_L,
    ];
    let register = table.into_iter().find(|&register| offset >= register)?;
    Some((register, (offset - register) as usize / 4)).filter(|&(_, index)| index < CQS as usize)
}

const _: () = assert!(SOB_OBJ == 0, "sync objects start the block");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rearmed_monitor_is_listed_once() {
        let mut sm = SyncManager::new();
        for _ in 0..100 {
            sm.write(0, MON_ARM, MonArm::for_sob(0, Compare::AtLeast, 0).into_bits())
                .unwrap()
                .unwrap();
        }
        let fired = sm.take_fired().expect("it fired");
        assert!(
            sm.take_fired().is_none(),
            "once, or chains of monitors would grow without bound"
        );
        sm.carried_out(&fired);
        let again = sm
            .take_fired()
            .expect("armed meanwhile, it fires again after its writes");
        sm.carried_out(&again);
        assert!(!sm.has_fired());
    }
}
