//! The BPF programs' SipHash, compiled for the host and held by `siphash.c` against what the switch computes.

use std::path::Path;
use std::process::Command;

#[test]
fn the_guest_computes_what_the_switch_does() {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("siphash");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/siphash.c");
    let options = ["-std=gnu11", "-O1", "-Wall", "-Werror", "-fsanitize=undefined"];
    let mut compiler = Command::new("cc");
    compiler.args(options).arg(source).arg("-o").arg(&program);
    assert!(compiler.status().unwrap().success());
    let output = Command::new(program).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
