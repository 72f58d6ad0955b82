//! The functions of librdmacm.so.1: each jumps to `rnic_cm_NAME` of libibverbs.so.1.

use std::fmt::Write;

use crate::Failure;

/// Returns the assembler source of a function for each name.
pub(crate) fn trampolines<'a>(
    architecture: &str,
    names: impl Iterator<Item = &'a str>,
) -> Result<String, Failure> {
    let jump: fn(&str) -> String = match architecture {
        // Both begin with an instruction that indirect branches may land on.
        "x86_64" => |name| format!("    endbr64\n    jmp *rnic_cm_{name}@GOTPCREL(%rip)\n"),
        "aarch64" => |name| {
            format!(
                "    bti c\n    adrp x16, :got:rnic_cm_{name}\n    ldr x16, [x16, :got_lo12:rnic_cm_{name}]\n    br x16\n"
            )
        },
        other => return Err(format!("no jumps are written for {other}").into()),
    };
    let mut source = String::new();
    for name in names {
        writeln!(
            source,
            ".globl {name}\n.type {name}, %function\n{name}:\n    .cfi_startproc"
        )?;
        source.push_str(&jump(name));
        writeln!(source, "    .cfi_endproc\n.size {name}, . - {name}\n")?;
    }
    source.push_str(".section .note.GNU-stack, \"\", %progbits\n");
    Ok(source)
}
