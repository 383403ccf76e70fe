//! Records of the driver, every field filled, and what the program gets of them.

use gaudi_sys::Errno;
use gaudi_uapi::Ioctl;
use gaudi_uapi::info::{
    FwErrType, HlInfoArgs, HlInfoFwErrEvent, HlInfoRazwiEvent, HlPageFaultInfo, HlUserMapping, InfoAnswer,
    InfoOp, RazwiFlags,
};
use gaudi_uapi::legacy::HlInfoRazwiEvent61;
use gaudi_uapi::limits::HL_RAZWI_MAX_NUM_OF_ENGINES_PER_RTR;
use zerocopy::{FromBytes as _, FromZeros as _, Immutable, IntoBytes};

use super::{FD, on_today};
use crate::*;

/// Runs `test` on a driver that has these records and returns `arg` in the question.
fn with_records<T>(records: Vec<(InfoOp, Vec<u8>)>, arg: u32, test: impl FnOnce() -> T) -> T {
    let answer = move |ioctl, words: &mut [u64]| {
        assert_eq!(ioctl, Ioctl::Info);
        let mut question = HlInfoArgs::read_from_bytes(words.as_bytes()).expect("3 words");
        let known = records.iter().find(|(op, _)| *op == question.op);
        let (_, record) = known.ok_or(Errno::ENOTTY)?;
        assert!(
            question.return_size as usize >= record.len(),
            "room for {}",
            question.op
        );
        let to = std::ptr::with_exposed_provenance_mut::<u8>(question.return_pointer as usize);
        // SAFETY: the library or the test owns as many bytes there as the question says.
        unsafe { to.copy_from_nonoverlapping(record.as_ptr(), record.len()) };
        question.arg = arg;
        words.copy_from_slice(&super::words(question.as_bytes()));
        Ok(())
    };
    on_today(answer, test).0
}

fn record<T: InfoAnswer + Immutable>(record: &T) -> (InfoOp, Vec<u8>) {
    (T::OP, record.as_bytes().to_vec())
}

/// The record `id`, read by a program.
fn event<T: Copy>(id: HlthunkEventRecordId, empty: T, records: Vec<(InfoOp, Vec<u8>)>) -> T {
    let mut event = empty;
    let value = with_records(records, 0, || unsafe {
        hlthunk_get_event_record(FD, id, (&raw mut event).cast())
    });
    assert_eq!(value, 0);
    event
}

#[test]
fn page_fault_has_each_field() {
    let fault = HlPageFaultInfo {
        timestamp: 0x1111,
        addr: 0x2222_0000_0000,
        engine_id: 0x33,
        pad: [0; 6],
    };
    let mapping = HlUserMapping {
        dev_va: 0x4444,
        size: 0x5555,
    };
    let records = vec![
        record(&fault),
        (InfoOp::USER_MAPPINGS, mapping.as_bytes().to_vec()),
    ];
    let mut mappings = [HlthunkUserMapping { dev_va: 0, size: 0 }; 2];
    let mut info = HlthunkPageFaultInfo {
        timestamp: 0,
        addr: 0,
        engine_id: 0,
        num_of_mappings: 0,
        mappings_buf: mappings.as_mut_ptr(),
    };
    let value = with_records(records, 6, || unsafe {
        hlthunk_get_page_fault_info(FD, &raw mut info, 2)
    });
    assert_eq!(value, 0);
    assert_eq!(
        (info.timestamp, info.addr, info.engine_id, info.num_of_mappings),
        (0x1111, 0x2222_0000_0000, 0x33, 6)
    );
    assert_eq!((mappings[0].dev_va, mappings[0].size), (0x4444, 0x5555));
}

#[test]
fn short_array_still_reports_mappings() {
    let answer = |_, words: &mut [u64]| {
        let mut question = HlInfoArgs::read_from_bytes(words.as_bytes()).expect("3 words");
        if question.op != InfoOp::USER_MAPPINGS {
            return Ok(());
        }
        // The driver writes the number and fails (habanalabs_ioctl.c:user_mappings_info).
        question.arg = 6;
        words.copy_from_slice(&super::words(question.as_bytes()));
        Err(Errno::ENOMEM)
    };
    let mut mapping = HlthunkUserMapping { dev_va: 0, size: 0 };
    let mut info = HlthunkPageFaultInfo {
        timestamp: 0,
        addr: 0,
        engine_id: 0,
        num_of_mappings: 0,
        mappings_buf: &raw mut mapping,
    };
    let (value, _) = on_today(answer, || unsafe {
        hlthunk_get_page_fault_info(FD, &raw mut info, 1)
    });
    assert_eq!((value, info.num_of_mappings), (-(Errno::ENOMEM as i32), 6));
}

#[test]
fn firmware_error_has_each_field() {
    let error = HlInfoFwErrEvent {
        timestamp: 0x1111,
        err_type: FwErrType::REPORTED_ERR,
        event_id: 0x222,
        pad: 0,
    };
    let empty = HlthunkEventRecordCriticalFwErr {
        timestamp: 0,
        err_type: 0,
        reported_err_id: 0,
    };
    let event = event(HlthunkEventRecordId::FW_ERR_OPCODE, empty, vec![record(&error)]);
    assert_eq!(
        (event.timestamp, event.err_type, event.reported_err_id),
        (0x1111, 1, 0x222)
    );
}

/// The razwi event, as a tuple of its fields.
fn razwi(record: Vec<u8>) -> (i64, u64, Vec<u16>, u8) {
    let empty = HlthunkEventRecordRazwiEvent {
        timestamp: 0,
        addr: 0,
        engine_id: [0; HL_RAZWI_MAX_NUM_OF_ENGINES_PER_RTR],
        num_of_possible_engines: 0,
        flags: 0,
    };
    let records = vec![(InfoOp::RAZWI_EVENT, record)];
    let event = event(HlthunkEventRecordId::RAZWI_EVENT, empty, records);
    let engines = event.engine_id[..usize::from(event.num_of_possible_engines)].to_vec();
    (event.timestamp, event.addr, engines, event.flags)
}

#[test]
fn razwi_event_has_each_field() {
    let mut event = HlInfoRazwiEvent::new_zeroed();
    (event.timestamp, event.addr) = (0x1111, 0x2222);
    (event.engine_id[0], event.engine_id[1]) = (0x33, 0x44);
    event.num_of_possible_engines = 2;
    event.flags = RazwiFlags(5);
    assert_eq!(
        razwi(event.as_bytes().to_vec()),
        (0x1111, 0x2222, vec![0x33, 0x44], 5)
    );
}

#[test]
fn old_razwi_event_has_both_engines() {
    let old = HlInfoRazwiEvent61 {
        timestamp: 0x1111,
        addr: 0x2222,
        engine_id_1: 0x33,
        engine_id_2: 0x44,
        no_engine_id: 0,
        error_type: 1,
        pad: [0; 2],
    };
    assert_eq!(
        razwi(old.as_bytes().to_vec()),
        (0x1111, 0x2222, vec![0x33, 0x44], 0)
    );
}
