//! Answers of any bytes, short and long, and any errno, to every operation in every era: an error
//! at worst, never a panic. `GAUDI_TEST_CASES=1000000` makes the long run.

mod everything;
mod machine;
mod recorder;

use std::cell::RefCell;

use everything::everything;
use gaudi_kernel::{Kernel, Syscalls};
use gaudi_seam::{Era, KernelIoExt, NodeKind, Result};
use gaudi_sys::Errno;
use gaudi_uapi::info::{
    HlInfoClkThrottle, HlInfoDeviceStatus, HlInfoFwErrEvent, HlInfoHwIdle, HlInfoHwIpInfo, HlInfoRazwiEvent,
    HlInfoSecAttest, HlInfoSigned, HlInfoUndefinedOpcodeEvent, HlPageFaultInfo, InfoAnswer,
};
use machine::Machine;
use proptest::prelude::*;
use recorder::{Behind, Reply, open_node};

const ERAS: [(&str, Era); 4] = [
    ("hl-6.1.txt", Era::HlMisc),
    ("hl-6.5.txt", Era::HlMisc),
    ("accel-h.txt", Era::AccelH),
    ("drm-7.3.txt", Era::AccelDrm),
];

/// The machines with their open nodes: made once, since a case is about answers, not about opening.
fn machines() -> Vec<(Machine, Kernel<dyn Syscalls>)> {
    let open = |(manifest, era)| {
        let machine = Machine::of(manifest, Behind::Driver(era));
        let kernel = open_node(&machine.driver, &machine.recorder, NodeKind::Compute);
        (machine, kernel)
    };
    ERAS.into_iter().map(open).collect()
}

/// Bytes for the argument, from none to all of it, or any errno but EINTR, which is asked again
/// for.
fn any_answer() -> impl Strategy<Value = Reply> {
    prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..=24).prop_map(Reply::Args),
        // What a driver answers when all is well: the wait's status is COMPLETED.
        4 => any::<[u8; 16]>().prop_map(|tail| {
            let mut bytes = vec![0; 24];
            bytes[8..].copy_from_slice(&tail);
            Reply::Args(bytes)
        }),
        1 => (1..134i32).prop_map(|errno| match Errno::from_raw(errno) {
            Errno::EINTR => Reply::Fails(Errno::EIO),
            errno => Reply::Fails(errno),
        }),
    ]
}

/// Asks one question and prints the answer or the error.
fn ask<T: InfoAnswer + std::fmt::Debug>(kernel: &Kernel<dyn Syscalls>) -> String {
    let answer: Result<T> = kernel.query();
    format!("{answer:?}")
}

type Question = fn(&Kernel<dyn Syscalls>) -> String;

fn questions() -> [Question; 10] {
    [
        ask::<HlInfoHwIpInfo>,
        ask::<HlInfoHwIdle>,
        ask::<HlInfoDeviceStatus>,
        ask::<HlInfoClkThrottle>,
        ask::<HlInfoRazwiEvent>,
        ask::<HlInfoUndefinedOpcodeEvent>,
        ask::<HlInfoFwErrEvent>,
        ask::<HlPageFaultInfo>,
        ask::<HlInfoSecAttest>,
        ask::<HlInfoSigned>,
    ]
}

thread_local! {
    static MACHINES: RefCell<Vec<(Machine, Kernel<dyn Syscalls>)>> = RefCell::new(machines());
}

proptest! {
    #![proptest_config(gaudi_random::config(256))]

    #[test]
    fn every_operation_bears_any_answer(
        which in 0..ERAS.len(),
        answers in prop::collection::vec(any_answer(), 18),
    ) {
        MACHINES.with_borrow(|machines| {
            let (machine, kernel) = &machines[which];
            machine.recorder.forget();
            machine.recorder.reply(answers);
            // An operation that fails may ask for the device's status.
            machine.recorder.reply([Reply::Args(vec![]), Reply::Args(vec![])]);
            if let Err(error) = everything(kernel) {
                prop_assert!(error.to_string().starts_with("HL_"), "an error names its operation: {error}");
            }
            Ok(())
        })?;
    }

    #[test]
    fn every_question_bears_any_answer(
        which in 0..ERAS.len(),
        question in 0..questions().len(),
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        word: u32,
    ) {
        MACHINES.with_borrow(|machines| {
            let (machine, kernel) = &machines[which];
            machine.recorder.forget();
            machine.recorder.reply([Reply::Info(bytes, word)]);
            let text = questions()[question](kernel);
            prop_assert!(text.starts_with("Ok("), "any bytes are an answer: {text}");
            Ok(())
        })?;
    }
}
