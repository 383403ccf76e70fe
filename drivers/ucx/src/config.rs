//! The variables `UCX_GAUDI_*`, as UCX's own parser reads them and `ucx_info -c` prints them.

#![allow(unsafe_code, reason = "tables of pointers to functions of UCX")]

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr::null;

use crate::abi::{ConfigField, ConfigParser, Function, IFACE_CONFIG};
use crate::library::{Parsers, Ucx};

/// The prefix of every variable, after `UCX_`.
pub(crate) const PREFIX: *const c_char = c"GAUDI_".as_ptr();

/// The memory domain's values.
#[repr(C)]
pub(crate) struct DomainConfig {
    /// `uct_md_config_t`.
    base: u64,
    /// Seconds of a registration.
    pub(crate) registration: f64,
    /// Whether the process prints its counters.
    pub(crate) prints_stats: c_int,
}

/// The transport's values.
#[repr(C)]
pub(crate) struct TransportConfig {
    base: [u8; IFACE_CONFIG],
    /// Bytes a second.
    pub(crate) bandwidth: f64,
    /// Seconds.
    pub(crate) latency: f64,
    /// Seconds.
    pub(crate) overhead: f64,
}

#[cfg(test)]
impl TransportConfig {
    /// The values of a test, after those of UCX.
    pub(crate) fn of(base: [u8; IFACE_CONFIG]) -> Self {
        Self {
            base,
            bandwidth: 1e10,
            latency: 1e-6,
            overhead: 0.0,
        }
    }
}

const END: ConfigField = ConfigField {
    name: null(),
    default: null(),
    doc: null(),
    offset: 0,
    parser: ConfigParser::END,
};

/// Fields of a parent table.
fn inherited(parsers: &Parsers, table: *const ConfigField) -> ConfigField {
    ConfigField {
        name: c"".as_ptr(),
        default: c"".as_ptr(),
        doc: null(),
        offset: 0,
        parser: ConfigParser {
            read: parsers.read_table,
            write: Function(null()),
            clone: parsers.clone_table,
            release: parsers.release_table,
            help: parsers.help_table,
            doc: parsers.doc_nop,
            arg: table.cast(),
        },
    }
}

/// How a number is read and written.
fn number(parsers: &Parsers, read: Function, write: Function, kind: *const c_char) -> ConfigParser {
    ConfigParser {
        read,
        write,
        clone: parsers.clone_double,
        release: parsers.release_nop,
        help: parsers.help_generic,
        doc: parsers.doc_nop,
        arg: kind.cast::<c_void>(),
    }
}

fn time(parsers: &Parsers) -> ConfigParser {
    let kind = c"time value: <number>[m|s|ms|us|ns]".as_ptr();
    number(parsers, parsers.read_time, parsers.write_time, kind)
}

fn boolean(parsers: &Parsers) -> ConfigParser {
    ConfigParser {
        clone: parsers.clone_int,
        ..number(parsers, parsers.read_bool, parsers.write_bool, c"<y|n>".as_ptr())
    }
}

fn bandwidth(parsers: &Parsers) -> ConfigParser {
    let kind = c"bandwidth value: <number>[T|G|M|K]B|b[[p|/]s] or \"auto\"".as_ptr();
    number(parsers, parsers.read_bandwidth, parsers.write_bandwidth, kind)
}

/// The memory domain's table.
pub(crate) fn domain(ucx: &Ucx) -> &'static [ConfigField] {
    leak(vec![
        inherited(&ucx.parsers, ucx.md_config_table),
        ConfigField {
            name: c"REG_COST".as_ptr(),
            default: c"7us".as_ptr(),
            doc: c"Estimated time of the registration of a buffer.".as_ptr(),
            offset: offset_of!(DomainConfig, registration),
            parser: time(&ucx.parsers),
        },
        ConfigField {
            name: c"STATS".as_ptr(),
            default: c"n".as_ptr(),
            doc: c"Print the numbers of copies and dma-buf exports when the process ends.".as_ptr(),
            offset: offset_of!(DomainConfig, prints_stats),
            parser: boolean(&ucx.parsers),
        },
        END,
    ])
}

/// The transport's table.
pub(crate) fn transport(ucx: &Ucx) -> &'static [ConfigField] {
    leak(vec![
        inherited(&ucx.parsers, ucx.iface_config_table),
        ConfigField {
            name: c"BW".as_ptr(),
            default: c"10000MBs".as_ptr(),
            doc: c"Estimated bandwidth of a copy by the DMA engines.".as_ptr(),
            offset: offset_of!(TransportConfig, bandwidth),
            parser: bandwidth(&ucx.parsers),
        },
        ConfigField {
            name: c"LATENCY".as_ptr(),
            default: c"8us".as_ptr(),
            doc: c"Estimated latency of a copy by the DMA engines.".as_ptr(),
            offset: offset_of!(TransportConfig, latency),
            parser: time(&ucx.parsers),
        },
        ConfigField {
            name: c"OVERHEAD".as_ptr(),
            default: c"0".as_ptr(),
            doc: c"Estimated processor time of the submission of a copy.".as_ptr(),
            offset: offset_of!(TransportConfig, overhead),
            parser: time(&ucx.parsers),
        },
        END,
    ])
}

/// UCX reads a table until the process ends.
fn leak(fields: Vec<ConfigField>) -> &'static [ConfigField] {
    Box::leak(fields.into_boxed_slice())
}
