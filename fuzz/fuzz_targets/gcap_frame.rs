#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gaudi_fuzz::gcap_frame(bytes));
