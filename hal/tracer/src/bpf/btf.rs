//! Field offsets in the structs of the running kernel, from `/sys/kernel/btf/vmlinux`.
//!
//! `btf-rs` and `aya-obj` were rejected: a few offsets need one pass over one table
//! (Documentation/bpf/btf.rst), and `aya-obj` only relocates objects built by clang.

use std::collections::HashMap;

/// `struct btf_header`.
const MAGIC: u16 = 0xeb9f;
/// `struct btf_type`.
const TYPE: usize = 12;
/// Maximum nesting of unnamed structs, and of qualifiers before a type.
const DEPTH: usize = 8;

/// The `BTF_KIND_*` values of types that have members.
const STRUCT: u32 = 4;
const UNION: u32 = 5;

/// The BTF type information of a kernel.
#[derive(Debug)]
pub(crate) struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// The offset of type `n + 1`; type 0 is `void`.
    starts: Vec<usize>,
    /// The named structs.
    structs: HashMap<&'a [u8], u32>,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// Splits `info` into the kind, the number of members, and whether offsets include a bit-field
/// size.
fn info(word: u32) -> (u32, usize, bool) {
    (word >> 24 & 0x1f, (word & 0xffff) as usize, word >> 31 != 0)
}

impl<'a> Btf<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let magic = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
        if magic != MAGIC {
            return None;
        }
        let header = word(bytes, 4)? as usize;
        let section = |at: usize| {
            let start = header.checked_add(word(bytes, at)? as usize)?;
            bytes.get(start..start.checked_add(word(bytes, at + 4)? as usize)?)
        };
        let (types, strings) = (section(8)?, section(16)?);
        let mut btf = Self {
            types,
            strings,
            starts: Vec::new(),
            structs: HashMap::new(),
        };
        let mut at = 0;
        while at < types.len() {
            let (kind, count, _) = info(word(types, at + 4)?);
            btf.starts.push(at);
            let name = btf.string(word(types, at)?)?;
            if kind == STRUCT && !name.is_empty() {
                btf.structs.insert(name, u32::try_from(btf.starts.len()).ok()?);
            }
            // The data that follows each kind. The format defines the sizes.
            let more = match kind {
                1 | 14 | 17 => 4,
                3 => 12,
                STRUCT | UNION | 15 | 19 => count.checked_mul(12)?,
                6 | 13 => count.checked_mul(8)?,
                2 | 7..=12 | 16 | 18 => 0,
                _ => return None,
            };
            at = at.checked_add(TYPE)?.checked_add(more)?;
        }
        Some(btf)
    }

    fn string(&self, at: u32) -> Option<&'a [u8]> {
        let rest = self.strings.get(at as usize..)?;
        rest.split(|&byte| byte == 0).next()
    }

    /// Returns the offset in bytes of a member of struct `name`, or of a nested member: `a.b`.
    pub(crate) fn offset(&self, name: &str, path: &str) -> Option<u32> {
        let mut id = *self.structs.get(name.as_bytes())?;
        let mut sum = 0_u32;
        for member in path.split('.') {
            let (bits, of) = self.member(id, member.as_bytes(), DEPTH)?;
            // A bit field has no byte offset.
            if bits % 8 != 0 {
                return None;
            }
            sum = sum.checked_add(bits / 8)?;
            id = of;
        }
        Some(sum)
    }

    /// Returns the offset in bits and the type of a member. Searches unnamed members as well.
    fn member(&self, id: u32, wanted: &[u8], depth: usize) -> Option<(u32, u32)> {
        let start = *self.starts.get((id as usize).checked_sub(1)?)?;
        let (kind, count, bit_fields) = info(word(self.types, start + 4)?);
        // The third word of a qualifier or typedef is the type it refers to.
        if matches!(kind, 8..=11) && depth > 0 {
            return self.member(word(self.types, start + 8)?, wanted, depth - 1);
        }
        if !matches!(kind, STRUCT | UNION) {
            return None;
        }
        for index in 0..count {
            let at = start + TYPE + index * 12;
            let (name, of) = (self.string(word(self.types, at)?)?, word(self.types, at + 4)?);
            let offset = word(self.types, at + 8)?;
            let bits = if bit_fields { offset & 0xff_ffff } else { offset };
            if name == wanted {
                return Some((bits, of));
            }
            if name.is_empty() && depth > 0 {
                if let Some((inner, of)) = self.member(of, wanted, depth - 1) {
                    return Some((bits.checked_add(inner)?, of));
                }
            }
        }
        None
    }
}

/// The offsets that the eBPF programs need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offsets {
    pub(crate) task_pid: u32,
    pub(crate) task_tgid: u32,
    pub(crate) task_files: u32,
    pub(crate) task_exit_code: u32,
    pub(crate) task_compat: u32,
    pub(crate) files_fdt: u32,
    pub(crate) fdt_max: u32,
    pub(crate) fdt_fd: u32,
    pub(crate) fdt_open: u32,
    pub(crate) file_inode: u32,
    pub(crate) inode_mode: u32,
    pub(crate) inode_rdev: u32,
    pub(crate) inode_sb: u32,
    pub(crate) sb_magic: u32,
    pub(crate) bprm_filename: u32,
}

impl Offsets {
    /// Looks up all offsets.
    ///
    /// # Errors
    /// The struct or field that the kernel's BTF does not contain.
    pub(crate) fn of(btf: &Btf<'_>) -> Result<Self, &'static str> {
        let compat = match crate::calls::registers::COMPAT_FIELD {
            "status" => (
                "task_struct",
                "thread_info.status",
                "task_struct.thread_info.status",
            ),
            _ => (
                "task_struct",
                "thread_info.flags",
                "task_struct.thread_info.flags",
            ),
        };
        let find = |(name, path, what)| btf.offset(name, path).ok_or(what);
        macro_rules! at {
            ($struct:literal, $member:literal) => {
                find(($struct, $member, concat!($struct, ".", $member)))?
            };
        }
        Ok(Self {
            task_pid: at!("task_struct", "pid"),
            task_tgid: at!("task_struct", "tgid"),
            task_files: at!("task_struct", "files"),
            task_exit_code: at!("task_struct", "exit_code"),
            task_compat: find(compat)?,
            files_fdt: at!("files_struct", "fdt"),
            fdt_max: at!("fdtable", "max_fds"),
            fdt_fd: at!("fdtable", "fd"),
            fdt_open: at!("fdtable", "open_fds"),
            file_inode: at!("file", "f_inode"),
            inode_mode: at!("inode", "i_mode"),
            inode_rdev: at!("inode", "i_rdev"),
            inode_sb: at!("inode", "i_sb"),
            sb_magic: at!("super_block", "s_magic"),
            bprm_filename: at!("linux_binprm", "filename"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the types of `struct outer { int a; struct { int pad; int b; }; }`.
    fn sample() -> Vec<u8> {
        let strings = b"\0int\0outer\0a\0b\0pad\0";
        let types: [u32; 29] = [
            1,
            1 << 24,
            4,
            32, // 1: int, followed by its encoding
            0,
            STRUCT << 24 | 2,
            8,
            15,
            1,
            0,
            13,
            1,
            32, // 2: { int pad; int b; }
            5,
            STRUCT << 24 | 2,
            12,
            11,
            1,
            0,
            0,
            2,
            32, // 3: struct outer
            0,
            10 << 24,
            3, // 4: const struct outer
            0,
            8 << 24,
            1,
            0, // 5: typedef, followed by one word too many
        ];
        let types = &types[..types.len() - 1];
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        let length = types.len() as u32 * 4;
        for word in [24, 0, length, length, strings.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(types.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn unnamed_members_are_searched() {
        let bytes = sample();
        let btf = Btf::parse(&bytes).unwrap();
        assert_eq!(btf.offset("outer", "a"), Some(0));
        assert_eq!(btf.offset("outer", "b"), Some(8));
        assert_eq!(btf.offset("outer", "c"), None);
        assert_eq!(btf.offset("inner", "a"), None);
    }

    #[test]
    fn corrupt_types_never_panic() {
        let bytes = sample();
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                if let Some(btf) = Btf::parse(&damaged) {
                    let _ = btf.offset("outer", "b");
                }
            }
            if let Some(btf) = Btf::parse(&bytes[..at]) {
                let _ = btf.offset("outer", "b");
            }
        }
    }
}
