//! The part of an ELF file that says whether the program needs libraries of the node.

/// The program loader that a dynamically linked program names, such as
/// `/lib64/ld-linux-x86-64.so.2`. None for a static one, and for a file that is not ELF.
pub(super) fn interpreter(program: &[u8]) -> Option<String> {
    const INTERPRETER: u64 = 3;
    let is_elf = program.starts_with(b"\x7fELF");
    let wide = match program.get(4)? {
        1 => false,
        2 => true,
        _ => return None,
    };
    let big = *program.get(5)? == 2;
    let file = File { program, wide, big };
    if !is_elf {
        return None;
    }
    let table = file.word(if wide { 32 } else { 28 })?;
    let (size, count) = if wide { (54, 56) } else { (42, 44) };
    let (size, count) = (file.number(size, 2)?, file.number(count, 2)?);
    (0..count)
        .map_while(|index| usize::try_from(table.checked_add(index.checked_mul(size)?)?).ok())
        .find(|header| file.number(*header, 4) == Some(INTERPRETER))
        .and_then(|header| {
            let (offset, length) = if wide { (8, 32) } else { (4, 16) };
            let offset = usize::try_from(file.word(header.checked_add(offset)?)?).ok()?;
            let length = usize::try_from(file.word(header.checked_add(length)?)?).ok()?;
            let text = program.get(offset..offset.checked_add(length)?)?;
            let text = text.split(|byte| *byte == 0).next()?;
            Some(String::from_utf8_lossy(text).into_owned())
        })
}

struct File<'a> {
    program: &'a [u8],
    wide: bool,
    big: bool,
}

impl File<'_> {
    fn number(&self, start: usize, length: usize) -> Option<u64> {
        let bytes = self.program.get(start..start.checked_add(length)?)?;
        let fold = |number: u64, byte: &u8| (number << 8) | u64::from(*byte);
        Some(if self.big {
            bytes.iter().fold(0, fold)
        } else {
            bytes.iter().rev().fold(0, fold)
        })
    }

    /// A number of the file's own width.
    fn word(&self, start: usize) -> Option<u64> {
        self.number(start, if self.wide { 8 } else { 4 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A 64-bit program with one program header of this kind.
    fn program(kind: u32) -> Vec<u8> {
        let loader = b"/lib/ld.so\0";
        let mut bytes = vec![0; 64 + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&1_u16.to_le_bytes());
        bytes[64..68].copy_from_slice(&kind.to_le_bytes());
        bytes[72..80].copy_from_slice(&120_u64.to_le_bytes());
        bytes[96..104].copy_from_slice(&(loader.len() as u64).to_le_bytes());
        bytes.extend_from_slice(loader);
        bytes
    }

    #[test]
    fn only_a_dynamically_linked_program_names_a_loader() {
        assert_eq!(interpreter(&program(3)).as_deref(), Some("/lib/ld.so"));
        assert_eq!(interpreter(&program(1)), None);
        for other in [&b""[..], b"\x7fELF", b"#!/bin/sh\n", b"the plugin"] {
            assert_eq!(interpreter(other), None);
        }
    }

    #[test]
    fn no_number_in_a_file_causes_a_panic() {
        let whole = program(3);
        for length in 0..whole.len() {
            let _cut_short = interpreter(&whole[..length]);
        }
        for place in 4..whole.len() {
            let mut odd = whole.clone();
            odd[place] = 0xff;
            let _changed = interpreter(&odd);
        }
    }
}
