//! The driver's open bug, and the way round it that leaves the module as it is.
//!
//! Since Linux 6.12 a node of the accel subsystem opens only where its file operations carry `FOP_UNSIGNED_OFFSET`; habanalabs' do not
//! (common/habanalabs_drv.c `hl_fops`; drivers/gpu/drm/drm_file.c `drm_open_helper`), so every open of a compute node answers `EINVAL`,
//! for a real card too. The module's file and its signature are not touched: the flag is set in the running guest's memory, through
//! QEMU's debugger port, once for all cards, since the structure is one of the module's. A kernel that has it mended is left alone.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};

use super::modules::{nth_section, number, section};

/// The module.
pub(super) const MODULE: &str = "habanalabs";
const SYMBOL: &str = "hl_fops";
const SECTION: &str = ".rodata";
/// `fop_flags` follows the owner in `struct file_operations` (linux/fs.h since 6.10).
const FLAGS: u64 = 8;
/// `FOP_UNSIGNED_OFFSET`.
const UNSIGNED_OFFSET: u32 = 1 << 5;
/// Bytes of an entry of a table of symbols (elf.h `Elf64_Sym`).
const ENTRY: usize = 24;
/// A debugger that takes longer than this to answer is hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the flags lie in the module, and what they are in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flags {
    /// From the start of the section that the guest names.
    offset: u64,
    value: u32,
}

impl Flags {
    /// Finds them in the module's file.
    pub(super) fn find(module: &[u8]) -> anyhow::Result<Flags> {
        let symbols = section(module, ".symtab").context("the module has no symbols")?;
        let names = section(module, ".strtab").context("the module's symbols have no names")?;
        let is_it = |entry: &&[u8]| {
            let name = number::<u32>(entry, 0).and_then(|at| names.get(usize::try_from(at).ok()?..));
            name.is_some_and(|name| {
                name.strip_prefix(SYMBOL.as_bytes())
                    .is_some_and(|end| end.starts_with(&[0]))
            })
        };
        let entry = symbols
            .chunks_exact(ENTRY)
            .find(is_it)
            .with_context(|| format!("the module has no {SYMBOL}"))?;
        let place = number::<u16>(entry, 6).and_then(|index| nth_section(module, index));
        let (name, bytes) = place.with_context(|| format!("{SYMBOL} is nowhere in the module"))?;
        if name != SECTION.as_bytes() {
            bail!(
                "{SYMBOL} is in {}, not in {SECTION}",
                String::from_utf8_lossy(name)
            );
        }
        let offset = number::<u64>(entry, 8).and_then(|start| start.checked_add(FLAGS));
        let offset = offset.context("an offset without an end")?;
        let at = usize::try_from(offset)?;
        let value = number(bytes, at).with_context(|| format!("{SYMBOL} leaves its section"))?;
        Ok(Flags { offset, value })
    }

    /// Sets the flag in the guest, whose section starts at `base`. The answer says what was done.
    pub(super) fn mend(&self, base: u64, debugger: &Path) -> anyhow::Result<&'static str> {
        if self.value & UNSIGNED_OFFSET != 0 {
            return Ok("mended");
        }
        let at = base
            .checked_add(self.offset)
            .context("an address without an end")?;
        let mut debugger = Debugger::connect(debugger)?;
        // Connecting has halted the guest.
        let seen = debugger.read(at)?;
        if seen & !UNSIGNED_OFFSET != self.value {
            bail!(
                "{seen:#x} at {at:#x}, where the module's file has {:#x}",
                self.value
            );
        }
        let wanted = self.value | UNSIGNED_OFFSET;
        debugger.write(at, wanted)?;
        if debugger.read(at)? != wanted {
            bail!("what was written at {at:#x} is not there");
        }
        debugger.ask("D")?;
        Ok("poked")
    }
}

/// QEMU's debugger port, in GDB's remote protocol.
struct Debugger(UnixStream);

impl Debugger {
    fn connect(socket: &Path) -> anyhow::Result<Debugger> {
        let stream = UnixStream::connect(socket).context("QEMU's debugger port is not there")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut debugger = Debugger(stream);
        debugger.ask("?")?;
        Ok(debugger)
    }

    fn read(&mut self, at: u64) -> anyhow::Result<u32> {
        let digits = self.ask(&format!("m{at:x},4"))?;
        let swapped = u32::from_str_radix(&digits, 16)
            .ok()
            .filter(|_| digits.len() == 8);
        let swapped =
            swapped.with_context(|| format!("no memory at {at:#x}: the debugger says {digits:?}"))?;
        Ok(swapped.swap_bytes())
    }

    fn write(&mut self, at: u64, value: u32) -> anyhow::Result<()> {
        let answer = self.ask(&format!("M{at:x},4:{:08x}", value.swap_bytes()))?;
        if answer != "OK" {
            bail!("{at:#x} cannot be written: the debugger says {answer:?}");
        }
        Ok(())
    }

    /// A packet, and the packet that answers it.
    fn ask(&mut self, words: &str) -> anyhow::Result<String> {
        let sum = words.bytes().fold(0, u8::wrapping_add);
        write!(self.0, "${words}#{sum:02x}")?;
        let mut answer = Vec::new();
        let mut sum = None;
        loop {
            let mut byte = [0];
            self.0
                .read_exact(&mut byte)
                .context("the debugger does not answer")?;
            match (byte[0], &mut sum) {
                (b'$', None) => answer.clear(),
                (b'#', None) => sum = Some(2),
                (_, Some(1)) => break,
                (_, Some(left)) => *left -= 1,
                (byte, None) if answer.len() < 4096 => answer.push(byte),
                _ => bail!("the debugger does not end its answer"),
            }
        }
        // Whoever was told to let go may be gone before it is thanked; who is gone too early shows at the next question.
        let _ = self.0.write_all(b"+");
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(flags: u32) -> Vec<u8> {
        let mut rodata = vec![0; 0x40];
        rodata[0x18..0x1c].copy_from_slice(&flags.to_le_bytes());
        let mut symbol = vec![0; ENTRY];
        symbol.extend(1u32.to_le_bytes());
        symbol.extend([0, 0, 1, 0]); // section 1
        symbol.extend(0x10u64.to_le_bytes());
        symbol.extend(0x20u64.to_le_bytes());
        let strings = b"\0hl_fops\0".to_vec();
        let names = b"\0.rodata\0.symtab\0.strtab\0.shstrtab\0".to_vec();
        let parts = [
            (0u32, Vec::new()),
            (1, rodata),
            (9, symbol),
            (17, strings),
            (25, names),
        ];
        let mut file = b"\x7fELF\x02\x01".to_vec();
        file.resize(0x40, 0);
        let mut heads = Vec::new();
        for (name, bytes) in &parts {
            let mut head = vec![0; 0x40];
            head[..4].copy_from_slice(&name.to_le_bytes());
            head[0x18..0x20].copy_from_slice(&(file.len() as u64).to_le_bytes());
            head[0x20..0x28].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
            heads.extend(head);
            file.extend(bytes);
        }
        let table = file.len() as u64;
        file.extend(heads);
        file[0x28..0x30].copy_from_slice(&table.to_le_bytes());
        file[0x3a..0x3c].copy_from_slice(&0x40u16.to_le_bytes());
        file[0x3c..0x3e].copy_from_slice(&5u16.to_le_bytes());
        file[0x3e..0x40].copy_from_slice(&4u16.to_le_bytes());
        file
    }

    #[test]
    fn flags_are_found_and_a_mended_module_is_left_alone() {
        let flags = Flags::find(&module(0)).expect("they are there");
        assert_eq!(
            flags,
            Flags {
                offset: 0x18,
                value: 0
            }
        );
        let nowhere = Path::new("/nonexistent/gdb");
        assert!(
            flags.mend(0x1000, nowhere).is_err(),
            "it would be poked, and nobody is there"
        );
        let mended = Flags::find(&module(UNSIGNED_OFFSET)).expect("they are there");
        assert_eq!(mended.mend(0x1000, nowhere).expect("nothing is done"), "mended");
    }

    #[test]
    fn a_cut_module_is_an_error_and_never_a_panic() {
        let whole = module(0);
        for end in 0..whole.len() {
            let _ = Flags::find(&whole[..end]);
        }
    }

    #[test]
    fn a_guest_is_poked_once_and_let_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("gdb");
        let listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        let guest = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a debugger");
            let mut memory = "00000000".to_owned();
            let mut asked = Vec::new();
            loop {
                let mut packet = Vec::new();
                let mut byte = [0];
                while !packet.ends_with(b"#") {
                    stream.read_exact(&mut byte).expect("a packet");
                    packet.push(byte[0]);
                }
                stream.read_exact(&mut [0; 2]).expect("its sum");
                let text = String::from_utf8_lossy(&packet);
                let text = text
                    .trim_start_matches(['+', '$'])
                    .trim_end_matches('#')
                    .to_owned();
                let answer = match text.split_at(1) {
                    ("?", _) => "T05".to_owned(),
                    ("m", "1018,4") => memory.clone(),
                    ("M", rest) => {
                        memory = rest.strip_prefix("1018,4:").expect("the address").to_owned();
                        "OK".to_owned()
                    }
                    _ => "OK".to_owned(),
                };
                let end = text == "D";
                asked.push(text);
                let _ = write!(stream, "+${answer}#00");
                if end {
                    return (memory, asked);
                }
            }
        });
        let flags = Flags {
            offset: 0x18,
            value: 0,
        };
        assert_eq!(flags.mend(0x1000, &socket).expect("it is done"), "poked");
        let (memory, asked) = guest.join().expect("no panic");
        assert_eq!(memory, "20000000", "the bit is set, little end first");
        assert_eq!(
            asked.last().map(String::as_str),
            Some("D"),
            "the guest goes on: {asked:?}"
        );
    }
}
