//! The sync manager: counters, monitors that watch them, completion queues.
//!
//! A monitor that fires is added to a list once, and the chip executes its writes later, within a
//! budget. So monitors that trigger one another cause no recursion, and the list is at most as long
//! as the number of monitors.

use std::collections::VecDeque;

use gaudi_spec::DeviceVa;
use gaudi_spec::gaudi2::sync::{
    CQ_BASE_H, CQ_BASE_L, CQ_INC_MODE, CQ_LBW_ADDR_H, CQ_LBW_ADDR_L, CQ_LBW_DATA, CQ_PI, CQ_SIZE_LOG2, CQS,
    Compare, DCORES, FIRST_USER_CQ, FIRST_USER_MONITOR, FIRST_USER_SOB, GROUP, LONG, LONG_MAX, MON_ARM,
    MON_CONFIG, MON_PAY_ADDRH, MON_PAY_ADDRL, MON_PAY_DATA, MON_STATUS, MONITORS, MonArm, MonConfig, SOB_MAX,
    SOB_OBJ, SOBS, SobUpdate, long_parts,
};

use crate::gaudi2::event::Unsupported;
use crate::gaudi2::word::Word;

const WORDS: usize = MONITORS as usize / 64;
const LONG_BITS: u32 = 15;
// The configuration of a monitor after power-on.
const UNUSED: MonConfig = MonConfig::new();

#[derive(Clone, Copy, Debug, Default)]
struct Monitor {
    address: u64,
    data: u32,
    arm: MonArm,
    config: MonConfig,
    queued: bool,
}

impl Monitor {
    // The address or the word that it writes.
    fn payload(&mut self, register: u32) -> Word<'_> {
        match register {
            MON_PAY_DATA => Word::whole(&mut self.data),
            _ => Word::half(&mut self.address, register == MON_PAY_ADDRH),
        }
    }

    // The group of sync objects that it watches.
    fn group(&self) -> usize {
        usize::from(self.arm.group()) | usize::from(self.config.group_high()) << 8
    }

    // Whether a value meets the monitor's condition.
    fn accepts<T: Ord>(&self, number: T, wanted: T) -> bool {
        match self.arm.compare() {
            Compare::AtLeast => number >= wanted,
            Compare::Equal => number == wanted,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Cq {
    base: u64,
    size_log2: u32,
    entries: u32,
    // 1 for a 64-bit counter instead of a ring of words.
    counts: u32,
    message_address: u64,
    message_data: u32,
}

#[derive(Debug)]
struct Dcore {
    // Whether a register may differ from its state after power-on. Most contexts use one core, and
    // a pass over all registers is most of the time that opening and closing a device takes.
    touched: bool,
    sobs: Vec<u16>,
    monitors: Vec<Monitor>,
    // A bit a monitor that is armed and waits.
    armed: [u64; WORDS],
    cqs: Vec<Cq>,
}

impl Dcore {
    fn new() -> Self {
        Self {
            touched: false,
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

    // The first of the four monitors that compare as one, where `index` is another of them.
    fn long_master(&self, index: usize) -> Option<usize> {
        let master = index - index % LONG as usize;
        (self.monitors[master].config.long() && master != index).then_some(master)
    }

    // As `awaited`, in long mode: the arm words of this monitor and the next three hold the value,
    // and this monitor's arm word holds the comparison.
    fn awaited_long(&self, index: usize, first: usize) -> u8 {
        let monitor = &self.monitors[index];
        let high = if monitor.config.long_high_group() { LONG } else { 0 };
        let wanted = self.monitors.iter().skip(index).take(LONG as usize).rev();
        let wanted = wanted.fold(0, |number, part| {
            number << LONG_BITS | u64::from(part.arm.value())
        });
        let number = self.long(first + high as usize);
        match number.is_some_and(|number| monitor.accepts(number, wanted)) {
            true => 0,
            false => 1 << high,
        }
    }

    // The group's objects that the monitor still waits for, a bit each.
    fn awaited(&self, index: usize) -> u8 {
        let monitor = &self.monitors[index];
        let first = monitor.group() * GROUP as usize;
        if monitor.config.long() {
            return self.awaited_long(index, first);
        }
        let mut awaited = 0;
        for bit in 0..GROUP as usize {
            if monitor.arm.mask() >> bit & 1 != 0 {
                continue;
            }
            // guess: a group past the last object never comes true.
            let value = self.sobs.get(first + bit);
            if !value.is_some_and(|&value| monitor.accepts(value, monitor.arm.value())) {
                awaited |= 1 << bit;
            }
        }
        awaited
    }

    fn is_armed(&self, monitor: usize) -> bool {
        self.armed[monitor / 64] >> (monitor % 64) & 1 != 0
    }

    fn set_armed(&mut self, monitor: usize, armed: bool) {
        let (word, bit) = (&mut self.armed[monitor / 64], 1 << (monitor % 64));
        *word = if armed { *word | bit } else { *word & !bit };
    }
}

/// The writes of a monitor that fired.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fired {
    pub(crate) dcore: u32,
    pub(crate) monitor: u32,
    pub(crate) action: Action,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// Up to four words: the count, and the address and value of each.
    Writes(usize, [(DeviceVa, u32); 4]),
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

    /// Whether a monitor has fired that was not carried out yet.
    pub(crate) fn has_fired(&self) -> bool {
        !self.fired.is_empty()
    }

    /// Writes a word of an `OBJS` block. Returns whether there is such a register.
    ///
    /// # Errors
    /// What the word requests.
    pub(crate) fn write(&mut self, dcore: u32, offset: u32, value: u32) -> Result<bool, Unsupported> {
        let core = &mut self.dcores[dcore as usize];
        core.touched = true;
        if offset < MON_PAY_ADDRL {
            let sob = offset / 4;
            let update = SobUpdate::from_bits(value);
            if update.long() {
                return self.write_long(dcore, sob, update);
            }
            let Some(object) = core.sobs.get_mut(sob as usize) else {
                return Ok(false);
            };
            *object = match update.amount() {
                Some(amount) => (i32::from(*object) + i32::from(amount)).clamp(0, SOB_MAX as i32) as u16,
                None => update.value(),
            };
            self.group_changed(dcore, (sob / GROUP) as usize);
            return Ok(true);
        }
        let Some((register, index)) = nth_of(MONITOR_TABLES, MONITORS, offset) else {
            return Ok(false);
        };
        match register {
            MON_CONFIG => {
                let config = MonConfig::from_bits(value);
                if config.long() && index % LONG as usize != 0 {
                    return Err(Unsupported::LongSyncObject);
                }
                core.monitors[index].config = config;
                if config.long() {
                    (1..LONG as usize).for_each(|ahead| core.set_armed(index + ahead, false));
                }
            }
            MON_ARM => {
                core.monitors[index].arm = MonArm::from_bits(value);
                // A part of a long comparison is not armed itself (`source: inferred`: programs arm
                // the first monitor last).
                let armed = core.long_master(index).unwrap_or(index);
                if armed == index {
                    core.set_armed(index, true);
                }
                self.evaluate(dcore, armed);
            }
            // The driver clears a monitor by a status without the armed bit
            // (gaudi2.c:gaudi2_restore_user_sm_registers).
            MON_STATUS => {
                core.set_armed(index, value & 1 != 0);
                self.evaluate(dcore, index);
            }
            _ => core.monitors[index].payload(register).set(value),
        }
        Ok(true)
    }

    pub(crate) fn read(&mut self, dcore: u32, offset: u32) -> Option<u32> {
        let core = &mut self.dcores[dcore as usize];
        if offset < MON_PAY_ADDRL {
            return core.sobs.get(offset as usize / 4).map(|&value| u32::from(value));
        }
        let (register, index) = nth_of(MONITOR_TABLES, MONITORS, offset)?;
        Some(match register {
            MON_CONFIG => core.monitors[index].config.into_bits(),
            MON_ARM => core.monitors[index].arm.into_bits(),
            MON_STATUS if core.is_armed(index) => 1 | u32::from(core.awaited(index)) << 1,
            MON_STATUS => 0,
            _ => core.monitors[index].payload(register).get(),
        })
    }

    /// Returns the word of a `GLBL` block; `None` if there is no such register.
    pub(crate) fn global(&mut self, dcore: u32, offset: u32) -> Option<Word<'_>> {
        let (register, index) = nth_of(CQ_TABLES, CQS, offset)?;
        let core = &mut self.dcores[dcore as usize];
        core.touched = true;
        let cq = &mut core.cqs[index];
        Some(match register {
            CQ_BASE_L | CQ_BASE_H => Word::half(&mut cq.base, register == CQ_BASE_H),
            CQ_SIZE_LOG2 => Word::Whole {
                of: &mut cq.size_log2,
                mask: 0xff,
            },
            CQ_PI => Word::whole(&mut cq.entries),
            CQ_INC_MODE => Word::Whole {
                of: &mut cq.counts,
                mask: 1,
            },
            CQ_LBW_ADDR_L | CQ_LBW_ADDR_H => Word::half(&mut cq.message_address, register == CQ_LBW_ADDR_H),
            _ => Word::whole(&mut cq.message_data),
        })
    }

    /// Takes the oldest monitor that fired.
    pub(crate) fn take_fired(&mut self) -> Option<Fired> {
        let (dcore, monitor) = self.fired.pop_front()?;
        let core = &mut self.dcores[dcore as usize];
        let master = &mut core.monitors[monitor as usize];
        master.queued = false;
        let master = *master;
        let action = if master.config.cq_en() {
            let cq = &mut core.cqs[master.address as usize % CQS as usize];
            let counts = cq.counts != 0;
            // guess: an unset size holds one entry.
            let size = 1u64 << cq.size_log2.clamp(2, 40);
            // `source: inferred`: a counter stays at the start of the queue, whatever its size.
            let ahead = if counts {
                0
            } else {
                u64::from(cq.entries) * 4 % size
            };
            let entry = (DeviceVa(cq.base.wrapping_add(ahead)), master.data);
            cq.entries = cq.entries.wrapping_add(1);
            let message = (DeviceVa(cq.message_address), cq.message_data);
            let message = master.config.lbw_en().then_some(message);
            Action::Cq {
                entry,
                counts,
                message,
            }
        } else {
            let mut writes = [(DeviceVa(0), 0); 4];
            let payloads = core.monitors.iter().skip(monitor as usize);
            let payloads = payloads.take(usize::from(master.config.extra_writes()) + 1);
            let count = payloads.len();
            for (write, payload) in writes.iter_mut().zip(payloads) {
                *write = (DeviceVa(payload.address), payload.data);
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
        self.evaluate(fired.dcore, fired.monitor as usize);
    }

    /// Resets everything to the state after power-on.
    pub(crate) fn reset(&mut self) {
        for core in self.dcores.iter_mut().filter(|core| core.touched) {
            core.touched = false;
            core.sobs.fill(0);
            core.monitors.fill(Monitor::default());
            core.armed = [0; WORDS];
            core.cqs.fill(Cq::default());
        }
        self.fired.clear();
    }

    /// What the driver clears when a context ends: what users may use
    /// (gaudi2.c:gaudi2_scrub_device_mem `gaudi2_restore_user_sm_registers`).
    pub(crate) fn clear_user(&mut self) {
        self.fired
            .retain(|&(dcore, monitor)| dcore == 0 && monitor < FIRST_USER_MONITOR);
        let touched = self
            .dcores
            .iter_mut()
            .enumerate()
            .filter(|(_, core)| core.touched);
        for (dcore, core) in touched {
            let first = |of_first_core: u32| if dcore == 0 { of_first_core as usize } else { 0 };
            core.sobs[first(FIRST_USER_SOB)..].fill(0);
            core.cqs[first(FIRST_USER_CQ)..].fill(Cq::default());
            for index in first(FIRST_USER_MONITOR)..core.monitors.len() {
                core.set_armed(index, false);
                let monitor = &mut core.monitors[index];
                (monitor.config, monitor.queued) = (UNUSED, false);
            }
        }
    }

    // Setting clears the three objects after the first (hl-thunk gaudi2_add_write_to_sob_pkt);
    // adding carries over all four.
    fn write_long(&mut self, dcore: u32, sob: u32, update: SobUpdate) -> Result<bool, Unsupported> {
        if sob % LONG != 0 {
            return Err(Unsupported::LongSyncObject);
        }
        let core = &mut self.dcores[dcore as usize];
        let Some(number) = core.long(sob as usize) else {
            return Ok(false);
        };
        let number = match update.amount() {
            Some(amount) => number.saturating_add_signed(i64::from(amount)).min(LONG_MAX),
            None => u64::from(update.value()),
        };
        for (object, part) in core.sobs.iter_mut().skip(sob as usize).zip(long_parts(number)) {
            *object = part;
        }
        self.group_changed(dcore, (sob / GROUP) as usize);
        Ok(true)
    }

    fn group_changed(&mut self, dcore: u32, group: usize) {
        for word in 0..WORDS {
            let mut bits = self.dcores[dcore as usize].armed[word];
            while bits != 0 {
                let monitor = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if self.dcores[dcore as usize].monitors[monitor].group() == group {
                    self.evaluate(dcore, monitor);
                }
            }
        }
    }

    // guess: a monitor that is armed again before its writes went out fires once more after them,
    // however often it was armed; a monitor with every object masked out has nothing to wait for
    // and fires at once; objects of a group are compared at the same moment, not remembered one by
    // one.
    fn evaluate(&mut self, dcore: u32, monitor: usize) {
        let core = &mut self.dcores[dcore as usize];
        if core.monitors[monitor].queued || !core.is_armed(monitor) || core.awaited(monitor) != 0 {
            return;
        }
        core.set_armed(monitor, false);
        core.monitors[monitor].queued = true;
        self.fired.push_back((dcore, monitor as u32));
    }
}

// Tables of a register for each monitor and for each completion queue, the last first.
const MONITOR_TABLES: [u32; 6] = [
    MON_STATUS,
    MON_CONFIG,
    MON_ARM,
    MON_PAY_DATA,
    MON_PAY_ADDRH,
    MON_PAY_ADDRL,
];
const CQ_TABLES: [u32; 8] = [
    CQ_INC_MODE,
    CQ_LBW_DATA,
    CQ_LBW_ADDR_H,
    CQ_LBW_ADDR_L,
    CQ_PI,
    CQ_SIZE_LOG2,
    CQ_BASE_H,
    CQ_BASE_L,
];

// The register's table, and the number of the monitor or completion queue.
fn nth_of<const N: usize>(tables: [u32; N], count: u32, offset: u32) -> Option<(u32, usize)> {
    let table = tables.into_iter().find(|&table| offset >= table)?;
    let index = (offset - table) / 4;
    (index < count).then_some((table, index as usize))
}

const _: () = assert!(SOB_OBJ == 0, "sync objects start the block");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rearmed_monitor_is_listed_once() {
        let mut sm = SyncManager::new();
        for _ in 0..100 {
            let arm = MonArm::for_sob(0, Compare::AtLeast, 0).into_bits();
            assert_eq!(sm.write(0, MON_ARM, arm), Ok(true));
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

    #[test]
    fn each_way_to_write_is_cleared() {
        type Step = fn(&mut SyncManager);
        let written: [(&str, Step); 3] = [
            ("an object", |sm| assert_eq!(sm.write(2, 0, 7), Ok(true))),
            ("a monitor", |sm| assert_eq!(sm.write(2, MON_CONFIG, 1), Ok(true))),
            ("a completion queue", |sm| {
                sm.global(2, CQ_PI).expect("a register").set(7);
            }),
        ];
        for (what, write) in written {
            let clears: [Step; 2] = [SyncManager::reset, SyncManager::clear_user];
            for clear in clears {
                let mut sm = SyncManager::new();
                // Before it as well: a core that is cleared can be written again.
                clear(&mut sm);
                write(&mut sm);
                clear(&mut sm);
                let left = [sm.read(2, 0), sm.read(2, MON_CONFIG)];
                let entries = sm.global(2, CQ_PI).map(|word| word.get());
                assert_eq!((left, entries), ([Some(0); 2], Some(0)), "{what}");
            }
        }
    }
}
