//! Blocks of registers by name: which of them an offset in the configuration space lies in.
//!
//! Names, places and headers are those of gaudi2_blocks_linux_driver.h; a `#` in a name stands for
//! a number. The rows are those blocks that the driver reads or writes.

use core::fmt;

/// Blocks of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The header's name without `mm` and `_BASE`; each `#` is the number in one of `copies`, in
    /// their order.
    pub name: &'static str,
    /// Where the first lies in the configuration space.
    pub base: u32,
    /// Bytes in each.
    pub len: u32,
    /// How many there are and how far apart, outermost first.
    pub copies: &'static [(u32, u32)],
    /// The header with its registers.
    pub header: &'static str,
}

/// Numbers of a block among its kind.
pub const DEPTH: usize = 3;

/// A register: its block, which of that kind, and the offset in it. Shown as the headers would name
/// it, `DCORE1_TPC3_QM+0x80`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The kind.
    pub row: &'static Row,
    /// Which one, a number for each of the row's `copies`.
    pub numbers: [u32; DEPTH],
    /// Bytes from the block's start.
    pub offset: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers = self.numbers.iter();
        for (nth, part) in self.row.name.split('#').enumerate() {
            if nth > 0 {
                // A row has a number for each `#`.
                write!(f, "{}", numbers.next().copied().unwrap_or(0))?;
            }
            f.write_str(part)?;
        }
        write!(f, "+{:#x}", self.offset)
    }
}

impl Row {
    /// Where an offset of the configuration space lies in a block of this kind.
    pub fn place(&'static self, register: u32) -> Option<Place> {
        let mut offset = register.checked_sub(self.base)?;
        let mut numbers = [0; DEPTH];
        for (number, &(count, stride)) in numbers.iter_mut().zip(self.copies) {
            *number = offset / stride;
            if *number >= count {
                return None;
            }
            offset %= stride;
        }
        let row = self;
        (offset < self.len).then_some(Place { row, numbers, offset })
    }
}

/// The block that a register lies in; `None` where no row knows.
pub fn find(register: u32) -> Option<Place> {
    ROWS.iter().find_map(|row| row.place(register))
}

const fn row(
    name: &'static str,
    base: u32,
    len: u32,
    copies: &'static [(u32, u32)],
    header: &'static str,
) -> Row {
    Row {
        name,
        base,
        len,
        copies,
        header,
    }
}

include!("tables/rows.rs");

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;
    use crate::gaudi2::CFG_SIZE;

    #[test]
    fn registers_have_the_headers_names() {
        let name = |register| find(register).map(|place| place.to_string());
        for (register, wanted) in [
            (0x4c8_a080, "PDMA0_QM+0x80"),
            (0x4c4_b304, "PSOC_GLOBAL_CONF+0x304"),
            (0x423_a080, "DCORE1_TPC3_QM+0x80"),
            (0x406_a080, "DCORE0_TPC6_QM+0x80"),
            (0x47d_a01c, "DCORE3_EDMA1_QM+0x1c"),
            (0x46b_1000, "DCORE3_HMMU3_STLB+0x0"),
            (0x41e_3110, "DCORE0_VDEC0_BRDG_CTRL+0x110"),
            (0x471_e350, "DCORE3_SYNC_MNGR_GLBL+0x350"),
        ] {
            assert_eq!(name(register).as_deref(), Some(wanted), "{register:#x}");
        }
        assert_eq!(name(u32::MAX), None);
    }

    #[test]
    fn no_two_blocks_share_a_register() {
        for page in (0..CFG_SIZE as u32).step_by(0x1000) {
            // Rows begin and end at whole words; a page's ends and middle find every overlap of
            // whole pages.
            for register in [page, page + 0x7fc, page + 0xffc] {
                let mut places = ROWS.iter().filter_map(|row| row.place(register));
                if let (Some(one), Some(other)) = (places.next(), places.next()) {
                    panic!("{register:#x} is in {one} and in {other}");
                }
            }
        }
    }

    #[test]
    fn rows_lie_inside_their_block() {
        for row in ROWS {
            let mut inner = row.len;
            for &(count, stride) in row.copies.iter().rev() {
                assert!(
                    count > 0 && inner <= stride,
                    "{}: {inner:#x} in {stride:#x}",
                    row.name
                );
                inner += (count - 1) * stride;
            }
            assert!(u64::from(row.base) + u64::from(inner) <= CFG_SIZE, "{}", row.name);
            assert_eq!(row.name.matches('#').count(), row.copies.len(), "{}", row.name);
            assert!(
                row.copies.len() <= DEPTH && row.header.ends_with(".h"),
                "{}",
                row.name
            );
        }
    }
}
